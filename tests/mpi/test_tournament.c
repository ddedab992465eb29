// SPDX-License-Identifier: MIT
// Tournaments: trainers that exchange nothing but models, and keep the better one of two. Runs are
// compared with the rule as it is written here: plain runs whose parameters, buffers and optimizer
// state this file moves.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/tournament_fixture.h"
#include "common/types_fixture.h"

#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_tournament, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_tournament, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_tournament, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_tournament, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = TOURNAMENT_STEPS };

// ---- The rule -------------------------------------------------------------------------------------

typedef struct rule {
    tournament_run r; // trains without tournaments
    char *all;        // what all ranks had at the last send
    size_t bytes;
    int64_t sent_at;
    int turn, trainer, trainers, first[8]; // first rank of each trainer
    MPI_Comm node;
} rule;

static void open_rule(rule *u, const tournament_run *like) {
    *u = (rule){0};
    u->r.c = like->c;
    u->r.tournament = like->tournament;
    u->r.c.daso = iso_local_sgd_config(STEPS + 1, STEPS + 1); // the last step would average
    u->r.c.daso.unit = like->c.daso.unit;
    u->r.c.daso.warmup_steps = like->c.daso.warmup_steps;
    iso_assert_ok(daso_open(&u->r.t, MPI_COMM_WORLD, &u->r.c));
    iso_assert_ok(tournament_judge_open(&u->r.j, &u->r.t));
    int size = like->c.daso.unit == ISO_SCOPE_RANK ? 1 : like->c.ranks_per_node;
    u->trainer = test_rank / size;
    u->trainers = (test_size + size - 1) / size;
    for (int i = 0; i < u->trainers; i++) u->first[i] = i * size;
    MPI_Comm_split(MPI_COMM_WORLD, u->trainer, test_rank, &u->node);
    u->bytes = tournament_copy(&u->r, NULL, false);
    u->all = malloc((size_t)test_size * u->bytes);
}

static void close_rule(rule *u) {
    MPI_Comm_free(&u->node);
    free(u->all);
    tournament_close(&u->r);
}

static void send_all(rule *u, int64_t step) {
    char *own = malloc(u->bytes);
    tournament_copy(&u->r, own, false);
    MPI_Allgather(own, (int)u->bytes, MPI_BYTE, u->all, (int)u->bytes, MPI_BYTE, MPI_COMM_WORLD);
    free(own);
    u->sent_at = step;
}

static double score_now(rule *u) {
    iso_evaluation e;
    double sum[2];
    iso_module *model = iso_data_parallel_module(u->r.t.model);
    (void)iso_module_train(model, false);
    if (tournament_judge_model(model, &e, &u->r.j) < 0) return NAN;
    (void)iso_module_train(model, true);
    sum[0] =
        (u->r.tournament.metric == ISO_TOURNAMENT_LOSS ? e.loss : e.accuracy) * TOURNAMENT_ROWS;
    sum[1] = TOURNAMENT_ROWS;
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_DOUBLE, MPI_SUM, u->node);
    return sum[0] / sum[1];
}

static iso_match meet_partner(rule *u, int64_t step) {
    int order[8], partner[8];
    iso__tournament_pairs(TOURNAMENT_SEED, u->turn++, u->trainers, order, partner);
    iso_match m = {.step = step, .trainer = u->trainer, .partner = partner[u->trainer]};
    char *own = malloc(u->bytes);
    m.own = m.theirs = score_now(u);
    if (m.partner != m.trainer) {
        tournament_copy(&u->r, own, false);
        tournament_copy(&u->r, u->all + (size_t)u->first[m.partner] * u->bytes, true);
        m.theirs = score_now(u);
        bool lower = u->r.tournament.metric == ISO_TOURNAMENT_LOSS;
        m.took = isfinite(m.theirs) &&
                 (!isfinite(m.own) || (lower ? m.theirs < m.own : m.theirs > m.own));
        if (!m.took) tournament_copy(&u->r, own, true);
    }
    free(own);
    return m;
}

// All take the model of the trainer with the best score, of equal ones the first.
static void take_best(rule *u) {
    double score[8], own = score_now(u);
    MPI_Allgather(&own, 1, MPI_DOUBLE, score, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    int best = 0;
    for (int i = 1; i < u->trainers; i++)
        if (iso__tournament_better(u->r.tournament.metric, score[u->first[i]],
                                   score[u->first[best]]))
            best = i;
    send_all(u, -1);
    tournament_copy(&u->r, u->all + (size_t)u->first[best] * u->bytes, true);
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static bool same_match(const iso_match *a, const iso_match *b) {
    bool same = a->step == b->step && a->trainer == b->trainer && a->partner == b->partner &&
                a->took == b->took && same_number(a->own, b->own) &&
                same_number(a->theirs, b->theirs);
    if (!same)
        fprintf(stderr, "step %lld, trainer %d: partner %d, %g, %g, took %d, not %d, %g, %g, %d\n",
                (long long)a->step, a->trainer, a->partner, a->own, a->theirs, a->took, b->partner,
                b->own, b->theirs, b->took);
    return same;
}

// What rank 0 was told of every trainer.
static void compare_matches(rule *u, const tournament_run *r, const iso_match *own) {
    iso_match all[8];
    MPI_Allgather(own, sizeof(*own), MPI_BYTE, all, sizeof(*own), MPI_BYTE, MPI_COMM_WORLD);
    bool same = test_rank != 0 || r->j.matches >= u->trainers;
    for (int i = 0; same && test_rank == 0 && i < u->trainers; i++)
        same = same_match(&r->j.match[r->j.matches - u->trainers + i], &all[u->first[i]]);
    iso_assert_all(same);
}

// Bit for bit after every step. Returns how many models moved.
static int follow_rule(tournament_run *r) {
    rule u;
    int64_t moved = 0, period = r->c.daso.global_skip, wait = r->c.daso.batches_to_wait;
    iso_assert_ok(tournament_open(r));
    open_rule(&u, r);
    for (int step = 1; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&r->t, step, NULL));
        iso_assert_ok(trainer_step(&u.r.t, step, NULL));
        int64_t since = step - r->c.daso.warmup_steps;
        if (since > 0 && since % period == 0) send_all(&u, step);
        if (u.sent_at > 0 && step - u.sent_at == wait) {
            iso_match m = meet_partner(&u, step);
            compare_matches(&u, r, &m);
            moved += m.took;
            u.sent_at = 0;
        }
        iso_assert_all(tournament_same(r, &u.r));
        // The first trainer falls far behind, and may diverge.
        if (step == 3 && u.trainer == 0) (void)daso_drift(&r->t, 0.1f);
        if (step == 3 && u.trainer == 0) (void)daso_drift(&u.r.t, 0.1f);
    }
    MPI_Allreduce(MPI_IN_PLACE, &moved, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    close_rule(&u);
    tournament_close(r);
    return (int)moved;
}

static iso_status build_norm(iso_device *device, bool dropout, iso_module **out) {
    iso_module *net, *norm;
    iso_batch_norm_config config = {.num_features = TRAINER_CHANNELS};
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_batch_norm2d_create(device, &config, &norm));
    ISO_TRY(iso_sequential_add_take(net, "norm", norm));
    ISO_TRY(build_smooth(device, dropout, &norm));
    ISO_TRY(iso_sequential_add_take(net, "net", norm));
    *out = net;
    return ISO_OK;
}

static void run_follows_rule(void) {
    for (int i = 0; i < 5; i++) {
        tournament_run r;
        tournament_describe(&r, 2 + i % 2, i == 3 ? 2 : i == 4 ? 1 : 0);
        if (i == 1) r.tournament.keep_state = true;
        if (i == 1 || i == 3) r.c.train.build = build_smooth_mixed;
        if (i == 2) r.tournament.metric = ISO_TOURNAMENT_ACCURACY;
        if (i == 2) r.c.daso.warmup_steps = 2;
        if (i == 4) r.c.train.build = build_norm;
        int moved = follow_rule(&r);
        cr_assert(moved > 0 || test_size == 1, "case %d moved nothing", i);
    }
}
Test(np1_tournament, run_follows_rule) { run_follows_rule(); }
Test(np2_tournament, run_follows_rule) { run_follows_rule(); }
Test(np3_tournament, run_follows_rule) { run_follows_rule(); }
Test(np4_tournament, run_follows_rule) { run_follows_rule(); }

// Trainers of two ranks, and of two and one.
static void nodes_follow_rule(void) {
    for (int i = 0; i < 2; i++) {
        tournament_run r;
        tournament_describe(&r, 3, i);
        r.c.ranks_per_node = 2;
        r.tournament.keep_state = i;
        if (i) r.c.train.build = build_smooth_mixed;
        cr_assert(follow_rule(&r) > 0);
    }
}
Test(np3_tournament, nodes_follow_rule) { nodes_follow_rule(); }
Test(np4_tournament, nodes_follow_rule) { nodes_follow_rule(); }

// ---- One model at the end -------------------------------------------------------------------------

// No tournament comes before the end: trainers train alone, and then all have the best model.
static void ends_with_best(int ranks_per_node) {
    tournament_run r;
    rule u;
    tournament_describe(&r, STEPS + 1, 0);
    r.c.ranks_per_node = ranks_per_node;
    r.c.train.build = ranks_per_node == 1 ? build_norm : build_smooth;
    r.tournament.keep_state = true; // of which the end says nothing
    iso_assert_ok(tournament_open(&r));
    open_rule(&u, &r);
    iso_assert_ok(trainer_go_on(&r.t, 0, STEPS - 1));
    iso_assert_ok(trainer_go_on(&u.r.t, 0, STEPS - 1));
    iso_assert_all(r.j.calls == 0 && tournament_same(&r, &u.r) && !daso_equal(&r.t));
    iso_assert_ok(trainer_step(&r.t, STEPS - 1, NULL));
    iso_assert_ok(trainer_step(&u.r.t, STEPS - 1, NULL));
    take_best(&u);
    iso_assert_all(tournament_same(&r, &u.r) && daso_equal(&r.t));
    iso_assert_ok(iso_daso_finish(r.t.optimizer));
    iso_assert_all(tournament_same(&r, &u.r));
    close_rule(&u);
    tournament_close(&r);
}
Test(np2_tournament, ends_with_the_best_model) { ends_with_best(1); }
Test(np3_tournament, ends_with_the_best_model) { ends_with_best(1); }
Test(np4_tournament, ends_with_the_best_model) { ends_with_best(2); }

// Evaluation shows it, with its buffers, and changes nothing.
static void evaluation_shows_best(void) {
    tournament_run r;
    tournament_describe(&r, 2, 1);
    r.c.train.build = build_norm;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 5));
    iso_assert_all(!daso_equal(&r.t));
    size_t bytes = tournament_copy(&r, NULL, false), buffers;
    char *own = malloc(bytes), *after = malloc(bytes);
    tournament_copy(&r, own, false);
    r.j.calls = 0;
    iso_assert_ok(iso_module_train(r.t.model, false));
    iso_assert_all(daso_equal(&r.t) && r.j.calls == 1);
    buffers = tournament_copy_part(&r, TOURNAMENT_BUFFERS, after, false);
    char *first = malloc(buffers);
    memcpy(first, after, buffers);
    MPI_Bcast(first, (int)buffers, MPI_BYTE, 0, MPI_COMM_WORLD);
    iso_assert_all(buffers > 0 && memcmp(first, after, buffers) == 0);
    iso_assert_ok(iso_module_train(r.t.model, true));
    tournament_copy(&r, after, false);
    iso_assert_all(memcmp(own, after, bytes) == 0);
    iso_assert_ok(trainer_go_on(&r.t, 5, STEPS));
    iso_assert_all(daso_equal(&r.t));
    free(first);
    free(after);
    free(own);
    tournament_close(&r);
}
Test(np2_tournament, evaluation_shows_the_best_model) { evaluation_shows_best(); }
Test(np3_tournament, evaluation_shows_the_best_model) { evaluation_shows_best(); }

// A layer that the program keeps in evaluation mode stays in it, whatever `score` does.
static iso_status score_and_switch(iso_module *model, iso_evaluation *out, void *user) {
    bool evaluates = !model->training && !model->child[0]->training && !model->child[1]->training;
    ISO_CHECK(evaluates, ISO_ERR_STATE, "the model to score is in training mode");
    ISO_TRY(tournament_judge_model(model, out, user));
    return iso_module_train(model, true);
}
Test(np2_tournament, scores_leave_the_mode_of_every_layer) {
    tournament_run r;
    tournament_describe(&r, 2, 0);
    r.c.train.build = build_norm;
    r.tournament.score = score_and_switch;
    iso_assert_ok(tournament_open(&r));
    iso_module *model = iso_data_parallel_module(r.t.model);
    iso_assert_ok(iso_module_train(model->child[0], false));
    size_t bytes = tournament_copy_part(&r, TOURNAMENT_BUFFERS, NULL, false);
    char *before = malloc(bytes), *after = malloc(bytes);
    tournament_copy_part(&r, TOURNAMENT_BUFFERS, before, false);
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&r.t, step, NULL));
        iso_assert_all(model->training && !model->child[0]->training && model->child[1]->training);
    }
    tournament_copy_part(&r, TOURNAMENT_BUFFERS, after, false);
    iso_assert_all(r.j.calls > STEPS / 2 && memcmp(before, after, bytes) == 0);
    free(after);
    free(before);
    tournament_close(&r);
}

// ---- Without an effect ----------------------------------------------------------------------------

// Equal scores: nothing moves.
static iso_status draw(iso_module *model, iso_evaluation *out, void *user) {
    (void)model, (void)user;
    *out = (iso_evaluation){.loss = 0.5, .accuracy = 0.5, .samples = 3};
    return ISO_OK;
}
Test(np2_tournament, of_equal_models_each_trainer_keeps_its_own) {
    for (int i = 0; i < 2; i++) {
        tournament_run r;
        rule u;
        tournament_describe(&r, 2, 0);
        r.tournament.score = draw;
        r.tournament.metric = i ? ISO_TOURNAMENT_ACCURACY : ISO_TOURNAMENT_LOSS;
        iso_assert_ok(tournament_open(&r));
        open_rule(&u, &r);
        iso_assert_ok(trainer_go_on(&r.t, 0, 7));
        iso_assert_ok(trainer_go_on(&u.r.t, 0, 7));
        iso_assert_all(tournament_same(&r, &u.r));
        close_rule(&u);
        tournament_close(&r);
    }
}

// On one rank, for its own model and for the partner's: all are told, and nothing changes.
static void failing_score_is_told(void) {
    for (int call = 1; call <= 2; call++) {
        tournament_run r;
        rule u;
        tournament_describe(&r, 4, 0);
        iso_assert_ok(tournament_open(&r));
        open_rule(&u, &r);
        iso_assert_ok(trainer_go_on(&r.t, 0, 3));
        iso_assert_ok(trainer_go_on(&u.r.t, 0, 4));
        r.j.failing = test_rank == 1 ? call : 0;
        iso_status status = trainer_step(&r.t, 3, NULL);
        const char *own = strstr(iso_last_error()->message, "cannot be read");
        iso_assert_all(status < 0 && own && (status == ISO_ERR_IO || test_rank != 1));
        iso_assert_all(tournament_same(&r, &u.r));
        iso_assert_ok(trainer_go_on(&r.t, 4, 9));
        iso_assert_all(test_rank != 0 || r.j.matches == test_size);
        close_rule(&u);
        tournament_close(&r);
    }
}
Test(np2_tournament, a_score_that_fails_is_told_to_all) { failing_score_is_told(); }
Test(np4_tournament, a_score_that_fails_is_told_to_all) { failing_score_is_told(); }

// ---- Saved state ----------------------------------------------------------------------------------

static uint64_t end_of(tournament_run *r, int stop) {
    uint64_t hash = 0;
    iso_assert_ok(tournament_open(r));
    iso_assert_ok(trainer_go_on(&r->t, 0, stop));
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&r->t, stop, true));
        tournament_close(r);
        iso_assert_ok(tournament_open(r));
        iso_assert_ok(trainer_go_on(&r->t, 0, stop % 4)); // a past of its own
        iso_assert_ok(daso_exchange_state(&r->t, stop, false));
    }
    iso_assert_ok(trainer_go_on(&r->t, stop, STEPS - 1)); // the last step leaves one model
    iso_assert_ok(daso_own_hash(&r->t, &hash));
    tournament_close(r);
    return hash;
}

// Before, at and after a tournament, also with models under way.
static void goes_on(int ranks_per_node) {
    for (int wait = 0; wait < 3; wait += 2) {
        tournament_run r;
        tournament_describe(&r, 3, wait);
        r.c.ranks_per_node = ranks_per_node;
        uint64_t expected = end_of(&r, 0);
        bool same = true;
        for (int stop = 5; stop < 8; stop++) same = end_of(&r, stop) == expected && same;
        iso_assert_all(same);
    }
}
Test(np2_tournament, goes_on_from_a_saved_state) { goes_on(1); }
Test(np3_tournament, goes_on_from_a_saved_state) { goes_on(1); }
Test(np4_tournament, goes_on_from_a_saved_state) { goes_on(2); }

// A value that is not the mean of three of it, as that rounds.
static float uneven_value(void) {
    float value = 0.5f;
    volatile float sum;
    do {
        value += 1e-4f;
        sum = value + value;
        sum = sum + value;
        sum = sum * (1.0f / 3);
    } while (sum == value);
    return value;
}

// Behind the last step all have the model that won. The end of a run that goes on from there keeps
// its buffers to the last bit.
Test(np3_tournament, the_end_of_a_saved_run_keeps_the_best_model) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.c.train.build = build_norm;
    iso_assert_ok(tournament_open(&r));
    size_t bytes = tournament_copy(&r, NULL, false);
    char *ended = malloc(bytes), *resumed = malloc(bytes);
    iso_assert_ok(trainer_go_on(&r.t, 0, STEPS));
    size_t buffers = tournament_copy_part(&r, TOURNAMENT_BUFFERS, NULL, false) / sizeof(float);
    float *values = calloc(buffers, sizeof(*values));
    for (size_t i = 0; i < buffers; i++) values[i] = uneven_value();
    tournament_copy_part(&r, TOURNAMENT_BUFFERS, (char *)values, true);
    free(values);
    iso_assert_ok(daso_exchange_state(&r.t, STEPS, true));
    iso_assert_ok(iso_daso_finish(r.t.optimizer));
    tournament_copy(&r, ended, false);
    tournament_close(&r);
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(daso_exchange_state(&r.t, STEPS, false));
    iso_assert_ok(iso_daso_finish(r.t.optimizer));
    tournament_copy(&r, resumed, false);
    iso_assert_all(memcmp(ended, resumed, bytes) == 0);
    free(resumed);
    free(ended);
    tournament_close(&r);
}
