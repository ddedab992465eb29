// Gradients of GPUs that NCCL sums inside a node: the host enters the sums into the GPU's queues
// and does not wait for them.
//
// Ranks of one node: each bucket is one all-reduce. Several nodes of equally many ranks: a
// reduce-scatter leaves each rank with one shard of its node's sum; shards go through the host and
// are summed with those of the same place on the other nodes; an all-gather shares them out.
//
// Why no rank can wait for ever. Calls of NCCL come in one order on all ranks of a node: for each
// list first what sums (all-reduces, reduce-scatters), in the order of the buckets, then, where
// there are shards, the all-gathers, from the last bucket (which the next forward needs first) to
// the first; a list begins when the one before is complete on this rank. (Blocking, each bucket's
// two follow each other at once.) Take the first call in this order, over all nodes, that some rank
// has not made or that is not complete on some GPU.
//   - A sum: between two sums of a list a rank waits for nothing (blocking: for the bucket before,
//     which is complete), so all ranks that report their gradients make the call. What it waits for
//     on the GPU is local compute, and that waits for calls before it.
//   - An all-gather: a rank makes it when the shard has come back from the other nodes. By then all
//     sums of its list are made, so every rank's shards get to its host; there they travel through
//     channels (channel.h), which nobody enters with anything left out, and come back.
// Hence the call is made everywhere, and completes. What this asks of a program: each rank's next
// call after a step may come late, but not only after another rank of its node has *read* values of
// this step (those wait for the all-gather that the late one has not made). A step that all ranks
// complete (iso_reducer_finish) before anything else avoids that.
// A reducer has one communicator of NCCL. Programs with several reducers use them in the same order
// on all ranks anyway.
#include "parallel/reducer_impl.h"

#include "comm/traffic.h"

#include <isotherm/trace.h>

static const iso__remote_ops *remote(const iso_reducer *r) { return r->device->ops->remote; }

// ---- Which way --------------------------------------------------------------------------------------

static iso_status wants_nccl(const iso_reducer *r, const iso_device *device, bool *out) {
    int mode;
    ISO_TRY(iso__node_collective(&mode));
    *out = device && !device->ops->host_memory && strcmp(device->ops->name, "cuda") == 0 &&
           (mode == ISO_NODE_AUTO || mode == ISO_NODE_NCCL) && !r->hook.silent &&
           r->sync != ISO_SYNC_NONE;
    return ISO_OK;
}

// Shards are whole multiples of what slots are aligned to.
iso_status iso__gpus_layout(iso_reducer *r, iso_device *device) {
    bool mine = false;
    ISO_TRY(iso_comm_agree(r->world, wants_nccl(r, device, &mine)));
    int64_t all = mine && iso_comm_size(r->world) > 1;
    ISO_TRY(iso_comm_allreduce_i64(r->world, &all, 1, ISO_MIN));
    if (!all) return ISO_OK;
    ISO_TRY(iso__reducer_make_node(r));
    int64_t range[2] = {iso_comm_size(r->node), -iso_comm_size(r->node)};
    ISO_TRY(iso_comm_allreduce_i64(r->world, range, 2, ISO_MAX));
    r->wants_nccl = true;
    r->equal_nodes = range[0] == -range[1];
    if (r->equal_nodes) r->bucket_unit = 64 * (size_t)range[0];
    return ISO_OK;
}

// The worst that any rank has to tell: 0 nothing, 1 NCCL cannot be used, 2 an error.
static iso_status worst_of(iso_reducer *r, iso_status mine, int64_t *out) {
    *out = mine >= 0 ? 0 : mine == ISO_ERR_UNSUPPORTED ? 1 : 2;
    return iso_comm_allreduce_i64(r->world, out, 1, ISO_MAX);
}

// Where one node cannot, none does: sums of all nodes are made alike.
static iso_status make_nccl(iso_reducer *r) {
    int mode;
    int64_t worst;
    if (r->nccl_tried) return ISO_OK;
    r->nccl_tried = true;
    iso_status mine = ISO_OK;
    if (iso_comm_size(r->node) > 1) mine = iso__nccl_create(r->node, r->device, &r->nccl);
    iso_status agreed = iso_comm_agree(r->world, mine);
    if (agreed == ISO_OK) return ISO_OK;
    char why[400];
    snprintf(why, sizeof(why), "%.390s", iso_last_error()->message);
    iso__nccl_destroy(&r->nccl);
    ISO_TRY(worst_of(r, mine, &worst));
    ISO_CHECK(worst < 2, agreed == ISO_ERR_UNSUPPORTED ? ISO_ERR_DEVICE : agreed, "%s", why);
    ISO_TRY(iso__node_collective(&mode));
    ISO_CHECK(mode != ISO_NODE_NCCL, ISO_ERR_UNSUPPORTED, "ISO_NODE_COLLECTIVE is nccl, but %s",
              why);
    if (iso_comm_rank(r->world) == 0)
        iso__log(ISO_LOG_WARN, "gradients go through the host's memory, not by NCCL: %s", why);
    return ISO_OK;
}

static void say(const iso_reducer *r, const char *what) {
    if (iso_comm_rank(r->world) == 0) iso__log(ISO_LOG_INFO, "gradients of GPUs: %s", what);
}

// Settings that speak against it. The same on all ranks.
static bool stays_on_host(const iso_reducer *r, bool shards) {
    const char *why = NULL;
    if (!shards && r->hook.compress)
        why = "through the host, where the communication hook converts them";
    if (shards && !r->equal_nodes)
        why = "through the host, as nodes have different numbers of ranks";
    if (why) say(r, why);
    return why || (shards && iso_comm_size(r->node) == 1);
}

static iso_status decide(iso_reducer *r, iso_scope scope, iso__way *out) {
    bool shards = scope == ISO_SCOPE_WORLD && !iso__reducer_world_is_node(r);
    *out = ISO_WAY_HOST;
    if (stays_on_host(r, shards)) return ISO_OK;
    ISO_TRY(make_nccl(r));
    if (!r->nccl) return ISO_OK; // also on the one rank of a node
    if (shards && !r->topology) ISO_TRY(iso_topology_create(r->world, NULL, &r->topology));
    say(r, shards ? "NCCL inside nodes, shards through the host between them"
                  : "NCCL inside the node");
    *out = shards ? ISO_WAY_SHARDS : ISO_WAY_GPUS;
    return ISO_OK;
}

iso_status iso__gpus_choose_way(iso_reducer *r, iso_scope scope, iso__way *out) {
    *out = ISO_WAY_HOST;
    if (!r->wants_nccl || scope == ISO_SCOPE_RANK) return ISO_OK;
    if (r->ways[scope] == ISO_WAY_UNKNOWN) ISO_TRY(decide(r, scope, &r->ways[scope]));
    *out = r->ways[scope];
    return ISO_OK;
}

void iso__gpus_place(iso_reducer *r) {
    bool shards = r->way == ISO_WAY_SHARDS;
    size_t parts = shards ? (size_t)iso_comm_size(r->node) : 1;
    size_t mine = shards ? (size_t)iso_comm_rank(r->node) : 0;
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        b->host_bytes = b->bytes / parts;
        b->host_offset = b->offset + mine * b->host_bytes;
        b->wire_bytes = b->host_bytes;
        if (iso__bucket_converts(r, b))
            b->wire_bytes = b->host_bytes / sizeof(float) * iso_dtype_size(r->hook.wire);
    }
}

iso_comm *iso__host_comm(const iso_reducer *r) {
    if (r->way == ISO_WAY_GPUS) return NULL;
    return r->way == ISO_WAY_SHARDS ? r->topology->leaders[r->topology->local_rank] : r->comm;
}

// ---- Out --------------------------------------------------------------------------------------------

static size_t count_of(const iso__bucket *b, size_t bytes) {
    return bytes / iso_dtype_size(b->dtype);
}

// Enters the node's sum behind what the GPU has been given so far.
static iso_status enter_sum(iso_reducer *r, iso__bucket *b) {
    void *data = r->gradients + b->offset;
    ISO_TRY(remote(r)->record(r->device, ISO__QUEUE_COMPUTE, b->event));
    if (r->way == ISO_WAY_GPUS)
        return iso__nccl_all_reduce(r->nccl, data, count_of(b, b->bytes), b->dtype, b->label,
                                    b->event);
    ISO_TRY(iso__nccl_reduce_scatter(r->nccl, data, count_of(b, b->host_bytes), b->dtype, b->label,
                                     b->event));
    ISO_TRY(remote(r)->follow(r->device, ISO__QUEUE_OUT, b->event));
    ISO_TRY(remote(r)->copy(r->device, ISO__QUEUE_OUT, r->gradients + b->host_offset,
                            r->arena + b->host_offset, b->host_bytes));
    return remote(r)->record(r->device, ISO__QUEUE_OUT, b->event);
}

iso_status iso__gpus_post(iso_reducer *r, iso__bucket *b) {
    double before;
    bool world = r->scope == ISO_SCOPE_WORLD && r->way == ISO_WAY_GPUS;
    iso__bucket_factors(r, b, &before, &b->factor);
    ISO_TRY(iso__bucket_scale(r, b, before));
    ISO_TRY(enter_sum(r, b));
    *(world ? &r->stats.bytes_world : &r->stats.bytes_node) += (long long)b->bytes;
    iso__count_node_sum(&r->traffic, r->node, b->bytes); // with shards in two halves
    if (r->way == ISO_WAY_GPUS) {
        b->state = ISO_BUCKET_ON_DEVICE;
        r->stats.exchanges++;
        return ISO_OK;
    }
    b->state = ISO_BUCKET_LEAVING;
    b->staged = true;
    r->leaving++;
    return ISO_OK;
}

// ---- In ---------------------------------------------------------------------------------------------

// The shard is back in the arena: it goes to all GPUs of the node.
static iso_status enter_gather(iso_reducer *r, iso__bucket *b) {
    ISO_TRY(remote(r)->copy(r->device, ISO__QUEUE_IN, r->arena + b->host_offset,
                            r->gradients + b->host_offset, b->host_bytes));
    ISO_TRY(remote(r)->record(r->device, ISO__QUEUE_IN, b->event));
    return iso__nccl_all_gather(r->nccl, r->gradients + b->offset, count_of(b, b->host_bytes),
                                b->dtype, b->label, b->event);
}

static iso_status gather(iso_reducer *r, iso__bucket *b) {
    if (b->state != ISO_BUCKET_LEAVING && b->state != ISO_BUCKET_POSTED) return ISO_OK;
    ISO_TRY(iso__bucket_await_channel(r, b));
    if (b->compressed) ISO_TRY(iso__bucket_decompress(r, b));
    ISO_TRY(enter_gather(r, b));
    b->staged = false;
    b->state = ISO_BUCKET_ON_DEVICE;
    return ISO_OK;
}

// In the order that all ranks share, whichever bucket is asked for first on this one.
static iso_status gather_up_to(iso_reducer *r, iso__bucket *b) {
    if (r->sync != ISO_SYNC_LAZY) return gather(r, b);
    for (iso__bucket *k = &r->bucket[r->bucket_count - 1]; k >= b; k--) ISO_TRY(gather(r, k));
    return ISO_OK;
}

static iso_status wait_for_gpus(iso_reducer *r) {
    int64_t start = iso_now();
    ISO_TRY(iso__nccl_finish(r->nccl));
    int64_t waited = iso_now() - start;
    r->waited_ns += waited;
    r->stats.wait_ms += (double)waited * 1e-6;
    return ISO_OK;
}

iso_status iso__gpus_arrive(iso_reducer *r, iso__bucket *b) {
    ISO_TRY(iso__gpus_check(r));
    ISO_TRY(gather_up_to(r, b));
    if (b->state != ISO_BUCKET_ON_DEVICE) return ISO_OK;
    if (r->sync != ISO_SYNC_LAZY) ISO_TRY(wait_for_gpus(r));
    ISO_TRY(remote(r)->follow(r->device, ISO__QUEUE_COMPUTE, b->event));
    b->state = ISO_BUCKET_REDUCED;
    return ISO_OK;
}

iso_status iso__gpus_check(iso_reducer *r) { return r->nccl ? iso__nccl_check(r->nccl) : ISO_OK; }

// What is asked for now may be looked at from outside: an error must not come after that.
iso_status iso__gpus_finish(iso_reducer *r) { return r->nccl ? wait_for_gpus(r) : ISO_OK; }

// ---- Measuring --------------------------------------------------------------------------------------

static iso_status shards_once(iso_reducer *r) {
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        if (b->local) continue;
        ISO_TRY(remote(r)->wait(r->device, b->event)); // a copy: the sums are complete
        ISO_TRY(iso__channel_ready(iso__bucket_channel(r, b), b->item));
    }
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        if (b->local) continue;
        ISO_TRY(iso__channel_wait(iso__bucket_channel(r, b), b->item, NULL, NULL));
        ISO_TRY(enter_gather(r, b));
    }
    return ISO_OK;
}

iso_status iso__gpus_exchange_once(iso_reducer *r) {
    for (int i = 0; i < r->bucket_count; i++)
        if (!r->bucket[i].local) ISO_TRY(enter_sum(r, &r->bucket[i]));
    ISO_TRY(iso__nccl_finish(r->nccl));
    if (r->way == ISO_WAY_SHARDS) ISO_TRY(shards_once(r));
    return iso__nccl_finish(r->nccl);
}
