// SPDX-License-Identifier: MIT
// state_dict of modules: names and order, files, conversion, and what does not fit.
#include "common/balance.h"
#include "common/nn_fixture.h"
#include "common/scratch.h"

#include <isotherm/state_dict.h>
#include <stdlib.h>
#include <string.h>

static iso_device *device;

static void open_device(void) { device = open_cpu(); }

static void clean_up(void) {
    iso_device_destroy(&device);
    scratch_remove();
    balance_check();
}
TestSuite(state_dict, .init = open_device, .fini = clean_up, .timeout = 60);

// ---- A model ------------------------------------------------------------------------------------

static iso_status hand_through(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self;
    (void)call;
    *out = in;
    return ISO_OK;
}
static const iso_module_ops counting_ops = {.type = "Counting", .forward = hand_through};

// A weight [3], a buffer [3] and a count without dimensions, as of a batch norm.
static iso_module *new_counting(double value) {
    iso_module *module = calloc(1, sizeof(*module));
    iso_parameter *weight;
    iso_buffer *mean, *count;
    int64_t three = 3;
    cr_ok(iso_module_init(module, &counting_ops, device));
    cr_ok(iso_module_add_parameter(module, "weight", 1, &three, &weight));
    cr_ok(iso_module_add_buffer(module, "running_mean", ISO_F32, 1, &three, &mean));
    cr_ok(iso_module_add_buffer(module, "num_batches_tracked", ISO_I64, 0, NULL, &count));
    cr_ok(iso_tensor_fill(weight->value, value));
    cr_ok(iso_tensor_fill(mean->value, 10 * value));
    *(int64_t *)iso_tensor_data(count->value) = 9007199254740993 + (int64_t)value; // no double
    return module;
}

// layer.bn: a counting module; layer.fc: 3 to 2; again: fc once more.
static iso_module *new_model(uint64_t seed) {
    iso_rng rng = {.seed = seed};
    iso_module *model, *layer, *fc;
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_sequential_create(device, &layer));
    cr_ok(iso_linear_create(device, 3, 2, true, &rng, &fc));
    cr_ok(iso_sequential_add_take(layer, "bn", new_counting((double)seed)));
    cr_ok(iso_sequential_add_take(layer, "fc", iso_module_retain(fc)));
    cr_ok(iso_sequential_add_take(model, "layer", layer));
    cr_ok(iso_sequential_add_take(model, "again", fc));
    return model;
}

enum { TENSORS = 7 };
static const char *const names[TENSORS] = {
    "layer.bn.weight", "layer.bn.running_mean", "layer.bn.num_batches_tracked",
    "layer.fc.weight", "layer.fc.bias",         "again.weight",
    "again.bias"};

static iso_state_dict dict_of(iso_module *module) {
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(module, &dict));
    return dict;
}

static bool same_bytes(iso_tensor *a, iso_tensor *b) {
    size_t bytes = (size_t)iso_tensor_count(a) * iso_dtype_size(iso_tensor_dtype(a));
    return iso_tensor_dtype(a) == iso_tensor_dtype(b) &&
           iso_tensor_count(a) == iso_tensor_count(b) &&
           memcmp(iso_tensor_data(a), iso_tensor_data(b), bytes) == 0;
}

static bool same_models(iso_module *a, iso_module *b) {
    iso_state_dict x = dict_of(a), y = dict_of(b);
    bool same = x.count == y.count;
    for (int i = 0; same && i < x.count; i++) same = same_bytes(x.item[i].tensor, y.item[i].tensor);
    iso_state_dict_destroy(&x);
    iso_state_dict_destroy(&y);
    return same;
}

// ---- Saving -------------------------------------------------------------------------------------

// torch.nn.Module.state_dict: of each module its parameters, then its buffers, then its children.
Test(state_dict, lists_parameters_and_buffers_in_registration_order) {
    iso_module *model = new_model(1);
    iso_state_dict dict = dict_of(model);
    cr_assert_eq(dict.count, TENSORS);
    for (int i = 0; i < TENSORS; i++) cr_assert_str_eq(dict.item[i].name, names[i]);
    cr_assert_eq(iso_state_dict_find(&dict, "layer.fc.weight"), dict.item[3].tensor);
    cr_assert_eq(iso_state_dict_find(&dict, "again.weight"), dict.item[3].tensor);
    cr_assert_null(iso_state_dict_find(&dict, "fc.weight"));
    iso_state_dict_destroy(&dict);
    cr_assert_eq(dict.count, 0);
    iso_module_destroy(&model);
}

// register_buffer(persistent=False): neither saved nor expected, and a strict load leaves it alone.
Test(state_dict, buffers_that_are_not_persistent_are_left_out) {
    iso_module *model = new_model(1), *other = new_model(2);
    iso_module *modules[] = {model, other};
    iso_buffer *mean = NULL;
    for (int i = 0; i < 2; i++) {
        cr_ok(iso_module_get_buffer(modules[i], "layer.bn.running_mean", &mean));
        cr_assert(mean->persistent);
        mean->persistent = false;
    }
    iso_state_dict dict = dict_of(model);
    cr_assert_eq(dict.count, TENSORS - 1);
    cr_assert_null(iso_state_dict_find(&dict, "layer.bn.running_mean"));
    cr_ok(iso_module_load_state_dict(other, &dict, true, NULL));
    cr_assert_eq(*(float *)iso_tensor_data(mean->value), 20, "as it was");
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
    iso_module_destroy(&other);
}

Test(state_dict, a_file_brings_everything_into_another_model) {
    iso_module *model = new_model(1), *other = new_model(2);
    iso_state_dict dict = dict_of(model), read;
    const char *path = scratch_path("model");
    cr_ok(iso_state_dict_set_metadata(&dict, "note", "first"));
    cr_ok(iso_state_dict_set_metadata(&dict, "note", "a \"quoted\" one"));
    cr_ok(iso_state_dict_save(&dict, path));
    cr_ok(iso_state_dict_read(path, device, &read));
    cr_assert_str_eq(iso_state_dict_metadata(&read, "note"), "a \"quoted\" one");
    cr_assert_str_eq(iso_state_dict_metadata(&read, "format"), "pt");
    cr_assert_null(iso_state_dict_metadata(&read, "else"));
    cr_assert_not(same_models(model, other));
    iso_incompatible_keys keys = {.missing_count = 7};
    cr_ok(iso_module_load_state_dict(other, &read, true, &keys));
    cr_assert(same_models(model, other));
    cr_assert_eq(keys.missing_count + keys.unexpected_count, 0);
    iso_incompatible_keys_destroy(&keys);
    // Written again, what was read is the same file.
    const char *copy = scratch_path("copy");
    size_t sizes[2];
    cr_ok(iso_state_dict_save(&read, copy));
    char *a = scratch_read(path, &sizes[0]), *b = scratch_read(copy, &sizes[1]);
    cr_assert(sizes[0] == sizes[1] && memcmp(a, b, sizes[0]) == 0);
    free(a);
    free(b);
    iso_state_dict_destroy(&dict);
    iso_state_dict_destroy(&read);
    iso_module_destroy(&model);
    iso_module_destroy(&other);
}

// PyTorch's strict load_state_dict wants torch.Size([]) and torch.int64 for num_batches_tracked.
Test(state_dict, a_count_is_written_without_dimensions) {
    iso_module *model = new_model(1);
    iso_state_dict dict = dict_of(model);
    const char *path = scratch_path("model");
    size_t size;
    cr_ok(iso_state_dict_save(&dict, path));
    char *bytes = scratch_read(path, &size);
    cr_assert(strstr(bytes + 8, "\"layer.bn.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],"
                                "\"data_offsets\":[24,32]}"),
              "%s", bytes + 8);
    free(bytes);
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
}

Test(state_dict, metadata_have_a_limit) {
    iso_state_dict dict = {0};
    char key[16];
    for (int i = 0; i < 10000; i++) {
        snprintf(key, sizeof(key), "key%d", i);
        cr_ok(iso_state_dict_set_metadata(&dict, key, "value"));
    }
    cr_assert_eq(iso_state_dict_set_metadata(&dict, "more", "value"), ISO_ERR_ARG);
    cr_ok(iso_state_dict_set_metadata(&dict, "key3", "other"));
    cr_assert_str_eq(iso_state_dict_metadata(&dict, "key3"), "other");
    // The file has one more, and nobody could read it. What was there stays.
    const char *path = scratch_path("full");
    iso_state_dict few = {0}, read = {0};
    iso_tensor *x = filled_tensor(device, 1, (int64_t[]){2}, 1);
    cr_ok(iso_state_dict_add(&few, "x", x));
    cr_ok(iso_state_dict_add(&dict, "x", x));
    iso_tensor_destroy(&x);
    cr_ok(iso_state_dict_set_metadata(&few, "a", "b"));
    cr_ok(iso_state_dict_save(&few, path));
    cr_fails(iso_state_dict_save(&dict, path), ISO_ERR_ARG, "has 10001 entries");
    cr_ok(iso_state_dict_read(path, device, &read));
    cr_assert_str_eq(iso_state_dict_metadata(&read, "a"), "b");
    iso_state_dict_destroy(&read);
    iso_state_dict_destroy(&few);
    iso_state_dict_destroy(&dict);
}

Test(state_dict, a_name_stands_once) {
    iso_state_dict dict = {0};
    iso_tensor *x = filled_tensor(device, 1, (int64_t[]){2}, 1);
    cr_ok(iso_state_dict_add(&dict, "x", x));
    cr_fails(iso_state_dict_add(&dict, "x", x), ISO_ERR_ARG, "have the name x");
    cr_fails(iso_state_dict_add(&dict, "", x), ISO_ERR_ARG, "needs a name");
    iso_tensor_destroy(&x);
    cr_assert_eq(iso_tensor_count(dict.item[0].tensor), 2); // the dict's reference
    iso_state_dict_destroy(&dict);
}

// ---- Conversion ---------------------------------------------------------------------------------

static void convert_from(iso_dtype from) {
    iso_module *model = new_model(1), *other = new_model(2), *expected = new_model(1);
    cr_ok(iso_module_to(from == ISO_F64 ? model : other, ISO_F64));
    iso_state_dict dict = dict_of(model);
    cr_ok(iso_module_load_state_dict(other, &dict, true, NULL));
    if (from == ISO_F32) cr_ok(iso_module_to(expected, ISO_F64));
    cr_assert(same_models(other, expected));
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
    iso_module_destroy(&other);
    iso_module_destroy(&expected);
}

Test(state_dict, f32_is_loaded_into_f64) { convert_from(ISO_F32); }
Test(state_dict, f64_is_loaded_into_f32) { convert_from(ISO_F64); }

// ---- What does not fit --------------------------------------------------------------------------

// A dict of a model with one entry replaced (tensor is taken) or renamed.
static iso_state_dict altered(iso_module *model, const char *name, const char *new_name,
                              iso_tensor *tensor) {
    iso_state_dict dict = dict_of(model), out = {0};
    for (int i = 0; i < dict.count; i++) {
        bool it = strcmp(dict.item[i].name, name) == 0;
        cr_ok(iso_state_dict_add(&out, it ? new_name : dict.item[i].name,
                                 it && tensor ? tensor : dict.item[i].tensor));
    }
    if (tensor) iso_tensor_destroy(&tensor);
    iso_state_dict_destroy(&dict);
    return out;
}

// Refused, strictly or not, with these words, and without a change. Takes tensor.
static void expect_refusal(const char *name, iso_tensor *tensor, const char *words) {
    iso_module *model = new_model(1), *other = new_model(2), *before = new_model(2);
    iso_state_dict dict = altered(model, name, name, tensor);
    iso_incompatible_keys keys = {.missing_count = 7};
    for (int strict = 0; strict < 2; strict++) {
        cr_fails(iso_module_load_state_dict(other, &dict, strict, &keys), ISO_ERR_MISMATCH, words);
        cr_assert_eq(keys.missing_count, 7);
        cr_assert(same_models(other, before));
    }
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
    iso_module_destroy(&other);
    iso_module_destroy(&before);
}

Test(state_dict, another_shape_is_refused_with_both_shapes) {
    expect_refusal("layer.fc.weight", filled_tensor(device, 2, (int64_t[]){3, 2}, 1),
                   "tensor layer.fc.weight has shape [3, 2] in the state_dict and [2, 3] in the "
                   "model");
}

Test(state_dict, a_count_of_another_shape_is_refused) {
    iso_tensor *one;
    cr_ok(iso_tensor_create(device, ISO_I64, 1, (int64_t[]){1}, &one));
    expect_refusal("layer.bn.num_batches_tracked", one, "has shape [1] in the state_dict and []");
}

Test(state_dict, a_number_for_a_count_is_refused) {
    iso_tensor *number;
    cr_ok(iso_tensor_create(device, ISO_F32, 0, NULL, &number));
    expect_refusal("layer.bn.num_batches_tracked", number,
                   "element type f32 in the state_dict and i64 in the model");
}

Test(state_dict, strict_loading_lists_what_is_missing_and_unexpected) {
    iso_module *model = new_model(1), *other = new_model(2), *before = new_model(2);
    iso_state_dict dict = altered(model, "layer.bn.weight", "layer.bn.weigth", NULL);
    cr_fails(iso_module_load_state_dict(other, &dict, true, NULL), ISO_ERR_MISMATCH,
             "of another model: 1 tensor is missing (layer.bn.weight) and 1 tensor is unexpected "
             "(layer.bn.weigth)");
    cr_assert(same_models(other, before));
    iso_state_dict_destroy(&dict);
    cr_fails(iso_module_load_state_dict(other, &dict, true, NULL), ISO_ERR_MISMATCH,
             "7 tensors are missing (layer.bn.weight, layer.bn.running_mean");
    iso_module_destroy(&model);
    iso_module_destroy(&other);
    iso_module_destroy(&before);
}

Test(state_dict, other_loading_takes_what_is_common_and_reports_the_rest) {
    iso_module *model = new_model(1), *other = new_model(2), *before = new_model(2);
    iso_state_dict dict = altered(model, "layer.bn.weight", "weight", NULL);
    iso_incompatible_keys keys;
    cr_ok(iso_module_load_state_dict(other, &dict, false, &keys));
    cr_assert_eq(keys.missing_count, 1);
    cr_assert_str_eq(keys.missing[0], "layer.bn.weight");
    cr_assert_eq(keys.unexpected_count, 1);
    cr_assert_str_eq(keys.unexpected[0], "weight");
    iso_incompatible_keys_destroy(&keys);
    cr_ok(iso_module_load_state_dict(other, &dict, false, NULL)); // nobody asks
    iso_state_dict a = dict_of(model), b = dict_of(other), c = dict_of(before);
    for (int i = 0; i < TENSORS; i++)
        cr_assert(same_bytes(b.item[i].tensor, i > 0 ? a.item[i].tensor : c.item[i].tensor), "%s",
                  names[i]);
    iso_state_dict *all[] = {&dict, &a, &b, &c};
    for (int i = 0; i < 4; i++) iso_state_dict_destroy(all[i]);
    iso_module_destroy(&model);
    iso_module_destroy(&other);
    iso_module_destroy(&before);
}

// ---- Files --------------------------------------------------------------------------------------

static void refuse_file(const char *header, size_t data, iso_status code, const char *words) {
    size_t length = strlen(header);
    uint8_t bytes[512] = {(uint8_t)length};
    iso_state_dict dict = {.count = 7};
    memcpy(bytes + 8, header, length);
    const char *path = scratch_write("file", bytes, 8 + length + data);
    cr_fails(iso_state_dict_read(path, device, &dict), code, words);
    cr_assert_eq(dict.count, 7);
}

Test(state_dict, a_file_that_cannot_be_held_is_refused_by_the_tensor_s_name) {
    refuse_file("{\"fc.mask\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
                ISO_ERR_TYPE, "tensor fc.mask of");
    refuse_file("{\"fc.none\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0,
                ISO_ERR_SHAPE, "tensor fc.none of");
    refuse_file("{\"fc.deep\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
                4, ISO_ERR_SHAPE, "has shape [1, 1, 1, 1, 1, 1]");
    refuse_file("{\"fc\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
                ISO_ERR_FORMAT, "do not fit the shape");
}
