// SPDX-License-Identifier: MIT
// Devices: where tensors live and kernels run.
#ifndef ISOTHERM_DEVICE_H
#define ISOTHERM_DEVICE_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Reference-counted: create returns one reference, retain adds one, destroy drops one.
typedef struct iso_device iso_device;

// Element types. Layers compute in f32 or f64; activations may be bf16 or f16, and
// parameters may have these types, too. Gradients may travel as bf16 or f16. i64 is for counters;
// i64, i32 and u8 are for data.
typedef enum iso_dtype {
    ISO_F32,
    ISO_F64,
    ISO_BF16,
    ISO_F16,
    ISO_I64,
    ISO_I32,
    ISO_U8,
    ISO_DTYPE_COUNT
} iso_dtype;

// The size of an element in bytes.
size_t iso_dtype_size(iso_dtype dtype);
// "f32", "f64", "bf16", "f16", "i64", "i32", "u8".
const char *iso_dtype_name(iso_dtype dtype);
// The type with this name. ISO_ERR_ARG for an unknown name; the message lists the names.
iso_status iso_dtype_parse(const char *name, iso_dtype *out);

// Local. Opens a device by name: "cpu", "cuda" (the first GPU), "cuda:1". ISO_ERR_ARG for an
// unknown name (the message lists the known ones), ISO_ERR_UNSUPPORTED if this build lacks the
// device, ISO_ERR_DEVICE if there is no such GPU or it cannot be used. ISO_ERR_ARG also for an
// invalid value of ISO_CPU_KERNELS (cpu), ISO_CUDA_CONV or ISO_CUDA_GRAPHS (cuda); iso_comm_create
// checks all ISO_* variables.
//
// A GPU runs its work in order and asynchronously to the host. It launches parameter updates in
// groups: a later call may launch them, and then reports their errors. Only one thread at a time
// may use a device.
iso_status iso_device_create(const char *name, iso_device **out);
// Local. The number of devices of this kind ("cpu", "cuda") that can be opened here. 0 for a kind
// that is unknown or not in this build.
int iso_device_count(const char *kind);
iso_device *iso_device_retain(iso_device *device);
void iso_device_destroy(iso_device **device);

// Local. Sets the number of threads that a kernel may use (CPU: OpenMP threads), at least 1. The
// default is 1. A different number may change the last bits of results.
iso_status iso_device_set_threads(iso_device *device, int n);

// Local. Sets how f32 matrix products and convolutions round their operands, for all work from now
// on. "f32", the default: not at all. GPUs have two faster modes: "tf32" rounds to 10 bits of
// mantissa, "bf16" to 7 (convolutions by cuDNN then use tf32). Sums are always f32, f64 stays f64,
// and activations stay f32. With bf16 activations GPUs are faster still, see
// iso_autocast_create_take.
//
// CPUs with AVX512_BF16 or AMX have "bf16" with the oneDNN kernels, for the forward and both
// backwards of linear layers and convolutions. The gradient of a convolution's bias is then summed
// from the rounded gradient of the output. A fixed rule on sizes keeps f32 where rounding takes
// longer than it saves: small layers, and 3x3 convolutions that Winograd's algorithm computes
// faster.
//
// ISO_ERR_ARG for another name, ISO_ERR_UNSUPPORTED if the device lacks the mode.
iso_status iso_device_set_math(iso_device *device, const char *name);

// ---- Kernel tuning ----

// Turns tuning on or off. Off, the default: a fixed rule chooses kernels by shape and instruction
// set. On: the first call for a shape (regardless of the number of rows) times all candidates on
// the actual data and keeps the fastest. Each choice is logged (ISO_LOG=info). Only devices that
// use oneDNN or cuDNN have candidates; on others this does nothing.
//
// Candidates round differently, so two runs with tuning may differ in the last bits. Ranks that
// must agree need the same choices: let one rank tune, send its choices to the others, and turn
// tuning off before training continues.
iso_status iso_device_tune(iso_device *device, bool on);
// The choices so far, to be passed to iso_device_set_choices; *bytes 0: none. Borrowed, valid until
// a kernel runs.
const void *iso_device_choices(iso_device *device, size_t *bytes);
// Replaces all choices by a copy of these; NULL and 0: restores the fixed rule. ISO_ERR_FORMAT if
// another build made them, ISO_ERR_UNSUPPORTED if the kernels in use here have no choices.
iso_status iso_device_set_choices(iso_device *device, const void *choices, size_t bytes);

const char *iso_device_name(const iso_device *device);
// One line that describes the device, e.g. "oneDNN 2.6.3, avx512_core, 1 thread".
const char *iso_device_describe(const iso_device *device);
// The number of kernel objects (primitives) created so far. It stays constant once every shape has
// been seen.
long long iso_device_primitives_created(const iso_device *device);
// The number of kernels and library calls launched on a GPU so far, and of graphs launched in place
// of them (ISO_CUDA_GRAPHS). 0 for the CPU.
void iso_device_launches(const iso_device *device, long long *launches, long long *graphs);

#ifdef __cplusplus
}
#endif
#endif
