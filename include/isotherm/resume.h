// SPDX-License-Identifier: MIT
// Saving a training run and resuming it with bit-identical results.
#ifndef ISOTHERM_RESUME_H
#define ISOTHERM_RESUME_H

#include <isotherm/comm.h>
#include <isotherm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iso_state_type {
    ISO_STATE_F32,
    ISO_STATE_F64,
    ISO_STATE_I64,
    ISO_STATE_U8
} iso_state_type;
typedef enum iso_state_owner {
    ISO_STATE_SHARED, // the same on all ranks (checked when saving); rank 0 writes it
    ISO_STATE_OWN     // each rank writes its own
} iso_state_owner;

// A list of named arrays that are saved, or loaded in place. Build it with the same calls for
// saving and for loading.
typedef struct iso_state iso_state;
iso_status iso_state_create(iso_state **out);
void iso_state_destroy(iso_state **state);
// Adds an array of `count` elements. name is copied; data is borrowed until the state is destroyed.
// ISO_ERR_ARG if the name is in use.
iso_status iso_state_add(iso_state *state, iso_state_owner owner, const char *name,
                         iso_state_type type, int64_t count, void *data);

// What an entry that each rank has of its own becomes, the same on all ranks, when another number
// of ranks loads it.
typedef enum iso_own_rule {
    ISO_OWN_REFUSED, // loading fails (the default)
    ISO_OWN_RANK0,   // that of rank 0
    ISO_OWN_MEAN,    // the mean over the ranks that saved it; of integers, the largest
    ISO_OWN_SUM,     // the sum over them
    ISO_OWN_ZERO     // zeros
} iso_own_rule;
// Sets the rule of an entry that was added with ISO_STATE_OWN. ISO_ERR_ARG if there is none of that
// name, or if it has bytes (ISO_STATE_U8) and the rule is MEAN or SUM.
iso_status iso_state_set_own_rule(iso_state *state, const char *name, iso_own_rule rule);
// Lets iso_resume_load take a set that another number of ranks saved, too: call it before loading,
// on all ranks. Loading sets *saved_ranks to the number of ranks that saved the set; it is borrowed
// until the state is destroyed. The program must then train on the same global batches as before:
// iso_loader_convert_state converts the position in the data.
void iso_state_accept_ranks(iso_state *state, int64_t *saved_ranks);
// The state of a periodic mode depends on which ranks share a node, if those train one model (daso)
// or its wire has error feedback. This lets iso_resume_load also take a set that was saved with the
// ranks distributed over nodes in another way, as if another number of ranks had saved it. Loading
// sets *moved to whether it was; it is borrowed until the state is destroyed.
void iso_state_accept_nodes(iso_state *state, bool *moved);

// Collective. Adds the complete state of module and optimizer:
//
//   param/NAME             parameters
//   buffer/NAME            buffers, each rank's own
//   hook_state             state of a communication hook, each rank's own
//   forward_counters       random state of dropout layers, of all ranks
//   optimizer/KIND/...     hyperparameters, step and state of the optimizer; the names are those of
//                          iso_optimizer_state_dict
//
// For a daso optimizer it also adds phase, counters, policy and the exchange in flight; it waits
// for that exchange and saves its result unmerged. If ranks may have different parameters (with
// daso, or if gradients are not averaged over all ranks), each rank saves its own parameters and
// optimizer state. "optimizer/KIND/state.NAME.step" counts the updates of a parameter, of SGD those
// with momentum; if a file of an older version lacks it, the step of the parameter's group is used.
//
// Call it between steps, in training mode. It completes pending updates, so the list is valid until
// the next step: create a new one for each save. Gradients are not saved.
//
// Another number of ranks may load it (iso_state_accept_ranks). Parameters, optimizer state (with
// ZeRO, too) and hyperparameters are those of all ranks. Replicas that an optimizer such as daso
// averages become their mean, with their optimizer state; anchors and the state of an outer
// optimizer stay; what is under way is dropped, with its merge, and so is the error feedback of
// exchanges; bytes are counted anew. It is refused where gradients are not averaged over all ranks
// and nothing exchanges parameters.
//
// On another number of ranks, buffers become the mean over the ranks that saved them; counts, the
// largest. hook_state becomes 0, except for the number of exchanges that a hook with phases has
// counted: so error feedback is dropped, and PowerSGD draws new columns. Rank r takes the random
// state of dropout layers of rank r modulo the number of saved ranks: as masks depend on the row in
// the global batch, they are those of the run that was saved.
//
// ISO_ERR_UNSUPPORTED for a user-defined optimizer without a state function, and for a model with
// several optimizers.
iso_status iso_training_state(iso_module *module, iso_optimizer *optimizer, iso_state *state);
// Collective. Call it once after loading: adapts module and optimizer to the loaded state.
iso_status iso_training_loaded(iso_module *module, iso_optimizer *optimizer);

// A saved state is a set of safetensors files with checksums, written as iso_checkpoint_save writes
// its file. PATH.step-STEP (12 digits) has the shared entries. If any rank has own entries, each
// rank also writes PATH.step-STEP.rank-RANK (5 digits). Ranks may write to different folders.

// Collective. Saves the set of step `step`. The shared file is written last and marks the set as
// complete. So after the first save a complete set always exists, even if the machine crashes.
// Afterwards removes old sets except the previous one, and, with a warning, sets of later steps:
// they belong to an abandoned run. The next save under the same PATH removes the unfinished files
// of a killed run.
//
// If any rank fails, every rank gets the error, and older sets are kept. ISO_ERR_MISMATCH if ranks
// disagree on a shared entry; the message names it. ISO_ERR_STATE for a parameter with NaN or
// infinite elements: nothing is written, so the last good set is kept.
iso_status iso_resume_save(iso_comm *comm, const char *path, int64_t step, const iso_state *state);
// Local. Returns the highest step with a shared file under PATH, or -1 without one. It does not
// read the file, which may be damaged.
iso_status iso_resume_newest(const char *path, int64_t *step);
// Local. Removes all sets under PATH that this process can see. Several processes may call it at
// the same time. Logs a warning for each file that it cannot remove.
iso_status iso_resume_remove(const char *path);
// Collective. Loads the newest set that is complete and undamaged on all ranks; *step is its step.
// It skips damaged and incomplete newer sets, with a warning that names the file. ISO_ERR_MISMATCH
// if the set was saved by another number of ranks (but see iso_state_accept_ranks), on other nodes
// (iso_state_accept_nodes), or with another model or settings; ISO_ERR_IO if there is no set, or
// none that is complete and undamaged. Nothing is changed on failure.
//
// If another number of ranks saved the set, rank 0 reads the files of all ranks: they must be where
// it reads its own. ISO_ERR_MISMATCH for an own entry without a rule; the message names it.
iso_status iso_resume_load(iso_comm *comm, const char *path, const iso_state *state, int64_t *step);
// Collective. Copies one shared entry of `bytes` bytes to `data`, from the newest set in which it
// is undamaged. This lets a program read its saved settings before it creates the model.
// ISO_ERR_MISMATCH if there is no entry of that name and size, ISO_ERR_IO if there is no set,
// ISO_ERR_FORMAT or ISO_ERR_IO if all sets are damaged.
iso_status iso_resume_read(iso_comm *comm, const char *path, const char *name, size_t bytes,
                           void *data);

#ifdef __cplusplus
}
#endif
#endif
