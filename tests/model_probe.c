// SPDX-License-Identifier: MIT
// The logits of an example network: model_probe MODEL CLASSES IN OUT SAVE|LOAD|TRAIN FILE. IN holds
// the images x[N, C, H, W]; OUT gets their logits y in evaluation mode. SAVE: after one forward in
// training mode, which fills running statistics, the network is written to FILE; LOAD: it is read
// from FILE. TRAIN: it makes steps of AdamW with the gradient dy[N, CLASSES], which IN holds too,
// and is written to FILE, the optimizer to FILE.optimizer, before the last one.
#include "examples/support/models.h"

#include <isotherm.h>
#include <stdlib.h>
#include <string.h>

static void check(iso_status status) {
    if (status >= 0) return;
    iso_error_print(stderr);
    exit(EXIT_FAILURE);
}

static iso_device *device;

static iso_module *build(const char *name, iso_tensor *x, int classes) {
    const int64_t *shape = iso_tensor_shape(x);
    iso_dataset_info info = {
        .channels = shape[1], .height = shape[2], .width = shape[3], .classes = classes};
    iso_rng rng = {.seed = 5};
    iso_module *model;
    check(model_create(name, device, &info, false, &rng, &model));
    return model;
}

static void save(iso_module *model, iso_tensor *x, const char *path) {
    iso_state_dict dict;
    iso_tensor *y;
    check(iso_module_forward(model, x, &y));
    check(iso_module_state_dict(model, &dict));
    check(iso_state_dict_save(&dict, path));
    iso_state_dict_destroy(&dict);
}

static void load(iso_module *model, const char *path) {
    iso_state_dict dict;
    check(iso_state_dict_read(path, device, &dict));
    check(iso_module_load_state_dict(model, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
}

static void save_optimizer(iso_optimizer *optimizer, const char *path) {
    char name[4096];
    iso_state_dict dict;
    snprintf(name, sizeof(name), "%s.optimizer", path);
    check(iso_optimizer_state_dict(optimizer, &dict));
    check(iso_state_dict_save(&dict, name));
    iso_state_dict_destroy(&dict);
}

static void train(iso_module *model, iso_tensor *x, iso_tensor *dy, const char *path) {
    iso_hyper hyper = iso_hyper_default(ISO_ADAMW);
    iso_optimizer *optimizer;
    iso_tensor *y, *gradient;
    hyper.lr = 0.01; // none of these is a default
    hyper.beta1 = 0.8;
    hyper.weight_decay = 0.3;
    check(iso_optimizer_create(ISO_ADAMW, model, &hyper, &optimizer));
    check(iso_tensor_create(device, ISO_F32, 2, iso_tensor_shape(dy), &gradient));
    for (int step = 0; step < 4; step++) {
        if (step == 3) {
            save(model, x, path);
            save_optimizer(optimizer, path);
        }
        iso_optimizer_zero_grad(optimizer);
        check(iso_module_forward(model, x, &y));
        check(iso_tensor_copy(dy, gradient)); // backward consumes it
        check(iso_module_backward(model, gradient, NULL));
        check(iso_optimizer_step(optimizer));
    }
    iso_tensor_destroy(&gradient);
    iso_optimizer_destroy(&optimizer);
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fputs("usage: model_probe MODEL CLASSES IN OUT SAVE|LOAD|TRAIN FILE\n", stderr);
        return EXIT_FAILURE;
    }
    iso_state_dict in, out = {0};
    iso_tensor *x, *y;
    check(iso_device_create("cpu", &device));
    check(iso_state_dict_read(argv[3], device, &in));
    x = iso_state_dict_find(&in, "x");
    iso_module *model = build(argv[1], x, atoi(argv[2]));
    if (strcmp(argv[5], "SAVE") == 0)
        save(model, x, argv[6]);
    else if (strcmp(argv[5], "TRAIN") == 0)
        train(model, x, iso_state_dict_find(&in, "dy"), argv[6]);
    else
        load(model, argv[6]);
    check(iso_module_train(model, false));
    check(iso_module_forward(model, x, &y));
    check(iso_state_dict_add(&out, "y", y));
    check(iso_state_dict_save(&out, argv[4]));
    iso_state_dict_destroy(&out);
    iso_state_dict_destroy(&in);
    iso_module_destroy(&model);
    iso_device_destroy(&device);
    return EXIT_SUCCESS;
}
