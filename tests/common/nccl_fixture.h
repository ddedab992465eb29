// SPDX-License-Identifier: MIT
// For tests of several ranks with a GPU each: a small training with arrays of a device, whose
// gradients are summed by NCCL or through the host.
//
// On a machine with fewer GPUs than ranks, all ranks use the first GPU, each with a different
// NCCL_HOSTID. NCCL then connects them through sockets, like ranks of different hosts.
#ifndef ISO_TEST_NCCL_FIXTURE_H
#define ISO_TEST_NCCL_FIXTURE_H

#include "common/mpi_fixture.h"
#include "device/device_impl.h"
#include "exchange/coll_nccl.h"
#include "parallel/reducer/reducer_calls.h"

enum { NCCL_PARAMS = 6, NCCL_MOST = 3000, NCCL_STEPS = 6 };

typedef struct nccl_variant {
    bool gpu;
    bool exact; // gradients of few bits: sums are exact in any order
    bool slow;  // ranks run at random speeds, and report gradients in random order
    bool alone; // rank 0 calls finish; the others wait for parameters one by one
    iso_sync sync;
    iso_scope scope;
    iso_average_mode average;
    const iso_comm_hook *hook;
} nccl_variant;

typedef struct nccl_world {
    nccl_variant how;
    iso_device *device;
    iso_reducer *reducer;
    iso_tensor *value[NCCL_PARAMS], *gradient[NCCL_PARAMS],
        *place[NCCL_PARAMS]; // place: in the reducer
    unsigned seed;
} nccl_world;

typedef struct nccl_result {
    double value[NCCL_PARAMS][NCCL_MOST];
    iso_reducer_stats stats;
} nccl_result;

// On GPUs, with exact gradients, all else 0.
extern const nccl_variant nccl_by_gpu;

// Suite fixture, in place of test_mpi_setup: as many emulated GPUs as there may be ranks.
void nccl_setup(void);
// Skips the test where there is no GPU or no NCCL.
void nccl_skip(void);

// Each rank's own GPU, or for all the first one.
iso_status nccl_open_device(iso_device **out);
// Values and a reducer on w->device.
iso_status nccl_make_tensors(nccl_world *w);
iso_status nccl_make_reducer(nccl_world *w);
// Finds the reducer's memory of gradients. Call it again after each change of scope.
iso_status nccl_find_places(nccl_world *w);
// All of this.
iso_status nccl_create(nccl_world *w, const nccl_variant *how);
void nccl_destroy(nccl_world *w);

iso_status nccl_train_step(nccl_world *w, int step);
iso_status nccl_take_values(nccl_world *w, nccl_result *out);
iso_status nccl_run(nccl_world *w, nccl_result *out); // all steps
// Makes a whole run, from creation to destruction. The result is valid until the eighth call after
// this one.
nccl_result *nccl_train(const nccl_variant *how);
// The same on the CPU, at full speed.
nccl_result *nccl_train_on_cpu(const nccl_variant *how);

bool nccl_same_bits(const nccl_result *a, const nccl_result *b);
double nccl_distance(const nccl_result *a, const nccl_result *b);
bool nccl_same_on_all_ranks(const nccl_result *mine);
// Asserts that the GPU and the CPU compute the same bits, and that NCCL was used or not.
void nccl_is_exact(nccl_variant how, bool nccl);

#endif
