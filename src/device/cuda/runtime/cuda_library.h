// SPDX-License-Identifier: MIT
// Private: loads a shared library when it is first needed, so that a run that does not need it pays
// nothing for it. Its functions are listed once; FUNCTIONS(X) is X(name) for each of them:
//
//     typedef struct functions { FUNCTIONS(ISO_CUDA_FIELD) } functions;
//     static const iso__cuda_symbol symbols[] = {FUNCTIONS(ISO_CUDA_SYMBOL)};
//     ISO_TRY(iso__cuda_load("cuBLAS", ISO_CUBLAS_SONAME, symbols, COUNT, &functions));
//
// Names are those that the linker sees (cublasCreate_v2).
#ifndef ISO_CUDA_LIBRARY_H
#define ISO_CUDA_LIBRARY_H

#include "base/base.h"

typedef struct iso__cuda_symbol {
    const char *name;
    void *linked; // its address if the library is linked in, as the emulator is; else NULL
} iso__cuda_symbol;

#ifdef ISO_CUDA_EMULATED
#define ISO_CUDA_LINKED(name) ((void *)(name))
#else
#define ISO_CUDA_LINKED(name) NULL
#endif
#define ISO_CUDA_FIELD(name)  __typeof__(name) *name;
#define ISO_CUDA_SYMBOL(name) {#name, ISO_CUDA_LINKED(name)},

// Local. Fills `table`, a struct of `count` pointers to functions in the order of symbols;
// unchanged on failure. Looks where the loader looks, then where configure found the toolkit. The
// library stays loaded. ISO_ERR_UNSUPPORTED: the library is missing, or lacks a function. title:
// its name in messages.
iso_status iso__cuda_load(const char *title, const char *soname, const iso__cuda_symbol *symbols,
                          int count, void *table);

#endif
