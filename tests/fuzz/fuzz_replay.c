// SPDX-License-Identifier: MIT
// Runs a fuzz target on every file of its corpus and on changed copies of them, where there is no
// libFuzzer: each run makes the same changes. usage: ISO_TEST_FUZZ=TARGET fuzz_replay FOLDER
// CHANGES
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_MOST = 1 << 16 };

static uint64_t state = 88172645463325252u;
static uint64_t draw(uint64_t below) { // xorshift64 (Marsaglia 2003)
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static size_t change_input(uint8_t *data, size_t size) {
    static const uint8_t special[] = {0, 1, 0x7f, 0x80, 0xff, '\n', ',', '=', '"', '{', '-', '9'};
    for (uint64_t n = 1 + draw(4); n > 0 && size > 0; n--) {
        size_t at = draw(size);
        switch (draw(6)) {
        case 0: data[at] ^= (uint8_t)(1u << draw(8)); break;
        case 1: data[at] = (uint8_t)draw(256); break;
        case 2: data[at] = special[draw(sizeof(special))]; break;
        case 3: size = at; break;
        case 4: // repeat a part
            if (size > INPUT_MOST / 2) break;
            memmove(data + at + (size - at), data + at, size - at);
            size += size - at;
            break;
        default: // cut out a part
            memmove(data + at, data + size - (size - at) / 2, (size - at) / 2);
            size = at + (size - at) / 2;
        }
    }
    return size;
}

static long run_file(const char *path, long changes) {
    static uint8_t seed[INPUT_MOST], data[INPUT_MOST];
    FILE *from = fopen(path, "rb");
    if (!from) return 0;
    size_t size = fread(seed, 1, INPUT_MOST, from);
    fclose(from);
    LLVMFuzzerTestOneInput(seed, size);
    for (long i = 0; i < changes; i++) {
        memcpy(data, seed, size);
        size_t changed = change_input(data, size);
        // In memory of its own length, so that a sanitizer sees a read beyond it.
        uint8_t *exact = malloc(changed ? changed : 1);
        if (!exact) return 0;
        memcpy(exact, data, changed);
        LLVMFuzzerTestOneInput(exact, changed);
        free(exact);
    }
    return 1 + changes;
}

int main(int argc, char **argv) {
    long inputs = 0;
    if (argc != 3) return EXIT_FAILURE;
    (void)fuzz_chosen();
    struct dirent **file;
    int count = scandir(argv[1], &file, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", argv[1], file[i]->d_name);
        if (file[i]->d_name[0] != '.') inputs += run_file(path, atol(argv[2]));
        free(file[i]);
    }
    if (count >= 0) free(file);
    printf("%ld inputs\n", inputs);
    return inputs > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
