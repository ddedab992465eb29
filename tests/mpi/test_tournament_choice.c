// SPDX-License-Identifier: MIT
// Tournaments in which some parameters move, and the others stay with their trainer.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/tournament_fixture.h"
#include "common/types_fixture.h"

#include "optim/optim_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_tournament_choice, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

// ---- What moves -----------------------------------------------------------------------------------

static bool weights_move(const char *name, void *user) {
    (void)user;
    return strstr(name, "weight") || strstr(name, "mean");
}
static bool none_moves(const char *name, void *user) {
    (void)name, (void)user;
    return false;
}
static bool other_moves(const char *name, void *user) {
    return weights_move(name, user) != (test_rank == 1);
}

static iso_status build_norm(iso_device *device, bool dropout, iso_module **out) {
    iso_module *net, *norm;
    iso_batch_norm_config config = {.num_features = TRAINER_CHANNELS};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_batch_norm2d_create(device, &config, &norm));
    ISO_TRY(iso_sequential_add_take(net, "norm", norm));
    ISO_TRY(build_smooth_mixed(device, dropout, &norm));
    ISO_TRY(iso_sequential_add_take(net, "net", norm));
    *out = net;
    return ISO_OK;
}

static iso_status rank0_wins(iso_module *model, iso_evaluation *out, void *user) {
    (void)model;
    tournament_judge *j = user;
    bool theirs = j->calls++ % 2, first = test_rank == 0;
    *out = (iso_evaluation){.loss = first != theirs ? 1 : 2, .samples = 1};
    return ISO_OK;
}

// Whether both ranks have the same.
static bool is_common(const char *own, size_t bytes) {
    char *first = malloc(bytes);
    memcpy(first, own, bytes);
    MPI_Bcast(first, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    int same = memcmp(first, own, bytes) == 0;
    free(first);
    MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return same;
}

static size_t value_bytes(const iso_tensor *value) {
    return (size_t)value->count * iso_dtype_size(value->dtype);
}

// Parameters, and momentum unless it stays: what moves is common now, and nothing else is.
static bool compare_parameters(tournament_run *r, int count[2]) {
    const iso__base_optimizer *core = iso__optimizer_innermost(r->t.optimizer);
    bool good = true;
    for (int i = 0; i < core->count; i++) {
        const iso__slot *slot = &core->slot[i];
        size_t bytes = value_bytes(slot->parameter->value);
        bool moves = weights_move(slot->name, NULL);
        count[moves]++;
        good = is_common(slot->parameter->value->data, bytes) == moves && good;
        char *state = (char *)core->state[0]->data + slot->offset;
        good = is_common(state, bytes) == (moves && !r->tournament.keep_state) && good;
    }
    return good;
}

static bool compare_buffers(tournament_run *r) {
    iso_buffer_list buffers;
    bool good = true;
    if (iso_module_buffers(r->t.model, &buffers) < 0) return false;
    for (int i = 0; i < buffers.count; i++) {
        const iso_tensor *value = buffers.item[i]->value;
        if (value->dtype == ISO_I64) continue;
        bool moves = weights_move(buffers.name[i], NULL);
        good = is_common(value->data, value_bytes(value)) == moves && good;
    }
    iso_buffer_list_destroy(&buffers);
    return good;
}

// Those that stay, as they were: nothing is learned, so a model changes in tournaments only.
static bool kept_own(tournament_run *r, const char *before) {
    const iso__base_optimizer *core = iso__optimizer_innermost(r->t.optimizer);
    bool good = true;
    for (int i = 0; i < core->count; i++) {
        size_t bytes = value_bytes(core->slot[i].parameter->value);
        bool same = memcmp(core->slot[i].parameter->value->data, before, bytes) == 0;
        bool stays = test_rank == 0 || !weights_move(core->slot[i].name, NULL);
        good = good && same == stays;
        before += bytes;
    }
    return good;
}

Test(np2_tournament_choice, the_others_stay) {
    for (int i = 0; i < 3; i++) {
        tournament_run r;
        int count[2] = {0};
        tournament_describe(&r, 3, i == 2 ? 1 : 0);
        r.c.train.build = build_norm;
        r.c.train.hyper.lr = 0;
        r.tournament.keep_state = i == 1;
        r.tournament.score = rank0_wins;
        if (i == 1)
            r.tournament.weights = "norm.running_mean,*weight";
        else
            r.tournament.moves = weights_move;
        iso_assert_ok(tournament_open(&r));
        iso_assert_ok(daso_drift(&r.t, 0.01f * (float)(1 + test_rank)));
        char *before = malloc(tournament_copy_part(&r, TOURNAMENT_PARAMETERS, NULL, false));
        tournament_copy_part(&r, TOURNAMENT_PARAMETERS, before, false);
        iso_assert_ok(trainer_go_on(&r.t, 0, 3));
        if (i == 2) iso_assert_ok(trainer_step(&r.t, 3, NULL));
        iso_assert_ok(iso_data_parallel_finish(r.t.model));
        bool good = compare_parameters(&r, count);
        iso_assert_all(kept_own(&r, before) && count[0] > 0 && count[1] > 0);
        // With a wait, state and statistics come from the send: they are compared without one.
        iso_assert_all(i == 2 || (good && compare_buffers(&r)));
        free(before);
        tournament_close(&r);
    }
}

// All that moves is a plain tournament.
static bool all_move(const char *name, void *user) {
    (void)user;
    return name != NULL;
}
Test(np2_tournament_choice, of_all_is_none) {
    tournament_run plain, all;
    tournament_describe(&plain, 3, 1);
    tournament_describe(&all, 3, 1);
    all.tournament.moves = all_move;
    iso_assert_ok(tournament_open(&plain));
    iso_assert_ok(tournament_open(&all));
    iso_assert_ok(trainer_go_on(&plain.t, 0, 9));
    iso_assert_ok(trainer_go_on(&all.t, 0, 9));
    iso_assert_all(tournament_same(&plain, &all));
    tournament_close(&all);
    tournament_close(&plain);
}

Test(np2_tournament_choice, wrong_choices_are_refused) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.c.daso.tournament = &r.tournament;
    r.tournament.moves = none_moves;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "lets none of"));
    r.tournament.weights = "*";
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "both moves and weights"));
    r.tournament.moves = NULL;
    r.tournament.weights = "*weight,wieght*";
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "has a name like \"wieght*\""));
    r.tournament.weights = "*weight,";
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "has a name like \"\""));
    r.tournament.weights = test_rank == 0 ? "*weight" : "*bias";
    iso_assert_all(daso_refused(&r.c, ISO_ERR_MISMATCH, "ranks"));
    char text[4000]; // longer than the text by which ranks compare settings, and slow to match
                     // naively
    memset(text, '*', sizeof(text) - 1);
    memcpy(text + sizeof(text) - 6, "none!", 6);
    r.tournament.weights = text;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "has a name like"));
    r.tournament.weights = NULL;
    r.tournament.moves = other_moves;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_MISMATCH, "ranks let different parameters move"));
    r.tournament.moves = test_rank == 0 ? weights_move : NULL;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_MISMATCH, "ranks let different parameters move"));
}

// ---- Products of factors ----------------------------------------------------------------------------

// NAdam's products, of as many updates, differ if beta1 does. They go with the optimizer state that
// they belong to.
static void products_go_with_state(bool choose, bool keep) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.c.train.optimizer = ISO_NADAM;
    r.c.train.hyper = iso_hyper_default(ISO_NADAM);
    r.c.train.hyper.beta1 = test_rank == 0 ? 0.9 : 0.5;
    r.c.train.build = build_norm;
    r.tournament.score = rank0_wins;
    r.tournament.keep_state = keep;
    if (choose) r.tournament.moves = weights_move;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 3));
    const iso__base_optimizer *core = iso__optimizer_innermost(r.t.optimizer);
    for (int i = 0; i < core->count; i++) {
        bool moves = !keep && (!choose || weights_move(core->slot[i].name, NULL));
        double product = core->slot[i].product;
        iso_assert_all(product > 0 && product < 1 && core->slot[i].step == 3);
        iso_assert_all(is_common((const char *)&product, sizeof(product)) == moves);
    }
    tournament_close(&r);
}
Test(np2_tournament_choice, products_go_with_state) {
    products_go_with_state(false, false);
    products_go_with_state(true, false);
    products_go_with_state(false, true);
}
