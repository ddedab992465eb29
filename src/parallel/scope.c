// Over whom gradients are averaged: the communicator of each scope, and the memory that suits it.
#include "parallel/reducer_impl.h"

#include "comm/traffic.h"

const char *iso__scope_name(iso_scope scope) {
    static const char *const name[] = {"world", "node", "rank"};
    return name[scope];
}

iso_status iso__scope_check(iso_scope scope) {
    ISO_CHECK((int)scope >= 0 && scope <= ISO_SCOPE_RANK, ISO_ERR_ARG,
              "unknown scope %d of gradient averaging", (int)scope);
    return ISO_OK;
}

// Memory for gradients that the ranks of a node share. Other scopes use that memory like any other.
static iso_status share_arena(iso_reducer *r) {
    void *arena;
    ISO_TRY(iso__comm_shared_alloc(r->node, r->arena_bytes, &arena));
    iso_status status = iso__stage_share_arena(r, arena);
    if (status < 0) iso__comm_shared_free(r->node, &arena);
    // A device may refuse on one rank; the others must not go on without it.
    if (r->device) status = iso_comm_agree(r->node, status);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__reducer_make_node(iso_reducer *r) {
    if (r->node) return ISO_OK;
    ISO_TRY(iso__comm_create_node(r->world, ISO_SCOPE_NODE, false, &r->node));
    return iso__comm_place_part(r->node, r->world);
}

bool iso__reducer_world_is_node(const iso_reducer *r) {
    return iso_comm_size(r->node) == iso_comm_size(r->world);
}

// ---- Channels ----------------------------------------------------------------------------------------

// Of a long bucket so many bytes travel at a time, so many times over, until a plan says otherwise:
// enough to fill a link, and little for a short bucket to wait behind.
#define PART_BYTES   ((size_t)128 * 1024)
#define WINDOW_BYTES (4 * PART_BYTES)

// Whether exchanges are sums in memory that all ranks in scope share.
static bool sums_in_memory(const iso_reducer *r) {
    return r->comm && r->comm == r->node && iso__comm_is_shared(r->node, r->arena, r->arena_bytes);
}

static iso__channel_item item_of(const iso_reducer *r, const iso__bucket *b) {
    bool converts = iso__bucket_converts(r, b);
    return (iso__channel_item){.data =
                                   converts ? r->wire + b->wire_offset : r->arena + b->host_offset,
                               .bytes = b->wire_bytes,
                               .dtype = converts ? r->hook.wire : b->dtype,
                               .label = b->label};
}

// Which channel a bucket takes depends on its length alone. Shared memory sums everything in the
// order in which it was posted, so there it must be one channel.
static int lane_of(const iso_reducer *r, const iso__bucket *b) {
    return !sums_in_memory(r) && b->wire_bytes > PART_BYTES ? ISO_CHANNEL_LONG : ISO_CHANNEL_SHORT;
}

// Gives the buckets of a lane their places, and says what they are.
static int list_items(iso_reducer *r, int lane, iso__channel_item *item) {
    int count = 0;
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        if (b->local || lane_of(r, b) != lane) continue;
        b->lane = lane;
        b->item = count;
        item[count++] = item_of(r, b);
    }
    return count;
}

// The arena may lie elsewhere by now.
static iso_status move_items(iso__channel *channel, const iso__channel_item *item, int count) {
    for (int i = 0; i < count; i++) ISO_TRY(iso__channel_move(channel, i, item[i].data));
    return ISO_OK;
}

static iso_status prepare_channel(iso_reducer *r, iso_scope scope, int lane,
                                  iso__channel_item *item) {
    iso__channel **channel = &r->channel[scope][lane];
    int count = list_items(r, lane, item);
    size_t window = lane == ISO_CHANNEL_LONG ? WINDOW_BYTES : SIZE_MAX;
    size_t part = lane == ISO_CHANNEL_LONG ? PART_BYTES : SIZE_MAX;
    if (count == 0) return ISO_OK;
    if (*channel) return move_items(*channel, item, count);
    return iso__channel_create(iso__host_comm(r), item, count, part, window, channel);
}

// DASO chooses often: only the first time allocates.
static iso_status prepare_channels(iso_reducer *r, iso_scope scope) {
    size_t bytes = (size_t)r->bucket_count * sizeof(*r->item);
    iso_comm *comm = iso__host_comm(r);
    if (!comm || iso_comm_size(comm) == 1) return ISO_OK;
    if (!r->item) ISO_TRY(iso__alloc_zero(bytes, (void **)&r->item));
    for (int lane = 0; lane < ISO_CHANNELS; lane++)
        ISO_TRY(prepare_channel(r, scope, lane, r->item));
    return ISO_OK;
}

bool iso__reducer_free_channels(iso_reducer *r) {
    bool all = true;
    for (int scope = 0; scope < ISO_SCOPE_RANK; scope++)
        for (int lane = 0; lane < ISO_CHANNELS; lane++)
            if (!iso__channel_destroy(&r->channel[scope][lane])) all = false;
    return all;
}

// ---- Choosing ---------------------------------------------------------------------------------------

iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope) {
    iso_comm *before = r->comm;
    iso__way way_before = r->way, way = ISO_WAY_HOST;
    if (scope != ISO_SCOPE_RANK) ISO_TRY(iso__reducer_make_node(r));
    ISO_TRY(iso__gpus_choose_way(r, scope, &way));
    bool node =
        scope == ISO_SCOPE_NODE || (scope == ISO_SCOPE_WORLD && iso__reducer_world_is_node(r));
    if (node && way == ISO_WAY_HOST && !r->arena_shared && !r->hook.compress)
        ISO_TRY(share_arena(r));
    r->comm = node ? r->node : scope == ISO_SCOPE_WORLD ? r->world : NULL;
    r->way = way;
    iso__gpus_place(r);
    iso_status status = prepare_channels(r, scope);
    if (status == ISO_OK) {
        r->scope = scope;
    } else {
        r->comm = before;
        r->way = way_before;
        iso__gpus_place(r);
    }
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope) {
    ISO_TRY(iso__scope_check(scope));
    ISO_TRY(iso_reducer_finish(r));
    return iso__reducer_choose_scope(r, scope);
}
