// SPDX-License-Identifier: MIT
// Makes every run of the list with each seed, and keeps those of a shard.
#include "sweep_list.h"

#include "train/train_error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED_MOST 9000000000000000LL // as --seed

// ---- Seeds --------------------------------------------------------------------------------------

// The number at *at, which then stands behind its comma.
static iso_status take_seed(const char *text, const char **at, int64_t *out) {
    size_t digits = strspn(*at, "0123456789");
    long long value = digits > 0 && digits < 17 ? strtoll(*at, NULL, 10) : -1;
    const char *end = *at + digits;
    if (value < 0 || value > SEED_MOST || (*end && *end != ',') || (*end && !end[1]))
        return train_error(ISO_ERR_ARG,
                           "--seeds %.80s: give whole numbers from 0 to 9e15 with commas between "
                           "them, as 1,2,3",
                           text);
    *out = value;
    *at = *end ? end + 1 : end;
    return ISO_OK;
}

static iso_status read_seeds(const char *text, int64_t seeds[SWEEP_SEEDS], int *count) {
    const char *at = text;
    for (*count = 0; *count == 0 || *at; ++*count) {
        if (*count == SWEEP_SEEDS)
            return train_error(ISO_ERR_ARG, "--seeds has more than %d seeds", SWEEP_SEEDS);
        TRY(take_seed(text, &at, &seeds[*count]));
        for (int i = 0; i < *count; i++)
            if (seeds[i] == seeds[*count])
                return train_error(ISO_ERR_ARG, "--seeds has %lld twice: give each seed once",
                                   (long long)seeds[i]);
    }
    return ISO_OK;
}

static iso_status copy_entry(const sweep_entry *from, int64_t seed, sweep_entry **out) {
    sweep_entry *to = malloc(sizeof(*to));
    if (!to) return train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    *to = *from;
    for (int i = 0; i < to->word_count; i++)
        to->words[i] = to->memory + (from->words[i] - from->memory);
    to->seed = seed;
    snprintf(to->file, sizeof(to->file), "%s-seed%lld", from->name, (long long)seed);
    *out = to;
    return ISO_OK;
}

static iso_status add_copies(const sweep_list *list, const int64_t *seeds, int count,
                             sweep_list *out) {
    for (int s = 0; s < count; s++)
        for (int i = 0; i < list->count; i++) {
            TRY(copy_entry(list->entries[i], seeds[s], &out->entries[out->count]));
            out->count++;
        }
    return ISO_OK;
}

iso_status sweep_list_seeds(sweep_list *list, const char *seeds) {
    int64_t seed[SWEEP_SEEDS];
    int count;
    sweep_list all = {0};
    TRY(read_seeds(seeds, seed, &count));
    size_t runs = (size_t)count * (size_t)list->count;
    all.entries = calloc(runs + 1, sizeof(sweep_entry *));
    iso_status status = all.entries
                            ? add_copies(list, seed, count, &all)
                            : train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    if (status < 0) {
        sweep_list_free(&all);
        return status;
    }
    sweep_list_free(list);
    *list = all;
    return ISO_OK;
}

// ---- Shards -------------------------------------------------------------------------------------

iso_status sweep_list_shard(sweep_list *list, const char *shard) {
    int index, shards, length = 0, kept = 0;
    bool read = sscanf(shard, "%9d/%9d%n", &index, &shards, &length) == 2 && !shard[length];
    if (!read || shards < 1 || index < 0 || index >= shards)
        return train_error(ISO_ERR_ARG,
                           "--shard %.40s: give I/N, the number of this job and how many there "
                           "are, from 0/N to N-1/N",
                           shard);
    for (int i = 0; i < list->count; i++) {
        if (i % shards == index)
            list->entries[kept++] = list->entries[i];
        else
            free(list->entries[i]);
    }
    int before = list->count;
    list->count = kept;
    if (kept > 0 || before == 0) return ISO_OK;
    return train_error(ISO_ERR_ARG, "--shard %s has no run: the list has only %d", shard, before);
}
