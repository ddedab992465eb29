// SPDX-License-Identifier: MIT
// Communication hooks (PyTorch's term) convert a bucket of gradients before and after its
// all-reduce. A hook is a table of functions, which the reducer calls once per bucket.
#ifndef ISOTHERM_COMM_HOOK_H
#define ISOTHERM_COMM_HOOK_H

#include <isotherm/tensor.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// A bucket before or after its exchange. All arrays have `count` elements, including the padding
// between parameters (zeros).
typedef struct iso_comm_hook_bucket {
    size_t count;
    iso_dtype dtype; // of the gradients: ISO_F32 or ISO_F64
    void *gradient;
    void *wire;       // of the hook's wire type; the same as gradient if the hook has no compress
    float *state;     // count * state_floats, kept between steps, zero at first; NULL: none
    const char *name; // for messages
} iso_comm_hook_bucket;

typedef struct iso_comm_hook {
    const char *name;
    // Element type that travels: ISO_F32, ISO_BF16 or ISO_F16. Buckets of f64 travel unchanged,
    // without the hook.
    iso_dtype wire;
    int state_floats; // floats of state per element, e.g. 1 for error feedback
    bool divides;     // the reduced values are already the average
    bool silent;      // nothing travels: gradients stay local (to measure the cost of the exchange)
    // wire = gradient * factor. factor is this rank's weight, times 1 / ranks if the hook divides.
    // Local. Called once per bucket and exchange, by the thread that reported the last gradient of
    // the bucket.
    iso_status (*compress)(const iso_comm_hook_bucket *bucket, double factor, void *user);
    // gradient = wire * factor, where factor turns the sum into an average. Called once per bucket
    // and exchange, after the all-reduce.
    iso_status (*decompress)(const iso_comm_hook_bucket *bucket, double factor, void *user);
    void *user;
} iso_comm_hook;

// No conversion (PyTorch: allreduce_hook): compress and decompress are NULL.
extern const iso_comm_hook iso_hook_plain;
// 16-bit gradients (PyTorch: fp16_compress_hook, bf16_compress_hook). They are divided by the
// number of ranks before the sum, which prevents overflow in f16, and rounded to 16 bits. Sums are
// computed in f32 and rounded to 16 bits after each addition.
extern const iso_comm_hook iso_hook_f16, iso_hook_bf16;
// bf16 with error feedback (Seide et al., Interspeech 2014): the rounding error of a rank's
// gradients is added to its gradients of the next step. Rounding errors of the sums over more than
// two ranks are lost. NaN and infinite values leave no error behind.
extern const iso_comm_hook iso_hook_bf16_feedback;
// No exchange (PyTorch: noop_hook): replicas diverge. A step takes as long as on a perfect network.
// Same as ISO_SYNC_NONE: each rank determines unused parameters by itself.
extern const iso_comm_hook iso_hook_noop;

// "plain" (or "f32"), "f16", "bf16", "bf16-feedback", "noop". ISO_ERR_ARG for another name; the
// message lists these.
iso_status iso_comm_hook_parse(const char *name, const iso_comm_hook **out);

#ifdef __cplusplus
}
#endif
#endif
