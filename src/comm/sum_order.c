// SPDX-License-Identifier: MIT
// The order in which blocks of several ranks are added.
#include "comm/request.h"

// Adds the first `pairs` pairs of neighbouring blocks, and makes the sums the first blocks.
static int add_pairs(const iso__engine *engine, char **block, int pairs, int count,
                     iso_dtype dtype) {
    for (int i = 0; i < pairs; i++) {
        int rc = MPI_Reduce_local(block[2 * i + 1], block[2 * i], count, iso__mpi_type(dtype),
                                  iso__mpi_sum(engine, dtype));
        if (rc != MPI_SUCCESS) return rc;
        block[i] = block[2 * i];
    }
    return MPI_SUCCESS;
}

int iso__sum_in_order(const iso__engine *engine, char **block, int blocks, int count,
                      iso_dtype dtype) {
    int power = 1;
    while (2 * power <= blocks) power *= 2;
    int beyond = blocks - power, rc = add_pairs(engine, block, beyond, count, dtype);
    for (int i = beyond; i < power; i++) block[i] = block[i + beyond];
    for (int left = power / 2; rc == MPI_SUCCESS && left > 0; left /= 2)
        rc = add_pairs(engine, block, left, count, dtype);
    return rc;
}
