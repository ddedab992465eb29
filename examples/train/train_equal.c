// SPDX-License-Identifier: MIT
// --check-equal: checks whether all ranks still have the same parameters, and reacts if not.
#include "train.h"

#include <inttypes.h>
#include <string.h>

static bool is_answer(const train_run *run, const char *action) {
    return strcmp(run->options->on_difference, action) == 0;
}

// ---- Who differs --------------------------------------------------------------------------------

typedef struct difference {
    int64_t rank;            // the lowest one that differs from rank 0
    uint64_t first, another; // hashes of rank 0 and of that rank
} difference;

static iso_status find_rank(iso_comm *comm, uint64_t mine, difference *out) {
    *out = (difference){.first = mine, .another = mine};
    TRY(iso_comm_bcast(comm, &out->first, sizeof(out->first), 0));
    out->rank = out->first != mine ? iso_comm_rank(comm) : iso_comm_size(comm);
    TRY(iso_comm_allreduce_i64(comm, &out->rank, 1, ISO_MIN));
    return iso_comm_bcast(comm, &out->another, sizeof(out->another), (int)out->rank);
}

#define SENTENCE 240

static void describe_difference(const train_run *run, const difference *d, char text[SENTENCE]) {
    snprintf(text, SENTENCE,
             "parameters differ between ranks after step %lld: those of rank 0 have the hash "
             "%016" PRIx64 ", and those of rank %lld have %016" PRIx64,
             (long long)run->at.step, d->first, (long long)d->rank, d->another);
}

// ---- Rank 0's, for all --------------------------------------------------------------------------

static iso_status take_tensor(iso_comm *comm, iso_tensor *tensor) {
    void *data;
    size_t bytes = (size_t)iso_tensor_count(tensor) * iso_dtype_size(iso_tensor_dtype(tensor));
    TRY(iso_tensor_map(tensor, ISO_READ_WRITE, &data));
    iso_status status = iso_comm_bcast(comm, data, bytes, 0);
    TRY(iso_tensor_unmap(tensor));
    return status;
}

static iso_status take_all(iso_comm *comm, const iso_state_dict *dict) {
    for (int i = 0; i < dict->count; i++) TRY(take_tensor(comm, dict->item[i].tensor));
    return ISO_OK;
}

static iso_status take_model(train_run *run) {
    iso_state_dict dict = {0};
    TRY(iso_module_state_dict(run->model, &dict));
    iso_status status = take_all(run->world->comm, &dict);
    iso_state_dict_destroy(&dict);
    return status;
}

// The tensors of the dict are the optimizer's own, but its numbers are copies: load them back.
static iso_status take_optimizer(train_run *run) {
    iso_state_dict dict = {0};
    TRY(iso_optimizer_state_dict(run->optimizer, &dict));
    iso_status status = take_all(run->world->comm, &dict);
    if (status >= 0) status = iso_optimizer_load_state_dict(run->optimizer, &dict, true, NULL);
    iso_state_dict_destroy(&dict);
    return status;
}

// ---- The check ----------------------------------------------------------------------------------

iso_status train_equal_check(train_run *run) {
    uint64_t hash;
    bool equal;
    difference d;
    char text[SENTENCE];
    TRY(iso_parameter_hash(run->model, run->world->comm, &hash, &equal));
    if (equal) return ISO_OK;
    TRY(find_rank(run->world->comm, hash, &d));
    describe_difference(run, &d, text);
    run->differences++;
    train_report_difference(run, d.rank);
    if (is_answer(run, "stop"))
        return train_error(ISO_ERR_MISMATCH,
                           "%s: try other hosts, or go on with --on-difference resync", text);
    if (run->world->rank == 0)
        fprintf(stderr, "%s: warning: %s%s\n", train_error_name(), text,
                is_answer(run, "resync") ? ": all ranks take rank 0's" : "");
    if (is_answer(run, "warn")) return ISO_OK;
    TRY(take_model(run));
    return take_optimizer(run);
}
