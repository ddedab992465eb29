// Communication hooks (PyTorch's term) convert a bucket of gradients before it travels to the other
// ranks and after it has come back. A hook is a table; the reducer calls it bucket by bucket.
#ifndef ISOTHERM_COMM_HOOK_H
#define ISOTHERM_COMM_HOOK_H

#include <isotherm/tensor.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// A bucket that is about to travel or has come back. All arrays have `count` elements, which
// include the padding between parameters (zeros).
typedef struct iso_comm_hook_bucket {
    size_t count;
    iso_dtype dtype; // of the gradients: ISO_F32 or ISO_F64
    void *gradient;
    void *wire;       // of the hook's wire type; equals gradient where the hook has no compress
    float *state;     // count * state_floats, kept from step to step, zero at first; NULL: none
    const char *name; // for messages
} iso_comm_hook_bucket;

typedef struct iso_comm_hook {
    const char *name;
    iso_dtype wire;   // element type that travels: ISO_F32, ISO_BF16, ISO_F16; buckets of
                      // f64 are not shown to hooks and travel as they are
    int state_floats; // floats of state for each element, e.g. 1 for error feedback
    bool divides;     // the sum that comes back is the average already
    bool silent;      // nothing travels: the gradient stays this rank's own (to measure headroom)
    // wire = gradient * factor. factor: this rank's weight, and 1 / ranks if the hook divides.
    // Local; called once per bucket and exchange, from the thread that reported the last gradient
    // ready.
    iso_status (*compress)(const iso_comm_hook_bucket *bucket, double factor, void *user);
    // gradient = wire * factor, where factor turns the sum into an average. Called when the bucket
    // has come back.
    iso_status (*decompress)(const iso_comm_hook_bucket *bucket, double factor, void *user);
    void *user;
} iso_comm_hook;

// As they are (PyTorch: allreduce). No conversion: compress and decompress are NULL.
extern const iso_comm_hook iso_hook_plain;
// Rounded to 16 bit, summed in f32 with a rounding to 16 bit after each addition, divided before
// the sum (in f16 against overflow) (PyTorch: fp16_compress_hook, bf16_compress_hook).
extern const iso_comm_hook iso_hook_f16, iso_hook_bf16;
// bf16 with error feedback (Seide et al., Interspeech 2014): what rounding cuts off a rank's
// gradients is added to them in the next step. What rounding cuts off the sums of more than two
// ranks is lost. Nothing is kept of values that are not finite.
extern const iso_comm_hook iso_hook_bf16_feedback;
// Nothing is exchanged (PyTorch: noop_hook): ranks drift apart; the step time is what a perfect
// network would give. The same as ISO_SYNC_NONE: each rank judges alone which parameters are
// unused.
extern const iso_comm_hook iso_hook_noop;

// "plain" (or "f32"), "f16", "bf16", "bf16-feedback", "noop". ISO_ERR_ARG lists them.
iso_status iso_comm_hook_parse(const char *name, const iso_comm_hook **out);

#ifdef __cplusplus
}
#endif
#endif
