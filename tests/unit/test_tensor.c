// SPDX-License-Identifier: MIT
// Shapes, ownership, views, layouts and host access of tensors.
#include "common/balance.h"
#include "device/device_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static iso_device *device;

static void open_device(void) { cr_assert(iso_device_create("cpu", &device) == ISO_OK); }
static void close_device(void) {
    iso_device_destroy(&device);
    balance_check();
}
TestSuite(tensor, .timeout = 60, .init = open_device, .fini = close_device);

#define OK(expr) cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)

static iso_tensor *create(int ndim, const int64_t *shape) {
    iso_tensor *t;
    OK(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    return t;
}

static void write_numbers(iso_tensor *t) {
    void *host;
    OK(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < t->count; i++) ((float *)host)[i] = (float)i + 1;
    OK(iso_tensor_unmap(t));
}

static void check_numbers(iso_tensor *t) {
    void *host;
    OK(iso_tensor_map(t, ISO_READ, &host));
    for (int64_t i = 0; i < t->count; i++) cr_assert(((float *)host)[i] == (float)i + 1);
    OK(iso_tensor_unmap(t));
}

Test(tensor, tells_its_shape) {
    iso_tensor *t = create(3, (int64_t[]){2, 3, 5});
    cr_assert(iso_tensor_ndim(t) == 3 && iso_tensor_count(t) == 30 && iso_tensor_shape(t)[2] == 5);
    cr_assert(iso_tensor_dtype(t) == ISO_F32 && iso_tensor_layout(t) == ISO_LAYOUT_LOGICAL);
    cr_assert(iso_tensor_device(t) == device && (uintptr_t)iso_tensor_data(t) % 64 == 0);
    iso_tensor_destroy(&t);
    cr_assert(t == NULL);
}

Test(tensor, impossible_shapes_are_refused) {
    iso_tensor *t = NULL;
    cr_assert(iso_tensor_create(device, ISO_F32, -1, (int64_t[]){1}, &t) == ISO_ERR_ARG);
    cr_assert(iso_tensor_create(device, ISO_F32, 6, (int64_t[]){1, 1, 1, 1, 1, 1}, &t) ==
              ISO_ERR_ARG);
    cr_assert(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){3, 0}, &t) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "[3, 0]"));
    cr_assert(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){INT64_MAX / 2, 3}, &t) ==
              ISO_ERR_ARG);
    cr_assert(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){1 << 30, 1 << 23}, &t) ==
              ISO_ERR_NOMEM);
    cr_assert(t == NULL);
}

Test(tensor, blocked_layout_keeps_the_logical_contents) {
    iso_layout both[] = {ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED};
    for (int i = 0; i < 4; i++) {
        int64_t shape[] = {2, 21, 3, 5};
        iso_tensor *from = create(4, shape), *to = create(4, shape);
        OK(iso_tensor_resize(from, 4, shape, both[i & 1]));
        OK(iso_tensor_resize(to, 4, shape, both[i >> 1]));
        write_numbers(from);
        OK(iso_tensor_copy(from, to));
        check_numbers(to);
        iso_tensor_destroy(&from);
        iso_tensor_destroy(&to);
    }
}

static void copy_there_and_back(iso_device *other) {
    iso_layout both[] = {ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED};
    int64_t shape[] = {2, 21, 3, 5};
    for (int i = 0; i < 4; i++) {
        iso_tensor *from = create(4, shape), *to = create(4, shape), *there, *wide;
        OK(iso_tensor_create(other, ISO_F32, 4, shape, &there));
        OK(iso_tensor_create(other, ISO_F64, 4, shape, &wide));
        OK(iso_tensor_resize(from, 4, shape, both[i & 1]));
        OK(iso_tensor_resize(there, 4, shape, both[i >> 1]));
        write_numbers(from);
        OK(iso_tensor_copy(from, there));
        check_numbers(there);
        OK(iso_tensor_copy(there, to));
        check_numbers(to);
        cr_assert(iso_tensor_copy(from, wide) == ISO_ERR_UNSUPPORTED);
        cr_assert(strstr(iso_last_error()->message, "convert it first"));
        OK(iso_tensor_resize(to, 3, (int64_t[]){21, 3, 5}, ISO_LAYOUT_LOGICAL));
        cr_assert(iso_tensor_copy(there, to) == ISO_ERR_SHAPE);
        iso_tensor_destroy(&from), iso_tensor_destroy(&to);
        iso_tensor_destroy(&there), iso_tensor_destroy(&wide);
    }
}

Test(tensor, copies_reach_other_devices) {
    static const char *const kind[] = {"cpu", "cuda"};
    for (int i = 0; i < 2; i++) {
        iso_device *other;
        if (iso_device_count(kind[i]) == 0) continue;
        OK(iso_device_create(kind[i], &other));
        copy_there_and_back(other);
        iso_device_destroy(&other);
    }
}

Test(tensor, flattening_copies_in_logical_order) {
    iso_tensor *x = create(4, (int64_t[]){2, 19, 3, 3}), *flat = create(2, (int64_t[]){2, 171});
    OK(iso_tensor_resize(x, 4, (int64_t[]){2, 19, 3, 3}, ISO_LAYOUT_BLOCKED));
    write_numbers(x);
    OK(device->ops->copy(device, x, flat));
    check_numbers(flat);
    OK(iso_tensor_fill(x, 0));
    OK(device->ops->copy(device, flat, x));
    check_numbers(x);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&flat);
}

Test(tensor, fill_leaves_the_padding_zero) {
    iso_tensor *t = create(4, (int64_t[]){2, 5, 3, 3});
    OK(iso_tensor_resize(t, 4, (int64_t[]){2, 5, 3, 3}, ISO_LAYOUT_BLOCKED));
    OK(iso_tensor_fill(t, 2));
    size_t stored =
        device->ops->storage_bytes(device, ISO_F32, 4, t->shape, t->layout) / sizeof(float);
    float sum = 0;
    for (size_t i = 0; i < stored; i++) sum += ((float *)t->data)[i];
    cr_assert(sum == 2 * 90);
    iso_tensor_destroy(&t);
}

Test(tensor, alternating_sizes_allocate_once) {
    iso_tensor *t = create(2, (int64_t[]){3, 4});
    OK(iso_tensor_resize(t, 2, (int64_t[]){64, 100}, ISO_LAYOUT_LOGICAL));
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    for (int i = 0; i < 10; i++)
        OK(iso_tensor_resize(t, 2, (int64_t[]){i % 2 ? 64 : 17, 100}, ISO_LAYOUT_LOGICAL));
    iso_memory_balance(NULL, NULL, &after);
    cr_assert(after == before);
    iso_tensor_destroy(&t);
}

Test(tensor, only_four_dimensions_can_be_blocked) {
    iso_tensor *t = create(2, (int64_t[]){3, 4});
    cr_assert(iso_tensor_resize(t, 2, (int64_t[]){3, 4}, ISO_LAYOUT_BLOCKED) == ISO_ERR_ARG);
    iso_tensor_destroy(&t);
}

Test(tensor, borrowed_memory_is_used_in_place_and_kept) {
    float memory[6] = {0};
    iso_tensor *t;
    OK(iso_tensor_borrow(device, ISO_F32, 2, (int64_t[]){2, 3}, memory, &t));
    cr_assert(iso_tensor_resize(t, 1, (int64_t[]){6}, ISO_LAYOUT_LOGICAL) == ISO_ERR_STATE);
    write_numbers(t);
    iso_tensor_destroy(&t);
    cr_assert(memory[5] == 6);
    cr_assert(iso_tensor_borrow(device, ISO_F32, 2, (int64_t[]){2, 3}, NULL, &t) == ISO_ERR_ARG);
}

Test(tensor, one_mapping_at_a_time) {
    iso_tensor *t = create(1, (int64_t[]){4});
    void *a, *b = NULL;
    cr_assert(iso_tensor_unmap(t) == ISO_ERR_STATE);
    OK(iso_tensor_map(t, ISO_READ_WRITE, &a));
    cr_assert(a == iso_tensor_data(t), "a logical CPU tensor is mapped in place");
    cr_assert(iso_tensor_map(t, ISO_READ, &b) == ISO_ERR_STATE);
    cr_assert(b == NULL);
    OK(iso_tensor_unmap(t));
    iso_tensor_destroy(&t);
}

Test(tensor, a_read_mapping_of_a_blocked_tensor_changes_nothing) {
    iso_tensor *t = create(4, (int64_t[]){1, 17, 2, 2});
    OK(iso_tensor_resize(t, 4, (int64_t[]){1, 17, 2, 2}, ISO_LAYOUT_BLOCKED));
    write_numbers(t);
    void *host;
    OK(iso_tensor_map(t, ISO_READ, &host));
    ((float *)host)[0] = -1;
    OK(iso_tensor_unmap(t));
    // Where host memory is the device's, blocks of one channel are mapped through a buffer all the
    // same.
    check_numbers(t);
    iso_tensor_destroy(&t);
}

Test(tensor, no_dimensions_are_one_number) {
    iso_tensor *t;
    OK(iso_tensor_create(device, ISO_I64, 0, NULL, &t));
    cr_assert(iso_tensor_ndim(t) == 0 && iso_tensor_count(t) == 1);
    OK(iso_tensor_fill(t, 5));
    void *host;
    OK(iso_tensor_map(t, ISO_READ, &host));
    cr_assert_eq(*(int64_t *)host, 5);
    OK(iso_tensor_unmap(t));
    iso_tensor_destroy(&t);
}

Test(tensor, copies_between_f32_and_f64_round) {
    iso_tensor *narrow = create(1, (int64_t[]){3}), *wide;
    OK(iso_tensor_create(device, ISO_F64, 1, (int64_t[]){3}, &wide));
    double *w = iso_tensor_data(wide);
    w[0] = 0.1, w[1] = -1e-30, w[2] = 3;
    OK(iso_tensor_copy(wide, narrow));
    float *n = iso_tensor_data(narrow);
    cr_assert(n[0] == 0.1f && n[1] == -1e-30f && n[2] == 3);
    OK(iso_tensor_copy(narrow, wide));
    cr_assert(w[0] == (double)0.1f && w[1] == (double)-1e-30f && w[2] == 3);
    iso_tensor_destroy(&narrow);
    iso_tensor_destroy(&wide);
}

// Ties go to the even number: 1 + 2^-8 lies between two of bf16, and 1 + 2^-11 between two of f16.
Test(tensor, f32_becomes_16_bits_and_back) {
    static const float given[6] = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-11f, 65520, 0x1p-25f, -3};
    static const float bf16[6] = {1, 1 + 0x1p-6f, 1, 65536, 0x1p-25f, -3};
    static const float f16[6] = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1, INFINITY, 0, -3};
    const iso_dtype types[] = {ISO_BF16, ISO_F16};
    iso_tensor *x = create(1, (int64_t[]){6}), *low, *wide, *back = create(1, (int64_t[]){6});
    memcpy(iso_tensor_data(x), given, sizeof(given));
    OK(iso_tensor_create(device, ISO_F64, 1, (int64_t[]){6}, &wide));
    for (int i = 0; i < 2; i++) {
        const float *want = i ? f16 : bf16;
        OK(iso_tensor_create(device, types[i], 1, (int64_t[]){6}, &low));
        OK(iso_tensor_copy(x, low));
        OK(iso_tensor_copy(low, back));
        cr_assert(memcmp(iso_tensor_data(back), want, sizeof(given)) == 0);
        OK(iso_tensor_copy(low, wide));
        for (int k = 0; k < 6; k++) cr_assert(((double *)iso_tensor_data(wide))[k] == want[k]);
        OK(iso_tensor_fill(low, 0.1));
        OK(iso_tensor_copy(low, back));
        cr_assert(((float *)iso_tensor_data(back))[5] == (i ? 0.0999755859375f : 0.10009765625f));
        iso_tensor_destroy(&low);
    }
    iso_tensor_destroy(&x), iso_tensor_destroy(&back), iso_tensor_destroy(&wide);
}

// Type and layout change at once, and a last block that is not full.
Test(tensor, types_change_between_layouts) {
    const int64_t shape[4] = {2, 21, 3, 2};
    const iso_dtype types[] = {ISO_F64, ISO_BF16, ISO_F16};
    iso_tensor *x = create(4, shape), *blocked = create(4, shape), *back = create(4, shape), *t;
    float *values = iso_tensor_data(x);
    for (int i = 0; i < 2 * 21 * 3 * 2; i++) values[i] = (float)(i - 100);
    OK(iso_tensor_resize(blocked, 4, shape, ISO_LAYOUT_BLOCKED));
    OK(iso_tensor_copy(x, blocked));
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            OK(iso_tensor_create(device, types[i], 4, shape, &t));
            OK(iso_tensor_resize(t, 4, shape, k ? ISO_LAYOUT_BLOCKED : ISO_LAYOUT_LOGICAL));
            OK(iso_tensor_copy(k ? x : blocked, t));
            OK(iso_tensor_copy(t, back));
            cr_assert(memcmp(iso_tensor_data(back), values, sizeof(float) * 252) == 0);
            OK(iso_tensor_fill(t, 2)); // and zeros where no channel is
            size_t bytes = device->ops->storage_bytes(device, types[i], 4, shape, t->layout);
            size_t size = iso_dtype_size(types[i]), filled = 0;
            for (size_t at = size - 1; at < bytes; at += size)
                filled += ((uint8_t *)t->data)[at] == 0x40;
            cr_assert(filled == 252, "%d", (int)filled);
            iso_tensor_destroy(&t);
        }
    iso_tensor_destroy(&x), iso_tensor_destroy(&blocked), iso_tensor_destroy(&back);
}

Test(tensor, copies_between_shapes_or_odd_types_are_refused) {
    iso_tensor *a = create(2, (int64_t[]){2, 3}), *b = create(2, (int64_t[]){3, 2}), *c;
    OK(iso_tensor_create(device, ISO_I32, 2, (int64_t[]){2, 3}, &c));
    cr_assert(iso_tensor_copy(a, b) == ISO_ERR_SHAPE);
    cr_assert(iso_tensor_copy(a, c) == ISO_ERR_UNSUPPORTED);
    iso_tensor_destroy(&a);
    iso_tensor_destroy(&b);
    iso_tensor_destroy(&c);
}

Test(tensor, keeps_its_device_alive) {
    iso_device *other;
    OK(iso_device_create("cpu", &other));
    iso_tensor *t;
    OK(iso_tensor_create(other, ISO_F32, 1, (int64_t[]){3}, &t));
    iso_device_destroy(&other);
    write_numbers(t);
    check_numbers(t);
    iso_tensor_destroy(&t);
}

Test(tensor, element_types_have_names_and_sizes) {
    for (int i = 0; i < ISO_DTYPE_COUNT; i++) {
        iso_dtype parsed;
        OK(iso_dtype_parse(iso_dtype_name((iso_dtype)i), &parsed));
        cr_assert(parsed == (iso_dtype)i);
    }
    cr_assert(iso_dtype_size(ISO_F32) == 4 && iso_dtype_size(ISO_BF16) == 2 &&
              iso_dtype_size(ISO_F64) == 8);
    iso_dtype parsed;
    cr_assert(iso_dtype_parse("int8", &parsed) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "bf16"));
}
