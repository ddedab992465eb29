// SPDX-License-Identifier: MIT
// The library's optimizers on parameters of bf16 and f16: they are those of f32 parameters, the
// master weights, rounded.
#include "common/half_values.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <isotherm/optim.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(np1_half_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_half_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_half_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// The matrix has more elements than are rounded at a time, and may be cut into pieces.
enum { MATRIX, BIAS, SCALE, HEAD, PARAMS, ROW = 64, MOST = 300 * ROW, STEPS = 5 };
static const iso_dtype types[PARAMS] = {ISO_BF16, ISO_F16, ISO_F32, ISO_F64};
static const size_t counts[PARAMS] = {MOST, 41, 33, 50};
static const char *const names[PARAMS] = {"matrix", "bias", "scale", "head"};

// With the types above, or with f32 in the place of 16 bits.
typedef struct model {
    bool wide;
    uint16_t half[PARAMS][MOST], half_gradient[PARAMS][MOST];
    float full[PARAMS][MOST], full_gradient[PARAMS][MOST];
    double head[MOST], head_gradient[MOST];
    iso_reducer *reducer;
    iso_optimizer *optimizer;
} model;
static model narrow, wide;

typedef struct how {
    iso_optimizer_kind kind;
    iso_reducer_config config;
    bool own_arrays; // gradients in arrays of the program
} how;

static uint16_t bits_of(int i, float x) { return half_bits(types[i], x); }
static bool is_half(const model *m, int i) { return !m->wide && i <= BIAS; }
static float rounded(int i, float x) { return i <= BIAS ? half_float(types[i], bits_of(i, x)) : x; }

static void *value_of(model *m, int i) {
    return i == HEAD ? (void *)m->head : is_half(m, i) ? (void *)m->half[i] : m->full[i];
}
static void *gradient_of(model *m, int i) {
    return i == HEAD       ? (void *)m->head_gradient
           : is_half(m, i) ? (void *)m->half_gradient[i]
                           : m->full_gradient[i];
}
// 16-bit numbers, in arrays of any type.
static void put(void *array, iso_dtype type, int i, size_t k, float x) {
    if (type == ISO_F64)
        ((double *)array)[k] = x;
    else if (type == ISO_F32)
        ((float *)array)[k] = x;
    else
        ((uint16_t *)array)[k] = bits_of(i, x);
}
static iso_dtype type_of(const model *m, int i) {
    return i <= BIAS && m->wide ? ISO_F32 : types[i];
}

// ---- Training ---------------------------------------------------------------------------------------

static void open_model(model *m, bool is_wide, const how *how) {
    iso_reducer_param param[PARAMS];
    iso_hyper hyper = iso_hyper_default(how->kind);
    hyper.lr = 1e-4; // most updates are below what the rounding keeps
    hyper.weight_decay = 0.01;
    if (how->kind == ISO_SGD) hyper.momentum = 0.9;
    m->wide = is_wide;
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            put(value_of(m, i), type_of(m, i), i, k, rounded(i, (float)(1 + sin(0.3 * (double)k))));
        param[i] = (iso_reducer_param){.name = names[i],
                                       .value = value_of(m, i),
                                       .count = counts[i],
                                       .dtype = type_of(m, i),
                                       .gradient = how->own_arrays ? gradient_of(m, i) : NULL,
                                       .layer = i,
                                       .row = i == MATRIX ? ROW : 0};
    }
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &how->config, &m->reducer));
    iso_assert_ok(iso_reducer_set_optimizer(m->reducer, how->kind, &hyper, NULL, 0, &m->optimizer));
}

static void close_model(model *m) {
    iso_optimizer_destroy(&m->optimizer);
    iso_reducer_destroy(&m->reducer);
}

// Sums and means over two ranks are exact in 16 bits.
static float gradient_at(int step, int i, size_t k) {
    return (float)round(8 * sin(0.4 * (test_rank + 1) + 1.1 * step + i + 0.3 * (double)k)) / 8;
}

static iso_status train(model *m, const how *how, int from, int to) {
    iso_status status = ISO_OK;
    for (int step = from; status == ISO_OK && step < to; step++) {
        for (int i = 0; status == ISO_OK && i < PARAMS; i++)
            status = iso_reducer_param_needed(m->reducer, i);
        iso_optimizer_zero_grad(m->optimizer);
        for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
            iso_dtype type = how->own_arrays || i > BIAS ? type_of(m, i) : ISO_F32;
            for (size_t k = 0; k < counts[i]; k++)
                put(iso_reducer_grad(m->reducer, i), type, i, k, gradient_at(step, i, k));
            status = iso_reducer_grad_ready(m->reducer, i);
        }
        if (status == ISO_OK) status = iso_optimizer_step(m->optimizer);
    }
    return status == ISO_OK ? iso_reducer_finish(m->reducer) : status;
}

// Whether the 16-bit values are those of f32, rounded, and all others the same.
static bool agree(const model *n, const model *w) {
    size_t wrong = 0;
    for (int i = 0; i <= BIAS; i++)
        for (size_t k = 0; k < counts[i]; k++) wrong += n->half[i][k] != bits_of(i, w->full[i][k]);
    return wrong == 0 && memcmp(n->full[SCALE], w->full[SCALE], sizeof(n->full[SCALE])) == 0 &&
           memcmp(n->head, w->head, sizeof(n->head)) == 0;
}

// ---- Against f32 ------------------------------------------------------------------------------------

static void is_f32_rounded(const how *how) {
    static float start[MOST];
    open_model(&wide, true, how);
    open_model(&narrow, false, how);
    memcpy(start, wide.full[MATRIX], sizeof(start));
    iso_assert_ok(train(&wide, how, 0, STEPS));
    iso_assert_ok(train(&narrow, how, 0, STEPS));
    iso_assert_all(agree(&narrow, &wide));
    iso_assert_all(memcmp(start, wide.full[MATRIX], sizeof(start)) != 0);
    close_model(&narrow);
    close_model(&wide);
}

static void every_kind_is_f32_rounded(bool own_arrays) {
    static const iso_reducer_config configs[] = {{.sync = ISO_SYNC_LAZY},
                                                 {.sync = ISO_SYNC_BLOCKING},
                                                 {.piece_bytes = 4096},
                                                 {.zero = 1},
                                                 {.zero = 2, .piece_bytes = 4096}};
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++)
        for (size_t c = 0; c < sizeof(configs) / sizeof(configs[0]); c++)
            is_f32_rounded(&(how){(iso_optimizer_kind)kind, configs[c], own_arrays});
}
Test(np1_half_optimizer, is_that_of_f32_rounded) { every_kind_is_f32_rounded(false); }
Test(np2_half_optimizer, is_that_of_f32_rounded) { every_kind_is_f32_rounded(false); }
Test(np3_half_optimizer, is_that_of_f32_rounded) { every_kind_is_f32_rounded(false); }
Test(np2_half_optimizer, takes_gradients_of_16_bits) { every_kind_is_f32_rounded(true); }

Test(np2_half_optimizer, a_value_that_the_program_changes_counts) {
    const how how = {.kind = ISO_ADAMW};
    open_model(&wide, true, &how);
    open_model(&narrow, false, &how);
    iso_assert_ok(train(&wide, &how, 0, 2));
    iso_assert_ok(train(&narrow, &how, 0, 2));
    for (size_t k = 7; k < counts[MATRIX]; k += 100) {
        wide.full[MATRIX][k] = -2;
        narrow.half[MATRIX][k] = bits_of(MATRIX, -2);
    }
    iso_assert_ok(train(&wide, &how, 2, STEPS));
    iso_assert_ok(train(&narrow, &how, 2, STEPS));
    iso_assert_all(agree(&narrow, &wide) && narrow.half[MATRIX][7] != bits_of(MATRIX, 1));
    close_model(&narrow);
    close_model(&wide);
}

// ---- Saved state ------------------------------------------------------------------------------------

// A dict of its own memory, in place of tensors over the optimizer's. device: on that one, and f32
// as f64; NULL: as they are.
static iso_status copy_dict(iso_state_dict *from, iso_state_dict *to, const char *without,
                            iso_device *device) {
    for (int i = 0; i < from->count; i++) {
        const iso_tensor *t = from->item[i].tensor;
        iso_tensor *copy;
        if (without && strstr(from->item[i].name, without)) continue;
        bool widens = device && t->dtype == ISO_F32;
        ISO_TRY(iso_tensor_create(device ? device : t->device, widens ? ISO_F64 : t->dtype, t->ndim,
                                  t->shape, &copy));
        iso_status status = ISO_OK;
        for (int64_t k = 0; widens && k < t->count; k++)
            ((double *)copy->data)[k] = ((const float *)t->data)[k];
        if (!widens) status = iso_tensor_copy(from->item[i].tensor, copy);
        if (status == ISO_OK) status = iso_state_dict_add(to, from->item[i].name, copy);
        iso_tensor_destroy(&copy);
        ISO_TRY(status);
    }
    return ISO_OK;
}

// Trains, saves, and goes on in a new optimizer, of a reducer with other settings.
static iso_status train_in_two(const how *before, const how *after, const char *without,
                               iso_device *device) {
    iso_state_dict dict = {0}, kept = {0};
    open_model(&narrow, false, before);
    iso_status status = train(&narrow, before, 0, 2);
    if (status == ISO_OK) status = iso_optimizer_state_dict(narrow.optimizer, &dict);
    if (status == ISO_OK) status = copy_dict(&dict, &kept, without, device);
    iso_state_dict_destroy(&dict);
    static uint16_t half[PARAMS][MOST];
    static float scale[MOST];
    static double head[MOST];
    memcpy(half, narrow.half, sizeof(half));
    memcpy(scale, narrow.full[SCALE], sizeof(scale));
    memcpy(head, narrow.head, sizeof(head));
    close_model(&narrow);
    open_model(&narrow, false, after);
    memcpy(narrow.half, half, sizeof(half));
    memcpy(narrow.full[SCALE], scale, sizeof(scale));
    memcpy(narrow.head, head, sizeof(head));
    if (status == ISO_OK)
        status = iso_optimizer_load_state_dict(narrow.optimizer, &kept, true, NULL);
    iso_state_dict_destroy(&kept);
    if (status == ISO_OK) status = train(&narrow, after, 2, STEPS);
    close_model(&narrow);
    return status;
}

static void goes_on(int zero_before, int zero_after, iso_device *device) {
    const how before = {.kind = ISO_ADAM, .config = {.zero = zero_before}};
    const how after = {.kind = ISO_ADAM, .config = {.zero = zero_after, .piece_bytes = 4096}};
    open_model(&wide, true, &before);
    iso_assert_ok(train(&wide, &before, 0, STEPS));
    iso_assert_ok(train_in_two(&before, &after, NULL, device));
    iso_assert_all(agree(&narrow, &wide));
    close_model(&wide);
}
Test(np2_half_optimizer, goes_on_from_a_state_dict) { goes_on(0, 0, NULL); }
Test(np2_half_optimizer, goes_on_from_f64_of_another_device) {
    iso_device *device;
    iso_assert_ok(iso_device_create("cpu", &device));
    goes_on(0, 0, device);
    goes_on(1, 0, device);
    iso_device_destroy(&device);
}
Test(np3_half_optimizer, goes_on_from_a_state_dict) {
    goes_on(1, 0, NULL);
    goes_on(0, 2, NULL);
    goes_on(1, 1, NULL);
}

Test(np2_half_optimizer, goes_on_from_a_state_dict_without_master_weights) {
    const how how = {.kind = ISO_ADAM};
    open_model(&wide, true, &how);
    iso_assert_ok(train(&wide, &how, 0, 2));
    for (int i = 0; i <= BIAS; i++)
        for (size_t k = 0; k < counts[i]; k++) wide.full[i][k] = rounded(i, wide.full[i][k]);
    iso_assert_ok(train(&wide, &how, 2, STEPS));
    iso_assert_ok(train_in_two(&how, &how, ".master_param", NULL));
    iso_assert_all(agree(&narrow, &wide));
    close_model(&wide);
}

// A dict that lacks master weights leaves them as they are, and is complete for a strict load.
Test(np2_half_optimizer, a_load_of_other_entries_keeps_master_weights) {
    const how how = {.kind = ISO_ADAM};
    open_model(&wide, true, &how);
    open_model(&narrow, false, &how);
    iso_assert_ok(train(&wide, &how, 0, STEPS));
    for (int step = 0; step < STEPS; step++) {
        iso_state_dict dict = {0}, rate = {0};
        iso_assert_ok(train(&narrow, &how, step, step + 1));
        iso_assert_ok(iso_optimizer_state_dict(narrow.optimizer, &dict));
        iso_assert_ok(iso_state_dict_add(&rate, "param_groups.0.lr",
                                         iso_state_dict_find(&dict, "param_groups.0.lr")));
        iso_assert_ok(iso_optimizer_load_state_dict(narrow.optimizer, &rate, false, NULL));
        iso_state_dict_destroy(&rate);
        iso_state_dict_destroy(&dict);
    }
    iso_assert_all(agree(&narrow, &wide));
    close_model(&narrow);
    close_model(&wide);
}

static void a_dict_has_what_the_program_wrote(int zero) {
    const how how = {.kind = ISO_SGD, .config = {.zero = zero}};
    iso_state_dict dict = {0};
    open_model(&narrow, false, &how);
    iso_assert_ok(train(&narrow, &how, 0, 1));
    narrow.half[MATRIX][0] = narrow.half[MATRIX][MOST - 1] = bits_of(MATRIX, 3);
    iso_assert_ok(iso_optimizer_state_dict(narrow.optimizer, &dict));
    const float *master = iso_state_dict_find(&dict, "state.matrix.master_param")->data;
    iso_assert_all(master[0] == 3 && master[MOST - 1] == 3 && master[1] != 3);
    iso_state_dict_destroy(&dict);
    close_model(&narrow);
}
Test(np3_half_optimizer, a_state_dict_has_what_the_program_wrote) {
    a_dict_has_what_the_program_wrote(0);
    a_dict_has_what_the_program_wrote(1);
}

Test(np2_half_optimizer, names_its_master_weights) {
    const how how = {.kind = ISO_SGD, .config = {.zero = 1}};
    iso_state_dict dict = {0};
    open_model(&narrow, false, &how);
    iso_assert_ok(train(&narrow, &how, 0, 1));
    iso_assert_ok(iso_optimizer_state_dict(narrow.optimizer, &dict));
    const iso_tensor *master = iso_state_dict_find(&dict, "state.matrix.master_param");
    iso_assert_all(master && master->dtype == ISO_F32 && master->count == MOST);
    iso_assert_all(iso_state_dict_find(&dict, "state.bias.master_param") != NULL);
    iso_assert_all(!iso_state_dict_find(&dict, "state.scale.master_param"));
    iso_assert_all(!iso_state_dict_find(&dict, "state.head.master_param"));
    iso_state_dict_destroy(&dict);
    close_model(&narrow);
}
