// SPDX-License-Identifier: MIT
// Strategies of a user's own, registered by name: they are chosen by --sync, read their settings
// and train as they should.
#include "common/any_device.h"
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_strategy, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_strategy, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_strategy, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 120 };

static train_world world;

// ---- An optimizer that two strategies are made of -------------------------------------------------

// Does something every `period` steps.
typedef struct periodical {
    iso_optimizer base;
    iso_optimizer *inner;
    iso_module *module; // borrowed
    iso_comm *comm;     // borrowed
    int64_t period, made;
} periodical;

static iso_optimizer *inner_of(iso_optimizer *self) { return ((periodical *)self)->inner; }

static void destroy(iso_optimizer *self) {
    iso_optimizer_destroy(&((periodical *)self)->inner);
    free(self);
}

static iso_status create(const iso_optimizer_ops *ops, const iso_strategy_context *context,
                         iso_optimizer *inner, iso_module *module, iso_optimizer **out) {
    periodical *self = calloc(1, sizeof(*self));
    iso_status status = self ? ISO_OK : ISO_ERR_NOMEM;
    if (self)
        *self = (periodical){.base.ops = ops, .module = module, .comm = context->comm, .period = 2};
    if (self) status = iso_settings_int(context->settings, "period", 1, 100, &self->period);
    if (status == ISO_OK)
        status = iso_dp_optimizer_create_take(inner, module, &self->inner);
    else
        iso_optimizer_destroy(&inner);
    if (status < 0) {
        free(self);
        return status;
    }
    *out = &self->base;
    return ISO_OK;
}

// ---- Gradients of several steps at once -----------------------------------------------------------

// Backwards stay local, but for the last one of a period.
static iso_status set_local(periodical *self) {
    int64_t phase = self->made % self->period;
    if (phase == 0 && self->period > 1) return iso_data_parallel_begin_no_sync(self->module);
    return phase == self->period - 1 && phase > 0 ? iso_data_parallel_end_no_sync(self->module)
                                                  : ISO_OK;
}

static iso_status merged_step(iso_optimizer *optimizer) {
    periodical *self = (periodical *)optimizer;
    self->made++;
    iso_status status = self->made % self->period ? ISO_OK : iso_optimizer_step(self->inner);
    return status < 0 ? status : set_local(self);
}

static void merged_zero_grad(iso_optimizer *optimizer) {
    periodical *self = (periodical *)optimizer;
    if (self->made % self->period == 0) iso_optimizer_zero_grad(self->inner);
}

static const iso_optimizer_ops merged_ops = {.name = "merged",
                                             .step = merged_step,
                                             .zero_grad = merged_zero_grad,
                                             .destroy = destroy,
                                             .inner = inner_of};

static iso_status wrap_merged(const iso_strategy_context *context, iso_optimizer *inner,
                              iso_module *module, iso_optimizer **out, void *user) {
    ++*(int *)user;
    iso_status status = create(&merged_ops, context, inner, module, out);
    return status < 0 ? status : set_local((periodical *)*out);
}

static int merged_used;
static const iso_strategy merged = {.name = "merged",
                                    .text = "gradients of several steps at once",
                                    .wrap_optimizer = wrap_merged,
                                    .user = &merged_used};

// ---- Parameters instead of gradients --------------------------------------------------------------

static iso_status average_parameters(periodical *self) {
    iso_parameter_list list;
    iso_status status = iso_module_parameters(self->module, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count && status == ISO_OK; i++) {
        iso_tensor *value;
        iso_request *request;
        status = iso_parameter_value(list.item[i], &value);
        double *x = status == ISO_OK ? iso_tensor_data(value) : NULL;
        size_t count = x ? (size_t)iso_tensor_count(value) : 0;
        if (x) status = iso_comm_iallreduce(self->comm, x, count, ISO_F64, "mean", &request);
        if (status == ISO_OK) status = iso_request_wait(&request);
        for (size_t k = 0; k < count; k++) x[k] /= iso_comm_size(self->comm);
    }
    iso_parameter_list_destroy(&list);
    return status;
}

static iso_status averaged_step(iso_optimizer *optimizer) {
    periodical *self = (periodical *)optimizer;
    iso_status status = iso_optimizer_step(self->inner);
    self->made++;
    return status < 0 || self->made % self->period ? status : average_parameters(self);
}

static void averaged_zero_grad(iso_optimizer *optimizer) {
    iso_optimizer_zero_grad(((periodical *)optimizer)->inner);
}

static iso_status averaged_finish(iso_optimizer *optimizer) {
    return average_parameters((periodical *)optimizer);
}

static const iso_optimizer_ops averaged_ops = {.name = "averaged",
                                               .step = averaged_step,
                                               .zero_grad = averaged_zero_grad,
                                               .destroy = destroy,
                                               .inner = inner_of};

// Nobody averages gradients.
static iso_status wrap_alone(const iso_strategy_context *context, iso_module *module,
                             iso_module **out, void *user) {
    (void)user;
    iso_data_parallel_config config = context->data_parallel;
    config.scope = ISO_SCOPE_RANK;
    return iso_data_parallel_create_take(module, context->comm, &config, out);
}

static iso_status wrap_averaged(const iso_strategy_context *context, iso_optimizer *inner,
                                iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    return create(&averaged_ops, context, inner, module, out);
}

// Its setting is an option of the program.
static const iso_setting averaged_setting[] = {{.key = "period",
                                                .kind = ISO_SETTING_INTEGER,
                                                .low = 1,
                                                .high = 100,
                                                .initial = "2",
                                                .meaning = "steps between exchanges"}};

static const iso_strategy averaged = {.name = "averaged",
                                      .text = "parameters of several steps at once",
                                      .wrap_module = wrap_alone,
                                      .wrap_optimizer = wrap_averaged,
                                      .finish = averaged_finish,
                                      .setting = averaged_setting,
                                      .setting_count = 1};

// ---- Runs -----------------------------------------------------------------------------------------

#define PLAIN "--model mlp --optimizer sgd --momentum 0 --schedule constant --dtype f64 "

// By words of which the last is --lr's value, halved for sums of two gradients: both are powers of
// two, which change no other bit.
static void sums_of_two_are_two_batches(void) {
    train_result own, library, plain;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&merged));
    iso_assert_all(
        train_line(&world, PLAIN "--batch 5 --epochs 2 --sync merged --lr 0.03125", NULL, &own));
    iso_assert_all(train_line(&world, PLAIN "--batch 5 --epochs 2 --accumulate 2 --lr 0.0625", NULL,
                              &library));
    iso_assert_all(train_line(&world, PLAIN "--batch 5 --epochs 2 --lr 0.0625", NULL, &plain));
    iso_assert_all(merged_used == 1);
    iso_assert_all(own.steps == 2 * library.steps && own.bytes_sent == library.bytes_sent);
    iso_assert_all(strcmp(own.hash, library.hash) == 0);
    iso_assert_all(strcmp(own.hash, plain.hash) != 0);
    train_world_close(&world);
}

Test(np1_strategy, sums_of_two_are_two_batches) { sums_of_two_are_two_batches(); }
Test(np2_strategy, sums_of_two_are_two_batches) { sums_of_two_are_two_batches(); }
Test(np3_strategy, sums_of_two_are_two_batches) { sums_of_two_are_two_batches(); }

// Of plain SGD the mean of parameters after every step is a step with the mean of gradients; after
// two steps it is not.
static void means_of_parameters(void) {
    train_curve own = {.count = 0}, library = {.count = 0}, rarely = {.count = 0};
    train_result result;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&averaged));
    iso_assert_all(train_curve_of(&world, PLAIN "--batch 5 --lr 0.05 --epochs 2 --sync blocking",
                                  &library, &result));
    iso_assert_all(train_curve_of(
        &world, PLAIN "--batch 5 --lr 0.05 --epochs 2 --sync averaged --period 1", &own, &result));
    iso_assert_all(result.bytes_sent == 0);
    iso_assert_all(train_curve_difference(&own, &library) < 1e-12);
    // Ranks that end with parameters of their own would fail here, if it were not for finish.
    iso_assert_all(train_curve_of(&world,
                                  PLAIN "--batch 5 --lr 0.05 --epochs 2 --sync averaged --period 7",
                                  &rarely, &result));
    iso_assert_all(test_size == 1 || train_curve_difference(&rarely, &library) > 1e-6);
    train_world_close(&world);
}

Test(np1_strategy, means_of_parameters) { means_of_parameters(); }
Test(np2_strategy, means_of_parameters) { means_of_parameters(); }
Test(np3_strategy, means_of_parameters) { means_of_parameters(); }

// All at once, and after the last backward of several, but the same sums.
static void explicit_is_lazy(void) {
    static const char *const line[] = {
        "--model mlp --batch 7 --epochs 2", "--model mlp --batch 7 --epochs 2 --accumulate 3",
        "--model mlp --batch 7 --epochs 2 --clip-grad-norm 0.4 --bucket-mb 0"};
    train_result a, b;
    char text[200];
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof(text), "%s --sync explicit", line[i]);
        iso_assert_all(train_line(&world, text, NULL, &a));
        iso_assert_all(train_line(&world, line[i], NULL, &b));
        iso_assert_all(strcmp(a.hash, b.hash) == 0 && a.bytes_sent == b.bytes_sent);
    }
    train_world_close(&world);
}

Test(np1_strategy, explicit_is_lazy) { explicit_is_lazy(); }
Test(np2_strategy, explicit_is_lazy) { explicit_is_lazy(); }
Test(np3_strategy, explicit_is_lazy) { explicit_is_lazy(); }

// ---- What a strategy tells of itself ----------------------------------------------------------------

typedef struct teller {
    int completed;
} teller;

static iso_status told_stats(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    const periodical *self = (const periodical *)optimizer;
    const teller *t = user;
    out->syncs = self->made / self->period;
    out->period = self->period;
    out->last_wait_ms = 2;
    out->wait_ms = 2.0 * (double)out->syncs;
    out->exchange_ms = 7;
    out->bytes_sent = 100 * out->syncs;
    out->bytes_between_nodes = 10 * out->syncs;
    out->metric_count = 2;
    out->metric[0] = (iso_strategy_metric){"rounds", (double)out->syncs};
    out->metric[1] = (iso_strategy_metric){"completions", t->completed};
    return ISO_OK;
}

static iso_status count_completions(iso_optimizer *optimizer, void *user) {
    (void)optimizer;
    ((teller *)user)->completed++;
    return ISO_OK;
}

static void count_syncs(const train_sync *sync, void *user) {
    *(int *)user += sync->global_skip == 2 && sync->wait_ms == 2;
}

static bool log_has(const char *path, const char *text) {
    char line[4096];
    bool found = false;
    FILE *from = fopen(path, "r");
    while (from && fgets(line, sizeof(line), from)) found = found || strstr(line, text);
    if (from) fclose(from);
    return found;
}

// 12 steps of 2 epochs make 6 exchanges. The clock stops after steps 5 and 10 and at the end of
// each epoch.
Test(np2_strategy, what_a_strategy_tells_is_reported) {
    teller t = {0};
    int syncs = 0;
    train_result result;
    char path[64], line[300];
    train_observer observer = {.sync = count_syncs, .user = &syncs};
    iso_strategy telling = averaged;
    telling.name = "telling";
    telling.stats = told_stats;
    telling.complete = count_completions;
    telling.user = &t;
    snprintf(path, sizeof(path), "test_strategy.%ld.jsonl", (long)getpid());
    snprintf(line, sizeof(line),
             PLAIN "--batch 10 --epochs 2 --sync telling --eval-every 5 --log %s", path);
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&telling));
    iso_assert_all(train_line(&world, line, &observer, &result));
    iso_assert_all(result.steps == 12 && result.syncs == 6 && syncs == 6 && t.completed >= 4);
    iso_assert_all(result.wait_ms_per_sync == 2 && result.exchange_ms == 7);
    iso_assert_all(result.bytes_sent == 600 * test_size && result.wait_ms_per_step >= 1);
    iso_assert_all(test_rank > 0 || log_has(path, "\"telling.rounds\":6"));
    iso_assert_all(test_rank > 0 || log_has(path, "\"telling.completions\":"));
    remove(path);
    train_world_close(&world);
}

static iso_status one_too_many(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    (void)optimizer, (void)user;
    out->metric_count = ISO_STRATEGY_METRICS + 1;
    return ISO_OK;
}

// One that exchanges no parameters has metrics all the same.
static iso_status a_figure(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    (void)optimizer, (void)user;
    out->metric[out->metric_count++] = (iso_strategy_metric){"answer", 42};
    return ISO_OK;
}

Test(np2_strategy, metrics_need_no_exchanges) {
    train_result result, plain;
    iso_strategy figure = {.name = "figure", .stats = a_figure};
    iso_strategy many = {.name = "many", .stats = one_too_many};
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&figure));
    iso_assert_ok(iso_strategy_register(&many));
    iso_assert_all(train_line(&world, PLAIN "--epochs 1 --sync figure", NULL, &result));
    iso_assert_all(train_line(&world, PLAIN "--epochs 1 --sync lazy", NULL, &plain));
    iso_assert_all(strcmp(result.hash, plain.hash) == 0 && result.bytes_sent == plain.bytes_sent);
    iso_assert_all(result.syncs == 0 && result.exchange_ms > 0);
    iso_assert_all(!train_line(&world, PLAIN "--epochs 1 --sync many", NULL, &result));
    iso_assert_all(
        strstr(iso_last_error()->message, "\"many\" reports 17 metrics: report at most"));
    train_world_close(&world);
}

// ---- The loss in the end ----------------------------------------------------------------------------

// Of the mean of all steps the first, which is that of guessing, would be a part.
Test(np2_strategy, loss_of_a_short_run_is_that_of_its_last_steps) {
    train_curve curve = {.count = 0};
    train_result result;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_all(train_curve_of(&world, PLAIN "--batch 4 --steps 10 --lr 0.1", &curve, &result));
    iso_assert_all(curve.count == 10 && result.loss_steps == 1);
    iso_assert_all(fabs(result.metrics.train_loss - curve.train_loss[9]) < 1e-12);
    iso_assert_all(curve.train_loss[0] > 1.02 * curve.train_loss[9]);
    iso_assert_all(train_curve_of(&world, PLAIN "--batch 4 --steps 20 --lr 0.1", &curve, &result));
    double sum = 0; // 15 steps an epoch
    for (int i = 5; i < 20; i++) sum += curve.train_loss[i];
    iso_assert_all(result.loss_steps == 15);
    iso_assert_all(fabs(result.metrics.train_loss - sum / 15) < 1e-12);
    train_world_close(&world);
}

// ---- Sampler ----------------------------------------------------------------------------------------

// Of two communicators, each with its own ranks.
Test(np3_strategy, samplers_share_among_the_ranks_of_the_module) {
    MPI_Comm part;
    iso_comm *comm;
    iso_device *device;
    iso_module *layer, *module;
    iso_rng rng = {.seed = 1};
    iso_sampler_config config = {.batch = 5, .seed = 9, .rank = 7, .ranks = 8};
    MPI_Comm_split(MPI_COMM_WORLD, test_rank == 0, -test_rank, &part);
    iso_assert_ok(iso_comm_create(part, NULL, &comm));
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(iso_linear_create(device, 3, 2, true, &rng, &layer));
    iso_assert_all(iso_data_parallel_sampler(layer, &config) == ISO_ERR_ARG && config.ranks == 8);
    iso_assert_ok(iso_data_parallel_create_take(layer, comm, NULL, &module));
    iso_assert_ok(iso_data_parallel_sampler(module, &config));
    iso_assert_all(config.ranks == (test_rank == 0 ? 1 : 2));
    iso_assert_all(config.rank == (test_rank == 1)); // order is reversed
    iso_assert_all(config.batch == 5 && config.seed == 9);
    iso_assert_all(iso_comm_size(iso_data_parallel_comm(module)) == config.ranks);
    iso_module_destroy(&module);
    iso_device_destroy(&device);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&part);
}

// ---- Misuse ---------------------------------------------------------------------------------------

Test(np2_strategy, wrong_settings_are_refused) {
    train_result result;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&merged));
    iso_assert_all(
        !train_line(&world, PLAIN "--sync merged --sync-option period=0", NULL, &result));
    iso_assert_all(
        strstr(iso_last_error()->message, "period=0: give a whole number from 1 to 100"));
    iso_assert_all(!train_line(&world, PLAIN "--sync merged --sync-option perod=2", NULL, &result));
    iso_assert_all(strstr(iso_last_error()->message, "merged has no setting \"perod\""));
    iso_assert_all(!train_line(&world, PLAIN "--sync lazy --sync-option period=2", NULL, &result));
    iso_assert_all(strstr(iso_last_error()->message, "lazy has no setting \"period\""));
    train_world_close(&world);
}

// Looks at the training before anything of it is made.
static iso_status check_steps(const iso_strategy_context *context, char *warning, void *user) {
    (void)warning, (void)user;
    return context->total_steps != 7
               ? ISO_OK
               : iso_error_set(ISO_ERR_ARG, "%lld steps of %lld an epoch: give others",
                               (long long)context->total_steps,
                               (long long)context->steps_per_epoch);
}

Test(np2_strategy, settings_are_checked_with_the_length_of_the_training) {
    train_result result;
    iso_strategy checked = merged;
    checked.name = "checked";
    checked.check = check_steps;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&checked));
    iso_assert_all(!train_line(&world, PLAIN "--batch 10 --sync checked --steps 7", NULL, &result));
    iso_assert_all(merged_used == 0 &&
                   strcmp(iso_last_error()->message, "7 steps of 6 an epoch: give others") == 0);
    iso_assert_all(train_line(&world, PLAIN "--batch 10 --sync checked --steps 8", NULL, &result));
    iso_assert_all(merged_used == 1);
    train_world_close(&world);
}

static iso_status keep_module(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user) {
    (void)context, (void)user;
    *out = module;
    return ISO_OK;
}

static iso_status drop_module(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user) {
    (void)context, (void)out, (void)user;
    iso_module_destroy(&module);
    return ISO_OK;
}

static iso_status drop_optimizer(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user) {
    (void)context, (void)module, (void)out, (void)user;
    iso_optimizer_destroy(&inner);
    return ISO_OK;
}

// What a strategy must make and does not is an error, and what it did make is freed.
Test(np2_strategy, wrong_wrappers_are_refused) {
    train_result result;
    iso_strategy kept = {.name = "kept", .wrap_module = keep_module};
    iso_strategy dropped = {.name = "dropped", .wrap_module = drop_module};
    iso_strategy untied = {.name = "untied", .wrap_optimizer = drop_optimizer};
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&kept));
    iso_assert_ok(iso_strategy_register(&dropped));
    iso_assert_ok(iso_strategy_register(&untied));
    iso_assert_all(!train_line(&world, PLAIN "--sync kept", NULL, &result));
    iso_assert_all(strstr(iso_last_error()->message, "returned Sequential"));
    iso_assert_all(!train_line(&world, PLAIN "--sync dropped", NULL, &result));
    iso_assert_all(strstr(iso_last_error()->message, "returned nothing"));
    iso_assert_all(!train_line(&world, PLAIN "--sync untied", NULL, &result));
    iso_assert_all(strstr(iso_last_error()->message, "returned no optimizer"));
    train_world_close(&world);
}
