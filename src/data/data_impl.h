// SPDX-License-Identifier: MIT
// Private to src/data: reading files that may be compressed, and what data sets and samplers are.
#ifndef ISO_DATA_IMPL_H
#define ISO_DATA_IMPL_H

#include "base/base.h"

#include <isotherm/data.h>

// ---- Byte source: a file, decompressed on the way if it is a gzip file --------------------------

typedef struct iso__source iso__source;

// `path` is borrowed until close. ISO_ERR_IO: missing, unreadable, or a folder;
// ISO_ERR_UNSUPPORTED: a gzip file in a build without zlib.
iso_status iso__source_open(const char *path, iso__source **out);
void iso__source_close(iso__source **source);
// Reads up to `bytes`; fewer only at the end. ISO_ERR_FORMAT: the gzip stream is truncated or
// damaged.
iso_status iso__source_read(iso__source *source, void *to, size_t bytes, size_t *got);
// Bytes of the whole contents, or -1 when only reading tells (gzip, pipes).
int64_t iso__source_size(const iso__source *source);

// Of a type that iso_idx_read knows, for messages: "unsigned bytes (0x08)".
const char *iso__idx_type_text(int type);

// ---- Data set, sampler --------------------------------------------------------------------------

struct iso_dataset {
    int references;
    uint8_t *images;
    int32_t *labels;
    int64_t image_bytes;
    uint64_t checksum;
    iso_dataset_info info;
    double statistics[]; // mean of each channel, then std of each
};

// Takes both arrays (of iso__alloc) also on failure; shape and labels were checked. Mean and std of
// info and the checksum are computed here.
iso_status iso__dataset_create_take(uint8_t *images, int32_t *labels, const iso_dataset_info *info,
                                    iso_dataset **out);

struct iso_sampler {
    iso_sampler_config config;
    int64_t batches;   // of this rank
    int64_t stride;    // from a batch to the next one in the permutation
    int64_t begin;     // of this rank's share of batch 0
    int64_t last;      // number of the last global batch, which may be smaller
    int64_t last_size; // this rank's share of it, and its begin, less `last` strides
    int64_t last_begin;
    int64_t *indices; // the permutation, then what pads its last batch
};

// ---- Transform: bytes of an image -> elements of a batch -----------------------------------------

typedef struct iso__transform {
    int64_t channels, height, width;
    iso_dtype dtype;
    void *table;         // [channels][256] of dtype: the element for each byte; owned
    int64_t shift;       // pixels, at most
    uint32_t flip;       // probability in units of 2^-24
    uint64_t seed;       // of what is drawn
    iso__philox_key key; // of the epoch
} iso__transform;

// config is checked here, but for its prefetch.
iso_status iso__transform_init(iso__transform *self, const iso_dataset_info *info,
                               const iso_loader_config *config, uint64_t seed);
void iso__transform_free(iso__transform *self);
void iso__transform_set_epoch(iso__transform *self, int64_t epoch);
// Image number `index` of the data set.
void iso__transform_image(const iso__transform *self, int64_t index, const uint8_t *image,
                          void *out);

#endif
