// SPDX-License-Identifier: MIT
// Named tensors and their files: checkpoints in the safetensors format
// (https://github.com/huggingface/safetensors: 8-byte little-endian header length, JSON header,
// data). Python's safetensors package reads them. For modules and optimizers see
// isotherm/state_dict.h.
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

// ---- state_dict -----------------------------------------------------------------------------------

// An entry of a file's __metadata__: a key and a text value.
typedef struct iso_metadata {
    const char *key, *value;
} iso_metadata;

// Named tensors in order, as in PyTorch's state_dict, and the metadata of their file. Initialise it
// with {0}. The dict owns names, texts and one reference of each tensor.
typedef struct iso_state_dict {
    int count;
    iso_named_tensor *item;
    int metadata_count;
    iso_metadata *metadata;
    struct iso__index *named; // finds items by their names
} iso_state_dict;

// Copies the name and retains the tensor. ISO_ERR_ARG for an empty name, or a name in use.
iso_status iso_state_dict_add(iso_state_dict *dict, const char *name, iso_tensor *tensor);
iso_tensor *iso_state_dict_find(const iso_state_dict *dict, const char *name); // borrowed, or NULL
// Copies key and value. Replaces the value of an existing key. ISO_ERR_ARG for more than 10000
// keys.
iso_status iso_state_dict_set_metadata(iso_state_dict *dict, const char *key, const char *value);
const char *iso_state_dict_metadata(const iso_state_dict *dict, const char *key); // or NULL
void iso_state_dict_destroy(iso_state_dict *dict);                                // resets to {0}

// Local. Writes tensors and metadata to a file, in the same way as iso_checkpoint_save. Adds
// "format": "pt" to the metadata unless the dict sets it.
iso_status iso_state_dict_save(const iso_state_dict *dict, const char *path);
// Local. Reads all tensors of a file, as new tensors on device with the element types of the file,
// and its metadata. ISO_ERR_FORMAT for a file that is damaged, not safetensors, or written by
// iso_resume_save. ISO_ERR_TYPE or ISO_ERR_SHAPE for a tensor whose type or shape the library does
// not support; the message names it.
iso_status iso_state_dict_read(const char *path, iso_device *device, iso_state_dict *out);

// ---- Checkpoints ----------------------------------------------------------------------------------

// The functions below take tensors, not modules. Get the tensors of a model with
// iso_parameter_value right before the call: it completes pending updates. A tensor obtained before
// a training step may lack the update of that step.

// Local. Writes PATH.tmp.PID, syncs it, and renames it to PATH. So PATH is always either the
// complete old file or the complete new one, even if the machine crashes. On failure the temporary
// file is removed.
iso_status iso_checkpoint_save(const char *path, const iso_named_tensor *tensors, int count);
// Local. Reads a file into the given tensors, by name. ISO_ERR_FORMAT if the file is damaged or not
// safetensors. ISO_ERR_MISMATCH unless it has exactly these names, shapes and types; the message
// names missing and unexpected tensors, or the first shape or type that differs. Nothing is changed
// on failure.
iso_status iso_checkpoint_load(const char *path, const iso_named_tensor *tensors, int count);
// Local. A 64-bit checksum of the bytes of a file. Pass it to iso_comm_check_same to check that all
// ranks read the same file. It does not interpret the bytes. ISO_ERR_IO if the file cannot be read.
iso_status iso_checkpoint_checksum(const char *path, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
