// SPDX-License-Identifier: MIT
// The parameters of one layer in the type of its activations.
#include "nn/nn_impl.h"

// *out = the value of a parameter, or *slot if that value is of another type than the activations.
static iso_status value_for(iso_module *module, const iso_parameter *parameter, iso_layout layout,
                            iso_tensor **slot, iso_tensor **out) {
    iso_tensor *value = parameter ? parameter->value : NULL;
    *out = value;
    if (!value || value->dtype == module->activations) return ISO_OK;
    ISO_TRY(iso_call_tensor(module, slot, value->ndim, value->shape, layout));
    *out = *slot;
    return ISO_OK;
}

iso_status iso__call_values(iso_module *module, iso_layout layout, const iso_parameter *weight,
                            const iso_parameter *bias, iso__rounded *rounded, iso__values *out) {
    iso_device *device = module->device;
    iso__rounded_copy *copy = &rounded->copy[iso__rounded_index(module->activations)];
    iso__values *low = &copy->values;
    bool ready = copy->ready && low->weight->layout == layout;
    copy->ready = false; // parameters may have changed by the next call
    ISO_TRY(value_for(module, weight, layout, &low->weight, &out->weight));
    ISO_TRY(value_for(module, bias, ISO_LAYOUT_LOGICAL, &low->bias, &out->bias));
    if (ready || out->weight == weight->value) return ISO_OK;
    const iso__rounding both[] = {{weight->value, out->weight},
                                  {bias ? bias->value : NULL, out->bias}};
    return device->kernels[module->activations]->round_many(device, bias ? 2 : 1, both);
}

void iso__rounded_destroy(iso__rounded *rounded) {
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&rounded->copy[i].values.weight);
        iso_tensor_destroy(&rounded->copy[i].values.bias);
        rounded->copy[i].ready = false;
    }
}

iso_tensor *iso__called_weight(const iso_module *module, const iso_parameter *weight,
                               const iso__rounded *rounded) {
    if (weight->value->dtype == module->activations) return weight->value;
    return rounded->copy[iso__rounded_index(module->activations)].values.weight;
}
