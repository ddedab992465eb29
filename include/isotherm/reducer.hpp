// SPDX-License-Identifier: MIT
// The gradient engine in C++: reducer.h, and a short form of its parameters.
#ifndef ISOTHERM_REDUCER_HPP
#define ISOTHERM_REDUCER_HPP

#include <isotherm/reducer.h>

// An entry of the list for an array of float or double. (Before C++20 initialisers have no names.)
inline iso_reducer_param iso_param(const char *name, float *value, size_t count, int layer,
                                   float *gradient = nullptr, int layers = 0) {
    iso_reducer_param entry = iso_reducer_param();
    entry.name = name;
    entry.value = value;
    entry.count = count;
    entry.dtype = ISO_F32;
    entry.layer = layer;
    entry.gradient = gradient;
    entry.layers = layers;
    return entry;
}
inline iso_reducer_param iso_param(const char *name, double *value, size_t count, int layer,
                                   double *gradient = nullptr, int layers = 0) {
    float *none = nullptr;
    iso_reducer_param entry = iso_param(name, none, count, layer, none, layers);
    entry.value = value;
    entry.dtype = ISO_F64;
    entry.gradient = gradient;
    return entry;
}

#endif
