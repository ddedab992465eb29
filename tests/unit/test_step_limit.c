// SPDX-License-Identifier: MIT
// ISO_STEP_TIMEOUT: what counts as progress, and when a program has made none for too long.
#include "base/recording.h"
#include "comm/step_limit.h"
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/checkpoint.h>
#include <isotherm/data.h>
#include <isotherm/layers.h>
#include <isotherm/optim.h>
#include <string.h>

static void check_end(void) {
    scratch_remove();
    balance_check();
}
TestSuite(step_limit, .fini = check_end, .timeout = 60);

#define ok(call) cr_assert_eq(call, ISO_OK, "%s", iso_last_error()->message)

// ---- When ---------------------------------------------------------------------------------------------

enum { LOOKS = 20 }; // of a limit of 2 s, every 100 ms
static const int64_t period = 100000000;

static int looks_until_the_end(iso__step_limit *limit) {
    int looks = 1;
    while (!iso__step_limit_look(limit, period)) cr_assert(looks++ < 10 * LOOKS);
    return looks;
}

Test(step_limit, ends_after_the_limit) {
    iso__step_limit limit;
    iso__step_limit_set(&limit, 2);
    cr_assert_eq(limit.period_ns, period);
    iso__alive_step("a forward");
    cr_assert(!iso__step_limit_look(&limit, period));
    cr_assert_eq(looks_until_the_end(&limit), LOOKS);
    cr_assert_str_eq(limit.last, "a forward");
}

Test(step_limit, any_mark_begins_anew) {
    iso__step_limit limit;
    iso__step_limit_set(&limit, 2);
    iso__alive_step("a forward");
    for (int i = 0; i < 10; i++) {
        for (int k = 1; k < LOOKS; k++) cr_assert(!iso__step_limit_look(&limit, period));
        iso__alive("a read");
    }
    cr_assert(!iso__step_limit_look(&limit, period));
    cr_assert_eq(looks_until_the_end(&limit), LOOKS);
    cr_assert_str_eq(limit.last, "a read");
}

// What a program does before it trains has no limit.
Test(step_limit, begins_with_the_first_step) {
    iso__step_limit limit;
    iso__step_limit_set(&limit, 2);
    iso__alive("a read");
    for (int k = 0; k < 5 * LOOKS; k++) cr_assert(!iso__step_limit_look(&limit, period));
    iso__alive_step("a forward");
    cr_assert(!iso__step_limit_look(&limit, period));
    cr_assert_eq(looks_until_the_end(&limit), LOOKS);
}

// A process that was stopped for an hour, thread and all, is not ended when it goes on.
Test(step_limit, a_late_look_counts_little) {
    iso__step_limit limit;
    iso__step_limit_set(&limit, 2);
    iso__alive_step("a forward");
    cr_assert(!iso__step_limit_look(&limit, period));
    for (int k = 1; k < LOOKS / 2; k++) cr_assert(!iso__step_limit_look(&limit, 36000 * period));
    cr_assert(iso__step_limit_look(&limit, 36000 * period));
}

// ---- What -----------------------------------------------------------------------------------------------

static iso_device *device;

// The last mark is this one, and nothing is marked now.
static void was_marked(const char *what) {
    const char *mark = atomic_exchange(&iso__alive_at, NULL);
    cr_assert(mark, "%s left no mark", what);
    cr_assert_str_eq(mark, what);
}

static iso_module *make_linear(iso_rng *rng) {
    iso_module *m = NULL;
    ok(iso_linear_create(device, 3, 2, true, rng, &m));
    return m;
}

Test(step_limit, a_step_is_progress) {
    iso_rng rng = {.seed = 1};
    iso_tensor *x = NULL, *g = NULL, *y;
    iso_optimizer *optimizer = NULL;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    ok(iso_device_create("cpu", &device));
    iso_module *m = make_linear(&rng);
    ok(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){4, 3}, &x));
    ok(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){4, 2}, &g));
    ok(iso_tensor_fill(x, 1));
    ok(iso_tensor_fill(g, 1));
    ok(iso_optimizer_create(ISO_SGD, m, &hyper, &optimizer));
    ok(iso_module_train(m, false));
    iso__alive_at = NULL;
    cr_assert(!iso__stepping);
    ok(iso_module_forward(m, x, &y)); // an evaluation
    was_marked("a forward");
    cr_assert(iso__stepping);
    ok(iso_module_train(m, true));
    ok(iso_module_forward(m, x, &y));
    was_marked("a forward");
    ok(iso_module_backward(m, g, NULL));
    was_marked("a backward");
    ok(iso_optimizer_step(optimizer));
    was_marked("an update of the parameters");
    iso_recorder_note("step", 1);
    was_marked("a note in the flight recorder");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&m);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&g);
    iso_device_destroy(&device);
}

// With threads too, which mark what the program waits for.
static void batches_are_progress(int threads) {
    uint8_t images[40 * 4] = {0};
    int32_t labels[40] = {0};
    iso_dataset *data = NULL;
    iso_loader *loader = NULL;
    iso_batch batch;
    const iso_sampler_config order = {.batch = 8, .ranks = 1, .seed = 1};
    iso_loader_config config = iso_loader_default;
    config.threads = threads;
    ok(iso_device_create("cpu", &device));
    ok(iso_dataset_create(images, labels, 40, 1, 2, 2, 1, &data));
    ok(iso_loader_create_take(device, data, &order, &config, &loader));
    ok(iso_loader_start(loader, 0, 0));
    for (int i = 0; i < 5; i++) {
        iso__alive_at = NULL;
        ok(iso_loader_next(loader, &batch));
        was_marked("the preparation of a batch");
    }
    iso_loader_destroy(&loader);
    iso_device_destroy(&device);
}

Test(step_limit, batches_are_progress) {
    batches_are_progress(0);
    batches_are_progress(2);
}

Test(step_limit, checkpoints_are_progress) {
    const char *path = scratch_path("checkpoint");
    iso_tensor *t = NULL;
    uint64_t sum;
    ok(iso_device_create("cpu", &device));
    ok(iso_tensor_create(device, ISO_F32, 1, (int64_t[]){5}, &t));
    ok(iso_tensor_fill(t, 1));
    const iso_named_tensor named = {"t", t};
    iso__alive_at = NULL;
    ok(iso_checkpoint_save(path, &named, 1));
    was_marked("the writing of a checkpoint");
    ok(iso_checkpoint_load(path, &named, 1));
    was_marked("the reading of a checkpoint");
    ok(iso_checkpoint_checksum(path, &sum));
    was_marked("the reading of a checkpoint");
    iso_tensor_destroy(&t);
    iso_device_destroy(&device);
}
