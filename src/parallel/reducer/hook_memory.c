// SPDX-License-Identifier: MIT
// What a communication hook remembers, on its way from one reducer to another.
#include "parallel/reducer/reducer_impl.h"

#include <string.h>

// A bucket whose memory may move: what it holds, and its floats of state.
typedef struct kept_bucket {
    uint64_t contents; // a hash of what it holds; 0: it has no state
    size_t first, count;
} kept_bucket;

struct iso_hook_memory {
    uint64_t hook; // a hash of the hook's name
    size_t counts; // the first floats of the state, which count exchanges
    int buckets;
    kept_bucket *bucket;
    float *state;
    size_t state_count;
};

// The size of a bucket, and how its parameters lie in it, as hooks see them.
static uint64_t hash_bucket(const iso_reducer *r, int bucket) {
    const iso__bucket *b = &r->buckets.item[bucket];
    const int *slots = r->layout.order + r->layout.range[bucket].first;
    size_t numbers[] = {b->bytes - b->filler, (size_t)b->dtype, (size_t)b->tensor_count};
    uint64_t hash = iso__hash(ISO_HASH_START, numbers, sizeof(numbers));
    for (int i = 0; i < b->tensor_count; i++) {
        const iso_comm_hook_tensor *t = &b->tensor[i];
        size_t place[] = {t->offset, t->count, t->row, r->layout.slot[slots[i]].first};
        hash = iso__hash(hash, t->name, strlen(t->name));
        hash = iso__hash(hash, place, sizeof(place));
    }
    return hash | 1; // not 0
}

static size_t floats_of(const iso__coder *c, int i, const iso__bucket *b) {
    if (!iso__bucket_is_dense(b)) return 0;
    if (c->plan) return c->plan[i].state_floats;
    if (!iso__coder_converts(c, b)) return 0;
    return (b->bytes - b->filler) / sizeof(float) * (size_t)c->hook.state_floats;
}

static kept_bucket describe_bucket(const iso_reducer *r, int i) {
    const iso__bucket *b = &r->buckets.item[i];
    kept_bucket out = {.count = floats_of(&r->coder, i, b)};
    if (out.count == 0) return out;
    out.first = r->coder.place[i].state;
    out.contents = hash_bucket(r, i);
    return out;
}

// Buckets may hold the same: their memories move in their order.
static void number_equals(kept_bucket *bucket, int count) {
    for (int i = count - 1; i > 0; i--) {
        int before = 0;
        for (int k = 0; k < i; k++) before += bucket[k].contents == bucket[i].contents;
        if (before > 0 && bucket[i].count > 0)
            bucket[i].contents = iso__hash(bucket[i].contents, &before, sizeof(before)) | 1;
    }
}

static iso_status list_buckets(const iso_reducer *r, kept_bucket **out) {
    size_t room = (size_t)r->buckets.count * sizeof(kept_bucket);
    ISO_TRY(iso__alloc_zero(room, (void **)out));
    for (int i = 0; i < r->buckets.count; i++) (*out)[i] = describe_bucket(r, i);
    number_equals(*out, r->buckets.count);
    return ISO_OK;
}

static iso_status fill_memory(const iso_reducer *r, iso_hook_memory *m) {
    const iso__coder *c = &r->coder;
    m->hook = iso__hash(ISO_HASH_START, c->hook.name, strlen(c->hook.name));
    m->counts = iso__coder_counts(c);
    m->buckets = r->buckets.count;
    m->state_count = c->state_count;
    ISO_TRY(list_buckets(r, &m->bucket));
    if (m->state_count == 0) return ISO_OK;
    ISO_TRY(iso__alloc(m->state_count * sizeof(float), (void **)&m->state));
    memcpy(m->state, c->state, m->state_count * sizeof(float));
    return ISO_OK;
}

static iso_status check_quiet(const iso_reducer *r) {
    ISO_CHECK(!r->in_backward && !iso__reducer_has_open_list(r), ISO_ERR_STATE,
              "what a communication hook remembers cannot move inside a backward, which changes "
              "it: do it after the step");
    return ISO_OK;
}

iso_status iso_reducer_get_hook_memory(iso_reducer *r, iso_hook_memory **out) {
    void *memory;
    ISO_TRY(check_quiet(r));
    ISO_TRY(iso_reducer_finish(r));
    ISO_TRY(iso__alloc_zero(sizeof(iso_hook_memory), &memory));
    iso_hook_memory *made = memory;
    iso_status status = fill_memory(r, made);
    if (status < 0) iso_hook_memory_destroy(&made);
    ISO_TRY(status);
    *out = made;
    return ISO_OK;
}

void iso_hook_memory_destroy(iso_hook_memory **memory) {
    iso_hook_memory *m = *memory;
    *memory = NULL;
    if (!m) return;
    iso__free(m->bucket);
    iso__free(m->state);
    iso__free(m);
}

// ---- To another reducer -----------------------------------------------------------------------------

static const kept_bucket *find_bucket(const iso_hook_memory *m, const kept_bucket *wanted) {
    for (int i = 0; i < m->buckets; i++) {
        const kept_bucket *have = &m->bucket[i];
        if (have->contents == wanted->contents && have->count == wanted->count) return have;
    }
    return NULL;
}

// Copies the memory of the buckets that are the same, unless `moves` is false. Returns their
// number. *mark: a hash, not 0, of the buckets that can move and of the exchange counts.
static int match_buckets(iso_reducer *r, const kept_bucket *own, const iso_hook_memory *m,
                         bool moves, uint64_t *mark) {
    int moved = 0;
    uint64_t hash = iso__hash(m->hook, m->state, m->counts * sizeof(float));
    for (int i = 0; i < r->buckets.count; i++) {
        const kept_bucket *wanted = &own[i];
        const kept_bucket *have = wanted->count > 0 ? find_bucket(m, wanted) : NULL;
        if (!have) continue;
        hash = iso__hash(hash, &wanted->contents, sizeof(wanted->contents));
        float *to = r->coder.state + wanted->first;
        if (moves) memcpy(to, m->state + have->first, have->count * sizeof(float));
        moved++;
    }
    *mark = hash | 1;
    return moved;
}

static bool is_of_hook(const iso_reducer *r, const iso_hook_memory *m) {
    const char *name = r->coder.hook.name;
    return m && m->hook == iso__hash(ISO_HASH_START, name, strlen(name)) &&
           m->counts == iso__coder_counts(&r->coder);
}

// Whether all ranks have the same number.
static iso_status compare_marks(iso_comm *comm, uint64_t mark, bool *same) {
    int64_t half[] = {(int64_t)(mark >> 32), (int64_t)(mark & UINT32_MAX), 0, 0};
    half[2] = -half[0];
    half[3] = -half[1];
    ISO_TRY(iso_comm_allreduce_i64(comm, half, 4, ISO_MAX));
    *same = half[0] == -half[2] && half[1] == -half[3];
    return ISO_OK;
}

// Unless it fits on all ranks, nothing moves.
static iso_status move_buckets(iso_reducer *r, const kept_bucket *own, const iso_hook_memory *m,
                               int *moved) {
    uint64_t mark = 0;
    bool same = false, mine = is_of_hook(r, m);
    if (mine) match_buckets(r, own, m, false, &mark);
    ISO_TRY(compare_marks(r->world, mark, &same));
    if (!same || !mine) return ISO_OK;
    *moved = match_buckets(r, own, m, true, &mark);
    if (m->counts > 0) memcpy(r->coder.state, m->state, m->counts * sizeof(float));
    return ISO_OK;
}

iso_status iso_reducer_set_hook_memory(iso_reducer *r, const iso_hook_memory *m, int *buckets) {
    kept_bucket *own = NULL;
    int moved = 0;
    ISO_TRY(iso_comm_agree(r->world, check_quiet(r)));
    ISO_TRY(iso_reducer_finish(r));
    iso_status status = iso_comm_agree(r->world, list_buckets(r, &own));
    if (status == ISO_OK) status = move_buckets(r, own, m, &moved);
    iso__free(own);
    ISO_TRY(status);
    if (buckets) *buckets = moved;
    return ISO_OK;
}
