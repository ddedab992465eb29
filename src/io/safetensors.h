// SPDX-License-Identifier: MIT
// Private to src/io and optim/resume*: safetensors files of named arrays. Checkpoints of tensors
// and saved states of runs use the same writer and reader.
#ifndef ISO_SAFETENSORS_H
#define ISO_SAFETENSORS_H

#include "base/index.h"

#include <isotherm/checkpoint.h>

#define ISO__SAFETENSORS_PREFIX   8 // bytes before the header: its length
#define ISO__SAFETENSORS_MAX_DIMS 16

// The caller's array: memory, or a tensor, which is mapped while it is read or written.
typedef struct iso__array {
    const char *name;
    const char *dtype; // of the format, e.g. "F32"
    int ndim;
    const int64_t *shape;
    void *data;
    iso_tensor *tensor; // instead of data
    bool optional;      // a file that is read may lack it
} iso__array;

// A key and value of __metadata__.
typedef struct iso__note {
    const char *key, *value;
} iso__note;

// An array as the header of a file describes it.
typedef struct iso__stored {
    char *name;        // inside the header's text
    const char *dtype; // "F32", a static string
    int ndim;
    int64_t shape[ISO__SAFETENSORS_MAX_DIMS];
    int64_t begin, end; // bytes of the data section
} iso__stored;

typedef struct iso__header {
    iso__stored *stored; // sorted by offset; they cover the data section without gaps
    int count;
    iso__note *note;
    int note_count;
} iso__header;

// Entries of metadata, which are searched one by one.
enum { ISO__MOST_NOTES = 10000, ISO__MOST_HEADER = 100000000 }; // the latter in bytes

// ---- Arrays ---------------------------------------------------------------------------------------

// "F32"; the format's name of an element type.
const char *iso__safetensors_dtype(iso_dtype dtype);
// The element type with this name; ISO_DTYPE_COUNT: the library has none.
iso_dtype iso__safetensors_type(const char *name);
// The static string of the type with this name, and the size of its elements in bits; NULL for an
// unknown name.
const char *iso__safetensors_dtype_named(const char *name, int64_t *bits);
size_t iso__array_bytes(const iso__array *array);
// Paired access to the elements, in logical order.
iso_status iso__array_open(const iso__array *array, iso_access access, void **out);
iso_status iso__array_close(const iso__array *array);
// ISO_ERR_ARG unless every array has a usable name of its own.
iso_status iso__arrays_check(const iso__array *arrays, int count);

// ---- Writing --------------------------------------------------------------------------------------

// Writes PATH.tmp.PID, syncs it, renames it to PATH and syncs the folder. If PATH is a symbolic
// link, does so with the file that it points to. sealed: the header contains its own hash, so that
// a reader that requires a seal detects any change.
iso_status iso__safetensors_write(const char *path, bool sealed, const iso__note *notes,
                                  int note_count, const iso__array *arrays, int count);

// ---- Reading --------------------------------------------------------------------------------------

typedef struct iso__safetensors {
    char *path;
    FILE *file;
    void *text; // of the header; the names of arrays and notes point into it
    iso__header header;
    int64_t data_bytes;
    void *data;       // NULL until loaded
    void *renamed;    // names of arrays that the caller has changed, from iso__alloc; NULL: none
    iso__index named; // finds arrays by their names
} iso__safetensors;

// Opens the file and reads its header. Close it on success only. ISO_ERR_IO if it cannot be read,
// ISO_ERR_FORMAT if it is damaged. With sealed, ISO_ERR_FORMAT also if the seal is missing or
// wrong.
iso_status iso__safetensors_open(const char *path, bool sealed, iso__safetensors *out);
void iso__safetensors_close(iso__safetensors *self);
// Call it when names of arrays have changed.
iso_status iso__safetensors_index(iso__safetensors *self);
// NULL: there is none.
const char *iso__safetensors_note(const iso__safetensors *self, const char *key);
const iso__stored *iso__safetensors_find(const iso__safetensors *self, const char *name);
// ISO_ERR_MISMATCH unless the file has exactly arrays of these names, shapes and types, with or
// without those that are optional.
iso_status iso__safetensors_match(const iso__safetensors *self, const iso__array *arrays,
                                  int count);
// Reads the data section.
iso_status iso__safetensors_load(iso__safetensors *self);

// Parses the header `text` (`length` bytes, changed: strings are decoded in place) of a file whose
// data section has data_bytes bytes. The arrays of *out are freed with iso__free; names and notes
// live as long as text. ISO_ERR_FORMAT, naming `path`, for any fault.
iso_status iso__safetensors_parse(const char *path, char *text, int64_t length, int64_t data_bytes,
                                  iso__header *out);

// The number of an item of a state_dict; -1: there is none of this name.
int iso__state_dict_index(const iso_state_dict *dict, const char *name);

// A sealed header begins with this. The hash (16 hexadecimal digits) is iso__hash of the whole text
// with zeros in its place.
#define ISO__SEAL_START  "{\"__metadata__\":{\"seal\":\""
#define ISO__SEAL_DIGITS 16
// Writes the digits and a terminating 0.
void iso__seal_text(uint64_t hash, char text[ISO__SEAL_DIGITS + 1]);
// The seal of a header that is long enough to have one.
uint64_t iso__seal_of(const char *text, size_t length);

#endif
