// SPDX-License-Identifier: MIT
// For tests of periodic training: opens real runs of daso and daso_heat, and compares them with the
// serial model.
#ifndef ISO_TEST_DASO_FIXTURE_H
#define ISO_TEST_DASO_FIXTURE_H

#include "common/daso_model.h"

// The largest difference between a real run and the model, relative to the largest parameter. They
// sum in different orders, and training lets the difference grow, but over the at most 60 steps of
// these tests it stays below this if the network is smooth (build_smooth). A merge that is off by
// one step, or a wrong weight, makes a difference of 1e-3 or more.
#define DASO_ROUNDING 1e-5

typedef struct daso_case {
    int ranks_per_node; // ISO_RANKS_PER_NODE
    trainer_config train;
    bool heat; // which of the two is used
    iso_daso_config daso;
    iso_daso_heat_config heat_config;
    int delay_us; // before each step this rank sleeps for a random time below this
} daso_case;

// The layers of the small CNN without relu and max-pool, so that a rounding error never changes a
// branch.
iso_status build_smooth(iso_device *device, bool dropout, iso_module **out);
// f32, no warm-up, no cool-down, two rows for each rank, SGD with momentum, build_smooth.
daso_case daso_case_default(int64_t total_steps);
// The same for daso_heat: f32, one epoch of warm-up and of cool-down.
daso_case heat_case_default(int64_t total_epochs);
// Opens a run over mpi_comm: t->comm is a communicator of its own, t->optimizer the daso.
iso_status daso_open(trainer *t, MPI_Comm mpi_comm, const daso_case *c);
void daso_close(trainer *t);
// Collective. Whether c is refused with this status and a message that contains `said`.
bool daso_refused(const daso_case *c, iso_status expected, const char *said);
// Collective. Saves the complete state of step `step` to resume_path of resume_fixture.h, or loads
// the newest one there.
iso_status daso_exchange_state(trainer *t, int64_t step, bool save);
// Collective. The hash of this rank's parameters after `end` steps. stop: after so many steps the
// run is saved, and goes on in a new one; 0: it is not.
uint64_t daso_end_of(const daso_case *c, int stop, int end);
iso_status daso_model_open(daso_model *m, const trainer *t, const daso_case *c);

// The difference between this rank's parameters and those of the model for this rank. Completes
// updates.
iso_status daso_difference(trainer *t, const daso_model *m, double *out);
// Whether that difference is below DASO_ROUNDING, or another bound. Prints `where` if not.
bool daso_follows(trainer *t, const daso_model *m, const char *where);
bool daso_follows_within(trainer *t, const daso_model *m, double most, const char *where);
// The hash of this rank's parameters, which may differ between ranks. Completes updates.
iso_status daso_own_hash(trainer *t, uint64_t *out);
// Collective. Whether all ranks have the same parameters, to the last bit.
bool daso_equal(trainer *t);

// Trains c->daso.total_steps steps, looking at parameters every `look` steps (0: never), finishes,
// and hands out the hash that all ranks end with.
iso_status daso_hash(MPI_Comm mpi_comm, const daso_case *c, int look, uint64_t *out);
// trainer_step after the delay of c.
iso_status daso_delayed_step(trainer *t, const daso_case *c, int step);

// Sets the last value of the last parameter, whose exchange is complete. Returns the value before;
// NaN: it failed.
float daso_swap_last(trainer *t, float value);
// One step in which `value` stands there from backward until step() returns, if `here`.
iso_status daso_poisoned_step(trainer *t, int step, bool here, float value);
// Collective. Whether all ranks have the same status.
bool daso_same_status(iso_status status);

// Adds amount * (k mod 7) to element k of the trainable parameters taken as one array. Replaces
// training if lr is 0, so that the result of a merge is known in closed form.
iso_status daso_drift(trainer *t, float amount);
// This rank's trainable parameters in one array, to be freed with free(); NULL on failure. f64 is
// rounded.
float *daso_values(trainer *t, int64_t *count);

#endif
