// SPDX-License-Identifier: MIT
// Initial values on demand: the distribution of kaiming_normal and what it depends on.
#include "common/balance.h"
#include "common/nn_fixture.h"

#include <math.h>
#include <string.h>

static iso_device *device;

static void open_device(void) { device = open_cpu(); }
static void clean_up(void) {
    iso_device_destroy(&device);
    balance_check();
}
TestSuite(init, .init = open_device, .fini = clean_up, .timeout = 60);

// A convolution of 16 to 64 channels with 3 x 3 taps: fan_in 144, fan_out 576.
static iso_module *new_conv(void) {
    iso_rng rng = {.seed = 1};
    iso_module *conv;
    iso_conv2d_config config = {16, 64, .kernel_size = {3, 3}};
    cr_ok(iso_conv2d_create(device, &config, &rng, &conv));
    return conv;
}

static void expect_normal(iso_fan fan, double variance) {
    iso_module *conv = new_conv();
    iso_rng rng = {.seed = 7};
    cr_ok(iso_init_kaiming_normal(conv->parameter[0], fan, &rng));
    iso_tensor *weight = conv->parameter[0]->value;
    const float *x = iso_tensor_data(weight);
    double n = (double)iso_tensor_count(weight), sum = 0, square = 0, fourth = 0, inner = 0;
    double pairs = 0;
    for (int64_t i = 0; i < iso_tensor_count(weight); i++) {
        double z = (double)x[i] / sqrt(variance);
        sum += z;
        square += z * z;
        fourth += z * z * z * z;
        inner += fabs(z) < 1;
        if (i % 2) pairs += z * (double)x[i - 1] / sqrt(variance);
    }
    // 9216 draws: four standard errors of each estimate.
    cr_assert_float_eq(sum / n, 0, 4 / sqrt(n));
    cr_assert_float_eq(square / n, 1, 4 * sqrt(2 / n));
    cr_assert_float_eq(fourth / n, 3, 4 * sqrt(96 / n));
    cr_assert_float_eq(inner / n, 0.682689, 4 * sqrt(0.2166 / n));
    cr_assert_float_eq(2 * pairs / n, 0, 4 * sqrt(2 / n));
    iso_module_destroy(&conv);
}

Test(init, kaiming_normal_has_variance_2_over_fan_out) { expect_normal(ISO_FAN_OUT, 2.0 / 576); }
Test(init, kaiming_normal_has_variance_2_over_fan_in) { expect_normal(ISO_FAN_IN, 2.0 / 144); }

Test(init, kaiming_normal_takes_a_stream_of_its_own) {
    iso_module *a = new_conv(), *b = new_conv(), *c = new_conv();
    iso_rng rng = {.seed = 7}, again = {.seed = 7};
    cr_ok(iso_init_kaiming_normal(a->parameter[0], ISO_FAN_OUT, &rng));
    cr_ok(iso_init_kaiming_normal(b->parameter[0], ISO_FAN_OUT, &rng));
    cr_ok(iso_init_kaiming_normal(c->parameter[0], ISO_FAN_OUT, &again));
    cr_assert_eq(rng.next_stream, 2);
    cr_assert(same_values(a->parameter[0]->value, c->parameter[0]->value));
    cr_assert_not(same_values(a->parameter[0]->value, b->parameter[0]->value));
    iso_module_destroy(&a);
    iso_module_destroy(&b);
    iso_module_destroy(&c);
}

Test(init, kaiming_normal_draws_the_same_numbers_in_f64) {
    iso_module *a = new_conv(), *b = new_conv();
    iso_rng rng = {.seed = 7}, again = {.seed = 7};
    cr_ok(iso_module_to(b, ISO_F64));
    cr_ok(iso_init_kaiming_normal(a->parameter[0], ISO_FAN_OUT, &rng));
    cr_ok(iso_init_kaiming_normal(b->parameter[0], ISO_FAN_OUT, &again));
    const float *x = iso_tensor_data(a->parameter[0]->value);
    const double *y = iso_tensor_data(b->parameter[0]->value);
    for (int i = 0; i < 9216; i++) cr_assert_eq((double)x[i], y[i]);
    iso_module_destroy(&a);
    iso_module_destroy(&b);
}

Test(init, kaiming_normal_refuses_a_bias) {
    iso_module *conv = new_conv();
    iso_rng rng = {.seed = 7};
    cr_fails(iso_init_kaiming_normal(conv->parameter[1], ISO_FAN_OUT, &rng), ISO_ERR_SHAPE,
             "bias has 1 dimension,");
    iso_module_destroy(&conv);
}
