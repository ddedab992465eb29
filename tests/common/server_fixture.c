// SPDX-License-Identifier: MIT
// For tests of the parameter server: runs, what they tell, and the comparison with the model.
#include "common/server_fixture.h"

#include "common/mpi_fixture.h"
#include "common/server_model.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <string.h>

daso_case server_case(int64_t warmup) {
    daso_case c = daso_case_default(SERVER_STEPS);
    c.daso = iso_server_config(SERVER_STEPS, SERVER_PERIOD);
    c.daso.warmup_steps = warmup;
    return c;
}

// ---- Steps ----------------------------------------------------------------------------------------

bool server_only(const daso_case *c) { return test_rank >= test_size - c->daso.servers; }

static iso_status make_step(trainer *t, const daso_case *c, int step) {
    return server_only(c) ? iso_optimizer_step(t->optimizer) : daso_delayed_step(t, c, step);
}

iso_status server_try(trainer *t, const daso_case *c, int from, int to) {
    for (int step = from; step < to; step++) ISO_TRY(make_step(t, c, step));
    return ISO_OK;
}

void server_train(trainer *t, const daso_case *c, int from, int to) {
    iso_assert_ok(server_try(t, c, from, to));
}

iso_status server_step_with(trainer *t, const daso_case *c, int other, int from, int to) {
    iso_status status = ISO_OK;
    for (int step = from; step < to && status == ISO_OK; step++) {
        MPI_Sendrecv(&step, 1, MPI_INT, other, 0, &(int){0}, 1, MPI_INT, other, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        status = make_step(t, c, step);
    }
    return status;
}

// ---- What ranks did -------------------------------------------------------------------------------

static void note_change(const iso_daso_change *change, void *user) {
    server_script *s = user;
    cr_assert(s->count < SERVER_CHANGES && change->cause == ISO_CAUSE_RANK);
    s->change[s->count++] = *change;
}

void server_note(daso_case *c, server_script *s) {
    s->count = 0;
    c->daso.changed = test_rank == 0 ? note_change : NULL;
    c->daso.changed_user = s;
}

void server_share(server_script *s) {
    MPI_Bcast(s, (int)sizeof(*s), MPI_BYTE, 0, MPI_COMM_WORLD);
    iso_assert_all(s->count > 0);
}

static void use_script(daso_case *c, const server_script *s) {
    c->daso.replay = s->change;
    c->daso.replay_count = s->count;
}

int server_events(const server_script *s, int rank, int64_t kind) {
    int count = 0;
    for (int i = 0; i < s->count; i++)
        count += s->change[i].rank == rank && s->change[i].actions % 4 == kind;
    return count;
}

// ---- The model ------------------------------------------------------------------------------------

// Drift of a rank in a step, from 1, in the place of training.
static float drift_of(int rank, int64_t step) {
    return (step % 2 ? 0.01f : -0.007f) * (float)(rank + 1 + step % 3);
}

// Keeps the parameters after each step, and what the model has to make of them.
void server_follows_the_model(iso_status (*build)(iso_device *, bool, iso_module **), double scale,
                              int64_t period, int servers) {
    trainer t;
    server_script s;
    server_model m;
    daso_case c = server_case(0);
    c.train.hyper.lr = 0;
    c.train.build = build;
    c.delay_us = test_rank % 2 ? 3000 : 1000;
    c.daso.push_scale = scale;
    c.daso.global_skip = period;
    c.daso.servers = servers;
    server_note(&c, &s);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_all(server_model_open(&m, t.model, test_size, servers, SERVER_STEPS, scale, period));
    iso_status status = ISO_OK;
    for (int step = 1; step <= SERVER_STEPS && status == ISO_OK; step++) {
        // step() works on what was there before it, and the drift is the update
        if (!server_only(&c)) status = daso_drift(&t, drift_of(test_rank, step));
        if (status == ISO_OK) status = make_step(&t, &c, step - 1);
        if (status == ISO_OK && !server_model_keep(&m, t.model, step)) status = ISO_ERR_STATE;
    }
    iso_assert_ok(status);
    server_share(&s);
    iso_assert_all(server_model_run(&m, s.change, s.count, drift_of));
    iso_assert_all(server_model_agrees(&m, test_rank));
    iso_assert_all(daso_equal(&t));
    server_model_close(&m);
    daso_close(&t);
}

// ---- Repeating ------------------------------------------------------------------------------------

// Evaluates, completes, saves, and trains on. *hash: of this rank's own parameters before the end.
static void run_with_stops(const daso_case *c, int save_at, bool resumes, uint64_t *hash) {
    trainer t;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    server_train(&t, c, 0, 6);
    iso_module_train(t.model, false);
    iso_assert_all(daso_equal(&t));
    iso_module_train(t.model, true);
    server_train(&t, c, 6, save_at);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(daso_exchange_state(&t, save_at, true));
    if (resumes) {
        daso_close(&t);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
        iso_assert_ok(daso_exchange_state(&t, save_at, false));
    }
    server_train(&t, c, save_at, SERVER_STEPS - 1);
    iso_assert_ok(daso_own_hash(&t, hash));
    server_train(&t, c, SERVER_STEPS - 1, SERVER_STEPS);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

void server_repeats(iso_status (*build)(iso_device *, bool, iso_module **), int64_t warmup,
                    int servers) {
    static server_script first, second;
    uint64_t hash, again, resumed;
    daso_case c = server_case(warmup);
    c.train.build = build;
    c.delay_us = test_rank % 2 ? 3000 : 1000;
    c.daso.servers = servers;
    server_note(&c, &first);
    run_with_stops(&c, 13, false, &hash);
    server_share(&first);
    for (int r = 0; r < test_size; r++) {
        bool serves = servers == 0 || r >= test_size - servers;
        bool merges = servers == 0 || !serves;
        iso_assert_all((server_events(&first, r, 1) > 0) == serves);
        iso_assert_all((server_events(&first, r, 2) > 0) == merges);
    }
    use_script(&c, &first);
    server_note(&c, &second);
    c.delay_us = test_rank % 2 ? 0 : 2000;
    run_with_stops(&c, 13, false, &again);
    iso_assert_all(again == hash);
    iso_assert_all(test_rank > 0 || (first.count == second.count &&
                                     memcmp(first.change, second.change,
                                            (size_t)first.count * sizeof(*first.change)) == 0));
    c.daso.changed = NULL;
    run_with_stops(&c, 13, true, &resumed);
    iso_assert_all(resumed == hash);
}
