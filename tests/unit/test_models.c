// SPDX-License-Identifier: MIT
// The example networks: sizes and names as their sources have them, and which images they take.
#include "common/balance.h"
#include "common/nn_fixture.h"
#include "examples/support/models.h"

#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

static iso_device *device;

static void open_device(void) { device = open_cpu(); }
static void clean_up(void) {
    iso_device_destroy(&device);
    balance_check();
}
TestSuite(models, .init = open_device, .fini = clean_up, .timeout = 120);

static iso_module *create(const char *name, int64_t channels, int64_t size, int classes) {
    iso_dataset_info info = {
        .channels = channels, .height = size, .width = size, .classes = classes};
    iso_rng rng = {.seed = 1};
    iso_module *model;
    cr_ok(model_create(name, device, &info, false, &rng, &model));
    return model;
}

static void expect_count(const char *name, int64_t channels, int64_t size, int classes,
                         int64_t parameters) {
    iso_module *model = create(name, channels, size, classes);
    cr_assert_eq(iso_module_parameter_count(model), parameters, "%s: %lld", name,
                 (long long)iso_module_parameter_count(model));
    iso_module_destroy(&model);
}

// sum(p.numel() for p in model.parameters()) of the networks in PyTorch's documentation.
Test(models, lenet_is_that_of_pytorch_s_tutorials) {
    expect_count("lenet", 3, 32, 10, 62006);
    expect_count("lenet", 1, 28, 10, 44426);
}

// torchvision.models.resnet18() has 11 689 512; with a 3x3 stem and 10 classes it is the network
// that is usual for CIFAR-10.
Test(models, resnet18_has_torchvision_s_parameters) {
    expect_count("resnet18", 3, 64, 1000, 11689512);
    expect_count("resnet18", 3, 32, 10, 11173962);
    expect_count("resnet18", 1, 28, 10, 11173962 - 2 * 64 * 9);
}

// torchvision.models.resnet50() has 25 557 032; the 3x3 stem has 3 * 64 * (49 - 9) less, and 10
// classes in place of 1000 need 990 * 2049 less.
Test(models, resnet50_has_torchvision_s_parameters) {
    expect_count("resnet50", 3, 64, 1000, 25557032);
    expect_count("resnet50", 3, 32, 10, 25557032 - 3 * 64 * (49 - 9) - 990 * 2049);
}

static double root_mean_square(const iso_state_dict *dict, const char *name) {
    iso_tensor *t = iso_state_dict_find(dict, name);
    const float *x = iso_tensor_data(t);
    double sum = 0;
    for (int64_t i = 0; i < iso_tensor_count(t); i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)iso_tensor_count(t));
}

static void expect_shape(const iso_state_dict *dict, const char *name, int64_t out, int64_t in,
                         int64_t size) {
    iso_tensor *t = iso_state_dict_find(dict, name);
    cr_assert_not_null(t, "%s", name);
    const int64_t *shape = iso_tensor_shape(t);
    cr_assert(shape[0] == out && shape[1] == in && shape[2] == size, "%s", name);
}

// Bottleneck and ResNet._make_layer: blocks of 3, 4, 6 and 3; only the first of a stage projects.
Test(models, resnet50_has_torchvision_s_names_and_shapes) {
    iso_module *model = create("resnet50", 3, 64, 1000);
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(model, &dict));
    cr_assert_eq(dict.count, 320);
    expect_shape(&dict, "layer1.0.conv1.weight", 64, 64, 1);
    expect_shape(&dict, "layer1.0.downsample.0.weight", 256, 64, 1);
    expect_shape(&dict, "layer1.2.conv1.weight", 64, 256, 1);
    expect_shape(&dict, "layer2.3.conv2.weight", 128, 128, 3);
    expect_shape(&dict, "layer3.5.conv3.weight", 1024, 256, 1);
    expect_shape(&dict, "layer4.0.downsample.0.weight", 2048, 1024, 1);
    cr_assert_not_null(iso_state_dict_find(&dict, "layer4.2.bn3.running_var"));
    cr_assert_null(iso_state_dict_find(&dict, "layer4.1.downsample.0.weight"));
    cr_assert_null(iso_state_dict_find(&dict, "layer4.3.conv1.weight"));
    cr_assert_float_eq(root_mean_square(&dict, "layer4.1.conv2.weight"), sqrt(2.0 / (512 * 9)),
                       2e-4);
    cr_assert_float_eq(root_mean_square(&dict, "layer1.1.conv3.weight"), sqrt(2.0 / 256), 3e-3);
    cr_assert_float_eq(root_mean_square(&dict, "layer3.0.bn3.weight"), 1, 0);
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
}

Test(models, resnet18_has_torchvision_s_names) {
    iso_module *model = create("resnet18", 3, 64, 1000);
    iso_state_dict dict;
    static const char *const first[] = {
        "conv1.weight",         "bn1.weight",      "bn1.bias",
        "bn1.running_mean",     "bn1.running_var", "bn1.num_batches_tracked",
        "layer1.0.conv1.weight"};
    cr_ok(iso_module_state_dict(model, &dict));
    cr_assert_eq(dict.count, 122);
    for (int i = 0; i < 7; i++) cr_assert_str_eq(dict.item[i].name, first[i]);
    cr_assert_str_eq(dict.item[121].name, "fc.bias");
    cr_assert_not_null(iso_state_dict_find(&dict, "layer2.0.downsample.1.running_var"));
    cr_assert_null(iso_state_dict_find(&dict, "layer2.1.downsample.0.weight"));
    cr_assert_eq(iso_tensor_ndim(iso_state_dict_find(&dict, "bn1.num_batches_tracked")), 0);
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
}

// ResNet.__init__: kaiming_normal_(mode="fan_out") for convolutions, 1 and 0 for norms; the linear
// layer keeps U(-b, b) with b = 1/sqrt(512).
Test(models, resnet18_has_torchvision_s_initial_values) {
    iso_module *model = create("resnet18", 3, 64, 1000);
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(model, &dict));
    cr_assert_float_eq(root_mean_square(&dict, "layer4.1.conv2.weight"), sqrt(2.0 / (512 * 9)),
                       2e-4);
    cr_assert_float_eq(root_mean_square(&dict, "layer2.0.downsample.0.weight"), sqrt(2.0 / 128),
                       3e-3);
    cr_assert_float_eq(root_mean_square(&dict, "layer3.0.bn2.weight"), 1, 0);
    cr_assert_float_eq(root_mean_square(&dict, "layer3.0.bn2.bias"), 0, 0);
    cr_assert_float_eq(root_mean_square(&dict, "fc.weight"), sqrt(1.0 / 512 / 3), 3e-4);
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&model);
}

// ---- Images ---------------------------------------------------------------------------------------

static void forward(const char *name, int64_t channels, int64_t size) {
    iso_module *model = create(name, channels, size, 7);
    iso_tensor *x = random_tensor(device, 4, (int64_t[]){2, channels, size, size}, 1), *y, *dx;
    cr_ok(iso_module_forward(model, x, &y));
    cr_assert_eq(iso_tensor_ndim(y), 2);
    cr_assert_eq(iso_tensor_shape(y)[1], 7);
    iso_tensor *dy = filled_tensor(device, 2, (int64_t[]){2, 7}, 1);
    cr_ok(iso_module_backward(model, dy, &dx));
    iso_tensor_destroy(&dy);
    iso_tensor_destroy(&x);
    iso_module_destroy(&model);
}

Test(models, what_fits_is_what_can_be_built_and_run) {
    static const char *const names[] = {"mlp", "cnn", "lenet"};
    for (int i = 0; i < 3; i++) {
        for (int64_t size = 1; size <= 20; size++) {
            iso_dataset_info info = {.channels = 2, .height = size, .width = size, .classes = 7};
            iso_rng rng = {.seed = 1};
            iso_module *model = NULL;
            bool fits = model_fits(names[i], &info);
            iso_status status = model_create(names[i], device, &info, true, &rng, &model);
            cr_assert_eq(status, fits ? ISO_OK : ISO_ERR_SHAPE, "%s %d", names[i], (int)size);
            iso_module_destroy(&model);
            if (fits) forward(names[i], 2, size);
        }
    }
}

Test(models, resnet18_takes_small_and_large_images) {
    forward("resnet18", 1, 5);
    forward("resnet18", 3, 33);
    forward("resnet18", 3, 64);
}

// The stage before the last has shortcuts of stride 2, also of a side that is odd.
Test(models, resnet50_takes_small_and_large_images) {
    forward("resnet50", 1, 9);
    forward("resnet50", 3, 64);
}

Test(models, an_unknown_name_is_refused_with_those_that_are_known) {
    iso_dataset_info info = {.channels = 1, .height = 28, .width = 28, .classes = 10};
    iso_rng rng = {.seed = 1};
    iso_module *model;
    cr_fails(model_create("vgg", device, &info, false, &rng, &model), ISO_ERR_ARG,
             "unknown model vgg: use mlp|cnn|lenet|resnet18|resnet50");
}

// ---- Activations --------------------------------------------------------------------------------

static iso_module *create_with(const char *name, const char *activations) {
    model_options options = {.name = name, .activations = activations};
    iso_dataset_info info = {.channels = 1, .height = 28, .width = 28, .classes = 10};
    iso_rng rng = {.seed = 1};
    iso_module *model;
    cr_ok(model_create_with(&options, device, &info, &rng, &model));
    return model;
}

// Whether both compute the same from the same image, to the last bit.
static bool agree(iso_module *a, iso_module *b) {
    iso_tensor *x = random_tensor(device, 4, (int64_t[]){2, 1, 28, 28}, 3), *y[2];
    cr_ok(iso_module_forward(a, x, &y[0]));
    cr_ok(iso_module_forward(b, x, &y[1]));
    bool same = same_values(y[0], y[1]);
    iso_tensor_destroy(&x);
    return same;
}

// The parameters are those of the network with relu, in name and value.
Test(models, activations_take_the_place_of_relu) {
    static const char *const names[] = {"mlp", "cnn", "lenet"}, *const last[] = {"2", "3", "4"};
    for (int i = 0; i < 3; i++) {
        char text[128], expected[128];
        iso_module *plain = create_with(names[i], NULL), *relu = create_with(names[i], "relu");
        iso_module *elu = create_with(names[i], "elu"), *both = create_with(names[i], "elu,relu");
        iso_module *act;
        cr_assert(agree(plain, relu) && agree(elu, both) && !agree(plain, elu));
        cr_ok(model_activations_text(relu, text, sizeof(text)));
        cr_assert_str_eq(text, "");
        for (int k = 1; k <= last[i][0] - '0'; k++) {
            snprintf(expected, sizeof(expected), "act%d", k);
            cr_ok(iso_module_get_submodule(both, expected, &act));
            cr_ok(iso_choice_set(act, 1));
        }
        cr_fails(iso_module_get_submodule(both,
                                          i == 0   ? "act3"
                                          : i == 1 ? "act4"
                                                   : "act5",
                                          &act),
                 ISO_ERR_ARG, "act");
        cr_assert(agree(plain, both));
        cr_ok(model_activations_text(both, text, sizeof(text)));
        cr_assert_eq(strncmp(text, "act1 relu, act2 relu", 20), 0);
        iso_module_destroy(&plain), iso_module_destroy(&relu);
        iso_module_destroy(&elu), iso_module_destroy(&both);
    }
}

Test(models, unknown_activations_are_refused) {
    static const char *const wrong[] = {"",
                                        "relu,",
                                        ",relu",
                                        "relu, elu",
                                        "ReLU",
                                        "reluelu",
                                        "elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,elu,"
                                        "elu,elu,elu"};
    iso_dataset_info info = {.channels = 1, .height = 28, .width = 28, .classes = 10};
    iso_rng rng = {.seed = 1};
    iso_module *model;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        model_options options = {.name = "mlp", .activations = wrong[i]};
        cr_fails(model_create_with(&options, device, &info, &rng, &model), ISO_ERR_ARG,
                 "give one or more of relu");
    }
    model_options resnet = {.name = "resnet18", .activations = "elu"};
    cr_fails(model_create_with(&resnet, device, &info, &rng, &model), ISO_ERR_ARG,
             "cannot be chosen");
}
