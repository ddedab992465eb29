// SPDX-License-Identifier: MIT
// Several optimizers on one DataParallel: lazy while each parameter has one of them, at once and
// with a warning where two share one.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "optim/optim_impl.h"
#include "parallel/reducer/reducer_impl.h"

#include <criterion/criterion.h>
#include <isotherm/resume.h>
#include <isotherm/state_dict.h>
#include <isotherm/trace.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_several_optimizers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_several_optimizers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_several_optimizers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_several_optimizers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 8, MOST = 3 };

// Each over a child of the model; -1: over all of it.
typedef struct several {
    int count, child[MOST];
    iso_optimizer_kind kind[MOST];
    double lr[MOST];
} several;

// A trainer whose optimizers are these instead of its own.
typedef struct team {
    trainer t;
    int count;
    iso_optimizer *optimizer[MOST];
} team;

// body (conv1 to flatten), head (fc1, fc2).
static iso_status build_halves(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *body, *head;
    iso_layer conv[] = {{.kind = ISO_CONV2D, .out = 4, .size = 3, .relu = true},
                        {.kind = ISO_CONV2D, .out = 6, .size = 3, .relu = true},
                        {.kind = ISO_MAX_POOL2D, .size = 2},
                        {.kind = ISO_FLATTEN}};
    int64_t sample[3] = {TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_module *m;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_sequential_build(device, sample, conv, 4, &rng, &body);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "body", body);
    if (status == ISO_OK) status = iso_sequential_create(device, &head);
    if (status == ISO_OK) status = iso_linear_create(device, 54, 16, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(head, "fc1", m);
    if (status == ISO_OK) status = iso_relu_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(head, "relu", m);
    if (status == ISO_OK) status = iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(head, "fc2", m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "head", head);
    *out = net;
    return status;
}

static trainer_config halves_config(iso_sync sync) {
    trainer_config config = trainer_default();
    config.build = build_halves;
    config.sync = sync;
    return config;
}

static iso_optimizer *tie(trainer *t, const several *s, int i) {
    iso_optimizer *inner = NULL, *tied = NULL;
    iso_module *net = iso_data_parallel_module(t->model);
    iso_hyper hyper = iso_hyper_default(s->kind[i]);
    if (s->kind[i] == ISO_SGD) hyper.momentum = 0.9;
    hyper.lr = s->lr[i];
    iso_module *part = s->child[i] < 0 ? net : net->child[s->child[i]];
    iso_assert_ok(iso_optimizer_create(s->kind[i], part, &hyper, &inner));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, t->model, &tied));
    return tied;
}

static void open_team(team *m, iso_comm *comm, const trainer_config *config, const several *s) {
    iso_assert_ok(trainer_create(&m->t, comm, config));
    iso_optimizer_destroy(&m->t.optimizer);
    m->count = s->count;
    for (int i = 0; i < s->count; i++) m->optimizer[i] = tie(&m->t, s, i);
}

static void close_team(team *m) {
    for (int i = 0; i < m->count; i++) iso_optimizer_destroy(&m->optimizer[i]);
    trainer_destroy(&m->t);
}

// Which of them drop their gradients before each step, and which make it, in which order.
typedef struct plan {
    bool swapped;
    bool one_at_a_time; // step % count
    bool keeps[MOST];   // its gradients add up over the steps
    bool schedule;      // of its own: lr of each changes in its own way
    bool zero_late;     // zero_grad directly after step
} plan;

static iso_status train_step(team *m, const plan *p, int step) {
    for (int i = 0; i < m->count; i++)
        if (!p->keeps[i] && !p->zero_late) iso_optimizer_zero_grad(m->optimizer[i]);
    iso_status status = trainer_backward(&m->t, step);
    if (status == ISO_OK && iso_data_parallel_reducer(m->t.model)->sync == ISO_SYNC_EXPLICIT)
        status = iso_data_parallel_all_reduce_gradients(m->t.model);
    for (int k = 0; status == ISO_OK && k < m->count; k++) {
        int i = p->swapped ? m->count - 1 - k : k;
        if (p->one_at_a_time && step % m->count != i) continue;
        if (p->schedule) iso_optimizer_hyper(m->optimizer[i])->lr *= i == 0 ? 0.9 : 1.05;
        status = iso_optimizer_step(m->optimizer[i]);
        if (p->zero_late) iso_optimizer_zero_grad(m->optimizer[i]);
    }
    return status;
}

static uint64_t train_team(team *m, const plan *p) {
    uint64_t hash = 0;
    for (int step = 0; step < STEPS; step++) iso_assert_ok(train_step(m, p, step));
    iso_assert_ok(trainer_hash(&m->t, &hash));
    return hash;
}

static uint64_t hash_of(const several *s, const plan *p, iso_sync sync, double bucket_mb) {
    team m;
    trainer_config config = halves_config(sync);
    config.bucket_mb = bucket_mb;
    open_team(&m, test_comm, &config, s);
    uint64_t hash = train_team(&m, p);
    close_team(&m);
    return hash;
}

// All ways of exchanging give the same bits, which are those of one rank but for rounding.
static void holds_everywhere(const several *s, const plan *p, double tolerance) {
    team many, one;
    iso_comm *alone;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    double difference = 1;
    open_team(&many, test_comm, &config, s);
    uint64_t hash = train_team(&many, p);
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    config.sync = ISO_SYNC_EXPLICIT;
    open_team(&one, alone, &config, s);
    for (int step = 0; step < STEPS; step++) iso_assert_ok(train_step(&one, p, step));
    iso_assert_ok(trainer_difference(&many.t, &one.t, &difference));
    if (!(difference < tolerance)) fprintf(stderr, "off by %g\n", difference);
    iso_assert_all(difference < tolerance);
    close_team(&one);
    close_team(&many);
    iso_comm_destroy(&alone);
    iso_assert_all(hash_of(s, p, ISO_SYNC_BLOCKING, 0) == hash);
    iso_assert_all(hash_of(s, p, ISO_SYNC_EXPLICIT, 0) == hash);
    iso_assert_all(hash_of(s, p, ISO_SYNC_LAZY, 1) == hash); // both halves in one bucket
}

// ---- Disjoint ---------------------------------------------------------------------------------------

static const several halves = {2, {0, 1}, {ISO_SGD, ISO_SGD}, {0.05, 0.05}};
static const several whole = {1, {-1}, {ISO_SGD}, {0.05}};
static const several mixed = {2, {0, 1}, {ISO_SGD, ISO_ADAM}, {0.05, 2e-3}};

static void disjoint(void) {
    plan p = {0};
    uint64_t hash = hash_of(&whole, &p, ISO_SYNC_LAZY, 0);
    iso_assert_all(hash_of(&halves, &p, ISO_SYNC_LAZY, 0) == hash);
    p.swapped = true;
    iso_assert_all(hash_of(&halves, &p, ISO_SYNC_LAZY, 0) == hash);
    holds_everywhere(&halves, &p, 2e-5);
}

Test(np1_several_optimizers, disjoint_ones_equal_one) { disjoint(); }
Test(np2_several_optimizers, disjoint_ones_equal_one) { disjoint(); }
Test(np3_several_optimizers, disjoint_ones_equal_one) { disjoint(); }
Test(np4_several_optimizers, disjoint_ones_equal_one) { disjoint(); }

// Nothing is waited for in either step.
Test(np2_several_optimizers, disjoint_ones_stay_lazy) {
    team m;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    iso_reducer_stats before, after;
    open_team(&m, test_comm, &config, &mixed);
    iso_reducer *r = iso_data_parallel_reducer(m.t.model);
    for (int step = 0; step < 3; step++) {
        iso_assert_ok(trainer_backward(&m.t, step));
        iso_reducer_get_stats(r, &before);
        iso_assert_ok(iso_optimizer_step(m.optimizer[step % 2]));
        iso_assert_all(iso__round_is_whole(r->round));
        iso_assert_ok(iso_optimizer_step(m.optimizer[1 - step % 2]));
        iso_assert_all(iso__round_is_whole(r->round));
        iso_reducer_get_stats(r, &after);
        iso_assert_all(after.wait_ms == before.wait_ms && after.steps == before.steps + 2);
        iso_assert_all(after.exchanges == (step + 1) * (long long)r->layout.bucket_count);
    }
    close_team(&m);
}

static void rules_and_schedules(void) {
    plan p = {.schedule = true};
    holds_everywhere(&mixed, &p, 5e-5);
    p.swapped = p.zero_late = true;
    holds_everywhere(&mixed, &p, 5e-5);
}

Test(np2_several_optimizers, rules_and_schedules_of_their_own) { rules_and_schedules(); }
Test(np3_several_optimizers, rules_and_schedules_of_their_own) { rules_and_schedules(); }

// As the two networks of a GAN: the other half gets gradients and no update.
static void one_at_a_time(void) {
    plan p = {.one_at_a_time = true};
    holds_everywhere(&mixed, &p, 5e-5);
    p.schedule = true;
    p.keeps[1] = true; // two backwards to each of its steps, and all before
    holds_everywhere(&halves, &p, 5e-5);
}

Test(np2_several_optimizers, one_at_a_time) { one_at_a_time(); }
Test(np3_several_optimizers, one_at_a_time) { one_at_a_time(); }

// Dropping the gradients of one leaves averages in those of the other.
static void one_keeps_its_gradients(void) {
    plan p = {.keeps = {false, true}};
    holds_everywhere(&halves, &p, 1e-4);
    p = (plan){.keeps = {true, false}, .zero_late = true};
    holds_everywhere(&halves, &p, 1e-4);
}

Test(np2_several_optimizers, one_keeps_its_gradients) { one_keeps_its_gradients(); }
Test(np3_several_optimizers, one_keeps_its_gradients) { one_keeps_its_gradients(); }

Test(np2_several_optimizers, a_second_step_on_the_same_gradients_is_refused) {
    team m;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    uint64_t hash;
    open_team(&m, test_comm, &config, &mixed);
    iso_assert_ok(trainer_backward(&m.t, 0));
    iso_assert_ok(iso_optimizer_step(m.optimizer[1]));
    iso_assert_all(iso_optimizer_step(m.optimizer[1]) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "second step on the same gradients") != NULL);
    iso_assert_all(iso_optimizer_hyper(m.optimizer[1])->step == 1); // it was none
    iso_assert_ok(iso_optimizer_step(m.optimizer[0]));              // has not had them yet
    iso_assert_ok(trainer_hash(&m.t, &hash));
    close_team(&m);
}

// Parameters of no optimizer stay, and nothing needs to be said about them.
Test(np2_several_optimizers, part_of_the_model_may_have_none) {
    team m;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    several body = {1, {0}, {ISO_SGD}, {0.05}};
    float before[8], after[8];
    uint64_t hash;
    open_team(&m, test_comm, &config, &body);
    iso_module *net = iso_data_parallel_module(m.t.model);
    const iso_tensor *head = net->child[1]->child[0]->parameter[0]->value;
    memcpy(before, iso_tensor_data((iso_tensor *)head), sizeof(before));
    iso_assert_ok(trainer_hash(&m.t, &hash));
    iso_assert_all(train_team(&m, &(plan){0}) != hash);
    memcpy(after, iso_tensor_data((iso_tensor *)head), sizeof(after));
    iso_assert_all(memcmp(before, after, sizeof(before)) == 0);
    close_team(&m);
}

// ---- Overlapping ------------------------------------------------------------------------------------

static const several overlapping = {2, {-1, 1}, {ISO_SGD, ISO_ADAM}, {0.05, 1e-3}};

static void overlap(void) {
    plan p = {.schedule = true};
    holds_everywhere(&overlapping, &p, 5e-5);
    p.swapped = true;
    holds_everywhere(&overlapping, &p, 5e-5);
}

Test(np1_several_optimizers, overlapping_ones_update_in_turn) { overlap(); }
Test(np2_several_optimizers, overlapping_ones_update_in_turn) { overlap(); }
Test(np3_several_optimizers, overlapping_ones_update_in_turn) { overlap(); }

// What was logged until end_log, to be freed.
static FILE *log_to;
static char *log_text;
static size_t log_length;
static void begin_log(void) {
    log_to = open_memstream(&log_text, &log_length);
    iso_log_set_stream(log_to);
}
static char *end_log(void) {
    iso_log_set_stream(stderr);
    fclose(log_to);
    return log_text;
}

// The warning names what they share; without one of them the other is lazy again.
Test(np2_several_optimizers, overlap_is_warned_of_and_ends) {
    team m;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    begin_log();
    open_team(&m, test_comm, &config, &overlapping);
    char *said = end_log();
    iso_assert_all(strstr(said, "two optimizers update \"head.fc1.weight\"") != NULL);
    iso_assert_all(strstr(strstr(said, "two optimizers") + 1, "two optimizers") == NULL); // once
    free(said);
    iso_assert_ok(trainer_backward(&m.t, 0));
    iso_assert_ok(iso_optimizer_step(m.optimizer[0]));
    const iso__round *round = iso_data_parallel_reducer(m.t.model)->round;
    iso_assert_all(iso__round_is_back(round));
    iso_assert_ok(iso_optimizer_step(m.optimizer[1]));
    iso_assert_all(iso_optimizer_step(m.optimizer[1]) == ISO_ERR_STATE);
    iso_optimizer_destroy(&m.optimizer[1]);
    iso_assert_ok(trainer_backward(&m.t, 1));
    iso_assert_ok(iso_optimizer_step(m.optimizer[0]));
    iso_assert_all(iso__round_is_whole(round));
    close_team(&m);
}

// What one has still to do is done when it goes; the other does not notice.
Test(np2_several_optimizers, one_may_go_with_updates_pending) {
    team m, other;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    uint64_t hash[2] = {0, 1};
    open_team(&m, test_comm, &config, &halves);
    open_team(&other, test_comm, &config, &halves);
    iso_assert_ok(train_step(&m, &(plan){0}, 0));
    iso_assert_ok(train_step(&other, &(plan){0}, 0));
    iso_optimizer_destroy(&m.optimizer[0]);
    iso_assert_ok(trainer_hash(&m.t, &hash[0]));
    iso_assert_ok(trainer_hash(&other.t, &hash[1]));
    iso_assert_all(hash[0] == hash[1]);
    close_team(&m);
    close_team(&other);
}

// ---- Saved state ------------------------------------------------------------------------------------

// A list of state holds one optimizer: which of several it had would be lost in silence.
Test(np2_several_optimizers, saving_the_state_of_one_of_several_is_refused) {
    team m;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    iso_state *state;
    open_team(&m, test_comm, &config, &mixed);
    iso_assert_ok(iso_state_create(&state));
    iso_assert_all(iso_training_state(m.t.model, m.optimizer[0], state) == ISO_ERR_UNSUPPORTED);
    iso_assert_all(strstr(iso_last_error()->message, "2 optimizers") != NULL);
    iso_state_destroy(&state);
    close_team(&m);
}

// Each has a state_dict of its own, with updates pending or not.
Test(np2_several_optimizers, state_dicts_of_each) {
    team m, other;
    trainer_config config = halves_config(ISO_SYNC_LAZY);
    plan p = {0};
    iso_state_dict dict;
    uint64_t hash[2] = {0, 1};
    open_team(&m, test_comm, &config, &mixed);
    open_team(&other, test_comm, &config, &mixed);
    for (int step = 0; step < 4; step++) iso_assert_ok(train_step(&m, &p, step));
    for (int i = 0; i < 2; i++) {
        iso_assert_ok(iso_optimizer_state_dict(m.optimizer[i], &dict));
        iso_assert_ok(iso_optimizer_load_state_dict(other.optimizer[i], &dict, true, NULL));
        iso_state_dict_destroy(&dict);
    }
    iso_assert_ok(iso_module_state_dict(m.t.model, &dict));
    iso_assert_ok(iso_module_load_state_dict(other.t.model, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
    for (int step = 4; step < 8; step++) {
        iso_assert_ok(train_step(&m, &p, step));
        iso_assert_ok(train_step(&other, &p, step));
    }
    iso_assert_ok(trainer_hash(&m.t, &hash[0]));
    iso_assert_ok(trainer_hash(&other.t, &hash[1]));
    iso_assert_all(hash[0] == hash[1]);
    close_team(&other);
    close_team(&m);
}
