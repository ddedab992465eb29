// SPDX-License-Identifier: MIT
// Data: IDX files, MNIST folders, generated digits, the sampler and the loader. All calls are
// local: every rank draws the same global permutation, so the ranks need not communicate.
#ifndef ISOTHERM_DATA_H
#define ISOTHERM_DATA_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- IDX files ------------------------------------------------------------------------------------

// Element types of the IDX format (http://yann.lecun.com/exdb/mnist). A file has the magic bytes 0
// 0 TYPE NDIM, then NDIM big-endian sizes of 4 bytes, then the elements, big-endian.
typedef enum iso_idx_type {
    ISO_IDX_U8 = 0x08,
    ISO_IDX_I8 = 0x09,
    ISO_IDX_I16 = 0x0B,
    ISO_IDX_I32 = 0x0C,
    ISO_IDX_F32 = 0x0D,
    ISO_IDX_F64 = 0x0E
} iso_idx_type;

#define ISO_IDX_MAX_DIMS 8
typedef struct iso_idx {
    iso_idx_type type;
    int ndim;
    int64_t shape[ISO_IDX_MAX_DIMS];
    int64_t count; // elements
    void *data;    // in host byte order; owned, freed by iso_idx_free
} iso_idx;

// Reads a plain or gzip-compressed IDX file. ISO_ERR_IO if it is missing or unreadable;
// ISO_ERR_FORMAT for a wrong magic, a truncated file, trailing bytes, or sizes that overflow. The
// message names the file, the problem and its position.
iso_status iso_idx_read(const char *path, iso_idx *out);
void iso_idx_free(iso_idx *idx);

// ---- Data sets ------------------------------------------------------------------------------------

// Labelled images of unsigned bytes. Reference-counted: each call that creates one returns one
// reference, retain adds one, destroy drops one.
typedef struct iso_dataset iso_dataset;

// Copies images[count][channels][height][width] and labels[count], which must be in [0, classes).
iso_status iso_dataset_create(const uint8_t *images, const int32_t *labels, int64_t count,
                              int64_t channels, int64_t height, int64_t width, int classes,
                              iso_dataset **out);
// Reads two IDX files. Images are u8 with 2 dimensions (N, features; read as 1 x 1 x features), 3
// (N, H, W) or 4 (N, C, H, W). Labels have 1 dimension and any integer type. ISO_ERR_FORMAT if the
// counts differ or a label is negative.
iso_status iso_dataset_read_idx(const char *images_path, const char *labels_path,
                                iso_dataset **out);
// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] from a folder. If a file exists in both
// forms, the uncompressed one is read. A '.' may stand in place of the '-' before idx. Colour
// images have 4 dimensions; their file may be called images-idx4-ubyte. If files are missing, the
// message names the folder and the files.
iso_status iso_dataset_read_mnist(const char *folder, bool train, iso_dataset **out);
// Generates MNIST-like digits (1 x 28 x 28, 10 classes): glyphs with random position, slant, scale,
// stroke width, clutter and noise. The images depend only on train and count, on every machine. The
// training and the test set use disjoint random streams.
iso_status iso_dataset_create_digits(bool train, int64_t count, iso_dataset **out);
// What the programs read: an MNIST folder, or for NULL and "digits" as many generated digits as
// MNIST has (60000 for training, 10000 for testing).
iso_status iso_dataset_open(const char *folder, bool train, iso_dataset **out);
iso_dataset *iso_dataset_retain(iso_dataset *dataset);
void iso_dataset_destroy(iso_dataset **dataset);

typedef struct iso_dataset_info {
    int64_t count, channels, height, width;
    int classes;              // as created; of a file: largest label + 1
    const double *mean, *std; // [channels], of pixels scaled to [0, 1]; borrowed from the data set
} iso_dataset_info;
void iso_dataset_get_info(const iso_dataset *dataset, iso_dataset_info *out);
// A 64-bit checksum of shape, classes, images and labels, computed at creation. Data sets with the
// same contents have the same checksum, wherever they were read from, on all machines of the same
// byte order. Compare it across ranks with iso_comm_check_same: if ranks read different data,
// training fails silently.
uint64_t iso_dataset_checksum(const iso_dataset *dataset);
// Returns image i as bytes [channels][height][width], borrowed, and its label. label may be NULL.
const uint8_t *iso_dataset_image(const iso_dataset *dataset, int64_t i, int32_t *label);

// ---- Sampler --------------------------------------------------------------------------------------

// How the samples at the end of an epoch are divided.
typedef enum iso_sampler_end {
    ISO_SAMPLER_PAD,  // round the last global batch up with samples from the start of the
                      // permutation
    ISO_SAMPLER_DROP, // drop an incomplete last global batch
    // Split the last global batch as evenly as possible. For evaluation: every sample counts once,
    // and ranks may have different numbers of batches.
    ISO_SAMPLER_SHARE,
    ISO_SAMPLER_OVERLAP // each rank has its own shard; all shards have one size and may overlap
} iso_sampler_end;

typedef struct iso_sampler_config {
    int64_t count; // samples; for a loader 0 means all samples of its data set
    int64_t batch; // per rank
    int rank, ranks;
    uint64_t seed;
    bool shuffle; // false: the order is 0, 1, 2, ...
    iso_sampler_end end;
} iso_sampler_config;
typedef struct iso_sampler iso_sampler;

// Draws one permutation of all samples from (seed, epoch). Global batch k is its k-th slice of
// ranks * batch samples; rank r takes the r-th `batch` samples of the slice.
//
// The last global batch holds the remaining samples. PAD rounds their number up to a multiple of
// ranks, so every rank gets the same number. DROP drops them if they are fewer than ranks * batch.
// With SHARE the ranks' numbers differ by at most 1, and a rank may have one batch less, or none at
// all.
//
// OVERLAP cuts the permutation into shards instead of slices, as pytorch-pfn-extras divides data
// sets. The shard of rank r has ceil(count / ranks) samples and starts at floor(count * r / ranks),
// so neighbours share at most one sample. The batches of a rank are slices of its shard.
//
// ISO_ERR_ARG if there are more ranks than samples (except with SHARE), or with DROP fewer samples
// than one global batch.
iso_status iso_sampler_create(const iso_sampler_config *config, iso_sampler **out);
void iso_sampler_destroy(iso_sampler **sampler);
// Draws the permutation of another epoch (at first: 0). ISO_ERR_ARG for a negative one.
iso_status iso_sampler_set_epoch(iso_sampler *sampler, int64_t epoch);
// The number of batches per epoch. It is the same on all ranks, except with SHARE.
int64_t iso_sampler_batches(const iso_sampler *sampler);
// Returns the size of this rank's share of global batch k and sets *indices to its samples, which
// are borrowed until the next set_epoch.
int64_t iso_sampler_batch(const iso_sampler *sampler, int64_t k, const int64_t **indices);

// ---- Loader ---------------------------------------------------------------------------------------

typedef struct iso_batch {
    iso_tensor *images;    // [n, channels, height, width], normalised, logical layout; borrowed
    const int32_t *labels; // [n], host memory; borrowed
    int64_t n;
    int64_t index; // k, the index of the global batch in its epoch
} iso_batch;

typedef struct iso_loader_config {
    // [channels], borrowed for the call: x = (byte / 255 - mean) / std, or byte / 255 if std is 0.
    // Both NULL: those of the data set.
    const double *mean, *std;
    int prefetch;    // batches that a thread prepares ahead, at most 1024; 0: no thread
    iso_dtype dtype; // of images: ISO_F32 or ISO_F64 (else ISO_ERR_UNSUPPORTED)
    // Augmentation, for training. It depends only on the sampler's seed, the epoch and the sample,
    // so a sample is augmented in the same way on every rank.
    int shift; // pixels: move the image by -shift to shift in each direction and fill with 0 bytes
    double flip; // probability of a horizontal flip, applied before the shift
} iso_loader_config;
extern const iso_loader_config iso_loader_default; // the default as an object, for C++
#ifdef __cplusplus
#define ISO_LOADER_DEFAULT iso_loader_default
#else
#define ISO_LOADER_DEFAULT ((iso_loader_config){.prefetch = 2})
#endif
typedef struct iso_loader iso_loader;

// Creates a loader: batches of dataset on device, in the order of a sampler of its own. Takes one
// reference of dataset, also on failure; retains device. config NULL: the default. ISO_ERR_ARG if
// the sampler refuses `order`, if only one of mean and std is given, for a shift as large as the
// image, or for a flip outside [0, 1].
iso_status iso_loader_create_take(iso_device *device, iso_dataset *dataset,
                                  const iso_sampler_config *order, const iso_loader_config *config,
                                  iso_loader **out);
void iso_loader_destroy(iso_loader **loader);
int64_t iso_loader_batches(const iso_loader *loader);              // as iso_sampler_batches
const iso_dataset_info *iso_loader_info(const iso_loader *loader); // of its data set; borrowed
// Starts epoch `epoch` at batch `first` (usually 0). Ends an epoch in progress.
iso_status iso_loader_start(iso_loader *loader, int64_t epoch, int64_t first);
// Returns the next batch, valid until the next call of iso_loader_next or iso_loader_start. At the
// end of the epoch returns ISO_PENDING, with out->n = 0. ISO_ERR_STATE before iso_loader_start.
iso_status iso_loader_next(iso_loader *loader, iso_batch *out);

// Everything that determines the samples to come, as int64_t numbers for checkpoints. It is the
// same on all ranks, except with SHARE.
typedef struct iso_loader_state {
    int64_t count, batch, ranks, seed, shuffle, end, shift, flip; // flip in units of 2^-24
    int64_t epoch, next; // the next batch of iso_loader_next; prefetched batches do not count
} iso_loader_state;
// Before the first iso_loader_start, returns the state of epoch 0, batch 0.
void iso_loader_get_state(const iso_loader *loader, iso_loader_state *out);
// Continues at the saved position with the same images; starts the epoch as iso_loader_start does.
// ISO_ERR_MISMATCH if the loader has other settings than the state; the message names the first
// one, and nothing is changed.
iso_status iso_loader_set_state(iso_loader *loader, const iso_loader_state *state);

#ifdef __cplusplus
}
#endif
#endif
