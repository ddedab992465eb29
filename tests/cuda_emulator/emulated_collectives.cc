// SPDX-License-Identifier: MIT
// Collectives of the emulated NCCL over shared memory. A buffer passes in rounds: every rank shows
// a part of its data in its slot, and when all have, each computes its own result from all slots.
#include "emulated_nccl.h"
#include "emulated_types.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace emulated {

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2, "as in the buffers");

size_t nccl_size(int type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

// ---- Coming together ----

static const size_t header_bytes = (sizeof(Segment) + 4095) / 4096 * 4096;

static size_t segment_bytes(int ranks) {
    return header_bytes + slot_bytes * static_cast<size_t>(ranks);
}

Communicator::~Communicator() {
    if (segment != nullptr) munmap(segment, segment_bytes(ranks));
}

void unlink_segment(const std::string &name) { shm_unlink(name.c_str()); }

static ncclResult_t map_segment(Communicator &c) {
    int file = shm_open(c.name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0) return ncclSystemError;
    size_t size = segment_bytes(c.ranks);
    bool sized = ftruncate(file, static_cast<off_t>(size)) == 0;
    void *p = sized ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (p == MAP_FAILED) {
        unlink_segment(c.name);
        return ncclSystemError;
    }
    c.segment = static_cast<Segment *>(p);
    c.slots = static_cast<char *>(p) + header_bytes;
    return ncclSuccess;
}

// As NCCL takes it: ranks with another NCCL_HOSTID are on another host.
static uint64_t host_id() {
    const char *text = getenv("NCCL_HOSTID");
    return text != nullptr ? std::hash<std::string>()(text) | 1 : 0;
}

static ncclResult_t present_oneself(Communicator &c) {
    int ranks = 0;
    if (!c.segment->ranks.compare_exchange_strong(ranks, c.ranks) && ranks != c.ranks) {
        set_message("the ranks disagree about the size of the communicator");
        return ncclInvalidArgument;
    }
    RankArea &area = c.segment->area[c.rank];
    if (area.present.exchange(1) != 0) {
        set_message("two processes have the same rank in a communicator");
        return ncclInvalidUsage;
    }
    area.device = c.device;
    area.host = host_id();
    if (c.segment->arrived.fetch_add(1) + 1 == c.ranks) unlink_segment(c.name);
    return ncclSuccess;
}

static ncclResult_t wait_for_others(Communicator &c) {
    Time limit = Clock::now() + std::chrono::seconds(settings().nccl_seconds);
    while (c.segment->arrived < c.ranks) {
        if (c.segment->failed || c.aborted || Clock::now() > limit) {
            set_message("not all ranks have come to the communicator");
            return ncclSystemError;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return ncclSuccess;
}

static ncclResult_t check_devices(const Communicator &c) {
    const RankArea *area = c.segment->area;
    for (int i = 0; i < c.ranks; ++i)
        for (int j = 0; j < i; ++j)
            if (area[i].device == area[j].device && area[i].host == area[j].host) {
                set_message("two ranks of a communicator use the same GPU");
                return ncclInvalidUsage;
            }
    return ncclSuccess;
}

ncclResult_t attach(Communicator &c) {
    ncclResult_t r = map_segment(c);
    if (r == ncclSuccess) r = present_oneself(c);
    if (r == ncclSuccess) r = wait_for_others(c);
    if (r == ncclSuccess) return check_devices(c);
    if (c.segment != nullptr) c.segment->failed = 1; // the others need not wait
    unlink_segment(c.name);
    return r;
}

// ---- Arithmetic, in the order of the ranks ----

template <class E>
static void sum_slots(const Communicator &c, size_t skip, size_t count, char *to) {
    E *sums = reinterpret_cast<E *>(to);
    for (int r = 0; r < c.ranks; ++r) {
        const E *part =
            reinterpret_cast<const E *>(c.slots + static_cast<size_t>(r) * slot_bytes) + skip;
        for (size_t i = 0; i < count; ++i)
            if (r == 0)
                sums[i] = part[i];
            else
                store(&sums[i], load(sums[i]) + load(part[i]));
    }
}

static void sum(const Communicator &c, int type, size_t skip, size_t count, char *to) {
    switch (type) {
    case ncclFloat32: sum_slots<float>(c, skip, count, to); break;
    case ncclFloat64: sum_slots<double>(c, skip, count, to); break;
    case ncclFloat16: sum_slots<f16>(c, skip, count, to); break;
    default: sum_slots<bf16>(c, skip, count, to);
    }
}

// ---- Rounds ----

static size_t round_count(const Collective &c) {
    size_t room = slot_bytes / nccl_size(c.what.type);
    if (c.what.kind == reduce_scatter) room /= static_cast<size_t>(c.comm->ranks);
    return std::min<size_t>(room, c.what.count - c.offset);
}

static void show(Collective &c, size_t count) {
    Communicator &m = *c.comm;
    size_t size = nccl_size(c.what.type), parts = 1;
    char *slot = m.slots + static_cast<size_t>(m.rank) * slot_bytes;
    if (c.what.kind == reduce_scatter) parts = static_cast<size_t>(m.ranks);
    if (c.what.kind == broadcast && c.what.root != m.rank) parts = 0;
    for (size_t p = 0; p < parts; ++p)
        memcpy(slot + p * count * size, real(c.send) + (p * c.what.count + c.offset) * size,
               count * size);
}

static void take(Collective &c, size_t count) {
    Communicator &m = *c.comm;
    size_t size = nccl_size(c.what.type);
    char *to = real(c.recv) + c.offset * size;
    if (c.what.kind == all_reduce)
        sum(m, c.what.type, 0, count, to);
    else if (c.what.kind == reduce_scatter)
        sum(m, c.what.type, static_cast<size_t>(m.rank) * count, count, to);
    else if (c.what.kind == broadcast)
        memcpy(to, m.slots + static_cast<size_t>(c.what.root) * slot_bytes, count * size);
    else
        for (size_t r = 0; r < static_cast<size_t>(m.ranks); ++r)
            memcpy(to + r * c.what.count * size, m.slots + r * slot_bytes, count * size);
}

static bool all_consumed(const Communicator &m, uint64_t round) {
    for (int r = 0; r < m.ranks; ++r)
        if (m.segment->area[r].consumed < round) return false;
    return true;
}

static bool all_posted(const Communicator &m, uint64_t round) {
    for (int r = 0; r < m.ranks; ++r)
        if (m.segment->area[r].posted < round) return false;
    return true;
}

static bool same(const Description &a, const Description &b) {
    return a.kind == b.kind && a.type == b.type && a.root == b.root && a.count == b.count;
}

static bool all_agree(const Communicator &m) {
    for (int r = 1; r < m.ranks; ++r)
        if (!same(m.segment->area[r].description, m.segment->area[0].description)) return false;
    return true;
}

static bool post(Collective &c) {
    Communicator &m = *c.comm;
    if (!all_consumed(m, m.round)) return false;
    show(c, round_count(c));
    m.segment->area[m.rank].description = c.what;
    m.segment->area[m.rank].posted = ++m.round;
    return c.posted = true;
}

static bool finish_round(Collective &c) {
    Communicator &m = *c.comm;
    if (!all_posted(m, m.round)) return false;
    if (!all_agree(m)) {
        set_message("the ranks of a communicator call different collectives");
        m.error = ncclInvalidUsage;
        return false;
    }
    size_t count = round_count(c);
    take(c, count);
    m.segment->area[m.rank].consumed = m.round;
    c.offset += count;
    c.posted = false;
    return true;
}

// Which communicator's collective is on a device. There is room for one at a time, so that ranks
// that bring collectives of two communicators into different orders wait for ever.
static std::map<int, const Communicator *> &residents() {
    static auto *all = new std::map<int, const Communicator *>;
    return *all;
}

static Outcome leave(Communicator &m) {
    const Communicator *&resident = residents()[m.device];
    if (resident == &m) resident = nullptr;
    ++m.finished;
    return Outcome::done;
}

Outcome advance(Collective &c) {
    Communicator &m = *c.comm;
    if (m.aborted || m.error != ncclSuccess) return leave(m);
    const Communicator *&resident = residents()[m.device];
    if (m.finished != c.sequence || (resident != nullptr && resident != &m)) return Outcome::later;
    resident = &m;
    while (c.offset < c.what.count)
        if (!(c.posted ? finish_round(c) : post(c)))
            return m.error != ncclSuccess ? leave(m) : Outcome::later;
    return leave(m);
}

} // namespace emulated
