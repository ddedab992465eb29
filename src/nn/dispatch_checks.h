// SPDX-License-Identifier: MIT
// Private to dispatch*.c: checks around a call of a module. Every message names the module.
#ifndef ISO_DISPATCH_CHECKS_H
#define ISO_DISPATCH_CHECKS_H

#include "nn/nn_impl.h"

// Whether the module's own type is fixed, because it has parameters or buffers.
static inline bool iso__has_type(const iso_module *module) {
    return module->parameter_count > 0 || module->buffer_count > 0;
}
// The type of the first of these inputs that does not hold indices; if all do, that of the first.
static inline iso_dtype iso__type_of(iso_tensor *const *in, int count) {
    for (int i = 0; i < count; i++)
        if (!iso__is_index(in[i]->dtype)) return in[i]->dtype;
    return in[0]->dtype;
}
// Number, devices and types of the inputs.
iso_status iso__check_inputs(const iso_module *module, const iso_tensors *in);
// One output of a call. Without this the next layer would be blamed for it.
iso_status iso__check_output(const iso_module *module, const iso_call *call,
                             const iso_tensor *result);
// Checks that there is one gradient for each output of the call.
iso_status iso__check_gradient_count(const iso_module *module, const iso_call *call, int count);
// Keeps the bits of inputs that exist; of ISO_WANT_ALL, without those of indices. Refuses a bit for
// indices, but a container leaves that to its children.
iso_status iso__select_inputs(const iso_module *module, const iso_call *call, unsigned *wanted);
// The gradients of inputs that are wanted; drops the others.
iso_status iso__check_gradients(const iso_module *module, const iso_call *call, unsigned wanted,
                                iso_tensors *grad_in);

#endif
