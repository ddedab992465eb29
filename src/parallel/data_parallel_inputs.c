// SPDX-License-Identifier: MIT
// Inputs of a DataParallel that are on another device than the module.
#include "parallel/data_parallel_impl.h"

// Each call keeps its copies in aux[0], so a step allocates nothing once every shape has been seen.
iso_status iso__data_parallel_move_inputs(iso_module *module, iso_call *call) {
    iso_call_many *many = call->many;
    for (int i = 0; i < many->in.count; i++) {
        iso_tensor *from = many->in.item[i], **slot = &many->aux[0][i];
        if (!from || from->device == module->device) continue;
        ISO_TRY(iso__call_tensor_of(module, from->dtype, slot, from->ndim, from->shape,
                                    ISO_LAYOUT_LOGICAL));
        ISO_TRY(iso_tensor_copy(from, *slot));
        many->in.item[i] = *slot;
    }
    call->in = many->in.item[0];
    return ISO_OK;
}
