// SPDX-License-Identifier: MIT
// Modules of f64, models of two element types, and what iso_module_to promises and refuses.
#include "common/nn_fixture.h"
#include "common/scratch.h"
#include "device/device_impl.h"

#include <isotherm/checkpoint.h>
#include <isotherm/optim.h>
#include <math.h>
#include <string.h>

TestSuite(types, .timeout = 60);

static iso_device *device;

static void add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    cr_ok(made);
    cr_ok(iso_sequential_add_take(net, name, *layer));
}

// conv 1-16 3x3 (blocked where the device has such a layout), relu, pool 2, dropout, flatten,
// linear 64-3, log-softmax; for [N, 1, 6, 6].
static iso_module *new_net(void) {
    iso_rng rng = {.seed = 5};
    iso_module *net, *m = NULL;
    iso_conv2d_config c = {.in_channels = 1, .out_channels = 16, .kernel_size = {3, 3}};
    cr_ok(iso_sequential_create(device, &net));
    add(net, iso_conv2d_create(device, &c, &rng, &m), "conv", &m);
    add(net, iso_relu_create(device, &m), "relu", &m);
    add(net, iso_max_pool2d_create(device, 2, 2, &m), "pool", &m);
    add(net, iso_dropout_create(device, 0.3, &rng, &m), "dropout", &m);
    add(net, iso_flatten_create(device, &m), "flatten", &m);
    add(net, iso_linear_create(device, 64, 3, true, &rng, &m), "fc", &m);
    add(net, iso_log_softmax_create(device, &m), "log_softmax", &m);
    return net;
}

static const int64_t image[4] = {2, 1, 6, 6};

// A forward and backward with the input and the gradient that belong to `seed`; the output and the
// gradient of the input.
static void use(iso_module *net, iso_dtype dtype, uint64_t seed, double **out, double **grad_in) {
    iso_tensor *x = random_tensor_of(device, dtype, 4, image, seed), *y, *dx;
    iso_tensor *dy = random_tensor_of(device, dtype, 2, (int64_t[]){2, 3}, seed + 1);
    iso_module_zero_grad(net);
    cr_ok(iso_module_forward(net, x, &y));
    cr_assert_eq(iso_tensor_dtype(y), dtype);
    *out = tensor_doubles(y);
    cr_ok(iso_module_backward(net, dy, &dx));
    cr_assert_eq(iso_tensor_dtype(dx), dtype);
    *grad_in = tensor_doubles(dx);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
}

static double distance(int count, const double *a, const double *b) {
    double worst = 0;
    for (int i = 0; i < count; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

// ---- iso_module_to --------------------------------------------------------------------------------

static void check_types(iso_module *module, iso_dtype dtype) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        cr_assert_eq(list.item[i]->value->dtype, dtype, "%s", list.name[i]);
        cr_assert_eq(list.item[i]->grad->dtype, dtype, "%s", list.name[i]);
        cr_assert_not(list.item[i]->grad_valid);
    }
    iso_parameter_list_destroy(&list);
}

Test(types, module_made_f64_keeps_its_values_and_comes_back_the_same) {
    device = open_cpu();
    iso_module *net = new_net(), *same = new_net();
    iso_parameter_list a, b;
    cr_ok(iso_module_to(net, ISO_F64));
    check_types(net, ISO_F64);
    cr_ok(iso_module_parameters(net, &a));
    cr_ok(iso_module_parameters(same, &b));
    for (int i = 0; i < a.count; i++) {
        double *x = tensor_doubles(a.item[i]->value), *y = tensor_doubles(b.item[i]->value);
        cr_assert_eq(distance((int)a.item[i]->value->count, x, y), 0);
        free(x), free(y);
    }
    cr_ok(iso_module_to(net, ISO_F32));
    check_types(net, ISO_F32);
    for (int i = 0; i < a.count; i++)
        cr_assert(same_values(a.item[i]->value, b.item[i]->value), "%s", a.name[i]);
    iso_parameter_list_destroy(&a);
    iso_parameter_list_destroy(&b);
    iso_module_destroy(&net);
    iso_module_destroy(&same);
    close_cpu(&device);
}

// Tensors of calls, views and workspaces are left from the other type.
Test(types, module_used_before_is_as_a_new_one) {
    device = open_cpu();
    iso_module *used = new_net();
    double *out[2], *grad[2];
    for (int turn = 0; turn < 4; turn++) {
        iso_dtype dtype = turn % 2 ? ISO_F64 : ISO_F32;
        iso_module *fresh = new_net();
        cr_ok(iso_module_to(used, dtype));
        cr_ok(iso_module_to(fresh, dtype));
        for (int skip = 0; skip < turn; skip++) { // the same number of masks drawn
            use(fresh, dtype, 90, &out[0], &grad[0]);
            free(out[0]), free(grad[0]);
        }
        use(used, dtype, 3, &out[0], &grad[0]);
        use(fresh, dtype, 3, &out[1], &grad[1]);
        cr_assert_eq(distance(6, out[0], out[1]), 0, "output in turn %d", turn);
        cr_assert_eq(distance(72, grad[0], grad[1]), 0, "gradient in turn %d", turn);
        for (int i = 0; i < 2; i++) free(out[i]), free(grad[i]);
        iso_module_destroy(&fresh);
    }
    iso_module_destroy(&used);
    close_cpu(&device);
}

Test(types, backward_of_a_forward_in_the_other_type_is_refused) {
    device = open_cpu();
    iso_module *net = new_net();
    iso_tensor *x = random_tensor(device, 4, image, 1), *y;
    iso_tensor *dy = random_tensor(device, 2, (int64_t[]){2, 3}, 2);
    cr_ok(iso_module_forward(net, x, &y));
    cr_ok(iso_module_to(net, ISO_F64));
    cr_fails(iso_module_backward(net, dy, NULL), ISO_ERR_STATE, "without a forward");
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// Its state has the size and type of the parameters.
Test(types, module_of_an_optimizer_cannot_change_its_type) {
    device = open_cpu();
    iso_module *net = new_net();
    iso_optimizer *adam, *second;
    cr_ok(iso_optimizer_create(ISO_ADAM, net, NULL, &adam));
    cr_ok(iso_optimizer_create(ISO_SGD, net, NULL, &second));
    iso_optimizer_destroy(&second);
    cr_fails(iso_module_to(net, ISO_F64), ISO_ERR_STATE, "optimizer");
    check_types(net, ISO_F32);
    iso_optimizer_destroy(&adam);
    cr_ok(iso_module_to(net, ISO_F64));
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(types, other_types_are_refused_in_one_sentence) {
    device = open_cpu();
    iso_module *net = new_net(), *cast;
    cr_fails(iso_module_to(net, ISO_I64), ISO_ERR_ARG, "i64");
    cr_fails(iso_module_to(net, (iso_dtype)77), ISO_ERR_ARG, "f32, f64, bf16 or f16");
    iso_buffer *buffer;
    cr_fails(iso_module_add_buffer(net, "bytes", ISO_U8, 0, NULL, &buffer), ISO_ERR_ARG,
             "a buffer cannot be u8: use f32, f64 or i64");
    cr_fails(iso_cast_create(device, ISO_I64, &cast), ISO_ERR_ARG, "type i64: use f32, f64, bf16");
    check_types(net, ISO_F32);
    iso_tensor *x = random_tensor_of(device, ISO_F64, 4, image, 1), *y;
    cr_fails(iso_module_forward(net, x, &y), ISO_ERR_TYPE, "iso_cast_create");
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(types, a_device_without_kernels_for_bf16_says_so) {
    device = open_cpu();
    device->kernels[ISO_BF16] = NULL;
    const char *text = "cpu device does not compute in bf16";
    iso_module *net = new_net(), *made = net;
    cr_fails(iso_module_to(net, ISO_BF16), ISO_ERR_UNSUPPORTED, text);
    iso_tensor *x, *y;
    cr_fails(iso_autocast_create_take(iso_module_retain(net), ISO_BF16, &made), ISO_ERR_UNSUPPORTED,
             text);
    cr_assert_eq(net->references, 1);
    cr_assert_null(made, "what it took is gone");
    cr_fails(iso_cast_create(device, ISO_BF16, &made), ISO_ERR_UNSUPPORTED, text);
    cr_ok(iso_tensor_create(device, ISO_BF16, 4, image, &x));
    cr_fails(iso_module_forward(net, x, &y), ISO_ERR_UNSUPPORTED, text);
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- A layer with a buffer and without parameters -------------------------------------------------

static iso_status pass(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}
static const iso_module_ops statistics_ops = {.type = "Statistics", .forward = pass};

Test(types, buffers_change_with_their_module_but_counts_do_not) {
    device = open_cpu();
    iso_module *m = calloc(1, sizeof(*m));
    iso_buffer *mean, *count;
    iso_tensor *x = random_tensor_of(device, ISO_F64, 1, (int64_t[]){3}, 1), *y;
    void *number;
    cr_ok(iso_module_init(m, &statistics_ops, device));
    cr_ok(iso_module_add_buffer(m, "mean", ISO_F32, 1, (int64_t[]){3}, &mean));
    cr_ok(iso_module_add_buffer(m, "count", ISO_I64, 0, NULL, &count));
    cr_ok(iso_tensor_fill(mean->value, 0.5));
    cr_ok(iso_tensor_fill(count->value, 41));
    cr_fails(iso_module_forward(m, x, &y), ISO_ERR_TYPE, "Statistics is f32 but got f64");
    cr_ok(iso_module_to(m, ISO_F64));
    cr_ok(iso_module_forward(m, x, &y));
    cr_assert_eq(mean->value->dtype, ISO_F64);
    cr_assert_eq(count->value->dtype, ISO_I64);
    double *values = tensor_doubles(mean->value);
    for (int i = 0; i < 3; i++) cr_assert_eq(values[i], 0.5);
    free(values);
    cr_ok(iso_tensor_map(count->value, ISO_READ, &number));
    cr_assert_eq(*(int64_t *)number, 41);
    cr_ok(iso_tensor_unmap(count->value));
    iso_tensor_destroy(&x);
    iso_module_destroy(&m);
    close_cpu(&device);
}

Test(types, parameter_added_later_has_the_type_of_its_module) {
    device = open_cpu();
    iso_rng rng = {.seed = 1};
    iso_module *m;
    iso_parameter *p;
    cr_ok(iso_linear_create(device, 3, 2, true, &rng, &m));
    cr_ok(iso_module_to(m, ISO_F64));
    cr_ok(iso_module_add_parameter(m, "scale", 1, (int64_t[]){2}, &p));
    check_types(m, ISO_F64);
    double *values = tensor_doubles(p->value);
    cr_assert(values[0] == 0 && values[1] == 0);
    free(values);
    iso_module_destroy(&m);
    close_cpu(&device);
}

// ---- Two types in one model -----------------------------------------------------------------------

// new_net() with all after the pooling in f64.
static iso_module *new_mixed(void) {
    iso_module *net, *cast, *whole = new_net();
    cr_ok(iso_sequential_create(device, &net));
    for (int i = 0; i < whole->child_count; i++) {
        if (i == 3) add(net, iso_cast_create(device, ISO_F64, &cast), "cast", &cast);
        if (i >= 3) cr_ok(iso_module_to(whole->child[i], ISO_F64));
        cr_ok(
            iso_sequential_add_take(net, whole->child_name[i], iso_module_retain(whole->child[i])));
    }
    iso_module_destroy(&whole);
    return net;
}

Test(types, mixed_model_agrees_with_one_of_f64) {
    device = open_cpu();
    iso_module *mixed = new_mixed(), *wide = new_net();
    cr_ok(iso_module_to(wide, ISO_F64));
    iso_tensor *x = random_tensor(device, 4, image, 1), *y[2], *dx[2];
    iso_tensor *xd = random_tensor_of(device, ISO_F64, 4, image, 1);
    cr_ok(iso_tensor_copy(x, xd));
    for (int i = 0; i < 2; i++) {
        iso_tensor *dy = random_tensor_of(device, ISO_F64, 2, (int64_t[]){2, 3}, 2);
        iso_module *net = i ? wide : mixed;
        cr_ok(iso_module_forward(net, i ? xd : x, &y[i]));
        cr_ok(iso_module_backward(net, dy, &dx[i]));
        iso_tensor_destroy(&dy);
    }
    cr_assert_eq(iso_tensor_dtype(y[0]), ISO_F64);
    cr_assert_eq(iso_tensor_dtype(dx[0]), ISO_F32);
    double *a = tensor_doubles(y[0]), *b = tensor_doubles(y[1]);
    cr_assert_lt(distance(6, a, b), 1e-6);
    free(a), free(b);
    a = tensor_doubles(dx[0]), b = tensor_doubles(dx[1]);
    cr_assert_lt(distance(72, a, b), 1e-6);
    free(a), free(b);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&xd);
    iso_module_destroy(&mixed);
    iso_module_destroy(&wide);
    close_cpu(&device);
}

// One pooling in two places, once for each type: in its backward it is of the type of each place.
Test(types, layer_shared_by_both_types) {
    device = open_cpu();
    iso_module *net, *pool, *cast;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_max_pool2d_create(device, 2, 2, &pool));
    cr_ok(iso_sequential_add_take(net, "a", iso_module_retain(pool)));
    add(net, iso_cast_create(device, ISO_F64, &cast), "cast", &cast);
    cr_ok(iso_sequential_add_take(net, "b", pool));
    iso_tensor *x = random_tensor(device, 4, (int64_t[]){1, 1, 4, 4}, 1), *y, *dx, *dy = NULL;
    float *in = tensor_values(x);
    int best = 0;
    for (int i = 0; i < 16; i++) best = in[i] > in[best] ? i : best;
    for (int turn = 0; turn < 2; turn++) {
        cr_ok(iso_module_forward(net, x, &y));
        cr_ok(iso_tensor_create(device, ISO_F64, 4, (int64_t[]){1, 1, 1, 1}, &dy));
        cr_ok(iso_tensor_fill(dy, 2.5));
        cr_ok(iso_module_backward(net, dy, &dx));
        cr_assert_eq(iso_tensor_dtype(dx), ISO_F32);
        float *g = tensor_values(dx);
        for (int i = 0; i < 16; i++) cr_assert_eq(g[i], i == best ? 2.5f : 0);
        free(g);
        iso_tensor_destroy(&dy);
    }
    free(in);
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// The gradient comes in logical layout and another type than the container's input.
Test(types, gradient_of_a_container_has_the_type_of_its_output) {
    device = open_cpu();
    iso_rng rng = {.seed = 1};
    iso_conv2d_config c = {.in_channels = 1, .out_channels = 16, .kernel_size = {3, 3}};
    iso_module *net, *m = NULL;
    cr_ok(iso_sequential_create(device, &net));
    add(net, iso_cast_create(device, ISO_F32, &m), "cast", &m);
    add(net, iso_conv2d_create(device, &c, &rng, &m), "conv", &m);
    iso_tensor *x = random_tensor_of(device, ISO_F64, 4, image, 1), *y, *dx;
    iso_tensor *dy = random_tensor(device, 4, (int64_t[]){2, 16, 4, 4}, 1);
    cr_ok(iso_module_forward(net, x, &y));
    cr_ok(iso_module_backward(net, dy, &dx));
    cr_assert_eq(iso_tensor_dtype(dx), ISO_F64);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(types, cast_to_its_own_type_hands_tensors_through) {
    device = open_cpu();
    iso_module *cast;
    iso_tensor *x = random_tensor_of(device, ISO_F64, 4, image, 1), *y, *dx;
    iso_tensor *dy = random_tensor_of(device, ISO_F64, 4, image, 2);
    cr_ok(iso_cast_create(device, ISO_F64, &cast));
    cr_ok(iso_module_forward(cast, x, &y));
    cr_ok(iso_module_backward(cast, dy, &dx));
    cr_assert(y == x && dx == dy);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&cast);
    close_cpu(&device);
}

// f64 has no blocked layout: it is the logical one under another name.
Test(types, blocked_tensor_of_f64_gives_back_what_was_written) {
    device = open_cpu();
    iso_tensor *x = random_tensor_of(device, ISO_F64, 4, (int64_t[]){2, 5, 3, 3}, 1), *t;
    double *wanted = tensor_doubles(x);
    void *host;
    cr_ok(iso_tensor_create(device, ISO_F64, 4, x->shape, &t));
    cr_ok(iso_tensor_resize(t, 4, x->shape, ISO_LAYOUT_BLOCKED));
    cr_ok(iso_tensor_map(t, ISO_WRITE, &host));
    memcpy(host, wanted, 90 * sizeof(double));
    cr_ok(iso_tensor_unmap(t));
    double *got = tensor_doubles(t);
    cr_assert_eq(distance(90, got, wanted), 0);
    free(got);
    cr_ok(iso_tensor_copy(x, t));
    cr_ok(iso_tensor_fill(x, 0));
    cr_ok(iso_tensor_copy(t, x));
    got = tensor_doubles(x);
    cr_assert_eq(distance(90, got, wanted), 0);
    free(got);
    free(wanted);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&t);
    close_cpu(&device);
}

// ---- Checkpoints ----------------------------------------------------------------------------------

static iso_status checkpoint(const char *path, iso_module *module, bool save) {
    iso_parameter_list list;
    iso_named_tensor tensors[8];
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++)
        tensors[i] = (iso_named_tensor){list.name[i], list.item[i]->value};
    iso_status status = save ? iso_checkpoint_save(path, tensors, list.count)
                             : iso_checkpoint_load(path, tensors, list.count);
    iso_parameter_list_destroy(&list);
    return status;
}

static void fill_finely(iso_module *module, uint64_t seed) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        iso_tensor *x = random_tensor_of(device, ISO_F64, value->ndim, value->shape, seed);
        cr_ok(iso_tensor_copy(x, value));
        iso_tensor_destroy(&x);
    }
    iso_parameter_list_destroy(&list);
}

Test(types, checkpoint_keeps_every_bit_of_both_types) {
    device = open_cpu();
    char path[300];
    snprintf(path, sizeof(path), "%s/checkpoint", scratch_folder());
    iso_module *saved = new_mixed(), *loaded = new_mixed(), *narrow = new_net();
    iso_parameter_list a, b;
    fill_finely(saved, 3);
    cr_ok(checkpoint(path, saved, true));
    cr_ok(checkpoint(path, loaded, false));
    cr_ok(iso_module_parameters(saved, &a));
    cr_ok(iso_module_parameters(loaded, &b));
    for (int i = 0; i < a.count; i++)
        cr_assert(same_values(a.item[i]->value, b.item[i]->value), "%s", a.name[i]);
    cr_fails(checkpoint(path, narrow, false), ISO_ERR_MISMATCH, "fc.");
    cr_assert(strstr(iso_last_error()->message, "F64") && strstr(iso_last_error()->message, "F32"));
    iso_parameter_list_destroy(&a);
    iso_parameter_list_destroy(&b);
    iso_module_destroy(&saved);
    iso_module_destroy(&loaded);
    iso_module_destroy(&narrow);
    scratch_remove();
    close_cpu(&device);
}
