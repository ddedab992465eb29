// SPDX-License-Identifier: MIT
// Private to the reducer: the list of parameters, with one parameter for each slice of a tensor
// that holds several layers.
#ifndef ISO_PARAM_SET_H
#define ISO_PARAM_SET_H

#include "device/device_impl.h"

#include <isotherm/comm.h>
#include <isotherm/reducer.h>

// What the program calls a parameter.
typedef struct iso__param_ref {
    int id, slice; // slice: of an entry with several layers, else 0
} iso__param_ref;

typedef struct iso__param_set {
    iso_reducer_param *param; // [count], each of one layer; in the order of the list, or, if an
                              // entry has several layers, by layer
    iso__param_ref *ref;      // [count]
    int *first; // [count]: rank 0's numbers, after iso__param_set_match; otherwise NULL
    int count;
    char *names; // of the slices
} iso__param_set;

// Local. ISO_ERR_ARG for wrong numbers of layers and strides. Copies the list, and borrows what its
// pointers point to. Free *out with iso__param_set_destroy, also on failure.
iso_status iso__param_set_create(const iso_reducer_param *entries, int count, iso__param_set *out);
// Collective. Puts the parameters into the order of rank 0's set, by their names; `ref` keeps this
// rank's numbers. ISO_ERR_ARG or ISO_ERR_MISMATCH on every rank if a rank has a name twice, lacks a
// name or has one too many, or has a different parameter with the same name.
iso_status iso__param_set_match(iso__param_set *set, iso_comm *comm);
// Local. Sorts the parameters by `key`, which has a key for each of them; NULL: by layer. The sort
// is stable.
iso_status iso__param_set_sort(iso__param_set *set, const int *key);
void iso__param_set_destroy(iso__param_set *set);

#endif
