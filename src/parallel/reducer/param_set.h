// SPDX-License-Identifier: MIT
// Private to the reducer: the list of parameters, with one parameter for each slice of a tensor
// that holds several layers.
#ifndef ISO_PARAM_SET_H
#define ISO_PARAM_SET_H

#include "base/base.h"

#include <isotherm/reducer.h>

// What the program calls a parameter.
typedef struct iso__param_ref {
    int id, slice; // slice: of an entry with several layers, else 0
} iso__param_ref;

typedef struct iso__param_set {
    iso_reducer_param *param; // [count], each of one layer; in the order of the list, or, if an
                              // entry has several layers, by layer
    iso__param_ref *ref; // [count]
    int count;
    char *names; // of the slices
} iso__param_set;

// Local. ISO_ERR_ARG for wrong numbers of layers and strides. Copies the list; borrows all to which
// it points. Free *out with iso__param_set_destroy, also on failure.
iso_status iso__param_set_create(const iso_reducer_param *entries, int count, iso__param_set *out);
void iso__param_set_destroy(iso__param_set *set);

#endif
