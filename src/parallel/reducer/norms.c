// SPDX-License-Identifier: MIT
// Sums over whole parameters whose elements lie on several ranks.
#include "parallel/reducer/norms.h"

typedef struct place {
    int item;      // of the channel; -1: the bucket stays on this rank
    size_t first;  // where its numbers begin in data: a block of each rank
    int low, high; // buckets with pieces of its parameters
} place;

struct iso__norms {
    const iso__layout *layout;
    int rank, ranks;
    iso__channel *channel; // NULL: no bucket travels
    place *place;          // [buckets]
    int *at;               // [slots]: its place in its bucket
    double *data;
};

static size_t block_of(const iso__layout *l, int b) {
    return 2 * (size_t)(l->range[b].last - l->range[b].first + 1);
}

// The first and the last bucket with pieces of the parameters of bucket b.
static void find_range(const iso__layout *l, int b, place *out) {
    out->low = out->high = b;
    for (int k = l->range[b].first; k <= l->range[b].last; k++) {
        int param = l->slot[l->order[k]].param;
        for (int piece = 0; piece < l->place[param].pieces; piece++) {
            int other = iso__layout_piece(l, param, piece)->bucket;
            if (other < out->low) out->low = other;
            if (other > out->high) out->high = other;
        }
    }
}

static iso_status allocate_norms(iso__norms *n, iso__channel_item **item) {
    const iso__layout *l = n->layout;
    size_t buckets = (size_t)l->bucket_count, ranks = (size_t)n->ranks;
    ISO_TRY(iso__alloc_zero(buckets * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*n->place), (void **)&n->place));
    ISO_TRY(iso__alloc_zero((size_t)l->slot_count * sizeof(*n->at), (void **)&n->at));
    return iso__alloc_zero(2 * (size_t)l->slot_count * ranks * sizeof(double), (void **)&n->data);
}

// From the last bucket down, the order in which forward needs them. Returns their number.
static int list_items(iso__norms *n, iso__channel_item *item) {
    const iso__layout *l = n->layout;
    size_t first = 0;
    int count = 0;
    for (int b = l->bucket_count - 1; b >= 0; b--) {
        size_t block = block_of(l, b);
        n->place[b] = (place){.item = -1, .first = first};
        find_range(l, b, &n->place[b]);
        for (int k = l->range[b].first; k <= l->range[b].last; k++)
            n->at[l->order[k]] = k - l->range[b].first;
        if (l->bucket[b].local) continue;
        n->place[b].item = count;
        item[count++] = (iso__channel_item){.data = n->data + first,
                                            .bytes = block * sizeof(double),
                                            .dtype = ISO_F64,
                                            .label = l->bucket[b].label,
                                            .operation = ISO__GATHER};
        first += block * (size_t)n->ranks;
    }
    return count;
}

iso_status iso__norms_create(const iso__layout *layout, iso_comm *comm, iso__norms **out) {
    iso_status status;
    iso__norms *n = NULL;
    iso__channel_item *item = NULL;
    status = iso_comm_agree(comm, iso__alloc_zero(sizeof(*n), (void **)&n));
    if (status < 0) iso__free(n);
    ISO_TRY(status);
    *n = (iso__norms){.layout = layout, .rank = iso_comm_rank(comm), .ranks = iso_comm_size(comm)};
    ISO_TRY_GOTO(iso_comm_agree(comm, allocate_norms(n, &item)));
    int count = list_items(n, item);
    if (count > 0)
        ISO_TRY_GOTO(iso__channel_create(comm, item, count, SIZE_MAX, SIZE_MAX, &n->channel));
    iso__free(item);
    *out = n;
    return ISO_OK;
fail:
    iso__free(item);
    iso__norms_destroy(&n);
    return status;
}

bool iso__norms_destroy(iso__norms **pointer) {
    iso__norms *n = *pointer;
    *pointer = NULL;
    if (!n) return true;
    if (!iso__channel_destroy(&n->channel)) return false;
    iso__free(n->place);
    iso__free(n->at);
    iso__free(n->data);
    iso__free(n);
    return true;
}

// ---- Numbers ----------------------------------------------------------------------------------------

static double *block_at(const iso__norms *n, int b, int rank) {
    return n->data + n->place[b].first + (size_t)rank * block_of(n->layout, b);
}

double *iso__norms_own(iso__norms *n, int bucket) { return block_at(n, bucket, n->rank); }

iso_status iso__norms_send(iso__norms *n, int bucket) {
    return iso__channel_ready(n->channel, n->place[bucket].item);
}

void iso__norms_range(const iso__norms *n, int bucket, int *low, int *high) {
    *low = n->place[bucket].low;
    *high = n->place[bucket].high;
}

bool iso__norms_are_here(const iso__norms *n, int bucket) {
    return iso__channel_is_done(n->channel, n->place[bucket].item);
}

iso_status iso__norms_wait(iso__norms *n, int bucket, iso__channel_idle idle, void *user) {
    return iso__channel_wait(n->channel, n->place[bucket].item, idle, user);
}

void iso__norms_total(const iso__norms *n, int slot, double total[2]) {
    const iso__layout *l = n->layout;
    int param = l->slot[slot].param;
    total[0] = total[1] = 0;
    for (int piece = 0; piece < l->place[param].pieces; piece++) {
        int s = iso__layout_at(l, param, piece);
        for (int rank = 0; rank < n->ranks; rank++) {
            const double *pair = block_at(n, l->slot[s].bucket, rank) + 2 * n->at[s];
            total[0] += pair[0];
            total[1] += pair[1];
        }
    }
}
