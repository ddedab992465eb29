// SPDX-License-Identifier: MIT
// The count of updates that an optimizer keeps of each parameter: updates in pieces, and what a
// state_dict holds of it.
#include "common/bag_fixture.h"
#include "common/fixture.h"
#include "common/nn_fixture.h"
#include "optim/optim_impl.h"

#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

enum { STEPS = 12, MIDDLE = 6, LARGE = 6 }; // LARGE: of the parameters, has 64 elements

static iso_device *device;
static fixture *golden;

static void setup(void) {
    device = open_cpu();
    golden = fixture_open("unused.txt");
}

static void teardown(void) {
    fixture_close(&golden);
    close_cpu(&device);
}
TestSuite(update_steps, .init = setup, .fini = teardown, .timeout = 60);

static const iso_hyper adam = {
    .lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

typedef struct training {
    iso_module *bag;
    iso_optimizer *optimizer;
    iso__base_optimizer *core;
} training;

static training create(void) {
    training t = {.bag = bag_create(device)};
    cr_ok(iso_module_to(t.bag, ISO_F64));
    bag_set_values(t.bag, fixture_get(golden, NULL, "start", NULL));
    cr_ok(iso_optimizer_create(ISO_ADAM, t.bag, &adam, &t.optimizer));
    t.core = iso__optimizer_innermost(t.optimizer);
    return t;
}

static void destroy(training *t) {
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->bag);
}

static void set_gradients(training *t, int step) {
    char number[12];
    snprintf(number, sizeof(number), "%d", step);
    bag_set_gradients(t->bag, fixture_get(golden, "gradient", number, NULL));
}

static void update(training *t, int i) {
    cr_ok(t->optimizer->ops->update(t->optimizer, i, t->bag->parameter[i]->grad->data, 1, &adam));
}

static bool is_used(int step, int i) {
    return fixture_get(golden, NULL, "used", NULL)[step * BAG_PARAMETERS + i] != 0;
}

static void train(training *t, int from, int to) {
    for (int step = from; step < to; step++) {
        set_gradients(t, step);
        for (int i = 0; i < BAG_PARAMETERS; i++)
            if (is_used(step, i)) update(t, i);
    }
}

// ---- Pieces -----------------------------------------------------------------------------------------

static iso_status update_piece(training *t, int64_t first, int64_t count) {
    double *gradient = t->bag->parameter[LARGE]->grad->data;
    return iso__update_piece(t->core, LARGE, first, count, gradient + first, 1, &adam);
}

Test(update_steps, pieces_in_any_order_are_one_update) {
    static const int64_t piece[2][4][2] = {{{48, 16}, {0, 16}, {16, 1}, {17, 31}},
                                           {{0, 32}, {63, 1}, {32, 16}, {48, 15}}};
    training whole = create(), cut = create();
    for (int step = 0; step < 4; step++) {
        set_gradients(&whole, step);
        set_gradients(&cut, step);
        update(&whole, LARGE);
        for (int k = 0; k < 4; k++)
            cr_ok(update_piece(&cut, piece[step % 2][k][0], piece[step % 2][k][1]));
        cr_assert_eq(cut.core->slot[LARGE].step, step + 1);
        cr_assert(
            same_values(whole.bag->parameter[LARGE]->value, cut.bag->parameter[LARGE]->value));
    }
    cr_assert_eq(cut.core->slot[0].step, 0);
    destroy(&whole);
    destroy(&cut);
}

// Of an update that was given up after a piece, the next one is not the rest.
Test(update_steps, a_whole_update_follows_one_that_was_given_up) {
    training t = create();
    set_gradients(&t, 0);
    cr_ok(update_piece(&t, 0, 16));
    for (int step = 1; step < 4; step++) {
        update(&t, LARGE);
        cr_assert_eq(t.core->slot[LARGE].step, step + 1);
    }
    destroy(&t);
}

static bool broken;

static iso_status break_down(const iso__base_optimizer *self, const iso__piece *piece,
                             const void *gradient, double scale, const iso_hyper *hyper) {
    if (broken) return ISO_FAIL(ISO_ERR_DEVICE, "the device failed");
    return iso__rule_adam.apply(self, piece, gradient, scale, hyper);
}

Test(update_steps, a_piece_that_failed_may_be_tried_again) {
    training whole = create(), cut = create();
    iso__rule rule = iso__rule_adam;
    rule.apply = break_down;
    cut.core->base.ops = &rule.ops;
    for (int step = 0; step < 3; step++) {
        set_gradients(&whole, step);
        set_gradients(&cut, step);
        update(&whole, LARGE);
        broken = true;
        cr_assert_eq(update_piece(&cut, 0, 32), ISO_ERR_DEVICE);
        broken = false;
        cr_ok(update_piece(&cut, 32, 32));
        broken = true;
        cr_assert_eq(update_piece(&cut, 0, 32), ISO_ERR_DEVICE);
        broken = false;
        cr_ok(update_piece(&cut, 0, 32));
        cr_assert_eq(cut.core->slot[LARGE].step, step + 1);
    }
    cr_assert(same_values(whole.bag->parameter[LARGE]->value, cut.bag->parameter[LARGE]->value));
    destroy(&whole);
    destroy(&cut);
}

// ---- state_dict -------------------------------------------------------------------------------------

static void add_take(iso_state_dict *dict, const char *name, iso_tensor *tensor) {
    cr_ok(iso_state_dict_add(dict, name, tensor));
    iso_tensor_destroy(&tensor);
}

static iso_tensor *number(iso_dtype dtype, double value) {
    iso_tensor *t;
    cr_ok(iso_tensor_create(device, dtype, 0, NULL, &t));
    if (dtype == ISO_I64)
        *(int64_t *)t->data = (int64_t)value;
    else
        cr_ok(iso_tensor_fill(t, value));
    return t;
}

static iso_tensor *moment(const char *key, const iso_tensor *like, int64_t offset) {
    iso_tensor *t;
    const double *from = fixture_get(golden, "adam.middle", key, NULL) + offset;
    cr_ok(iso_tensor_create(device, ISO_F64, like->ndim, like->shape, &t));
    memcpy(t->data, from, (size_t)t->count * sizeof(double));
    return t;
}

// As torch.optim.Adam's state_dict has it: nothing of a parameter that never had a gradient.
static iso_state_dict torchs(const training *t) {
    iso_state_dict dict = {0};
    char name[64];
    const double *step = fixture_get(golden, "adam.middle", "step", NULL);
    int64_t offset = 0;
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        const iso_tensor *value = t->bag->parameter[i]->value;
        for (int k = 0; k < 2 && step[i] > 0; k++) {
            const char *key = k == 0 ? "exp_avg" : "exp_avg_sq";
            snprintf(name, sizeof(name), "state.p%d.%s", i, key);
            add_take(&dict, name, moment(key, value, offset));
        }
        snprintf(name, sizeof(name), "state.p%d.step", i);
        if (step[i] > 0) add_take(&dict, name, number(ISO_F32, step[i]));
        offset += value->count;
    }
    return dict;
}

Test(update_steps, goes_on_from_torchs_state_dict) {
    training t = create();
    iso_state_dict dict = torchs(&t);
    const double *step = fixture_get(golden, "adam.middle", "step", NULL);
    const double *after = fixture_get(golden, "adam", "after", NULL);
    double got[BAG_ELEMENTS];
    int64_t offset = 0;
    for (int i = 0; i < BAG_PARAMETERS; i++) { // not rounded to f32
        iso_tensor *value = t.bag->parameter[i]->value;
        const double *from = fixture_get(golden, "adam", "middle", NULL) + offset;
        memcpy(value->data, from, (size_t)value->count * sizeof(double));
        offset += value->count;
    }
    cr_ok(iso_optimizer_load_state_dict(t.optimizer, &dict, false, NULL));
    for (int i = 0; i < BAG_PARAMETERS; i++) cr_assert_eq(t.core->slot[i].step, (int64_t)step[i]);
    train(&t, MIDDLE, STEPS);
    bag_get_values(t.bag, got);
    for (int i = 0; i < BAG_ELEMENTS; i++)
        cr_assert(fabs(got[i] - after[i]) <= 1e-12 * fmax(1, fabs(after[i])),
                  "element %d is %.17g, not %.17g", i, got[i], after[i]);
    iso_state_dict_destroy(&dict);
    destroy(&t);
}

static int64_t step_in(const iso_state_dict *dict, const char *name) {
    const iso_tensor *t = iso_state_dict_find(dict, name);
    cr_assert(t && t->ndim == 0 && t->dtype == ISO_I64, "%s", name);
    return *(int64_t *)t->data;
}

Test(update_steps, a_state_dict_has_the_count_of_each_parameter) {
    training from = create(), to = create();
    iso_state_dict dict;
    train(&from, 0, MIDDLE);
    cr_ok(iso_optimizer_state_dict(from.optimizer, &dict));
    cr_assert_eq(step_in(&dict, "state.p0.step"), 6);
    cr_assert_eq(step_in(&dict, "state.p1.step"), 3);
    cr_assert_eq(step_in(&dict, "state.p3.step"), 0);
    train(&to, 3, STEPS);
    cr_ok(iso_optimizer_load_state_dict(to.optimizer, &dict, true, NULL));
    for (int i = 0; i < BAG_PARAMETERS; i++)
        cr_assert_eq(to.core->slot[i].step, from.core->slot[i].step);
    iso_state_dict_destroy(&dict);
    destroy(&from);
    destroy(&to);
}

// The entries of dict whose names do not contain `part`. Takes it.
static iso_state_dict without(iso_state_dict dict, const char *part) {
    iso_state_dict out = {0};
    for (int i = 0; i < dict.count; i++)
        if (!strstr(dict.item[i].name, part))
            cr_ok(iso_state_dict_add(&out, dict.item[i].name, dict.item[i].tensor));
    iso_state_dict_destroy(&dict);
    return out;
}

static bool is_second(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strchr("025", name[1]) != NULL;
}

static training with_groups(int64_t first, int64_t second) {
    training t = create();
    cr_ok(iso_optimizer_add_group(t.optimizer, &adam, is_second, NULL, NULL));
    iso_optimizer_group_hyper(t.optimizer, 0)->step = first;
    iso_optimizer_group_hyper(t.optimizer, 1)->step = second;
    return t;
}

// That is of an earlier version: all parameters of a group had its count.
Test(update_steps, a_state_dict_without_counts_means_those_of_the_groups) {
    training from = with_groups(7, 9), to = with_groups(0, 0);
    iso_state_dict dict;
    train(&from, 0, 3);
    train(&to, 0, 1);
    cr_ok(iso_optimizer_state_dict(from.optimizer, &dict));
    dict = without(dict, "step");
    cr_ok(iso_optimizer_load_state_dict(to.optimizer, &dict, false, NULL));
    for (int i = 0; i < BAG_PARAMETERS; i++) // nothing is known of them
        cr_assert_eq(to.core->slot[i].step, is_used(0, i));
    iso_state_dict_destroy(&dict);
    cr_ok(iso_optimizer_state_dict(from.optimizer, &dict));
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        char name[24];
        snprintf(name, sizeof(name), "state.p%d.step", i);
        dict = without(dict, name);
    }
    cr_ok(iso_optimizer_load_state_dict(to.optimizer, &dict, true, NULL));
    for (int i = 0; i < BAG_PARAMETERS; i++)
        cr_assert_eq(to.core->slot[i].step, strchr("025", '0' + i) ? 9 : 7);
    iso_state_dict_destroy(&dict);
    destroy(&from);
    destroy(&to);
}

static void refuses(double value, iso_dtype dtype, const char *words) {
    training t = create();
    iso_state_dict dict;
    train(&t, 0, 1);
    cr_ok(iso_optimizer_state_dict(t.optimizer, &dict));
    dict = without(dict, "state.p1.step");
    add_take(&dict, "state.p1.step", number(dtype, value));
    cr_fails(iso_optimizer_load_state_dict(t.optimizer, &dict, true, NULL), ISO_ERR_ARG, words);
    for (int i = 0; i < BAG_PARAMETERS; i++) cr_assert_eq(t.core->slot[i].step, is_used(0, i));
    iso_state_dict_destroy(&dict);
    destroy(&t);
}

Test(update_steps, what_is_no_number_of_steps_is_refused) {
    refuses(-1, ISO_I64, "state.p1.step is -1");
    refuses(-2, ISO_F32, "state.p1.step is -2");
    refuses(NAN, ISO_F64, "state.p1.step is nan");
}

// One that is missing among others is missing.
Test(update_steps, a_state_dict_with_some_counts_lacks_the_others) {
    training t = create();
    iso_state_dict dict;
    cr_ok(iso_optimizer_state_dict(t.optimizer, &dict));
    dict = without(dict, "state.p1.step");
    cr_fails(iso_optimizer_load_state_dict(t.optimizer, &dict, true, NULL), ISO_ERR_MISMATCH,
             "1 tensor is missing (state.p1.step)");
    iso_state_dict_destroy(&dict);
    destroy(&t);
}
