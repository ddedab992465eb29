// SPDX-License-Identifier: MIT
// Uneven inputs: training with data_parallel when some ranks run out of data before others
// (PyTorch: the Join context manager).
//
//   iso_join_begin(model, &config, &join);
//   while ((status = iso_join_next(join, samples = next_batch(), true)) == ISO_OK)
//       ... zero_grad, forward, loss, backward, step ...
//   iso_join_end(&join);
//
// iso_join_begin_many joins several models that are trained in one loop.
#ifndef ISOTHERM_JOIN_H
#define ISOTHERM_JOIN_H

#include <isotherm/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iso_join_mode {
    ISO_JOIN_SHADOW,  // a rank without data takes part in the exchanges and contributes zeros
    ISO_JOIN_THROW,   // ISO_ERR_STATE on every rank once the first rank has run out of data
    ISO_JOIN_EQUALISE // the loop ends on every rank once the first rank has run out of data
} iso_join_mode;

// The divisor of the sum of gradients. For a model with by_weight (parallel.h) it has no effect.
typedef enum iso_join_divisor {
    ISO_JOIN_INITIAL,   // the number of all ranks: a sample has the same weight in all steps
    ISO_JOIN_EFFECTIVE, // the number of ranks with data: the last samples weigh more
    // The number of samples: each rank's gradient, a mean over its batch, is weighted by the size
    // of that batch. The result is what one rank would compute on all batches together.
    ISO_JOIN_SAMPLES
} iso_join_divisor;

typedef struct iso_join_config {
    iso_join_mode mode;
    iso_join_divisor divisor;
    bool disabled; // for inputs known to be even: iso_join_next does not communicate
    // ISO_JOIN_SHADOW: called on a rank without data after each exchange, of several models after
    // that of the last one. It must do what the other ranks do between backward and their next
    // batch (iso_optimizer_step, a schedule, clipping), so that the replicas stay equal. Required
    // if an optimizer is tied.
    iso_status (*step)(void *user);
    void *user;
} iso_join_config;

typedef struct iso_join iso_join;

// Collective. All ranks pass the same config (else ISO_ERR_MISMATCH). config NULL: all zero.
// Retains data_parallel, which can have one join at a time (else ISO_ERR_STATE). Until
// iso_join_end, only ranks with data contribute to buffers. Dropout numbers the rows of all ranks'
// batches consecutively, even if the batches differ in size.
//
// ISO_ERR_UNSUPPORTED: SHADOW with SyncBatchNorm; SHADOW and SAMPLES if gradients are not averaged
// over all ranks (ISO_SCOPE_NODE, daso and its relatives); EFFECTIVE and SAMPLES with a reduce
// function.
iso_status iso_join_begin(iso_module *data_parallel, const iso_join_config *config, iso_join **out);
// The same for `count` models, in an array that is borrowed for the call (PyTorch: Join of several
// joinables). All ranks pass the same models in the same order. Their communicators may differ, but
// must have the same ranks in the same order (else ISO_ERR_ARG). One iso_join_next announces one
// batch for all models: its samples and its will_sync hold for each of them.
//
// After each ISO_OK, a rank with data makes one backward of every model, in the order of the array,
// and steps the optimizers after the last backward. With ISO_BUFFERS_BEFORE_FORWARD, the forward of
// a model must follow the backward of the previous model in the array. Otherwise all forwards may
// come first, as they must if one model feeds another; with ISO_BUFFERS_AFTER_FORWARD, in the order
// of the array. A rank without data takes part in the exchanges of every model, in the same order,
// and then calls config.step once.
//
// ISO_ERR_ARG for a count below 1, on the ranks that pass it. ISO_ERR_ARG on every rank for a
// module that is not a data_parallel or is listed twice, and ISO_ERR_STATE for one that is in a
// join already; the message names the model by its index. ISO_ERR_MISMATCH on every rank if a rank
// lists the models in another order; the message names the rank, and numbers the models in the
// order of their creation. The join's own messages use the communicator of the data_parallel that
// was created first.
iso_status iso_join_begin_many(iso_module *const *data_parallels, int count,
                               const iso_join_config *config, iso_join **out);
// Collective, blocking: one small all-reduce. Call it before the forwards of each batch, with the
// number of samples in this rank's batch, or 0 if the rank has no more data. samples < 0 reports
// that this rank has failed: every rank (with `disabled`, this rank alone) then gets ISO_ERR_STATE
// with a message that names this rank, instead of waiting for it. will_sync: whether the backward
// of this batch is outside no_sync; equal on all ranks with data (else ISO_ERR_MISMATCH).
//
// ISO_OK: make the step. ISO_PENDING: leave the loop, because no rank has data any more, or with
// ISO_JOIN_EQUALISE at least one rank has none, or with `disabled` this rank has none. In shadow
// mode, a rank without data stays in this call until no rank has data. Gradients that it
// accumulated inside no_sync count in the next exchange. Each update needs a zero_grad. With
// accumulation, a rank's weight is the mean number of samples of its micro-steps: give them equal
// sizes, and divide the loss by their number as usual.
//
// With ZeRO stage 2, this call may hold the new values of all buckets at once: if it waited until
// others took theirs, it would not hear of a failure. With stage 3, a rank without data takes part
// in the gathers of the others, and holds all values while it shadows their backward. A shadow join
// of several models is ISO_ERR_UNSUPPORTED with stage 3.
iso_status iso_join_next(iso_join *join, int64_t samples, bool will_sync);
// Local. Restores equal weighting of the ranks' gradients, in every model. Call it also after an
// error.
void iso_join_end(iso_join **join);

#ifdef __cplusplus
}
#endif
#endif
