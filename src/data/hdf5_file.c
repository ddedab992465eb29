// SPDX-License-Identifier: MIT
// Opens HDF5 files and reads runs of samples: all calls of HDF5 are here.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "data/hdf5_file.h"

#include "data/data_impl.h"

#ifdef ISO_HAVE_HDF5

#include <hdf5.h>
#include <pthread.h>
#include <string.h>

enum { TEXT_ROOM = 200, LIST_ROOM = 300, MOST_DIMS = ISO_MAX_DIMS };
// The cache of a data set's chunks: HDF5's own default, and the most that is taken for large ones.
static const size_t least_cache = 1 << 20, most_cache = 64 << 20;
static const size_t usual_slots = 521, most_slots = 1 << 16; // likewise, of one chunk each

// ---- Calls of HDF5 ------------------------------------------------------------------------------

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

// How the program wants errors of HDF5 to be printed.
typedef struct printing {
    H5E_auto2_t function;
    void *data;
} printing;

// Errors become records of this library, so HDF5 prints none meanwhile.
static printing begin_calls(void) {
    printing kept = {0};
    pthread_mutex_lock(&calls);
    H5Eget_auto2(H5E_DEFAULT, &kept.function, &kept.data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return kept;
}

static void end_calls(printing kept) {
    H5Eset_auto2(H5E_DEFAULT, kept.function, kept.data);
    pthread_mutex_unlock(&calls);
}

// The first record is that of the function where the error was found.
static herr_t keep_first(unsigned number, const H5E_error2_t *record, void *text) {
    if (number == 0) snprintf(text, TEXT_ROOM, "%s", record->desc ? record->desc : "no details");
    return 0;
}

static const char *error_text(char text[TEXT_ROOM]) {
    snprintf(text, TEXT_ROOM, "no details");
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, text);
    return text;
}

// Sets what[0] and what[1] to the kinds of the first record.
static herr_t keep_kinds(unsigned number, const H5E_error2_t *record, void *what) {
    hid_t *kinds = what;
    if (number == 0) kinds[0] = record->maj_num, kinds[1] = record->min_num;
    return 0;
}

// Whether the last call failed because of another program that has the file open, or of its lock.
static bool is_locked(void) {
    hid_t kinds[2] = {-1, -1};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_kinds, kinds);
    return kinds[1] == H5E_CANTLOCKFILE || (kinds[0] == H5E_FILE && kinds[1] == H5E_CANTOPENFILE);
}

// ---- The type and the shape of a data set -------------------------------------------------------

static hid_t native_type(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return H5T_NATIVE_FLOAT;
    case ISO_F64: return H5T_NATIVE_DOUBLE;
    case ISO_U8: return H5T_NATIVE_UINT8;
    case ISO_I32: return H5T_NATIVE_INT32;
    default: return H5T_NATIVE_INT64;
    }
}

// The smallest type that holds all values of a type of the file; false: there is none.
static bool choose_type(hid_t type, iso_dtype *out) {
    size_t size = H5Tget_size(type);
    H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_FLOAT) {
        *out = size > sizeof(float) ? ISO_F64 : ISO_F32;
        return size <= sizeof(double);
    }
    size_t sign = H5Tget_sign(type) == H5T_SGN_NONE; // an unsigned number needs a larger one
    *out = sign && size == 1 ? ISO_U8 : size + sign <= sizeof(int32_t) ? ISO_I32 : ISO_I64;
    return kind == H5T_INTEGER && size + sign <= sizeof(int64_t);
}

static iso_status take_type(const iso__hdf5 *file, iso__hdf5_set *set) {
    hid_t type = H5Dget_type((hid_t)set->handle);
    bool known = type >= 0 && choose_type(type, &set->spec.dtype);
    set->whole = type >= 0 && H5Tget_class(type) == H5T_INTEGER;
    if (type >= 0) H5Tclose(type);
    ISO_CHECK(known, ISO_ERR_FORMAT,
              "data set \"%s\" of %s holds something else than floats of up to 64 bits, unsigned "
              "integers of up to 32 bits and integers of up to 64 bits: convert it",
              set->name, file->path);
    return ISO_OK;
}

// Whether the bytes of all samples together can be counted, whatever type they are read in.
static bool is_countable(const hsize_t *dims, int rank) {
    int64_t bytes = sizeof(int64_t);
    for (int d = 0; d < rank; d++)
        if (dims[d] == 0 || dims[d] > INT64_MAX ||
            __builtin_mul_overflow(bytes, (int64_t)dims[d], &bytes))
            return false;
    return true;
}

static iso_status take_shape(const iso__hdf5 *file, iso__hdf5_set *set) {
    hsize_t dims[H5S_MAX_RANK] = {0};
    hid_t space = H5Dget_space((hid_t)set->handle);
    int rank = space >= 0 ? H5Sget_simple_extent_ndims(space) : 0;
    if (rank > 0) H5Sget_simple_extent_dims(space, dims, NULL);
    if (space >= 0) H5Sclose(space);
    ISO_CHECK(rank >= 1 && rank <= MOST_DIMS, ISO_ERR_FORMAT,
              "data set \"%s\" of %s has %d dimensions: it may have 1, the samples, to %d",
              set->name, file->path, rank, MOST_DIMS);
    ISO_CHECK(is_countable(dims, rank), ISO_ERR_FORMAT,
              "data set \"%s\" of %s is empty or too large", set->name, file->path);
    set->samples = (int64_t)dims[0];
    set->spec.ndim = rank - 1;
    set->bytes = iso_dtype_size(set->spec.dtype);
    for (int d = 1; d < rank; d++) {
        set->spec.shape[d - 1] = (int64_t)dims[d];
        set->bytes *= (size_t)dims[d];
    }
    return ISO_OK;
}

// ---- Opening ------------------------------------------------------------------------------------

// The names in the outermost group, such as "x, y".
static void list_names(hid_t file, char list[LIST_ROOM]) {
    H5G_info_t info;
    size_t used = 0;
    snprintf(list, LIST_ROOM, "nothing");
    if (H5Gget_info(file, &info) < 0) return;
    for (hsize_t i = 0; i < info.nlinks && used + 2 < LIST_ROOM; i++) {
        char name[TEXT_ROOM];
        if (H5Lget_name_by_idx(file, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof(name),
                               H5P_DEFAULT) < 0)
            return;
        used += (size_t)snprintf(list + used, LIST_ROOM - used, "%s%s", i ? ", " : "", name);
    }
}

// HDF5 reports an error, too, where a group on the way to the name is missing.
static iso_status open_handle(const iso__hdf5 *file, iso__hdf5_set *set) {
    char list[LIST_ROOM], text[TEXT_ROOM];
    hid_t in = (hid_t)file->handle;
    set->handle = H5Oopen(in, set->name, H5P_DEFAULT);
    if (set->handle >= 0 && H5Iget_type((hid_t)set->handle) == H5I_DATASET) return ISO_OK;
    error_text(text);
    bool other = set->handle >= 0;
    if (other) H5Oclose((hid_t)set->handle);
    set->handle = -1;
    ISO_CHECK(other || H5Oexists_by_name(in, set->name, H5P_DEFAULT) <= 0, ISO_ERR_FORMAT,
              "data set \"%s\" of %s is damaged (HDF5: %s): copy the file again", set->name,
              file->path, text);
    list_names(in, list);
    return ISO_FAIL(ISO_ERR_ARG, "%s has no data set \"%s\": it has %s", file->path, set->name,
                    list);
}

// The chunks that hold a sample, and their bytes in the type of the file; 0: there are none.
static double measure_chunks(const iso__hdf5_set *set, double *count) {
    hsize_t dims[H5S_MAX_RANK];
    hid_t made = H5Dget_create_plist((hid_t)set->handle), type = H5Dget_type((hid_t)set->handle);
    int rank = H5Pget_layout(made) == H5D_CHUNKED ? H5Pget_chunk(made, H5S_MAX_RANK, dims) : 0;
    double bytes = rank > 0 ? (double)H5Tget_size(type) : 0;
    *count = 1;
    for (int d = 0; d < rank; d++) {
        bytes *= (double)dims[d];
        if (d > 0) *count *= (double)(((hsize_t)set->spec.shape[d - 1] + dims[d] - 1) / dims[d]);
    }
    H5Tclose(type);
    H5Pclose(made);
    return bytes * *count;
}

static size_t slots_for(double chunks) {
    return chunks * 10 < (double)most_slots ? (size_t)chunks * 10 + 1 : most_slots;
}

// HDF5 decompresses a chunk again for each read, unless it fits into the data set's cache. Opens a
// data set with large chunks again, with a larger cache: all handles of a data set share the cache
// that it was opened with.
static iso_status fit_cache(const iso__hdf5 *file, iso__hdf5_set *set) {
    double count, bytes = measure_chunks(set, &count);
    bool many = count * 2 > (double)usual_slots; // two chunks in one slot evict each other
    if ((bytes * 2 <= (double)least_cache && !many) || bytes > (double)most_cache) return ISO_OK;
    hid_t access = H5Dget_access_plist((hid_t)set->handle);
    H5Pset_chunk_cache(access, many ? slots_for(count) : usual_slots,
                       bytes * 2 > (double)least_cache ? most_cache : least_cache,
                       H5D_CHUNK_CACHE_W0_DEFAULT);
    H5Dclose((hid_t)set->handle);
    set->handle = H5Dopen2((hid_t)file->handle, set->name, access);
    H5Pclose(access);
    ISO_CHECK(set->handle >= 0, ISO_ERR_IO, "data set \"%s\" of %s cannot be opened again",
              set->name, file->path);
    return ISO_OK;
}

// HDF5 reads zeros from a data set that was never written.
static iso_status check_storage(const iso__hdf5 *file, const iso__hdf5_set *set) {
    H5D_space_status_t storage = H5D_SPACE_STATUS_ALLOCATED;
    H5Dget_space_status((hid_t)set->handle, &storage);
    ISO_CHECK(storage != H5D_SPACE_STATUS_NOT_ALLOCATED, ISO_ERR_FORMAT,
              "data set \"%s\" of %s has a shape but no contents: it was never written", set->name,
              file->path);
    return ISO_OK;
}

static iso_status open_set(iso__hdf5 *file, const char *name, iso__hdf5_set *set) {
    ISO_TRY(iso__strdup(name, &set->name));
    ISO_TRY(open_handle(file, set));
    ISO_TRY(take_type(file, set));
    ISO_TRY(take_shape(file, set));
    ISO_TRY(check_storage(file, set));
    return fit_cache(file, set);
}

static iso_status open_sets(iso__hdf5 *file, const char *const *names) {
    char text[TEXT_ROOM];
    ISO_CHECK(H5Fis_hdf5(file->path) > 0, ISO_ERR_FORMAT,
              "%s does not begin as an HDF5 file does: give an HDF5 file", file->path);
    file->handle = H5Fopen(file->path, H5F_ACC_RDONLY, H5P_DEFAULT);
    ISO_CHECK(
        file->handle >= 0 || !is_locked(), ISO_ERR_IO,
        "HDF5 cannot lock %s (%s): close it in the program that writes to it, or, if the file "
        "system has no locks, set HDF5_USE_FILE_LOCKING=FALSE",
        file->path, error_text(text));
    ISO_CHECK(file->handle >= 0, ISO_ERR_FORMAT,
              "HDF5 cannot open %s: %s: if it is truncated or damaged, copy it again", file->path,
              error_text(text));
    for (int s = 0; s < file->count; s++) ISO_TRY(open_set(file, names[s], &file->sets[s]));
    return ISO_OK;
}

// Also tells a missing file from one that is none of HDF5's.
static iso_status measure_file(const char *path, int64_t *size) {
    iso__source *source;
    ISO_TRY(iso__source_open_plain(path, &source));
    *size = iso__source_size(source);
    iso__source_close(&source);
    return ISO_OK;
}

static iso_status fill_file(iso__hdf5 *self, const char *path, const char *const *names,
                            int count) {
    void *memory;
    ISO_TRY(measure_file(path, &self->size));
    ISO_TRY(iso__strdup(path, &self->path));
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(iso__hdf5_set), &memory));
    self->sets = memory;
    self->count = count;
    for (int s = 0; s < count; s++) self->sets[s].handle = -1;
    printing kept = begin_calls();
    iso_status status = open_sets(self, names);
    end_calls(kept);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__hdf5_open(const char *path, const char *const *names, int count, iso__hdf5 **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__hdf5), &memory));
    iso__hdf5 *self = memory;
    self->handle = -1;
    iso_status status = fill_file(self, path, names, count);
    if (status < 0) iso__hdf5_close(&self);
    ISO_TRY(status);
    *out = self;
    return ISO_OK;
}

void iso__hdf5_close(iso__hdf5 **file) {
    iso__hdf5 *self = *file;
    if (!self) return;
    *file = NULL;
    printing kept = begin_calls();
    for (int s = 0; s < self->count; s++)
        if (self->sets[s].handle >= 0) H5Dclose((hid_t)self->sets[s].handle);
    if (self->handle >= 0) H5Fclose((hid_t)self->handle);
    end_calls(kept);
    for (int s = 0; s < self->count; s++) iso__free(self->sets[s].name);
    iso__free(self->sets);
    iso__free(self->path);
    iso__free(self);
}

// ---- Reading ------------------------------------------------------------------------------------

// On failure, takes the details before further calls of HDF5 forget them.
static bool read_run(const iso__hdf5_set *set, const iso__hdf5_run *run, char text[TEXT_ROOM]) {
    hsize_t start[MOST_DIMS] = {(hsize_t)run->first}, size[MOST_DIMS] = {(hsize_t)run->count};
    for (int d = 0; d < set->spec.ndim; d++) size[d + 1] = (hsize_t)set->spec.shape[d];
    hid_t from = H5Dget_space((hid_t)set->handle);
    hid_t to = H5Screate_simple(set->spec.ndim + 1, size, NULL);
    bool done = from >= 0 && to >= 0 &&
                H5Sselect_hyperslab(from, H5S_SELECT_SET, start, NULL, size, NULL) >= 0 &&
                H5Dread((hid_t)set->handle, native_type(set->spec.dtype), to, from, H5P_DEFAULT,
                        run->to) >= 0;
    if (!done) error_text(text);
    if (from >= 0) H5Sclose(from);
    if (to >= 0) H5Sclose(to);
    return done;
}

iso_status iso__hdf5_read(const iso__hdf5 *file, const iso__hdf5_run *runs, int64_t count) {
    char text[TEXT_ROOM];
    int64_t r = 0;
    printing kept = begin_calls();
    while (r < count && read_run(&file->sets[runs[r].set], &runs[r], text)) r++;
    end_calls(kept);
    ISO_CHECK(
        r == count, ISO_ERR_IO,
        "cannot read samples %lld to %lld of data set \"%s\" of %s (HDF5: %s): if the file is "
        "damaged, copy it again",
        (long long)runs[r].first, (long long)(runs[r].first + runs[r].count - 1),
        file->sets[runs[r].set].name, file->path, text);
    return ISO_OK;
}

#else

iso_status iso__hdf5_open(const char *path, const char *const *names, int count, iso__hdf5 **out) {
    (void)names, (void)count, (void)out;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED,
                    "%s cannot be read, because this build has no HDF5: configure Isotherm where "
                    "libhdf5 is installed (Debian: libhdf5-dev)",
                    path);
}
void iso__hdf5_close(iso__hdf5 **file) { *file = NULL; }
iso_status iso__hdf5_read(const iso__hdf5 *file, const iso__hdf5_run *runs, int64_t count) {
    (void)runs, (void)count;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "%s cannot be read without HDF5", file->path);
}

#endif
