// SPDX-License-Identifier: MIT
// For tests of communication hooks that own their exchange: hooks whose result is the plain sum in
// the order of the ranks, and several ranks simulated by one process.
#ifndef ISO_TEST_HOOK_FIXTURE_H
#define ISO_TEST_HOOK_FIXTURE_H

#include <isotherm/comm_hook.h>
#include <stdint.h>

// Each hook sums f32 and f64 buckets over the ranks. The bits are those of additions in the order
// of the ranks (with integers, of any order).
typedef enum hook_way {
    HOOK_SUM,      // one phase: a sum
    HOOK_GATHER,   // one phase: everything to everybody
    HOOK_EXCHANGE, // two phases: an all-to-all of shards, then a gather of their sums
    HOOK_THREE,    // three phases: the same after a sum of one element per bucket
    HOOK_MIXED, // these four in turn, bucket by bucket, and a bucket that the hook does not handle
    HOOK_WAYS
} hook_way;
// The reducer copies this (user_bytes).
typedef struct hook_user {
    hook_way way;
    int fail_phase, fail_bucket; // where run fails; fail_phase negative: never
} hook_user;
iso_comm_hook hook_of_way(hook_user *user, hook_way way);

// A bucket on each of several ranks, in one process.
enum { PLAYED_RANKS = 5, PLAYED_COUNT = 2000, PLAYED_TENSORS = 4 };
typedef struct played {
    int ranks;
    size_t count;
    iso_comm_hook hook;
    iso_comm_hook_tensor tensor[PLAYED_TENSORS];
    int tensor_count;
    iso_comm_hook_plan plan;
    float *gradient[PLAYED_RANKS], *state[PLAYED_RANKS];
    void *data[PLAYED_RANKS][ISO_COMM_HOOK_PHASES];
    long long exchange; // the number of the next one
} played;

// Set ranks, count, hook and tensors before the call. Asserts that all ranks declare the same plan.
void played_open(played *p);
void played_close(played *p);
// One exchange, with factors of 1 and 1 / ranks.
void played_exchange(played *p);
void played_exchange_with(played *p, double before, double after);
// Random gradients in -1 .. 1, the same for the same key, rank, step and element.
float played_drawn(uint32_t key, uint32_t rank, uint32_t step, size_t i);
// Draws those of all ranks.
void played_draw(played *p, uint32_t key, uint32_t step);
double played_mean(const played *p, uint32_t key, uint32_t step, size_t i);
// Asserts that all ranks have the same gradients.
void played_assert_equal(const played *p);

#endif
