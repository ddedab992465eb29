// Private to the reducer: slots, buckets, and the state of each.
#ifndef ISO_REDUCER_IMPL_H
#define ISO_REDUCER_IMPL_H

#include "base/base.h"

#include "comm/channel.h"
#include "comm/coll_nccl.h"
#include "comm/comm_calls.h"
#include "device/device_impl.h"
#include "parallel/param_list.h"
#include "parallel/reducer_calls.h"

#include <isotherm/reducer.h>
#include <string.h>

// A parameter as those outside count them; slot piece_slot[start + k] is its piece k.
typedef struct iso__param_place {
    int start, pieces;
    int arrived; // pieces that have come back, where they are updated together
    size_t each; // elements of a piece but the last; 0: it is not cut
} iso__param_place;

// A parameter, or a piece of one.
typedef struct iso__grad_slot {
    char *name; // the parameter's
    int param, piece;
    bool cut;     // one of several pieces
    size_t first; // element of the parameter
    void *value;
    size_t count;
    size_t offset; // bytes into the arena
    iso_dtype dtype;
    int layer, bucket;
    bool local;   // not exchanged
    bool ready;   // gradient final for this backward
    bool used;    // by this rank's program, in the backward whose list is out
    bool skipped; // by all ranks, in the list that came back last
    bool update;  // step() was called: completing it applies the update
    bool keep;    // no zero_grad since it was issued: its gradient must become an average
    int owner;    // whose update; NOBODY: it is only averaged
} iso__grad_slot;
enum { ISO_NOBODY = -1 };

// OPEN: gradients are being written. LEAVING: on their way from the device to the host. POSTED:
// under way, memory belongs to the channel. ON_DEVICE: under way between GPUs; when its event
// comes, the device has the sum. REDUCED: holds the sum.
typedef enum iso__bucket_state {
    ISO_BUCKET_OPEN,
    ISO_BUCKET_LEAVING,
    ISO_BUCKET_POSTED,
    ISO_BUCKET_ON_DEVICE,
    ISO_BUCKET_REDUCED
} iso__bucket_state;

// Times of the latest exchange, sums over all, and what the plan is made of.
#define ISO_PLAN_ROUNDS 5
typedef struct iso__bucket_times {
    int64_t ready_ns, need_ns;                            // need_ns: 0 until it is needed
    int64_t origin_ns, origin_clock;                      // of its backward
    int round;                                            // of the plan's, which this backward is
    double ready_ms, start_ms, done_ms, need_ms, wait_ms; // sums, since the first gradient
    long long exchanges, needs;
    double plan_ready[ISO_PLAN_ROUNDS], plan_need[ISO_PLAN_ROUNDS]; // ms without waits
} iso__bucket_times;

// Slots of one element type, order[first] to order[last], adjacent in the arena: one all-reduce. Of
// a layer it holds all that are of its type.
typedef struct iso__bucket {
    char label[48]; // layer names, for traces and time-outs
    int first, last;
    iso_dtype dtype;
    bool local;  // not exchanged
    int missing; // slots not ready
    size_t offset, bytes;
    size_t host_offset, host_bytes; // the part that travels through the host's memory
    iso__bucket_state state;
    bool failed;                    // to begin: the hook did
    bool compressed;                // by the hook: the sum is in r->wire
    double factor;                  // makes the sum under way an average
    int lane;                       // of the channels, ISO_CHANNEL_SHORT or ISO_CHANNEL_LONG...
    int item;                       // ...and its place there
    size_t wire_offset, wire_bytes; // in r->wire, where a hook converts it
    size_t state_offset;            // floats, in r->hook_state
    iso__device_event *event;       // of a device: when its latest copy is complete
    bool staged;                    // what counts is in the arena, not in r->gradients
    iso__bucket_times times;
} iso__bucket;

// Short buckets do not queue behind the parts of long ones.
enum { ISO_CHANNEL_SHORT, ISO_CHANNEL_LONG, ISO_CHANNELS };

// How buckets travel in a scope.
typedef enum iso__way {
    ISO_WAY_UNKNOWN,
    ISO_WAY_HOST,  // through the arena; or not at all
    ISO_WAY_GPUS,  // by NCCL, between all ranks in scope
    ISO_WAY_SHARDS // by NCCL inside a node; the sum of this rank's shard of the node through the
                   // arena
} iso__way;

// Someone who updates parameters.
typedef struct iso__applier {
    iso_reducer_apply apply; // NULL: free
    iso_reducer_apply_piece apply_piece;
    void *user;
    void *hyper;
    size_t hyper_bytes;
    bool *mine;   // [slot_count]
    bool fresh;   // a whole list was issued that it has not used yet
    bool stepped; // hyper is in use by pending updates
} iso__applier;

struct iso_reducer {
    iso_comm *world, *node; // its own; node is NULL until a scope beyond the rank is asked for
    iso_scope scope;        // in force
    iso_comm *comm;         // over which it averages: world, node, or NULL for a rank alone
    iso__channel *channel[ISO_SCOPE_RANK][ISO_CHANNELS]; // of world and node; NULL until asked for
    iso__channel_item *item; // [bucket_count], to list what a channel carries
    bool arena_shared;       // with the ranks of the node
    iso_sync sync;
    iso_order want_order;
    iso_unused unused;
    iso_average_mode average;
    double split_factor;
    iso_comm_hook hook;
    char *wire;        // what travels of buckets that the hook converts
    float *hook_state; // of all such buckets
    size_t hook_state_count;
    iso__param_place *place; // [param_count]
    int param_count;
    int *piece_slot; // [slot_count]
    iso__grad_slot *slot;
    int slot_count;
    int *order;          // the slots, bucket by bucket
    iso__bucket *bucket; // in the agreed order: that in which a backward completes them
    int bucket_count;
    int issued;      // buckets that this backward has issued
    int busy;        // buckets that are not OPEN
    int ready_count; // slots ready in OPEN buckets of the list that is being issued
    char *arena;     // what travels, in memory of the host
    size_t arena_bytes;
    char *gradients;    // where backward writes them: the arena, or as many bytes of the device
    iso_device *device; // with memory of its own, or NULL
    bool pinned;        // the arena is of iso__pinned_alloc
    int leaving;        // buckets that are
    size_t bucket_unit; // buckets are multiples of so many bytes; 0: as their slots are
    bool wants_nccl;    // all ranks do
    bool equal_nodes;   // where they do: all nodes have as many ranks
    bool nccl_tried;
    iso__nccl *nccl;        // of the node; NULL until a scope asks for it, or where it cannot be
    iso_topology *topology; // of ISO_WAY_SHARDS
    iso__way ways[ISO_SCOPE_RANK];
    iso__way way; // of the scope in force
    iso__applier *applier;
    int applier_count;
    int only;           // iso_reducer_set_apply's, or ISO_NOBODY
    bool direct;        // two appliers share a parameter: steps wait and update at once
    bool fresh;         // a whole list was issued that no step has used yet
    bool always_closed; // its owner closes every backward: a step without a list is a mistake
    bool in_backward;   // of that owner, who has not closed it yet
    int unsynced;       // backwards since the last exchange whose gradients stay on this rank, see
                        // no_sync
    double weight, total; // see iso_reducer_set_weight
    double *used;         // [slots]: 1 where any rank has used it; of ISO_UNUSED_NEGOTIATE
    iso_request *used_request;
    int64_t origin_ns, origin_clock; // of the backward: now, and on the clock without waits
    int64_t waited_ns;
    long long lists; // issued whole so far
    bool planned;
    iso__channel_load load; // of the long channel, when planning began to watch
    iso_traffic traffic;
    iso_reducer_stats stats;
};

static inline iso__grad_slot *iso__piece_slot(const iso_reducer *r, int i, int k) {
    return &r->slot[r->piece_slot[r->place[i].start + k]];
}

// ---- param_list.c ----
// ISO_ERR_ARG where arrays overlap, or parameters of a layer stand apart; each has passed for
// itself.
iso_status iso__reducer_check_list(const iso_reducer_param *params, int count);

// ---- piece.c ----
// Makes r->slot and r->place of the parameters.
iso_status iso__reducer_make_slots(iso_reducer *r, const iso_reducer_param *params, int count,
                                   size_t piece_bytes);
void iso__reducer_free_slots(iso_reducer *r);
// Whether the gradient of each parameter lies in one piece of memory.
bool iso__reducer_is_contiguous(const iso_reducer *r);
// ISO_ERR_ARG unless there is a parameter i with a piece k.
iso_status iso__reducer_check_param(const iso_reducer *r, int i, int k);

// ---- bucket.c ----
// How layers are fused, see iso_reducer_config.
typedef struct iso_bucket_sizes {
    size_t cap, first, last;
    const size_t *list;
    int list_count;
} iso_bucket_sizes;
// Lays out the arena and the buckets from r->slot.
iso_status iso__reducer_make_buckets(iso_reducer *r, const iso_bucket_sizes *sizes);
// The same without the memory: buckets, order, offsets and arena_bytes.
iso_status iso__reducer_assign_buckets(iso_reducer *r, const iso_bucket_sizes *sizes);

// ---- bucket_text.c ----
void iso__reducer_log_buckets(const iso_reducer *r); // on rank 0

// ---- scope.c ----
// iso__reducer_set_scope with nothing pending, for a scope that has been checked.
iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope);
iso_status iso__reducer_make_node(iso_reducer *r); // collective
// Where all ranks are on one node, theirs is the faster way for the world too.
bool iso__reducer_world_is_node(const iso_reducer *r);
// False: exchanges are under way, and what they use must stay.
bool iso__reducer_free_channels(iso_reducer *r);
static inline iso__channel *iso__bucket_channel(const iso_reducer *r, const iso__bucket *b) {
    return r->channel[r->scope][b->lane];
}
static inline bool iso__bucket_converts(const iso_reducer *r, const iso__bucket *b) {
    return r->hook.compress && b->dtype == ISO_F32 && !b->local;
}

// ---- round.c ----
bool iso__bucket_travels(const iso_reducer *r, const iso__bucket *b);
// The bucket's gradients are in the arena.
iso_status iso__bucket_send(iso_reducer *r, iso__bucket *b);
// What its gradients are multiplied with before the sum, and the sum after it.
void iso__bucket_factors(const iso_reducer *r, const iso__bucket *b, double *before, double *after);

// ---- stage.c: between a device and the arena; nothing to do where gradients are in the arena ----
// Makes r->gradients.
iso_status iso__stage_create(iso_reducer *r, iso_device *device);
void iso__stage_destroy(iso_reducer *r);
// The arena moves into memory that the ranks of the node share; nothing may be pending.
iso_status iso__stage_share_arena(iso_reducer *r, void *shared);
void iso__stage_free_arena(iso_reducer *r);
iso_status iso__stage_zero(iso_reducer *r, size_t offset, size_t bytes); // of r->gradients
iso_status iso__stage_broadcast_values(iso_reducer *r);                  // of rank 0
iso_status iso__stage_out(iso_reducer *r, iso__bucket *b);
// Sends what has arrived in the arena; flush: waits for all that is LEAVING.
iso_status iso__stage_advance(iso_reducer *r);
iso_status iso__stage_flush(iso_reducer *r);
// What is launched from now on finds the sum in r->gradients.
iso_status iso__stage_in(iso_reducer *r, iso__bucket *b);

// ---- stage_nccl.c: between the GPUs of a node, by NCCL ----
// Collective, before buckets are laid out: whether all ranks want NCCL, and what suits it.
iso_status iso__gpus_layout(iso_reducer *r, iso_device *device);
// Collective: how buckets are to travel in this scope. Falls back to the host with a warning.
iso_status iso__gpus_choose_way(iso_reducer *r, iso_scope scope, iso__way *out);
// Says which part of each bucket goes through the host, as r->way has it.
void iso__gpus_place(iso_reducer *r);
// Over whom channels sum what goes through the host; NULL: nothing does.
iso_comm *iso__host_comm(const iso_reducer *r);
iso_status iso__gpus_post(iso_reducer *r, iso__bucket *b);
// What is launched from now on finds the bucket's sum in r->gradients.
iso_status iso__gpus_arrive(iso_reducer *r, iso__bucket *b);
iso_status iso__gpus_check(iso_reducer *r);  // the first error of NCCL, if there is one
iso_status iso__gpus_finish(iso_reducer *r); // waits for all that was posted
// All buckets once, with whatever they hold; waits.
iso_status iso__gpus_exchange_once(iso_reducer *r);

// ---- complete.c ----
// Where its data is that counts: in the arena, or in r->gradients.
iso_status iso__bucket_scale(iso_reducer *r, const iso__bucket *b, double factor);
iso_status iso__bucket_decompress(iso_reducer *r, iso__bucket *b);
iso_comm_hook_bucket iso__bucket_for_hook(const iso_reducer *r, const iso__bucket *b);
iso_status iso__bucket_wait(iso_reducer *r, iso__bucket *b);
// The same for what a channel carries: LEAVING or POSTED.
iso_status iso__bucket_await_channel(iso_reducer *r, iso__bucket *b);
// Waits for a bucket and converts: what is left are updates. Does nothing the second time.
iso_status iso__bucket_arrive(iso_reducer *r, iso__bucket *b);
// The same, then updates, and opens it again.
iso_status iso__bucket_complete(iso_reducer *r, iso__bucket *b);

// ---- apply.c ----
// Whatever of this bucket has an update to come.
iso_status iso__apply_bucket(iso_reducer *r, const iso__bucket *b, double scale);
void iso__appliers_free(iso_reducer *r);

// ---- order.c ----
// A backward began; a bucket was reported, was needed, has come back.
void iso__times_begin(iso_reducer *r);
void iso__times_ready(iso_reducer *r, iso__bucket *b);
void iso__times_need(iso_reducer *r, iso__bucket *b);
void iso__times_done(iso_reducer *r, iso__bucket *b, int64_t wait_start, int64_t wait_end);
// Collective, once enough was measured: completes all that is pending, and makes the plan. mine:
// whether this rank's step went well.
iso_status iso__reducer_plan(iso_reducer *r, iso_status mine);

#endif
