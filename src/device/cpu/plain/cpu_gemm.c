// SPDX-License-Identifier: MIT
// The plain matrix product: tiles of C in registers, and a copied panel of B that stays in the
// cache.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

// A tile is ROWS x COLUMNS numbers of C; a row of it fills 64 bytes, so that the compiler makes one
// to four vectors of it on every instruction set.
#define ROWS    4
#define COLUMNS (64 / (int)sizeof(real))
// The part of k for which a panel of B stays in the first-level cache, and the rows of A that then
// stay in the second-level cache.
#define DEPTH 256
#define BLOCK 64

typedef real vector __attribute__((vector_size(64)));

// A tile of the product over `depth` of k, and where to find it.
typedef struct tile {
    const real *a[ROWS]; // the same row again where there are fewer
    int64_t step;        // in A, from one of k to the next
    int64_t depth;
    const vector *panel;
} tile;

// Each number of C is one sum in the order of k, whatever the instruction set.
static inline __attribute__((always_inline)) void multiply_tile(const tile *t, vector sum[ROWS]) {
    vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    const real *a0 = t->a[0], *a1 = t->a[1], *a2 = t->a[2], *a3 = t->a[3];
    for (int64_t l = 0, at = 0; l < t->depth; l++, at += t->step) {
        const vector b = t->panel[l];
        s0 += a0[at] * b;
        s1 += a1[at] * b;
        s2 += a2[at] * b;
        s3 += a3[at] * b;
    }
    sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
}

// Rows first .. end of C in `columns` columns from `column` on: += or, at the first of k, =.
static inline __attribute__((always_inline)) void block_rows(const iso__gemm_args *g, int64_t first,
                                                             int64_t end, int64_t column,
                                                             int64_t columns, tile *t, int64_t from,
                                                             bool add) {
    const real *a = g->a;
    for (int64_t i = first; i < end; i += ROWS) {
        vector sum[ROWS];
        real row[COLUMNS];
        for (int r = 0; r < ROWS; r++) {
            int64_t at = i + r < end ? i + r : end - 1;
            t->a[r] = a + (g->transpose_a ? from * g->lda + at : at * g->lda + from);
        }
        multiply_tile(t, sum);
        for (int r = 0; r < ROWS && i + r < end; r++) {
            real *c = (real *)g->c + (i + r) * g->ldc + column;
            memcpy(row, &sum[r], sizeof(row));
            for (int64_t k = 0; k < columns; k++) c[k] = add ? c[k] + row[k] : row[k];
        }
    }
}

// Rows from .. from + depth of op(B) in COLUMNS columns; zeros behind the last one.
static inline __attribute__((always_inline)) void fill_panel(const iso__gemm_args *g, int64_t from,
                                                             int64_t depth, int64_t column,
                                                             int64_t columns,
                                                             real (*panel)[COLUMNS]) {
    const real *b = g->b;
    if (columns < COLUMNS) memset(panel, 0, (size_t)depth * sizeof(*panel));
    for (int64_t l = 0; !g->transpose_b && l < depth; l++)
        memcpy(panel[l], b + (from + l) * g->ldb + column, (size_t)columns * sizeof(real));
    for (int64_t k = 0; g->transpose_b && k < columns; k++)
        for (int64_t l = 0; l < depth; l++) panel[l][k] = b[(column + k) * g->ldb + from + l];
}

ISO_CPU_CLONES static void product(const iso__gemm_args *g) {
    _Alignas(64) real panel[DEPTH][COLUMNS];
    for (int64_t from = 0; from < g->k; from += DEPTH) {
        tile t = {.step = g->transpose_a ? g->lda : 1, .panel = (const vector *)(void *)panel};
        t.depth = g->k - from < DEPTH ? g->k - from : DEPTH;
        for (int64_t first = 0; first < g->m; first += BLOCK) {
            int64_t end = first + BLOCK < g->m ? first + BLOCK : g->m;
            for (int64_t j = 0; j < g->n; j += COLUMNS) {
                int64_t columns = g->n - j < COLUMNS ? g->n - j : COLUMNS;
                fill_panel(g, from, t.depth, j, columns, panel);
                block_rows(g, first, end, j, columns, &t, from, from > 0 || g->beta != 0);
            }
        }
    }
}

void ISO_REAL(iso__cpu_gemm)(const iso__gemm_args *args) { product(args); }
