// SPDX-License-Identifier: MIT
// Private to the loader: its structure, and the threads that prepare its batches.
#ifndef ISO_LOADER_IMPL_H
#define ISO_LOADER_IMPL_H

#include "data/data_impl.h"
#include "data/loader_upload.h"

#include <pthread.h>

typedef struct iso__slot {
    iso__upload *uploads;   // [outputs]; unused for labels
    iso_tensor **tensors;   // [outputs], as a batch has them
    int32_t *labels;        // NULL: there are none
    iso_tensor_spec *specs; // [outputs], without the first dimension
    int64_t *rows;          // [outputs], the first dimension
    int64_t n;
    bool prepared; // under the lock: its batch is complete, but `ready` is not beyond it yet
} iso__slot;

// Prepares one batch at a time. Arrays are [tensors] each, for the batch and the sample in
// preparation.
typedef struct iso__worker {
    iso_loader *loader;
    pthread_t thread;
    char **batch;      // start of each tensor of the batch, or of its samples if it is made
    void **to;         // its place for the sample
    void **room;       // where a callback writes the sample
    const void **from; // where the sample is
    void *first;       // room for a first input that a callback writes before it is normalised; for
                       // a reader, for those of a batch
    iso__pick *picks;  // room for a reader: one for each sample of a batch
    // If batches are made of their samples; else NULL.
    void **made;            // [outputs], start of each tensor of the batch
    iso_tensor_spec *specs; // of the samples
    void *samples;          // room for them
} iso__worker;

// Makes batches of tensors of their own. Copied from iso_make_config.
typedef struct iso__make {
    iso_make function;           // NULL: a batch has the tensors of its samples
    int inputs, outputs, labels; // labels: the tensor that holds them; -1: none
    iso_tensor_spec *tensors;    // [outputs]
    int64_t rows;                // 0: the samples of the largest batch
} iso__make;

struct iso_loader {
    iso_dataset *dataset;
    iso_sampler *sampler;
    iso_device *device;
    iso__transform transform;
    iso_sample_transform own_transform; // NULL: none
    iso_collate collate;                // NULL: none
    iso__make make;                     // make.function NULL: none
    void *user;
    int tensors;      // of a sample
    int outputs;      // tensors of a batch: as of a sample, unless they are made
    size_t *bytes;    // [tensors], size of each tensor of a sample in a batch
    int slot_count;   // the caller holds one batch while the others are prepared
    iso__slot *slots; // batch k is in slot k % slot_count
    int worker_count;
    iso__worker *workers; // the first is the caller itself if nothing is prepared ahead

    bool started;
    int running;         // threads of the running epoch
    int64_t epoch, next; // the batch that iso_loader_next gives
    int64_t sent;        // batches below are at the device, or on their way
    iso__slot *held;     // what the caller has; NULL: nothing

    // Shared with the threads of the running epoch, under the lock.
    pthread_mutex_t lock;
    pthread_cond_t prepared; // the caller waits for a batch
    pthread_cond_t room;     // threads wait for a slot
    int64_t claimed;         // batches below are prepared, or a thread prepares them
    int64_t ready;           // batches below are prepared
    int64_t freed;           // batches below are no longer used by the caller
    bool stop;
    iso_status status; // with its message; of the first batch that has an error
    int64_t failed;    // that batch
    char message[sizeof(((iso_error *)0)->message)];
};

// Returns type and shape of tensor t in a batch: images become real numbers.
iso_tensor_spec iso__loader_spec(const iso_loader *loader, int t);
// The same of tensor t of a batch, which may be made of the samples.
iso_tensor_spec iso__loader_output(const iso_loader *loader, int t);
// The tensor of a batch that holds labels; -1: none.
int iso__loader_labels(const iso_loader *loader);

// Copies config, which may be NULL. ISO_ERR_ARG if it is not valid.
iso_status iso__make_init(const iso_make_config *config, iso__make *out);
void iso__make_free(iso__make *make);
// Room for the samples of a batch.
iso_status iso__make_worker(const iso_loader *loader, iso__worker *worker);
// Calls the function and checks its result. Does nothing without samples.
iso_status iso__make_batch(const iso_loader *loader, const iso_collate_batch *samples,
                           const iso_made_batch *made);

// The samples of the largest batch: none is larger than the first, where there is one.
int64_t iso__loader_largest(const iso_loader *loader);

// The largest first dimension of a tensor of a batch.
int64_t iso__loader_rows(const iso_loader *loader);

// Allocates what the preparation of a sample needs, and frees it.
iso_status iso__worker_init(iso_loader *loader, iso__worker *out);
void iso__worker_free(iso__worker *worker);
// Fills the slot of batch k, which only this worker may use meanwhile.
iso_status iso__worker_prepare(iso__worker *worker, int64_t k);

// Starts the threads of an epoch, none if nothing is prepared ahead; ends them all, also on
// failure.
iso_status iso__loader_start_threads(iso_loader *loader);
void iso__loader_end_threads(iso_loader *loader);
// Under the lock: batch k has this error.
void iso__loader_keep_error(iso_loader *loader, int64_t k, iso_status status);
// Gives the batches before k back to the threads and waits for batch k; *ready: batches below are
// prepared.
iso_status iso__loader_wait(iso_loader *loader, int64_t k, int64_t *ready);

#endif
