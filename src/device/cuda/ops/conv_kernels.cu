// SPDX-License-Identifier: MIT
// Kernels that turn convolutions into matrix products: patches of images, and the order of samples.
//
// blockIdx.x is a row of a matrix; blockIdx.y and the threads walk its columns. So the divisions
// for a row are made only once, and 32 bits suffice to count columns.
#include "device/cuda/ops/conv_kernels.h"

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

// T: an element as it is stored; sums are of iso__real<T>::type.
static __device__ int first_column() { return (int)blockIdx.y * ISO_CUDA_BLOCK + (int)threadIdx.x; }
static __device__ int64_t column_stride() { return (int64_t)gridDim.y * ISO_CUDA_BLOCK; }

// A thread takes a few columns, so that what it works out for its row pays.
static dim3 grid_of(int64_t rows, int64_t columns) {
    enum { COLUMNS_OF_A_THREAD = 4, MOST = 65535 };
    int64_t blocks = (columns + COLUMNS_OF_A_THREAD * ISO_CUDA_BLOCK - 1) /
                     (COLUMNS_OF_A_THREAD * ISO_CUDA_BLOCK);
    return dim3((unsigned)rows, (unsigned)(blocks < MOST ? blocks : (int64_t)MOST));
}

// ---- Patches -----------------------------------------------------------------------------------

template <class T> struct patch_args {
    iso__cuda_conv c;
    const T *from;
    T *to;
};

// Elements from a pixel to the next, and where a channel of sample 0 begins.
static __device__ int64_t pixel_step(const iso__cuda_conv &c) { return c.last ? c.channels : 1; }
static __device__ int64_t channel_start(const iso__cuda_conv &c, int channel) {
    return c.last ? channel : (int64_t)channel * c.height * c.width;
}

template <class T> __global__ void take_patches(patch_args<T> a) {
    const iso__cuda_conv &c = a.c;
    int row = (int)blockIdx.x, kw = row % c.kernel[1], kh = row / c.kernel[1] % c.kernel[0];
    int channel = row / (c.kernel[0] * c.kernel[1]), cells = c.out_height * c.out_width;
    int down = kh * c.dilation[0] - c.padding[0], right = kw * c.dilation[1] - c.padding[1];
    int columns = c.samples * cells;
    int64_t step = pixel_step(c), sample = (int64_t)c.channels * c.height * c.width;
    const T *from = a.from + channel_start(c, channel);
    T *to = a.to + (int64_t)row * columns;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / cells, cell = (int)j - n * cells, oy = cell / c.out_width;
        int y = oy * c.stride[0] + down, x = (cell - oy * c.out_width) * c.stride[1] + right;
        bool inside = y >= 0 && y < c.height && x >= 0 && x < c.width;
        to[j] = inside ? from[n * sample + ((int64_t)y * c.width + x) * step] : T();
    }
}

// The output position whose tap k lies at input position `at`; -1: none.
static __device__ int output_at(int at, int k, int stride, int padding, int dilation, int size) {
    int from = at + padding - k * dilation;
    if (from < 0 || from % stride != 0 || from / stride >= size) return -1;
    return from / stride;
}

// Each pixel gathers the entries that were taken from it: no two threads write to the same place,
// and the order of each sum is fixed.
template <class T> __global__ void put_patches(patch_args<T> a) {
    const iso__cuda_conv &c = a.c;
    int channel = (int)blockIdx.x, pixels = c.height * c.width;
    int cells = c.out_height * c.out_width, taps = c.kernel[0] * c.kernel[1];
    int columns = c.samples * pixels;
    int64_t row_size = (int64_t)c.samples * cells, step = pixel_step(c);
    T *to = a.to + channel_start(c, channel);
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / pixels, pixel = (int)j - n * pixels;
        int y = pixel / c.width, x = pixel - y * c.width;
        const T *from = a.from + channel * taps * row_size + (int64_t)n * cells;
        typename iso__real<T>::type sum = 0;
        for (int kh = 0; kh < c.kernel[0]; kh++) {
            int oy = output_at(y, kh, c.stride[0], c.padding[0], c.dilation[0], c.out_height);
            for (int kw = 0; oy >= 0 && kw < c.kernel[1]; kw++) {
                int ox = output_at(x, kw, c.stride[1], c.padding[1], c.dilation[1], c.out_width);
                if (ox < 0) continue;
                sum += iso__widen(from[(kh * c.kernel[1] + kw) * row_size + oy * c.out_width + ox]);
            }
        }
        iso__narrow(sum, &to[(int64_t)n * c.channels * pixels + pixel * step]);
    }
}

template <class T>
static iso_status launch_take(iso__cuda *cuda, const iso__cuda_conv *c, const void *x,
                              void *patches) {
    patch_args<T> args = {*c, (const T *)x, (T *)patches};
    int64_t rows = (int64_t)c->channels * c->kernel[0] * c->kernel[1];
    int64_t columns = (int64_t)c->samples * c->out_height * c->out_width;
    return iso__cuda_submit(cuda, take_patches<T>, grid_of(rows, columns), ISO_CUDA_BLOCK, args);
}

iso_status iso__cuda_patches(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                             const void *x, void *patches) {
    auto launch = iso__for_type(dtype, launch_take<double>, launch_take<float>,
                                launch_take<iso__bf16>, launch_take<iso__f16>);
    return launch(cuda, c, x, patches);
}

template <class T>
static iso_status launch_put(iso__cuda *cuda, const iso__cuda_conv *c, const void *patches,
                             void *dx) {
    patch_args<T> args = {*c, (const T *)patches, (T *)dx};
    int64_t columns = (int64_t)c->samples * c->height * c->width;
    return iso__cuda_submit(cuda, put_patches<T>, grid_of(c->channels, columns), ISO_CUDA_BLOCK,
                            args);
}

iso_status iso__cuda_patches_back(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                                  const void *patches, void *dx) {
    auto launch = iso__for_type(dtype, launch_put<double>, launch_put<float>, launch_put<iso__bf16>,
                                launch_put<iso__f16>);
    return launch(cuda, c, patches, dx);
}

// ---- The order of samples ----------------------------------------------------------------------

template <class T> struct rows_args {
    iso__cuda_samples s;
    const T *from, *bias;
    int64_t relu;
    T *to;
};

// Where an element of sample n lies in y.
static __device__ int64_t place_of(const iso__cuda_samples &s, int n, int channel, int p) {
    if (s.last) return ((int64_t)n * s.plane + p) * s.channels + channel;
    return ((int64_t)n * s.channels + channel) * s.plane + p;
}

template <class T> __global__ void to_rows(rows_args<T> a) {
    const iso__cuda_samples &s = a.s;
    int channel = (int)blockIdx.x, columns = s.samples * s.plane;
    T *to = a.to + (int64_t)channel * columns;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / s.plane, p = (int)j - n * s.plane;
        to[j] = a.from[place_of(s, n, channel, p)];
    }
}

template <class T> __global__ void from_rows(rows_args<T> a) {
    typedef typename iso__real<T>::type Real;
    const iso__cuda_samples &s = a.s;
    int channel = (int)blockIdx.x, columns = s.samples * s.plane;
    const T *from = a.from + (int64_t)channel * columns;
    Real bias = a.bias ? iso__widen(a.bias[channel]) : 0;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / s.plane, p = (int)j - n * s.plane;
        Real value = iso__widen(from[j]) + bias;
        iso__narrow(a.relu && !(value > 0) ? 0 : value, &a.to[place_of(s, n, channel, p)]);
    }
}

template <class T>
static iso_status launch_rows(iso__cuda *cuda, bool from_rows_on, const iso__cuda_samples *s,
                              const void *from, const void *bias, bool relu, void *to) {
    rows_args<T> args = {*s, (const T *)from, (const T *)bias, relu, (T *)to};
    dim3 grid = grid_of(s->channels, (int64_t)s->samples * s->plane);
    return iso__cuda_submit(cuda, from_rows_on ? from_rows<T> : to_rows<T>, grid, ISO_CUDA_BLOCK,
                            args);
}

static iso_status reorder_samples(iso__cuda *cuda, iso_dtype dtype, bool from_rows_on,
                                  const iso__cuda_samples *s, const void *from, const void *bias,
                                  bool relu, void *to) {
    auto launch = iso__for_type(dtype, launch_rows<double>, launch_rows<float>,
                                launch_rows<iso__bf16>, launch_rows<iso__f16>);
    return launch(cuda, from_rows_on, s, from, bias, relu, to);
}

iso_status iso__cuda_rows_of(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_samples *s,
                             const void *y, void *rows) {
    return reorder_samples(cuda, dtype, false, s, y, NULL, false, rows);
}

iso_status iso__cuda_from_rows(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_samples *s,
                               const void *rows, const void *bias, bool relu, void *y) {
    return reorder_samples(cuda, dtype, true, s, rows, bias, relu, y);
}
