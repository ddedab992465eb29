// SPDX-License-Identifier: MIT
// Writes the files of a study. Each replaces the old one as a whole.
#include "report_impl.h"
#include "report_predict.h"

#include "train/train_error.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

// The page, or a table.
static void write_content(FILE *to, const report_groups *all, const report_figures *figures,
                          void (*table)(FILE *to, const report_groups *all)) {
    if (table)
        table(to, all);
    else
        report_write_html(to, all, figures);
}

static iso_status write_file(const report_groups *all, const report_figures *figures,
                             const char *folder, const char *name,
                             void (*table)(FILE *to, const report_groups *all)) {
    char path[PATH_MAX], temporary[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    int longer = snprintf(temporary, sizeof(temporary), "%s/.%s.part", folder, name);
    if (length >= PATH_MAX || longer >= PATH_MAX)
        return train_error(ISO_ERR_ARG, "the folder name is too long: %.80s...", folder);
    FILE *to = fopen(temporary, "w");
    if (!to) return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    write_content(to, all, figures, table);
    bool good = fflush(to) == 0 && !ferror(to);
    good = fclose(to) == 0 && good;
    if (good && rename(temporary, path) == 0) return ISO_OK;
    int error = errno;
    unlink(temporary);
    return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(error));
}

static const struct {
    const char *name;
    void (*table)(FILE *to, const report_groups *all);
} file[] = {{"report.html", NULL}, // first: sweep_folder_check knows a folder by it
            {"points.csv", report_write_points},
            {"syncs.csv", report_write_syncs},
            {"runs.csv", report_write_runs},
            {"modes.csv", report_write_modes},
            {"comparisons.csv", report_write_comparisons},
            {"predictions.csv", report_write_predicted}};
enum { FILES = sizeof(file) / sizeof(*file) };

const char *report_file(int i) { return i < FILES ? file[i].name : NULL; }

static void remove_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) < PATH_MAX) unlink(path);
}

static iso_status write_all(const report_groups *all, const char *folder) {
    report_figures figures;
    iso_status status = ISO_OK;
    report_figures_make(all, folder, &figures);
    for (int i = 0; i < FILES && status == ISO_OK; i++)
        if (file[i].table == report_write_predicted && !(all->study->network.rate > 0))
            remove_file(folder, file[i].name); // of an earlier report
        else
            status = write_file(all, &figures, folder, file[i].name, file[i].table);
    report_figures_free(&figures);
    return status;
}

iso_status report_write(const report *study, const char *folder) {
    report_groups all;
    iso_status status = report_groups_make(study, &all);
    if (status == ISO_OK) status = write_all(&all, folder);
    report_groups_free(&all);
    return status;
}
