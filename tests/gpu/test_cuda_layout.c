// SPDX-License-Identifier: MIT
// Tensors of a GPU with their channels last: copies between layouts and types, and which layout
// convolutions are given.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "device/cuda/runtime/cuda_impl.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_layout, .timeout = 120, .fini = balance_check);

static const iso_dtype types[] = {ISO_F32, ISO_F64, ISO_BF16, ISO_F16};

static target open_cuda(iso_dtype dtype) {
    target on = {.dtype = dtype};
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[dtype];
    return on;
}

static size_t bytes_of(const iso_tensor *t) { return (size_t)t->count * iso_dtype_size(t->dtype); }

// The bytes as they lie in memory, whatever they mean.
static char *raw(const iso_tensor *t) {
    iso_tensor flat = *t;
    char *out = malloc(bytes_of(t));
    flat.layout = ISO_LAYOUT_LOGICAL;
    OK(t->device->ops->to_host(t->device, &flat, out));
    return out;
}

static iso_tensor *tensor_of(const target *on, iso_dtype dtype, int ndim, const int64_t *shape,
                             iso_layout layout) {
    iso_tensor *t;
    OK(iso_tensor_create(on->device, dtype, ndim, shape, &t));
    OK(iso_tensor_resize(t, ndim, shape, layout));
    return t;
}

// Tiles that are full, cut off and of one line; a line of 16 bytes; orders that are the same.
static const int64_t shapes[][4] = {{2, 32, 8, 8}, {3, 33, 5, 7}, {1, 70, 3, 11}, {2, 2, 9, 9},
                                    {2, 4, 31, 3}, {2, 8, 17, 5}, {4, 5, 1, 1},   {4, 1, 5, 3},
                                    {3, 50, 1, 2}, {1, 2, 300, 2}};

// x, with its channels last, holds the bytes of logical order where the definition puts them.
static void check_order(const iso_tensor *x, const char *logical) {
    size_t size = iso_dtype_size(x->dtype);
    int64_t channels = x->shape[1], plane = x->shape[2] * x->shape[3];
    char *data = raw(x);
    for (int64_t n = 0; n < x->shape[0]; n++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t p = 0; p < plane; p++)
                cr_assert(memcmp(data + (size_t)((n * plane + p) * channels + c) * size,
                                 logical + (size_t)((n * channels + c) * plane + p) * size,
                                 size) == 0,
                          "%s: element %lld %lld %lld", iso_dtype_name(x->dtype), (long long)n,
                          (long long)c, (long long)p);
    free(data);
}

Test(cuda_layout, copies_put_every_element_where_it_belongs_and_back) {
    for (int i = 0; i < COUNT(shapes) * COUNT(types); i++) {
        target on = open_cuda(types[i % COUNT(types)]);
        const iso_device_ops *ops = on.device->ops;
        const int64_t *shape = shapes[i / COUNT(types)];
        int64_t rows[2] = {shape[0], shape[1] * shape[2] * shape[3]};
        pair x = pair_create(&on, 4, shape, ISO_LAYOUT_LOGICAL, 1000);
        iso_tensor *last = tensor_of(&on, on.dtype, 4, shape, ISO_LAYOUT_BLOCKED);
        iso_tensor *again = tensor_of(&on, on.dtype, 4, shape, ISO_LAYOUT_BLOCKED);
        iso_tensor *flat = tensor_of(&on, on.dtype, 2, rows, ISO_LAYOUT_LOGICAL);
        char *logical = raw(x.t);
        OK(ops->copy(on.device, x.t, last));
        check_order(last, logical);
        OK(ops->copy(on.device, last, flat)); // as Flatten does, and back as its backward
        char *flattened = raw(flat);
        cr_assert(memcmp(logical, flattened, bytes_of(flat)) == 0, "flattened");
        OK(ops->copy(on.device, flat, again));
        check_order(again, logical);
        OK(ops->fill(on.device, again, 0));
        OK(ops->copy(on.device, last, again)); // of one layout: as it lies
        check_order(again, logical);
        OK(ops->fill(on.device, x.t, 0));
        OK(ops->copy(on.device, again, x.t));
        check_pair(&on, &x, 0, "the copy of a copy");
        free(logical), free(flattened);
        iso_tensor_destroy(&last), iso_tensor_destroy(&again), iso_tensor_destroy(&flat);
        pair_destroy(&x);
        iso_device_destroy(&on.device);
    }
}

// Between two shapes that both have their channels last, it goes by logical order.
Test(cuda_layout, a_copy_into_another_shape_keeps_logical_order) {
    static const int64_t one[4] = {2, 6, 4, 5}, other[4] = {4, 3, 10, 2};
    target on = open_cuda(ISO_F32);
    pair x = pair_create(&on, 4, one, ISO_LAYOUT_BLOCKED, 1000);
    iso_tensor *to = tensor_of(&on, ISO_F32, 4, other, ISO_LAYOUT_BLOCKED);
    iso_tensor *logical = tensor_of(&on, ISO_F32, 4, one, ISO_LAYOUT_LOGICAL);
    OK(on.device->ops->copy(on.device, x.t, to));
    OK(on.device->ops->copy(on.device, x.t, logical));
    char *data = raw(logical);
    check_order(to, data);
    free(data);
    iso_tensor_destroy(&to), iso_tensor_destroy(&logical);
    pair_destroy(&x);
    iso_device_destroy(&on.device);
}

// Values in logical order, as doubles: as the pair rounds them to another type.
static void check_converted(const target *on, const pair *x, iso_dtype dtype, iso_layout layout) {
    target other = {on->device, dtype, on->device->kernels[dtype]};
    pair y = {tensor_of(on, dtype, x->t->ndim, x->t->shape, layout), x->d};
    OK(on->device->ops->copy(on->device, x->t, y.t));
    // Half a unit in the last place of the narrower type.
    static const double tolerance[] = {
        [ISO_F32] = 0x1p-24, [ISO_F64] = 0, [ISO_BF16] = 1.0 / 511, [ISO_F16] = 1.0 / 4095};
    check_pair(&other, &y, tolerance[dtype], "what was converted");
    iso_tensor_destroy(&y.t);
}

Test(cuda_layout, a_copy_may_change_the_type_too) {
    static const int64_t images[4] = {3, 33, 9, 10}, weights[4] = {6, 35, 3, 3};
    for (int i = 0; i < COUNT(types) * COUNT(types); i++)
        for (int flags = 0; flags < 8; flags++) {
            iso_dtype to = types[i / COUNT(types)];
            target on = open_cuda(types[i % COUNT(types)]);
            pair x = pair_create(&on, 4, flags & 4 ? weights : images, layouts[flags & 1], 1000);
            check_converted(&on, &x, to, layouts[flags >> 1 & 1]);
            pair_destroy(&x);
            iso_device_destroy(&on.device);
        }
}

// To nearest, ties to even: what the library rounds on its way to channels last has the bits of
// what it rounds in logical order.
static void round_weights(iso_dtype half) {
    static const int64_t weights[4] = {5, 70, 3, 3};
    target on = open_cuda(ISO_F32);
    const iso_device_ops *ops = on.device->ops;
    pair w = pair_create(&on, 4, weights, ISO_LAYOUT_LOGICAL, 9973);
    iso_tensor *logical = tensor_of(&on, half, 4, weights, ISO_LAYOUT_LOGICAL);
    iso_tensor *last = tensor_of(&on, half, 4, weights, ISO_LAYOUT_BLOCKED);
    OK(ops->copy(on.device, w.t, logical));
    OK(ops->copy(on.device, w.t, last));
    char *bits = raw(logical);
    check_order(last, bits);
    free(bits);
    iso_tensor_destroy(&logical), iso_tensor_destroy(&last);
    pair_destroy(&w);
    iso_device_destroy(&on.device);
}
Test(cuda_layout, weights_are_rounded_alike_in_both_layouts) {
    round_weights(ISO_BF16);
    round_weights(ISO_F16);
}

// Forward and backward of channels last: single pixels are in logical order.
Test(cuda_layout, flatten_copies_only_what_lies_in_another_order) {
    target on = open_cuda(ISO_F32);
    for (int side = 1; side <= 2; side++) {
        const int64_t shape[4] = {3, 8, side, side};
        pair x = pair_create(&on, 4, shape, ISO_LAYOUT_LOGICAL, 997);
        iso_tensor *last = tensor_of(&on, ISO_F32, 4, shape, ISO_LAYOUT_BLOCKED), *out, *back;
        iso_tensor *again = tensor_of(&on, ISO_F32, 4, shape, ISO_LAYOUT_LOGICAL);
        iso_module *flatten;
        OK(iso_tensor_copy(x.t, last));
        OK(iso_flatten_create(on.device, &flatten));
        long long before = on.device->launches;
        OK(iso_module_forward(flatten, last, &out));
        cr_assert_eq(on.device->launches - before, side - 1);
        char *want = raw(x.t), *flat = raw(out);
        cr_assert(memcmp(want, flat, bytes_of(out)) == 0, "forward, side %d", side);
        before = on.device->launches;
        OK(iso_module_backward(flatten, out, &back));
        cr_assert_eq(on.device->launches - before, side - 1);
        cr_assert(back->layout == ISO_LAYOUT_BLOCKED);
        OK(iso_tensor_copy(back, again));
        char *got = raw(again);
        cr_assert(memcmp(want, got, bytes_of(again)) == 0, "backward, side %d", side);
        free(want), free(flat), free(got);
        iso_tensor_destroy(&last), iso_tensor_destroy(&again);
        iso_module_destroy(&flatten);
        pair_destroy(&x);
    }
    iso_device_destroy(&on.device);
}

// A weight and a bias, beside each other in memory as in an arena: of f32, and rounded.
typedef struct layer {
    iso_tensor *memory, w, b;
} layer;

static layer new_layer(const target *on, iso_dtype dtype, const int64_t *shape,
                       iso_layout of_weight) {
    int64_t weights = shape[0] * shape[1] * shape[2] * shape[3], count = weights + shape[0];
    layer l = {.memory = tensor_of(on, dtype, 1, &count, ISO_LAYOUT_LOGICAL)};
    l.w = l.b = *l.memory;
    l.w.ndim = 4, l.w.count = weights, l.w.layout = of_weight;
    memcpy(l.w.shape, shape, 4 * sizeof(*shape));
    l.b.shape[0] = l.b.count = shape[0];
    l.b.data = (char *)l.b.data + (size_t)weights * iso_dtype_size(dtype);
    return l;
}

// As two copies do it, wherever the bias begins: weights of one tap, of a few, and of so many that
// they go another way.
static void round_layers(iso_dtype half) {
    static const int64_t weights[][4] = {{5, 3, 1, 1},   {8, 16, 1, 1},  {24, 70, 3, 3},
                                         {700, 8, 1, 1}, {3, 1, 5, 5},   {9, 8, 9, 9},
                                         {8, 300, 7, 7}, {40, 30, 1, 1}, {1, 2, 2, 1}};
    target on = open_cuda(ISO_F32);
    for (int i = 0; i < COUNT(weights) * COUNT(layouts); i++) {
        const int64_t *shape = weights[i / COUNT(layouts)];
        iso_layout layout = layouts[i % COUNT(layouts)];
        layer from = new_layer(&on, ISO_F32, shape, ISO_LAYOUT_LOGICAL);
        layer alone = new_layer(&on, half, shape, layout);
        layer both = new_layer(&on, half, shape, layout);
        pair x = pair_create(&on, 1, from.memory->shape, ISO_LAYOUT_LOGICAL, 9973);
        OK(iso_tensor_copy(x.t, from.memory));
        OK(iso_tensor_copy(&from.w, &alone.w));
        OK(iso_tensor_copy(&from.b, &alone.b));
        OK(iso_tensor_fill(both.memory, NAN));
        const iso__rounding of[] = {{&from.w, &both.w}, {&from.b, &both.b}};
        OK(on.device->kernels[half]->round_many(on.device, 2, of));
        char *want = raw(alone.memory), *got = raw(both.memory);
        cr_assert(memcmp(want, got, bytes_of(alone.memory)) == 0, "weights %d", i);
        free(want), free(got);
        iso_tensor_destroy(&from.memory), iso_tensor_destroy(&alone.memory);
        iso_tensor_destroy(&both.memory);
        pair_destroy(&x);
    }
    iso_device_destroy(&on.device);
}
Test(cuda_layout, a_weight_and_its_bias_are_rounded_as_alone) {
    round_layers(ISO_BF16);
    round_layers(ISO_F16);
}

// The input of an Autocast, beside the weights: it keeps the order in which it lies.
static void round_images(iso_dtype half) {
    static const int64_t images[4] = {3, 16, 4, 5};
    target on = open_cuda(ISO_F32);
    for (int i = 0; i < COUNT(layouts) * COUNT(layouts); i++) {
        pair x = pair_create(&on, 4, images, layouts[i / COUNT(layouts)], 9973);
        iso_tensor *alone = tensor_of(&on, half, 4, images, layouts[i % COUNT(layouts)]);
        iso_tensor *many = tensor_of(&on, half, 4, images, layouts[i % COUNT(layouts)]);
        const iso__rounding of[] = {{x.t, many}};
        OK(iso_tensor_copy(x.t, alone));
        OK(on.device->kernels[half]->round_many(on.device, 1, of));
        char *want = raw(alone), *got = raw(many);
        cr_assert(memcmp(want, got, bytes_of(alone)) == 0, "layouts %d", i);
        free(want), free(got);
        iso_tensor_destroy(&alone), iso_tensor_destroy(&many);
        pair_destroy(&x);
    }
    iso_device_destroy(&on.device);
}
Test(cuda_layout, images_are_rounded_in_either_order_as_by_a_copy) {
    round_images(ISO_BF16);
    round_images(ISO_F16);
}

Test(cuda_layout, what_cannot_be_converted_is_refused) {
    static const int64_t shape[4] = {2, 3, 4, 5};
    target on = open_cuda(ISO_F32);
    iso_tensor *from = tensor_of(&on, ISO_I64, 4, shape, ISO_LAYOUT_LOGICAL);
    iso_tensor *to = tensor_of(&on, ISO_F32, 4, shape, ISO_LAYOUT_BLOCKED);
    cr_expect(on.device->ops->copy(on.device, from, to) == ISO_ERR_UNSUPPORTED);
    iso_tensor_destroy(&from), iso_tensor_destroy(&to);
    iso_device_destroy(&on.device);
}

// ---- The layout of what convolutions give --------------------------------------------------------

static bool prefers_last(const target *on, iso_dtype dtype, int64_t channels, const char *math) {
    int64_t shape[4] = {2, channels, 5, 5};
    OK(iso_device_set_math(on->device, math));
    return on->device->ops->preferred_layout(on->device, dtype, 4, shape) == ISO_LAYOUT_BLOCKED;
}

Test(cuda_layout, convolutions_give_channels_last_where_tensor_cores_take_them) {
    target on = open_cuda(ISO_F32);
    if (prefers_last(&on, ISO_BF16, 8, "f32") == false) // loads the library
        cr_skip_test("convolutions go by cuBLAS here");
    cr_expect(iso__cuda_of(on.device)->dnn);
    cr_expect(prefers_last(&on, ISO_F32, 4, "tf32") && prefers_last(&on, ISO_F32, 12, "bf16"));
    cr_expect(!prefers_last(&on, ISO_F32, 6, "tf32") && !prefers_last(&on, ISO_F32, 64, "f32"));
    cr_expect(!prefers_last(&on, ISO_BF16, 12, "bf16") && !prefers_last(&on, ISO_F64, 64, "tf32"));
    iso_device_destroy(&on.device);
    setenv("ISO_CUDA_CONV", "gemm", 1);
    on = open_cuda(ISO_F32);
    cr_expect(!prefers_last(&on, ISO_BF16, 64, "bf16") && !prefers_last(&on, ISO_F32, 64, "tf32"));
    iso_device_destroy(&on.device);
}
