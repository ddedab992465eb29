// SPDX-License-Identifier: MIT
// A hash of the parameters, to compare replicas.
#include "base/base.h"

#include <isotherm/parallel.h>
#include <string.h>

static iso_status hash_all(const iso_parameter_list *list, uint64_t *out) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < list->count; i++) {
        iso_tensor *value;
        void *data;
        ISO_TRY(iso_parameter_value(list->item[i], &value));
        ISO_TRY(iso_tensor_map(value, ISO_READ, &data));
        hash = iso__hash(hash, list->name[i], strlen(list->name[i]));
        hash = iso__hash(hash, data,
                         (size_t)iso_tensor_count(value) * iso_dtype_size(iso_tensor_dtype(value)));
        ISO_TRY(iso_tensor_unmap(value));
    }
    *out = hash;
    return ISO_OK;
}

// The maximum of ~x is -(minimum of x) - 1, so the two maxima show whether all x are equal.
static iso_status compare_hashes(iso_comm *comm, uint64_t mine, bool *equal) {
    int64_t extremes[2] = {(int64_t)mine, (int64_t)~mine};
    ISO_TRY(iso_comm_allreduce_i64(comm, extremes, 2, ISO_MAX));
    *equal = extremes[0] == (int64_t) ~(uint64_t)extremes[1];
    return ISO_OK;
}

// Completes all updates, because other ranks may wait for this rank's contribution to them. Called
// before this rank meets the other ranks, and before it may fail alone.
static iso_status complete_updates(iso_module *module, const char *path, void *user) {
    iso_tensor *value;
    (void)path, (void)user;
    for (int i = 0; i < module->parameter_count; i++)
        ISO_TRY(iso_parameter_value(module->parameter[i], &value));
    return ISO_OK;
}

static iso_status hash_module(iso_module *module, uint64_t *out) {
    iso_parameter_list list;
    ISO_TRY(iso_module_walk(module, complete_updates, NULL));
    ISO_TRY(iso_module_parameters(module, &list));
    iso_status status = hash_all(&list, out);
    iso_parameter_list_destroy(&list);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_parameter_hash(iso_module *module, iso_comm *comm, uint64_t *hash, bool *equal) {
    uint64_t mine = 0;
    iso_status status = hash_module(module, &mine);
    if (equal) status = iso_comm_agree(comm, status);
    ISO_TRY(status);
    if (equal) ISO_TRY(compare_hashes(comm, mine, equal));
    *hash = mine;
    return ISO_OK;
}
