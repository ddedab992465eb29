// SPDX-License-Identifier: MIT
// The pixels of a picture.
#include "data/picture.h"

#include "data/data_impl.h"

// More than any camera takes, and few enough that a file of some bytes cannot take all memory.
static const int64_t most_side = 65535, most_pixels = INT64_C(1) << 27;

iso_status iso__picture_check(const iso__picture_file *file, int64_t width, int64_t height) {
    ISO_CHECK(
        width >= 1 && height >= 1 && width <= most_side && height <= most_side &&
            width * height <= most_pixels,
        ISO_ERR_FORMAT,
        "%s has %lld x %lld pixels: a picture may have up to %lld in each direction, and %lld "
        "in all",
        file->path, (long long)width, (long long)height, (long long)most_side,
        (long long)most_pixels);
    return ISO_OK;
}

iso_status iso__picture_alloc(const iso__picture_file *file, int64_t width, int64_t height,
                              iso__picture *out) {
    void *memory;
    ISO_TRY(iso__picture_check(file, width, height));
    ISO_TRY(iso__alloc((size_t)(3 * width * height), &memory));
    *out = (iso__picture){width, height, memory};
    return ISO_OK;
}

void iso__picture_free(iso__picture *picture) {
    iso__free(picture->pixels);
    picture->pixels = NULL;
}
