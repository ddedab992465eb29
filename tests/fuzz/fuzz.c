// SPDX-License-Identifier: MIT
// Chooses the fuzz target by the environment variable ISO_TEST_FUZZ, so that one program has all
// targets.
#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const fuzz_target targets[] = {
    {"idx", fuzz_idx},           {"gzip", fuzz_gzip},
    {"csv", fuzz_csv},           {"safetensors", fuzz_safetensors},
    {"state", fuzz_state},       {"options", fuzz_options},
    {"settings", fuzz_settings}, {"list", fuzz_list},
    {"report", fuzz_report},     {"record", fuzz_record},
};
enum { TARGETS = sizeof(targets) / sizeof(targets[0]) };

const fuzz_target *fuzz_chosen(void) {
    const char *name = getenv("ISO_TEST_FUZZ");
    for (int i = 0; name && i < TARGETS; i++)
        if (strcmp(targets[i].name, name) == 0) return &targets[i];
    fputs("set ISO_TEST_FUZZ to one of:", stderr);
    for (int i = 0; i < TARGETS; i++) fprintf(stderr, " %s", targets[i].name);
    fputs("\n", stderr);
    exit(EXIT_FAILURE);
}

const char *fuzz_file(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("fuzz", 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    }
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size) abort();
    return path;
}

char *fuzz_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = 0;
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fuzz_target *chosen;
    if (!chosen) chosen = fuzz_chosen();
    chosen->run(data, size);
    return 0;
}
