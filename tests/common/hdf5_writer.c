// SPDX-License-Identifier: MIT
// Writes HDF5 files.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "common/hdf5_writer.h"

#include "common/scratch.h"

#include <criterion/criterion.h>

#ifdef ISO_HAVE_HDF5

#include <hdf5.h>

bool hdf5_is_there(void) { return true; }

static hid_t type_of(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return H5T_IEEE_F32LE;
    case ISO_F64: return H5T_IEEE_F64BE; // the other byte order
    case ISO_U8: return H5T_STD_U8LE;
    case ISO_I32: return H5T_STD_I32BE;
    default: return H5T_STD_I64LE;
    }
}

static hid_t memory_type(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return H5T_NATIVE_FLOAT;
    case ISO_F64: return H5T_NATIVE_DOUBLE;
    case ISO_U8: return H5T_NATIVE_UINT8;
    case ISO_I32: return H5T_NATIVE_INT32;
    default: return H5T_NATIVE_INT64;
    }
}

static void write_part(hid_t file, const hdf5_part *part, int64_t chunk) {
    hsize_t dims[ISO_MAX_DIMS] = {(hsize_t)part->count};
    int rank = part->spec.ndim + 1;
    for (int d = 1; d < rank; d++) dims[d] = (hsize_t)part->spec.shape[d - 1];
    hid_t space = H5Screate_simple(rank, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    dims[0] = (hsize_t)chunk;
    if (chunk > 0)
        cr_assert(H5Pset_chunk(how, rank, dims) >= 0 && H5Pset_deflate(how, 4) >= 0 &&
                  H5Pset_fletcher32(how) >= 0);
    hid_t set = H5Dcreate2(file, part->name, type_of(part->spec.dtype), space, H5P_DEFAULT, how,
                           H5P_DEFAULT);
    cr_assert_geq(
        H5Dwrite(set, memory_type(part->spec.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, part->values),
        0);
    H5Dclose(set);
    H5Pclose(how);
    H5Sclose(space);
}

const char *hdf5_write(const char *name, const hdf5_part *parts, int count, int64_t chunk) {
    const char *path = scratch_path(name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    cr_assert_geq(file, 0);
    for (int p = 0; p < count; p++) write_part(file, &parts[p], chunk);
    cr_assert_geq(H5Fclose(file), 0);
    return path;
}

#else

bool hdf5_is_there(void) { return false; }

const char *hdf5_write(const char *name, const hdf5_part *parts, int count, int64_t chunk) {
    (void)parts, (void)count, (void)chunk;
    return scratch_path(name);
}

#endif
