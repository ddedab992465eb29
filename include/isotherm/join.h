// Uneven inputs: training with data_parallel when some ranks run out of data before others
// (PyTorch: the Join context manager).
//
//   iso_join_begin(model, &config, &join);
//   while ((status = iso_join_next(join, samples = next_batch(), true)) == ISO_OK)
//       ... zero_grad, forward, loss, backward, step ...
//   iso_join_end(&join);
#ifndef ISOTHERM_JOIN_H
#define ISOTHERM_JOIN_H

#include <isotherm/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iso_join_mode {
    ISO_JOIN_SHADOW,  // a rank without data takes part in the others' exchanges with zeros
    ISO_JOIN_THROW,   // ISO_ERR_STATE on every rank when the first one has run out
    ISO_JOIN_EQUALISE // the loop ends on every rank when the first one has run out
} iso_join_mode;

// The divisor of the sum of gradients.
typedef enum iso_join_divisor {
    ISO_JOIN_INITIAL,   // the ranks there are: a sample has the same weight in all steps
    ISO_JOIN_EFFECTIVE, // those that have data: the last samples weigh more
    // The mean over samples: each rank's gradient, a mean over its batch, is weighted by its number
    // of samples. The result is what one rank would compute on all batches together.
    ISO_JOIN_SAMPLES
} iso_join_divisor;

typedef struct iso_join_config {
    iso_join_mode mode;
    iso_join_divisor divisor;
    bool disabled; // for data that is known to be even: iso_join_next communicates nothing
    // ISO_JOIN_SHADOW: called on a rank without data after each exchange; does what the others do
    // between backward and their next batch (iso_optimizer_step, a schedule, clipping), so that the
    // rank stays equal to them. Needed once an optimizer is tied.
    iso_status (*step)(void *user);
    void *user;
} iso_join_config;

typedef struct iso_join iso_join;

// Collective, the same config on all ranks (ISO_ERR_MISMATCH); config NULL: all zero. Retains
// data_parallel, which has one join at a time (ISO_ERR_STATE). ISO_ERR_UNSUPPORTED for what needs
// every rank's batch or adds gradients differently: ISO_JOIN_SHADOW with SyncBatchNorm;
// ISO_JOIN_SHADOW and ISO_JOIN_SAMPLES with gradients that are not averaged over all ranks
// (ISO_SCOPE_NODE, daso and its kind), ISO_JOIN_EFFECTIVE and ISO_JOIN_SAMPLES with a reduce
// function. Between begin and end buffers count only of ranks that have data, and rows of random
// layers are numbered through all ranks' batches, however long.
iso_status iso_join_begin(iso_module *data_parallel, const iso_join_config *config, iso_join **out);
// Collective, blocking: one small all-reduce. Before each forward, with the number of samples of
// this rank's batch; 0: it has no more. will_sync, equal on all ranks that have data
// (ISO_ERR_MISMATCH): whether the backward of this batch will be outside no_sync. samples < 0: this
// rank has failed; every rank then gets an error that names it, instead of waiting for it.
// ISO_OK: make the step. ISO_PENDING: no rank has data left, leave the loop. In shadow mode a rank
// without data stays in this call until no rank has any; what it had accumulated inside no_sync
// counts in the next exchange. Each update needs a zero_grad. With accumulation, the samples of a
// rank's micro-steps count by their mean: make them equal, and divide the loss by their number as
// usual.
iso_status iso_join_next(iso_join *join, int64_t samples, bool will_sync);
// Local; call it after an error, too. Restores the weights of data_parallel.
void iso_join_end(iso_join **join);

#ifdef __cplusplus
}
#endif
#endif
