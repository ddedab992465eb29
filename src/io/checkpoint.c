// Saves named tensors as a safetensors file: under its name stands the old file or the whole new
// one.
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors data are little-endian, written as they are");

static size_t tensor_bytes(const iso_tensor *tensor) {
    return (size_t)iso_tensor_count(tensor) * iso_dtype_size(iso_tensor_dtype(tensor));
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const iso_named_tensor *const *)a)->name,
                  (*(const iso_named_tensor *const *)b)->name);
}

iso_status iso__named_tensors_check(const iso_named_tensor *tensors, int count) {
    iso_status status;
    void *memory;
    ISO_CHECK(tensors && count > 0, ISO_ERR_ARG, "a checkpoint needs at least one tensor");
    for (int i = 0; i < count; i++)
        ISO_CHECK(tensors[i].tensor && tensors[i].name &&
                      strcmp(tensors[i].name, "__metadata__") != 0,
                  ISO_ERR_ARG,
                  "tensor %d of a checkpoint is NULL, has no name, or is named __metadata__", i);
    ISO_TRY(iso__alloc((size_t)count * sizeof(void *), &memory));
    const iso_named_tensor **sorted = memory;
    for (int i = 0; i < count; i++) sorted[i] = &tensors[i];
    qsort(sorted, (size_t)count, sizeof(*sorted), compare_names);
    for (int i = 1; i < count; i++)
        ISO_CHECK_GOTO(compare_names(&sorted[i - 1], &sorted[i]) != 0, ISO_ERR_ARG,
                       "two tensors of a checkpoint have the name %s", sorted[i]->name);
    status = ISO_OK;
fail:
    iso__free(memory);
    return status;
}

// ---- Saving -------------------------------------------------------------------------------------

// Text that grows. Appending after a failure does nothing, so that only the end must be checked.
typedef struct text {
    void *data;
    size_t used, room;
    iso_status status;
} text;

static void append(text *to, const char *from, size_t bytes) {
    if (to->status < 0) return;
    if (to->room - to->used < bytes) {
        size_t larger = 2 * to->room + bytes + 256;
        to->status = iso__realloc(&to->data, to->used, larger);
        if (to->status < 0) return;
        to->room = larger;
    }
    memcpy((char *)to->data + to->used, from, bytes);
    to->used += bytes;
}

static void append_string(text *to, const char *from) {
    append(to, "\"", 1);
    for (; *from; from++) {
        char escape[8];
        int n = snprintf(escape, sizeof(escape), (unsigned char)*from < 0x20 ? "\\u%04x" : "\\%c",
                         *from);
        bool special = (unsigned char)*from < 0x20 || *from == '"' || *from == '\\';
        append(to, special ? escape : from, special ? (size_t)n : 1);
    }
    append(to, "\"", 1);
}

__attribute__((format(printf, 2, 3))) static void append_format(text *to, const char *format, ...) {
    char piece[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof(piece), format, args);
    va_end(args);
    append(to, piece, (size_t)n);
}

static void append_tensor(text *to, const iso_named_tensor *named, size_t begin) {
    const iso_tensor *tensor = named->tensor;
    append(to, ",", 1);
    append_string(to, named->name);
    append_format(to, ":{\"dtype\":\"%s\",\"shape\":[",
                  iso__safetensors_dtype(iso_tensor_dtype(tensor)));
    for (int d = 0; d < iso_tensor_ndim(tensor); d++)
        append_format(to, d ? ",%lld" : "%lld", (long long)iso_tensor_shape(tensor)[d]);
    append_format(to, "],\"data_offsets\":[%zu,%zu]}", begin, begin + tensor_bytes(tensor));
}

static iso_status make_header(const iso_named_tensor *tensors, int count, text *to) {
    static const char start[] = "{\"__metadata__\":{\"format\":\"pt\"}";
    char length[ISO__SAFETENSORS_PREFIX] = {0};
    size_t begin = 0;
    append(to, length, ISO__SAFETENSORS_PREFIX);
    append(to, start, sizeof(start) - 1);
    for (int i = 0; i < count; i++) {
        append_tensor(to, &tensors[i], begin);
        begin += tensor_bytes(tensors[i].tensor);
    }
    append(to, "}", 1);
    append(to, "        ",
           (ISO__SAFETENSORS_PREFIX - to->used % ISO__SAFETENSORS_PREFIX) %
               ISO__SAFETENSORS_PREFIX); // so that the data are aligned
    ISO_TRY(to->status);
    uint64_t bytes = to->used - ISO__SAFETENSORS_PREFIX;
    for (int b = 0; b < ISO__SAFETENSORS_PREFIX; b++)
        ((uint8_t *)to->data)[b] = (uint8_t)(bytes >> 8 * b);
    return ISO_OK;
}

static iso_status write_all(int file, const char *path, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = write(file, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        ISO_CHECK(n >= 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path, strerror(errno));
        from += n;
        bytes -= (size_t)n;
    }
    return ISO_OK;
}

static iso_status write_tensor(int file, const char *path, iso_tensor *tensor) {
    void *data;
    ISO_TRY(iso_tensor_map(tensor, ISO_READ, &data));
    iso_status status = write_all(file, path, data, tensor_bytes(tensor));
    if (status < 0) { // its message, not that of unmap, is the one to keep
        iso_tensor_unmap(tensor);
        return status;
    }
    ISO_TRY(iso_tensor_unmap(tensor));
    return ISO_OK;
}

// Makes the rename last: the folder is a file too. File systems that cannot sync folders say
// EINVAL.
static iso_status sync_folder(const char *path) {
    char *folder;
    ISO_TRY(iso__strdup(path, &folder));
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int file = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool bad = file < 0 || (fsync(file) != 0 && errno != EINVAL);
    int error = errno;
    if (file >= 0) close(file);
    iso__free(folder);
    ISO_CHECK(!bad, ISO_ERR_IO, "cannot sync the folder of checkpoint %s: %s", path,
              strerror(error));
    return ISO_OK;
}

static iso_status write_file(const char *temporary, const char *path, const text *header,
                             const iso_named_tensor *tensors, int count) {
    iso_status status;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ISO_CHECK(file >= 0, ISO_ERR_IO, "cannot create %s for checkpoint %s: %s", temporary, path,
              strerror(errno));
    ISO_TRY_GOTO(write_all(file, path, header->data, header->used));
    for (int i = 0; i < count; i++) ISO_TRY_GOTO(write_tensor(file, path, tensors[i].tensor));
    ISO_CHECK_GOTO(fsync(file) == 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path,
                   strerror(errno));
    int closed = close(file);
    file = -1;
    ISO_CHECK_GOTO(closed == 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path,
                   strerror(errno));
    ISO_CHECK_GOTO(rename(temporary, path) == 0, ISO_ERR_IO, "cannot rename %s to %s: %s",
                   temporary, path, strerror(errno));
    return ISO_OK;
fail:
    if (file >= 0) close(file);
    unlink(temporary);
    return status;
}

iso_status iso_checkpoint_save(const char *path, const iso_named_tensor *tensors, int count) {
    iso_status status;
    struct stat info;
    text header = {0}, temporary = {0};
    ISO_TRY(iso__named_tensors_check(tensors, count));
    ISO_CHECK(stat(path, &info) != 0 || S_ISREG(info.st_mode), ISO_ERR_IO,
              "cannot write checkpoint %s: there is something of that name that is no file", path);
    append(&temporary, path, strlen(path));
    append_format(&temporary, ".tmp.%ld", (long)getpid());
    append(&temporary, "", 1);
    ISO_TRY_GOTO(temporary.status);
    ISO_TRY_GOTO(make_header(tensors, count, &header));
    ISO_TRY_GOTO(write_file(temporary.data, path, &header, tensors, count));
    ISO_TRY_GOTO(sync_folder(path));
    status = ISO_OK;
fail:
    iso__free(header.data);
    iso__free(temporary.data);
    return status;
}
