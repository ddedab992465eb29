// SPDX-License-Identifier: MIT
// Every operation of every device and set of kernels against the double-precision oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(device, .timeout = 120, .fini = balance_check);

// ---- Linear -------------------------------------------------------------------------------------

#define LINEAR_TOLERANCE 1e-5
static const int64_t linears[][3] = {{1, 1, 1},      {3, 17, 5},   {7, 33, 16},    {64, 128, 10},
                                     {600, 104, 3},  {9, 1000, 7}, {1200, 40, 16}, {1, 784, 50},
                                     {8, 2304, 128}, {300, 9, 40}};

static void linear_forward(const target *on) {
    for (int i = 0; i < COUNT(linears); i++) {
        int64_t rows = linears[i][0], in = linears[i][1], out = linears[i][2];
        pair x = pair_2d(on, rows, in), w = pair_2d(on, out, in), b = pair_1d(on, out);
        pair y = pair_2d(on, rows, out);
        for (int flags = 0; flags < 4; flags++) {
            bool bias = flags & 1, relu = flags & 2;
            OK(on->kernels->linear_forward(on->device, x.t, w.t, NULL, bias ? b.t : NULL,
                                           relu ? ISO_ACT_RELU : ISO_ACT_NONE, y.t));
            oracle_linear(rows, in, out, x.d, w.d, bias ? b.d : NULL, relu, y.d);
            check_pair(on, &y, LINEAR_TOLERANCE, "linear output");
        }
        pair_destroy(&x), pair_destroy(&w), pair_destroy(&b), pair_destroy(&y);
    }
}
Test(device, linear_forward_matches_the_oracle) { on_each_activation_target(linear_forward); }

static void linear_backward(const target *on) {
    for (int i = 0; i < COUNT(linears); i++) {
        int64_t rows = linears[i][0], in = linears[i][1], out = linears[i][2];
        target of_parameters = parameter_target(on);
        pair x = pair_2d(on, rows, in), w = pair_2d(on, out, in);
        pair dw = pair_2d(&of_parameters, out, in), db = pair_1d(&of_parameters, out);
        pair dy = pair_2d(on, rows, out), dx = pair_2d(on, rows, in);
        for (int flags = 0; flags < 16; flags++) {
            bool add_w = flags & 1, add_b = flags & 2, want_w = !(flags & 4), want_b = !(flags & 8);
            if (want_w && !add_w) zero(&dw);
            if (want_b && !add_b) zero(&db);
            OK(on->kernels->linear_backward_params(on->device, x.t, dy.t, want_w ? dw.t : NULL,
                                                   add_w, want_b ? db.t : NULL, add_b));
            oracle_linear_backward(rows, in, out, x.d, w.d, dy.d, want_w ? dw.d : NULL,
                                   want_b ? db.d : NULL, NULL);
            check_pair(on, &dw, LINEAR_TOLERANCE, "linear weight gradient");
            check_pair(on, &db, LINEAR_TOLERANCE, "linear bias gradient");
        }
        zero(&dx);
        OK(on->kernels->linear_backward_input(on->device, dy.t, w.t, dx.t));
        oracle_linear_backward(rows, in, out, x.d, w.d, dy.d, NULL, NULL, dx.d);
        check_pair(on, &dx, LINEAR_TOLERANCE, "linear input gradient");
        pair_destroy(&x), pair_destroy(&w), pair_destroy(&dw);
        pair_destroy(&db), pair_destroy(&dy), pair_destroy(&dx);
    }
}
Test(device, linear_backward_matches_the_oracle) { on_each_activation_target(linear_backward); }

Test(device, plain_kernels_do_not_round_factors) {
    iso_device *device;
    setenv("ISO_CPU_KERNELS", "reference", 1);
    OK(iso_device_create("cpu", &device));
    OK(iso_device_set_math(device, "f32"));
    cr_assert(iso_device_set_math(device, "tf32") == ISO_ERR_UNSUPPORTED);
    cr_assert(iso_device_set_math(device, "bf16") == ISO_ERR_UNSUPPORTED);
    cr_assert(iso_device_set_math(device, "f16") == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "tf32"), "the names are listed");
    iso_device_destroy(&device);
}

// ---- Relu, dropout ------------------------------------------------------------------------------

static void relu(const target *on) {
    for (int l = 0; l < 2; l++) {
        pair x = pair_create(on, 4, (int64_t[]){2, 10, 5, 3}, layouts[l], 3);
        pair y = pair_4d(on, 2, 10, 5, 3, layouts[l]), dy = pair_4d(on, 2, 10, 5, 3, layouts[l]);
        OK(on->kernels->relu_forward(on->device, x.t, y.t));
        for (int64_t i = 0; i < x.t->count; i++) y.d[i] = fmax(x.d[i], 0);
        check_pair(on, &y, 0, "relu");
        OK(on->kernels->relu_backward(on->device, y.t, dy.t, dy.t));
        for (int64_t i = 0; i < x.t->count; i++) dy.d[i] = y.d[i] > 0 ? dy.d[i] : 0;
        check_pair(on, &dy, 0, "relu gradient in place");
        pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy);
    }
}
Test(device, relu_matches_the_oracle) { on_each_activation_target(relu); }

static void dropout_case(const target *on, const int64_t shape[4], iso_layout layout, double p,
                         bool channels) {
    iso__dropout_draw draw = {.key = iso__philox_key_make(7, ISO_RNG_DROPOUT, 3),
                              .number = 0x500000002u,
                              .first_row = 11,
                              .p = p,
                              .channels = channels};
    pair x = pair_create(on, 4, shape, layout, 1000);
    double *mask = calloc((size_t)x.t->count, sizeof(double));
    oracle_dropout_mask(&draw, shape[0], shape[1], shape[2] * shape[3], mask);
    OK(on->kernels->dropout(on->device, &draw, x.t, x.t));
    for (int64_t i = 0; i < x.t->count; i++) x.d[i] *= mask[i];
    check_pair(on, &x, 1e-6, "dropout in place");
    free(mask);
    pair_destroy(&x);
}

static void dropouts(const target *on) {
    static const int64_t shapes[][4] = {{2, 16, 4, 4}, {3, 10, 5, 7}, {1, 1, 1, 1}, {2, 67, 1, 1}};
    static const double chances[] = {0, 0.25, 0.5, 0.9};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int j = 0; j < 16; j++)
            dropout_case(on, shapes[i], layouts[j & 1], chances[j >> 2], (j & 2) != 0);
}
Test(device, dropout_draws_by_logical_index_in_every_layout) {
    on_each_activation_target(dropouts);
}

// ---- Log-softmax --------------------------------------------------------------------------------

static void log_softmax(const target *on) {
    pair x = pair_2d(on, 9, 11), y = pair_2d(on, 9, 11), dy = pair_2d(on, 9, 11);
    pair dx = pair_2d(on, 9, 11);
    OK(on->kernels->log_softmax_forward(on->device, x.t, y.t));
    oracle_log_softmax(9, 11, x.d, y.d);
    check_pair(on, &y, 1e-6, "log-softmax");
    pair_read(&y);
    OK(on->kernels->log_softmax_backward(on->device, y.t, dy.t, dx.t));
    oracle_log_softmax_backward(9, 11, y.d, dy.d, dx.d);
    check_pair(on, &dx, 1e-6, "log-softmax gradient");
    pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy), pair_destroy(&dx);
}
Test(device, log_softmax_matches_the_oracle) { on_each_activation_target(log_softmax); }

// ---- Updates: three steps, so that state counts -------------------------------------------------

static const int64_t update_counts[] = {1, 17, 64, 1003};

static void sgd(const target *on) {
    for (int flags = 0; flags < 16; flags++) {
        int64_t count = update_counts[flags % COUNT(update_counts)];
        pair p = pair_1d(on, count), g = pair_1d(on, count), m = pair_1d(on, count);
        iso__sgd_args a = {.lr = 0.1f, .scale = 0.25f};
        a.momentum = flags & 1 ? 0.9f : 0;
        a.nesterov = (flags & 3) == 3;
        a.weight_decay = flags & 4 ? 0.01f : 0;
        a.dampening = (flags & 9) == 9 && !a.nesterov ? 0.3f : 0;
        for (int step = 0; step < 3; step++) {
            a.first = step == 0;
            OK(on->kernels->sgd(on->device, count, &a, g.t->data, p.t->data,
                                a.momentum != 0 ? m.t->data : NULL));
            for (int64_t i = 0; i < count; i++) oracle_sgd(&a, g.d[i], &p.d[i], &m.d[i]);
        }
        check_pair(on, &p, 1e-6, "sgd parameter");
        check_pair(on, &m, 1e-6, "sgd momentum");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&m);
    }
}
Test(device, sgd_matches_the_oracle) { on_each_target(sgd); }

static void adam(const target *on) {
    for (int flags = 0; flags < 8; flags++) {
        int64_t count = update_counts[flags % COUNT(update_counts)];
        pair p = pair_1d(on, count), g = pair_1d(on, count), m = pair_1d(on, count);
        pair v = pair_1d(on, count);
        zero(&m), zero(&v);
        OK(iso_tensor_fill(m.t, 0));
        OK(iso_tensor_fill(v.t, 0));
        iso__adam_args a = {
            .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .scale = 0.5f};
        a.rest1 = 0.1f;
        a.rest2 = 0.001f;
        a.decoupled = flags & 1;
        a.weight_decay = flags & 2 ? 0.1f : 0;
        for (int step = 1; step <= 3; step++) {
            a.correction1 = (float)(1 - pow(0.9, step));
            a.correction2_sqrt = (float)sqrt(1 - pow(0.999, step));
            OK(on->kernels->adam(on->device, count, &a, g.t->data, p.t->data, m.t->data, v.t->data,
                                 NULL));
            for (int64_t i = 0; i < count; i++) oracle_adam(&a, g.d[i], &p.d[i], &m.d[i], &v.d[i]);
        }
        check_pair(on, &p, 1e-6, "adam parameter");
        check_pair(on, &m, 1e-6, "adam first moment");
        check_pair(on, &v, 1e-6, "adam second moment");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&m), pair_destroy(&v);
    }
}
Test(device, adam_and_adamw_match_the_oracle) { on_each_target(adam); }

static void adadelta(const target *on) {
    for (int flags = 0; flags < 4; flags++) {
        int64_t count = update_counts[flags];
        pair p = pair_1d(on, count), g = pair_1d(on, count), s = pair_1d(on, count);
        pair d = pair_1d(on, count);
        zero(&s), zero(&d);
        OK(iso_tensor_fill(s.t, 0));
        OK(iso_tensor_fill(d.t, 0));
        iso__adadelta_args a = {.lr = 1, .rho = 0.9f, .eps = 1e-6f, .scale = 0.5f};
        a.weight_decay = flags & 1 ? 0.1f : 0;
        for (int step = 0; step < 3; step++) {
            OK(on->kernels->adadelta(on->device, count, &a, g.t->data, p.t->data, s.t->data,
                                     d.t->data));
            for (int64_t i = 0; i < count; i++)
                oracle_adadelta(&a, g.d[i], &p.d[i], &s.d[i], &d.d[i]);
        }
        check_pair(on, &p, 1e-6, "adadelta parameter");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&s), pair_destroy(&d);
    }
}
Test(device, adadelta_matches_the_oracle) { on_each_target(adadelta); }
