// Private to the oneDNN kernels: primitives cached by shape, run on whatever layouts the caller's
// tensors have. Written for the C API of oneDNN 2.
#ifndef ISO_ONEDNN_IMPL_H
#define ISO_ONEDNN_IMPL_H

#include "device/cpu/cpu_impl.h"

#include <dnnl.h>
#include <dnnl_debug.h>

#define ISO_TRY_DNNL(expr)                                                                         \
    do {                                                                                           \
        dnnl_status_t dnnl_ = (expr);                                                              \
        if (dnnl_ != dnnl_success)                                                                 \
            return ISO_FAIL(ISO_ERR_DEVICE, "oneDNN: %s gave %s", #expr, dnnl_status2str(dnnl_));  \
    } while (0)

#define ISO_ONEDNN_ARGS 4

// What a kernel was built for: operation, threads, flags, then sizes.
typedef struct iso__onednn_key {
    int64_t value[20];
} iso__onednn_key;

// An argument as the caller has it. A kernel that works on another layout converts through scratch.
typedef struct iso__onednn_arg {
    int id; // DNNL_ARG_x; 0: absent
    dnnl_memory_desc_t layout;
    bool output, accumulate; // accumulate: result is added to what is there
} iso__onednn_arg;

typedef struct iso__onednn_kernel iso__onednn_kernel;

dnnl_engine_t iso__onednn_engine(const iso__cpu *cpu);
// Kernels use up to cpu->base.threads threads between these two.
int iso__onednn_enter(const iso__cpu *cpu);
void iso__onednn_leave(int before);
// NULL if there is none yet.
iso__onednn_kernel *iso__onednn_find(const iso__cpu *cpu, const iso__onednn_key *key);
// Attributes of every primitive: scratchpads are ours; relu, where wanted, is fused.
iso_status iso__onednn_attributes(iso_activation act, dnnl_primitive_attr_t *out);
// Makes the primitive and the conversions of its arguments; consumes pd.
iso_status iso__onednn_build(iso__cpu *cpu, const iso__onednn_key *key, dnnl_primitive_desc_t pd,
                             const iso__onednn_arg args[ISO_ONEDNN_ARGS], iso__onednn_kernel **out);
iso_status iso__onednn_run(iso__cpu *cpu, iso__onednn_kernel *kernel,
                           void *const data[ISO_ONEDNN_ARGS]);

void iso__onednn_fill_conv(iso_kernel_ops *ops);
void iso__onednn_fill_linear(iso_kernel_ops *ops);

#endif
