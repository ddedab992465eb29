// SPDX-License-Identifier: MIT
// Checks that all ranks have the same options and data: with different options they could wait for
// each other for ever, and with different data the result would be meaningless.
#include "train.h"

#include <string.h>
#include <unistd.h>

// ---- Options ------------------------------------------------------------------------------------

size_t train_options_difference(const char *a, const char *b) {
    size_t line = 0;
    for (size_t n = 0; a[n] && a[n] == b[n]; n++)
        if (a[n] == '\n') line = n + 1;
    return line;
}

iso_status train_options_agree(const train_options *values) {
    static char mine[TRAIN_OPTIONS_ROOM], first[TRAIN_OPTIONS_ROOM];
    train_options_text(values, false, mine, sizeof(mine));
    memcpy(first, mine, sizeof(first));
    train_bcast(first, sizeof(first), 0, "the broadcast of the options");
    if (strcmp(mine, first) == 0) return ISO_OK;
    size_t line = train_options_difference(mine, first);
    const char *a = mine + line, *b = first + line;
    return train_error(ISO_ERR_MISMATCH,
                       "started with %.*s where rank 0 has %.*s: give every rank the same options",
                       (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
}

// ---- Data ---------------------------------------------------------------------------------------

enum { WHAT_ROOM = 300 };

static iso_status agree_set(const train_world *world, const iso_dataset *set, const char *kind,
                            const char *data) {
    char what[WHAT_ROOM];
    snprintf(what, sizeof(what), "the %s set of %.240s", kind, data);
    return iso_comm_check_same(world->comm, iso_dataset_checksum(set), what);
}

iso_status train_agree_data(const train_world *world, const train_options *options) {
    TRY(agree_set(world, world->train_set, "training", options->data));
    return agree_set(world, world->test_set, "test", options->data);
}

iso_status train_agree_load(const train_run *run) {
    iso_comm *comm = run->world->comm;
    const char *path = run->options->load;
    char what[WHAT_ROOM];
    uint64_t mine = 0, first;
    bool there = run->world->rank == 0 || access(path, F_OK) == 0;
    TRY(iso_comm_agree(comm, there ? iso_checkpoint_checksum(path, &mine) : ISO_OK));
    first = mine; // rank 0's
    TRY(iso_comm_bcast(comm, &first, sizeof(first), 0));
    snprintf(what, sizeof(what), "the file %.240s of --load", path);
    return iso_comm_check_same(comm, there ? mine : first, what);
}
