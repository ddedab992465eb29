// Private to src/io: what the header of a safetensors file says. Saving and loading share it.
#ifndef ISO_SAFETENSORS_H
#define ISO_SAFETENSORS_H

#include "base/base.h"

#include <isotherm/checkpoint.h>

#define ISO__SAFETENSORS_PREFIX   8 // bytes before the header: its length
#define ISO__SAFETENSORS_MAX_DIMS 16

typedef struct iso__stored {
    char *name;        // inside the header's text
    const char *dtype; // "F32", a static string
    int ndim;
    int64_t shape[ISO__SAFETENSORS_MAX_DIMS];
    int64_t begin, end; // bytes of the data section
} iso__stored;

// Parses the header `text` (`length` bytes, changed: strings are decoded in place) of a file whose
// data section has data_bytes bytes. The tensors lie one after the other and cover the data section
// exactly, in *out sorted by offset; the array is freed with iso__free, names live as long as text.
// ISO_ERR_FORMAT, naming `path`, for anything else.
iso_status iso__safetensors_parse(const char *path, char *text, int64_t length, int64_t data_bytes,
                                  iso__stored **out, int *count);
// "F32"; the format's name of an element type.
const char *iso__safetensors_dtype(iso_dtype dtype);
// ISO_ERR_ARG unless every tensor has a usable name of its own.
iso_status iso__named_tensors_check(const iso_named_tensor *tensors, int count);

#endif
