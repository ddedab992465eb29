// Kernels that make convolutions matrix products: patches of images, and the order of samples.
//
// Blocks in x are rows of a matrix, threads and blocks in y walk its columns: what belongs to a row
// is divided out once, and columns count in 32 bits.
#include "device/cuda/conv_kernels.h"

#include "device/cuda/cuda_submit.cuh"

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

template <class Real> struct patch_args {
    iso__cuda_conv c;
    const Real *from;
    Real *to;
};

template <class Real> __global__ void take_patches(patch_args<Real> a) {
    const iso__cuda_conv &c = a.c;
    int row = (int)blockIdx.x, kw = row % c.kernel[1], kh = row / c.kernel[1] % c.kernel[0];
    int channel = row / (c.kernel[0] * c.kernel[1]), cells = c.out_height * c.out_width;
    int down = kh * c.dilation[0] - c.padding[0], right = kw * c.dilation[1] - c.padding[1];
    int columns = c.samples * cells;
    Real *to = a.to + (int64_t)row * columns;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / cells, cell = (int)j - n * cells, oy = cell / c.out_width;
        int y = oy * c.stride[0] + down, x = (cell - oy * c.out_width) * c.stride[1] + right;
        bool inside = y >= 0 && y < c.height && x >= 0 && x < c.width;
        const Real *image = a.from + ((int64_t)n * c.channels + channel) * c.height * c.width;
        to[j] = inside ? image[(int64_t)y * c.width + x] : 0;
    }
}

// The output position whose tap k lies at input position `at`; -1: none.
static __device__ int meets(int at, int k, int stride, int padding, int dilation, int size) {
    int from = at + padding - k * dilation;
    if (from < 0 || from % stride != 0 || from / stride >= size) return -1;
    return from / stride;
}

// A pixel gathers what it gave: no two threads write one place, and the order of the sum is fixed.
template <class Real> __global__ void put_patches(patch_args<Real> a) {
    const iso__cuda_conv &c = a.c;
    int channel = (int)blockIdx.x, pixels = c.height * c.width;
    int cells = c.out_height * c.out_width, taps = c.kernel[0] * c.kernel[1];
    int columns = c.samples * pixels;
    int64_t row_size = (int64_t)c.samples * cells;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / pixels, pixel = (int)j - n * pixels;
        int y = pixel / c.width, x = pixel - y * c.width;
        const Real *from = a.from + channel * taps * row_size + (int64_t)n * cells;
        Real sum = 0;
        for (int kh = 0; kh < c.kernel[0]; kh++) {
            int oy = meets(y, kh, c.stride[0], c.padding[0], c.dilation[0], c.out_height);
            for (int kw = 0; oy >= 0 && kw < c.kernel[1]; kw++) {
                int ox = meets(x, kw, c.stride[1], c.padding[1], c.dilation[1], c.out_width);
                if (ox < 0) continue;
                sum += from[(kh * c.kernel[1] + kw) * row_size + oy * c.out_width + ox];
            }
        }
        a.to[((int64_t)n * c.channels + channel) * pixels + pixel] = sum;
    }
}

template <class Real>
static iso_status launch_take(iso__cuda *cuda, const iso__cuda_conv *c, const void *x,
                              void *patches) {
    patch_args<Real> args = {*c, (const Real *)x, (Real *)patches};
    int64_t rows = (int64_t)c->channels * c->kernel[0] * c->kernel[1];
    int64_t columns = (int64_t)c->samples * c->out_height * c->out_width;
    return iso__cuda_submit(cuda, take_patches<Real>, grid_of(rows, columns), ISO_CUDA_BLOCK, args);
}

iso_status iso__cuda_patches(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                             const void *x, void *patches) {
    return (dtype == ISO_F64 ? launch_take<double> : launch_take<float>)(cuda, c, x, patches);
}

template <class Real>
static iso_status launch_put(iso__cuda *cuda, const iso__cuda_conv *c, const void *patches,
                             void *dx) {
    patch_args<Real> args = {*c, (const Real *)patches, (Real *)dx};
    int64_t columns = (int64_t)c->samples * c->height * c->width;
    return iso__cuda_submit(cuda, put_patches<Real>, grid_of(c->channels, columns), ISO_CUDA_BLOCK,
                            args);
}

iso_status iso__cuda_patches_back(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                                  const void *patches, void *dx) {
    return (dtype == ISO_F64 ? launch_put<double> : launch_put<float>)(cuda, c, patches, dx);
}

// ---- The order of samples ----------------------------------------------------------------------

template <class Real> struct rows_args {
    int samples, channels, plane;
    const Real *from, *bias;
    bool relu;
    Real *to;
};

template <class Real> __global__ void to_rows(rows_args<Real> a) {
    int channel = (int)blockIdx.x, columns = a.samples * a.plane;
    Real *to = a.to + (int64_t)channel * columns;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / a.plane, p = (int)j - n * a.plane;
        to[j] = a.from[((int64_t)n * a.channels + channel) * a.plane + p];
    }
}

template <class Real> __global__ void from_rows(rows_args<Real> a) {
    int channel = (int)blockIdx.x, columns = a.samples * a.plane;
    const Real *from = a.from + (int64_t)channel * columns;
    Real bias = a.bias ? a.bias[channel] : 0;
    for (int64_t j = first_column(); j < columns; j += column_stride()) {
        int n = (int)j / a.plane, p = (int)j - n * a.plane;
        Real value = from[j] + bias;
        a.to[((int64_t)n * a.channels + channel) * a.plane + p] =
            a.relu && !(value > 0) ? 0 : value;
    }
}

template <class Real>
static iso_status launch_rows(iso__cuda *cuda, void (*kernel)(rows_args<Real>),
                              const rows_args<Real> &args) {
    dim3 grid = grid_of(args.channels, (int64_t)args.samples * args.plane);
    return iso__cuda_submit(cuda, kernel, grid, ISO_CUDA_BLOCK, args);
}

template <class Real>
static rows_args<Real> args_of(int samples, int channels, int plane, const void *from,
                               const void *bias, bool relu, void *to) {
    return {samples, channels, plane, (const Real *)from, (const Real *)bias, relu, (Real *)to};
}

iso_status iso__cuda_rows_of(iso__cuda *cuda, iso_dtype dtype, int samples, int channels, int plane,
                             const void *y, void *rows) {
    if (dtype == ISO_F64)
        return launch_rows(cuda, to_rows<double>,
                           args_of<double>(samples, channels, plane, y, NULL, false, rows));
    return launch_rows(cuda, to_rows<float>,
                       args_of<float>(samples, channels, plane, y, NULL, false, rows));
}

iso_status iso__cuda_from_rows(iso__cuda *cuda, iso_dtype dtype, int samples, int channels,
                               int plane, const void *rows, const void *bias, bool relu, void *y) {
    if (dtype == ISO_F64)
        return launch_rows(cuda, from_rows<double>,
                           args_of<double>(samples, channels, plane, rows, bias, relu, y));
    return launch_rows(cuda, from_rows<float>,
                       args_of<float>(samples, channels, plane, rows, bias, relu, y));
}
