// SPDX-License-Identifier: MIT
// Fuzz targets that read texts: options, settings, lists, logs; and flight records.
#include "fuzz.h"

#include "../../examples/postmortem/postmortem.h"
#include "../../examples/sweep/report.h"
#include "../../examples/sweep/sweep_list.h"
#include "../../examples/train/train_options.h"

#include <errno.h>
#include <isotherm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WORDS = 64 };

// Every line of the input is a word of the command line.
void fuzz_options(const uint8_t *data, size_t size) {
    static char text[TRAIN_OPTIONS_ROOM];
    char *words[WORDS + 2] = {"train"}, *memory = fuzz_text(data, size), *at = memory;
    int count = 1;
    train_options options;
    iso_settings *settings = NULL;
    while (at && count <= WORDS) words[count++] = strsep(&at, "\n");
    if (train_options_parse(count, words, &options) >= 0 && train_options_check(&options) >= 0) {
        train_options_text(&options, true, text, sizeof(text));
        if (iso_settings_create(&settings) >= 0) (void)train_options_settings(&options, settings);
        iso_settings_destroy(&settings);
    }
    free(memory);
}

// "KEY=VALUE,..." for the strategy that the first byte chooses; then one value for every setting.
void fuzz_settings(const uint8_t *data, size_t size) {
    if (size == 0) return;
    char *text = fuzz_text(data + 1, size - 1), fields[4096];
    const iso_strategy *strategy = iso_strategy_at(data[0] % iso_strategy_count());
    iso_settings *settings = NULL;
    if (iso_settings_create(&settings) < 0) abort();
    memset(fields, 0, sizeof(fields));
    if (iso_settings_parse(settings, text) >= 0 &&
        iso_settings_read(settings, strategy->setting, strategy->setting_count, fields) >= 0)
        (void)iso_settings_check_used(settings, strategy->name);
    for (int i = 0; i < strategy->setting_count; i++)
        (void)iso_setting_set(&strategy->setting[i], "fuzz", text, fields);
    iso_settings_destroy(&settings);
    free(text);
}

// The first line are seeds, the second one is a shard, the others are the list.
void fuzz_list(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size), *at = text;
    char *seeds = strsep(&at, "\n"), *shard = at ? strsep(&at, "\n") : NULL;
    sweep_list list = {0};
    if (at && sweep_list_add_lines(&list, at) >= 0 && list.count > 0) {
        if (*seeds) (void)sweep_list_seeds(&list, seeds);
        if (shard && *shard) (void)sweep_list_shard(&list, shard);
    }
    sweep_list_free(&list);
    free(text);
}

void fuzz_report(const uint8_t *data, size_t size) {
    report_run run = {0};
    (void)report_run_read(fuzz_file(data, size), &run);
    report_run_free(&run);
}

// A valid record of one of two ranks, which have started the same exchanges.
static void fill_record(iso_recorder_file *file, int rank) {
    enum { EXCHANGES = 6 };
    memset(file, 0, sizeof(*file));
    memcpy(file->magic, ISO_RECORDER_MAGIC, sizeof(file->magic));
    file->bytes = sizeof(*file);
    file->rank = rank;
    file->size = 2;
    file->count = EXCHANGES;
    file->stream[0] = (iso_recorder_stream){.group = 1, .rank = rank, .size = 2};
    file->stream[0].posted = EXCHANGES;
    for (uint32_t i = 0; i < EXCHANGES; i++)
        file->entry[i] = (iso_recorder_entry){
            .number = i + 1, .time_ns = i, .bytes = 64, .sequence = i + 1, .name = "bucket"};
    for (uint32_t i = 0; i < EXCHANGES; i++) file->entry[i].event = ISO_RECORDER_POSTED;
}

// Writes over what the last input left: to truncate a file first would take milliseconds.
static void write_record(int rank, const iso_recorder_file *file) {
    static const char *const path[] = {"fuzz-record.tmp/rank-0.rec", "fuzz-record.tmp/rank-1.rec"};
    static FILE *to[2];
    if (!to[rank]) to[rank] = fopen(path[rank], "wb");
    if (!to[rank]) abort();
    rewind(to[rank]);
    if (fwrite(file, sizeof(*file), 1, to[rank]) != 1 || fflush(to[rank]) != 0) abort();
}

// Valid records of two ranks with changes: 4 bytes of a place, whose highest bit chooses the rank,
// 4 bytes to write there, and so on.
void fuzz_record(const uint8_t *data, size_t size) {
    static const char folder[] = "fuzz-record.tmp";
    static iso_recorder_file file[2];
    job j;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) abort();
    for (int r = 0; r < 2; r++) fill_record(&file[r], r);
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t at;
        memcpy(&at, data, sizeof(at));
        memcpy((char *)&file[at >> 31] + (at & INT32_MAX) % (sizeof(file[0]) - 4), data + 4, 4);
    }
    for (int r = 0; r < 2; r++) {
        if (file[r].size > 64) file[r].size = 64; // more only cost memory
        write_record(r, &file[r]);
    }
    FILE *nowhere = fopen("/dev/null", "w");
    if (!nowhere) abort();
    if (job_read(folder, &j) >= 0) {
        job_print(&j, nowhere);
        for (int r = 0; r < j.size; r++)
            if (j.rank[r].file) job_print_entries(&j.rank[r], nowhere);
        job_free(&j);
    }
    fclose(nowhere);
}
