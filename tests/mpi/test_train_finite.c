// SPDX-License-Identifier: MIT
// --finite: a gradient of one rank that is NaN or infinite stops the run on all of them, or is left
// out by all of them.
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_train_finite, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_train_finite, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_train_finite, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 120 };
#define LINE "--model mlp --batch 10 --steps 8 "

static train_world world;

// ---- A fault ----------------------------------------------------------------------------------------

// Which exchange of a run, from 1, finds `value` in a gradient of which rank.
static struct fault {
    int at, rank, exchanges;
    float value;
} fault;

static void plant(int at, int rank, float value) {
    fault = (struct fault){.at = at, .rank = rank, .value = value};
}

static iso_status spoil(iso_module *module, void *user) {
    (void)user;
    iso_parameter_list list;
    void *data;
    if (++fault.exchanges != fault.at || fault.rank != test_rank) return ISO_OK;
    iso_status status = iso_module_parameters(module, &list);
    if (status < 0) return status;
    status = iso_tensor_map(list.item[1]->grad, ISO_READ_WRITE, &data);
    if (status >= 0) *(float *)data = fault.value;
    if (status >= 0) status = iso_tensor_unmap(list.item[1]->grad);
    iso_parameter_list_destroy(&list);
    return status;
}

static iso_status wrap_spoilt(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user) {
    (void)user;
    iso_status status =
        iso_data_parallel_create_take(module, context->comm, &context->data_parallel, out);
    fault.exchanges = 0;
    return status < 0 ? status : iso_data_parallel_add_pre_sync_hook(*out, spoil, NULL, NULL);
}

static const iso_strategy spoilt = {.name = "spoilt", .wrap_module = wrap_spoilt};

// ---- The same without it ------------------------------------------------------------------------------

// An optimizer that leaves out the step of that number.
typedef struct omitting {
    iso_optimizer base;
    iso_optimizer *inner;
    int made;
} omitting;

static iso_optimizer *inner_of(iso_optimizer *self) { return ((omitting *)self)->inner; }
static void omit_zero_grad(iso_optimizer *self) { iso_optimizer_zero_grad(inner_of(self)); }
static iso_status omit_step(iso_optimizer *self) {
    return ++((omitting *)self)->made == fault.at ? ISO_OK : iso_optimizer_step(inner_of(self));
}
static void omit_destroy(iso_optimizer *self) {
    iso_optimizer_destroy(&((omitting *)self)->inner);
    free(self);
}
static const iso_optimizer_ops omit_ops = {.name = "omitting",
                                           .step = omit_step,
                                           .zero_grad = omit_zero_grad,
                                           .destroy = omit_destroy,
                                           .inner = inner_of};

static iso_status wrap_omitting(const iso_strategy_context *context, iso_optimizer *inner,
                                iso_module *module, iso_optimizer **out, void *user) {
    (void)context, (void)user;
    omitting *self = calloc(1, sizeof(*self));
    self->base.ops = &omit_ops;
    *out = &self->base;
    return iso_dp_optimizer_create_take(inner, module, &self->inner);
}

static const iso_strategy omits = {.name = "omitting", .wrap_optimizer = wrap_omitting};

static void open_world(void) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&spoilt));
    iso_assert_ok(iso_strategy_register(&omits));
}

// ---- Skipped ----------------------------------------------------------------------------------------

static void check_skipped(const char *options, int rank, float value) {
    char line[300];
    train_result skipping, without;
    plant(3, rank, value);
    snprintf(line, sizeof(line), LINE "--sync spoilt --finite skip %s", options);
    iso_assert_all(train_line(&world, line, NULL, &skipping));
    snprintf(line, sizeof(line), LINE "--sync omitting %s", options);
    iso_assert_all(train_line(&world, line, NULL, &without));
    iso_assert_all(skipping.steps == 8 && skipping.skipped == 1);
    iso_assert_all(strcmp(skipping.hash, without.hash) == 0);
    iso_assert_all(isfinite(skipping.metrics.train_loss));
    iso_assert_all(skipping.metrics.samples < without.metrics.samples);
}

static void all_ranks_skip(void) {
    open_world();
    check_skipped("", test_size - 1, NAN);
    check_skipped("--optimizer sgd --accumulate 2 --find-unused", 0, INFINITY);
    check_skipped("--clip-grad-norm 0.5 --bucket-mb 0", test_size - 1, -INFINITY);
    train_world_close(&world);
}

Test(np1_train_finite, all_ranks_skip) { all_ranks_skip(); }
Test(np2_train_finite, all_ranks_skip) { all_ranks_skip(); }
Test(np3_train_finite, all_ranks_skip) { all_ranks_skip(); }

// Looking changes no bit, whatever is exchanged.
Test(np3_train_finite, finite_gradients_are_applied) {
    static const char *const sync[] = {"lazy", "explicit", "lazy --zero",
                                       "daso --period 2 --wait 1"};
    char line[300];
    train_result looked, plain;
    open_world();
    for (int i = 0; i < 4; i++) {
        snprintf(line, sizeof(line), LINE "--sync %s --finite %s", sync[i],
                 i % 2 ? "stop" : "skip");
        iso_assert_all(train_line(&world, line, NULL, &looked));
        snprintf(line, sizeof(line), LINE "--sync %s", sync[i]);
        iso_assert_all(train_line(&world, line, NULL, &plain));
        iso_assert_all(looked.skipped == 0 && strcmp(looked.hash, plain.hash) == 0);
    }
    train_world_close(&world);
}

// ---- Stopped ----------------------------------------------------------------------------------------

static void all_ranks_stop(void) {
    train_result result;
    open_world();
    plant(3, test_size - 1, NAN);
    iso_assert_all(!train_line(&world, LINE "--sync spoilt --finite stop", NULL, &result));
    iso_assert_all(strstr(train_error_told(), "the gradient of step 3 is NaN or infinite"));
    plant(3, test_size - 1, NAN);
    iso_assert_all(!train_line(&world, LINE "--sync spoilt", NULL, &result));
    iso_assert_all(!strstr(train_error_told(), "step 3"));
    train_world_close(&world);
}

Test(np1_train_finite, all_ranks_stop) { all_ranks_stop(); }
Test(np2_train_finite, all_ranks_stop) { all_ranks_stop(); }

// ---- Resumed ----------------------------------------------------------------------------------------

static void remove_set(const char *path, int step) {
    char name[120];
    snprintf(name, sizeof(name), "%s.step-%012d.rank-%05d", path, step, test_rank);
    remove(name);
    name[strlen(name) - strlen(".rank-00000")] = 0;
    if (test_rank == 0) remove(name);
}

// Of 8 steps the 3rd is skipped; the run goes on behind the 5th.
Test(np2_train_finite, the_count_is_resumed) {
    char path[64], line[300];
    train_result whole, resumed;
    long place = getpid();
    open_world();
    iso_assert_ok(iso_comm_bcast(test_comm, &place, sizeof(place), 0));
    snprintf(path, sizeof(path), "test_train_finite.%ld", place);
    snprintf(line, sizeof(line),
             LINE "--sync spoilt --finite skip --checkpoint %s --checkpoint-every 5", path);
    plant(3, 1, NAN);
    iso_assert_all(train_line(&world, line, NULL, &whole));
    remove_set(path, 8);
    iso_assert_ok(iso_comm_barrier(test_comm));
    strcat(strcat(line, " --resume "), path);
    plant(0, 0, 0);
    iso_assert_all(train_line(&world, line, NULL, &resumed));
    iso_assert_all(whole.skipped == 1 && resumed.skipped == 1 && resumed.steps == 8);
    iso_assert_all(strcmp(whole.hash, resumed.hash) == 0);
    iso_assert_ok(iso_resume_remove(path));
    if (test_rank == 0) remove(path);
    train_world_close(&world);
}
