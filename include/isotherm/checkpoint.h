// Checkpoints of named tensors in the safetensors format
// (https://github.com/huggingface/safetensors: 8-byte little-endian header length, JSON header,
// data), readable by Python's safetensors package.
#ifndef ISOTHERM_CHECKPOINT_H
#define ISOTHERM_CHECKPOINT_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_named_tensor {
    const char *name;
    iso_tensor *tensor;
} iso_named_tensor;

// The functions below see tensors, not modules: fetch those of a model with iso_parameter_value
// right before, which completes pending updates. A tensor fetched before a training step may lack
// the update of that step.

// Local. Writes PATH.tmp.PID, syncs it, and renames it to PATH: PATH is the old file or the whole
// new one, whenever the machine stops. On failure no temporary file is left.
iso_status iso_checkpoint_save(const char *path, const iso_named_tensor *tensors, int count);
// Local. Reads into the given tensors by name. Nothing is changed unless the whole file is sound
// and has exactly these names, shapes and types: ISO_ERR_FORMAT (damaged or not safetensors),
// ISO_ERR_MISMATCH (another model: names the missing and unexpected tensors, or the first shape or
// type that differs).
iso_status iso_checkpoint_load(const char *path, const iso_named_tensor *tensors, int count);

#ifdef __cplusplus
}
#endif
#endif
