// SPDX-License-Identifier: MIT
// For tests of tournaments: runs, the score of a model, and what a trainer has.
#include "common/tournament_fixture.h"
#include "common/mpi_fixture.h"
#include "common/tensor_access.h"

#include "optim/optim_impl.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_OUT = 1000 }; // a batch that no step trains on

// ---- Scores ---------------------------------------------------------------------------------------

iso_status tournament_judge_open(tournament_judge *j, trainer *t) {
    void *data;
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    int64_t shape[4] = {TOURNAMENT_ROWS, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    ISO_TRY(iso_loss_create(t->device, ISO_CROSS_ENTROPY, &j->loss));
    ISO_TRY(iso_tensor_create(t->device, ISO_F32, 4, shape, &j->batch));
    ISO_TRY(iso_tensor_map(j->batch, ISO_WRITE, &data));
    for (int r = 0; r < TOURNAMENT_ROWS; r++)
        trainer_row((float *)data + r * pixels, HELD_OUT + test_rank, r, &j->labels[r]);
    return iso_tensor_unmap(j->batch);
}

void tournament_judge_close(tournament_judge *j) {
    iso_tensor_destroy(&j->batch);
    iso_loss_destroy(&j->loss);
}

iso_status tournament_judge_model(iso_module *model, iso_evaluation *out, void *user) {
    tournament_judge *j = user;
    iso_tensor *output;
    int64_t correct;
    j->calls++;
    ISO_CHECK(j->calls != j->failing, ISO_ERR_IO, "the held-out samples cannot be read");
    ISO_TRY(iso_module_forward(model, j->batch, &output));
    ISO_TRY(iso_loss_compute(j->loss, output, j->labels, &out->loss, &correct, NULL));
    out->accuracy = (double)correct / TOURNAMENT_ROWS;
    out->samples = TOURNAMENT_ROWS;
    return ISO_OK;
}

static void note_match(const iso_match *match, void *user) {
    tournament_judge *j = user;
    if (j->matches < TOURNAMENT_MATCHES) j->match[j->matches++] = *match;
}

// ---- Runs -----------------------------------------------------------------------------------------

static iso_tournament tournament_of(tournament_judge *j) {
    return (iso_tournament){
        .score = tournament_judge_model, .told = note_match, .user = j, .seed = TOURNAMENT_SEED};
}

void tournament_describe(tournament_run *r, int64_t period, int64_t wait) {
    *r = (tournament_run){.c = daso_case_default(TOURNAMENT_STEPS),
                          .tournament = tournament_of(&r->j)};
    r->c.train.hyper.lr = 0.05; // trainers differ
    r->c.daso = iso_tournament_config(TOURNAMENT_STEPS, period, &r->tournament);
    r->c.daso.batches_to_wait = wait;
}

iso_status tournament_open(tournament_run *r) {
    r->c.daso.tournament = &r->tournament;
    ISO_TRY(daso_open(&r->t, MPI_COMM_WORLD, &r->c));
    return tournament_judge_open(&r->j, &r->t);
}

void tournament_close(tournament_run *r) {
    tournament_judge_close(&r->j);
    daso_close(&r->t);
}

// ---- What a trainer has ---------------------------------------------------------------------------

size_t tournament_copy_part(tournament_run *r, tournament_part part, char *memory, bool in) {
    size_t bytes = 0;
    iso_parameter_list parameters;
    iso_buffer_list buffers;
    const iso__base_optimizer *core = iso__optimizer_innermost(r->t.optimizer);
    if (iso_data_parallel_finish(r->t.model) < 0 ||
        iso_module_parameters(r->t.model, &parameters) < 0 ||
        iso_module_buffers(r->t.model, &buffers) < 0)
        return 0;
    int count = part == TOURNAMENT_PARAMETERS ? parameters.count
                : part == TOURNAMENT_BUFFERS  ? buffers.count
                                              : ISO_OPTIMIZER_STATES;
    for (int i = 0; i < count; i++) {
        iso_tensor *value = part == TOURNAMENT_PARAMETERS ? parameters.item[i]->value
                            : part == TOURNAMENT_BUFFERS  ? buffers.item[i]->value
                                                          : core->state[i];
        if (!value || iso_tensor_dtype(value) == ISO_I64) continue;
        if (memory && in) (void)tensor_set(value, memory + bytes);
        if (memory && !in) (void)tensor_get(value, memory + bytes);
        bytes += tensor_bytes(value);
    }
    iso_parameter_list_destroy(&parameters);
    iso_buffer_list_destroy(&buffers);
    return bytes;
}

size_t tournament_copy(tournament_run *r, char *memory, bool in) {
    size_t bytes = tournament_copy_part(r, TOURNAMENT_PARAMETERS, memory, in);
    bytes += tournament_copy_part(r, TOURNAMENT_BUFFERS, memory ? memory + bytes : NULL, in);
    if (r->tournament.keep_state) return bytes;
    return bytes + tournament_copy_part(r, TOURNAMENT_STATE, memory ? memory + bytes : NULL, in);
}

bool tournament_same(tournament_run *a, tournament_run *b) {
    size_t bytes = tournament_copy(a, NULL, false);
    char *x = malloc(bytes), *y = malloc(bytes);
    tournament_copy(a, x, false);
    tournament_copy(b, y, false);
    bool same = bytes > 0 && memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}
