// Devices: where tensors live and kernels run.
#ifndef ISOTHERM_DEVICE_H
#define ISOTHERM_DEVICE_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_device
    iso_device; // shared: create gives one reference, retain adds, destroy drops

// Element types. Layers compute in f32 or f64, on GPUs also with bf16 activations. bf16 and f16 are
// types in which data travels. i64 is for counters.
typedef enum iso_dtype { ISO_F32, ISO_F64, ISO_BF16, ISO_F16, ISO_I64, ISO_DTYPE_COUNT } iso_dtype;

// Bytes of one element; "f32", "f64", "bf16", "f16", "i64"; the reverse (ISO_ERR_ARG with the list
// of names).
size_t iso_dtype_size(iso_dtype dtype);
const char *iso_dtype_name(iso_dtype dtype);
iso_status iso_dtype_parse(const char *name, iso_dtype *out);

// Local. Opens a device by name: "cpu", "cuda" (the first GPU), "cuda:1". ISO_ERR_ARG for an
// unknown name (the text lists the known ones), ISO_ERR_UNSUPPORTED for one this build lacks,
// ISO_ERR_DEVICE where there is no such GPU or it cannot be used. Work on a GPU runs beside the
// host, in order. A later call may launch it (updates are launched together) and report its errors.
// Only one thread at a time may use a device. A bad value of ISO_CPU_KERNELS (cpu), ISO_CUDA_CONV
// or ISO_CUDA_GRAPHS (cuda) is ISO_ERR_ARG; iso_comm_create looks at the other ISO_* variables.
iso_status iso_device_create(const char *name, iso_device **out);
// Local. How many devices of this kind ("cpu", "cuda") can be opened here: 0 for one that this
// build lacks or does not know.
int iso_device_count(const char *kind);
iso_device *iso_device_retain(iso_device *device);
void iso_device_destroy(iso_device **device);

// Local. Kernel threads a call on this device may use (CPU: OpenMP threads). The default is 1:
// results are then the same whatever else the machine does. n >= 1.
iso_status iso_device_set_threads(iso_device *device, int n);

// Local. How f32 matrix products and convolutions round their factors; sums are f32 always, and f64
// stays f64. "f32": not at all (the default). On GPUs, faster: "tf32", to 10 bits of mantissa, and
// "bf16", to 7, where convolutions by cuDNN take tf32. Activations stay f32: in bf16 they are
// faster still, see iso_autocast_create_take. Of what runs from now on. ISO_ERR_ARG for another
// name, ISO_ERR_UNSUPPORTED where the device has no such mode.
iso_status iso_device_set_math(iso_device *device, const char *name);

// ---- Kernels by time ----
// By default a fixed rule on shapes and instruction set chooses the kernels, the same everywhere.
// While tuning is on, the first call for a shape (whatever its number of rows) times the candidates
// on the data at hand and keeps the fastest. Candidates round differently, so another run may
// choose others and compute other bits. Ranks that must agree need the same choices: let one rank
// tune, give its choices to the others, and turn tuning off before they continue. Each choice is
// logged (ISO_LOG=info).
iso_status iso_device_tune(iso_device *device, bool on);
// What was chosen so far; borrowed, and valid until a kernel runs.
const void *iso_device_choices(iso_device *device, size_t *bytes);
// Copies choices in place of those there; NULL and 0: back to the rule. ISO_ERR_FORMAT for bytes
// that this build did not make.
iso_status iso_device_set_choices(iso_device *device, const void *choices, size_t bytes);

const char *iso_device_name(const iso_device *device);
// One line about the kernels in use, e.g. "oneDNN 2.6.3, avx512_core, 1 thread".
const char *iso_device_describe(const iso_device *device);
// How many kernel objects (primitives) were built so far; constant once every shape has been seen.
long long iso_device_primitives_created(const iso_device *device);
// How many kernels and library calls a GPU was given so far, and how many graphs were launched in
// place of such (ISO_CUDA_GRAPHS); 0 for the CPU.
void iso_device_launches(const iso_device *device, long long *launches, long long *graphs);

#ifdef __cplusplus
}
#endif
#endif
