// SPDX-License-Identifier: MIT
// Private to the CUDA device: its state, its errors, and the functions that fill its tables of
// kernels.
//
// A blocked activation is channels last: [N, H, W, C] in memory. One thread at a time uses a
// device; meanwhile other threads may only test events, record and follow them and copy in queues
// other than the compute queue, and free memory. Memory of the pool may be written immediately in
// the compute queue only; elsewhere, wait for an event of that queue first. Libraries (cuBLAS,
// cuDNN) are loaded when a kernel first needs them.
#ifndef ISO_CUDA_IMPL_H
#define ISO_CUDA_IMPL_H

#include "device/cuda/runtime/cuda_multi_tensor.h"
#include "device/device_impl.h"

#include <cuda_runtime.h>
#include <pthread.h>

// ---- Errors ---------------------------------------------------------------------------------------

// Writes the record of a failed runtime call: ISO_ERR_NOMEM or ISO_ERR_DEVICE.
iso_status iso__cuda_error(cudaError_t error, const char *call, const char *function,
                           const char *file, int line);
#define ISO_TRY_CUDA(call)                                                                         \
    do {                                                                                           \
        cudaError_t try_error_ = (call);                                                           \
        if (try_error_ != cudaSuccess)                                                             \
            return iso__cuda_error(try_error_, #call, __func__, __FILE__, __LINE__);               \
    } while (0)

// What an event of device_impl.h is here.
struct iso__device_event {
    cudaEvent_t cuda;
};

// ---- The device -----------------------------------------------------------------------------------

// A block of device memory, in use or given back. The pool only grows, and is freed with the
// device.
typedef struct iso__cuda_block {
    void *data;
    size_t bytes;
    bool used;
} iso__cuda_block;
typedef struct iso__cuda_pool {
    pthread_mutex_t lock;
    iso__cuda_block *block;
    int count, capacity;
} iso__cuda_pool;

// Labels of large batches on their way to the device. Several batches may be under way.
enum { ISO_CUDA_LABEL_SLOTS = 4 };
typedef struct iso__cuda_labels {
    int32_t *host, *device;
    int64_t room;
    cudaEvent_t free; // the loss is done, and they may be written again
} iso__cuda_labels;

// Pairs of numbers that kernels promised to the host.
enum { ISO_CUDA_PAIRS = 256 };
typedef struct iso__cuda_pairs {
    double *device; // [ISO_CUDA_PAIRS][2]; NULL until they are needed
    double *target[ISO_CUDA_PAIRS];
    int count;
} iso__cuda_pairs;

// How f32 is multiplied in matrix products and convolutions; f64 is always exact.
typedef enum iso__cuda_math {
    ISO_CUDA_MATH_F32,
    ISO_CUDA_MATH_TF32, // operands rounded to 10 bits of mantissa
    ISO_CUDA_MATH_BF16  // operands rounded to bf16; convolutions by cuDNN: TF32
} iso__cuda_math;

struct iso__cuda {
    iso_device base;
    iso_device_ops ops;
    iso__remote_ops remote;
    iso_kernel_ops f32, f64, bf16, f16;
    int ordinal;
    int processors;    // streaming multiprocessors
    bool same_address; // kernels reach page-locked memory where the host does
    cudaStream_t stream[ISO__QUEUES];
    iso__cuda_pool pool;
    void *scratch; // of the compute queue; each kernel owns it for one call; only grows
    size_t scratch_bytes;
    iso__cuda_labels labels[ISO_CUDA_LABEL_SLOTS];
    int next_labels;
    unsigned *arrived; // see iso__cuda_arrivals; NULL until they are needed
    iso__cuda_pairs pairs;
    iso__cuda_math math;
    struct iso__cuda_blas *blas;         // NULL until a kernel needs it
    struct iso__cuda_lt *lt;             // the same
    bool conv_chosen;                    // the library for convolutions is chosen
    size_t conv_room;                    // maximum bytes of patches; 0: the default
    struct iso__cuda_dnn *dnn;           // NULL: cuDNN is not used
    struct iso__cuda_graphs *graphs;     // NULL: nothing is recorded
    iso__cuda_multi_tensor multi_tensor; // updates that are to be launched together
};

// Channels of a 4-dimensional activation lie beside each other.
static inline bool iso__cuda_channels_last(const iso_tensor *x) {
    return x->layout == ISO_LAYOUT_BLOCKED;
}

static inline iso__cuda *iso__cuda_of(iso_device *device) {
    return iso_container_of(device, iso__cuda, base);
}
// Makes the GPU the calling thread's device.
iso_status iso__cuda_enter(const iso__cuda *cuda);
// A number that identifies this GPU among all processes and hosts.
iso_status iso__cuda_identity(const iso__cuda *cuda, uint64_t *out);
// Waits for all that was launched in the compute queue.
iso_status iso__cuda_wait(iso__cuda *cuda);
// Scratch memory for the next call in the compute queue.
iso_status iso__cuda_scratch(iso__cuda *cuda, size_t bytes, void **out);
// Counters for the next launch in the compute queue.
iso_status iso__cuda_arrivals(iso__cuda *cuda, unsigned **out);
// Room in the device's memory for a pair that the next kernel of the compute queue computes, and
// that iso__cuda_collect writes to `target`.
iso_status iso__cuda_pair(iso__cuda *cuda, double target[2], double **out);
iso_status iso__cuda_collect(iso_device *self); // remote->collect

// ---- The files of the device: each fills slots, or frees what it created ----------------------------

iso_status iso__cuda_pool_alloc(iso__cuda *cuda, size_t bytes, void **out);
void iso__cuda_pool_free(iso__cuda *cuda, void *data);
void iso__cuda_pool_destroy(iso__cuda *cuda);

void iso__cuda_fill_memory(iso_device_ops *ops);
void iso__cuda_fill_remote(iso__remote_ops *ops);
void iso__cuda_fill_clip(iso__remote_ops *ops);
void iso__cuda_fill_master(iso_device_ops *ops, iso__remote_ops *remote);

// All tables get the same functions, except for updates, which do not take tensors.
void iso__cuda_fill_elementwise(iso_kernel_ops *ops);
void iso__cuda_fill_activation(iso_kernel_ops *ops);
void iso__cuda_fill_loss(iso_kernel_ops *ops);
void iso__cuda_fill_pool2d(iso_kernel_ops *ops);
void iso__cuda_fill_batch_norm(iso_kernel_ops *ops);
void iso__cuda_fill_layer_norm(iso_kernel_ops *ops);
void iso__cuda_fill_linear(iso_kernel_ops *ops);
void iso__cuda_fill_conv(iso_kernel_ops *ops);
iso_status iso__cuda_conv_check(void); // the environment's choice of a library
// Chooses the library, once, and loads it.
iso_status iso__cuda_conv_choose(iso__cuda *cuda);
void iso__cuda_fill_update(iso_kernel_ops *ops, iso_dtype dtype);

void iso__cuda_blas_destroy(iso__cuda *cuda);
void iso__cuda_loss_destroy(iso__cuda *cuda);

// ---- Matrix products by cuBLAS (cuda_blas.c) ---------------------------------------------------------

// C[m, n] = op(A) op(B) + beta C, row-major; op transposes if its flag is set; beta is 0 or 1. With
// batch > 1, the matrices of product k are k strides further on (stride 0: all products use the
// same matrix).
typedef struct iso__cuda_gemm_args {
    iso_dtype dtype;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb, ldc;
    double beta;
    void *c;
    bool c_f32;                                  // c is f32 where dtype has 16 bits
    int64_t batch, stride_a, stride_b, stride_c; // elements
} iso__cuda_gemm_args;
iso_status iso__cuda_gemm(iso__cuda *cuda, const iso__cuda_gemm_args *args);

#endif
