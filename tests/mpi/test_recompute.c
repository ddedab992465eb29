// SPDX-License-Identifier: MIT
// Activation recomputation: layers whose forward runs again inside the backward, on plain arrays
// and through modules; and what closes a backward.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_recompute, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_recompute, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_recompute, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Plain arrays -----------------------------------------------------------------------------------

enum { PARAMS = 3, ROW = 16, ROWS = 64, COUNT = ROW * ROWS, PIECES = 4 };
static float value[PARAMS][COUNT];
static int updates[PARAMS];

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)hyper, (void)user;
    for (int k = 0; k < COUNT; k++) value[i][k] -= ((float *)gradient)[k] * (float)scale;
    updates[i]++;
    return ISO_OK;
}

static iso_reducer *make(iso_unused unused, iso_sync sync, size_t bucket_bytes, bool cut) {
    static const char *const name[PARAMS] = {"a", "b", "c"};
    iso_reducer_param param[PARAMS];
    iso_reducer_config config = {.sync = sync,
                                 .unused = unused,
                                 .bucket_bytes = bucket_bytes,
                                 .piece_bytes = cut ? sizeof(value[0]) / PIECES : 0};
    iso_reducer *r = NULL;
    memset(value, 0, sizeof(value));
    memset(updates, 0, sizeof(updates));
    for (int i = 0; i < PARAMS; i++)
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = value[i],
                                       .count = COUNT,
                                       .dtype = ISO_F32,
                                       .layer = i,
                                       .row = ROW};
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &config, &r));
    iso_assert_all(iso_reducer_pieces(r, 0) == (cut ? PIECES : 1));
    iso_assert_ok(iso_reducer_set_apply(r, descend, 0, NULL));
    return r;
}

// Of all ranks together the mean is i + 1.
static iso_status ready(iso_reducer *r, int i) {
    float *g = iso_reducer_grad(r, i);
    float share = (float)(2 * (test_rank + 1)) / (float)(test_size + 1);
    for (int k = 0; k < COUNT; k++) g[k] = (float)(i + 1) * share;
    return iso_reducer_grad_ready(r, i);
}

static bool near(float x, double expected) { return x - expected < 1e-3 && expected - x < 1e-3; }

// That each parameter was updated so many times, by its mean gradient.
static bool updated(const int *times) {
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        right = right && updates[i] == times[i] && near(value[i][0], -times[i] * (i + 1.0)) &&
                near(value[i][COUNT - 1], -times[i] * (i + 1.0));
    if (!right)
        fprintf(stderr, "rank %d: %d %d %d updates, values %g %g %g\n", test_rank, updates[0],
                updates[1], updates[2], value[0][0], value[1][0], value[2][0]);
    return right;
}

enum { STEPS = 5 };

// Each layer's forward again before its backward.
static iso_status train_recomputed(iso_reducer *r) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < STEPS; step++) {
        for (int i = 0; status == ISO_OK && i < PARAMS; i++)
            status = iso_reducer_param_needed(r, i);
        iso_reducer_zero_grad(r);
        for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
            if (i < PARAMS - 1) status = iso_reducer_param_needed(r, i);
            if (status == ISO_OK) status = ready(r, i);
        }
        if (status == ISO_OK) status = iso_reducer_step(r, "");
    }
    return status == ISO_OK ? iso_reducer_finish(r) : status;
}

static void loses_nothing(iso_sync sync) {
    static const iso_unused unused[] = {ISO_UNUSED_ERROR, ISO_UNUSED_ZERO, ISO_UNUSED_NEGOTIATE};
    static const size_t bytes[] = {0, 2 * sizeof(value[0]), 1 << 20};
    for (int u = 0; u < 3; u++)
        for (int b = 0; b < 4; b++) {
            iso_reducer *r = make(unused[u], sync, b < 3 ? bytes[b] : 0, b == 3);
            iso_assert_ok(train_recomputed(r));
            iso_assert_all(updated((int[]){STEPS, STEPS, STEPS}));
            iso_reducer_destroy(&r);
        }
}

Test(np1_recompute, loses_no_gradient) {
    loses_nothing(ISO_SYNC_LAZY);
    loses_nothing(ISO_SYNC_BLOCKING);
}
Test(np2_recompute, loses_no_gradient) {
    loses_nothing(ISO_SYNC_LAZY);
    loses_nothing(ISO_SYNC_BLOCKING);
}
Test(np3_recompute, loses_no_gradient) { loses_nothing(ISO_SYNC_LAZY); }

// A layer that this step's forward did not use has its update pending while others are recomputed.
static iso_status recompute_behind_a_pending_update(iso_reducer *r) {
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < PARAMS; i++) status = ready(r, i);
    if (status == ISO_OK) status = iso_reducer_step(r, "");
    for (int i = 0; status == ISO_OK && i < 2; i++) status = iso_reducer_param_needed(r, i);
    iso_reducer_zero_grad(r);
    if (status == ISO_OK) status = ready(r, 1);
    if (status == ISO_OK) status = iso_reducer_param_needed(r, 0);
    if (status == ISO_OK) status = ready(r, 0);
    if (status == ISO_OK) status = iso_reducer_step(r, "");
    return status == ISO_OK ? iso_reducer_finish(r) : status;
}

Test(np2_recompute, behind_a_pending_update) {
    iso_reducer *r = make(ISO_UNUSED_NEGOTIATE, ISO_SYNC_LAZY, 0, false);
    iso_assert_ok(recompute_behind_a_pending_update(r));
    iso_assert_all(updated((int[]){2, 2, 1}));
    iso_reducer_destroy(&r);
}

// A piece at a time: the rows that a backward comes to next are computed once more.
static iso_status recompute_pieces(iso_reducer *r, int i) {
    float *g = iso_reducer_grad(r, i);
    iso_status status = ISO_OK;
    for (int k = PIECES - 1; status == ISO_OK && k >= 0; k--) {
        size_t first, count;
        iso_reducer_piece(r, i, k, &first, &count);
        status = iso_reducer_piece_needed(r, i, k);
        for (size_t n = first; n < first + count; n++) g[n] = (float)(i + 1);
        if (status == ISO_OK) status = iso_reducer_piece_ready(r, i, k);
    }
    return status;
}

Test(np2_recompute, piece_by_piece) {
    iso_reducer *r = make(ISO_UNUSED_NEGOTIATE, ISO_SYNC_LAZY, 0, true);
    for (int step = 0; step < 2; step++) {
        iso_reducer_zero_grad(r);
        for (int i = PARAMS - 1; i >= 0; i--) iso_assert_ok(recompute_pieces(r, i));
        iso_assert_ok(iso_reducer_step(r, ""));
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(updated((int[]){2, 2, 2}));
    iso_reducer_destroy(&r);
}

// ---- What closes a backward ---------------------------------------------------------------------------

// Two losses, each of parameters of its own, and one step for both.
static void two_losses(iso_unused unused, int forwards) {
    iso_reducer *r = make(unused, ISO_SYNC_LAZY, 0, false);
    for (int step = 0; step < 3; step++) {
        iso_reducer_zero_grad(r);
        for (int i = 0; i < PARAMS; i++) {
            for (int k = 0; k < forwards; k++) iso_assert_ok(iso_reducer_param_needed(r, i));
            iso_assert_ok(ready(r, i));
        }
        iso_assert_ok(iso_reducer_step(r, ""));
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(updated((int[]){3, 3, 3}));
    iso_reducer_destroy(&r);
}

Test(np2_recompute, backwards_of_different_parameters_are_one) {
    two_losses(ISO_UNUSED_NEGOTIATE, 1);
    two_losses(ISO_UNUSED_ZERO, 2);
    two_losses(ISO_UNUSED_ERROR, 1);
}

// A forward that comes to what was reported, or a step, or finish: the rest was unused.
static void closed_by(void (*closing)(iso_reducer *)) {
    iso_reducer *r = make(ISO_UNUSED_NEGOTIATE, ISO_SYNC_LAZY, 0, false);
    iso_assert_ok(ready(r, 2));
    iso_assert_ok(iso_reducer_param_needed(r, 0)); // does not
    iso_assert_ok(ready(r, 1));
    closing(r);
    const float *g = iso_reducer_grad(r, 2);
    iso_assert_all(g[0] == 3); // the mean
    iso_assert_all(iso_reducer_step(r, "") == ISO_OK);
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(updated((int[]){0, 1, 1}));
    iso_reducer_destroy(&r);
}

static void by_forward(iso_reducer *r) {
    for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_reducer_param_needed(r, i));
}
static void by_finish(iso_reducer *r) { iso_assert_ok(iso_reducer_finish(r)); }
Test(np1_recompute, a_forward_of_what_was_reported_closes) { closed_by(by_forward); }
Test(np2_recompute, a_forward_of_what_was_reported_closes) { closed_by(by_forward); }
Test(np2_recompute, finish_closes) { closed_by(by_finish); }

static bool says(const char *text) { return strstr(iso_last_error()->message, text) != NULL; }

Test(np2_recompute, errors_name_the_parameter) {
    iso_reducer *r = make(ISO_UNUSED_ERROR, ISO_SYNC_LAZY, 0, false);
    iso_assert_ok(ready(r, 2));
    iso_assert_ok(iso_reducer_param_needed(r, 1));
    iso_assert_all(ready(r, 2) == ISO_ERR_STATE && says("\"c\""));
    iso_assert_all(iso_reducer_step(r, "") == ISO_ERR_STATE && says("\"a\""));
    iso_reducer_destroy(&r);
}

// ---- Modules ----------------------------------------------------------------------------------------

// Saves its input alone, and runs its forward again when the backward comes to it.
static bool recompute, look, finish_inside;
static iso_status finished_inside;
static iso_module *model;

static iso_status segment_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    iso_tensor *weight;
    (void)call;
    if (look) // as a layer does that computes its weight from another's
        for (int i = 0; i < self->child[0]->child_count; i++)
            if (self->child[0]->child[i]->parameter_count > 0 &&
                iso_parameter_value(self->child[0]->child[i]->parameter[0], &weight) < 0)
                return ISO_ERR_STATE;
    return iso_module_forward(self->child[0], in, out);
}

static iso_status segment_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                   iso_tensor **grad_in) {
    iso_tensor *out;
    iso_status status = ISO_OK;
    if (finish_inside) finished_inside = iso_data_parallel_finish(model);
    if (recompute) status = segment_forward(self, call, call->in, &out);
    return status < 0 ? status : iso_module_call_backward(self->child[0], grad_out, grad_in);
}

static const iso_module_ops segment_ops = {
    .type = "Segment", .forward = segment_forward, .backward = segment_backward};

static iso_status add_segment(iso_module *net, const char *name, iso_rng *rng) {
    iso_device *device = net->device;
    iso_module *segment = calloc(1, sizeof(*segment)), *inner, *m;
    iso_status status = iso_module_init(segment, &segment_ops, device);
    if (status == ISO_OK) status = iso_sequential_create(device, &inner);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 200, true, rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(inner, "first", m);
    if (status == ISO_OK) status = iso_relu_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(inner, "relu", m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 200, true, rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(inner, "second", m);
    if (status == ISO_OK) status = iso_module_add_child_take(segment, "inner", inner);
    return status == ISO_OK ? iso_sequential_add_take(net, name, segment) : status;
}

static bool tied; // a weight of one segment is a weight of another

static iso_status build_segments(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "flatten", m);
    if (status == ISO_OK) status = add_segment(net, "one", &rng);
    if (status == ISO_OK) status = add_segment(net, "two", &rng);
    if (status == ISO_OK && tied)
        status = iso_module_tie(net, "two.inner.first.weight", net, "one.inner.second.weight");
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    *out = net;
    return status == ISO_OK ? iso_sequential_add_take(net, "out", m) : status;
}

static iso_status step_of(trainer *t, int step) {
    iso_optimizer_zero_grad(t->optimizer);
    iso_status status = trainer_backward(t, step);
    return status == ISO_OK ? iso_optimizer_step(t->optimizer) : status;
}

static uint64_t hash_of(const trainer_config *config, bool again) {
    trainer t;
    uint64_t hash = 0;
    recompute = again;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    for (int step = 0; step < 3; step++) iso_assert_ok(step_of(&t, step));
    iso_assert_ok(trainer_hash(&t, &hash)); // fails if ranks differ
    trainer_destroy(&t);
    return hash;
}

// The same bits with and without it.
static void through_modules(iso_sync sync, bool find_unused) {
    for (int i = 0; i < 8; i++) {
        trainer_config config = trainer_default();
        config.build = build_segments;
        config.sync = sync;
        config.find_unused = find_unused;
        config.bucket_mb = i & 1 ? 0.5 : 0;
        config.piece_mb = i & 2 ? 0.03 : 0;
        tied = i & 4;
        look = false;
        uint64_t plain = hash_of(&config, false), again = hash_of(&config, true);
        look = true;
        uint64_t looked = hash_of(&config, true);
        iso_assert_all(plain == again && plain == looked);
    }
}

Test(np1_recompute, through_modules) { through_modules(ISO_SYNC_LAZY, true); }
Test(np2_recompute, through_modules) {
    through_modules(ISO_SYNC_LAZY, true);
    through_modules(ISO_SYNC_LAZY, false);
}
Test(np2_recompute, through_modules_blocking) { through_modules(ISO_SYNC_BLOCKING, true); }
Test(np3_recompute, through_modules) { through_modules(ISO_SYNC_LAZY, true); }

// To complete everything in the middle of a backward would leave out what is to come.
Test(np2_recompute, finishing_inside_a_backward_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash[2];
    recompute = true;
    look = tied = false;
    config.build = build_segments;
    config.find_unused = true;
    for (int i = 0; i < 2; i++) {
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        model = t.model;
        finish_inside = i == 1;
        finished_inside = ISO_OK;
        iso_assert_ok(step_of(&t, 0));
        finish_inside = false;
        iso_assert_all(finished_inside == (i == 1 ? ISO_ERR_STATE : ISO_OK));
        iso_assert_ok(trainer_hash(&t, &hash[i]));
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}
