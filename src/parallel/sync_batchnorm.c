// SPDX-License-Identifier: MIT
// SyncBatchNorm: makes the batch norms of a module share statistics with the ranks of a comm.
#include "comm/comm_calls.h"
#include "comm/same_lines.h"
#include "comm/traffic.h"
#include "nn/nn_impl.h"

#include <isotherm/sync_batchnorm.h>

enum { LINE_ROOM = 240 }; // of the description of a batch norm

typedef struct conversion {
    iso_comm *comm;
    size_t visits;   // of batch norms
    char *text, *at; // their descriptions, one line each; where the next one begins
    int count;       // converted
} conversion;

static iso_status sum_over_ranks(double *numbers, size_t count, void *user) {
    iso_comm *comm = user;
    ISO_TRY(iso_comm_allreduce_f64(comm, numbers, count, ISO_SUM));
    iso__comm_count_sum(comm, count * sizeof(*numbers));
    return ISO_OK;
}

static void release_comm(void *user) {
    iso_comm *comm = user;
    iso_comm_destroy(&comm);
}

// A module that is used twice is visited twice, on every rank.
static iso_status count_module(iso_module *module, const char *path, void *user) {
    (void)path;
    conversion *c = user;
    c->visits += iso__batch_norm_features(module) > 0;
    return ISO_OK;
}

static iso_status describe_module(iso_module *module, const char *path, void *user) {
    conversion *c = user;
    long long features = iso__batch_norm_features(module);
    if (features > 0)
        c->at +=
            snprintf(c->at, LINE_ROOM, "batch norm \"%.160s\" of %lld features\n", path, features);
    return ISO_OK;
}

static iso_status describe_all(iso_module *module, conversion *c) {
    ISO_TRY(iso_module_walk(module, count_module, c));
    ISO_TRY(iso__alloc_zero(c->visits * LINE_ROOM + 1, (void **)&c->text));
    c->at = c->text;
    return iso_module_walk(module, describe_module, c);
}

static iso_status convert_module(iso_module *module, const char *path, void *user) {
    (void)path;
    conversion *c = user;
    if (iso__batch_norm_features(module) == 0 || iso__batch_norm_user(module) == c->comm)
        return ISO_OK;
    iso__norm_group group = {iso_comm_size(c->comm) > 1 ? sum_over_ranks : NULL, release_comm,
                             c->comm};
    ISO_TRY(iso__batch_norm_share(module, &group));
    iso_comm_retain(c->comm);
    c->count++;
    return ISO_OK;
}

static iso_status convert_all(iso_module *module, conversion *c) {
    ISO_TRY(iso__comm_locate(c->comm));
    ISO_TRY(iso_comm_agree(c->comm, describe_all(module, c)));
    ISO_TRY(
        iso__comm_check_lines(c->comm, &(iso__lines){.list = c->text, .element = "batch norm"}));
    return iso_comm_agree(c->comm, iso_module_walk(module, convert_module, c));
}

iso_status iso_sync_batchnorm_convert(iso_module *module, iso_comm *comm, int *count) {
    conversion c = {0};
    ISO_TRY(iso__comm_create_like(comm, iso_comm_mpi(comm), false, &c.comm));
    iso_status status = convert_all(module, &c);
    iso__free(c.text);
    iso_comm_destroy(&c.comm);
    ISO_TRY(status);
    if (count) *count = c.count;
    return ISO_OK;
}
