// SPDX-License-Identifier: MIT
// Of the programs that compare two builds: choices that follow from a seed, and a hash of results.
#ifndef RANDOM_CASE_H
#define RANDOM_CASE_H

#include <isotherm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
static inline uint64_t next_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// From 0 to count - 1.
static inline int choose(uint64_t *state, int count) {
    return (int)(next_bits(state) % (uint64_t)count);
}

// True in one of `in` cases.
static inline bool one_in(uint64_t *state, int in) { return choose(state, in) == 0; }

// In [-1, 1), the same for the same numbers, whoever asks.
static inline double value_at(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t state = a * 0x2545f4914f6cdd1du + b;
    state = next_bits(&state) + c;
    return (double)(next_bits(&state) >> 40) * 0x1p-23 - 1;
}

// FNV-1a (Fowler, Noll, Vo), continued from hash.
#define HASH_START 0xcbf29ce484222325u
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t k = 0; k < bytes; k++) hash = (hash ^ p[k]) * 0x100000001b3u;
    return hash;
}

// Ends the job, after rank 0 has printed the error's code: two builds may word it differently.
static inline void check(iso_status status) {
    if (status >= 0) return;
    printf("error: %s\n", iso_status_string(status));
    fflush(stdout);
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

// Prints a hash of every rank's hash, in the order of ranks.
static inline void print_hash(iso_comm *comm, const char *what, uint64_t mine) {
    char *all = NULL;
    size_t *sizes = NULL;
    check(iso_comm_gather(comm, &mine, sizeof(mine), 0, &all, &sizes));
    if (iso_comm_rank(comm) == 0) {
        size_t bytes = (size_t)iso_comm_size(comm) * sizeof(mine);
        printf("%s %016llx\n", what, (unsigned long long)hash_bytes(HASH_START, all, bytes));
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
}

#endif
