// SPDX-License-Identifier: MIT
// Private to src/data: readers of files that may be compressed, and the structures of data sets and
// samplers.
#ifndef ISO_DATA_IMPL_H
#define ISO_DATA_IMPL_H

#include "base/base.h"

#include <isotherm/data.h>

// ---- Byte source: a file, decompressed on the way if it is a gzip file --------------------------

typedef struct iso__source iso__source;

// `path` is borrowed until close. ISO_ERR_IO: missing, unreadable, or a folder;
// ISO_ERR_UNSUPPORTED: a gzip file in a build without zlib.
iso_status iso__source_open(const char *path, iso__source **out);
// The same without decompression: a binary file may begin with any bytes.
iso_status iso__source_open_plain(const char *path, iso__source **out);
void iso__source_close(iso__source **source);
// Reads up to `bytes`; fewer only at the end. ISO_ERR_FORMAT: the gzip stream is truncated or
// damaged.
iso_status iso__source_read(iso__source *source, void *to, size_t bytes, size_t *got);
// Skips bytes of a plain file.
iso_status iso__source_skip(iso__source *source, int64_t bytes);
// Bytes of the whole contents, or -1 if only reading can determine them (gzip, pipes).
int64_t iso__source_size(const iso__source *source);

// The text for a type that iso_idx_read supports, for messages: "unsigned bytes (0x08)".
const char *iso__idx_type_text(int type);

// ---- Data set, sampler --------------------------------------------------------------------------

// One tensor of all samples.
typedef struct iso__column {
    size_t bytes; // of one sample
    void *array;  // of all samples, one behind the other; NULL: a callback writes them. A view has
                  // the array of its parent
} iso__column;

// How the shards of all ranks are related.
typedef struct iso__shards {
    int rank, ranks;     // 0 ranks: all ranks have the same samples
    int64_t least, most; // samples of the smallest and of the largest shard
} iso__shards;

// A sample of a batch: its number in the data set, and its place in the batch.
typedef struct iso__pick {
    int64_t number, place;
    double crop;     // that of the loader; 0: none
    uint64_t random; // for the crop
} iso__pick;

// Reads samples that are in a file, many at a time. `user` is that of the data set.
typedef struct iso__reader_ops {
    // Writes tensor t of each pick to its place in arrays[t], [places, shape...]. The picks are in
    // the order of their numbers. Checks labels. Threads may call it at the same time.
    iso_status (*read)(void *user, const iso__pick *picks, int64_t n, void *const *arrays);
    void (*close)(void *user); // with the last reference
    bool crops;                // knows what to do with `crop` of a pick
} iso__reader_ops;

struct iso_dataset {
    int references;
    iso_dataset_info info;
    iso__shards shards;
    iso__column *columns;          // [inputs + targets]
    iso_sample_reader read;        // NULL: all columns have arrays
    const iso__reader_ops *reader; // NULL: samples are read one by one; else read is set, too
    void *user;
    int readers; // threads of loaders that are within an epoch
    bool owned;  // the data set owns the arrays
    // Of a view, else NULL: the data set that it keeps, and sample i is number indices[i] there.
    iso_dataset *parent;
    int64_t *indices;
    uint64_t checksum;
};

// Creates a data set that owns the arrays, which are memory of iso__alloc. Frees them on failure.
iso_status iso__dataset_create_take(const iso_dataset_config *config, void *const *arrays,
                                    iso_dataset **out);
// Creates a view of samples of another data set, without copying, and retains that data set. Takes
// indices, the numbers of the samples there, in memory of iso__alloc, also on failure. A view of a
// view refers to the original data set.
iso_status iso__dataset_create_view(iso_dataset *of, int64_t *indices, int64_t count,
                                    iso_dataset **out);
// The same for images [count][channels][height][width] with a label each.
iso_status iso__image_set_create_take(uint8_t *images, int32_t *labels,
                                      const iso_dataset_info *info, iso_dataset **out);
// Reads the images of an HDF5 file into memory: x_train and y_train, or x_test and y_test.
iso_status iso__hdf5_read_images(const char *path, bool train, iso_dataset **out);
// Whether a folder has MNIST's training images.
bool iso__is_mnist(const char *folder);
// Opens a folder of pictures as iso_dataset_open does.
iso_status iso__images_open(const char *folder, bool train, iso_dataset **out);
// A checksum of the shapes and types of inputs and targets.
uint64_t iso__dataset_kind(const iso_dataset *dataset);
// Makes the data set a shard.
void iso__dataset_set_shards(iso_dataset *dataset, iso__shards shards, int classes);
// Whether the first input is an image of bytes.
bool iso__dataset_has_images(const iso_dataset *dataset);
// Sets at[t] to tensor t of sample i. It is in the data set's array, or in room[t] if a callback
// writes samples. Checks the labels that a callback writes.
iso_status iso__dataset_read(const iso_dataset *dataset, int64_t i, void *const *room,
                             const void **at);
struct iso__transform;
// Reads n samples of a data set that has a reader, into arrays[t] in the order of `indices`. picks
// has room for n. The transform draws the crops.
iso_status iso__dataset_read_batch(const iso_dataset *dataset,
                                   const struct iso__transform *transform, const int64_t *indices,
                                   int64_t n, iso__pick *picks, void *const *arrays);
// The number that sample i has where a view took it from.
static inline int64_t iso__dataset_number(const iso_dataset *dataset, int64_t i) {
    return dataset->indices ? dataset->indices[i] : i;
}
// Tensor t of sample i of a data set in memory.
static inline const void *iso__dataset_place(const iso_dataset *dataset, int t, int64_t i) {
    const iso__column *column = &dataset->columns[t];
    return (const char *)column->array + (size_t)iso__dataset_number(dataset, i) * column->bytes;
}
// Brings sample i into the cache if it is in arrays.
void iso__dataset_fetch_ahead(const iso_dataset *dataset, int64_t i);
// Mean and standard deviation of each channel of the first input, an array of u8, f32 or f64.
void iso__dataset_measure(const iso_dataset *dataset, double *mean, double *std);

struct iso_sampler {
    iso_sampler_config config;
    int64_t batches;    // of this rank
    int64_t stride;     // from a batch to the next one in the permutation
    int64_t begin;      // of this rank's share of batch 0
    int64_t last;       // number of the last global batch, which may be smaller
    int64_t last_size;  // this rank's share of it
    int64_t last_begin; // where that share begins, less `last` strides
    int64_t *indices;   // the permutation, then its start again, which pads the last batches
    int64_t padded;     // number of the repeated indices
    struct iso__sampler_costs *costs; // NULL without config.cost
};

// ---- sampler_cost.c ----
// Asks for the cost of every sample.
iso_status iso__sampler_make_costs(iso_sampler *self);
void iso__sampler_drop_costs(iso_sampler *self);
// Puts the permutation in an order in which ranks get samples of similar cost.
void iso__sampler_balance(iso_sampler *self, iso__philox_key key);

// ---- Transform: the first input of a sample -> elements of a batch --------------------------------

typedef struct iso__transform {
    bool on; // false: elements are copied
    int64_t channels, height, width;
    iso_dtype dtype;     // of the batch
    void *table;         // of images, [channels][256] of dtype: the element for each byte; owned
    double *mean, *std;  // [channels], of other inputs; owned as one array
    int64_t shift;       // pixels, at most
    uint32_t flip;       // probability in units of 2^-24
    double crop;         // as in the config; what reads the samples cuts them
    uint64_t seed;       // of what is drawn
    uint32_t shard;      // the rank if each rank has its own shard, whose sample i is a different
                         // one; else 0
    iso__philox_key key; // of the epoch
} iso__transform;

// Checks config, except its prefetch and its function.
iso_status iso__transform_init(iso__transform *self, const iso_dataset *dataset,
                               const iso_loader_config *config, uint64_t seed);
void iso__transform_free(iso__transform *self);
void iso__transform_set_epoch(iso__transform *self, int64_t epoch);
// Sample number `index` of the data set.
void iso__transform_sample(const iso__transform *self, int64_t index, const void *sample,
                           void *out);
// Returns iso_sample.random of a sample, which is independent of the draws above.
uint64_t iso__transform_random(const iso__transform *self, int64_t index);
// Returns the seed of a sample's crop, independent of the above.
uint64_t iso__transform_random_crop(const iso__transform *self, int64_t index);
// Returns iso_collate_batch.random of a batch with this first sample, independent of all of them.
uint64_t iso__transform_random_batch(const iso__transform *self, int64_t index);

#endif
