// Data: IDX files, MNIST folders, a generated digit set, the sampler and the loader. Local: ranks
// agree because each draws the same global permutation.
#ifndef ISOTHERM_DATA_H
#define ISOTHERM_DATA_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- IDX files ------------------------------------------------------------------------------------

// http://yann.lecun.com/exdb/mnist: magic 0 0 TYPE NDIM, NDIM big-endian sizes, elements
// big-endian.
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
    int64_t count;
    void *data; // host order; owned
} iso_idx;

// Reads a plain or gzip-compressed file. ISO_ERR_IO (missing, unreadable), ISO_ERR_FORMAT (wrong
// magic, truncated, trailing bytes, sizes that overflow): the message names file, what is wrong,
// and where.
iso_status iso_idx_read(const char *path, iso_idx *out);
void iso_idx_free(iso_idx *idx);

// ---- Data sets ------------------------------------------------------------------------------------

// Labelled images of unsigned bytes, shared: create gives one reference.
typedef struct iso_dataset iso_dataset;

// From memory (copied): images[count][channels][height][width], labels[count] in [0, classes).
iso_status iso_dataset_create(const uint8_t *images, const int32_t *labels, int64_t count,
                              int64_t channels, int64_t height, int64_t width, int classes,
                              iso_dataset **out);
// From two IDX files: images of 2 (N, features -> 1 x 1 x features), 3 (N, H, W) or 4 (N, C, H, W)
// dimensions of u8, labels of 1 dimension of any integer type. ISO_ERR_FORMAT when the counts
// differ or a label is negative.
iso_status iso_dataset_read_idx(const char *images_path, const char *labels_path,
                                iso_dataset **out);
// A folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]; ".gz" second choice; also
// accepts '.' before idx. Colour images have 4 dimensions, and their files may be called
// images-idx4-ubyte. The message names the folder and the files it looked for.
iso_status iso_dataset_read_mnist(const char *folder, bool train, iso_dataset **out);
// Generated digits, MNIST-shaped (1 x 28 x 28, 10 classes), deterministic in (train, count) on
// every machine: glyphs with random placement, slant, scale, stroke width, clutter and noise. train
// and test sets are disjoint streams.
iso_status iso_dataset_create_digits(bool train, int64_t count, iso_dataset **out);
// What programs read when they are told where data is: an MNIST folder or, for NULL or "digits", as
// many generated digits as MNIST has (60000 and 10000).
iso_status iso_dataset_open(const char *folder, bool train, iso_dataset **out);
iso_dataset *iso_dataset_retain(iso_dataset *dataset);
void iso_dataset_destroy(iso_dataset **dataset);

typedef struct iso_dataset_info {
    int64_t count, channels, height, width;
    int classes;              // largest label + 1, or as created
    const double *mean, *std; // [channels], of pixels scaled to [0, 1]; borrowed from the data set
} iso_dataset_info;
void iso_dataset_get_info(const iso_dataset *dataset, iso_dataset_info *out);
// A 64-bit checksum of shape, classes, images and labels, computed when the set was created or
// read: two sets with the same contents have the same one, wherever the contents come from. It is
// the same on all machines of one byte order. Ranks compare it with iso_comm_check_same, since
// training goes wrong silently where they read different data.
uint64_t iso_dataset_checksum(const iso_dataset *dataset);
// Image i as bytes [channels][height][width] and its label.
const uint8_t *iso_dataset_image(const iso_dataset *dataset, int64_t i, int32_t *label);

// ---- Sampler --------------------------------------------------------------------------------------

typedef enum iso_sampler_end {
    ISO_SAMPLER_PAD,    // the last global batch is filled from the start of the permutation
    ISO_SAMPLER_DROP,   // an incomplete last global batch is left out
    ISO_SAMPLER_SHARE,  // the last global batch is split as evenly as it can be: for evaluation,
                        // where every sample counts once and ranks need not go in step
    ISO_SAMPLER_OVERLAP // each rank goes through a shard of its own, all of one size
} iso_sampler_end;

typedef struct iso_sampler_config {
    int64_t count; // samples; 0 for a loader: all of its data set
    int64_t batch; // per rank
    int rank, ranks;
    uint64_t seed;
    bool shuffle; // false: 0, 1, 2, ...
    iso_sampler_end end;
} iso_sampler_config;
typedef struct iso_sampler iso_sampler;

// One permutation of all samples from (seed, epoch); global batch k is its k-th slice of ranks *
// batch; rank r's part is the r-th `batch` of the slice, for any number of ranks. The last global
// batch is as large as needed: the remainder rounded up to a multiple of ranks under PAD (every
// rank the same local size), left out under DROP, under SHARE the remainder itself (local sizes
// differ by 1 at most, and a rank may have one batch less, or none at all). ISO_ERR_ARG when there
// are more ranks than samples (not under SHARE) or, under DROP, not one whole batch.
// Under OVERLAP, as pytorch-pfn-extras cuts data sets, the permutation is cut into shards instead
// of slices: rank r's has ceil(count / ranks) samples from place floor(count * r / ranks) on, so
// that neighbours have at most one sample in common, and rank r's batches are slices of its shard.
iso_status iso_sampler_create(const iso_sampler_config *config, iso_sampler **out);
void iso_sampler_destroy(iso_sampler **sampler);
iso_status iso_sampler_set_epoch(iso_sampler *sampler, int64_t epoch);
// Batches of an epoch; the same on all ranks but under SHARE.
int64_t iso_sampler_batches(const iso_sampler *sampler);
// Indices of this rank's part of global batch k: *indices borrowed until the next set_epoch;
// returns their number.
int64_t iso_sampler_batch(const iso_sampler *sampler, int64_t k, const int64_t **indices);

// ---- Loader ---------------------------------------------------------------------------------------

typedef struct iso_batch {
    iso_tensor *images;    // [n, channels, height, width], normalised, logical
    const int32_t *labels; // n
    int64_t n;
    int64_t index; // k, the number of the global batch in its epoch
} iso_batch;

typedef struct iso_loader_config {
    // [channels], borrowed for the call: x = (byte / 255 - mean) / std, and byte / 255 where std is
    // 0. Both NULL: the data set's own.
    const double *mean, *std;
    int prefetch;    // batches prepared ahead by a thread; 0: in the calling thread
    iso_dtype dtype; // of images: ISO_F32 or ISO_F64
    // Augmentation, for training. Draws depend on the sampler's seed, the epoch and the sample
    // alone, so that a sample looks the same whichever rank has it.
    int shift;   // pixels: moved by -shift to shift in each direction; bytes 0 come in
    double flip; // probability that left and right change places, before it is moved
} iso_loader_config;
extern const iso_loader_config iso_loader_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_LOADER_DEFAULT iso_loader_default
#else
#define ISO_LOADER_DEFAULT ((iso_loader_config){.prefetch = 2})
#endif
typedef struct iso_loader iso_loader;

// Batches of dataset on device in the order of a sampler of its own. Takes one reference of
// dataset, on failure too; retains device. config NULL: the default. ISO_ERR_ARG for what the
// sampler refuses, a shift as large as an image, or a flip outside [0, 1].
iso_status iso_loader_create_take(iso_device *device, iso_dataset *dataset,
                                  const iso_sampler_config *order, const iso_loader_config *config,
                                  iso_loader **out);
void iso_loader_destroy(iso_loader **loader);
int64_t iso_loader_batches(const iso_loader *loader);              // as iso_sampler_batches
const iso_dataset_info *iso_loader_info(const iso_loader *loader); // of its data set; borrowed
// Starts epoch `epoch` at its batch `first` (0). Ends a running epoch.
iso_status iso_loader_start(iso_loader *loader, int64_t epoch, int64_t first);
// The next batch, valid until the following call; ISO_PENDING and out->n = 0 at the end of the
// epoch.
iso_status iso_loader_next(iso_loader *loader, iso_batch *out);

// What decides which samples come, and where the caller is among them: for checkpoints, as int64_t
// numbers, the same on all ranks (but under SHARE).
typedef struct iso_loader_state {
    int64_t count, batch, ranks, seed, shuffle, end, shift, flip; // flip in units of 2^-24
    int64_t epoch, next; // what iso_loader_next gives next, however far ahead the thread is
} iso_loader_state;
// Before the first iso_loader_start: of batch 0 of epoch 0.
void iso_loader_get_state(const iso_loader *loader, iso_loader_state *out);
// Goes on where state was got, with the same images; as iso_loader_start. ISO_ERR_MISMATCH, and
// nothing is changed, when the state is of other settings: the sentence names the first one.
iso_status iso_loader_set_state(iso_loader *loader, const iso_loader_state *state);

#ifdef __cplusplus
}
#endif
#endif
