// The two networks that the programs train; channels, image size and classes come from the data.
#ifndef EXAMPLES_MODELS_H
#define EXAMPLES_MODELS_H

#include <isotherm/data.h>
#include <isotherm/nn.h>

// "mlp": two hidden layers of 512. "cnn": the network of PyTorch's MNIST example (two 3x3
// convolutions, max-pool, two linear layers); `dropout` adds that example's dropouts (0.25 and
// 0.5). Both end in logits. ISO_ERR_ARG for another name, ISO_ERR_SHAPE for images that do not fit.
iso_status model_create(const char *name, iso_device *device, const iso_dataset_info *data,
                        bool dropout, iso_rng *rng, iso_module **out);
// Whether the images are large enough for the model of that name.
bool model_fits(const char *name, const iso_dataset_info *data);

#endif
