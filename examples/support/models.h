// SPDX-License-Identifier: MIT
// The networks that the programs train; channels, image size and classes come from the data.
#ifndef EXAMPLES_MODELS_H
#define EXAMPLES_MODELS_H

#include <isotherm/data.h>
#include <isotherm/nn.h>

#define MODEL_NAMES       "mlp|cnn|lenet|resnet18|resnet50"
#define MODELS_WITH_NORMS "resnet18|resnet50"
#define MODELS_OF_A_LIST  "mlp|cnn|lenet"
#define MODEL_ACTIVATIONS "relu, leaky_relu, elu, silu, gelu, tanh or sigmoid"
#define MODEL_ACTIVATIONS_RULE                                                                     \
    "one or more of " MODEL_ACTIVATIONS ", separated by commas, each once"

// "mlp": two hidden layers of 512. "cnn": the network of PyTorch's MNIST example (two 3x3
// convolutions, max-pool, two linear layers); `dropout` adds that example's dropouts (0.25 and
// 0.5). "lenet": LeNet-5 as in PyTorch's tutorials (two 5x5 convolutions to 6 and 16 channels, each
// with relu and max-pool, linear layers of 120 and 84): for 3x32x32 that of "Training a classifier"
// (CIFAR-10), for 1x28x28 that of "Training with PyTorch" (Fashion-MNIST). "resnet18" and
// "resnet50": torchvision's, names included; images with a side below 64 pixels get the usual stem
// for CIFAR: one 3x3 convolution of stride 1, without pooling. All networks return logits.
// ISO_ERR_ARG for another name, ISO_ERR_SHAPE for images that do not fit.
typedef struct model_options {
    const char *name;
    bool dropout;
    // Instead of relu in mlp, cnn and lenet: names of MODEL_ACTIVATIONS, separated by ','; NULL:
    // relu. Several make a Choice of each, which begins with the first one.
    const char *activations;
} model_options;
iso_status model_create_with(const model_options *options, iso_device *device,
                             const iso_dataset_info *data, iso_rng *rng, iso_module **out);
// The same, with relu.
iso_status model_create(const char *name, iso_device *device, const iso_dataset_info *data,
                        bool dropout, iso_rng *rng, iso_module **out);
// "resnet18" and "resnet50" (models_resnet.c).
iso_status model_resnet18(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                          iso_module **out);
iso_status model_resnet50(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                          iso_module **out);
// Whether the images are large enough for the model of that name.
bool model_fits(const char *name, const iso_dataset_info *data);
// Whether `text` is a list for `activations`: names, each once.
bool model_activations_fit(const char *text);
// Whether every Choice of the model has one of its alternatives; a damaged file may give another.
bool model_choices_fit(iso_module *model);
// Which activations the Choices of the model have, "act1 elu, act2 tanh"; "" without a Choice.
iso_status model_activations_text(iso_module *model, char *text, size_t room);
// The name of the first parameter that holds a NaN or an infinity, "" if none does.
iso_status model_find_not_finite(iso_module *model, char *name, size_t room);

#endif
