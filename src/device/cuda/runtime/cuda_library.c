// SPDX-License-Identifier: MIT
// Loads a shared library when it is first needed, and finds its functions.
#include "device/cuda/runtime/cuda_library.h"

#include <config.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// Functions of a library that is loaded call one another by what is found first in it: no name of
// the program gets in between, and none of its names gets into the program.
#define HOW (RTLD_NOW | RTLD_LOCAL)

static iso_status open_library(const char *title, const char *soname, void **out) {
    char path[1024], first[512] = "";
    void *library = dlopen(soname, HOW);
    if (!library) {
        const char *reason = dlerror();
        snprintf(first, sizeof(first), "%s", reason ? reason : "unknown reason");
        snprintf(path, sizeof(path), "%s/%s", ISO_CUDA_LIBDIR, soname);
        if (ISO_CUDA_LIBDIR[0]) library = dlopen(path, HOW);
    }
    ISO_CHECK(library, ISO_ERR_UNSUPPORTED,
              "%s cannot be loaded (%s): install %s, or put its folder into LD_LIBRARY_PATH", title,
              first, soname);
    *out = library;
    return ISO_OK;
}

static iso_status find_function(const char *title, const char *soname, void *library,
                                const char *name, void **out) {
    *out = dlsym(library, name);
    ISO_CHECK(*out, ISO_ERR_UNSUPPORTED,
              "the %s that was loaded (%s) has no %s: install the release that this build was "
              "configured with",
              title, soname, name);
    return ISO_OK;
}

iso_status iso__cuda_load(const char *title, const char *soname, const iso__cuda_symbol *symbols,
                          int count, void *table) {
    enum { MOST = 64 };
    void *function[MOST], *library = NULL;
    ISO_CHECK(count <= MOST, ISO_ERR_ARG, "%d functions of %s: at most %d can be looked up", count,
              title, MOST);
    if (!symbols[0].linked) ISO_TRY(open_library(title, soname, &library));
    for (int i = 0; i < count; i++)
        if (symbols[i].linked)
            function[i] = symbols[i].linked;
        else
            ISO_TRY(find_function(title, soname, library, symbols[i].name, &function[i]));
    memcpy(table, function, (size_t)count * sizeof(function[0]));
    return ISO_OK;
}
