// CBLAS kernels: the matrix product under linear layers and convolutions.
#include "device/cpu/cpu_impl.h"

#include <cblas.h>

// OpenBLAS's own control of its threads; absent from other BLAS libraries.
extern void openblas_set_num_threads(int n) __attribute__((weak));

static void gemm_f64(const iso__gemm_args *g) {
    cblas_dgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n,
                (blasint)g->k, 1.0, g->a, (blasint)g->lda, g->b, (blasint)g->ldb, g->beta, g->c,
                (blasint)g->ldc);
}

static void gemm_f32(const iso__gemm_args *g) {
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n,
                (blasint)g->k, 1.0f, g->a, (blasint)g->lda, g->b, (blasint)g->ldb, (float)g->beta,
                g->c, (blasint)g->ldc);
}

static iso_status set_threads(iso_device *self, int n) {
    self->threads = n;
    if (openblas_set_num_threads) openblas_set_num_threads(n);
    snprintf(self->description, sizeof(self->description), "CBLAS, %d thread%s", n,
             n > 1 ? "s" : "");
    return ISO_OK;
}

iso_status iso__cpu_use_cblas(iso__cpu *cpu) {
    cpu->gemm[ISO_F32] = gemm_f32;
    cpu->gemm[ISO_F64] = gemm_f64;
    cpu->ops.set_threads = set_threads;
    ISO_TRY(set_threads(&cpu->base, 1));
    return ISO_OK;
}
