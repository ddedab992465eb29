// SPDX-License-Identifier: MIT
// Private to the library: functions of communicators beyond isotherm/comm.h.
#ifndef ISO_COMM_CALLS_H
#define ISO_COMM_CALLS_H

#include "base/base.h"
#include "comm/idle.h"

#include <isotherm/topology.h>

// Collective over mpi, which is one of the library's own (iso_comm_mpi, or made of such). Creates a
// communicator with the progress mode and time-out of `like`.
// Without long_requests it needs one MPI communicator instead of two: iso_comm_iallreduce beyond
// 512 KiB and blocks beyond 60 KiB are then ISO_ERR_STATE. Channels, blocking collectives and
// iso__comm_iallreduce_max may be of any length.
iso_status iso__comm_create_like(const iso_comm *like, MPI_Comm mpi, bool long_requests,
                                 iso_comm **out);
// Seconds before a wait gives up; 0: never.
double iso__comm_timeout(const iso_comm *comm);
// Whether MPI_Finalize was called; other ranks can then no longer be reached.
bool iso__comm_is_finalized(const iso_comm *comm);
// Local. Whether both have the same ranks in the same order. Returns false if MPI cannot say.
bool iso__comm_same_ranks(const iso_comm *a, const iso_comm *b);

// The length to which to pad a reduction of `count` numbers. For fewer numbers than the largest
// power of two up to P, Open MPI replaces Rabenseifner's algorithm by a ring, which takes 2 (P - 1)
// rounds instead of 2 log2(P).
size_t iso__comm_reduction_room(const iso_comm *comm, size_t count);

// Collective. Zeroed memory on every rank, which the caller frees. If a rank has none: an error on
// every rank (iso_comm_agree), and NULL.
iso_status iso__comm_alloc_zero(iso_comm *comm, size_t bytes, void **out);

// Collective. Broadcasts arrays from rank 0, short ones together. All ranks give arrays of the same
// lengths in the same order.
typedef struct iso__block {
    void *data;
    size_t bytes;
} iso__block;
iso_status iso__comm_bcast_list(iso_comm *comm, const iso__block *block, int count);

// Collective. Whether all ranks give the same number.
iso_status iso__comm_all_same(iso_comm *comm, uint64_t number, bool *out);
// ISO_ERR_MISMATCH, naming `what`, unless all ranks give the same number. Collective.
iso_status iso__comm_check_equal(iso_comm *comm, int64_t number, const char *what);

// Local. Zeroed private memory, aligned to 64 bytes, that can be shared later.
iso_status iso__shareable_alloc(size_t bytes, void **memory);
void iso__shareable_free(void **memory); // once it is no longer shared; accepts NULL
// Collective. Shares memory of iso__shareable_alloc that has the same length on every rank and no
// pending exchange. It keeps its address and contents. From now on all-reduces of f32 at equal
// places in it go through shared memory, if the ranks share memory and ISO_NODE_COLLECTIVE allows
// it. Otherwise, and for a second memory of one communicator, nothing changes, unless
// ISO_NODE_COLLECTIVE is shm: then there must be shared memory (ISO_ERR_UNSUPPORTED).
iso_status iso__comm_share(iso_comm *comm, void *memory);
// Local. Ends the sharing. May also be called if nothing was shared, and after MPI_Finalize. No
// exchange in the memory may be pending.
void iso__comm_unshare(iso_comm *comm, void *memory);
// Whether data lies in shared memory, so that exchanges in it go through shared memory.
bool iso__comm_is_shared(const iso_comm *comm, const void *data, size_t bytes);

// The value of ISO_NODE_COLLECTIVE; ISO_ERR_ARG if it is invalid. NCCL and NCCL_ALL apply to memory
// of GPUs; for other memory they mean AUTO. Without NCCL in the build, exchange refuses them.
enum { ISO_NODE_AUTO, ISO_NODE_SHM, ISO_NODE_MPI, ISO_NODE_NCCL, ISO_NODE_NCCL_ALL };
iso_status iso__node_collective(int *out);
// Collective (hosts.c). The first finds which ranks are on the same host, so that they may share
// memory: lowest[r] is the lowest rank on the host of rank r, for all ranks of comm. The second
// finds whether all ranks are on one host.
iso_status iso__comm_find_hosts(iso_comm *comm, int64_t *lowest);
iso_status iso__comm_on_one_host(iso_comm *comm, bool *out);

// Collective. Creates a communicator of this rank's group among groups of `ranks` consecutive ranks
// (the last one may be smaller), which the caller owns. long_requests: as in iso__comm_create_like.
iso_status iso__comm_create_group(iso_comm *comm, int ranks, bool long_requests, iso_comm **out);
// Collective. Creates a communicator of the ranks of this rank's unit, which the caller owns.
// long_requests: as in iso__comm_create_like.
iso_status iso__comm_create_node(iso_comm *comm, iso_scope unit, bool long_requests,
                                 iso_comm **out);

// As iso_topology_create. long_requests: as in iso__comm_create_like, for all of its communicators.
iso_status iso__topology_create(iso_comm *comm, const iso_topology_config *config,
                                bool long_requests, iso_topology **out);

// As iso_request_wait. *done_ns is the time at which the exchange was seen to be complete
// (iso_now).
iso_status iso__request_finish(iso_request **request, int64_t *done_ns);
iso_status iso__request_test(iso_request **request, int64_t *done_ns); // as iso_request_test
// As iso_request_wait, but calls idle->call while it waits: at first, after any exchange of this
// process has completed, and again at once if the call did something.
iso_status iso__request_wait_idle(iso_request **request, const iso__idle *idle);
// Local. From now on `idle` applies to every wait on comm itself, for a non-blocking exchange or in
// a blocking call. idle.call must not wait on comm. With idle.call NULL, `idle` no longer applies.
void iso__comm_set_idle(iso_comm *comm, iso__idle idle);
bool iso__comm_is_idle(const iso_comm *comm); // whether an idle function is set

// ---- Collectives of other libraries (outside.c) -------------------------------------------------

// Counts the collectives of a library such as NCCL, so that messages can name the ranks that keep
// the others waiting. Any thread may call these functions, even one that must not call MPI, but
// only one thread at a time.
typedef struct iso__outside iso__outside;
// Local, but all ranks of comm must create these and its channels in the same order. Retains comm.
iso_status iso__outside_create(iso_comm *comm, iso__outside **out);
void iso__outside_destroy(iso__outside **outside); // accepts NULL
void iso__outside_count(iso__outside *outside);    // this rank has begun one
// This rank has waited since since_ns (iso_now) for `what`, the oldest of the last `under_way`
// collectives. Call it repeatedly during the wait: it leaves a mark for ISO_STEP_TIMEOUT, and logs
// a warning when one is due.
void iso__outside_wait(iso__outside *outside, const char *what, int under_way, int64_t since_ns);
void iso__outside_rest(iso__outside *outside); // it waits no longer; accepts NULL
// Which ranks are missing, as a clause.
const char *iso__outside_verdict(const iso__outside *outside, int under_way, char *text,
                                 size_t room);

// ---- Comparison of collectives (debug.c) -----------------------------------------------------------

// Collective over comm, in the order in which the ranks call collectives on it. Does nothing unless
// ISO_DEBUG=detail. The line, formatted as by printf, contains everything in which the ranks must
// agree, e.g. "a sum of 3 f64 numbers". ISO_ERR_MISMATCH on every rank names the first rank with
// another line, and both lines. ISO_ERR_TIMEOUT names ranks that do not arrive.
iso_status iso__debug_match(iso_comm *comm, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// ---- Further non-blocking collectives (exchange.c), waited for like an all-reduce -----------------

// Collective. Block b of `send` goes to rank b; block b of `recv` came from rank b. Blocks are
// multiples of 4 bytes, of any length. Both buffers belong to the operation until it completes.
iso_status iso__comm_ialltoall(iso_comm *comm, const void *send, void *recv, size_t block_bytes,
                               const char *name, iso_request **out);
// Collective. data holds one block per rank; this rank contributes block `rank`. On completion data
// holds all blocks.
iso_status iso__comm_iallgather(iso_comm *comm, void *data, size_t block_bytes, const char *name,
                                iso_request **out);
// Collective. bytes: a multiple of 64.
iso_status iso__comm_ibcast(iso_comm *comm, void *data, size_t bytes, int root, const char *name,
                            iso_request **out);
// Two operations: sends `bytes` to rank `to`, and receives as many from rank `from`. Both ranks may
// be this one. Rank `to` must call this with this rank as `from`, and rank `from` with this rank as
// `to`. bytes: a multiple of 64. `send` belongs to the first operation, `recv` to the second. If
// this fails, one operation may have begun all the same. *sent or *received is NULL if its
// operation has not begun.
typedef struct iso__messages {
    const void *send;
    void *recv;
    size_t bytes;
    int to, from;
} iso__messages;
iso_status iso__comm_imessages(iso_comm *comm, const iso__messages *messages, const char *name,
                               iso_request **sent, iso_request **received);
// Sends `bytes` to rank `with`, or, if `send` is NULL, receives them from that rank. Messages with
// the same tag between two ranks are received in the order in which they are sent. Nothing else is
// ordered, so ranks may begin messages in different orders. A wait for a message cannot tell which
// rank is late. bytes: a multiple of 64, the same on both ranks. The memory belongs to the message
// until it completes.
typedef struct iso__message {
    const void *send;
    void *recv;
    size_t bytes;
    int with, tag; // tag: from 1
} iso__message;
iso_status iso__comm_imessage(iso_comm *comm, const iso__message *message, const char *name,
                              iso_request **out);
// Collective. Replaces each number by its maximum over all ranks.
iso_status iso__comm_iallreduce_max(iso_comm *comm, double *data, int count, const char *name,
                                    iso_request **out);

#endif
