// SPDX-License-Identifier: MIT
// Single layers under autocast: what they compute from, shared and frozen parameters, layers of
// users, and what is refused.
#include "common/autocast_fixture.h"
#include "common/balance.h"
#include "common/oracle.h"
#include "nn/nn_impl.h"

#include <math.h>
#include <string.h>

TestSuite(autocast_layers, .timeout = 120, .fini = balance_check);

enum { ROWS = 12, IN = 20, HIDDEN = 24, CLASSES = 5 };

// ---- One layer --------------------------------------------------------------------------------------

static void rounded(iso_dtype half, double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = half_value(half, x[i]);
}

// Compares a tensor with doubles as check_pair does. half: it was widened from that type behind the
// layer; ISO_F32: it was not.
static void check(const double *want, iso_tensor *t, iso_dtype half, const char *what) {
    double rounding = half == ISO_BF16 ? 0x1p-8 : half == ISO_F16 ? 0x1p-11 : 0;
    double *got = doubles(t), largest = 1;
    for (int64_t i = 0; i < t->count; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < t->count; i++) {
        double allowed = 1.1e-5 * largest + rounding * fabs(want[i]);
        cr_assert(fabs(got[i] - want[i]) <= allowed, "%s: number %d is %g, not %g", what, (int)i,
                  got[i], want[i]);
        if (half != ISO_F32) cr_assert(got[i] == half_value(half, got[i]), "%s: %a", what, got[i]);
    }
    free(got);
}

// Output and gradients are those of the oracle from rounded numbers. What the layer gives in 16
// bits is rounded once, so it is within half of the last of 8 (2^-8) or 11 bits of that; gradients
// of parameters are sums in f32.
static void compute(iso_device *device, iso_dtype half) {
    target on = {.device = device, .dtype = ISO_F32};
    on.kernels = on.device->kernels[ISO_F32];
    iso_module *layer = new_linear(device, IN, CLASSES, 3), *net = with_autocast(layer, half);
    iso_parameter_list p = parameters_of(net);
    pair x = pair_2d(&on, ROWS, IN), dy = pair_2d(&on, ROWS, CLASSES);
    double *w = doubles(p.item[0]->value), *b = doubles(p.item[1]->value);
    double y[ROWS * CLASSES], dw[CLASSES * IN] = {0}, db[CLASSES] = {0}, dx[ROWS * IN] = {0};
    iso_tensor *out, *grad_in;
    OK(iso_module_forward(net, x.t, &out));
    OK(iso_module_backward(net, dy.t, &grad_in));
    cr_assert(out->dtype == ISO_F32 && grad_in->dtype == ISO_F32);
    rounded(half, x.d, ROWS * IN), rounded(half, dy.d, ROWS * CLASSES);
    rounded(half, w, CLASSES * IN), rounded(half, b, CLASSES);
    oracle_linear(ROWS, IN, CLASSES, x.d, w, b, false, y);
    oracle_linear_backward(ROWS, IN, CLASSES, x.d, w, dy.d, dw, db, dx);
    check(y, out, half, "output");
    check(dx, grad_in, half, "gradient of the input");
    check(dw, p.item[0]->grad, ISO_F32, "gradient of the weight");
    check(db, p.item[1]->grad, ISO_F32, "gradient of the bias");
    free(w), free(b);
    pair_destroy(&x), pair_destroy(&dy);
    iso_parameter_list_destroy(&p);
    iso_module_destroy(&net);
}
Test(autocast_layers, a_linear_layer_computes_from_rounded_numbers_and_sums_in_f32) {
    on_each_half(compute);
}

// ---- Parameters used more than once, or not trained -------------------------------------------------

// a, relu, b, relu, c under autocast, and its gradients for one batch. tied: b uses a's parameters;
// twice: b is a.
enum { OWN, TIED, TWICE };
static iso_module *new_stack(iso_device *device, int kind, iso_module **a, iso_module **b) {
    iso_module *net;
    OK(iso_sequential_create(device, &net));
    *a = new_linear(device, HIDDEN, HIDDEN, 5);
    *b = kind == TWICE ? iso_module_retain(*a) : new_linear(device, HIDDEN, HIDDEN, 5);
    append_layer(net, "a", *a);
    append_layer(net, "relu1", new_relu(device));
    append_layer(net, "b", *b);
    append_layer(net, "relu2", new_relu(device));
    append_layer(net, "c", new_linear(device, HIDDEN, CLASSES, 6));
    if (kind == TIED) OK(iso_module_tie(*b, "weight", *a, "weight"));
    if (kind == TIED) OK(iso_module_tie(*b, "bias", *a, "bias"));
    return with_autocast(net, ISO_BF16);
}

// One forward and backward from a fixed batch.
static void run_once(iso_module *net, pair *x, pair *dy) {
    iso_tensor *out, *grad;
    OK(iso_tensor_create(net->device, ISO_F32, 2, dy->t->shape, &grad));
    OK(iso_tensor_copy(dy->t, grad)); // a gradient is consumed
    OK(iso_module_forward(net, x->t, &out));
    OK(iso_module_backward(net, grad, NULL));
    iso_tensor_destroy(&grad);
}

// The seed gives a and b the same values, so their gradients add up to that of a shared parameter.
Test(autocast_layers, gradients_of_parameters_used_twice_add_up) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    pair x = pair_2d(&on, ROWS, HIDDEN), dy = pair_2d(&on, ROWS, CLASSES);
    iso_module *a, *b, *shared_a, *shared_b, *own = new_stack(on.device, OWN, &a, &b);
    run_once(own, &x, &dy);
    for (int kind = TIED; kind <= TWICE; kind++) {
        iso_module *net = new_stack(on.device, kind, &shared_a, &shared_b);
        run_once(net, &x, &dy);
        for (int i = 0; i < 2; i++) {
            double *first = doubles(a->parameter[i]->grad);
            double *second = doubles(b->parameter[i]->grad);
            for (int64_t k = 0; k < a->parameter[i]->grad->count; k++) first[k] += second[k];
            check(first, shared_a->parameter[i]->grad, ISO_F32, "gradient of a shared parameter");
            free(first), free(second);
        }
        iso_module_destroy(&net);
    }
    pair_destroy(&x), pair_destroy(&dy);
    iso_module_destroy(&own);
    iso_device_destroy(&on.device);
}

Test(autocast_layers, a_frozen_weight_is_used_and_gets_no_gradient) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    pair x = pair_2d(&on, ROWS, HIDDEN), dy = pair_2d(&on, ROWS, CLASSES);
    iso_module *a, *b, *c, *d;
    iso_module *net = new_stack(on.device, OWN, &a, &b),
               *frozen = new_stack(on.device, OWN, &c, &d);
    d->parameter[0]->requires_grad = false;
    OK(iso_tensor_fill(d->parameter[0]->grad, 3));
    run_once(net, &x, &dy);
    run_once(frozen, &x, &dy);
    cr_assert(same_bits(a->parameter[0]->grad, c->parameter[0]->grad));
    cr_assert(same_bits(b->parameter[1]->grad, d->parameter[1]->grad));
    double *untouched = doubles(d->parameter[0]->grad);
    for (int i = 0; i < HIDDEN * HIDDEN; i++) cr_assert(untouched[i] == 3);
    free(untouched);
    pair_destroy(&x), pair_destroy(&dy);
    iso_module_destroy(&net), iso_module_destroy(&frozen);
    iso_device_destroy(&on.device);
}

// A weight whose two pieces come when they are asked for.
typedef struct late_weight {
    iso_pieces pieces;
    iso_tensor *value, *right;
} late_weight;

static iso_status needed(const iso_pieces *pieces, int k) {
    const late_weight *late = iso_container_of(pieces, const late_weight, pieces);
    const int64_t first = k * pieces->rows * HIDDEN, shape[2] = {k ? 5 : pieces->rows, HIDDEN};
    iso_tensor *from, *to;
    iso_device *device = late->value->device;
    OK(iso_tensor_borrow(device, ISO_F32, 2, shape, (float *)late->right->data + first, &from));
    OK(iso_tensor_borrow(device, ISO_F32, 2, shape, (float *)late->value->data + first, &to));
    OK(iso_tensor_copy(from, to));
    iso_tensor_destroy(&from), iso_tensor_destroy(&to);
    return ISO_OK;
}

Test(autocast_layers, a_weight_in_pieces_is_rounded_when_all_are_there) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    enum { WIDTH = 21 };
    pair x = pair_2d(&on, ROWS, HIDDEN);
    iso_module *layer = new_linear(on.device, HIDDEN, WIDTH, 3),
               *net = with_autocast(layer, ISO_BF16);
    iso_parameter *w = layer->parameter[0];
    late_weight late = {.pieces = {.count = 2, .rows = 16, .needed = needed}, .value = w->value};
    iso_tensor *out, *whole;
    OK(iso_tensor_create(on.device, ISO_F32, 2, w->value->shape, &late.right));
    OK(iso_tensor_copy(w->value, late.right));
    OK(iso_module_forward(net, x.t, &out));
    OK(iso_tensor_create(on.device, ISO_F32, 2, out->shape, &whole));
    OK(iso_tensor_copy(out, whole));
    OK(iso_tensor_fill(w->value, NAN));
    w->pieces = &late.pieces;
    OK(iso_module_forward(net, x.t, &out));
    cr_assert(same_bits(out, whole));
    w->pieces = NULL;
    iso_tensor_destroy(&late.right), iso_tensor_destroy(&whole);
    pair_destroy(&x);
    iso_module_destroy(&net);
    iso_device_destroy(&on.device);
}

// ---- Layers of users, and what is refused -----------------------------------------------------------

static iso_dtype seen; // by the layer below

static iso_status pass(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    seen = in->dtype;
    *out = in;
    return ISO_OK;
}
static iso_status pass_back(iso_module *self, iso_call *call, iso_tensor *grad_out,
                            iso_tensor **grad_in) {
    (void)self, (void)call;
    *grad_in = grad_out;
    return ISO_OK;
}
// One written before there was bf16, and one that knows it.
static const iso_module_ops old_ops = {.type = "Old", .forward = pass, .backward_input = pass_back};
static const iso_module_ops new_ops = {
    .type = "New", .forward = pass, .backward_input = pass_back, .takes_half = true};

static iso_module *new_own(iso_device *device, const iso_module_ops *ops) {
    iso_module *m = calloc(1, sizeof(*m));
    OK(iso_module_init(m, ops, device));
    return m;
}

static iso_module *new_cast(iso_device *device, iso_dtype dtype) {
    iso_module *m;
    OK(iso_cast_create(device, dtype, &m));
    return m;
}

// A layer that takes bf16 for f32 would read and write beyond what it was given.
Test(autocast_layers, layers_that_do_not_say_so_are_not_given_bf16) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    pair x = pair_2d(&on, ROWS, IN), dy = pair_2d(&on, ROWS, CLASSES);
    for (int kind = 0; kind < 3; kind++) {
        iso_module *net, *model;
        iso_tensor *out;
        OK(iso_sequential_create(on.device, &net));
        append_layer(net, "fc", new_linear(on.device, IN, CLASSES, 3));
        if (kind == 2) append_layer(net, "up", new_cast(on.device, ISO_F32));
        append_layer(net, "own", new_own(on.device, kind == 1 ? &new_ops : &old_ops));
        if (kind == 2) append_layer(net, "down", new_cast(on.device, ISO_BF16));
        model = with_autocast(net, ISO_BF16);
        if (kind == 0) {
            cr_assert(iso_module_forward(model, x.t, &out) == ISO_ERR_TYPE);
            cr_assert(strstr(iso_last_error()->message, "Old \"own\" does not take bf16"));
        } else {
            run_once(model, &x, &dy);
            cr_assert(seen == (kind == 1 ? ISO_BF16 : ISO_F32));
        }
        iso_module_destroy(&model);
    }
    pair_destroy(&x), pair_destroy(&dy);
    iso_device_destroy(&on.device);
}

Test(autocast_layers, what_cannot_be_in_bf16_says_so) {
    iso_device *device = open_any();
    target on = {.device = device, .dtype = ISO_F32};
    pair x = pair_2d(&on, ROWS, IN);
    iso_module *net = new_linear(device, IN, CLASSES, 3), *wrapped,
               *cast = new_cast(device, ISO_BF16);
    iso_tensor *out;
    cr_assert(iso_autocast_create_take(iso_module_retain(net), ISO_F64, &wrapped) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "f64: use bf16 or f16"));
    cr_assert(iso_autocast_create_take(NULL, ISO_BF16, &wrapped) == ISO_ERR_ARG);
    OK(iso_module_forward(cast, x.t, &out));
    OK(iso_module_to(net, ISO_F64));
    cr_assert(iso_module_forward(net, out, &out) == ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "is f64 but got bf16"));
    wrapped = net;
    cr_assert(iso_autocast_create_take(iso_module_retain(net), ISO_BF16, &wrapped) == ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "an Autocast to bf16 takes modules of f32 and bf16"));
    cr_assert(!wrapped && net->references == 1);
    pair_destroy(&x);
    iso_module_destroy(&net), iso_module_destroy(&cast);
    iso_device_destroy(&device);
}

// ---- Several types of activations -------------------------------------------------------------------

// layer, under autocast to each of two types, one after the other; the same layer if `shared`.
static iso_module *new_pair(iso_device *device, bool shared, iso_dtype first, iso_dtype second) {
    iso_module *net, *a = new_linear(device, HIDDEN, HIDDEN, 5);
    iso_module *b = shared ? iso_module_retain(a) : new_linear(device, HIDDEN, HIDDEN, 5);
    OK(iso_sequential_create(device, &net));
    append_layer(net, "a", with_autocast(a, first));
    append_layer(net, "b", with_autocast(b, second));
    return net;
}

// Each call has copies of the parameters in its own type, also in backward.
Test(autocast_layers, a_layer_may_run_in_two_types) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    if (!on.device->kernels[ISO_F16]) cr_skip_test("this device has one type of 16 bits");
    pair x = pair_2d(&on, ROWS, HIDDEN), dy = pair_2d(&on, ROWS, HIDDEN);
    for (int order = 0; order < 2; order++) {
        const iso_dtype first = order ? ISO_F16 : ISO_BF16, second = order ? ISO_BF16 : ISO_F16;
        iso_module *apart = new_pair(on.device, false, first, second);
        iso_module *shared = new_pair(on.device, true, first, second), *net[] = {apart, shared};
        iso_tensor *out[2], *dx[2], *grad;
        for (int i = 0; i < 2; i++) {
            OK(iso_tensor_create(on.device, ISO_F32, 2, dy.t->shape, &grad));
            OK(iso_tensor_copy(dy.t, grad));
            OK(iso_module_forward(net[i], x.t, &out[i]));
            OK(iso_module_backward(net[i], grad, &dx[i]));
            iso_tensor_destroy(&grad);
        }
        cr_assert(same_bits(out[0], out[1]) && same_bits(dx[0], dx[1]));
        iso_module_destroy(&apart), iso_module_destroy(&shared);
    }
    pair_destroy(&x), pair_destroy(&dy);
    iso_device_destroy(&on.device);
}

// The outer Autocast rounds what the inner one, of another type, does not take.
Test(autocast_layers, an_autocast_inside_another_of_another_type) {
    target on = {.device = open_any(), .dtype = ISO_F32};
    if (!on.device->kernels[ISO_F16]) cr_skip_test("this device has one type of 16 bits");
    pair x = pair_2d(&on, ROWS, HIDDEN);
    iso_module *layer = new_linear(on.device, HIDDEN, HIDDEN, 5), *net, *outer;
    iso_tensor *out, *first;
    OK(iso_sequential_create(on.device, &net));
    append_layer(net, "inner", with_autocast(iso_module_retain(layer), ISO_F16));
    append_layer(net, "outer", layer);
    outer = with_autocast(net, ISO_BF16);
    OK(iso_tensor_create(on.device, ISO_F32, 2, x.t->shape, &first));
    for (int i = 0; i < 4; i++) {
        OK(iso_module_forward(outer, x.t, &out));
        if (i == 0) OK(iso_tensor_copy(out, first));
        cr_assert(same_bits(out, first), "forward %d differs from the first", i);
    }
    iso_tensor_destroy(&first);
    pair_destroy(&x);
    iso_module_destroy(&outer);
    iso_device_destroy(&on.device);
}

// Attention has a child, but is no container.
Test(autocast_layers, attention_takes_inputs_of_one_type) {
    iso_device *device = open_any();
    if (!device->kernels[ISO_F32]->attention_forward) cr_skip_test("this device has no attention");
    iso_attention_config config = {.embed_dim = HIDDEN, .num_heads = 2};
    iso_rng rng = {.seed = 1};
    iso_module *layer;
    iso_tensors in = {.count = 2}, out;
    OK(iso_multihead_attention_create(device, &config, &rng, &layer));
    for (int i = 0; i < 2; i++) {
        OK(iso_tensor_create(device, i ? ISO_F32 : ISO_BF16, 3, (int64_t[]){2, 3, HIDDEN},
                             &in.item[i]));
        OK(iso_tensor_fill(in.item[i], 0.5));
    }
    cr_assert(iso_module_forward_many(layer, &in, &out) == ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "inputs of bf16 and f32"));
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&in.item[i]);
    iso_module_destroy(&layer);
    iso_device_destroy(&device);
}
