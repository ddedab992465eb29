// SPDX-License-Identifier: MIT
// Private to the kernels for bf16 and f16 of the CPU: tensors of 16 bits as f32, for one call of an
// f32 kernel. What such a kernel reads is widened before it, which is exact, and what it writes is
// rounded once after it. So sums and all values between load and store are f32.
#ifndef ISO_CPU_HALF_H
#define ISO_CPU_HALF_H

#include "device/cpu/cpu_impl.h"

enum { ISO__WIDE_TENSORS = 5 };

typedef struct iso__wide {
    iso__cpu *cpu;
    const iso_kernel_ops *ops; // of f32
    int count;
    const iso_tensor *given[ISO__WIDE_TENSORS];
    iso_tensor copy[ISO__WIDE_TENSORS]; // of those that are 16 bits wide
    // What the f32 kernel takes: NULL where NULL was given, the tensor itself if it is f32, else
    // its copy.
    iso_tensor *as[ISO__WIDE_TENSORS];
} iso__wide;

// Sets w->as, in scratch memory that is valid until the next call of this or iso__widen. Contents
// of the copies are undefined.
iso_status iso__wide_open(iso__wide *w, iso_device *self, int count, const iso_tensor *const *x);
void iso__wide_read(iso__wide *w, int i);        // given -> copy
void iso__wide_write(const iso__wide *w, int i); // copy -> given, rounded

// The same in one call: the first `reads` of the tensors are read.
iso_status iso__widen(iso__wide *w, iso_device *self, int reads, int count,
                      const iso_tensor *const *x);
// Writes tensors first .. w->count.
void iso__narrow(const iso__wide *w, int first);

#define ISO__WIDEN(w, self, reads, ...)                                                            \
    iso__widen(w, self, reads, (int)(sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *)),      \
               (const iso_tensor *[]){__VA_ARGS__})

// For what depends on the shape only.
static inline iso_tensor iso__as_f32(const iso_tensor *x) {
    iso_tensor wide = *x;
    wide.dtype = ISO_F32;
    return wide;
}

// One of bf16 and f16, from and to f32.
void iso__cpu_widen(iso_dtype type, int64_t count, const uint16_t *from, float *to);
void iso__cpu_narrow(iso_dtype type, int64_t count, const float *from, uint16_t *to);
// f16 with AVX-512 (cpu_half_wide.c): only if iso__cpu_is_wide().
void iso__cpu_widen_f16_wide(int64_t count, const uint16_t *from, float *to);
void iso__cpu_narrow_f16_wide(int64_t count, const float *from, uint16_t *to);

// Slots that other sets of kernels call for what they do not handle themselves.
iso_status iso__cpu_half_linear_forward(iso_device *self, const iso_tensor *x,
                                        const iso_tensor *weight, iso__arrival *arrival,
                                        const iso_tensor *b, iso_activation act, iso_tensor *y);
iso_status iso__cpu_half_linear_backward_params(iso_device *self, const iso_tensor *x,
                                                const iso_tensor *dy, iso_tensor *dw,
                                                bool accumulate_w, iso_tensor *db,
                                                bool accumulate_b);
iso_status iso__cpu_half_linear_backward_input(iso_device *self, const iso_tensor *dy,
                                               const iso_tensor *weight, iso_tensor *dx);
iso_status iso__cpu_half_conv2d_forward(iso_device *self, const iso_conv2d_config *c,
                                        const iso_tensor *x, const iso_tensor *weight,
                                        const iso_tensor *b, iso_activation act, iso_tensor *y);
iso_status iso__cpu_half_conv2d_backward_params(iso_device *self, const iso_conv2d_config *c,
                                                const iso_tensor *x, const iso_tensor *dy,
                                                iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                                bool accumulate_b);
iso_status iso__cpu_half_conv2d_backward_input(iso_device *self, const iso_conv2d_config *c,
                                               const iso_tensor *dy, const iso_tensor *weight,
                                               iso_tensor *dx);

iso_status iso__cpu_take_master(iso_device *self, iso_dtype type, int64_t count, const void *value,
                                float *master);

void iso__cpu_fill_half(iso_kernel_ops *ops);
// Some slots each.
void iso__cpu_fill_half_elementwise(iso_kernel_ops *ops);
void iso__cpu_fill_half_matrix(iso_kernel_ops *ops);
void iso__cpu_fill_half_norm(iso_kernel_ops *ops);
void iso__cpu_fill_half_pool(iso_kernel_ops *ops);

#endif
