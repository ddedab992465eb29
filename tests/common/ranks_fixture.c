// SPDX-License-Identifier: MIT
// For tests of trainings that go on with another number of ranks.
#include "common/ranks_fixture.h"

#include "base/base.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"

bool ranks_moved;

MPI_Comm ranks_split(int size) {
    MPI_Comm some;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < size ? 0 : MPI_UNDEFINED, 0, &some);
    return some;
}

static iso_status list_state(trainer *t, int64_t *saved_ranks, iso_state **out) {
    ISO_TRY(iso_state_create(out));
    ISO_TRY(iso_training_state(t->model, t->optimizer, *out));
    if (saved_ranks) iso_state_accept_ranks(*out, saved_ranks);
    if (saved_ranks) iso_state_accept_nodes(*out, &ranks_moved);
    return ISO_OK;
}

iso_status ranks_save(trainer *t, int step) {
    iso_state *state;
    ISO_TRY(list_state(t, NULL, &state));
    iso_status status = iso_resume_save(t->comm, resume_path(), step, state);
    iso_state_destroy(&state);
    return status;
}

iso_status ranks_load(trainer *t, int64_t *saved_ranks) {
    iso_state *state;
    int64_t step;
    ISO_TRY(list_state(t, saved_ranks, &state));
    iso_status status = iso_resume_load(t->comm, resume_path(), state, &step);
    if (status >= 0) status = iso_training_loaded(t->model, t->optimizer);
    iso_state_destroy(&state);
    return status;
}
