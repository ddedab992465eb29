// SPDX-License-Identifier: MIT
// A layout as the program numbers it: its parameters, and the layers that it can report as a whole.
#include "parallel/reducer/layout.h"

#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b) {
    const iso__layer *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static void list_layers(iso__layout *l, const iso__param_set *set) {
    for (int k = 0; k < set->count; k++) {
        l->by_layer[k] = set->ref[k].id;
        if (k == 0 || set->param[k].layer != set->param[k - 1].layer)
            l->layer[l->layer_count++] = (iso__layer){.number = set->param[k].layer, .first = k};
        l->layer[l->layer_count - 1].end = k + 1;
    }
    qsort(l->layer, (size_t)l->layer_count, sizeof(*l->layer), by_number);
}

static void number_params(iso__layout *l, const iso__param_set *set, const iso__place *place) {
    for (int k = 0; k < set->count; k++) l->place[set->ref[k].id] = place[k];
    for (int s = 0; s < l->slot_count; s++) {
        iso__grad_slot *slot = &l->slot[s];
        slot->slice = set->ref[slot->param].slice;
        slot->param = set->ref[slot->param].id;
    }
}

iso_status iso__layout_number(iso__layout *l, const iso__param_set *set) {
    size_t count = (size_t)l->param_count;
    iso__place *place;
    ISO_TRY(iso__alloc_zero(count * sizeof(*l->by_layer), (void **)&l->by_layer));
    ISO_TRY(iso__alloc_zero(count * sizeof(*l->layer), (void **)&l->layer));
    ISO_TRY(iso__alloc(count * sizeof(*place), (void **)&place));
    memcpy(place, l->place, count * sizeof(*place));
    number_params(l, set, place);
    list_layers(l, set);
    iso__free(place);
    if (!set->first) return ISO_OK;
    ISO_TRY(iso__alloc(count * sizeof(*l->shared), (void **)&l->shared));
    for (int k = 0; k < set->count; k++) l->shared[set->first[k]] = set->ref[k].id;
    return ISO_OK;
}

iso_status iso__layout_find_layer(const iso__layout *l, int number, const iso__layer **out) {
    const iso__layer key = {.number = number};
    *out = bsearch(&key, l->layer, (size_t)l->layer_count, sizeof(key), by_number);
    ISO_CHECK(*out, ISO_ERR_ARG,
              "the reducer has no layer %d: give a layer of iso_reducer_param, here from %d to %d",
              number, l->layer[0].number, l->layer[l->layer_count - 1].number);
    return ISO_OK;
}

void iso__layout_move_value(iso__layout *l, int i, void *value) {
    for (int k = 0; k < l->place[i].pieces; k++) {
        iso__grad_slot *s = &l->slot[iso__layout_at(l, i, k)];
        s->value = (char *)value + s->first * iso_dtype_size(s->type);
    }
}

int iso__layout_find(const iso__layout *l, const char *name) {
    for (int i = 0; i < l->param_count; i++)
        if (strcmp(iso__layout_piece(l, i, 0)->name, name) == 0) return i;
    return -1;
}
