// SPDX-License-Identifier: MIT
// Linear layers with bias and activation in one call, by cuBLASLt.
//
// The bits are the same in every run: the kernel is the first one that cuBLASLt's heuristic names
// for the shape, and never depends on measured times; split sums are combined in a separate step.
#include "device/cuda/libs/cuda_lt.h"

#include "device/cuda/libs/cuda_blas.h"
#include "device/cuda/runtime/cuda_cache.h"

#include <config.h>
#include <cublasLt.h>
#include <string.h>

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)
typedef struct functions {
    LT_FUNCTIONS(ISO_CUDA_FIELD)
} functions;
static const iso__cuda_symbol symbols[] = {LT_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

typedef struct iso__cuda_lt {
    functions call;
    cublasLtHandle_t handle;
    iso__cuda_cache plans;
} iso__cuda_lt;

// alignment: bytes that all addresses are multiples of, up to what kernels make use of.
typedef struct plan_key {
    int64_t rows, in, out, type, compute, epilogue, alignment;
} plan_key;

typedef struct plan {
    iso__cuda_entry base;
    plan_key key;
    bool usable; // false: there is no kernel, or it was refused when it was called
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t x, w, y;
    cublasLtMatmulAlgo_t algorithm;
} plan;

// ---- Life -----------------------------------------------------------------------------------------

static iso_status set_up(iso__cuda *cuda, iso__cuda_lt *lt) {
    lt->plans.key_bytes = sizeof(plan_key);
    ISO_TRY(iso__cuda_load("cuBLASLt", ISO_CUBLASLT_SONAME, symbols, SYMBOLS, &lt->call));
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY_CUBLAS(cuda->blas, lt->call.cublasLtCreate(&lt->handle));
    return ISO_OK;
}

static void plan_destroy(const iso__cuda_lt *lt, plan *p) {
    if (p->product) lt->call.cublasLtMatmulDescDestroy(p->product);
    if (p->x) lt->call.cublasLtMatrixLayoutDestroy(p->x);
    if (p->w) lt->call.cublasLtMatrixLayoutDestroy(p->w);
    if (p->y) lt->call.cublasLtMatrixLayoutDestroy(p->y);
    iso__free(p);
}

static void destroy_lt(iso__cuda_lt *lt) {
    iso__cuda_entry *entry;
    while ((entry = iso__cuda_cache_take(&lt->plans)))
        plan_destroy(lt, iso_container_of(entry, plan, base));
    if (lt->handle) lt->call.cublasLtDestroy(lt->handle);
    iso__free(lt);
}

static iso_status need_lt(iso__cuda *cuda) {
    void *memory;
    if (cuda->lt) return ISO_OK;
    ISO_TRY(iso__cuda_blas_need(cuda)); // for its workspace and its words for errors
    ISO_TRY(iso__alloc_zero(sizeof(iso__cuda_lt), &memory));
    iso_status status = set_up(cuda, memory);
    if (status < 0) destroy_lt(memory);
    ISO_TRY(status);
    cuda->lt = memory;
    return ISO_OK;
}

void iso__cuda_lt_destroy(iso__cuda *cuda) {
    if (cuda->lt) destroy_lt(cuda->lt);
    cuda->lt = NULL;
}

// ---- Plans ----------------------------------------------------------------------------------------

static iso_status set_attribute(iso__cuda *cuda, plan *p, cublasLtMatmulDescAttributes_t which,
                                const void *value, size_t bytes) {
    ISO_TRY_CUBLAS(cuda->blas,
                   cuda->lt->call.cublasLtMatmulDescSetAttribute(p->product, which, value, bytes));
    return ISO_OK;
}

static iso_status set_bias(iso__cuda *cuda, plan *p, const void *bias) {
    return set_attribute(cuda, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

// Columns one after the other: y^T [out, rows] = op(w^T [in, out]) x^T [in, rows].
static iso_status describe_plan(iso__cuda *cuda, plan *p) {
    const functions *call = &cuda->lt->call;
    const plan_key *k = &p->key;
    uint64_t rows = (uint64_t)k->rows, in = (uint64_t)k->in, out = (uint64_t)k->out;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType type = (cudaDataType)k->type; // of the bias too: that of y unless told otherwise
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatmulDescCreate(
                                   &p->product, (cublasComputeType_t)k->compute, CUDA_R_32F));
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatrixLayoutCreate(&p->w, type, in, out, k->in));
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatrixLayoutCreate(&p->x, type, in, rows, k->in));
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatrixLayoutCreate(&p->y, type, out, rows, k->out));
    ISO_TRY(set_attribute(cuda, p, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    return set_attribute(cuda, p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
}

static iso_status set_preference(iso__cuda *cuda, const plan *p,
                                 cublasLtMatmulPreference_t preference) {
    const functions *call = &cuda->lt->call;
    size_t workspace = cuda->blas->workspace_bytes;
    uint32_t alignment = (uint32_t)p->key.alignment;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatmulPreferenceSetAttribute(
                                   preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                   sizeof(workspace)));
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatmulPreferenceSetAttribute(
                                   preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                   sizeof(schemes)));
    for (int i = 0; i < 4; i++)
        ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatmulPreferenceSetAttribute(
                                       preference, sides[i], &alignment, sizeof(alignment)));
    return ISO_OK;
}

// It goes by cuBLAS, and a kernel of its own for the bias.
static void say_unusable(const plan *p, const char *why) {
    const plan_key *k = &p->key;
    iso__log(ISO_LOG_WARN,
             "bias and activation take a launch of their own: cuBLASLt does not compute a Linear "
             "of %lld rows, %lld to %lld features, addresses aligned to "
             "%lld bytes: %s",
             (long long)k->rows, (long long)k->in, (long long)k->out, (long long)k->alignment, why);
}

static iso_status choose_algorithm(iso__cuda *cuda, plan *p) {
    const functions *call = &cuda->lt->call;
    cublasLtMatmulHeuristicResult_t first;
    cublasLtMatmulPreference_t preference;
    int found = 0;
    ISO_TRY_CUBLAS(cuda->blas, call->cublasLtMatmulPreferenceCreate(&preference));
    iso_status status = set_preference(cuda, p, preference);
    if (status == ISO_OK) {
        cublasStatus_t told = call->cublasLtMatmulAlgoGetHeuristic(
            cuda->lt->handle, p->product, p->w, p->x, p->y, p->y, preference, 1, &first, &found);
        p->usable =
            told == CUBLAS_STATUS_SUCCESS && found > 0 && first.state == CUBLAS_STATUS_SUCCESS;
        if (p->usable) p->algorithm = first.algo;
        if (!p->usable) say_unusable(p, "there is no kernel for it");
    }
    call->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static iso_status make_plan(iso__cuda *cuda, const plan_key *key, const void *bias, plan **out) {
    void *memory;
    iso_status status;
    ISO_TRY(iso__alloc_zero(sizeof(plan), &memory));
    plan *p = memory;
    p->key = *key;
    p->base.key = &p->key;
    ISO_TRY_GOTO(iso__cuda_enter(cuda));
    ISO_TRY_GOTO(describe_plan(cuda, p));
    ISO_TRY_GOTO(set_bias(cuda, p, bias)); // the heuristic looks at its alignment
    ISO_TRY_GOTO(choose_algorithm(cuda, p));
    iso__cuda_cache_add(&cuda->lt->plans, &p->base);
    cuda->base.primitives_created++;
    *out = p;
    return ISO_OK;
fail:
    plan_destroy(cuda->lt, p);
    return status;
}

// ---- Running --------------------------------------------------------------------------------------

// Without padding, so that calls can be compared.
typedef struct call_args {
    plan *plan;
    const void *x, *w, *b;
    void *y;
} call_args;

static iso_status run_plan(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    plan *p = a->plan;
    const float one = 1, zero = 0;
    ISO_TRY(set_bias(cuda, p, a->b));
    cublasStatus_t status = cuda->lt->call.cublasLtMatmul(
        cuda->lt->handle, p->product, &one, a->w, p->w, a->x, p->x, &zero, a->y, p->y, a->y, p->y,
        &p->algorithm, cuda->blas->workspace, cuda->blas->workspace_bytes,
        cuda->stream[ISO__QUEUE_COMPUTE]);
    ISO_CHECK(status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE,
              ISO_ERR_UNSUPPORTED, "cuBLASLt refuses a product");
    ISO_TRY_CUBLAS_AS(cuda->blas, "cublasLtMatmul", status);
    return ISO_OK;
}

static cublasLtEpilogue_t epilogue_of(const iso_tensor *b, iso_activation act) {
    if (act == ISO_ACT_RELU) return b ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    return b ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static int64_t alignment_of(const call_args *a) {
    uintptr_t bits = (uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->b | (uintptr_t)a->y | 256;
    return (int64_t)(bits & (~bits + 1));
}

// In 16 bits, where kernels want rows in units of 16 bytes, cuBLASLt (13.0, H100) takes others too,
// but stores the product before it adds the bias: a result that is rounded twice.
static bool rounds_once(const iso_tensor *w, const iso_tensor *b) {
    return !b || !iso__is_half(w->dtype) || (w->shape[1] % 8 == 0 && w->shape[0] % 2 == 0);
}

iso_status iso__cuda_lt_linear(iso__cuda *cuda, const iso_tensor *x, const iso_tensor *w,
                               const iso_tensor *b, iso_activation act, iso_tensor *y, bool *done) {
    *done = false;
    // It has no epilogues in f64, and a product alone is cuBLAS's. How a bias must be aligned is
    // not documented, and releases have read it in vectors of 16 bytes whatever the heuristic was
    // told.
    if (x->dtype == ISO_F64 || (!b && act == ISO_ACT_NONE)) return ISO_OK;
    if (b && (uintptr_t)b->data % 16 != 0) return ISO_OK;
    if (!rounds_once(w, b)) return ISO_OK;
    call_args args = {.x = x->data, .w = w->data, .b = b ? b->data : NULL, .y = y->data};
    plan_key key = {.rows = x->shape[0],
                    .in = w->shape[1],
                    .out = w->shape[0],
                    .type = (int64_t)iso__cuda_data_type(x->dtype),
                    .compute = (int64_t)iso__cuda_compute_type(cuda, x->dtype),
                    .epilogue = (int64_t)epilogue_of(b, act),
                    .alignment = alignment_of(&args)};
    ISO_TRY(need_lt(cuda));
    iso__cuda_entry *entry = iso__cuda_cache_find(&cuda->lt->plans, &key);
    if (entry)
        args.plan = iso_container_of(entry, plan, base);
    else
        ISO_TRY(make_plan(cuda, &key, args.b, &args.plan));
    if (!args.plan->usable) return ISO_OK;
    iso_status status = iso__cuda_run(cuda, run_plan, &args, sizeof(args));
    *done = args.plan->usable = status != ISO_ERR_UNSUPPORTED;
    if (!*done) say_unusable(args.plan, iso_last_error()->message);
    if (*done) ISO_TRY(status);
    return ISO_OK;
}
