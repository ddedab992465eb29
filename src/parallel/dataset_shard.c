// SPDX-License-Identifier: MIT
// Data sets of which each rank has a shard.
#include "data/data_impl.h"

#include <isotherm/parallel.h>

enum { WHAT_ROOM = 300 };

iso_status iso_dataset_set_shard(iso_dataset *dataset, iso_comm *comm, const char *what) {
    char text[WHAT_ROOM];
    const iso_dataset_info *info = &dataset->info;
    snprintf(text, sizeof(text), "the shape of the samples of %.240s", what);
    ISO_TRY(iso_comm_check_same(comm, iso__dataset_kind(dataset), text));
    // The minimum is the negated maximum of the negated numbers.
    int64_t largest[3] = {info->count, -info->count, info->classes};
    ISO_TRY(iso_comm_allreduce_i64(comm, largest, 3, ISO_MAX));
    iso__shards shards = {.rank = iso_comm_rank(comm),
                          .ranks = iso_comm_size(comm),
                          .least = -largest[1],
                          .most = largest[0]};
    iso__dataset_set_shards(dataset, shards, (int)largest[2]);
    return ISO_OK;
}
