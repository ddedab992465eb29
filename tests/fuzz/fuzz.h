// SPDX-License-Identifier: MIT
// Fuzz targets: what reads input that the program did not write.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name; // of the folder of its corpus, too
    void (*run)(const uint8_t *data, size_t size);
} fuzz_target;

// Writes data to a file in memory, which the next call replaces, and returns its path.
const char *fuzz_file(const uint8_t *data, size_t size);
// A copy of data as a text; the caller frees it.
char *fuzz_text(const uint8_t *data, size_t size);

// fuzz_files.c
void fuzz_idx(const uint8_t *data, size_t size);
void fuzz_gzip(const uint8_t *data, size_t size);
void fuzz_csv(const uint8_t *data, size_t size);
void fuzz_safetensors(const uint8_t *data, size_t size);
void fuzz_state(const uint8_t *data, size_t size);
// fuzz_texts.c
void fuzz_options(const uint8_t *data, size_t size);
void fuzz_settings(const uint8_t *data, size_t size);
void fuzz_list(const uint8_t *data, size_t size);
void fuzz_report(const uint8_t *data, size_t size);
void fuzz_record(const uint8_t *data, size_t size);

// libFuzzer's entry, which the program of fuzz_replay.c calls, too.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// The target that ISO_TEST_FUZZ names; ends the program if it names none.
const fuzz_target *fuzz_chosen(void);

#endif
