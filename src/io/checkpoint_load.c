// Loads a safetensors file into named tensors: everything is read and compared before anything is
// changed.
#include "io/safetensors.h"
#include "tensor/tensor_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEADER 100000000

typedef struct contents {
    FILE *file;
    int64_t data_bytes;
    void *text; // of the header; the names of tensors point into it
    iso__stored *tensors;
    int count;
    void *data;
} contents;

static iso_status read_exactly(contents *self, const char *path, void *to, size_t bytes) {
    size_t got = fread(to, 1, bytes, self->file);
    ISO_CHECK(!ferror(self->file), ISO_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    ISO_CHECK(got == bytes, ISO_ERR_FORMAT, "%s ends %zu bytes early", path, bytes - got);
    return ISO_OK;
}

static iso_status open_file(contents *self, const char *path, int64_t *size) {
    struct stat info;
    self->file = fopen(path, "rb");
    ISO_CHECK(self->file, ISO_ERR_IO, "cannot open checkpoint %s: %s", path, strerror(errno));
    ISO_CHECK(fstat(fileno(self->file), &info) == 0, ISO_ERR_IO, "cannot examine %s: %s", path,
              strerror(errno));
    ISO_CHECK(S_ISREG(info.st_mode), ISO_ERR_IO, "cannot read checkpoint %s: it is no file", path);
    *size = (int64_t)info.st_size;
    return ISO_OK;
}

// People mistake PyTorch's own formats for safetensors: say so.
static iso_status check_start(const char *path, const uint8_t start[ISO__SAFETENSORS_PREFIX]) {
    ISO_CHECK(memcmp(start, "PK\3\4", 4) != 0, ISO_ERR_FORMAT,
              "%s is a PyTorch zip archive: save the model as safetensors instead", path);
    ISO_CHECK(!(start[0] == 0x80 && start[1] >= 2 && start[1] <= 5 && start[7] != 0),
              ISO_ERR_FORMAT, "%s is a Python pickle: save the model as safetensors instead", path);
    return ISO_OK;
}

static iso_status read_header(contents *self, const char *path) {
    int64_t size = 0;
    uint8_t start[ISO__SAFETENSORS_PREFIX];
    uint64_t length = 0;
    ISO_TRY(open_file(self, path, &size));
    ISO_CHECK(size > ISO__SAFETENSORS_PREFIX, ISO_ERR_FORMAT,
              "%s has only %lld bytes: it is truncated or no safetensors file", path,
              (long long)size);
    ISO_TRY(read_exactly(self, path, start, ISO__SAFETENSORS_PREFIX));
    ISO_TRY(check_start(path, start));
    for (int b = ISO__SAFETENSORS_PREFIX - 1; b >= 0; b--) length = length << 8 | start[b];
    ISO_CHECK(length <= (uint64_t)size - ISO__SAFETENSORS_PREFIX && length <= MAX_HEADER,
              ISO_ERR_FORMAT,
              "%s is truncated or no safetensors file: it promises a header of %llu bytes and %lld "
              "follow",
              path, (unsigned long long)length, (long long)(size - ISO__SAFETENSORS_PREFIX));
    ISO_TRY(iso__alloc((size_t)length, &self->text));
    ISO_TRY(read_exactly(self, path, self->text, (size_t)length));
    self->data_bytes = size - ISO__SAFETENSORS_PREFIX - (int64_t)length;
    ISO_TRY(iso__safetensors_parse(path, self->text, (int64_t)length, self->data_bytes,
                                   &self->tensors, &self->count));
    return ISO_OK;
}

// ---- Comparing ----------------------------------------------------------------------------------

static const iso_named_tensor *find_given(const iso_named_tensor *tensors, int count,
                                          const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

static const iso__stored *find_stored(const contents *self, const char *name) {
    for (int i = 0; i < self->count; i++)
        if (strcmp(self->tensors[i].name, name) == 0) return &self->tensors[i];
    return NULL;
}

#define NAMES_SHOWN 3

// Adds name number `n` of those that are missing to the list in `text`: the first few by name.
static void list_name(char *text, size_t room, int n, const char *name) {
    size_t used = strlen(text);
    if (n < NAMES_SHOWN) snprintf(text + used, room - used, "%s%.48s", n ? ", " : " ", name);
    if (n == NAMES_SHOWN) snprintf(text + used, room - used, ", ...");
}

static iso_status compare_names(const contents *self, const char *path,
                                const iso_named_tensor *tensors, int count) {
    char missing[256] = "", unexpected[256] = "";
    int missing_count = 0, unexpected_count = 0;
    for (int i = 0; i < count; i++)
        if (!find_stored(self, tensors[i].name))
            list_name(missing, sizeof(missing), missing_count++, tensors[i].name);
    for (int i = 0; i < self->count; i++)
        if (!find_given(tensors, count, self->tensors[i].name))
            list_name(unexpected, sizeof(unexpected), unexpected_count++, self->tensors[i].name);
    ISO_CHECK(
        missing_count + unexpected_count == 0, ISO_ERR_MISMATCH,
        "%s is a checkpoint of another model: %d tensors are missing%s%s and %d are unexpected%s%s",
        path, missing_count, missing_count ? ":" : "", missing, unexpected_count,
        unexpected_count ? ":" : "", unexpected);
    return ISO_OK;
}

static iso_status compare_tensor(const char *path, const iso_named_tensor *named,
                                 const iso__stored *stored) {
    const iso_tensor *tensor = named->tensor;
    int ndim = iso_tensor_ndim(tensor);
    const int64_t *shape = iso_tensor_shape(tensor);
    char here[100], there[100];
    ISO_CHECK(ndim == stored->ndim &&
                  memcmp(shape, stored->shape, (size_t)ndim * sizeof(int64_t)) == 0,
              ISO_ERR_MISMATCH,
              "%s is a checkpoint of another model: tensor %s has shape %s there and %s here", path,
              named->name, iso__shape_text(stored->ndim, stored->shape, there, sizeof(there)),
              iso__shape_text(ndim, shape, here, sizeof(here)));
    const char *dtype = iso__safetensors_dtype(iso_tensor_dtype(tensor));
    ISO_CHECK(strcmp(dtype, stored->dtype) == 0, ISO_ERR_MISMATCH,
              "%s does not fit: tensor %s has element type %s there and %s here", path, named->name,
              stored->dtype, dtype);
    return ISO_OK;
}

// ---- Loading ------------------------------------------------------------------------------------

static iso_status copy_in(const contents *self, const iso_named_tensor *named) {
    const iso__stored *stored = find_stored(self, named->name);
    void *to;
    ISO_TRY(iso_tensor_map(named->tensor, ISO_WRITE, &to));
    memcpy(to, (const char *)self->data + stored->begin, (size_t)(stored->end - stored->begin));
    ISO_TRY(iso_tensor_unmap(named->tensor));
    return ISO_OK;
}

iso_status iso_checkpoint_load(const char *path, const iso_named_tensor *tensors, int count) {
    iso_status status;
    contents self = {0};
    ISO_TRY(iso__named_tensors_check(tensors, count));
    ISO_TRY_GOTO(read_header(&self, path));
    ISO_TRY_GOTO(compare_names(&self, path, tensors, count));
    for (int i = 0; i < count; i++)
        ISO_TRY_GOTO(compare_tensor(path, &tensors[i], find_stored(&self, tensors[i].name)));
    // All data are read before the first tensor changes, so that a disk error changes nothing
    // either.
    ISO_TRY_GOTO(iso__alloc((size_t)self.data_bytes, &self.data));
    ISO_TRY_GOTO(read_exactly(&self, path, self.data, (size_t)self.data_bytes));
    for (int i = 0; i < count; i++) ISO_TRY_GOTO(copy_in(&self, &tensors[i]));
    status = ISO_OK;
fail:
    if (self.file) fclose(self.file);
    iso__free(self.text);
    iso__free(self.tensors);
    iso__free(self.data);
    return status;
}
