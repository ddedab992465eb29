// SPDX-License-Identifier: MIT
// Fuzz targets that read files: data sets and saved parameters.
#include "data/csv_rows.h"
#include "data/data_impl.h"
#include "fuzz.h"
#include "optim/resume/resume_impl.h"

#include <stdlib.h>
#include <string.h>

void fuzz_idx(const uint8_t *data, size_t size) {
    iso_idx idx;
    if (iso_idx_read(fuzz_file(data, size), &idx) >= 0) iso_idx_free(&idx);
}

void fuzz_gzip(const uint8_t *data, size_t size) {
    iso__source *source;
    char block[512];
    size_t got = 1, total = 0;
    if (iso__source_open(fuzz_file(data, size), &source) < 0) return;
    while (got > 0 && total < (size_t)1 << 20 &&
           iso__source_read(source, block, sizeof(block), &got) >= 0)
        total += got;
    iso__source_close(&source);
}

// The first byte chooses how the columns are used.
void fuzz_csv(const uint8_t *data, size_t size) {
    static const iso_csv_config configs[] = {
        {.delimiter = ','},
        {.delimiter = ';', .header = true, .targets = "a"},
        {.delimiter = '\t', .targets = "2", .dtype = ISO_F64},
        {.delimiter = ',', .header = true, .ignore = "b", .targets = "c", .classes = 3},
    };
    iso_dataset *dataset;
    if (size == 0) return;
    const iso_csv_config *config = &configs[data[0] % (sizeof(configs) / sizeof(configs[0]))];
    if (iso_dataset_read_csv(fuzz_file(data + 1, size - 1), config, &dataset) >= 0)
        iso_dataset_destroy(&dataset);
}

static void read_arrays(const char *path, bool sealed) {
    iso__safetensors file;
    if (iso__safetensors_open(path, sealed, &file) < 0) return;
    (void)iso__safetensors_find(&file, "weight");
    (void)iso__safetensors_load(&file);
    iso__safetensors_close(&file);
}

void fuzz_safetensors(const uint8_t *data, size_t size) {
    read_arrays(fuzz_file(data, size), false);
}

// Gives the header the seal that it needs: otherwise no change would get further than to the seal.
static uint8_t *seal_input(const uint8_t *data, size_t size) {
    static const char start[] = ISO__SEAL_START;
    const size_t at = ISO__SAFETENSORS_PREFIX, digits = at + sizeof(start) - 1;
    uint64_t length;
    char seal[ISO__SEAL_DIGITS + 1];
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    if (size < digits + ISO__SEAL_DIGITS + 1) return copy;
    memcpy(&length, copy, sizeof(length));
    if (length > size - at || length < digits + ISO__SEAL_DIGITS - at) return copy;
    memcpy(copy + at, start, sizeof(start) - 1);
    memset(copy + digits, '0', ISO__SEAL_DIGITS);
    iso__seal_text(iso__seal_of((const char *)copy + at, (size_t)length), seal);
    memcpy(copy + digits, seal, ISO__SEAL_DIGITS);
    return copy;
}

void fuzz_state(const uint8_t *data, size_t size) {
    iso__safetensors file;
    iso__set_head head;
    uint8_t *sealed = seal_input(data, size);
    const char *path = fuzz_file(sealed, size);
    read_arrays(path, true);
    if (iso__set_open(path, &file, &head) >= 0) {
        (void)iso__set_load(&file);
        iso__safetensors_close(&file);
    }
    free(sealed);
}
