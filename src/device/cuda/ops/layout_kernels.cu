// SPDX-License-Identifier: MIT
// Kernels that reorder tensors and weights.
#include "device/cuda/ops/layout_kernels.h"

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

// ---- Matrices ----------------------------------------------------------------------------------

namespace {

template <class Word> struct matrix_args {
    iso__cuda_matrices m;
    const Word *from;
    Word *to;
};

// Tiles through shared memory, so that both sides are read and written along their lines.
enum { TILE = 32, TILE_LINES = ISO_CUDA_BLOCK / TILE, MOST_GRID_Y = 65535 };

int64_t tiles_of(int64_t side) { return (side + TILE - 1) / TILE; }

template <class Word> __global__ void transpose_tiles(matrix_args<Word> a) {
    __shared__ Word tile[TILE][TILE + 1];
    const iso__cuda_matrices &m = a.m;
    int64_t across = (m.columns + TILE - 1) / TILE;
    int64_t row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    for (int64_t k = blockIdx.y; k < m.matrices; k += gridDim.y) {
        const Word *from = a.from + k * m.rows * m.from_line;
        Word *to = a.to + k * m.columns * m.to_line;
        for (int i = y; i < TILE; i += TILE_LINES) {
            bool inside = row + i < m.rows && column + x < m.columns;
            tile[i][x] = inside ? from[(row + i) * m.from_line + column + x] : (Word)0;
        }
        __syncthreads();
        for (int i = y; i < TILE; i += TILE_LINES)
            if (column + i < m.columns && row + x < m.to_line)
                to[(column + i) * m.to_line + row + x] = tile[x][i];
        __syncthreads();
    }
}

// Where a line of `to` is 16 bytes long: a thread puts one together.
template <class Word> __global__ void gather_lines(matrix_args<Word> a) {
    const iso__cuda_matrices &m = a.m;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t k = blockIdx.y; k < m.matrices; k += gridDim.y) {
        const Word *from = a.from + k * m.rows * m.from_line;
        iso__pack<Word> *to = (iso__pack<Word> *)a.to + k * m.columns;
        for (int64_t j = iso__first_item(); j < m.columns; j += stride) {
            iso__pack<Word> line;
#pragma unroll
            for (int i = 0; i < iso__pack<Word>::width; i++)
                line.at[i] = i < m.rows ? from[i * m.from_line + j] : (Word)0;
            to[j] = line;
        }
    }
}

template <class Word>
iso_status transpose(iso__cuda *cuda, const iso__cuda_matrices *m, const void *from, void *to) {
    matrix_args<Word> args = {*m, (const Word *)from, (Word *)to};
    unsigned y = (unsigned)(m->matrices < MOST_GRID_Y ? m->matrices : (int64_t)MOST_GRID_Y);
    if (m->to_line == iso__pack<Word>::width && iso__is_aligned(to))
        return iso__cuda_submit(
            cuda, gather_lines<Word>,
            dim3((unsigned)((m->columns + ISO_CUDA_BLOCK - 1) / ISO_CUDA_BLOCK), y), ISO_CUDA_BLOCK,
            args);
    dim3 grid((unsigned)(tiles_of(m->to_line) * tiles_of(m->columns)), y);
    return iso__cuda_submit(cuda, transpose_tiles<Word>, grid, ISO_CUDA_BLOCK, args);
}

} // namespace

iso_status iso__cuda_transpose(iso__cuda *cuda, size_t size, const iso__cuda_matrices *m,
                               const void *from, void *to) {
    auto launch = size == 8   ? transpose<uint64_t>
                  : size == 4 ? transpose<uint32_t>
                              : transpose<uint16_t>;
    return launch(cuda, m, from, to);
}

// ---- Weights -----------------------------------------------------------------------------------
// A block takes some channels of one filter, which lie beside each other in logical order, through
// shared memory. Filters of more taps than that holds are read where they are.

namespace {

enum { FILTER_ROOM = 2048 };

__device__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class From, class To> struct filter_args {
    iso__cuda_filters f;
    int64_t chunk, chunks; // channels of a block; blocks of a filter
    const From *from;
    int64_t accumulate;
    To *to;
};

template <class From, class To> __global__ void filters_last(filter_args<From, To> a) {
    __shared__ From room[FILTER_ROOM];
    const iso__cuda_filters &f = a.f;
    int64_t filter = blockIdx.x / a.chunks, first = blockIdx.x % a.chunks * a.chunk;
    int64_t width = smaller(a.chunk, f.padded_channels - first);
    int64_t real = filter < f.filters ? smaller(width, f.channels - first) : 0;
    if (real < 0) real = 0; // a block of nothing but padding
    const From *from = a.from + (filter * f.channels + first) * f.taps;
    bool fits = a.chunk * f.taps <= FILTER_ROOM;
    unsigned taps = (unsigned)f.taps, lines = (unsigned)width, count = (unsigned)real * taps;
    for (unsigned i = threadIdx.x; fits && i < count; i += blockDim.x) room[i] = from[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < lines * taps; i += blockDim.x) {
        unsigned tap = i / lines, c = i % lines, at = c * taps + tap;
        To *to = a.to + (filter * taps + tap) * f.padded_channels + first + c;
        iso__narrow(c >= real ? 0.0f : iso__widen(fits ? room[at] : from[at]), to);
    }
}

template <class Word> __global__ void filters_pad(filter_args<Word, Word> a) {
    const iso__cuda_filters &f = a.f;
    int64_t line = f.padded_channels, lines = f.taps * f.padded_filters;
    for (int64_t i = iso__first_item(); i < lines * line; i += iso__item_stride()) {
        int64_t c = i % line, at = i / line;
        bool inside = c < f.channels && at < f.filters * f.taps;
        a.to[i] = inside ? a.from[at * f.channels + c] : (Word)0;
    }
}

template <class From> __global__ void filters_logical(filter_args<From, float> a) {
    __shared__ float room[FILTER_ROOM];
    const iso__cuda_filters &f = a.f;
    int64_t filter = blockIdx.x / a.chunks, first = blockIdx.x % a.chunks * a.chunk;
    unsigned width = (unsigned)smaller(a.chunk, f.channels - first), taps = (unsigned)f.taps;
    const From *from = a.from + filter * taps * f.padded_channels + first;
    float *to = a.to + (filter * f.channels + first) * taps;
    bool fits = a.chunk * f.taps <= FILTER_ROOM;
    for (unsigned i = threadIdx.x; fits && i < width * taps; i += blockDim.x)
        room[i] = iso__widen(from[i / width * f.padded_channels + i % width]);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < width * taps; i += blockDim.x) {
        unsigned c = i / taps, tap = i % taps;
        float value = fits ? room[tap * width + c] : iso__widen(from[tap * f.padded_channels + c]);
        to[i] = a.accumulate ? to[i] + value : value;
    }
}

// As many channels for a block as there is room for, in whole warps where there are several.
template <class From, class To>
filter_args<From, To> args_of(const iso__cuda_filters *f, int64_t channels, const void *from,
                              bool accumulate, void *to) {
    int64_t chunk = FILTER_ROOM / f->taps;
    if (chunk > 32) chunk -= chunk % 32;
    if (chunk > channels) chunk = channels;
    if (chunk < 1) chunk = 1;
    return {*f, chunk, (channels + chunk - 1) / chunk, (const From *)from, accumulate, (To *)to};
}

template <class From, class To>
iso_status launch_last(iso__cuda *cuda, const iso__cuda_filters *f, const void *w, void *last) {
    filter_args<From, To> args = args_of<From, To>(f, f->padded_channels, w, false, last);
    return iso__cuda_submit(cuda, filters_last<From, To>,
                            dim3((unsigned)(f->padded_filters * args.chunks)), ISO_CUDA_BLOCK,
                            args);
}

template <class Word>
iso_status launch_pad(iso__cuda *cuda, const iso__cuda_filters *f, const void *w, void *last) {
    filter_args<Word, Word> args = args_of<Word, Word>(f, f->padded_channels, w, false, last);
    return iso__cuda_submit_over(cuda, filters_pad<Word>,
                                 f->padded_filters * f->padded_channels * f->taps, args);
}

template <class From>
iso_status launch_logical(iso__cuda *cuda, const iso__cuda_filters *f, const void *last,
                          bool accumulate, void *dw) {
    filter_args<From, float> args = args_of<From, float>(f, f->channels, last, accumulate, dw);
    return iso__cuda_submit(cuda, filters_logical<From>, dim3((unsigned)(f->filters * args.chunks)),
                            ISO_CUDA_BLOCK, args);
}

// Of weights whose two orders are the same and have no padding, one long filter.
iso__cuda_filters in_one(const iso__cuda_filters *f) {
    bool padded = f->padded_filters != f->filters || f->padded_channels != f->channels;
    if (padded || f->taps != 1) return *f;
    int64_t count = f->filters * f->channels;
    return {1, count, 1, 1, count};
}

} // namespace

iso_status iso__cuda_filters_last(iso__cuda *cuda, const iso__cuda_filters *f, iso_dtype from_dtype,
                                  const void *w, iso_dtype to_dtype, void *last) {
    iso__cuda_filters all = in_one(f);
    bool rounds = from_dtype != to_dtype;
    auto launch = to_dtype == ISO_F32 ? launch_last<float, float>
                  : to_dtype == ISO_BF16
                      ? rounds ? launch_last<float, iso__bf16> : launch_last<iso__bf16, iso__bf16>
                  : rounds ? launch_last<float, iso__f16>
                           : launch_last<iso__f16, iso__f16>;
    return launch(cuda, &all, w, last);
}

iso_status iso__cuda_filters_pad(iso__cuda *cuda, const iso__cuda_filters *f, size_t size,
                                 const void *w, void *last) {
    return (size == 4 ? launch_pad<uint32_t> : launch_pad<uint16_t>)(cuda, f, w, last);
}

iso_status iso__cuda_filters_logical(iso__cuda *cuda, const iso__cuda_filters *f, iso_dtype dtype,
                                     const void *last, bool accumulate, void *dw) {
    iso__cuda_filters all = in_one(f);
    auto launch = dtype == ISO_BF16  ? launch_logical<iso__bf16>
                  : dtype == ISO_F16 ? launch_logical<iso__f16>
                                     : launch_logical<float>;
    return launch(cuda, &all, last, accumulate, dw);
}
