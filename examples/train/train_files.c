// SPDX-License-Identifier: MIT
// Checks the files of a run before anything is written.
#include "train_files.h"

#include "train_lock.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>

static const char *name_in_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool stat_folder(const char *path, struct stat *out) {
    char folder[4096];
    int length = (int)(name_in_folder(path) - path);
    snprintf(folder, sizeof(folder), "%.*s", length > 0 ? length : 1, length > 0 ? path : ".");
    return stat(folder, out) == 0;
}

// Whether both name the same file, which need not exist: "checkpoint" and "/tmp/checkpoint" can.
static bool is_same_file(const char *a, const char *b) {
    struct stat at_a, at_b;
    if (strcmp(a, b) == 0) return true;
    return strcmp(name_in_folder(a), name_in_folder(b)) == 0 && stat_folder(a, &at_a) &&
           stat_folder(b, &at_b) && at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

bool train_files_continue(const train_options *o) {
    return o->resume && o->checkpoint && is_same_file(o->resume, o->checkpoint);
}

static iso_status refuse_sets(const train_options *o) {
    int64_t newest;
    TRY(iso_resume_newest(o->checkpoint, &newest));
    if (newest < 0) return ISO_OK;
    return train_error(
        ISO_ERR_STATE,
        "saved states of %s exist up to step %lld: continue with --resume %s, give another "
        "--checkpoint, or replace them with --overwrite",
        o->checkpoint, (long long)newest, o->checkpoint);
}

// Refuses a file that exists and is not empty. Pipes and devices are accepted.
static iso_status refuse_file(const char *path, const char *what) {
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return ISO_OK;
    return train_error(ISO_ERR_STATE,
                       "the %s %s exists: give another --%s, or replace it with "
                       "--overwrite",
                       what, path, what);
}

static iso_status take_lock(const char *checkpoint, const char *option) {
    char path[PATH_MAX];
    if (!checkpoint) return ISO_OK;
    if (snprintf(path, sizeof(path), "%s.lock", checkpoint) >= PATH_MAX)
        return train_error(ISO_ERR_ARG, "the value of %s is too long: %.80s...", option,
                           checkpoint);
    return train_lock_take(&(train_lock){checkpoint, path, "training run", option});
}

iso_status train_files_check(const train_run *run) {
    const train_options *o = run->options;
    if (o->trace) TRY(train_output_check(o->trace, "trace"));
    if (o->checkpoint) TRY(train_output_check(o->checkpoint, "checkpoint"));
    if (o->checkpoint_best) TRY(train_output_check(o->checkpoint_best, "checkpoint-best"));
    // A sweep has locked its folder.
    if (run->locks == 0) TRY(take_lock(o->checkpoint, "--checkpoint"));
    if (run->locks == 0) TRY(take_lock(o->checkpoint_best, "--checkpoint-best"));
    TRY(train_log_check(o));
    if (o->overwrite) return ISO_OK;
    if (!o->resume) TRY(refuse_file(o->checkpoint_best, "checkpoint-best"));
    if (!o->resume) TRY(refuse_file(o->trace, "trace"));
    if (o->checkpoint && !train_files_continue(o)) TRY(refuse_sets(o));
    if (!train_files_continue(o)) TRY(refuse_file(o->checkpoint, "checkpoint"));
    return o->resume || o->resume_auto ? ISO_OK : refuse_file(o->log, "log");
}

iso_status train_files_check_resumed(const train_run *run) {
    const train_options *o = run->options;
    return run->world->rank != 0 || o->overwrite ? ISO_OK : refuse_file(o->trace, "trace");
}
