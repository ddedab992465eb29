// SPDX-License-Identifier: MIT
// Shuffles samples over the shards of all ranks, in the background of an epoch.
#ifndef ISOTHERM_SHUFFLE_H
#define ISOTHERM_SHUFFLE_H

#include <isotherm/comm.h>
#include <isotherm/data.h>

#ifdef __cplusplus
extern "C" {
#endif

// Exchanges samples between the shards of the ranks (iso_dataset_set_shard), so that over the
// epochs many ranks train on each sample (HeAT: dataset_shuffle and dataset_ishuffle). In a round,
// each rank sends up to half as many samples as the smallest shard has, but at least one: the same
// number to each of as many other ranks as possible. It receives as many as it sends, so all shards
// keep their sizes. The inputs and targets of a sample move together. HeAT's rounds move half a
// shard from each rank to the next one.
//
// The seed and the number of a round alone determine which samples move, and where to. The result
// does not depend on timing.
typedef struct iso_shuffle iso_shuffle;

// Collective over comm, the communicator of iso_dataset_set_shard, and so are start, finish, repeat
// and destroy; all ranks call them in the same order. Retains dataset. It must be in memory of its
// own: made by a reader, copied from arrays, or a part of such a set (iso_dataset_split).
// ISO_ERR_UNSUPPORTED on every rank for callbacks, borrowed arrays, and samples that stay in a
// file; ISO_ERR_STATE if it is not a shard of comm; ISO_ERR_MISMATCH if the seeds differ. It
// allocates a block for each rank of comm to send, and one to receive. A block has room for the
// samples that one rank sends to one other, rounded up to 64 bytes.
iso_status iso_shuffle_create(iso_dataset *dataset, iso_comm *comm, uint64_t seed,
                              iso_shuffle **out);
// Completes a round that was started, but without its effect on the shard.
void iso_shuffle_destroy(iso_shuffle **shuffle);

// Starts a round: copies the samples that leave, and sends them in the background. Call it when an
// epoch begins; the shard does not change until finish. ISO_ERR_STATE if a round is under way, or
// has failed. It waits until all ranks have called it: if one cannot send, all get an error. End
// the job then.
iso_status iso_shuffle_start(iso_shuffle *shuffle);
// Collective. Waits for the samples of the round, and puts them into the places of those that left.
// Call it between epochs. ISO_ERR_STATE if no round was started. ISO_ERR_STATE on every rank if, on
// some rank, the threads of a loader of this data set are within an epoch: between iso_loader_start
// and the iso_loader_next that returns ISO_PENDING. The round then stays in flight. A loader
// without threads (prefetch 0) is not detected: the rest of its epoch gets the new samples. During
// this call, nothing may read a view of the same samples, either.
//
// If the exchange fails on one rank, no rank changes its shard, and all ranks get an error. After
// ISO_ERR_TIMEOUT, call it again or end the job; after other errors, end the job.
//
// Checksum, mean and standard deviation of the data set stay those of its creation.
iso_status iso_shuffle_finish(iso_shuffle *shuffle);
// Local. How many rounds are finished. Save it in a checkpoint: a state of a loader does not
// contain what moved.
int64_t iso_shuffle_rounds(const iso_shuffle *shuffle);
// Makes rounds until `rounds` are finished. A resumed program reads its shards as they were first,
// repeats the rounds that were saved, and so has the samples of the run that was saved. Start and
// finish one after the other are repeat with rounds + 1. ISO_ERR_ARG if more are finished already.
iso_status iso_shuffle_repeat(iso_shuffle *shuffle, int64_t rounds);

#ifdef __cplusplus
}
#endif
#endif
