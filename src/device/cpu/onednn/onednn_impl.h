// SPDX-License-Identifier: MIT
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

// What a kernel was built for: operation, threads, flags, rows, then other sizes, and last the
// candidate.
typedef struct iso__onednn_key {
    int64_t value[20];
} iso__onednn_key;
enum { ISO_ONEDNN_FLAGS = 2, ISO_ONEDNN_ROWS = 3, ISO_ONEDNN_RULE = 19 }; // indices of value
enum { ISO_ONEDNN_ACCUMULATE = 4 | 8 };     // flags: weight and bias gradients are added to
enum { ISO_ONEDNN_BF16 = 64 };              // flag: operands are rounded to bf16
enum { ISO_ONEDNN_BF16_ACTIVATIONS = 128 }; // flag: activations are bf16

// Of a linear layer or a convolution: f32 throughout, f32 with operands that are rounded to bf16,
// or bf16 activations.
typedef enum iso__onednn_math {
    ISO_ONEDNN_F32,
    ISO_ONEDNN_ROUNDED,
    ISO_ONEDNN_ACTIVATIONS
} iso__onednn_math;

// Element types of x, w, b and y.
typedef struct iso__onednn_types {
    dnnl_data_type_t x, w, b, y;
} iso__onednn_types;
enum {
    ISO_ONEDNN_RESULT_Y,
    ISO_ONEDNN_RESULT_W,
    ISO_ONEDNN_RESULT_X,
    ISO_ONEDNN_NO_RESULT // of the forward that a backward is described with
};
// Those of a kernel with this result.
iso__onednn_types iso__onednn_types_of(iso__onednn_math math, int result);
// Those of the caller's tensors. Gradients of parameters are always f32.
iso__onednn_types iso__onednn_caller_types(iso__onednn_math math, int result);
// Whether the processor multiplies bf16.
bool iso__onednn_has_bf16(void);
// Whether to round to bf16: the math is bf16, and so many multiplications take longer in f32 than
// rounding so many operands. Depends on the sizes only, so that all ranks decide alike.
bool iso__onednn_rounds(const iso__cpu *cpu, int64_t multiplications, int64_t operands);

// The kernels for one problem: that of the fixed rule, and the candidates. ISO_ONEDNN_CANDIDATES is
// the maximum number of candidates.
enum { ISO_ONEDNN_BY_RULE = -1, ISO_ONEDNN_CANDIDATES = 8 };
typedef struct iso__onednn_problem iso__onednn_problem;
struct iso__onednn_problem {
    iso__onednn_key key; // by rule
    int candidates;      // at most ISO_ONEDNN_CANDIDATES
    // ISO_ERR_UNSUPPORTED: there is no such candidate here.
    iso_status (*run)(iso__cpu *cpu, const iso__onednn_problem *problem, int candidate);
    void (*describe)(const iso__onednn_problem *problem, char *text, size_t room);
};

// An argument in the caller's layout. A kernel that needs another layout converts it in scratch
// memory.
typedef struct iso__onednn_arg {
    int id; // DNNL_ARG_x; 0: absent
    dnnl_memory_desc_t layout;
    bool output, accumulate; // accumulate: the result is added to the old contents
} iso__onednn_arg;

typedef struct iso__onednn_kernel iso__onednn_kernel;

// Creates engine and stream, and an empty cache of kernels. On failure *out may be set: close it.
iso_status iso__onednn_open(struct iso__onednn **out);
void iso__onednn_close(struct iso__onednn **onednn); // accepts NULL

dnnl_engine_t iso__onednn_engine(const iso__cpu *cpu);
// Between these calls, kernels use up to cpu->base.threads threads. enter returns the argument for
// leave.
int iso__onednn_enter(const iso__cpu *cpu);
void iso__onednn_leave(int before);
// NULL if there is none yet.
iso__onednn_kernel *iso__onednn_find(const iso__cpu *cpu, const iso__onednn_key *key);
// Creates the attributes of a primitive: the caller provides the scratchpad, and a relu in act is
// fused.
iso_status iso__onednn_attributes(iso_activation act, dnnl_primitive_attr_t *out);
// Makes the primitive and the conversions of its arguments; consumes pd.
iso_status iso__onednn_build(iso__cpu *cpu, const iso__onednn_key *key, dnnl_primitive_desc_t pd,
                             const iso__onednn_arg args[ISO_ONEDNN_ARGS], iso__onednn_kernel **out);
iso_status iso__onednn_run(iso__cpu *cpu, iso__onednn_kernel *kernel,
                           void *const data[ISO_ONEDNN_ARGS]);

// Runs the candidate chosen for the problem, which may be chosen now, or else the kernel of the
// rule.
iso_status iso__onednn_execute(iso__cpu *cpu, const iso__onednn_problem *problem);
iso_status iso__tuner_create(struct iso__tuner **out);
void iso__tuner_destroy(struct iso__tuner **tuner);

void iso__onednn_fill_math(iso_device_ops *ops);
void iso__onednn_fill_tune(iso_device_ops *ops);
void iso__onednn_fill_conv(iso_kernel_ops *ops);
void iso__onednn_fill_linear(iso_kernel_ops *ops);
// In the table of bf16 and f16.
void iso__onednn_fill_half_conv(iso_kernel_ops *ops);
void iso__onednn_fill_half_linear(iso_kernel_ops *ops);

#endif
