// SPDX-License-Identifier: MIT
// CBLAS kernels: the matrix product under linear layers and convolutions.
#include "device/cpu/cpu_impl.h"

#include <config.h>
#ifdef ISO_CBLAS_MKL
#include <mkl_cblas.h>
#else
#include <cblas.h>
#endif

// How OpenBLAS, BLIS and MKL are told their number of threads; at most one of these is there.
extern void openblas_set_num_threads(int n) __attribute__((weak));
extern void bli_thread_set_num_threads(int64_t n) __attribute__((weak));
extern void MKL_Set_Num_Threads(int n) __attribute__((weak));

// Headers differ in the name of their integer type (int, blasint, f77_int, MKL_INT); the prototypes
// convert an int to each of them.

static void gemm_f64(const iso__gemm_args *g) {
    cblas_dgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, 1.0,
                g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}

static void gemm_f32(const iso__gemm_args *g) {
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, 1.0f,
                g->a, (int)g->lda, g->b, (int)g->ldb, (float)g->beta, g->c, (int)g->ldc);
}

static iso_status set_threads(iso_device *self, int n) {
    self->threads = n;
    if (openblas_set_num_threads) openblas_set_num_threads(n);
    if (bli_thread_set_num_threads) bli_thread_set_num_threads(n);
    if (MKL_Set_Num_Threads) MKL_Set_Num_Threads(n);
    snprintf(self->description, sizeof(self->description), "CBLAS, %d thread%s", n,
             n > 1 ? "s" : "");
    return ISO_OK;
}

iso_status iso__cpu_use_cblas(iso__cpu *cpu) {
    cpu->gemm[ISO_F32] = gemm_f32;
    cpu->gemm[ISO_F64] = gemm_f64;
    cpu->ops.set_threads = set_threads;
    // The bits of a row may depend on how many there are.
    cpu->f32.take_columns = cpu->f64.take_columns = cpu->half.take_columns = NULL;
    ISO_TRY(set_threads(&cpu->base, 1));
    return ISO_OK;
}
