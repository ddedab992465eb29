// SPDX-License-Identifier: MIT
// The forward pass of a linear layer with AVX-512. It reads weights in place and only once. A gemm
// would first reorder them, which takes a fifth of its time at 64 rows.
#include "device/cpu/cpu_impl.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define LANES   16
#define VECTORS 4                 // of rows (samples) in a tile
#define TILE    (VECTORS * LANES) // rows
#define OUTPUTS 6 // of a tile: 24 sums, 4 vectors of rows and a weight in 32 registers
#define WIDE    __attribute__((target("avx512f")))
#define INLINE  static inline __attribute__((always_inline, target("avx512f")))

bool iso__cpu_wide_suits(int64_t rows, int64_t in, int64_t out) {
    return iso__cpu_is_wide() && rows >= LANES && in >= LANES && out >= OUTPUTS;
}

// ---- Rows to columns --------------------------------------------------------------------------------

// The rows of a tile as [in][vectors * 16].
static void pack_rows(const float *x, int64_t in, int64_t rows, int vectors, float *to) {
    for (int64_t k = 0; k < in; k += LANES)
        for (int v = 0; v < vectors; v++) {
            int64_t left = rows - v * LANES, columns = in - k;
            iso__cpu_transpose16(x + v * LANES * in + k, in, left < LANES ? (int)left : LANES,
                                 columns < LANES ? (int)columns : LANES,
                                 to + (k * vectors + v) * LANES, vectors * LANES, LANES);
        }
}

// ---- The product ------------------------------------------------------------------------------------

// out[6][TILE] = six outputs of the rows of a tile. Sums run over `in` in order, from the bias.
INLINE void multiply_tile(int64_t in, const float *w, const float *x, const float *b, bool relu,
                          int vectors, float *out) {
    __m512 sum[OUTPUTS][VECTORS];
    for (int o = 0; o < OUTPUTS; o++)
        for (int v = 0; v < vectors; v++)
            sum[o][v] = b ? _mm512_set1_ps(b[o]) : _mm512_setzero_ps();
    for (int64_t k = 0; k < in; k++, x += vectors * LANES) {
        __m512 rows[VECTORS];
        for (int v = 0; v < vectors; v++) rows[v] = _mm512_loadu_ps(x + v * LANES);
        for (int o = 0; o < OUTPUTS; o++) {
            __m512 weight = _mm512_set1_ps(w[o * in + k]);
            for (int v = 0; v < vectors; v++)
                sum[o][v] = _mm512_fmadd_ps(weight, rows[v], sum[o][v]);
        }
    }
    for (int o = 0; o < OUTPUTS; o++)
        for (int v = 0; v < vectors; v++) {
            // As the plain relu: what is below zero becomes zero, and a NaN stays one.
            __mmask16 keep =
                relu ? _mm512_cmp_ps_mask(sum[o][v], _mm512_setzero_ps(), _CMP_NLT_UQ) : 0xffff;
            _mm512_storeu_ps(out + o * TILE + v * LANES, _mm512_maskz_mov_ps(keep, sum[o][v]));
        }
}

// Computes six outputs of the rows from `row` on. The last group is moved back to end with the last
// output, and leaves alone what the group before has written.
WIDE static void outputs(const iso__wide_args *p, int64_t group, int64_t row, const float *packed) {
    int64_t wanted = group * OUTPUTS;
    int64_t first = wanted + OUTPUTS <= p->out ? wanted : p->out - OUTPUTS;
    float sums[OUTPUTS * TILE];
    const float *w = p->w + first * p->in, *b = p->b ? p->b + first : NULL;
    int64_t rows = p->rows - row < TILE ? p->rows - row : TILE;
    switch ((rows + LANES - 1) / LANES) {
    case 1: multiply_tile(p->in, w, packed, b, p->relu, 1, sums); break;
    case 2: multiply_tile(p->in, w, packed, b, p->relu, 2, sums); break;
    case 3: multiply_tile(p->in, w, packed, b, p->relu, 3, sums); break;
    default: multiply_tile(p->in, w, packed, b, p->relu, 4, sums); break;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = wanted - first; o < OUTPUTS; o++)
            p->y[(row + r) * p->out + first + o] = sums[o * TILE + r];
}

// Every output is computed by one thread, in the same way wherever it stands: the bits depend
// neither on the number of threads nor on the other rows.
static void multiply_panels(const iso__wide_args *p, int64_t first, int64_t end,
                            const float *packed, int threads) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = first; g < end; g++)
        for (int64_t row = 0; row < p->rows; row += TILE) outputs(p, g, row, packed + row * p->in);
    (void)threads;
}

// Computes outputs as soon as their weights have arrived.
static iso_status multiply_as_they_come(const iso__wide_args *p, const float *packed, int threads) {
    int64_t groups = (p->out + OUTPUTS - 1) / OUTPUTS;
    for (int64_t there = 0, first = 0, end; first < groups; first = end) {
        there = p->arrival ? there + p->arrival->unit : p->out;
        if (there > p->out) there = p->out;
        // `packed` is scratch memory. Only updates run during the wait, and they do not use it.
        if (p->arrival) ISO_TRY(p->arrival->wait(p->arrival, there));
        end = there == p->out ? groups : there / OUTPUTS;
        multiply_panels(p, first, end, packed, threads);
    }
    return ISO_OK;
}

iso_status iso__cpu_wide_linear(iso__cpu *cpu, const iso__wide_args *p) {
    int64_t padded = (p->rows + LANES - 1) / LANES * LANES;
    void *packed;
    ISO_TRY(iso__cpu_scratch(cpu, (size_t)(padded * p->in) * sizeof(float), &packed));
    for (int64_t row = 0; row < p->rows; row += TILE) {
        int64_t rows = p->rows - row < TILE ? p->rows - row : TILE;
        pack_rows(p->x + row * p->in, p->in, rows, (int)((rows + LANES - 1) / LANES),
                  (float *)packed + row * p->in);
    }
    cpu->base.kernel = "AVX-512, weights in place";
    return multiply_as_they_come(p, packed, cpu->base.threads);
}

#else

bool iso__cpu_wide_suits(int64_t rows, int64_t in, int64_t out) {
    (void)rows, (void)in, (void)out;
    return false;
}

iso_status iso__cpu_wide_linear(iso__cpu *cpu, const iso__wide_args *args) {
    (void)cpu, (void)args;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "this processor has no AVX-512");
}

#endif
