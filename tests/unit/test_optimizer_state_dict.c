// SPDX-License-Identifier: MIT
// state_dict of optimizers: PyTorch's names, going on where another stood, and what does not fit.
#include "common/balance.h"
#include "common/nn_fixture.h"
#include "common/scratch.h"

#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

static iso_device *device;

static void open_device(void) { device = open_cpu(); }

static void clean_up(void) {
    iso_device_destroy(&device);
    scratch_remove();
    balance_check();
}
TestSuite(optimizer_state_dict, .init = open_device, .fini = clean_up, .timeout = 60);

// ---- A training ---------------------------------------------------------------------------------

typedef struct training {
    iso_module *model;
    iso_optimizer *optimizer;
} training;

static bool is_bias(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter;
    (void)user;
    return strstr(name, "bias") != NULL;
}

// fc: 3 to 2. groups 2: the bias is in a group of its own.
static training create(iso_optimizer_kind kind, int groups, iso_dtype dtype, uint64_t seed) {
    training t;
    iso_rng rng = {.seed = seed};
    iso_module *fc;
    iso_hyper hyper = iso_hyper_default(kind);
    cr_ok(iso_sequential_create(device, &t.model));
    cr_ok(iso_linear_create(device, 3, 2, true, &rng, &fc));
    cr_ok(iso_sequential_add_take(t.model, "fc", fc));
    cr_ok(iso_module_to(t.model, dtype));
    hyper.lr = 0.1;
    if (kind == ISO_SGD) hyper.momentum = 0.9;
    cr_ok(iso_optimizer_create(kind, t.model, &hyper, &t.optimizer));
    hyper.lr = 0.01;
    if (groups == 2) cr_ok(iso_optimizer_add_group(t.optimizer, &hyper, is_bias, NULL, NULL));
    return t;
}

static void destroy(training *t) {
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
}

static void train(training *t, int from, int to) {
    for (int step = from; step < to; step++) {
        iso_tensor *x = random_tensor(device, 2, (int64_t[]){4, 3}, (uint64_t)step), *y, *wide;
        iso_tensor *dy = random_tensor(device, 2, (int64_t[]){4, 2}, (uint64_t)(step + 100));
        iso_tensor **both[] = {&x, &dy};
        for (int i = 0; i < 2 && t->model->dtype == ISO_F64; i++) {
            cr_ok(iso_tensor_create(device, ISO_F64, 2, iso_tensor_shape(*both[i]), &wide));
            cr_ok(iso_tensor_copy(*both[i], wide));
            iso_tensor_destroy(both[i]);
            *both[i] = wide;
        }
        iso_optimizer_zero_grad(t->optimizer);
        cr_ok(iso_module_forward(t->model, x, &y));
        cr_ok(iso_module_backward(t->model, dy, NULL));
        cr_ok(iso_optimizer_step(t->optimizer));
        iso_tensor_destroy(&x);
        iso_tensor_destroy(&dy);
    }
}

static bool same_dicts(iso_state_dict a, iso_state_dict b) {
    bool same = a.count == b.count;
    for (int i = 0; same && i < a.count; i++) {
        iso_tensor *x = a.item[i].tensor, *y = b.item[i].tensor;
        same = strcmp(a.item[i].name, b.item[i].name) == 0 &&
               iso_tensor_count(x) == iso_tensor_count(y) &&
               memcmp(iso_tensor_data(x), iso_tensor_data(y),
                      (size_t)iso_tensor_count(x) * iso_dtype_size(iso_tensor_dtype(x))) == 0;
    }
    iso_state_dict_destroy(&a);
    iso_state_dict_destroy(&b);
    return same;
}

static iso_state_dict model_dict(const training *t) {
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(t->model, &dict));
    return dict;
}

static iso_state_dict optimizer_dict(const training *t) {
    iso_state_dict dict;
    cr_ok(iso_optimizer_state_dict(t->optimizer, &dict));
    return dict;
}

static bool same_trainings(const training *a, const training *b) {
    return same_dicts(model_dict(a), model_dict(b)) &&
           same_dicts(optimizer_dict(a), optimizer_dict(b));
}

static double number(const iso_state_dict *dict, const char *name) {
    iso_tensor *t = iso_state_dict_find(dict, name);
    cr_assert_not_null(t, "%s", name);
    cr_assert_eq(iso_tensor_ndim(t), 0);
    return iso_tensor_dtype(t) == ISO_I64 ? (double)*(int64_t *)iso_tensor_data(t)
                                          : *(double *)iso_tensor_data(t);
}

// ---- Saving -------------------------------------------------------------------------------------

Test(optimizer_state_dict, names_state_and_hyperparameters_as_pytorch_does) {
    training t = create(ISO_ADAM, 1, ISO_F32, 1);
    train(&t, 0, 3);
    iso_state_dict dict = optimizer_dict(&t);
    iso_tensor *weight = iso_state_dict_find(&dict, "state.fc.weight.exp_avg");
    cr_assert_not_null(weight);
    cr_assert_eq(iso_tensor_ndim(weight), 2);
    cr_assert_eq(iso_tensor_shape(weight)[1], 3);
    cr_assert_not_null(iso_state_dict_find(&dict, "state.fc.bias.exp_avg_sq"));
    cr_assert_float_eq(number(&dict, "param_groups.0.lr"), 0.1, 1e-15);
    cr_assert_float_eq(number(&dict, "param_groups.0.beta2"), 0.999, 1e-15);
    cr_assert_float_eq(number(&dict, "param_groups.0.step"), 3, 0);
    cr_assert_null(iso_state_dict_find(&dict, "param_groups.params"));
    iso_state_dict_destroy(&dict);
    destroy(&t);
}

Test(optimizer_state_dict, each_group_has_its_hyperparameters) {
    training t = create(ISO_SGD, 2, ISO_F32, 1);
    iso_state_dict dict = optimizer_dict(&t);
    cr_assert_float_eq(number(&dict, "param_groups.0.lr"), 0.1, 1e-15);
    cr_assert_float_eq(number(&dict, "param_groups.1.lr"), 0.01, 1e-15);
    iso_tensor *of = iso_state_dict_find(&dict, "param_groups.params");
    cr_assert_not_null(of);
    cr_assert_arr_eq(iso_tensor_data(of), ((int64_t[]){0, 1}), 16);
    iso_state_dict_destroy(&dict);
    destroy(&t);
}

// ---- Loading ------------------------------------------------------------------------------------

// Over files, into new ones of other values and hyperparameters: the same bits as without a break.
static void go_on(iso_optimizer_kind kind, int groups, iso_dtype dtype) {
    training straight = create(kind, groups, dtype, 1), first = create(kind, groups, dtype, 1),
             second = create(kind, groups, dtype, 2);
    const char *model = scratch_path("model"), *state = scratch_path("state");
    train(&straight, 0, 6);
    train(&first, 0, 3);
    iso_state_dict dict[2] = {model_dict(&first), optimizer_dict(&first)};
    cr_ok(iso_state_dict_save(&dict[0], model));
    cr_ok(iso_state_dict_save(&dict[1], state));
    for (int i = 0; i < 2; i++) iso_state_dict_destroy(&dict[i]);
    iso_optimizer_hyper(second.optimizer)->lr = 77;
    train(&second, 10, 12);
    cr_ok(iso_state_dict_read(model, device, &dict[0]));
    cr_ok(iso_state_dict_read(state, device, &dict[1]));
    cr_ok(iso_module_load_state_dict(second.model, &dict[0], true, NULL));
    cr_ok(iso_optimizer_load_state_dict(second.optimizer, &dict[1], true, NULL));
    cr_assert(same_trainings(&first, &second));
    train(&second, 3, 6);
    cr_assert(same_trainings(&straight, &second));
    for (int i = 0; i < 2; i++) iso_state_dict_destroy(&dict[i]);
    destroy(&straight);
    destroy(&first);
    destroy(&second);
}

Test(optimizer_state_dict, sgd_goes_on_from_a_file) { go_on(ISO_SGD, 1, ISO_F32); }
Test(optimizer_state_dict, adam_goes_on_from_a_file) { go_on(ISO_ADAM, 1, ISO_F32); }
Test(optimizer_state_dict, adadelta_goes_on_from_a_file) { go_on(ISO_ADADELTA, 1, ISO_F32); }
Test(optimizer_state_dict, nadam_goes_on_from_a_file) { go_on(ISO_NADAM, 2, ISO_F32); }
Test(optimizer_state_dict, groups_go_on_from_a_file) { go_on(ISO_ADAMW, 2, ISO_F32); }
Test(optimizer_state_dict, f64_goes_on_from_a_file) { go_on(ISO_ADAM, 2, ISO_F64); }

// ---- State that no update uses ------------------------------------------------------------------

static training create_with(iso_optimizer_kind kind, double momentum, bool centered,
                            uint64_t seed) {
    training t = create(kind, 1, ISO_F32, seed);
    iso_optimizer_hyper(t.optimizer)->momentum = momentum;
    iso_optimizer_hyper(t.optimizer)->centered = centered;
    return t;
}

// dict without the state of these two names: what PyTorch would have written.
static iso_state_dict without(const iso_state_dict *dict, const char *a, const char *b) {
    iso_state_dict part = {0};
    for (int i = 0; i < dict->count; i++) {
        const char *dot = strrchr(dict->item[i].name, '.');
        bool state = strncmp(dict->item[i].name, "state.", 6) == 0;
        if (!state || (strcmp(dot + 1, a) != 0 && strcmp(dot + 1, b) != 0))
            cr_ok(iso_state_dict_add(&part, dict->item[i].name, dict->item[i].tensor));
    }
    cr_assert_lt(part.count, dict->count);
    return part;
}

// Into an optimizer whose buffers are in use: it goes on as the first one, with zeros in them.
static void go_on_without(iso_optimizer_kind kind, const char *a, const char *b) {
    training first = create_with(kind, 0, false, 1), second = create_with(kind, 0.9, true, 2);
    train(&first, 0, 3);
    train(&second, 10, 12);
    iso_state_dict model = model_dict(&first), all = optimizer_dict(&first);
    iso_state_dict part = without(&all, a, b);
    iso_incompatible_keys keys;
    cr_ok(iso_module_load_state_dict(second.model, &model, true, NULL));
    cr_ok(iso_optimizer_load_state_dict(second.optimizer, &part, true, &keys));
    cr_assert_eq(keys.missing_count + keys.unexpected_count, 0);
    cr_assert(same_trainings(&first, &second));
    train(&first, 3, 6);
    train(&second, 3, 6);
    cr_assert(same_trainings(&first, &second));
    // The other way round, entries that no update uses are no error either.
    cr_ok(iso_optimizer_load_state_dict(second.optimizer, &all, true, NULL));
    iso_incompatible_keys_destroy(&keys);
    iso_state_dict *dicts[] = {&model, &all, &part};
    for (int i = 0; i < 3; i++) iso_state_dict_destroy(dicts[i]);
    destroy(&first);
    destroy(&second);
}

// PyTorch counts no steps of SGD. The momentum that is loaded is not that of a first update.
Test(optimizer_state_dict, momentum_counts_without_a_number_of_steps) {
    for (int zero = 0; zero < 2; zero++) {
        training first = create(ISO_SGD, 1, ISO_F32, 1), second = create(ISO_SGD, 1, ISO_F32, 2);
        train(&first, 0, 3);
        iso_state_dict model = model_dict(&first), all = optimizer_dict(&first);
        iso_state_dict part = {0};
        for (int i = 0; i < all.count; i++)
            if (!strstr(all.item[i].name, ".step"))
                cr_ok(iso_state_dict_add(&part, all.item[i].name, all.item[i].tensor));
        if (zero) {
            iso_tensor *steps = NULL;
            cr_ok(iso_tensor_create(device, ISO_I64, 0, NULL, &steps));
            cr_ok(iso_tensor_fill(steps, 0));
            cr_ok(iso_state_dict_add(&part, "param_groups.0.step", steps));
            iso_tensor_destroy(&steps);
        }
        cr_ok(iso_module_load_state_dict(second.model, &model, true, NULL));
        cr_ok(iso_optimizer_load_state_dict(second.optimizer, &part, false, NULL));
        train(&first, 3, 6);
        train(&second, 3, 6);
        cr_assert(same_dicts(model_dict(&first), model_dict(&second)));
        iso_state_dict *dicts[] = {&model, &all, &part};
        for (int i = 0; i < 3; i++) iso_state_dict_destroy(dicts[i]);
        destroy(&first);
        destroy(&second);
    }
}

Test(optimizer_state_dict, plain_sgd_needs_no_momentum_buffer) {
    go_on_without(ISO_SGD, "momentum_buffer", "step");
}
Test(optimizer_state_dict, rmsprop_without_momentum_needs_no_buffers_for_it) {
    go_on_without(ISO_RMSPROP, "momentum_buffer", "grad_avg");
}

static void expect_lack(iso_optimizer_kind kind, double momentum, bool centered, const char *lacks,
                        const char *words) {
    training t = create_with(kind, momentum, centered, 1);
    train(&t, 0, 2);
    iso_state_dict all = optimizer_dict(&t), part = without(&all, lacks, lacks);
    cr_fails(iso_optimizer_load_state_dict(t.optimizer, &part, true, NULL), ISO_ERR_MISMATCH,
             words);
    iso_state_dict_destroy(&part);
    iso_state_dict_destroy(&all);
    destroy(&t);
}

Test(optimizer_state_dict, state_that_updates_use_must_be_there) {
    expect_lack(ISO_SGD, 0.9, false, "momentum_buffer",
                "2 tensors are missing (state.fc.weight.momentum_buffer, "
                "state.fc.bias.momentum_buffer)");
    expect_lack(ISO_RMSPROP, 0.9, false, "momentum_buffer", "2 tensors are missing");
    expect_lack(ISO_RMSPROP, 0, true, "grad_avg", "2 tensors are missing");
    expect_lack(ISO_RMSPROP, 0, false, "square_avg", "2 tensors are missing");
}

// The bias alone has momentum.
Test(optimizer_state_dict, each_group_needs_what_its_hyperparameters_use) {
    training t = create(ISO_SGD, 2, ISO_F32, 1);
    iso_optimizer_hyper(t.optimizer)->momentum = 0;
    train(&t, 0, 2);
    iso_state_dict all = optimizer_dict(&t),
                   none = without(&all, "momentum_buffer", "momentum_buffer");
    cr_fails(iso_optimizer_load_state_dict(t.optimizer, &none, true, NULL), ISO_ERR_MISMATCH,
             "1 tensor is missing (state.fc.bias.momentum_buffer)");
    iso_tensor *buffer = iso_state_dict_find(&all, "state.fc.bias.momentum_buffer");
    cr_ok(iso_state_dict_add(&none, "state.fc.bias.momentum_buffer", buffer));
    cr_ok(iso_optimizer_load_state_dict(t.optimizer, &none, true, NULL));
    iso_state_dict_destroy(&none);
    iso_state_dict_destroy(&all);
    destroy(&t);
}

// ---- Momentum that comes later ------------------------------------------------------------------

// Loads the dicts of `from` into `to`. as_pytorch: without what PyTorch's dict of an SGD without
// momentum lacks.
static void load_all(const training *from, training *to, bool as_pytorch) {
    iso_state_dict model = model_dict(from), all = optimizer_dict(from), part = {0};
    for (int i = 0; i < all.count; i++) {
        const char *name = all.item[i].name;
        if (!as_pytorch || (!strstr(name, ".step") && !strstr(name, ".momentum_buffer")))
            cr_ok(iso_state_dict_add(&part, name, all.item[i].tensor));
    }
    cr_ok(iso_module_load_state_dict(to->model, &model, true, NULL));
    cr_ok(iso_optimizer_load_state_dict(to->optimizer, &part, !as_pytorch, NULL));
    iso_state_dict *dicts[] = {&model, &all, &part};
    for (int i = 0; i < 3; i++) iso_state_dict_destroy(dicts[i]);
}

static void set_momentum(training *t, double momentum) {
    for (int g = 0; g < iso_optimizer_groups(t->optimizer); g++) {
        iso_optimizer_group_hyper(t->optimizer, g)->momentum = momentum;
        iso_optimizer_group_hyper(t->optimizer, g)->dampening = 0.5;
    }
}

// The first update with momentum sets the buffer to the gradient, without dampening, as that of a
// new optimizer does. loads: into an optimizer that has momentum.
static void begin_late(int groups, bool loads, bool as_pytorch) {
    training late = create(ISO_SGD, groups, ISO_F32, 1),
             fresh = create(ISO_SGD, groups, ISO_F32, 2),
             other = create(ISO_SGD, groups, ISO_F32, 3);
    set_momentum(&late, 0);
    train(&late, 0, 3);
    train(&other, 10, 12);
    if (loads) load_all(&late, &other, as_pytorch);
    training *now = loads ? &other : &late;
    iso_state_dict model = model_dict(&late);
    cr_ok(iso_module_load_state_dict(fresh.model, &model, true, NULL));
    set_momentum(now, 0.9);
    set_momentum(&fresh, 0.9);
    train(now, 3, 6);
    train(&fresh, 3, 6);
    cr_assert(same_dicts(model_dict(now), model_dict(&fresh)));
    iso_state_dict_destroy(&model);
    training *trainings[] = {&late, &fresh, &other};
    for (int i = 0; i < 3; i++) destroy(trainings[i]);
}

Test(optimizer_state_dict, momentum_that_comes_later_begins_with_the_gradient) {
    for (int groups = 1; groups <= 2; groups++) {
        begin_late(groups, false, false);
        begin_late(groups, true, false);
        begin_late(groups, true, true);
    }
}

// A pause leaves the buffer as it is: afterwards it is 0.9 of that and 0.5 of the gradient.
static void go_on_after_a_pause(bool loads) {
    training first = create(ISO_SGD, 1, ISO_F32, 1), other = create(ISO_SGD, 1, ISO_F32, 2);
    set_momentum(&first, 0.9);
    train(&first, 0, 2);
    set_momentum(&first, 0);
    train(&first, 2, 4);
    if (loads) load_all(&first, &other, false);
    training *now = loads ? &other : &first;
    iso_state_dict dict = optimizer_dict(now); // shares the optimizer's memory
    const float *buffer =
        iso_tensor_data(iso_state_dict_find(&dict, "state.fc.weight.momentum_buffer"));
    float before[6];
    memcpy(before, buffer, sizeof(before));
    set_momentum(now, 0.9);
    train(now, 4, 5);
    const float *gradient = iso_tensor_data(now->model->child[0]->parameter[0]->grad);
    for (int i = 0; i < 6; i++)
        cr_assert_float_eq(buffer[i], 0.9F * before[i] + 0.5F * gradient[i], 1e-6);
    iso_state_dict_destroy(&dict);
    destroy(&first);
    destroy(&other);
}

Test(optimizer_state_dict, momentum_that_pauses_keeps_its_buffer) {
    go_on_after_a_pause(false);
    go_on_after_a_pause(true);
}

// ---- maximize -----------------------------------------------------------------------------------

static void load_maximize(bool from, bool into) {
    training a = create(ISO_ADAM, 2, ISO_F32, 1), b = create(ISO_ADAM, 2, ISO_F32, 2);
    iso_optimizer_hyper(a.optimizer)->maximize = from;
    iso_optimizer_hyper(b.optimizer)->maximize = into;
    iso_optimizer_group_hyper(b.optimizer, 1)->maximize = true;
    train(&a, 0, 2);
    iso_state_dict dict = optimizer_dict(&a);
    cr_ok(iso_optimizer_load_state_dict(b.optimizer, &dict, true, NULL));
    cr_assert_eq(iso_optimizer_hyper(b.optimizer)->maximize, from);
    cr_assert(!iso_optimizer_group_hyper(b.optimizer, 1)->maximize);
    cr_assert_float_eq(number(&dict, "param_groups.0.maximize"), from, 0);
    iso_state_dict_destroy(&dict);
    destroy(&a);
    destroy(&b);
}

Test(optimizer_state_dict, maximize_is_that_of_the_dict) {
    for (int i = 0; i < 4; i++) load_maximize(i & 1, i & 2);
}

// As dicts were written without maximize: false. If a dict has no group, all stays as it is.
Test(optimizer_state_dict, a_dict_without_maximize_minimizes) {
    training a = create(ISO_ADAM, 1, ISO_F32, 1), b = create(ISO_ADAM, 1, ISO_F32, 2);
    iso_state_dict dict = optimizer_dict(&a), part = {0}, moments = {0};
    for (int i = 0; i < dict.count; i++) {
        const char *name = dict.item[i].name;
        if (!strstr(name, ".maximize")) cr_ok(iso_state_dict_add(&part, name, dict.item[i].tensor));
        if (!strstr(name, "groups")) cr_ok(iso_state_dict_add(&moments, name, dict.item[i].tensor));
    }
    iso_optimizer_hyper(b.optimizer)->maximize = true;
    cr_ok(iso_optimizer_load_state_dict(b.optimizer, &moments, false, NULL));
    cr_assert(iso_optimizer_hyper(b.optimizer)->maximize);
    cr_ok(iso_optimizer_load_state_dict(b.optimizer, &part, true, NULL));
    cr_assert(!iso_optimizer_hyper(b.optimizer)->maximize);
    iso_state_dict *dicts[] = {&dict, &part, &moments};
    training *trainings[] = {&a, &b};
    for (int i = 0; i < 3; i++) iso_state_dict_destroy(dicts[i]);
    for (int i = 0; i < 2; i++) destroy(trainings[i]);
}

// ---- What does not fit --------------------------------------------------------------------------

// from's state into into's optimizer: refused with these words, and without a change. Takes both.
static void expect_refusal(training from, training into, iso_status code, const char *words) {
    train(&from, 0, 2);
    train(&into, 5, 7);
    iso_state_dict dict = optimizer_dict(&from), now, before = {0};
    const char *path = scratch_path("before");
    now = optimizer_dict(&into);
    cr_ok(iso_state_dict_save(&now, path));
    iso_state_dict_destroy(&now);
    cr_fails(iso_optimizer_load_state_dict(into.optimizer, &dict, true, NULL), code, words);
    cr_ok(iso_state_dict_read(path, device, &before));
    cr_assert(same_dicts(optimizer_dict(&into), before));
    iso_state_dict_destroy(&dict);
    destroy(&from);
    destroy(&into);
}

Test(optimizer_state_dict, another_kind_is_refused) {
    expect_refusal(create(ISO_SGD, 1, ISO_F32, 1), create(ISO_ADAM, 1, ISO_F32, 2),
                   ISO_ERR_MISMATCH,
                   "of another optimizer: 4 tensors are missing (state.fc.weight.exp_avg, "
                   "state.fc.bias.exp_avg");
}

Test(optimizer_state_dict, other_groups_are_refused) {
    expect_refusal(create(ISO_ADAM, 2, ISO_F32, 1), create(ISO_ADAM, 1, ISO_F32, 2),
                   ISO_ERR_MISMATCH, "unexpected (param_groups.1.lr");
}

Test(optimizer_state_dict, a_hyperparameter_that_pytorch_refuses_is_refused) {
    training from = create(ISO_ADAM, 2, ISO_F32, 1), into = create(ISO_ADAM, 2, ISO_F32, 2);
    train(&from, 0, 2);
    iso_optimizer_group_hyper(from.optimizer, 1)->beta1 = 2;
    iso_state_dict dict = optimizer_dict(&from), now = optimizer_dict(&into), before;
    cr_ok(iso_state_dict_save(&now, scratch_path("before")));
    cr_fails(iso_optimizer_load_state_dict(into.optimizer, &dict, true, NULL), ISO_ERR_ARG,
             "beta1 2");
    cr_ok(iso_state_dict_read(scratch_path("before"), device, &before));
    cr_assert(same_dicts(optimizer_dict(&into), before));
    iso_state_dict_destroy(&dict);
    iso_state_dict_destroy(&now);
    destroy(&from);
    destroy(&into);
}

// PyTorch's optimizers lack the state of a parameter that was added later: the rest is taken.
Test(optimizer_state_dict, other_loading_takes_what_is_common) {
    training from = create(ISO_ADAM, 1, ISO_F32, 1), into = create(ISO_ADAM, 1, ISO_F32, 2);
    train(&from, 0, 2);
    iso_state_dict dict = optimizer_dict(&from), part = {0}, now;
    iso_incompatible_keys keys;
    for (int i = 0; i < dict.count; i++)
        if (!strstr(dict.item[i].name, "fc.bias") && !strstr(dict.item[i].name, ".step"))
            cr_ok(iso_state_dict_add(&part, dict.item[i].name, dict.item[i].tensor));
    cr_ok(iso_optimizer_load_state_dict(into.optimizer, &part, false, &keys));
    cr_assert_eq(keys.missing_count, 3);
    cr_assert_eq(keys.unexpected_count, 0);
    now = optimizer_dict(&into);
    cr_assert_float_eq(number(&now, "param_groups.0.step"), 0, 0);
    const float *bias = iso_tensor_data(iso_state_dict_find(&now, "state.fc.bias.exp_avg"));
    const float *weight = iso_tensor_data(iso_state_dict_find(&now, "state.fc.weight.exp_avg"));
    cr_assert(bias[0] == 0 && weight[0] != 0);
    iso_incompatible_keys_destroy(&keys);
    iso_state_dict *all[] = {&dict, &part, &now};
    for (int i = 0; i < 3; i++) iso_state_dict_destroy(all[i]);
    destroy(&from);
    destroy(&into);
}
