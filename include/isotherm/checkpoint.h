// Named tensors and their files: checkpoints in the safetensors format
// (https://github.com/huggingface/safetensors: 8-byte little-endian header length, JSON header,
// data), readable by Python's safetensors package. What they mean to modules and optimizers:
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

// An entry of a file's __metadata__: a fact about a model that is not a tensor.
typedef struct iso_metadata {
    const char *key, *value;
} iso_metadata;

// Named tensors in their order, as PyTorch's state_dict, and the metadata of their file. Begin with
// {0}. Names, texts and one reference of each tensor belong to the dict.
typedef struct iso_state_dict {
    int count;
    iso_named_tensor *item;
    int metadata_count;
    iso_metadata *metadata;
} iso_state_dict;

// Copies the name and retains the tensor. ISO_ERR_ARG for an empty name and one used before.
iso_status iso_state_dict_add(iso_state_dict *dict, const char *name, iso_tensor *tensor);
iso_tensor *iso_state_dict_find(const iso_state_dict *dict, const char *name); // NULL: not there
// Copies both; replaces the value of a key that is there.
iso_status iso_state_dict_set_metadata(iso_state_dict *dict, const char *key, const char *value);
const char *iso_state_dict_metadata(const iso_state_dict *dict, const char *key); // or NULL
void iso_state_dict_destroy(iso_state_dict *dict);                                // leaves {0}

// Local. Writes tensors and metadata, and "format": "pt" unless the dict says otherwise, to a file
// as iso_checkpoint_save does.
iso_status iso_state_dict_save(const iso_state_dict *dict, const char *path);
// Local. All tensors of a file, as new ones on device in the element types of the file, and its
// metadata. ISO_ERR_FORMAT (damaged, not safetensors, or a file that iso_resume_save wrote),
// ISO_ERR_TYPE and ISO_ERR_SHAPE (names the tensor of a type or shape that the library does not
// have).
iso_status iso_state_dict_read(const char *path, iso_device *device, iso_state_dict *out);

// ---- Checkpoints ----------------------------------------------------------------------------------

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
// Local. A 64-bit checksum of the bytes of a file, so that ranks can compare with
// iso_comm_check_same what each of them would read. Does not look at what the bytes mean.
// ISO_ERR_IO.
iso_status iso_checkpoint_checksum(const char *path, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
