// SPDX-License-Identifier: MIT
// Puts the parameters of every rank into the order of rank 0, by their names.
#include "parallel/reducer/param_set.h"

#include "parallel/param_list.h"
#include "parallel/reducer/reducer_calls.h"

#include <string.h>

// A parameter of this rank, where it stands in the set.
typedef struct named {
    const char *name;
    int place;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

// Sorts this rank's names into index: [set->count].
static iso_status index_names(const iso__param_set *set, int rank, named *index) {
    for (int k = 0; k < set->count; k++) {
        ISO_CHECK(set->param[k].name, ISO_ERR_ARG,
                  "rank %d lists parameter %d (counted from 0) without a name: with by_name every "
                  "parameter needs one",
                  rank, set->ref[k].id);
        index[k] = (named){set->param[k].name, k};
    }
    qsort(index, (size_t)set->count, sizeof(*index), by_name);
    for (int k = 1; k < set->count; k++)
        ISO_CHECK(strcmp(index[k].name, index[k - 1].name) != 0, ISO_ERR_ARG,
                  "rank %d lists two parameters named \"%s\": with by_name every name must be "
                  "another one",
                  rank, index[k].name);
    return ISO_OK;
}

// ---- Rank 0's list ----------------------------------------------------------------------------------

// Rank 0's numbers of its parameters, followed by their names, in the order of its set. A 0 ends
// each name.
typedef struct first_list {
    int64_t count, bytes; // bytes: of number and names
    int *number;
    char *names; // in the same memory
} first_list;

static iso_status write_list(const iso__param_set *set, first_list *out) {
    size_t numbers = (size_t)set->count * sizeof(int), bytes = numbers;
    for (int k = 0; k < set->count; k++) bytes += strlen(set->param[k].name) + 1;
    ISO_TRY(iso__alloc(bytes, (void **)&out->number));
    out->count = set->count;
    out->bytes = (int64_t)bytes;
    char *name = (char *)out->number + numbers;
    for (int k = 0; k < set->count; k++) {
        out->number[k] = set->ref[k].id;
        name = stpcpy(name, set->param[k].name) + 1;
    }
    return ISO_OK;
}

// Collective. Free list->number, also on failure.
static iso_status share_list(iso_comm *comm, const iso__param_set *set, first_list *list) {
    bool first = iso_comm_rank(comm) == 0;
    int64_t sizes[2] = {0, 0};
    iso_status mine = first ? write_list(set, list) : ISO_OK;
    if (mine == ISO_OK && first)
        memcpy(sizes, (int64_t[]){list->count, list->bytes}, sizeof(sizes));
    ISO_TRY(iso_comm_bcast(comm, sizes, sizeof(sizes), 0));
    list->count = sizes[0];
    list->bytes = sizes[1];
    if (!first && sizes[1] > 0) mine = iso__alloc((size_t)sizes[1], (void **)&list->number);
    ISO_TRY(iso_comm_agree(comm, mine));
    list->names = (char *)list->number + (size_t)list->count * sizeof(int);
    return iso_comm_bcast(comm, list->number, (size_t)list->bytes, 0);
}

// ---- This rank's order ------------------------------------------------------------------------------

// from[k]: this rank's place of rank 0's parameter k. from: [list->count]. found: [set->count].
static iso_status find_places(const iso__param_set *set, const first_list *list, int rank,
                              const named *index, int *from, bool *found) {
    const char *name = list->names;
    for (int64_t k = 0; k < list->count; k++, name += strlen(name) + 1) {
        const named key = {.name = name};
        const named *mine = bsearch(&key, index, (size_t)set->count, sizeof(*index), by_name);
        ISO_CHECK(mine, ISO_ERR_MISMATCH,
                  "rank %d lists no parameter named \"%s\", and rank 0 does: list the same ones on "
                  "every rank",
                  rank, name);
        from[k] = mine->place;
        found[mine->place] = true;
    }
    for (int k = 0; k < set->count; k++)
        ISO_CHECK(found[k], ISO_ERR_MISMATCH,
                  "rank %d lists a parameter named \"%s\", and rank 0 does not: list the same ones "
                  "on every rank",
                  rank, set->param[k].name);
    return ISO_OK;
}

static iso_status reorder_set(iso__param_set *set, const first_list *list, const int *from) {
    size_t count = (size_t)set->count;
    iso__param_set to = {.count = set->count, .names = set->names};
    iso_status status = iso__alloc(count * sizeof(*to.param), (void **)&to.param);
    if (status == ISO_OK) status = iso__alloc(count * sizeof(*to.ref), (void **)&to.ref);
    if (status == ISO_OK) status = iso__alloc(count * sizeof(*to.first), (void **)&to.first);
    for (size_t k = 0; status == ISO_OK && k < count; k++) {
        to.param[k] = set->param[from[k]];
        to.ref[k] = set->ref[from[k]];
        to.first[k] = list->number[k];
    }
    if (status < 0) to.names = NULL;
    iso__param_set rest = status < 0 ? to : *set;
    if (status == ISO_OK) *set = to;
    rest.names = NULL;
    iso__param_set_destroy(&rest);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status take_order(iso__param_set *set, const first_list *list, int rank,
                             const named *index) {
    int *from = NULL;
    bool *found = NULL;
    iso_status status = iso__alloc((size_t)list->count * sizeof(*from), (void **)&from);
    if (status == ISO_OK) status = iso__alloc_zero((size_t)set->count, (void **)&found);
    if (status == ISO_OK) status = find_places(set, list, rank, index, from, found);
    if (status == ISO_OK) status = reorder_set(set, list, from);
    iso__free(from);
    iso__free(found);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status match_names(iso__param_set *set, iso_comm *comm, named *index, first_list *list) {
    int rank = iso_comm_rank(comm);
    ISO_TRY(iso_comm_agree(comm, index_names(set, rank, index)));
    ISO_TRY(share_list(comm, set, list));
    ISO_TRY(iso_comm_agree(comm, take_order(set, list, rank, index)));
    return iso__params_check_ranks(comm, set->param, set->count, "", 0);
}

iso_status iso__param_set_match(iso__param_set *set, iso_comm *comm) {
    named *index = NULL;
    first_list list = {0};
    size_t bytes = (size_t)set->count * sizeof(*index);
    iso_status status = iso_comm_agree(comm, iso__alloc(bytes, (void **)&index));
    if (status == ISO_OK) status = match_names(set, comm, index, &list);
    iso__free(index);
    iso__free(list.number);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__reducer_match_names(iso_comm *comm, const iso_reducer_param *params, int count,
                                    int *from) {
    iso__param_set set;
    iso_status status = iso_comm_agree(comm, iso__param_set_create(params, count, &set));
    if (status == ISO_OK) status = iso__param_set_match(&set, comm);
    for (int k = 0; status == ISO_OK && k < count; k++) from[k] = set.ref[k].id;
    iso__param_set_destroy(&set);
    ISO_TRY(status);
    return ISO_OK;
}
