// SPDX-License-Identifier: MIT
// Private to the CPU device: its state, and the kernels that its table is made of.
//
// The tables are filled with plain C kernels; a library's set then overwrites slots. Blocked
// layout: [N, ceil(C / block), H, W, block] with zeros in the channels that pad the last block. The
// plain and the CBLAS kernels work with block 1, which is the logical layout under another name.
#ifndef ISO_CPU_IMPL_H
#define ISO_CPU_IMPL_H

#include "device/device_impl.h"

// C[m, n] = op(A) op(B) + beta C, row-major; op transposes if its flag is set. beta is 1, or 0 (the
// old contents of C are then ignored).
typedef struct iso__gemm_args {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb, ldc;
    int beta;
    void *c;
} iso__gemm_args;

// Compiles a function for each of these instruction sets; one is chosen when the program is loaded.
// Results must not depend on the choice: no sums over lanes, and no fused multiply-add
// (-ffp-contract=off). Not with ThreadSanitizer, which cannot follow that choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define ISO_CPU_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ISO_CPU_CLONES
#endif

// Before a loop in which no iteration reads what another one writes. Clang's pragma would also
// allow it to reorder sums; without a pragma it checks at run time whether the arrays overlap.
#if defined(__GNUC__) && !defined(__clang__)
#define ISO_CPU_IVDEP _Pragma("GCC ivdep")
#else
#define ISO_CPU_IVDEP
#endif

struct iso__onednn;
struct iso__tuner;

typedef struct iso__cpu {
    iso_device base;
    iso_device_ops ops;
    iso_kernel_ops f32, f64; // plain kernels, some overwritten
    iso_kernel_ops half;     // of bf16 and f16; most call those of f32
    bool bf16;               // math: linear layers and convolutions round what they multiply
    bool bf16_always;        // of tests: also where that takes longer than f32
    int64_t block;           // channels in a block of the blocked layout; f64 has no blocks
    void (*gemm[ISO_F64 + 1])(const iso__gemm_args *args); // by element type
    struct iso__tuner *tuner;                              // of the oneDNN kernels
    struct iso__onednn *onednn;                            // NULL unless its kernels were chosen
    void (*close_set)(struct iso__cpu *cpu); // frees what the set of kernels created; may be NULL
    void *scratch; // shared by all kernels; each one owns it for one call; only grows
    size_t scratch_bytes;
    void *wide; // likewise: f32 copies of the tensors of a kernel for bf16 or f16
    size_t wide_bytes;
} iso__cpu;

// Element i of a tensor of indices.
static inline int64_t iso__cpu_index_at(const iso_tensor *indices, int64_t i) {
    return indices->dtype == ISO_I32 ? ((const int32_t *)indices->data)[i]
                                     : ((const int64_t *)indices->data)[i];
}
static inline iso__cpu *iso__cpu_of(iso_device *device) {
    return iso_container_of(device, iso__cpu, base);
}
// Makes room in cpu->scratch; allocates only when it must grow.
iso_status iso__cpu_scratch(iso__cpu *cpu, size_t bytes, void **out);

// A 4-dimensional activation in either layout as planes of H x W cells of `inner` channels each.
// Other tensors are one row of cells per sample.
typedef struct iso__cpu_view {
    void *data;
    int64_t rows, channels, height, width;
    int64_t groups; // planes of one sample
    int64_t inner;  // channels of a cell
    int64_t total;  // elements with padding
} iso__cpu_view;
iso__cpu_view iso__cpu_view_of(const iso__cpu *cpu, const iso_tensor *x);

void iso__cpu_fill_memory(iso_device_ops *ops);

// ---- Plain kernels for one element type: each fills slots of the table (see cpu_real.h) ----
#define ISO_CPU_PLAIN_KERNELS(type)                                                                \
    void iso__cpu_fill_linear_##type(iso_kernel_ops *ops);                                         \
    void iso__cpu_fill_conv_##type(iso_kernel_ops *ops);                                           \
    void iso__cpu_fill_pool_##type(iso_kernel_ops *ops);                                           \
    void iso__cpu_fill_avg_pool_##type(iso_kernel_ops *ops);                                       \
    void iso__cpu_fill_elementwise_##type(iso_kernel_ops *ops);                                    \
    void iso__cpu_fill_activation_##type(iso_kernel_ops *ops);                                     \
    void iso__cpu_fill_batch_norm_##type(iso_kernel_ops *ops);                                     \
    void iso__cpu_fill_layer_norm_##type(iso_kernel_ops *ops);                                     \
    void iso__cpu_fill_attention_##type(iso_kernel_ops *ops);                                      \
    void iso__cpu_fill_combine_##type(iso_kernel_ops *ops);                                        \
    void iso__cpu_fill_loss_##type(iso_kernel_ops *ops);                                           \
    void iso__cpu_fill_update_##type(iso_kernel_ops *ops);                                         \
    void iso__cpu_gemm_##type(const iso__gemm_args *args);                                         \
    /* db = sum of dy over everything but channels (features), in a fixed order. */                \
    iso_status iso__cpu_bias_gradient_##type(iso__cpu *cpu, const iso_tensor *dy, iso_tensor *db,  \
                                             bool accumulate);
ISO_CPU_PLAIN_KERNELS(f32)
ISO_CPU_PLAIN_KERNELS(f64)

// ---- AVX-512 ---------------------------------------------------------------------------------------
bool iso__cpu_is_wide(void); // the processor has AVX-512
// to[i][k] = from[k][i] for i < columns, k < width; zero where k >= rows. All sizes are at most 16;
// strides are in elements. Requires AVX-512.
void iso__cpu_transpose16(const float *from, int64_t from_stride, int rows, int columns, float *to,
                          int64_t to_stride, int width);

// ---- A linear forward for AVX-512 (cpu_linear_wide.c), f32 -----------------------------------------
bool iso__cpu_wide_suits(int64_t rows, int64_t in, int64_t out);
typedef struct iso__wide_args {
    int64_t rows, in, out;
    const float *x, *w, *b; // b may be NULL
    bool relu;
    float *y;
    iso__arrival *arrival; // of w, or NULL
} iso__wide_args;
iso_status iso__cpu_wide_linear(iso__cpu *cpu, const iso__wide_args *args);

// ---- Sets of kernels: give the device its gemm, block, overwritten slots and description ----
// The slot embedding_forward of every element type.
iso_status iso__cpu_embedding_forward(iso_device *self, const iso_tensor *indices,
                                      const iso_tensor *w, iso_tensor *y);
iso_status iso__cpu_use_cblas(iso__cpu *cpu);
iso_status iso__cpu_use_onednn(iso__cpu *cpu);

#endif
