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

// ---- Data set, sampler --------------------------------------------------------------------------

struct iso_dataset {
    int references;
    uint8_t *images;
    int32_t *labels;
    int64_t image_bytes;
    iso_dataset_info info;
};

// Takes both arrays (of iso__alloc) also on failure; shape and labels were checked. info: mean and
// std are computed here.
iso_status iso__dataset_create_take(uint8_t *images, int32_t *labels, const iso_dataset_info *info,
                                    iso_dataset **out);

struct iso_sampler {
    iso_sampler_config config;
    int64_t batches;   // of this rank
    int64_t last;      // number of the last global batch, which may be smaller
    int64_t last_size; // this rank's part of it, and where that begins in the global batch
    int64_t last_begin;
    int64_t *indices; // the permutation, then what pads its last batch
};

#endif
