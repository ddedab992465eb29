// SPDX-License-Identifier: MIT
// Training under autocast: f32 parameters, activations of 16 bits.
#include "common/autocast_fixture.h"
#include "common/balance.h"

#include <isotherm/optim.h>
#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

TestSuite(autocast, .timeout = 120, .fini = balance_check);

enum { ROWS = 12, IN = 20, HIDDEN = 24, CLASSES = 5 };

// fc1, relu, dropout, layer norm, gelu, fc2
static iso_module *new_mlp(iso_device *device) {
    iso_module *net, *layer;
    iso_rng rng = {.seed = 11};
    iso_layer_norm_config norm = {.ndim = 1, .normalized_shape = {HIDDEN}};
    OK(iso_sequential_create(device, &net));
    append_layer(net, "fc1", new_linear(device, IN, HIDDEN, 3));
    append_layer(net, "relu", new_relu(device));
    OK(iso_dropout_create(device, 0.1, &rng, &layer));
    append_layer(net, "dropout", layer);
    OK(iso_layer_norm_create(device, &norm, &layer));
    append_layer(net, "norm", layer);
    OK(iso_gelu_create(device, true, &layer));
    append_layer(net, "gelu", layer);
    append_layer(net, "fc2", new_linear(device, HIDDEN, CLASSES, 4));
    return net;
}

// ---- Training ---------------------------------------------------------------------------------------

typedef struct training {
    iso_device *device;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *x;
    int32_t labels[ROWS];
} training;

// type: of activations.
static training start(iso_device *device, iso_dtype type) {
    training t = {.device = device};
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    const int64_t shape[2] = {ROWS, IN};
    hyper.lr = 0.01;
    t.model = new_mlp(device);
    if (type != ISO_F32) t.model = with_autocast(t.model, type);
    OK(iso_optimizer_create(ISO_ADAM, t.model, &hyper, &t.optimizer));
    OK(iso_loss_create(device, ISO_CROSS_ENTROPY, &t.loss));
    OK(iso_tensor_create(device, ISO_F32, 2, shape, &t.x));
    return t;
}

static void finish(training *t) {
    iso_tensor_destroy(&t->x);
    iso_loss_destroy(&t->loss);
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
}

// A batch whose labels can be learnt: some entries are larger where the label says so.
static void fill_batch(training *t, int step) {
    void *data;
    OK(iso_tensor_map(t->x, ISO_WRITE, &data));
    for (int n = 0; n < ROWS; n++) {
        t->labels[n] = (n * 7 + step) % CLASSES;
        for (int i = 0; i < IN; i++) {
            uint32_t bits[4], counter[4] = {(uint32_t)(n * IN + i), (uint32_t)step, 0, 0};
            iso__philox(iso__philox_key_make(2, ISO_RNG_TEST, 0), counter, bits);
            ((float *)data)[n * IN + i] =
                iso__uniform(bits[0]) - 0.5f + (i % CLASSES == t->labels[n] ? 0.6f : 0);
        }
    }
    OK(iso_tensor_unmap(t->x));
}

static double step_once(training *t, int step) {
    double value;
    iso_tensor *out, *grad;
    fill_batch(t, step);
    iso_optimizer_zero_grad(t->optimizer);
    OK(iso_module_forward(t->model, t->x, &out));
    OK(iso_loss_compute(t->loss, out, t->labels, &value, NULL, &grad));
    OK(iso_module_backward(t->model, grad, NULL));
    OK(iso_optimizer_step(t->optimizer));
    return value;
}

// The losses fall from 1.6 to about 0.2, and differ by what rounding to 8 bits makes: by 0.01 in
// these runs on the CPU and on the emulated GPU. Dropout draws the same masks.
#define LOSS_TOLERANCE 0.05
enum { STEPS = 50 };

static void learn(iso_device *device, iso_dtype half) {
    training a = start(device, ISO_F32), b = start(device, half);
    double first = 0, last = 0, worst = 0;
    for (int step = 0; step < STEPS; step++) {
        last = step_once(&a, step);
        worst = fmax(worst, fabs(step_once(&b, step) - last));
        if (step == 0) first = last;
    }
    cr_assert(last < 0.5 * first, "nothing was learnt: %g to %g", first, last);
    cr_assert(worst <= LOSS_TOLERANCE, "losses differ by %g", worst);
    cr_assert(worst > 0, "both computed in f32");
    finish(&a), finish(&b);
}
Test(autocast, an_mlp_learns_as_in_f32) { on_each_half(learn); }

// Nothing is made or allocated once the shapes were seen, and graphs change no bits.
Test(autocast, steps_repeat_as_graphs_with_the_same_bits) {
    double losses[2][24];
    long long made = 0, blocks = 0, now = 0;
    for (int graphs = 0; graphs < 2; graphs++) {
        setenv("ISO_CUDA_GRAPHS", graphs ? "1" : "0", 1);
        iso_device *device = open_any();
        training t = start(device, ISO_BF16);
        for (int step = 0; step < 24; step++) {
            if (step == 2) {
                made = iso_device_primitives_created(device);
                iso_memory_balance(&blocks, NULL, NULL);
            }
            losses[graphs][step] = step_once(&t, step);
        }
        iso_memory_balance(&now, NULL, NULL);
        long long launches, launched;
        iso_device_launches(device, &launches, &launched);
        bool on_cpu = device->ops->host_memory;
        cr_assert(graphs && !on_cpu ? launched > 0 : launched == 0 && now == blocks);
        cr_assert(graphs || made == iso_device_primitives_created(device));
        finish(&t);
        iso_device_destroy(&device);
    }
    cr_assert(memcmp(losses[0], losses[1], sizeof(losses[0])) == 0);
}

// The loss takes 16 bits where it was widened for it before; what is gained is two launches a step.
static void keep(iso_device *device, iso_dtype half) {
    training a = start(device, half), b = start(device, half);
    long long launches[3], graphs;
    iso_tensor *out;
    OK(iso_autocast_keep_output(b.model, true));
    for (int step = 0; step < 5; step++) {
        iso_device_launches(device, &launches[0], &graphs);
        double want = step_once(&a, step);
        iso_device_launches(device, &launches[1], &graphs);
        cr_assert(step_once(&b, step) == want);
        iso_device_launches(device, &launches[2], &graphs);
        if (!device->ops->host_memory && step > 0) // in the first one libraries refuse calls
            cr_assert_eq(launches[2] - launches[1], launches[1] - launches[0] - 2);
    }
    OK(iso_module_forward(b.model, b.x, &out));
    cr_assert(out->dtype == half);
    OK(iso_module_train(b.model, false));
    OK(iso_module_forward(b.model, b.x, &out));
    cr_assert(out->dtype == ISO_F32);
    cr_assert(iso_autocast_keep_output(b.model->child[0], true) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "Sequential"));
    finish(&a), finish(&b);
}
Test(autocast, an_output_that_is_kept_changes_no_bits_and_saves_two_launches) {
    on_each_half(keep);
}

// Copies of the weights are made anew: evaluation sees what the last step changed.
Test(autocast, evaluation_sees_the_parameters_of_now_and_has_no_backward) {
    iso_device *device = open_any();
    training t = start(device, ISO_BF16), fresh = start(device, ISO_BF16);
    iso_tensor *a, *b;
    step_once(&t, 0), step_once(&t, 1);
    OK(iso_module_train(t.model, false));
    OK(iso_module_train(fresh.model, false));
    iso_parameter_list p = parameters_of(t.model), q = parameters_of(fresh.model);
    OK(iso_module_forward(t.model, t.x, &a));
    fill_batch(&fresh, 1);
    cr_assert(!same_bits(p.item[0]->value, q.item[0]->value), "two steps changed nothing");
    for (int i = 0; i < p.count; i++) OK(iso_tensor_copy(p.item[i]->value, q.item[i]->value));
    OK(iso_module_forward(fresh.model, fresh.x, &b));
    cr_assert(same_bits(a, b), "the same parameters give other outputs");
    cr_assert(iso_module_backward(t.model, a, NULL) == ISO_ERR_STATE);
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    finish(&t), finish(&fresh);
    iso_device_destroy(&device);
}

// ---- Names ------------------------------------------------------------------------------------------

static void save(iso_module *model, const char *path) {
    iso_state_dict dict = {0};
    OK(iso_module_state_dict(model, &dict));
    OK(iso_state_dict_save(&dict, path));
    iso_state_dict_destroy(&dict);
}

static void load(iso_module *model, const char *path) {
    iso_state_dict dict = {0};
    OK(iso_state_dict_read(path, model->device, &dict));
    OK(iso_module_load_state_dict(model, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
}

Test(autocast, checkpoints_move_between_models_with_and_without_it) {
    const iso_dtype types[] = {ISO_F32, ISO_BF16};
    char path[] = "/tmp/iso_autocast_XXXXXX";
    int file = mkstemp(path);
    cr_assert(file >= 0);
    close(file);
    iso_device *device = open_any();
    for (int low = 0; low < 2; low++) {
        training from = start(device, types[low]), to = start(device, types[!low]);
        iso_parameter_list p = parameters_of(from.model), q = parameters_of(to.model);
        for (int step = 0; step < 3; step++) step_once(&from, step);
        cr_assert(!same_bits(p.item[0]->value, q.item[0]->value));
        save(from.model, path);
        load(to.model, path);
        cr_assert(p.count == q.count && p.count == 6);
        for (int i = 0; i < p.count; i++) {
            cr_assert_str_eq(p.name[i], q.name[i]);
            cr_assert(same_bits(p.item[i]->value, q.item[i]->value), "%s", p.name[i]);
        }
        cr_assert_str_eq(p.name[0], "fc1.weight");
        iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
        finish(&from), finish(&to);
    }
    remove(path);
    iso_device_destroy(&device);
}
