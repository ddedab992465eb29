// SPDX-License-Identifier: MIT
// Networks built from a list: the same as those built layer by layer, and refused where layers do
// not fit.
#include "common/nn_fixture.h"

#include <string.h>

TestSuite(sequential_build, .timeout = 60);

static const int64_t sample[3] = {2, 9, 8};

static void add(iso_module *net, const char *name, iso_status created, iso_module **layer) {
    cr_ok(created);
    cr_ok(iso_sequential_add_take(net, name, *layer));
}

// 2 x 9 x 8, conv2d 3: 4 x 7 x 6, pool 2: 4 x 3 x 3, flatten: 36.
static iso_module *by_hand(iso_device *device) {
    iso_module *net, *layer;
    iso_rng rng = {.seed = 7};
    iso_conv2d_config conv = {2, 4, .kernel_size = {3, 3}};
    cr_ok(iso_sequential_create(device, &net));
    add(net, "conv1", iso_conv2d_create(device, &conv, &rng, &layer), &layer);
    add(net, NULL, iso_relu_create(device, &layer), &layer);
    add(net, NULL, iso_max_pool2d_create(device, 2, 2, &layer), &layer);
    add(net, NULL, iso_dropout_create(device, 0.4, &rng, &layer), &layer);
    add(net, NULL, iso_flatten_create(device, &layer), &layer);
    add(net, "fc1", iso_linear_create(device, 36, 6, true, &rng, &layer), &layer);
    add(net, NULL, iso_linear_create(device, 6, 3, true, &rng, &layer), &layer);
    return net;
}

static const iso_layer layers[] = {
    {.kind = ISO_CONV2D, .out = 4, .size = 3, .relu = true, .name = "conv1"},
    {.kind = ISO_MAX_POOL2D, .size = 2},
    {.kind = ISO_DROPOUT, .p = 0.4},
    {.kind = ISO_FLATTEN},
    {.kind = ISO_LINEAR, .out = 6, .name = "fc1"},
    {.kind = ISO_LINEAR, .out = 3}};

static iso_tensor *forward(iso_module *net, iso_tensor *images) {
    iso_tensor *out;
    cr_ok(iso_module_forward(net, images, &out));
    return out;
}

// In training mode, so that the dropout's mask counts.
Test(sequential_build, gives_what_building_by_hand_gives) {
    iso_device *device = open_cpu();
    iso_module *built, *expected = by_hand(device);
    iso_rng rng = {.seed = 7};
    iso_parameter_list a, b;
    const int64_t shape[4] = {5, 2, 9, 8};
    iso_tensor *images = random_tensor(device, 4, shape, 3);
    cr_ok(iso_sequential_build(device, sample, layers, 6, &rng, &built));
    cr_assert(same_values(forward(built, images), forward(expected, images)));
    cr_ok(iso_module_parameters(built, &a));
    cr_ok(iso_module_parameters(expected, &b));
    cr_assert(a.count == 6 && b.count == 6);
    for (int i = 0; i < 6; i++) cr_assert_str_eq(a.name[i], b.name[i]);
    iso_parameter_list_destroy(&a);
    iso_parameter_list_destroy(&b);
    iso_module_destroy(&built);
    iso_module_destroy(&expected);
    iso_tensor_destroy(&images);
    close_cpu(&device);
}

// What a list gives for a sample equals what its layers say that they give for it.
Test(sequential_build, strides_paddings_and_averages_give_the_sizes_that_follow) {
    static const iso_layer strided[] = {
        {.kind = ISO_CONV2D, .out = 5, .size = 3, .stride = 2, .padding = 1}, // 5 x 5 x 4
        {.kind = ISO_MAX_POOL2D, .size = 3, .stride = 2, .padding = 1},       // 5 x 3 x 2
        {.kind = ISO_CONV2D, .out = 6, .size = 2, .padding = 1},              // 6 x 4 x 3
        {.kind = ISO_AVG_POOL2D, .size = 2, .stride = 1},                     // 6 x 3 x 2
        {.kind = ISO_AVG_POOL2D, .size = 2, .padding = 1},                    // 6 x 2 x 2
        {.kind = ISO_ADAPTIVE_AVG_POOL2D, .size = 3},                         // 6 x 3 x 3
        {.kind = ISO_FLATTEN},
        {.kind = ISO_LINEAR, .out = 2}};
    static const int64_t sizes[][4] = {{3, 5, 5, 4}, {3, 5, 3, 2}, {3, 6, 4, 3}, {3, 6, 3, 2},
                                       {3, 6, 2, 2}, {3, 6, 3, 3}, {3, 54},      {3, 2}};
    iso_device *device = open_cpu();
    const int64_t shape[4] = {3, 2, 9, 8};
    iso_tensor *images = random_tensor(device, 4, shape, 3);
    for (int count = 1; count <= 8; count++) {
        iso_module *net;
        iso_rng rng = {.seed = 1};
        cr_ok(iso_sequential_build(device, sample, strided, count, &rng, &net));
        iso_tensor *out = forward(net, images);
        for (int i = 0; i < iso_tensor_ndim(out); i++)
            cr_assert_eq(iso_tensor_shape(out)[i], sizes[count - 1][i]);
        iso_module_destroy(&net);
    }
    iso_tensor_destroy(&images);
    close_cpu(&device);
}

// Rows that are flat from the start: flattening them changes nothing.
Test(sequential_build, takes_flat_samples) {
    iso_device *device = open_cpu();
    iso_module *net;
    iso_rng rng = {.seed = 1};
    const int64_t flat[3] = {1, 1, 6}, shape[4] = {2, 1, 1, 6};
    iso_tensor *rows = random_tensor(device, 4, shape, 3);
    cr_ok(iso_sequential_build(device, flat, layers + 3, 3, &rng, &net));
    cr_assert_eq(iso_tensor_shape(forward(net, rows))[1], 3);
    iso_module_destroy(&net);
    iso_tensor_destroy(&rows);
    close_cpu(&device);
}

static void refused(const iso_layer *list, int count, iso_status status, const char *words) {
    iso_device *device = open_cpu();
    iso_module *net = NULL;
    iso_rng rng = {.seed = 1};
    cr_fails(iso_sequential_build(device, sample, list, count, &rng, &net), status, words);
    cr_assert_null(net);
    close_cpu(&device);
}

Test(sequential_build, refuses_layers_that_do_not_fit) {
    const iso_layer large[] = {{.kind = ISO_CONV2D, .out = 4, .size = 3},
                               {.kind = ISO_CONV2D, .out = 4, .size = 7}};
    refused(large, 2, ISO_ERR_SHAPE, "layer 1, a Conv2d, cannot take 4 x 7 x 6");
    const iso_layer pool[] = {{.kind = ISO_MAX_POOL2D, .size = 9}};
    refused(pool, 1, ISO_ERR_SHAPE, "layer 0, a MaxPool2d, cannot take 2 x 9 x 8");
    const iso_layer avg[] = {{.kind = ISO_AVG_POOL2D, .size = 11, .padding = 1}};
    refused(avg, 1, ISO_ERR_SHAPE, "layer 0, an AvgPool2d, cannot take 2 x 9 x 8");
    const iso_layer padded[] = {{.kind = ISO_MAX_POOL2D, .size = 3, .padding = 2}};
    refused(padded, 1, ISO_ERR_ARG, "the padding must be at most half the window");
    const iso_layer rows[] = {{.kind = ISO_FLATTEN}, {.kind = ISO_ADAPTIVE_AVG_POOL2D, .size = 1}};
    refused(rows, 2, ISO_ERR_SHAPE, "layer 1, an AdaptiveAvgPool2d, cannot take 144 features");
    const iso_layer images[] = {{.kind = ISO_DROPOUT}, {.kind = ISO_LINEAR, .out = 3}};
    refused(images, 2, ISO_ERR_SHAPE, "layer 1, a Linear, cannot take 2 x 9 x 8");
    const iso_layer flat[] = {{.kind = ISO_FLATTEN}, {.kind = ISO_CONV2D, .out = 4, .size = 3}};
    refused(flat, 2, ISO_ERR_SHAPE, "layer 1, a Conv2d, cannot take 144 features");
    const iso_layer nothing[] = {{.kind = ISO_FLATTEN}, {.kind = ISO_LINEAR}};
    refused(nothing, 2, ISO_ERR_ARG, "");
    const iso_layer no_window[] = {{.kind = ISO_MAX_POOL2D}};
    refused(no_window, 1, ISO_ERR_ARG, "");
    const iso_layer unknown[] = {{.kind = (iso_layer_kind)99}};
    refused(unknown, 1, ISO_ERR_ARG, "layer 0 has a kind that does not exist");
    const iso_layer twice[] = {{.kind = ISO_FLATTEN, .name = "a"},
                               {.kind = ISO_FLATTEN, .name = "a"}};
    refused(twice, 2, ISO_ERR_ARG, "\"a\"");
}
