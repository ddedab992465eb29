// SPDX-License-Identifier: MIT
// BCE with logits, L1 and Huber, and the cross-entropy of sequences, against PyTorch in float64.
#include "common/fixture.h"
#include "common/nn_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(small_losses, .timeout = 60);

enum { ROWS = 6 };
static iso_device *device;
static fixture *golden;

static void open_all(void) {
    device = open_cpu();
    golden = fixture_open("losses.txt");
}

static void close_all(void) {
    fixture_close(&golden);
    close_cpu(&device);
}

static double tolerance_of(iso_dtype dtype) { return dtype == ISO_F64 ? 1e-14 : 1e-6; }

static void check(const char *name, double value, iso_tensor *grad) {
    double expected = fixture_get(golden, name, "loss", NULL)[0];
    double tolerance = tolerance_of(iso_tensor_dtype(grad));
    cr_assert_float_eq(value, expected, tolerance * expected, "%s: loss is %.17g, not %.17g", name,
                       value, expected);
    fixture_compare(golden, name, "dx", grad, tolerance);
}

static void check_targets(const char *name, iso_loss_config config) {
    for (int i = 0; i < 2; i++) {
        iso_dtype dtype = i ? ISO_F64 : ISO_F32;
        iso_tensor *x = fixture_tensor_of(golden, device, dtype, name, "x"), *grad;
        iso_tensor *target = fixture_tensor_of(golden, device, dtype, name, "target");
        iso_loss *loss;
        double value;
        cr_ok(iso_loss_create_with(device, &config, &loss));
        cr_ok(iso_loss_compute_tensor(loss, x, target, &value, &grad));
        check(name, value, grad);
        iso_loss_destroy(&loss);
        iso_tensor_destroy(&x);
        iso_tensor_destroy(&target);
    }
}

static void check_labels(const char *name, iso_loss_config config) {
    for (int i = 0; i < 2; i++) {
        iso_tensor *x = fixture_tensor_of(golden, device, i ? ISO_F64 : ISO_F32, name, "x"), *grad;
        const double *from = fixture_get(golden, name, "target", NULL);
        int32_t labels[ROWS];
        for (int n = 0; n < ROWS; n++) labels[n] = (int32_t)from[n];
        iso_loss *loss;
        double value;
        cr_ok(iso_loss_create_with(device, &config, &loss));
        cr_ok(iso_loss_compute(loss, x, labels, &value, NULL, &grad));
        check(name, value, grad);
        iso_loss_destroy(&loss);
        iso_tensor_destroy(&x);
    }
}

// With logits of 800, whose exponential no type can hold.
Test(small_losses, bce_is_torch_binary_cross_entropy_with_logits) {
    open_all();
    check_targets("bce", (iso_loss_config){.kind = ISO_BCE_WITH_LOGITS});
    check_labels("bce_labels", (iso_loss_config){.kind = ISO_BCE_WITH_LOGITS});
    close_all();
}

Test(small_losses, l1_is_torch_l1_loss) {
    open_all();
    check_targets("l1", (iso_loss_config){.kind = ISO_L1});
    check_labels("l1_labels", (iso_loss_config){.kind = ISO_L1});
    close_all();
}

Test(small_losses, huber_is_torch_huber_loss) {
    open_all();
    check_targets("huber", (iso_loss_config){.kind = ISO_HUBER});
    check_targets("huber_delta", (iso_loss_config){.kind = ISO_HUBER, .delta = 0.35});
    check_labels("huber_labels", (iso_loss_config){.kind = ISO_HUBER});
    close_all();
}

Test(small_losses, cross_entropy_of_sequences_is_that_of_their_rows) {
    open_all();
    check_labels("sequences", (iso_loss_config){.kind = ISO_CROSS_ENTROPY});
    close_all();
}

Test(small_losses, delta_is_above_0_and_of_the_huber_loss) {
    device = open_cpu();
    iso_loss *loss = NULL;
    const double wrong[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        iso_loss_config config = {.kind = ISO_HUBER, .delta = wrong[i]};
        cr_fails(iso_loss_create_with(device, &config, &loss), ISO_ERR_ARG, "above 0");
    }
    cr_fails(iso_loss_create_with(device, &(iso_loss_config){.kind = ISO_L1, .delta = 1}, &loss),
             ISO_ERR_ARG, "only the Huber loss");
    cr_assert_null(loss);
    close_cpu(&device);
}
