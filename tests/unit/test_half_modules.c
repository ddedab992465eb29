// SPDX-License-Identifier: MIT
// Modules with parameters of bf16 and f16: they train as f32 parameters under autocast do, up to
// the last bit, and convert, save and load.
#include "common/autocast_fixture.h"
#include "common/balance.h"
#include "nn/nn_impl.h"

#include <isotherm/optim.h>
#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

TestSuite(half_modules, .timeout = 120, .fini = balance_check);

enum { ROWS = 12, IN = 20, HIDDEN = 24, CLASSES = 5, STEPS = 20 };

// fc1, norm, relu, fc2. Its parameters are numbers of `half`, held in `type`.
static iso_module *new_mlp(iso_device *device, iso_dtype half, iso_dtype type) {
    iso_module *net, *layer;
    iso_layer_norm_config norm = {.ndim = 1, .normalized_shape = {HIDDEN}};
    OK(iso_sequential_create(device, &net));
    append_layer(net, "fc1", new_linear(device, IN, HIDDEN, 3));
    OK(iso_layer_norm_create(device, &norm, &layer));
    append_layer(net, "norm", layer);
    append_layer(net, "relu", new_relu(device));
    append_layer(net, "fc2", new_linear(device, HIDDEN, CLASSES, 4));
    OK(iso_module_to(net, half));
    OK(iso_module_to(net, type));
    return net;
}

// The numbers of a tensor of f32 or 16 bits, to be freed with free().
static double *numbers(iso_tensor *t) {
    void *host;
    double *copy = malloc((size_t)t->count * sizeof(double));
    OK(iso_tensor_map(t, ISO_READ, &host));
    for (int64_t i = 0; i < t->count; i++)
        copy[i] = t->dtype == ISO_F32 ? (double)((float *)host)[i]
                                      : half_double(t->dtype, ((uint16_t *)host)[i]);
    OK(iso_tensor_unmap(t));
    return copy;
}

// Whether low is wide, rounded to the type of low.
static bool is_rounded(iso_tensor *low, iso_tensor *wide) {
    double *x = numbers(low), *y = numbers(wide);
    bool half = low->dtype != ISO_F32, same = low->count == wide->count;
    for (int64_t i = 0; same && i < low->count; i++)
        same = x[i] == (half ? half_value(low->dtype, y[i]) : y[i]);
    free(x), free(y);
    return same;
}

static bool is_same(iso_tensor *a, iso_tensor *b) {
    double *x = numbers(a), *y = numbers(b);
    bool same = a->count == b->count && memcmp(x, y, (size_t)a->count * sizeof(double)) == 0;
    free(x), free(y);
    return same;
}

// Sets number i to sin(step * i + first), which in 16 bits is rounded.
static void set_numbers(iso_tensor *t, double first, double step) {
    void *host;
    OK(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < t->count; i++) {
        double x = sin(step * (double)i + first);
        if (t->dtype == ISO_F32)
            ((float *)host)[i] = (float)x;
        else
            ((uint16_t *)host)[i] = half_nearest(t->dtype, x);
    }
    OK(iso_tensor_unmap(t));
}

// ---- Training ---------------------------------------------------------------------------------------

typedef struct training {
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *x;
} training;

static training start(iso_module *model, iso_optimizer_kind kind, iso_dtype half) {
    training t = {.model = with_autocast(model, half)};
    iso_hyper hyper = iso_hyper_default(kind);
    hyper.lr = kind == ISO_ADADELTA ? 1 : 0.003;
    if (kind == ISO_SGD) hyper.momentum = 0.9;
    OK(iso_optimizer_create(kind, t.model, &hyper, &t.optimizer));
    OK(iso_loss_create(model->device, ISO_CROSS_ENTROPY, &t.loss));
    OK(iso_tensor_create(model->device, ISO_F32, 2, (int64_t[]){ROWS, IN}, &t.x));
    return t;
}

static void finish(training *t) {
    iso_tensor_destroy(&t->x);
    iso_loss_destroy(&t->loss);
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
}

static double step_once(training *t, int step) {
    double value;
    int32_t labels[ROWS];
    iso_tensor *out, *grad;
    void *x;
    for (int n = 0; n < ROWS; n++) labels[n] = (n * 7 + step) % CLASSES;
    OK(iso_tensor_map(t->x, ISO_WRITE, &x));
    for (int i = 0; i < ROWS * IN; i++)
        ((float *)x)[i] =
            (float)(sin(0.7 * i + step) + (i % IN % CLASSES == labels[i / IN] ? 0.6 : 0));
    OK(iso_tensor_unmap(t->x));
    iso_optimizer_zero_grad(t->optimizer);
    OK(iso_module_forward(t->model, t->x, &out));
    OK(iso_loss_compute(t->loss, out, labels, &value, NULL, &grad));
    OK(iso_module_backward(t->model, grad, NULL));
    OK(iso_optimizer_step(t->optimizer));
    return value;
}

// Updates act on f32, and each forward computes from the same rounded values.
static void train_alike(iso_device *device, iso_dtype half) {
    for (iso_optimizer_kind kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        training a = start(new_mlp(device, half, ISO_F32), kind, half);
        training b = start(new_mlp(device, half, half), kind, half);
        iso_parameter_list p = parameters_of(a.model), q = parameters_of(b.model);
        double first = 0, last = 0;
        for (int step = 0; step < STEPS; step++) {
            last = step_once(&a, step);
            if (step == 0) first = last;
            cr_assert_eq(last, step_once(&b, step), "%s, step %d", iso_optimizer_kind_name(kind),
                         step);
        }
        cr_assert(last != first);
        iso_state_dict state;
        char name[64];
        OK(iso_optimizer_state_dict(b.optimizer, &state));
        for (int i = 0; i < p.count; i++) {
            bool norm = strncmp(q.name[i], "norm.", 5) == 0;
            snprintf(name, sizeof(name), "state.%s.master_param", q.name[i]);
            iso_tensor *master = iso_state_dict_find(&state, name);
            cr_assert(norm ? !master : same_bits(master, p.item[i]->value), "%s", name);
            cr_assert_eq(q.item[i]->value->dtype, norm ? ISO_F32 : half);
            cr_assert_eq(q.item[i]->grad->dtype, ISO_F32);
            cr_assert(is_rounded(q.item[i]->value, p.item[i]->value), "%s", q.name[i]);
        }
        // An f32 optimizer takes it, too, and leaves out the master weights.
        OK(iso_optimizer_load_state_dict(a.optimizer, &state, true, NULL));
        iso_state_dict_destroy(&state);
        iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
        finish(&a), finish(&b);
    }
}
Test(half_modules, every_optimizer_trains_as_under_autocast) { on_each_half(train_alike); }

// Nothing is allocated once the shapes were seen.
static void count_blocks(iso_device *device, iso_dtype half) {
    long long blocks, now;
    training t = start(new_mlp(device, half, half), ISO_ADAM, half);
    int seen = device->ops->host_memory ? 2 : 8; // a GPU's graphs are made in the first steps
    for (int step = 0; step < seen; step++) step_once(&t, step);
    iso_memory_balance(&blocks, NULL, NULL);
    for (int step = seen; step < seen + 6; step++) step_once(&t, step);
    iso_memory_balance(&now, NULL, NULL);
    cr_assert_eq(now, blocks);
    finish(&t);
}
Test(half_modules, a_step_allocates_nothing) { on_each_half(count_blocks); }

// ---- Embeddings -------------------------------------------------------------------------------------

enum { WORDS = 7, WIDTH = 6, LENGTH = 3 };

// embed, position: no Autocast, as the input holds indices.
static iso_module *new_embeddings(iso_device *device, iso_dtype half, iso_dtype type) {
    iso_module *net, *layer;
    iso_rng rng = {.seed = 9};
    iso_embedding_config config = {
        .num_embeddings = WORDS, .embedding_dim = WIDTH, .has_padding = true, .padding_idx = 2};
    OK(iso_sequential_create(device, &net));
    OK(iso_embedding_create(device, &config, &rng, &layer));
    append_layer(net, "embed", layer);
    OK(iso_position_embedding_create(device, LENGTH + 2, WIDTH, &rng, &layer));
    append_layer(net, "position", layer);
    OK(iso_module_to(net, half));
    OK(iso_module_to(net, type));
    return net;
}

static void embed(iso_device *device, iso_dtype half) {
    static const int32_t words[2 * LENGTH] = {1, 2, 6, 1, 0, 1};
    if (!device->ops->host_memory) return; // GPUs have no embeddings
    iso_module *wide = new_embeddings(device, half, ISO_F32);
    iso_module *low = new_embeddings(device, half, half);
    iso_tensor *in, *x, *y, *dx, *dy;
    OK(iso_tensor_create(device, ISO_I32, 2, (int64_t[]){2, LENGTH}, &in));
    memcpy(in->data, words, sizeof(words));
    OK(iso_module_forward(wide, in, &x));
    OK(iso_module_forward(low, in, &y));
    cr_assert(y->dtype == half && is_rounded(y, x));
    OK(iso_tensor_create(device, ISO_F32, 3, x->shape, &dx));
    OK(iso_tensor_create(device, half, 3, x->shape, &dy));
    set_numbers(dy, 1, 1);
    OK(iso_tensor_copy(dy, dx));
    iso_parameter_list p = parameters_of(wide), q = parameters_of(low);
    for (int pass = 0; pass < 2; pass++) { // the second adds to the first
        OK(iso_module_forward(wide, in, &x));
        OK(iso_module_forward(low, in, &y));
        OK(iso_module_backward(wide, dx, NULL));
        OK(iso_module_backward(low, dy, NULL));
        for (int i = 0; i < p.count; i++)
            cr_assert(same_bits(p.item[i]->grad, q.item[i]->grad), "%s", p.name[i]);
    }
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    iso_tensor_destroy(&in), iso_tensor_destroy(&dx), iso_tensor_destroy(&dy);
    iso_module_destroy(&wide), iso_module_destroy(&low);
}
Test(half_modules, embeddings_are_those_of_f32_rounded) { on_each_half(embed); }

// ---- Conversion -------------------------------------------------------------------------------------

static void round_trip(iso_device *device, iso_dtype half) {
    iso_module *net = new_linear(device, IN, CLASSES, 3),
               *same = new_linear(device, IN, CLASSES, 3);
    OK(iso_module_to(net, ISO_F64));
    OK(iso_module_to(net, half));
    cr_assert(net->dtype == half && net->parameter[0]->grad->dtype == ISO_F32);
    for (int i = 0; i < 2; i++)
        cr_assert(is_rounded(net->parameter[i]->value, same->parameter[i]->value));
    OK(iso_module_to(net, ISO_F32));
    cr_assert_eq(net->parameter[0]->value->dtype, ISO_F32);
    cr_assert(!same_bits(net->parameter[0]->value, same->parameter[0]->value));
    iso_module_destroy(&net), iso_module_destroy(&same);
}
Test(half_modules, conversion_rounds_values) { on_each_half(round_trip); }

static void exchange_dicts(iso_device *device, iso_dtype half) {
    iso_module *low = new_mlp(device, half, half), *wide = new_mlp(device, half, ISO_F32);
    iso_parameter_list p = parameters_of(wide), q = parameters_of(low);
    iso_state_dict dict;
    for (int i = 0; i < p.count; i++) set_numbers(p.item[i]->value, i, 1.3);
    OK(iso_module_state_dict(wide, &dict));
    OK(iso_module_load_state_dict(low, &dict, true, NULL));
    for (int i = 0; i < p.count; i++)
        cr_assert(is_rounded(q.item[i]->value, p.item[i]->value), "%s", p.name[i]);
    iso_state_dict_destroy(&dict);
    OK(iso_module_state_dict(low, &dict));
    OK(iso_module_load_state_dict(wide, &dict, true, NULL));
    for (int i = 0; i < p.count; i++)
        cr_assert(is_same(q.item[i]->value, p.item[i]->value), "%s", p.name[i]);
    iso_state_dict_destroy(&dict);
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    iso_module_destroy(&low), iso_module_destroy(&wide);
}
Test(half_modules, state_dicts_go_between_types) { on_each_half(exchange_dicts); }

// Initialisation draws the numbers of f32, and rounds them.
static void draw(iso_device *device, iso_dtype half) {
    iso_module *low = new_linear(device, IN, CLASSES, 3),
               *wide = new_linear(device, IN, CLASSES, 3);
    iso_rng a = {.seed = 8}, b = {.seed = 8};
    OK(iso_module_to(low, half));
    OK(iso_init_normal(low->parameter[0], 0.3, &a));
    OK(iso_init_normal(wide->parameter[0], 0.3, &b));
    cr_assert(is_rounded(low->parameter[0]->value, wide->parameter[0]->value));
    OK(iso_init_kaiming_normal(low->parameter[0], ISO_FAN_OUT, &a));
    OK(iso_init_kaiming_normal(wide->parameter[0], ISO_FAN_OUT, &b));
    cr_assert(is_rounded(low->parameter[0]->value, wide->parameter[0]->value));
    iso_module_destroy(&low), iso_module_destroy(&wide);
}
Test(half_modules, initial_values_are_those_of_f32_rounded) { on_each_half(draw); }

// ---- Refused ----------------------------------------------------------------------------------------

static iso_status pass_on(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}
static const iso_module_ops plain_ops = {.type = "Plain", .forward = pass_on};

Test(half_modules, a_layer_without_takes_half_is_refused_and_nothing_changes) {
    iso_device *device;
    iso_module *net, *plain;
    OK(iso_device_create("cpu", &device));
    OK(iso_sequential_create(device, &net));
    append_layer(net, "fc", new_linear(device, IN, CLASSES, 3));
    OK(iso__module_new(sizeof(iso_module), &plain_ops, device, &plain));
    append_layer(net, "plain", plain);
    cr_assert_eq(iso_module_to(net, ISO_BF16), ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "Plain \"plain\""), "%s",
              iso_last_error()->message);
    cr_assert_eq(net->child[0]->parameter[0]->value->dtype, ISO_F32);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

static const iso_module_ops head_ops = {.type = "Head", .forward = pass_on, .takes_half = true};

static void keep_parameter(iso_module *self) { (void)self; }

// It would have to have two types.
Test(half_modules, a_parameter_shared_with_a_layer_of_f32_is_refused) {
    iso_device *device;
    iso_module *net, *head;
    iso_module_ops ops = head_ops;
    iso_parameter *w;
    ops.tied = keep_parameter;
    OK(iso_device_create("cpu", &device));
    OK(iso_sequential_create(device, &net));
    append_layer(net, "fc", new_linear(device, IN, CLASSES, 3));
    OK(iso__module_new(sizeof(iso_module), &ops, device, &head));
    OK(iso_module_add_parameter(head, "weight", 2, (int64_t[]){CLASSES, IN}, &w));
    append_layer(net, "head", head);
    OK(iso_module_tie(head, "weight", net, "fc.weight"));
    cr_assert_eq(iso_module_to(net, ISO_BF16), ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "Linear \"fc\" and Head \"head\" share"), "%s",
              iso_last_error()->message);
    cr_assert_eq(net->child[0]->parameter[0]->value->dtype, ISO_F32);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

// There and back.
Test(half_modules, they_move_to_a_gpu) {
    iso_device *gpu = open_cuda(), *cpu;
    OK(iso_device_create("cpu", &cpu));
    iso_module *moves = new_mlp(cpu, ISO_BF16, ISO_BF16), *stays = new_mlp(cpu, ISO_BF16, ISO_BF16);
    iso_parameter_list p = parameters_of(moves), q = parameters_of(stays);
    for (int i = 0; i < 2; i++) {
        OK(iso_module_to_device(moves, i ? cpu : gpu));
        cr_assert(moves->child[0]->parameter[0]->value->dtype == ISO_BF16);
        for (int k = 0; k < p.count; k++)
            cr_assert(is_same(p.item[k]->value, q.item[k]->value), "%s", p.name[k]);
    }
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    iso_module_destroy(&moves), iso_module_destroy(&stays);
    iso_device_destroy(&gpu), iso_device_destroy(&cpu);
}

Test(half_modules, a_position_embedding_on_a_gpu_is_refused) {
    iso_device *gpu = open_cuda();
    iso_module *position;
    iso_rng rng = {.seed = 1};
    iso_tensor *x, *y;
    OK(iso_position_embedding_create(gpu, LENGTH, WIDTH, &rng, &position));
    position = with_autocast(position, ISO_BF16);
    OK(iso_tensor_create(gpu, ISO_F32, 3, (int64_t[]){2, LENGTH, WIDTH}, &x));
    OK(iso_tensor_fill(x, 1));
    cr_assert_eq(iso_module_forward(position, x, &y), ISO_ERR_TYPE);
    cr_assert(strstr(iso_last_error()->message, "put it in front of the Autocast"));
    iso_tensor_destroy(&x);
    iso_module_destroy(&position);
    iso_device_destroy(&gpu);
}

Test(half_modules, other_types_of_input_are_refused) {
    iso_device *device;
    iso_tensor *in, *out;
    static const iso_dtype wrong[] = {ISO_F32, ISO_F16, ISO_F64};
    OK(iso_device_create("cpu", &device));
    iso_module *net = new_linear(device, IN, CLASSES, 3);
    OK(iso_module_to(net, ISO_BF16));
    for (int i = 0; i < COUNT(wrong); i++) {
        OK(iso_tensor_create(device, wrong[i], 2, (int64_t[]){ROWS, IN}, &in));
        cr_assert_eq(iso_module_forward(net, in, &out), ISO_ERR_TYPE);
        cr_assert(strstr(iso_last_error()->message, "is bf16 but got"));
        iso_tensor_destroy(&in);
    }
    cr_assert_eq(iso_module_to(net, ISO_I32), ISO_ERR_ARG);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}
