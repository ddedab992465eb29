// SPDX-License-Identifier: MIT
// The matrix product of every set of kernels and element type against sums in double precision.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "device/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

TestSuite(gemm, .timeout = 60, .fini = balance_check);

// op(x)[row, column], x stored with `stride` numbers from row to row.
static double at(const pair *x, bool transposed, int64_t stride, int64_t row, int64_t column) {
    return x->d[transposed ? column * stride + row : row * stride + column];
}

typedef struct product {
    int64_t m, n, k, spare; // spare: numbers between the rows of each matrix
    bool transpose_a, transpose_b;
    int beta;
} product;

static void one_product(const target *on, const product *p) {
    int64_t lda = (p->transpose_a ? p->m : p->k) + p->spare;
    int64_t ldb = (p->transpose_b ? p->k : p->n) + p->spare, ldc = p->n + p->spare;
    pair a = pair_2d(on, p->transpose_a ? p->k : p->m, lda);
    pair b = pair_2d(on, p->transpose_b ? p->n : p->k, ldb), c = pair_2d(on, p->m, ldc);
    iso__gemm_args args = {.transpose_a = p->transpose_a,
                           .transpose_b = p->transpose_b,
                           .m = p->m,
                           .n = p->n,
                           .k = p->k,
                           .a = a.t->data,
                           .b = b.t->data,
                           .lda = lda,
                           .ldb = ldb,
                           .ldc = ldc,
                           .beta = p->beta,
                           .c = c.t->data};
    iso__cpu_of(on->device)->gemm[on->dtype](&args);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->beta ? c.d[i * ldc + j] : 0;
            for (int64_t l = 0; l < p->k; l++)
                sum += at(&a, p->transpose_a, lda, i, l) * at(&b, p->transpose_b, ldb, l, j);
            c.d[i * ldc + j] = sum;
        }
    check_pair(on, &c, 1e-5, "product"); // what lies between the rows is as it was
    pair_destroy(&a), pair_destroy(&b), pair_destroy(&c);
}

static void products(const target *on) {
    static const int64_t sizes[][3] = {{1, 1, 1},  {4, 16, 8},   {5, 17, 9},     {3, 7, 300},
                                       {65, 8, 2}, {130, 33, 5}, {67, 31, 257},  {1, 40, 512},
                                       {64, 1, 1}, {2, 100, 1},  {129, 19, 513}, {8, 15, 256}};
    if (strcmp(on->device->ops->name, "cpu") != 0) return;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int flags = 0; flags < 16; flags++)
            one_product(on, &(product){.m = sizes[i][0],
                                       .n = sizes[i][1],
                                       .k = sizes[i][2],
                                       .transpose_a = flags & 1,
                                       .transpose_b = flags & 2,
                                       .beta = (flags & 4) != 0,
                                       .spare = flags & 8 ? 3 : 0});
}
Test(gemm, is_the_sum_of_products) { on_each_target(products); }

// beta 0 promises nothing of what was in C before.
static void forgets(const target *on) {
    if (strcmp(on->device->ops->name, "cpu") != 0) return;
    pair a = pair_2d(on, 5, 6), b = pair_2d(on, 6, 7), c = pair_2d(on, 5, 7);
    OK(iso_tensor_fill(c.t, NAN));
    iso__cpu_of(on->device)
        ->gemm[on->dtype](&(iso__gemm_args){.m = 5,
                                            .n = 7,
                                            .k = 6,
                                            .a = a.t->data,
                                            .b = b.t->data,
                                            .lda = 6,
                                            .ldb = 7,
                                            .ldc = 7,
                                            .c = c.t->data});
    for (int i = 0; i < 35; i++) {
        c.d[i] = 0;
        for (int l = 0; l < 6; l++) c.d[i] += a.d[i / 7 * 6 + l] * b.d[l * 7 + i % 7];
    }
    check_pair(on, &c, 1e-5, "product over numbers that are none");
    pair_destroy(&a), pair_destroy(&b), pair_destroy(&c);
}
Test(gemm, overwrites_what_is_no_number) { on_each_target(forgets); }
