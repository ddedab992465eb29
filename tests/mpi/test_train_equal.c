// SPDX-License-Identifier: MIT
// --check-equal: what one rank changes alone is found, and answered as --on-difference says.
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_train_equal, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_train_equal, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

enum { IMAGES = 120 };
#define MLP "--model mlp --batch 10 --steps 8 "

static train_world world;

// ---- A fault ----------------------------------------------------------------------------------------

// The last rank changes a parameter after that step, from 1, and with `state` what its optimizer
// keeps, too.
static struct fault {
    int at;
    bool state;
} fault;

typedef struct faulty {
    iso_optimizer base;
    iso_optimizer *inner;
    iso_module *module; // borrowed
    int made;
} faulty;

static iso_status spoil(iso_tensor *tensor) {
    void *data;
    if (test_rank != test_size - 1) return ISO_OK;
    iso_status status = iso_tensor_map(tensor, ISO_READ_WRITE, &data);
    if (status < 0) return status;
    *(float *)data += 1;
    return iso_tensor_unmap(tensor);
}

// Of the dict, the first tensor is of a moment.
static iso_status spoil_state(faulty *self) {
    iso_state_dict dict = {0};
    iso_status status = iso_optimizer_state_dict(self->inner, &dict);
    iso_tensor *moment = NULL;
    for (int i = 0; i < dict.count && !moment; i++)
        if (iso_tensor_ndim(dict.item[i].tensor) > 0) moment = dict.item[i].tensor;
    if (status >= 0) status = moment ? spoil(moment) : ISO_ERR_STATE;
    iso_state_dict_destroy(&dict);
    return status;
}

static iso_status faulty_step(iso_optimizer *optimizer) {
    faulty *self = (faulty *)optimizer;
    iso_parameter_list list;
    iso_tensor *value;
    iso_status status = iso_optimizer_step(self->inner);
    if (status < 0 || ++self->made != fault.at) return status;
    status = iso_module_parameters(self->module, &list);
    if (status < 0) return status;
    status = iso_parameter_value(list.item[0], &value);
    if (status >= 0) status = spoil(value);
    if (status >= 0 && fault.state) status = spoil_state(self);
    iso_parameter_list_destroy(&list);
    return status;
}

static iso_optimizer *inner_of(iso_optimizer *self) { return ((faulty *)self)->inner; }
static void faulty_zero_grad(iso_optimizer *self) { iso_optimizer_zero_grad(inner_of(self)); }
static void faulty_destroy(iso_optimizer *self) {
    iso_optimizer_destroy(&((faulty *)self)->inner);
    free(self);
}
static const iso_optimizer_ops faulty_ops = {.name = "faulty",
                                             .step = faulty_step,
                                             .zero_grad = faulty_zero_grad,
                                             .destroy = faulty_destroy,
                                             .inner = inner_of};

static iso_status wrap_faulty(const iso_strategy_context *context, iso_optimizer *inner,
                              iso_module *module, iso_optimizer **out, void *user) {
    (void)context, (void)user;
    faulty *self = calloc(1, sizeof(*self));
    self->base.ops = &faulty_ops;
    self->module = module;
    *out = &self->base;
    return iso_dp_optimizer_create_take(inner, module, &self->inner);
}

// user: whether with ZeRO.
static iso_status wrap_module(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user) {
    iso_data_parallel_config config = context->data_parallel;
    config.zero = *(const bool *)user;
    return iso_data_parallel_create_take(module, context->comm, &config, out);
}

static bool no = false, yes = true;
static const iso_strategy spoilt = {
    .name = "spoilt", .wrap_module = wrap_module, .wrap_optimizer = wrap_faulty, .user = &no};
static const iso_strategy spoilt_zero = {
    .name = "spoilt-zero", .wrap_module = wrap_module, .wrap_optimizer = wrap_faulty, .user = &yes};

// ---- Runs -------------------------------------------------------------------------------------------

static void open_world(void) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&spoilt));
    iso_assert_ok(iso_strategy_register(&spoilt_zero));
}

static bool run_with(int at, bool state, const char *line, train_result *out) {
    fault = (struct fault){at, state};
    return train_line(&world, line, NULL, out);
}

// Mended before the next forward, the fault leaves no trace. (With ZeRO the next update would mend
// it, if another rank makes that.)
static void check_mended(const char *options, bool state) {
    char line[300];
    train_result plain, mended, late;
    iso_assert_all(run_with(0, false, options, &plain));
    snprintf(line, sizeof(line), "%s --check-equal 1 --on-difference resync", options);
    iso_assert_all(run_with(3, state, line, &mended));
    iso_assert_all(mended.differences == 1 && strcmp(mended.hash, plain.hash) == 0);
    if (!state) return;
    snprintf(line, sizeof(line), "%s --check-equal 4 --on-difference resync", options);
    iso_assert_all(run_with(3, state, line, &late));
    iso_assert_all(late.differences == 1 && strcmp(late.hash, plain.hash) != 0);
}

static void resync_mends(void) {
    open_world();
    check_mended(MLP "--sync spoilt", true);
    check_mended(MLP "--sync spoilt --optimizer sgd --momentum 0.9", true);
    check_mended(MLP "--sync spoilt-zero", false);
    train_world_close(&world);
}

Test(np2_train_equal, resync_mends) { resync_mends(); }
Test(np3_train_equal, resync_mends) { resync_mends(); }

// After the last step all ranks have rank 0's running statistics, though they keep their own.
#define RESNET "--model resnet18 --batch 4 --steps 2 --sync spoilt "
Test(np2_train_equal, resync_includes_buffers) {
    train_result own, first, mended;
    open_world();
    iso_assert_all(run_with(0, false, RESNET "--buffers keep", &own));
    iso_assert_all(run_with(0, false, RESNET "--buffers broadcast", &first));
    iso_assert_all(run_with(
        2, false, RESNET "--buffers keep --check-equal 2 --on-difference resync", &mended));
    iso_assert_all(mended.differences == 1);
    iso_assert_all(mended.metrics.test_loss == first.metrics.test_loss);
    iso_assert_all(own.metrics.test_loss != first.metrics.test_loss);
    train_world_close(&world);
}

Test(np3_train_equal, stop_names_step_and_rank) {
    train_result result;
    open_world();
    iso_assert_all(!run_with(3, false, MLP "--sync spoilt --check-equal 2", &result));
    iso_assert_all(strstr(train_error_told(), "parameters differ between ranks after step 4:"));
    iso_assert_all(strstr(train_error_told(), "those of rank 2 have "));
    train_world_close(&world);
}

static int count_lines(const char *path, const char *text) {
    char line[4096];
    int count = 0;
    FILE *from = fopen(path, "r");
    while (from && fgets(line, sizeof(line), from)) count += strstr(line, text) != NULL;
    if (from) fclose(from);
    return count;
}

// The end of the run compares once more.
Test(np2_train_equal, warnings_let_it_go_on) {
    char path[64], line[300];
    train_result result;
    snprintf(path, sizeof(path), "test_train_equal.%ld.jsonl", (long)getpid());
    snprintf(line, sizeof(line), MLP "--sync spoilt --check-equal 3 --on-difference warn --log %s",
             path);
    open_world();
    iso_assert_all(!run_with(3, false, line, &result));
    iso_assert_all(strstr(train_error_told(), "ended with different parameters"));
    iso_assert_all(test_rank > 0 ||
                   count_lines(path, "\"difference\",\"step\":3,\"rank\":1,\"action\":\"warn\"") ==
                       1);
    iso_assert_all(test_rank > 0 || count_lines(path, "\"event\":\"difference\"") == 2);
    remove(path);
    train_world_close(&world);
}
