// SPDX-License-Identifier: MIT
// Data: data sets from arrays, callbacks and files, the sampler and the loader. All calls are
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
// message names the file, the problem and its position. ISO_ERR_UNSUPPORTED for gzip if this build
// lacks zlib, here and in the functions below.
iso_status iso_idx_read(const char *path, iso_idx *out);
void iso_idx_free(iso_idx *idx);

// ---- Data sets ------------------------------------------------------------------------------------

// A data set is a sequence of samples. A sample is a list of tensors: first the inputs of a
// network, then its targets. Reference-counted: each call that creates a data set returns one
// reference, retain adds one, destroy drops one.
typedef struct iso_dataset iso_dataset;

// A tensor of each sample. In a batch of n samples it has the shape [n, shape...].
typedef struct iso_tensor_spec {
    iso_dtype dtype; // ISO_F32, ISO_F64, ISO_I64, ISO_I32 or ISO_U8
    int ndim;        // 0 (one number) to ISO_MAX_DIMS - 1
    int64_t shape[ISO_MAX_DIMS - 1];
} iso_tensor_spec;

// If the first input is ISO_U8 of shape [channels, height, width], the samples are images.
typedef struct iso_dataset_config {
    int64_t count;                  // samples
    int inputs, targets;            // tensors of a sample: at least one input
    const iso_tensor_spec *tensors; // [inputs + targets]; borrowed for the call
    // Above 0: the first target is ISO_I32 and holds labels in [0, classes). 0: there are no
    // labels.
    int classes;
    // For a callback: a number that identifies the contents, such as a checksum of the files that
    // it reads. It is included in iso_dataset_checksum.
    uint64_t contents;
} iso_dataset_config;

// Creates a data set of samples in memory: arrays[t] has tensor t of all samples, [count,
// shape...]. copy: copies the arrays; else borrows them until the data set is destroyed.
// ISO_ERR_ARG for a label outside [0, classes).
iso_status iso_dataset_create_arrays(const iso_dataset_config *config, const void *const *arrays,
                                     bool copy, iso_dataset **out);

// Writes the tensors of sample `index`, from 0, to tensors[0 .. inputs + targets). It must write
// the same values whenever it is called for the same sample. On failure it describes the error with
// iso_error_set and returns its code.
typedef iso_status (*iso_sample_reader)(int64_t index, void *const *tensors, void *user);
// Creates a data set whose samples your function computes or reads. A loader calls it in its
// threads. Several loaders of one data set, or several threads of a loader, may call it at the same
// time. user is borrowed until the data set is destroyed.
iso_status iso_dataset_create_callback(const iso_dataset_config *config, iso_sample_reader read,
                                       void *user, iso_dataset **out);

// Copies images[count][channels][height][width], of bytes, and labels[count], which must be in [0,
// classes).
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
// stroke width, clutter and noise. The images depend only on train and count and are the same on
// every machine. The training and the test set use disjoint random streams.
iso_status iso_dataset_create_digits(bool train, int64_t count, iso_dataset **out);
// Opens data as iso-train and the examples do. `folder` names an MNIST folder; an HDF5 file (.h5 or
// .hdf5) with the data sets x_train and y_train for training, x_test and y_test for testing, with
// images and labels as in iso_dataset_read_idx; or a folder of pictures, opened as by
// iso_dataset_open_images with a config of zeros except `part`. NULL and "digits" generate as many
// digits as MNIST has (60000 for training, 10000 for testing), or as ISO_DIGITS says. A folder of
// pictures without train and val is for training only (else ISO_ERR_FORMAT).
iso_status iso_dataset_open(const char *folder, bool train, iso_dataset **out);

// How to read a CSV file. In the lists below, give each column by its name in the header or its
// number from 1, separated by commas: "price, 3". A column whose name contains a comma can only be
// given by its number.
typedef struct iso_csv_config {
    bool header;         // the first line names the columns
    char delimiter;      // 0: a comma
    const char *targets; // list; NULL: the last column; "": none
    const char *ignore;  // list of columns that are neither input nor target; NULL: none
    iso_dtype dtype;     // of input and target: ISO_F32 or ISO_F64
    int classes;         // above 0: the target is one column of labels in [0, classes)
} iso_csv_config;
// Reads a text file of numbers, plain or gzip. Each row is a sample: its input has the shape
// [columns], its target [targets], in the order of the list; a label has the shape []. Lines end
// with LF or CR LF; empty lines are skipped. Cells may be quoted. config NULL: all zero.
//
// ISO_ERR_FORMAT for an empty file, rows of different lengths, and cells that are empty, not a
// finite number, or not a label; the message names file, line and column. ISO_ERR_ARG for a column
// that the file lacks; ISO_ERR_IO if the file is missing or unreadable.
iso_status iso_dataset_read_csv(const char *path, const iso_csv_config *config, iso_dataset **out);

// A file of samples, one after the other, in the byte order of the machine.
typedef struct iso_raw_file {
    const char *path;
    iso_tensor_spec tensor; // of one sample; in a file of labels: ISO_I32, ISO_I64 or ISO_U8
    int64_t offset;         // bytes before the first sample, such as a header
} iso_raw_file;
typedef struct iso_raw_config {
    int inputs, targets;
    const iso_raw_file *files; // [inputs + targets], one for each tensor; borrowed for the call
    int classes;               // above 0: the first target's file has labels in [0, classes)
    int64_t first, count; // reads `count` samples from sample `first` on; count 0: all that follow
} iso_raw_config;
// Reads binary files that contain only numbers, as numpy.ndarray.tofile writes them.
// ISO_ERR_FORMAT, with the file and its sizes, if a file does not hold whole samples, lacks samples
// that were asked for, or holds another number of samples than the first file, and for a label
// outside [0, classes); ISO_ERR_IO if a file is missing or unreadable.
iso_status iso_dataset_read_raw(const iso_raw_config *config, iso_dataset **out);

// Data sets in an HDF5 file. The first dimension of each counts the samples, the others are the
// shape of a sample.
typedef struct iso_hdf5_config {
    int inputs, targets;
    // [inputs + targets], names in the file, such as "images" or "group/images"; borrowed for the
    // call.
    const char *const *names;
    int classes;          // above 0: the first target holds labels in [0, classes), of integers
    int64_t first, count; // the samples from `first` on; count 0: all that follow
    // Reads all samples at once, and closes the file: the result is as that of
    // iso_dataset_create_arrays. false: the samples stay in the file.
    bool in_memory;
} iso_hdf5_config;
// Opens an HDF5 file. Unless in_memory is set, the file stays open until the data set is destroyed,
// and may be larger than the memory. A loader's threads read only the samples of their rank, those
// of a batch together and in file order; consecutive samples are one read. A chunk of a chunked
// data set is decompressed once per batch if the chunks of one sample have at most 64 MiB (in the
// file's type, before compression), otherwise for each read. The chunks read last stay in memory:
// up to 64 MiB for each data set if those of one sample have more than 512 KiB, else up to 1 MiB.
// With shuffle, chunks of few samples are faster than long ones.
//
// Floats of up to 32 bits become f32, of 64 bits f64; unsigned bytes become u8, other integers i32
// if it holds all their values, else i64. Labels become i32. For samples that stay in the file,
// iso_dataset_info has no mean and std, and the checksum covers only the size of the file, `first`,
// and the first and the last sample.
//
// ISO_ERR_IO if the file is missing, locked by another program, or unreadable (also in
// iso_loader_next). ISO_ERR_FORMAT if it is not an HDF5 file, is truncated or damaged, or has fewer
// samples than asked for; if a data set has an unsupported type or shape, another number of
// samples, or was never written; and for a label outside [0, classes) (in samples that stay in the
// file: when they are read). ISO_ERR_ARG for a name that the file lacks; the message lists its
// names. ISO_ERR_UNSUPPORTED in a build without HDF5.
//
// The library calls HDF5 in one thread at a time. While loaders read, your program must not call
// HDF5 itself, unless HDF5 was built thread-safe.
iso_status iso_dataset_open_hdf5(const char *path, const iso_hdf5_config *config,
                                 iso_dataset **out);

// Where the pictures of a folder are (torchvision: ImageFolder).
typedef enum iso_images_layout {
    ISO_IMAGES_NONE,   // it is no folder of pictures, or has MNIST's files
    ISO_IMAGES_SPLIT,  // FOLDER/train/CLASS/*, FOLDER/val/CLASS/*
    ISO_IMAGES_CLASSES // FOLDER/CLASS/*
} iso_images_layout;
// The layout of a folder, by the names in it: SPLIT if FOLDER/train has folders, CLASSES if a
// folder in it has a picture.
iso_images_layout iso_images_find(const char *folder);

typedef enum iso_images_part {
    ISO_IMAGES_ALL,   // of FOLDER/CLASS
    ISO_IMAGES_TRAIN, // of FOLDER/train/CLASS
    ISO_IMAGES_VAL    // of FOLDER/val/CLASS
} iso_images_part;

typedef struct iso_images_config {
    iso_images_part part;
    int64_t size; // pixels of an image in each direction, up to 8192; 0: 224
    // Pixels of a picture's shorter side before the middle is cut out, from `size` to 16384; 0: 8/7
    // of `size`, such as 256 for 224.
    int64_t shorter;
    bool real; // images of f32 in [0, 1]; false: of bytes, which a loader can also augment
} iso_images_config;
// Opens JPEG and PNG pictures in class folders. A sample is an image [3, size, size] and its label.
// Classes are the folders, sorted by the bytes of their names. The classes of `train` also number
// those of `val`, where some may be missing. Pictures are the files .jpg, .jpeg and .png (in any
// case) in a class folder and its subfolders, up to 15 levels deep. The reader ignores names that
// begin with a dot.
//
// The pictures stay in their files. A loader's threads read and decode those of its batches, so
// more threads are faster. A picture is resized until its shorter side has `shorter` pixels, as by
// Pillow's BILINEAR, and its central square is cut out, as by torchvision's Resize and CenterCrop.
// Results are bitwise identical, unless Pillow resizes the columns before the rows (tall pictures).
// Grey pictures get three equal channels, 16 bits become 8, transparency is dropped, and CMYK
// becomes RGB. The rotation in EXIF data is ignored, as by ImageFolder. A JPEG file at least four
// times as large as needed is decoded at 1/2, 1/4 or 1/8 of its size.
//
// iso_dataset_info has no mean and std. In the checksum, the names of classes and pictures
// represent the contents, so iso_comm_check_same detects ranks that see other files.
//
// ISO_ERR_IO if a folder is missing or unreadable. ISO_ERR_FORMAT if there is no class, a class of
// ALL or TRAIN has no picture, a class of VAL is not one of TRAIN, or there is a picture of another
// kind, such as .webp. ISO_ERR_ARG for sizes outside their range. When a picture is read:
// ISO_ERR_IO if its file is missing or unreadable; ISO_ERR_FORMAT if it is neither JPEG nor PNG, is
// truncated or damaged, or has more than 2^27 pixels, 65535 in one direction, or 1 GiB;
// ISO_ERR_UNSUPPORTED if this build lacks libjpeg or libpng. The message names the file. To check
// all pictures before a long run, call iso_dataset_sample for each.
iso_status iso_dataset_open_images(const char *folder, const iso_images_config *config,
                                   iso_dataset **out);
// The name of a class of iso_dataset_open_images, borrowed from the data set; NULL for a label that
// it has not, and of other data sets.
const char *iso_dataset_class_name(const iso_dataset *dataset, int label);

iso_dataset *iso_dataset_retain(iso_dataset *dataset);
void iso_dataset_destroy(iso_dataset **dataset);

typedef struct iso_dataset_info {
    // Of the first input, whose dimensions are [channels, height, width]; missing ones are 1, and
    // width is the product of all dimensions after the second.
    int64_t count, channels, height, width;
    int classes; // as created; of an IDX file: largest label + 1; 0: there are no labels
    // [channels], over all samples; for images, of values scaled to [0, 1]. Borrowed from the data
    // set. NULL for callbacks, and for integers other than images.
    const double *mean, *std;
    int inputs, targets;
    const iso_tensor_spec *tensors; // [inputs + targets]; borrowed from the data set
} iso_dataset_info;
void iso_dataset_get_info(const iso_dataset *dataset, iso_dataset_info *out);
// A 64-bit checksum of count, shapes, types, classes and contents, computed at creation; for a
// callback, `contents` of the config stands for them. Data sets with the same contents have the
// same checksum, wherever they were read from, on all machines of the same byte order. Compare it
// across ranks with iso_comm_check_same: if ranks read different data, training fails silently.
uint64_t iso_dataset_checksum(const iso_dataset *dataset);
// Returns image i as bytes [channels][height][width], borrowed, and its label. label may be NULL.
// For images in memory with one label each; NULL for other data sets.
const uint8_t *iso_dataset_image(const iso_dataset *dataset, int64_t i, int32_t *label);
// Copies the tensors of sample i to tensors[0 .. inputs + targets), as they are stored. ISO_ERR_ARG
// unless 0 <= i < count.
iso_status iso_dataset_sample(const iso_dataset *dataset, int64_t i, void *const *tensors);

// Divides a data set at random: `fraction` of its samples, rounded to a whole number, become the
// validation set, the others the training set. Both keep the order of the samples. Only the seed
// and the number of samples matter, so the sets are the same on every rank. Both are views: they
// retain the data set and copy no samples. Their statistics and checksums are their own (for a
// callback, the checksum follows from that of the data set and the samples' numbers). Returns one
// reference to each set. ISO_ERR_ARG if fraction is not in (0, 1) or a set would be empty;
// ISO_ERR_STATE after iso_dataset_set_shard: call it for each of the sets instead.
iso_status iso_dataset_split(iso_dataset *dataset, double fraction, uint64_t seed,
                             iso_dataset **train, iso_dataset **validation);

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
    bool shuffle; // false: the order is 0, 1, 2, ..., or by cost
    iso_sampler_end end;
    // Shards: each rank has its own samples. count is this rank's number of samples; these fields
    // are the smallest and the largest number of all ranks. A loader takes them from the data set,
    // see iso_dataset_set_shard. Both 0: the ranks divide the same samples.
    int64_t shard_least, shard_most;
    // The cost of a sample, such as its length; NULL: any rank may get any sample. It must be
    // finite (ISO_ERR_ARG) and the same on all ranks. The function is called once for each sample,
    // at creation. Ranks then get samples of similar cost (Bagua: LoadBalancingDistributedSampler).
    // The samples, sorted by cost, form groups with one sample for each rank. Groups are shuffled
    // instead of samples, as are the members of each group. So the j-th samples of a batch have
    // similar costs on all ranks; in the last global batch, and with PAD, only nearly so. Without
    // shuffle, batches start with the lowest costs. Not with shards or OVERLAP (ISO_ERR_ARG).
    double (*cost)(int64_t sample, void *user);
    void *cost_user;
    // >= 0; in each epoch each cost is raised by a random part of cost_noise times the range of all
    // costs, so that groups change from epoch to epoch (Bagua: random_level). Only with shuffle.
    double cost_noise;
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
// With shards, each rank draws a permutation of its own samples. Its share of global batch k is the
// k-th slice of `batch` samples. PAD: every rank has as many batches as the largest shard; a
// smaller shard repeats samples from the start of its permutation. DROP: every rank has as many
// batches as the smallest shard has whole ones. SHARE: each rank has as many as its own shard.
//
// ISO_ERR_ARG if there are more ranks than samples (except with SHARE), or with DROP fewer samples
// than one global batch. With shards instead: for OVERLAP, or with DROP if a shard has less than
// one batch.
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
    iso_tensor *images;    // the first input, [n, shape...], logical layout; borrowed
    const int32_t *labels; // [n, shape...], host memory; borrowed. NULL if there are no labels
    int64_t n;
    int64_t index;              // k, the index of the global batch in its epoch
    iso_tensor *const *inputs;  // all inputs; borrowed
    iso_tensor *const *targets; // all targets, NULL in place of labels; borrowed
    // [inputs + targets], the type and the shape of each tensor of a sample, also of labels, in
    // this batch; borrowed.
    const iso_tensor_spec *specs;
    const int64_t *rows; // [inputs + targets], the first dimension of each: n, or as `make` says
    int input_count, target_count;
} iso_batch;

// A sample on its way into a batch.
typedef struct iso_sample {
    int64_t index, epoch;
    // The seed for random numbers that you draw for this sample. It depends only on the sampler's
    // seed, the epoch and the sample, so it is the same on every rank.
    uint64_t random;
    void *const *tensors; // inputs and targets in host memory; images are normalised
} iso_sample;
// Changes the tensors of a sample in place. On failure it describes the error with iso_error_set
// and returns its code. Called in the loader's threads; with prefetch 0, in iso_loader_next. With
// more than one thread, several threads may call it at the same time, for different samples.
typedef iso_status (*iso_sample_transform)(const iso_sample *sample, void *user);

// The samples of a batch on their way into its tensors.
typedef struct iso_collate_batch {
    int64_t n;              // samples
    const int64_t *samples; // [n], their numbers in the data set
    int64_t index, epoch;   // as in iso_batch and iso_sample
    // The seed for random numbers that you draw for the batch. It depends only on the sampler's
    // seed, the epoch and the first sample.
    uint64_t random;
    void *const *tensors;   // inputs and targets in host memory, [n, shape...] each
    iso_tensor_spec *specs; // the type and the shape of each tensor of a sample
} iso_collate_batch;
// Makes the tensors of a batch from the values of its samples, in place. It may change any value,
// e.g. mix samples, and make dimensions in specs smaller, e.g. cut sequences to the longest one of
// the batch. Then tensors[t] must hold [n, shape...] without gaps, as iso_collate_trim leaves it.
// It must not change types or numbers of dimensions. iso_loader_next returns ISO_ERR_ARG if it
// does, and for a dimension below 1 or above the data set's. On failure it describes the error with
// iso_error_set and returns its code. Like a transform, it runs in the loader's threads, for
// different batches at the same time.
typedef iso_status (*iso_collate)(const iso_collate_batch *batch, void *user);
// Keeps the first `size` entries of dimension d, from 0, of each sample's tensor t: moves the
// values together, and sets the dimension in specs. ISO_ERR_ARG if there is no such dimension, or
// not so many entries.
iso_status iso_collate_trim(const iso_collate_batch *batch, int t, int d, int64_t size);

// The tensors that a batch is to have instead, see `make` below.
typedef struct iso_made_batch {
    void *const *tensors;   // [inputs + targets] of iso_make_config, in host memory, to be written
    iso_tensor_spec *specs; // at first those of iso_make_config; shapes may become smaller
    int64_t *rows;          // the first dimension of each tensor, n at first; 1 to `rows` there
} iso_made_batch;
// Writes tensors of another number, type or shape than those of the samples: stacks, pads, adds a
// mask or lengths. made->tensors[t], undefined before, must then hold [rows[t], shape...] without
// gaps. May change samples->tensors, but not samples->specs. Called and fails as iso_collate does.
// ISO_ERR_ARG in iso_loader_next for a dimension below 1 or above what iso_make_config says.
typedef iso_status (*iso_make)(const iso_collate_batch *samples, const iso_made_batch *made,
                               void *user);
typedef struct iso_make_config {
    int inputs, targets;            // tensors of a batch: at least one input
    const iso_tensor_spec *tensors; // [inputs + targets]: largest shapes of a row; borrowed
    int64_t rows; // the largest first dimension; 0: the samples of the largest batch
    bool labels;  // the first target is ISO_I32 and becomes `labels` of iso_batch
    iso_make make;
} iso_make_config;

typedef struct iso_loader_config {
    // [channels], borrowed for the call. Images: x = (byte / 255 - mean) / std, or byte / 255 if
    // std is 0. Both NULL: those of the data set, or 0 and 1 if it has none. A first input of f32
    // or f64 is normalised only if both are given: x = (x - mean) / std, or x if std is 0.
    const double *mean, *std;
    int prefetch;    // batches that are prepared ahead, at most 1024; 0: none (see `threads`)
    iso_dtype dtype; // of images: ISO_F32 or ISO_F64 (else ISO_ERR_UNSUPPORTED)
    // Augmentation of images, for training. It depends only on the sampler's seed, the epoch and
    // the sample, so a sample is augmented in the same way on every rank.
    int shift; // pixels: move the image by -shift to shift in each direction and fill with 0 bytes
    double flip; // probability of a horizontal flip, applied before the shift
    // Augmentation of your own, called for each sample after the above. NULL: none.
    iso_sample_transform transform;
    void *user; // passed to transform, collate and make; borrowed until the loader is destroyed
    // Threads that prepare batches, at most 1024; 0: one. With one thread and `prefetch` 0, no
    // thread is started. Several threads prepare different batches at the same time, and raise
    // `prefetch` to at least `threads`. The batches, their order and their bits do not depend on
    // the number of threads.
    int threads;
    iso_collate collate; // called for each batch after the above (PyTorch: collate_fn); or NULL
    // Augmentation of the pictures of iso_dataset_open_images, before flip and shift: a random part
    // of the picture in place of its middle, of at least this fraction of its area and with sides
    // of a ratio of 3/4 to 4/3, resized (torchvision: RandomResizedCrop, with 0.08). 0: none.
    double crop;
    // Makes the tensors of each batch from those of its samples, after all of the above (PyTorch:
    // collate_fn). iso_loader_info still describes the samples. Borrowed for the call. NULL: none.
    const iso_make_config *make;
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
// image, for a flip or a crop outside [0, 1], if the first input cannot be normalised, shifted,
// flipped or cropped, or if a tensor of `make` has no valid type or shape.
iso_status iso_loader_create_take(iso_device *device, iso_dataset *dataset,
                                  const iso_sampler_config *order, const iso_loader_config *config,
                                  iso_loader **out);
void iso_loader_destroy(iso_loader **loader);
int64_t iso_loader_batches(const iso_loader *loader);              // as iso_sampler_batches
const iso_dataset_info *iso_loader_info(const iso_loader *loader); // of its data set; borrowed
// Starts epoch `epoch` at batch `first` (usually 0). Ends an epoch in progress.
iso_status iso_loader_start(iso_loader *loader, int64_t epoch, int64_t first);
// Returns the next batch, valid until the next call of iso_loader_next or iso_loader_start. At the
// end of the epoch returns ISO_PENDING, with out->n = 0. ISO_ERR_STATE before iso_loader_start. If
// a batch could not be prepared, the batches before it come first; then its error, in every call
// until iso_loader_start.
iso_status iso_loader_next(iso_loader *loader, iso_batch *out);

// Everything that determines the samples to come (except functions of yours, normalisation and
// crop), as int64_t numbers for checkpoints. It is the same on all ranks, except with SHARE or
// shards. Save it as ISO_STATE_OWN in these cases.
typedef struct iso_loader_state {
    // flip is in units of 2^-24; shuffle is 0 or 1, with `cost` 1 + cost_noise in units of 2^-25.
    int64_t count, batch, ranks, seed, shuffle, end, shift, flip;
    int64_t epoch, next; // the next batch of iso_loader_next; prefetched batches do not count
} iso_loader_state;
// Before the first iso_loader_start, returns the state of epoch 0, batch 0.
void iso_loader_get_state(const iso_loader *loader, iso_loader_state *out);
// Continues at the saved position with the same samples; starts the epoch as iso_loader_start does.
// ISO_ERR_MISMATCH if the loader has other settings than the state; the message names the first
// one, and nothing is changed.
iso_status iso_loader_set_state(iso_loader *loader, const iso_loader_state *state);
// Local. Converts the state of a loader with another number of ranks, or another batch, to the
// loader's ranks and batch. The next batch begins with the same sample of the same permutation. If
// ranks * batch is as before, all batches have the same samples, except for those that PAD repeats.
// ISO_ERR_MISMATCH if no batch of the loader begins there, or if the order depends on the number of
// ranks: with SHARE, OVERLAP, shards or `cost`. Nothing is changed on failure.
iso_status iso_loader_convert_state(const iso_loader *loader, iso_loader_state *state);

#ifdef __cplusplus
}
#endif
#endif
