// SPDX-License-Identifier: MIT
// Dynamic loss scaling: scaled training has the bits of plain training, and overflows make all
// ranks skip the same updates.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/clip.h>
#include <isotherm/grad_scaler.h>
#include <math.h>

TestSuite(np1_grad_scaler, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_grad_scaler, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_grad_scaler, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6 };

// ---- A step -----------------------------------------------------------------------------------------

// Gradients of `factor` times the loss, times the scale.
static void backward(trainer *t, const iso_grad_scaler *scaler, int step, double factor) {
    iso_tensor *out, *gradient;
    iso_optimizer_zero_grad(t->optimizer);
    iso_assert_ok(trainer_forward(t, step, &out));
    iso_assert_ok(iso_loss_compute(t->loss, out, t->labels, NULL, NULL, &gradient));
    if (factor != 1) iso_assert_ok(iso_tensor_scale(gradient, factor));
    if (scaler) iso_assert_ok(iso_grad_scaler_scale(scaler, gradient));
    iso_assert_ok(iso_module_backward(t->model, gradient, NULL));
}

static bool scaled_step(trainer *t, iso_grad_scaler *scaler, int step, double factor) {
    bool stepped;
    backward(t, scaler, step, factor);
    iso_assert_ok(iso_grad_scaler_unscale(scaler, t->model));
    iso_assert_ok(iso_grad_scaler_step(scaler, t->optimizer, &stepped));
    iso_assert_ok(iso_grad_scaler_update(scaler));
    return stepped;
}

static uint64_t hash_of(trainer *t) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_hash(t, &hash));
    return hash;
}

// ---- The bits of plain training ---------------------------------------------------------------------

// A scale that is a power of 2 changes exponents only.
static void has_the_bits_of_plain_training(const trainer_config *config) {
    trainer t;
    uint64_t plain = 0;
    iso_grad_scaler *scaler;
    iso_grad_scaler_config grows = ISO_GRAD_SCALER_DEFAULT;
    grows.growth_interval = 2;
    iso_assert_ok(trainer_run(test_comm, config, STEPS, &plain));
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, &grows, &scaler));
    for (int step = 0; step < STEPS; step++) iso_assert_all(scaled_step(&t, scaler, step, 1));
    iso_assert_all(iso_grad_scaler_get_scale(scaler) == 65536 * 8);
    iso_assert_all(hash_of(&t) == plain);
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
}

static void divide_updates(iso_data_parallel_config *dp) { dp->zero = true; }

static void all_have_the_bits_of_plain_training(void) {
    trainer_config config = trainer_default();
    has_the_bits_of_plain_training(&config);
    config.sync = ISO_SYNC_BLOCKING;
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    has_the_bits_of_plain_training(&config);
    config.adjust = divide_updates;
    has_the_bits_of_plain_training(&config);
}
Test(np1_grad_scaler, has_the_bits_of_plain_training) { all_have_the_bits_of_plain_training(); }
Test(np2_grad_scaler, has_the_bits_of_plain_training) { all_have_the_bits_of_plain_training(); }
Test(np3_grad_scaler, has_the_bits_of_plain_training) { all_have_the_bits_of_plain_training(); }

// ---- Overflow ---------------------------------------------------------------------------------------

static int bad_rank; // writes an infinite gradient; -1: no rank

static iso_status spoil(iso_module *model, void *user) {
    (void)user;
    iso_parameter_list list;
    iso_status status = iso_module_parameters(model, &list);
    if (status < 0) return status;
    void *host;
    status = iso_tensor_map(list.item[1]->grad, ISO_READ_WRITE, &host);
    if (status == ISO_OK && test_rank == bad_rank) ((float *)host)[1] = INFINITY;
    if (status == ISO_OK) status = iso_tensor_unmap(list.item[1]->grad);
    iso_parameter_list_destroy(&list);
    return status;
}

// PyTorch's rule, as torch.amp.GradScaler.update describes it.
static void expect_scale(double *scale, int *grown, bool overflows) {
    if (overflows) {
        *scale *= 0.25;
        *grown = 0;
    } else if (++*grown == 2) {
        *scale *= 4;
        *grown = 0;
    }
}

// Also where gradients are not exchanged, so that only one rank has the infinite one.
static void overflows_are_skipped_together(iso_scope scope) {
    static const int bad[] = {-1, -1, 0, -1, 1, 1, -1, -1, -1};
    trainer_config config = trainer_default();
    iso_grad_scaler_config rule = {
        .init_scale = 1024, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2};
    trainer t;
    iso_grad_scaler *scaler;
    double scale = 1024;
    int grown = 0;
    config.scope = scope;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, spoil, NULL, NULL));
    iso_assert_ok(iso_grad_scaler_create(test_comm, &rule, &scaler));
    for (int step = 0; step < (int)(sizeof(bad) / sizeof(bad[0])); step++) {
        uint64_t before = 0, after = 0;
        bool equal;
        bad_rank = bad[step];
        iso_assert_ok(iso_parameter_hash(t.model, test_comm, &before, &equal));
        iso_assert_all(scaled_step(&t, scaler, step, 1) == (bad_rank < 0));
        iso_assert_ok(iso_parameter_hash(t.model, test_comm, &after, &equal));
        iso_assert_all((before == after) == (bad_rank >= 0));
        expect_scale(&scale, &grown, bad_rank >= 0);
        iso_assert_all(iso_grad_scaler_get_scale(scaler) == scale);
        iso_assert_all(iso_grad_scaler_state(scaler)[1] == grown);
    }
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
}

Test(np2_grad_scaler, overflows_are_skipped_together) {
    overflows_are_skipped_together(ISO_SCOPE_WORLD);
    overflows_are_skipped_together(ISO_SCOPE_RANK);
}

Test(np2_grad_scaler, a_scale_that_is_too_large_shrinks) {
    trainer_config config = trainer_default();
    iso_grad_scaler_config rule = ISO_GRAD_SCALER_DEFAULT;
    trainer t;
    iso_grad_scaler *scaler;
    int skipped = 0;
    rule.init_scale = 0x1p127;
    rule.backoff_factor = 0x1p-8;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, &rule, &scaler));
    while (skipped < 10 && !scaled_step(&t, scaler, skipped, 0x1p12)) skipped++;
    iso_assert_all(skipped > 0 && skipped < 10);
    iso_assert_all(iso_grad_scaler_get_scale(scaler) == ldexp(1, 127 - 8 * skipped));
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
}

Test(np1_grad_scaler, a_scale_stays_within_f32) {
    trainer_config config = trainer_default();
    iso_grad_scaler_config rule = ISO_GRAD_SCALER_DEFAULT;
    trainer t;
    iso_grad_scaler *scaler;
    rule.init_scale = 0x1p127;
    rule.growth_interval = 1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, &rule, &scaler));
    backward(&t, NULL, 0, 0x1p-10); // not scaled: finite
    iso_assert_ok(iso_grad_scaler_unscale(scaler, t.model));
    iso_assert_ok(iso_grad_scaler_update(scaler));
    iso_assert_all(iso_grad_scaler_get_scale(scaler) == 0x1p127);
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
}

// ---- Underflow --------------------------------------------------------------------------------------

static double norm_of_tiny_gradients(const iso_comm_hook *hook, bool scales) {
    trainer_config config = trainer_default();
    trainer t;
    iso_grad_scaler *scaler;
    double norm = -1;
    config.hook = hook;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, NULL, &scaler));
    backward(&t, scales ? scaler : NULL, 0, 0x1p-30);
    if (scales) iso_assert_ok(iso_grad_scaler_unscale(scaler, t.model));
    iso_assert_ok(iso_grad_norm(t.model, 2, &norm));
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
    return norm;
}

Test(np2_grad_scaler, tiny_gradients_survive_f16) {
    double expected = norm_of_tiny_gradients(NULL, false);
    iso_assert_all(expected > 0);
    iso_assert_all(norm_of_tiny_gradients(&iso_hook_f16, false) == 0);
    iso_assert_all(fabs(norm_of_tiny_gradients(&iso_hook_f16, true) / expected - 1) < 0.05);
}

static iso_status in_f16(iso_device *device, bool dropout, iso_module **out) {
    ISO_TRY(build_small_cnn(device, dropout, out));
    return iso_autocast_create_take(*out, ISO_F16, out);
}

// Of the first layer, whose gradient comes through all activations' gradients of f16.
static double first_norm(iso_status (*build)(iso_device *, bool, iso_module **), bool scales) {
    trainer_config config = trainer_default();
    trainer t;
    iso_grad_scaler *scaler;
    iso_parameter_list list;
    void *host;
    double square = 0;
    config.build = build;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, NULL, &scaler));
    backward(&t, scales ? scaler : NULL, 0, 0x1p-26);
    if (scales) iso_assert_ok(iso_grad_scaler_unscale(scaler, t.model));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_tensor *grad = list.item[0]->grad;
    iso_assert_ok(iso_tensor_map(grad, ISO_READ, &host));
    for (int64_t k = 0; k < grad->count; k++)
        square += (double)((float *)host)[k] * (double)((float *)host)[k];
    iso_assert_ok(iso_tensor_unmap(grad));
    iso_parameter_list_destroy(&list);
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
    return sqrt(square);
}

Test(np2_grad_scaler, tiny_gradients_of_f16_activations_survive) {
    double expected = first_norm(build_small_cnn, false);
    iso_assert_all(expected > 0);
    iso_assert_all(first_norm(in_f16, false) < 0.5 * expected);
    iso_assert_all(fabs(first_norm(in_f16, true) / expected - 1) < 0.05);
}

// ---- Misuse -----------------------------------------------------------------------------------------

static bool refuses(double init, double growth, double backoff, int64_t interval) {
    iso_grad_scaler_config c = {init, growth, backoff, interval};
    iso_grad_scaler *scaler = NULL;
    return iso_grad_scaler_create(test_comm, &c, &scaler) == ISO_ERR_ARG && !scaler;
}

Test(np1_grad_scaler, wrong_use_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    iso_grad_scaler *scaler;
    cr_expect(refuses(0, 2, 0.5, 1) && refuses(-1, 2, 0.5, 1) && refuses(INFINITY, 2, 0.5, 1));
    cr_expect(refuses(NAN, 2, 0.5, 1) && refuses(1, 1, 0.5, 1) && refuses(1, NAN, 0.5, 1));
    cr_expect(refuses(1, 2, 1, 1) && refuses(1, 2, 0, 1) && refuses(1, 2, 0.5, 0));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_grad_scaler_create(test_comm, NULL, &scaler));
    backward(&t, scaler, 0, 1);
    cr_expect(iso_grad_scaler_step(scaler, t.optimizer, NULL) == ISO_ERR_STATE);
    cr_expect(iso_grad_scaler_update(scaler) == ISO_ERR_STATE);
    iso_assert_ok(iso_grad_scaler_unscale(scaler, t.model));
    cr_expect(iso_grad_scaler_unscale(scaler, t.model) == ISO_ERR_STATE);
    iso_assert_ok(iso_grad_scaler_step(scaler, t.optimizer, NULL));
    iso_assert_ok(iso_grad_scaler_update(scaler));
    iso_grad_scaler_destroy(&scaler);
    trainer_destroy(&t);
}
