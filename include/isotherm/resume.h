// What a run needs to go on with the same bits, and the files that hold it.
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
    ISO_STATE_SHARED, // the same on every rank, which saving checks: rank 0's is written
    ISO_STATE_OWN     // every rank writes its own
} iso_state_owner;

// A list of named memory that is saved, or loaded in place. The same calls make it for both.
typedef struct iso_state iso_state;
iso_status iso_state_create(iso_state **out);
void iso_state_destroy(iso_state **state);
// name is copied; data is borrowed until the state is destroyed. ISO_ERR_ARG for a name used
// before.
iso_status iso_state_add(iso_state *state, iso_state_owner owner, const char *name,
                         iso_state_type type, int64_t count, void *data);

// Adds everything of module and optimizer: parameters ("param/NAME"), buffers ("buffer/NAME", each
// rank's own), what a communication hook keeps ("hook_state", each rank's own), what random layers
// draw from ("forward_counters": of all ranks), hyperparameters, step and state of the optimizer
// ("optimizer/KIND/..." and the names of iso_optimizer_state_dict), and of a daso optimizer phase, counters, policy and
// the exchange under way, which is waited for and kept unmerged. Where ranks may have different
// parameters (daso, gradients averaged less than over all ranks) they are own entries. Collective;
// completes pending updates, and so holds until the next step: make a new list to save again.
// Call it between steps, in training mode; gradients are not saved. ISO_ERR_UNSUPPORTED for an
// optimizer of the caller's without a state function, and for a model that several are tied to.
// "optimizer/KIND/state.NAME.step" is how often a parameter was updated; files of versions that did
// not save it still load, and mean the step of its group.
iso_status iso_training_state(iso_module *module, iso_optimizer *optimizer, iso_state *state);
// Collective. Once after loading: brings module and optimizer in line with what was loaded.
iso_status iso_training_loaded(iso_module *module, iso_optimizer *optimizer);

// Saved state is a set of files: PATH.step-STEP (12 digits) for shared entries, and if any rank has
// own ones PATH.step-STEP.rank-RANK (5 digits) of every rank, each a safetensors file written as
// iso_checkpoint_save does, with checksums. Folders of ranks may be different ones.

// Collective. Writes the set of step `step`, the shared file last, so that it stands for a whole
// set: whenever the machine stops, there is a whole one. Then removes older sets but the last one,
// and, with a warning, sets of later steps, which belong to a run that was given up. On failure of
// any rank every rank gets the error, and older sets stay alone. What a killed run left unfinished
// the next save of the same PATH removes. ISO_ERR_MISMATCH names a shared entry
// that ranks do not have in common.
// A parameter that is not finite is an error of its rank: what is good stays.
iso_status iso_resume_save(iso_comm *comm, const char *path, int64_t step, const iso_state *state);
// Local. The highest step of which something was saved under PATH; -1: nothing.
iso_status iso_resume_newest(const char *path, int64_t *step);
// Local. Removes all sets that were saved under PATH and that this process can see; several may do
// so at once. What cannot be removed is warned of.
iso_status iso_resume_remove(const char *path);
// Collective. Loads the newest set that is whole and sound on every rank; *step is its step.
// Damaged or incomplete newer sets are passed over with a warning that names the file.
// ISO_ERR_MISMATCH for a set of another number of ranks or of another model or settings; ISO_ERR_IO
// when there is no set. Nothing is changed on failure.
iso_status iso_resume_load(iso_comm *comm, const char *path, const iso_state *state, int64_t *step);
// Collective. Copies one shared entry of `bytes` bytes from the newest set in which it is sound, so
// that a program can compare the settings it saved before it makes what they describe.
// ISO_ERR_MISMATCH where there is no entry of that name and size, ISO_ERR_IO when there is no set,
// ISO_ERR_FORMAT when all are damaged.
iso_status iso_resume_read(iso_comm *comm, const char *path, const char *name, size_t bytes,
                           void *data);

#ifdef __cplusplus
}
#endif
#endif
