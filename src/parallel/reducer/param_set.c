// SPDX-License-Identifier: MIT
// Makes one parameter of each slice of a tensor that holds several layers.
#include "parallel/reducer/param_set.h"

#include <limits.h>
#include <string.h>

enum { NUMBER_ROOM = 16 }; // "[2147483647]"

static int slices_of(const iso_reducer_param *p) { return p->layers > 1 ? p->layers : 1; }

static iso_status check_entry(const iso_reducer_param *p) {
    const char *name = p->name ? p->name : "";
    ISO_CHECK(
        p->layers >= 0, ISO_ERR_ARG,
        "parameter \"%s\" has %d layers: give the number of layers that the array holds, or 0 "
        "for one",
        name, p->layers);
    ISO_CHECK(
        p->layers <= 1 || p->stride == 0 || p->stride >= p->count, ISO_ERR_ARG,
        "parameter \"%s\" has %zu elements in each layer, which begin %zu elements apart: give "
        "a stride of at least %zu, or 0 for layers without gaps",
        name, p->count, p->stride, p->count);
    size_t most = PTRDIFF_MAX / sizeof(double) / (size_t)slices_of(p); // bytes count in a ptrdiff_t
    ISO_CHECK(p->layers <= 1 || (p->stride <= most && p->count <= most), ISO_ERR_ARG,
              "parameter \"%s\" has %d layers %zu elements apart: no array is that long", name,
              p->layers, p->stride ? p->stride : p->count);
    ISO_CHECK(p->layer <= INT_MAX - slices_of(p), ISO_ERR_ARG,
              "parameter \"%s\" has %d layers from number %d on: give smaller numbers", name,
              p->layers, p->layer);
    return ISO_OK;
}

static iso_status count_slices(const iso_reducer_param *entries, int count, size_t *slices,
                               size_t *room) {
    *slices = *room = 0;
    for (int e = 0; e < count; e++) {
        ISO_TRY(check_entry(&entries[e]));
        *slices += (size_t)slices_of(&entries[e]);
        if (entries[e].layers > 1 && entries[e].name)
            *room += (size_t)entries[e].layers * (strlen(entries[e].name) + NUMBER_ROOM);
    }
    ISO_CHECK(*slices <= INT_MAX, ISO_ERR_ARG, "a reducer takes at most %d parameters, not %zu",
              INT_MAX, *slices);
    return ISO_OK;
}

// Adds a slice of an entry with several layers; returns the place behind its name.
static char *add_slice(iso__param_set *set, const iso_reducer_param *entry, int slice, char *name) {
    size_t stride = entry->stride ? entry->stride : entry->count;
    // The type has not been checked yet.
    bool known = (int)entry->dtype >= 0 && entry->dtype < ISO_DTYPE_COUNT;
    size_t size = known ? iso_dtype_size(entry->dtype) : 1;
    size_t skipped = (size_t)slice * stride * size;
    iso_reducer_param *p = &set->param[set->count];
    *p = *entry;
    set->ref[set->count] = (iso__param_ref){set->count, slice};
    set->count++;
    if (entry->layers <= 1) return name;
    p->layer += slice;
    if (p->value) p->value = (char *)p->value + skipped;
    if (p->gradient) p->gradient = (char *)p->gradient + skipped;
    if (!p->name) return name;
    p->name = name;
    return name + sprintf(name, "%s[%d]", entry->name, slice) + 1;
}

// ---- The order of the forward -----------------------------------------------------------------------

typedef struct seat {
    int key, place;
} seat;

static int by_key(const void *a, const void *b) {
    const seat *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

iso_status iso__param_set_sort(iso__param_set *set, const int *key) {
    size_t count = (size_t)set->count;
    iso__param_set sorted = {.count = set->count, .names = set->names};
    seat *seats = NULL;
    iso_status status = iso__alloc(count * sizeof(*seats), (void **)&seats);
    if (status == ISO_OK)
        status = iso__alloc(count * sizeof(*sorted.param), (void **)&sorted.param);
    if (status == ISO_OK) status = iso__alloc(count * sizeof(*sorted.ref), (void **)&sorted.ref);
    for (int k = 0; status == ISO_OK && k < set->count; k++)
        seats[k] = (seat){key ? key[k] : set->param[k].layer, k};
    if (status == ISO_OK) qsort(seats, count, sizeof(*seats), by_key);
    for (int k = 0; status == ISO_OK && k < set->count; k++) {
        sorted.param[k] = set->param[seats[k].place];
        sorted.ref[k] = set->ref[seats[k].place];
    }
    iso__free(seats);
    iso__param_set *rest = status == ISO_OK ? set : &sorted;
    iso__free(rest->param);
    iso__free(rest->ref);
    if (status == ISO_OK) *set = sorted;
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

iso_status iso__param_set_create(const iso_reducer_param *entries, int count, iso__param_set *out) {
    size_t slices, room;
    bool sliced = false;
    *out = (iso__param_set){0};
    ISO_CHECK(entries && count > 0, ISO_ERR_ARG, "a reducer needs at least one parameter");
    ISO_TRY(count_slices(entries, count, &slices, &room));
    ISO_TRY(iso__alloc_zero(slices * sizeof(*out->param), (void **)&out->param));
    ISO_TRY(iso__alloc_zero(slices * sizeof(*out->ref), (void **)&out->ref));
    ISO_TRY(iso__alloc_zero(room + 1, (void **)&out->names));
    char *name = out->names;
    for (int e = 0; e < count; e++) {
        for (int l = 0; l < slices_of(&entries[e]); l++)
            name = add_slice(out, &entries[e], l, name);
        sliced = sliced || entries[e].layers > 1;
    }
    return sliced ? iso__param_set_sort(out, NULL) : ISO_OK;
}

void iso__param_set_destroy(iso__param_set *set) {
    iso__free(set->param);
    iso__free(set->ref);
    iso__free(set->first);
    iso__free(set->names);
    *set = (iso__param_set){0};
}
