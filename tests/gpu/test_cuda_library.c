// SPDX-License-Identifier: MIT
// Libraries that are loaded when they are needed. No GPU takes part.
#include "device/cuda/runtime/cuda_library.h"

#include "common/balance.h"
#include "device/cuda/libs/cuda_blas.h"

#include <config.h>
#include <criterion/criterion.h>
#include <string.h>

TestSuite(cuda_library, .timeout = 60, .fini = balance_check);

typedef struct functions {
    double (*cos)(double);
    double (*fabs)(double);
} functions;

Test(cuda_library, functions_are_found_in_the_order_of_the_table) {
    static const iso__cuda_symbol symbols[] = {{"cos", NULL}, {"fabs", NULL}};
    functions f;
    cr_assert(iso__cuda_load("the C library", "libm.so.6", symbols, 2, &f) == ISO_OK, "%s",
              iso_last_error()->message);
    cr_assert(f.cos(0) == 1 && f.fabs(-2) == 2);
}

static const char *failure(const char *soname, const char *name) {
    const iso__cuda_symbol symbols[] = {{"cos", NULL}, {name, NULL}};
    functions f = {0};
    cr_assert(iso__cuda_load("the library", soname, symbols, 2, &f) == ISO_ERR_UNSUPPORTED);
    cr_assert(!f.cos, "a table is written only on success");
    return iso_last_error()->message;
}

Test(cuda_library, what_is_missing_is_named) {
    const char *message = failure("libisotherm-none.so.7", "fabs");
    cr_assert(strstr(message, "libisotherm-none.so.7") && strstr(message, "LD_LIBRARY_PATH"), "%s",
              message);
    cr_assert(strstr(message, "No such file"), "the loader's words are missing: %s", message);
    message = failure("libm.so.6", "fabulous");
    cr_assert(strstr(message, "libm.so.6") && strstr(message, "fabulous"), "%s", message);
}

// The one that this build was configured with, or the emulator's.
Test(cuda_library, cublas_has_every_function_that_is_called) {
    static const iso__cuda_symbol symbols[] = {ISO_CUBLAS_FUNCTIONS(ISO_CUDA_SYMBOL)};
    enum { COUNT = sizeof(symbols) / sizeof(symbols[0]) };
    iso__cublas_functions f;
    iso_status status = iso__cuda_load("cuBLAS", ISO_CUBLAS_SONAME, symbols, COUNT, &f);
    if (status == ISO_ERR_UNSUPPORTED) cr_skip_test("%s", iso_last_error()->message);
    cr_assert(status == ISO_OK);
    cr_assert(strlen(f.cublasGetStatusString(CUBLAS_STATUS_NOT_INITIALIZED)) > 0);
}
