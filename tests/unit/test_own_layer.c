// SPDX-License-Identifier: MIT
// A user's own layer, written with the public headers only, among the library's layers.
#include <isotherm/nn.h>

#include "common/gradcheck.h"
#include "common/nn_fixture.h"

#include <stdlib.h>
#include <string.h>

TestSuite(own_layer, .timeout = 60);

// ---- y = factor * x with one learnable factor --------------------------------------------------

typedef struct scale {
    iso_module base;
    iso_parameter *factor;
} scale;

// to[i] = number * from[i]
static iso_status multiply(iso_tensor *from, float number, iso_tensor *to) {
    void *a, *b;
    iso_status status = iso_tensor_map(from, ISO_READ, &a);
    if (status < 0) return status;
    status = iso_tensor_map(to, ISO_WRITE, &b);
    for (int64_t i = 0; status >= 0 && i < iso_tensor_count(from); i++)
        ((float *)b)[i] = number * ((float *)a)[i];
    if (status >= 0) status = iso_tensor_unmap(to);
    iso_tensor_unmap(from);
    return status;
}

static iso_status read_factor(scale *s, float *out) {
    void *mapped;
    iso_status status = iso_tensor_map(s->factor->value, ISO_READ, &mapped);
    if (status < 0) return status;
    *out = *(float *)mapped;
    return iso_tensor_unmap(s->factor->value);
}

static iso_status scale_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                iso_tensor **out) {
    float factor;
    iso_status status = read_factor((scale *)self, &factor);
    if (status < 0) return status;
    status = iso_call_tensor(self, &call->out, iso_tensor_ndim(in), iso_tensor_shape(in),
                             iso_tensor_layout(in));
    if (status < 0) return status;
    *out = call->out;
    return multiply(in, factor, call->out);
}

static iso_status scale_backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    iso_parameter *p = ((scale *)self)->factor;
    void *x, *g, *d;
    if (!p->requires_grad) return ISO_OK;
    iso_status status = iso_tensor_map(call->in, ISO_READ, &x);
    if (status < 0) return status;
    if ((status = iso_tensor_map(grad_out, ISO_READ, &g)) >= 0 &&
        (status = iso_tensor_map(p->grad, ISO_READ_WRITE, &d)) >= 0) {
        double sum = p->grad_valid ? *(float *)d : 0;
        for (int64_t i = 0; i < iso_tensor_count(grad_out); i++)
            sum += (double)((float *)x)[i] * ((float *)g)[i];
        *(float *)d = (float)sum;
        iso_tensor_unmap(p->grad);
        iso_tensor_unmap(grad_out);
    }
    iso_tensor_unmap(call->in);
    return status;
}

static iso_status scale_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                       iso_tensor **grad_in) {
    float factor;
    iso_status status = read_factor((scale *)self, &factor);
    if (status < 0) return status;
    status = iso_call_tensor(self, &call->grad_in, iso_tensor_ndim(call->in),
                             iso_tensor_shape(call->in), iso_tensor_layout(call->in));
    if (status < 0) return status;
    *grad_in = call->grad_in;
    return multiply(grad_out, factor, call->grad_in);
}

static const iso_module_ops scale_ops = {
    .type = "Scale",
    .forward = scale_forward,
    .backward_params = scale_backward_params,
    .backward_input = scale_backward_input,
};

static iso_module *scale_create(iso_device *device, double factor) {
    scale *s = calloc(1, sizeof(*s));
    cr_ok(iso_module_init(&s->base, &scale_ops, device));
    cr_ok(iso_module_add_parameter(&s->base, "factor", 1, (int64_t[]){1}, &s->factor));
    cr_ok(iso_tensor_fill(s->factor->value, factor));
    return &s->base;
}

// ---- A layer that gives what a layer must not ----------------------------------------------------

typedef enum fault { NONE, TYPE, DEVICE, SHAPE, NOTHING } fault;

typedef struct faulty {
    iso_module base;
    fault in_forward, in_backward;
    iso_device *other;
    iso_tensor *given[2];
} faulty;

// The gradient or output of `like`'s shape in which this is wrong.
static iso_status give(faulty *f, fault wrong, iso_tensor *like, iso_tensor **slot,
                       iso_tensor **out) {
    int64_t shape[2] = {iso_tensor_shape(like)[0], iso_tensor_shape(like)[1]};
    if (wrong == NOTHING) return ISO_OK;
    if (wrong == SHAPE) shape[1]++;
    iso_tensor_destroy(slot);
    iso_status status = iso_tensor_create(wrong == DEVICE ? f->other : f->base.device,
                                          wrong == TYPE ? ISO_F64 : ISO_F32, 2, shape, slot);
    if (status >= 0) status = iso_tensor_fill(*slot, 1);
    *out = *slot;
    return status;
}

static iso_status faulty_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    faulty *f = (faulty *)self;
    (void)call;
    return give(f, f->in_forward, in, &f->given[0], out);
}

static iso_status faulty_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                        iso_tensor **grad_in) {
    faulty *f = (faulty *)self;
    (void)grad_out;
    return give(f, f->in_backward, call->in, &f->given[1], grad_in);
}

static void faulty_destroy(iso_module *self) {
    faulty *f = (faulty *)self;
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&f->given[i]);
    iso_device_destroy(&f->other);
}

static const iso_module_ops faulty_ops = {
    .type = "Faulty",
    .forward = faulty_forward,
    .backward_input = faulty_backward_input,
    .destroy = faulty_destroy,
};

static iso_module *faulty_create(iso_device *device, fault in_forward, fault in_backward) {
    faulty *f = calloc(1, sizeof(*f));
    cr_ok(iso_module_init(&f->base, &faulty_ops, device));
    cr_ok(iso_device_create("cpu", &f->other));
    f->in_forward = in_forward;
    f->in_backward = in_backward;
    return &f->base;
}

// A sequential: linear 4 -> 3, the layer, and linear 3 -> 2 in a container of its own.
static iso_module *create_around(iso_device *device, iso_module *layer) {
    iso_rng rng = {.seed = 1};
    iso_module *model, *head, *linear;
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_sequential_create(device, &head));
    cr_ok(iso_linear_create(device, 4, 3, true, &rng, &linear));
    cr_ok(iso_sequential_add_take(model, "in", linear));
    cr_ok(iso_sequential_add_take(model, "mine", layer));
    cr_ok(iso_linear_create(device, 3, 2, true, &rng, &linear));
    cr_ok(iso_sequential_add_take(head, "out", linear));
    cr_ok(iso_sequential_add_take(model, "head", head));
    return model;
}

// One step fails with this code, and its message has both texts.
static void expect_blame(fault in_forward, fault in_backward, iso_status code, const char *who,
                         const char *what) {
    iso_device *device = open_cpu();
    iso_module *model = create_around(device, faulty_create(device, in_forward, in_backward));
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1), *out = NULL;
    iso_tensor *ones = filled_tensor(device, 2, (int64_t[]){5, 2}, 1);
    iso_status status = iso_module_forward(model, in, &out);
    if (in_forward == NONE) {
        cr_ok(status);
        status = iso_module_backward(model, ones, NULL);
    }
    cr_fails(status, code, who);
    cr_fails(status, code, what);
    iso_tensor_destroy(&in);
    iso_tensor_destroy(&ones);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- Tests -------------------------------------------------------------------------------------

// linear 4 -> 3, scale, linear 3 -> 2
static void reference(const void *user, const double *x, double *const *p, double *y) {
    (void)user;
    for (int n = 0; n < 5; n++) {
        double h[3];
        for (int k = 0; k < 3; k++) {
            h[k] = p[1][k];
            for (int i = 0; i < 4; i++) h[k] += p[0][k * 4 + i] * x[n * 4 + i];
            h[k] *= p[2][0];
        }
        for (int o = 0; o < 2; o++) {
            y[n * 2 + o] = p[4][o];
            for (int k = 0; k < 3; k++) y[n * 2 + o] += p[3][o * 3 + k] * h[k];
        }
    }
}

static iso_module *create_model(iso_device *device) {
    iso_rng rng = {.seed = 1};
    iso_module *model, *layer;
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_linear_create(device, 4, 3, true, &rng, &layer));
    cr_ok(iso_sequential_add_take(model, "in", layer));
    cr_ok(iso_sequential_add_take(model, "scale", scale_create(device, 1.5)));
    cr_ok(iso_linear_create(device, 3, 2, true, &rng, &layer));
    cr_ok(iso_sequential_add_take(model, "out", layer));
    return model;
}

Test(own_layer, has_right_gradients_between_library_layers) {
    iso_device *device = open_cpu();
    iso_module *model = create_model(device);
    gradcheck check = {.module = model, .ndim = 2, .shape = {5, 4}, .forward = reference};
    const char *problem = gradcheck_run(&check);
    cr_assert_null(problem, "%s", problem);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(own_layer, is_listed_by_name) {
    iso_device *device = open_cpu();
    iso_module *model = create_model(device);
    iso_parameter_list list;
    cr_ok(iso_module_parameters(model, &list));
    cr_assert_eq(list.count, 5);
    cr_assert_str_eq(list.name[2], "scale.factor");
    cr_assert_str_eq(list.owner[2]->ops->type, "Scale");
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(own_layer, is_named_where_its_output_is_wrong) {
    const char *forward = "forward of Faulty \"mine\"";
    expect_blame(TYPE, NONE, ISO_ERR_TYPE, forward, "output of f64 for an input of f32");
    expect_blame(DEVICE, NONE, ISO_ERR_TYPE, forward, "not on its own device");
    expect_blame(NOTHING, NONE, ISO_ERR_STATE, forward, "no output");
    expect_blame(SHAPE, NONE, ISO_ERR_SHAPE,
                 "Linear \"out\" expects [N, 3] or [N, L, 3] but got [5, 4]",
                 "from Faulty \"mine\"");
}

Test(own_layer, is_named_where_the_gradient_of_its_input_is_wrong) {
    const char *backward = "backward of Faulty \"mine\"";
    expect_blame(NONE, TYPE, ISO_ERR_TYPE, backward, "gradient of f64 for an input of f32");
    expect_blame(NONE, DEVICE, ISO_ERR_TYPE, backward, "not on its own device");
    expect_blame(NONE, NOTHING, ISO_ERR_STATE, backward, "no gradient");
    expect_blame(NONE, SHAPE, ISO_ERR_SHAPE, backward, "shape [5, 4] for an input of shape [5, 3]");
}

Test(own_layer, is_not_named_in_an_error_of_a_later_call) {
    iso_device *device = open_cpu();
    iso_module *model = create_around(device, faulty_create(device, SHAPE, NONE));
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1), *out;
    cr_fails(iso_module_forward(model, in, &out), ISO_ERR_SHAPE, "from Faulty");
    iso_module *head = iso_module_retain(model->child[2]);
    iso_module_destroy(&model);
    cr_fails(iso_module_forward(head, in, &out), ISO_ERR_SHAPE, "but got [5, 4]");
    cr_assert(!strstr(iso_last_error()->message, "Faulty"), "%s", iso_last_error()->message);
    iso_module_destroy(&head);
    iso_tensor_destroy(&in);
    close_cpu(&device);
}

// A failed backward has used up the forward; only what follows it is told so.
Test(own_layer, a_backward_after_a_failed_one_is_told_so) {
    iso_device *device = open_cpu();
    iso_module *model = create_around(device, faulty_create(device, NONE, SHAPE));
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1), *out;
    iso_tensor *ones = filled_tensor(device, 2, (int64_t[]){5, 2}, 1);
    for (int round = 0; round < 2; round++) {
        cr_ok(iso_module_forward(model, in, &out));
        cr_fails(iso_module_backward(model, ones, NULL), ISO_ERR_SHAPE, "backward of Faulty");
        for (int again = 0; again < 2; again++)
            cr_fails(iso_module_backward(model, ones, NULL), ISO_ERR_STATE,
                     "without a forward before it: the last backward failed, so call forward "
                     "again");
    }
    faulty *layer = (faulty *)model->child[1];
    layer->in_backward = NONE;
    for (int round = 0; round < 2; round++) { // here it is the forward that fails
        layer->in_forward = round == 0 ? NOTHING : NONE;
        cr_assert_eq(iso_module_forward(model, in, &out), round == 0 ? ISO_ERR_STATE : ISO_OK);
        if (round == 1) cr_ok(iso_module_backward(model, ones, NULL));
        cr_fails(iso_module_backward(model, ones, NULL), ISO_ERR_STATE, "without a forward before");
        cr_assert(!strstr(iso_last_error()->message, "failed"), "%s", iso_last_error()->message);
    }
    iso_tensor_destroy(&in);
    iso_tensor_destroy(&ones);
    iso_module_destroy(&model);
    close_cpu(&device);
}
