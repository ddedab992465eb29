// SPDX-License-Identifier: MIT
// Checks that all ranks list the same shared entries with the same contents.
#include "optim/resume/resume_impl.h"

#include <inttypes.h>
#include <string.h>

static uint64_t hash_entry(const iso__array *array) {
    uint64_t hash = iso__hash(ISO_HASH_START, array->name, strlen(array->name) + 1);
    hash = iso__hash(hash, array->dtype, strlen(array->dtype) + 1);
    return iso__hash(hash, array->shape, (size_t)array->ndim * sizeof(int64_t));
}

static iso_status compare_ranks(const iso_state *state, const uint64_t *hash, int64_t root_count,
                                const uint64_t (*root)[2]) {
    const iso__array *array = state->array[ISO_STATE_SHARED];
    int count = state->count[ISO_STATE_SHARED];
    for (int i = 0; i < count && i < root_count; i++) {
        ISO_CHECK(hash_entry(&array[i]) == root[i][0], ISO_ERR_MISMATCH,
                  "ranks disagree: shared entry %d of the state is %s here and another on rank 0",
                  i, array[i].name);
        ISO_CHECK(!hash || hash[i] == root[i][1], ISO_ERR_MISMATCH,
                  "the shared entry %s of the state is not what it is on rank 0: add what differs "
                  "between ranks as ISO_STATE_OWN",
                  array[i].name);
    }
    ISO_CHECK(count == root_count, ISO_ERR_MISMATCH,
              "ranks disagree: the state has %d shared entries here and %" PRId64 " on rank 0",
              count, root_count);
    return ISO_OK;
}

iso_status iso__state_match(iso_comm *comm, const iso_state *state, int64_t step,
                            const uint64_t *hash) {
    int64_t head[2] = {state->count[ISO_STATE_SHARED], step}; // of rank 0
    ISO_TRY(iso_comm_bcast(comm, head, sizeof(head), 0));
    size_t bytes = (size_t)head[0] * 2 * sizeof(uint64_t);
    void *memory = NULL;
    iso_status status = iso_comm_agree(comm, iso__alloc(bytes, &memory));
    if (status >= 0) {
        uint64_t(*root)[2] = memory;
        for (int i = 0; iso_comm_rank(comm) == 0 && i < head[0]; i++) {
            root[i][0] = hash_entry(&state->array[ISO_STATE_SHARED][i]);
            root[i][1] = hash ? hash[i] : 0;
        }
        status = iso_comm_bcast(comm, root, bytes, 0);
        if (status >= 0) status = compare_ranks(state, hash, head[0], root);
        if (status >= 0 && head[1] != step)
            status =
                ISO_FAIL(ISO_ERR_MISMATCH,
                         "ranks disagree: step %" PRId64 " is saved here and %" PRId64 " on rank 0",
                         step, head[1]);
        status = iso_comm_agree(comm, status);
    }
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}
