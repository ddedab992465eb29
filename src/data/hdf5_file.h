// SPDX-License-Identifier: MIT
// Private to src/data: reads runs of samples from HDF5 files. HDF5 is not thread-safe, so a mutex
// lets one of these calls work at a time.
#ifndef ISO_HDF5_FILE_H
#define ISO_HDF5_FILE_H

#include "base/base.h"

#include <isotherm/data.h>

// A data set in the file, whose first dimension counts samples.
typedef struct iso__hdf5_set {
    char *name;
    iso_tensor_spec spec; // of a sample, in the type in which it is read
    size_t bytes;         // of a sample
    int64_t samples;
    bool whole;     // holds integers
    int64_t handle; // of HDF5; below 0: none
} iso__hdf5_set;

typedef struct iso__hdf5 {
    char *path;
    int64_t size;   // bytes of the file
    int64_t handle; // of HDF5; below 0: none
    int count;
    iso__hdf5_set *sets; // [count]
} iso__hdf5;

// Opens the data sets with these names. ISO_ERR_IO: the file is missing, unreadable or
// locked; ISO_ERR_FORMAT: it is not an HDF5 file, is truncated or damaged, or its data sets do not
// fit; ISO_ERR_ARG: it has no such data set; ISO_ERR_UNSUPPORTED: this build has no HDF5.
iso_status iso__hdf5_open(const char *path, const char *const *names, int count, iso__hdf5 **out);
void iso__hdf5_close(iso__hdf5 **file);

// A run of consecutive samples of a data set, and where they go.
typedef struct iso__hdf5_run {
    int set;
    int64_t first, count;
    void *to; // [count, shape...]
} iso__hdf5_run;
// Reads runs, one after the other, without calls of other threads in between.
iso_status iso__hdf5_read(const iso__hdf5 *file, const iso__hdf5_run *runs, int64_t count);

#endif
