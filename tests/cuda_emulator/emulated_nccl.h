// SPDX-License-Identifier: MIT
// What the two halves of the emulated NCCL share: a communicator and its collectives.
#ifndef EMULATED_NCCL_INTERNAL_H
#define EMULATED_NCCL_INTERNAL_H

#include <nccl.h>

#include <atomic>
#include <string>

#include "emulated_internal.h"

namespace emulated {

enum { max_ranks = 64 };
static const size_t slot_bytes = 1 << 20; // what a rank shows to the others at a time

struct Description { // of a collective; must be the same on all ranks
    int kind, type, root;
    uint64_t count;
};

struct RankArea {
    std::atomic<int> present;
    int device;
    uint64_t host;                          // of NCCL_HOSTID
    std::atomic<uint64_t> posted, consumed; // rounds, from 1
    Description description;
};

// The shared memory of a communicator; all zero in the beginning. The ranks' slots follow.
struct Segment {
    std::atomic<int> ranks, arrived, failed;
    RankArea area[max_ranks];
};

enum Kind { all_reduce = 1, reduce_scatter, all_gather, broadcast };

struct Communicator {
    int rank = 0, ranks = 0, device = 0;
    std::string name; // of the segment
    Segment *segment = nullptr;
    char *slots = nullptr;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{ncclSuccess};
    uint64_t issued = 0; // under the state's lock
    std::atomic<uint64_t> finished{0};
    uint64_t round = 0; // for the executor
    ~Communicator();
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

struct Collective {
    CommunicatorPtr comm;
    Description what;
    const char *send;
    char *recv;
    uint64_t sequence = 0;
    uint64_t offset = 0; // elements that are finished
    bool posted = false; // this round's part has been shown to the others
};

// emulated_collectives.cc
size_t nccl_size(int type);
// Joins the others; blocks until all have come, the time is over or the communicator is aborted.
ncclResult_t attach(Communicator &comm);
void unlink_segment(const std::string &name);
// Does as much of the collective as the other ranks permit.
Outcome advance(Collective &collective);
void set_message(const char *text);

} // namespace emulated

#endif
