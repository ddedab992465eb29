// SPDX-License-Identifier: MIT
// Numbers of the train program's summary and log, against what this test counts and times itself.
#include "common/mpi_fixture.h"
#include "common/scratch.h"
#include "common/train_fixture.h"

#include <isotherm/daso.h>
#include <isotherm/trace.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void clean_up(void) {
    scratch_remove();
    test_mpi_teardown();
}
TestSuite(np1_train_log, .init = test_mpi_setup, .fini = clean_up, .timeout = 120);
TestSuite(np2_train_log, .init = test_mpi_setup, .fini = clean_up, .timeout = 120);

enum { IMAGES = 120 };

static train_world world;

// A run with a log, whose path all ranks have from rank 0.
static void run_with_log(const char *options, const train_observer *observer, train_result *result,
                         char path[256]) {
    char line[480];
    snprintf(path, 256, "%s", test_rank == 0 ? scratch_path("log") : "");
    iso_assert_ok(iso_comm_bcast(test_comm, path, 256, 0));
    snprintf(line, sizeof(line), "--model mlp --optimizer sgd --overwrite --log %s %s", path,
             options);
    iso_assert_all(train_line(&world, line, observer, result));
}

// A number of the summary; NaN if it is not there. On rank 0, which writes the log.
static double logged(const char *path, const char *key) {
    char name[80];
    double number = NAN;
    if (test_rank != 0) return number;
    char *text = scratch_read(path, NULL), *summary = strstr(text, "\"event\":\"summary\"");
    snprintf(name, sizeof(name), "\"%s\":", key);
    char *at = summary ? strstr(summary, name) : NULL;
    if (at) number = strtod(at + strlen(name), NULL);
    free(text);
    return number;
}

// ---- train_loss_steps -------------------------------------------------------------------------------

typedef struct plan {
    int64_t epochs, steps, batch, accumulate; // epochs or steps
} plan;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Samples of all ranks in update `step` of an epoch; none: it has no such update.
static int64_t samples_in(const plan *p, int64_t step) {
    int64_t share = IMAGES / test_size, from = step * p->batch * p->accumulate;
    return from >= share ? 0 : smaller(p->batch * p->accumulate, share - from) * test_size;
}

static int64_t steps_of_epoch(const plan *p) {
    int64_t steps = 0;
    while (samples_in(p, steps) > 0) steps++;
    return steps;
}

// The losses of the updates, each told by an evaluation after it.
static double mean_of_last(const plan *p, const train_curve *curve, int64_t steps) {
    double loss = 0, samples = 0;
    for (int64_t s = curve->count - steps; s < curve->count; s++) {
        double more = (double)samples_in(p, s % steps_of_epoch(p));
        loss += curve->train_loss[s] * more;
        samples += more;
    }
    return loss / samples;
}

static void note_loss(const train_eval *eval, void *user) {
    train_curve *curve = user;
    if (curve->count < TRAIN_CURVE) curve->train_loss[curve->count++] = eval->train_loss;
}

static void expect_loss_steps(plan p) {
    train_curve curve = {0};
    const train_observer observer = {.eval = note_loss, .user = &curve};
    train_result result;
    char options[160], path[256];
    int64_t epoch = steps_of_epoch(&p), all = p.epochs ? p.epochs * epoch : p.steps;
    int64_t last = all >= epoch ? epoch : (all + 9) / 10;
    snprintf(options, sizeof(options), "--eval-every 1 --batch %lld --accumulate %lld --%s %lld",
             (long long)p.batch, (long long)p.accumulate, p.epochs ? "epochs" : "steps",
             (long long)(p.epochs ? p.epochs : p.steps));
    run_with_log(options, &observer, &result, path);
    iso_assert_all(curve.count == all && result.loss_steps == last);
    iso_assert_all(test_rank != 0 || logged(path, "train_loss_steps") == (double)last);
    double expected = mean_of_last(&p, &curve, last);
    iso_assert_all(fabs(result.metrics.train_loss - expected) <= 1e-9 * expected);
    iso_assert_all(test_rank != 0 || fabs(logged(path, "train_loss") - expected) <= 1e-6);
}

static void loss_is_over_these_steps(void) {
    static const plan plans[] = {{3, 0, 10, 1}, {2, 0, 7, 1},  {2, 0, 7, 2},
                                 {0, 4, 10, 1}, {0, 25, 1, 1}, {0, 7, 20, 1}};
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) expect_loss_steps(plans[i]);
    train_world_close(&world);
}
Test(np1_train_log, loss_is_over_these_steps) { loss_is_over_these_steps(); }
Test(np2_train_log, loss_is_over_these_steps) { loss_is_over_these_steps(); }

// ---- merge_ms_per_step ------------------------------------------------------------------------------
// Local SGD whose merges, and whose forwards on the last rank, take their time. The other ranks
// wait for the last one; waits are no merges.

enum { STEPS = 12, PERIOD = 4, MERGE_US = 4000, FORWARD_US = 60000 };

static double merge_ms, forward_ms; // slept
static double merged_ms;            // of the former, in steps
static int64_t began, ended;        // the steps

static void note_begin(iso_json_log *log, int64_t step, void *user) {
    (void)log, (void)step, (void)user;
    began = iso_now();
}

static void sleep_for(int us, double *total_ms) {
    int64_t start = iso_now();
    usleep((useconds_t)us);
    *total_ms += (double)(iso_now() - start) * 1e-6;
}

// x = mean.
static void merge_slowly(const iso_outer *outer, const iso_outer_span *span) {
    (void)outer;
    memcpy(span->now, span->mean, span->count * (span->f64 ? sizeof(double) : sizeof(float)));
    sleep_for(MERGE_US, &merge_ms);
}

static iso_status forward_slowly(iso_module *module, iso_tensor **in, void *user) {
    (void)module, (void)in, (void)user;
    if (test_rank == test_size - 1) sleep_for(FORWARD_US, &forward_ms);
    return ISO_OK;
}

static iso_status wrap_module(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user) {
    (void)user;
    iso_status status =
        iso_data_parallel_create_take(module, context->comm, &context->data_parallel, out);
    if (status < 0) return status;
    return iso_data_parallel_add_before_forward(*out, forward_slowly, NULL, NULL);
}

static iso_status wrap_optimizer(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    const iso_outer outer = {
        .name = "slow", .states = 1, .replaces = true, .lr = 1, .merge = merge_slowly};
    iso_daso_config config = iso_local_sgd_config(context->total_steps, PERIOD);
    config.outer = &outer;
    iso_status status = iso_dp_optimizer_create_take(inner, module, &inner);
    return status < 0 ? status : iso_daso_create_take(inner, module, &config, out);
}

static iso_status get_stats(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    (void)user;
    iso_daso_stats daso;
    iso_status status = iso_daso_get_stats(optimizer, &daso);
    if (status < 0) return status;
    *out =
        (iso_strategy_stats){.syncs = daso.syncs, .wait_ms = daso.wait_ms, .work_ms = daso.work_ms};
    return ISO_OK;
}

static iso_status finish(iso_optimizer *optimizer) {
    merged_ms = merge_ms;
    ended = iso_now();
    return iso_daso_finish(optimizer);
}

static const iso_strategy slow = {.name = "slow",
                                  .wrap_module = wrap_module,
                                  .wrap_optimizer = wrap_optimizer,
                                  .finish = finish,
                                  .stats = get_stats};

Test(np2_train_log, merges_are_timed_without_waits) {
    const train_observer observer = {.start = note_begin};
    train_result result;
    char path[256];
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&slow));
    run_with_log("--sync slow --batch 5 --steps 12", &observer, &result, path);
    double most[] = {merged_ms, forward_ms, (double)(ended - began) * 1e-6};
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, most, 3, ISO_MAX));
    iso_assert_all(result.steps == STEPS && result.syncs >= STEPS / PERIOD - 1);
    iso_assert_all(most[0] > 0 && most[1] >= STEPS * FORWARD_US * 1e-3);
    double told_ms = result.merge_ms_per_step * STEPS;
    // A merge of one rank may overlap forwards of the other one, but far from all of them.
    iso_assert_all(told_ms >= most[0] && told_ms <= most[2] - most[1] / 2);
    iso_assert_all(test_rank != 0 ||
                   fabs(logged(path, "merge_ms_per_step") * STEPS - told_ms) < 1e-6 * told_ms);
    train_world_close(&world);
}
