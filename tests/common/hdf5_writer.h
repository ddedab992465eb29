// SPDX-License-Identifier: MIT
// HDF5 files of a test, in its scratch folder.
#ifndef TESTS_HDF5_WRITER_H
#define TESTS_HDF5_WRITER_H

#include <isotherm/data.h>

// A data set to write: `count` samples.
typedef struct hdf5_part {
    const char *name;
    iso_tensor_spec spec; // of a sample
    int64_t count;
    const void *values;
} hdf5_part;

// Whether this build can read and write HDF5 files.
bool hdf5_is_there(void);
// Writes a file and returns its path. chunk: 0, or so many samples in each chunk; chunks are
// compressed and have a checksum.
const char *hdf5_write(const char *name, const hdf5_part *parts, int count, int64_t chunk);

#endif
