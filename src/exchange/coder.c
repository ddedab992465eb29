// SPDX-License-Identifier: MIT
// Runs a communication hook on buckets.
#include "exchange/coder.h"

#include "exchange/sparse_rows.h"

#include <string.h>

// The head of the state of a hook that owns its exchange. Its first two floats count lists: one up
// to hook.start, the other modulo MOST_START. The head is as long as a cache line, so the state
// after it begins on one.
enum { UP_TO_START, ALL_LISTS, COUNTS, HEAD_FLOATS = 16 };
// The largest number of elements of a phase over all ranks, so that their bytes fit into size_t.
#define MOST_ELEMENTS (SIZE_MAX / 64)
// The largest start of a hook: f32 counts exactly up to this number.
#define MOST_START ((long long)1 << 24)

// ---- What hooks may be ------------------------------------------------------------------------------

static iso_status check_conversion(const iso_comm_hook *hook) {
    const char *name = hook->name;
    ISO_CHECK(!hook->compress == !hook->decompress, ISO_ERR_ARG,
              "communication hook %s has one of compress and decompress: it needs both or neither",
              name);
    ISO_CHECK(hook->compress || hook->state_floats == 0, ISO_ERR_ARG,
              "communication hook %s has state_floats, but no compress", name);
    ISO_CHECK(hook->compress || hook->run || hook->wire == ISO_F32, ISO_ERR_ARG,
              "communication hook %s has a wire type other than f32, but no compress", name);
    bool travels = hook->wire == ISO_F32 || hook->wire == ISO_BF16 || hook->wire == ISO_F16;
    ISO_CHECK((!hook->compress && !hook->run) || travels, ISO_ERR_TYPE,
              "communication hook %s: %s cannot travel", name, iso_dtype_name(hook->wire));
    ISO_CHECK(hook->state_floats >= 0, ISO_ERR_ARG,
              "communication hook %s asks for %d floats of state", name, hook->state_floats);
    return ISO_OK;
}

iso_status iso__coder_check(const iso_comm_hook *hook) {
    const char *name = hook->name;
    ISO_CHECK(name, ISO_ERR_ARG, "a communication hook needs a name");
    ISO_CHECK(!hook->declare == !hook->run, ISO_ERR_ARG,
              "communication hook %s has one of declare and run: it needs both or neither", name);
    ISO_CHECK(!hook->run || !hook->compress, ISO_ERR_ARG,
              "communication hook %s has both compress and run: give one of them", name);
    ISO_CHECK(!hook->run || !hook->silent, ISO_ERR_ARG,
              "communication hook %s is silent, but has run: a silent hook exchanges nothing",
              name);
    ISO_CHECK(hook->start == 0 || (hook->run && hook->start > 0 && hook->start <= MOST_START),
              ISO_ERR_ARG,
              "communication hook %s starts after %lld exchanges: give 0 to %lld, and above 0 only "
              "with run",
              name, hook->start, MOST_START);
    ISO_CHECK(hook->user_bytes == 0 || hook->user, ISO_ERR_ARG,
              "communication hook %s asks to copy %zu bytes of user, which is NULL", name,
              hook->user_bytes);
    return check_conversion(hook);
}

// ---- Buckets, as hooks see them ---------------------------------------------------------------------

static size_t seen_bytes(const iso__bucket *b) { return b->bytes - b->filler; }

static iso_comm_hook_bucket see_bucket(const iso__coder *c, int i, const iso__bucket *bucket,
                                       const iso__coder_ranks *ranks) {
    return (iso_comm_hook_bucket){.count = seen_bytes(bucket) / iso_dtype_size(bucket->dtype),
                                  .dtype = bucket->dtype,
                                  .name = bucket->label,
                                  .index = i,
                                  .is_last = i == c->last,
                                  .rank = ranks->rank,
                                  .ranks = ranks->ranks,
                                  .tensor = bucket->tensor,
                                  .tensor_count = bucket->tensor_count,
                                  .comm = ranks->comm};
}

// ---- Plans ------------------------------------------------------------------------------------------

static iso_status check_phase(const iso__coder *c, const iso_comm_hook_bucket *b, int k,
                              const iso_comm_phase *p) {
    const char *hook = c->hook.name;
    ISO_CHECK((int)p->operation >= 0 && p->operation <= ISO_COMM_ALLTOALL, ISO_ERR_ARG,
              "communication hook %s declared operation %d in phase %d of bucket %s", hook,
              (int)p->operation, k, b->name);
    ISO_CHECK(p->count > 0 && p->count <= MOST_ELEMENTS / (size_t)b->ranks, ISO_ERR_ARG,
              "communication hook %s declared phase %d of bucket %s with %zu elements", hook, k,
              b->name, p->count);
    bool sums =
        p->dtype == ISO_F32 || p->dtype == ISO_F64 || p->dtype == ISO_BF16 || p->dtype == ISO_F16;
    bool known = (int)p->dtype >= 0 && p->dtype < ISO_DTYPE_COUNT;
    ISO_CHECK(sums || (known && p->operation != ISO_COMM_SUM), ISO_ERR_TYPE,
              "communication hook %s declared phase %d of bucket %s with elements %s, which %s",
              hook, k, b->name, iso_dtype_name(p->dtype),
              known ? "cannot be summed" : "do not exist");
    return ISO_OK;
}

static iso_status check_plan(const iso__coder *c, const iso_comm_hook_bucket *b,
                             const iso_comm_hook_plan *plan) {
    ISO_CHECK(plan->phase_count >= 0 && plan->phase_count <= ISO_COMM_HOOK_PHASES, ISO_ERR_ARG,
              "communication hook %s declared %d phases for bucket %s: give 0 to %d", c->hook.name,
              plan->phase_count, b->name, ISO_COMM_HOOK_PHASES);
    for (int k = 0; k < plan->phase_count; k++) ISO_TRY(check_phase(c, b, k, &plan->phase[k]));
    return ISO_OK;
}

iso_status iso__coder_declare(const iso__coder *c, int i, const iso__bucket *bucket,
                              const iso__coder_ranks *ranks, iso_comm_hook_plan *out) {
    iso_comm_hook_bucket b = see_bucket(c, i, bucket, ranks);
    iso_comm_hook_plan plan = {0};
    ISO_TRY(c->hook.declare(&b, &plan, c->hook.user));
    if (plan.plain)
        plan = (iso_comm_hook_plan){
            .phase_count = 1, .phase = {{ISO_COMM_SUM, b.count, b.dtype}}, .plain = true};
    ISO_TRY(check_plan(c, &b, &plan));
    ISO_CHECK(!c->lazy || plan.phase_count > 0, ISO_ERR_UNSUPPORTED,
              "communication hook %s exchanges bucket %s by itself, which is not possible in lazy "
              "mode: declare its phases, or use ISO_SYNC_BLOCKING",
              c->hook.name, b.name);
    *out = plan;
    return ISO_OK;
}

uint64_t iso__coder_seed(const iso__coder *c) {
    const void *user = c->hook.user;
    if (c->hook.run == iso__hook_randomk.run) return ((const iso_randomk_config *)user)->seed;
    if (c->hook.run == iso__hook_powersgd.run) return ((const iso_powersgd_config *)user)->seed;
    return 0;
}

static uint64_t hash_number(uint64_t hash, uint64_t number) {
    return iso__hash(hash, &number, sizeof(number));
}

uint64_t iso__coder_fingerprint(const iso__coder *c, int buckets) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; c->plan && i < buckets; i++) {
        const iso_comm_hook_plan *plan = &c->plan[i];
        hash = hash_number(hash, (uint64_t)plan->phase_count);
        hash = hash_number(hash, plan->plain);
        hash = hash_number(hash, (uint64_t)plan->state_floats);
        for (int k = 0; k < plan->phase_count; k++) {
            hash = hash_number(hash, (uint64_t)plan->phase[k].operation);
            hash = hash_number(hash, (uint64_t)plan->phase[k].count);
            hash = hash_number(hash, (uint64_t)plan->phase[k].dtype);
        }
    }
    return hash;
}

size_t iso__phase_block_bytes(const iso_comm_phase *phase, iso_dtype dtype) {
    return phase->count * iso_dtype_size(dtype);
}

size_t iso__phase_bytes(const iso_comm_phase *phase, iso_dtype dtype, int ranks) {
    size_t blocks = phase->operation == ISO_COMM_SUM ? 1 : (size_t)ranks;
    return blocks * iso__phase_block_bytes(phase, dtype);
}

size_t iso__plan_bytes(const iso__coder *c, const iso_comm_hook_plan *plan, int ranks) {
    size_t bytes = 0;
    for (int k = 0; k < plan->phase_count; k++) {
        const iso_comm_phase *phase = &plan->phase[k];
        bool own = phase->operation == ISO_COMM_GATHER; // one of the blocks
        bytes += iso__phase_bytes(phase, iso__phase_wire(c, plan, k), own ? 1 : ranks);
    }
    return bytes;
}

size_t iso__coder_wire_bytes(const iso__coder *c, int i, const iso__bucket *b) {
    if (iso__bucket_is_sparse(b)) return iso__rows_bytes(b);
    if (c->plan && !b->local) return iso__plan_bytes(c, &c->plan[i], c->ranks);
    if (!iso__coder_converts(c, b)) return seen_bytes(b);
    return seen_bytes(b) / sizeof(float) * iso_dtype_size(c->hook.wire);
}

// ---- Life -------------------------------------------------------------------------------------------

static void place_conversion(iso__coder *c, int i, const iso__bucket *b, size_t *wire,
                             size_t *state) {
    if (!iso__coder_converts(c, b)) return;
    c->place[i] = (iso__coder_place){.wire = *wire, .state = *state};
    *wire += (iso__coder_wire_bytes(c, i, b) + 63) / 64 * 64;
    *state += seen_bytes(b) / sizeof(float) * (size_t)c->hook.state_floats;
}

static iso_status place_plan(iso__coder *c, int i, const iso__bucket *b,
                             const iso__coder_ranks *ranks, size_t *state) {
    if (!iso__bucket_is_dense(b)) return ISO_OK;
    ISO_TRY(iso__coder_declare(c, i, b, ranks, &c->plan[i]));
    size_t floats = (c->plan[i].state_floats + HEAD_FLOATS - 1) / HEAD_FLOATS * HEAD_FLOATS;
    c->place[i].state = *state;
    *state += floats;
    return ISO_OK;
}

static iso_status copy_hook(const iso_comm_hook *hook, iso__coder *c) {
    c->hook = *hook;
    if (hook->user_bytes == 0) return ISO_OK;
    ISO_TRY(iso__alloc(hook->user_bytes, (void **)&c->user));
    memcpy(c->user, hook->user, hook->user_bytes);
    c->hook.user = c->user;
    return ISO_OK;
}

iso_status iso__coder_create(const iso_comm_hook *hook, const iso__buckets *buckets,
                             const iso__coder_ranks *ranks, bool lazy, iso__coder *out) {
    size_t wire = 0, state = 0, count = (size_t)buckets->count;
    *out = (iso__coder){.last = -1, .ranks = ranks->ranks, .lazy = lazy};
    ISO_TRY(copy_hook(hook, out));
    ISO_TRY(iso__alloc_zero(count * sizeof(*out->place), (void **)&out->place));
    for (int i = 0; i < buckets->count; i++)
        if (iso__bucket_is_dense(&buckets->item[i])) out->last = i;
    if (iso__hook_owns(hook)) {
        ISO_TRY(iso__alloc_zero(count * sizeof(*out->plan), (void **)&out->plan));
        state = HEAD_FLOATS;
    }
    for (int i = 0; i < buckets->count; i++)
        if (out->plan)
            ISO_TRY(place_plan(out, i, &buckets->item[i], ranks, &state));
        else
            place_conversion(out, i, &buckets->item[i], &wire, &state);
    if (wire > 0) ISO_TRY(iso__alloc_zero(wire, (void **)&out->wire));
    if (state > 0) ISO_TRY(iso__alloc_zero(state * sizeof(float), (void **)&out->state));
    out->state_count = state;
    return ISO_OK;
}

void iso__coder_destroy(iso__coder *c) {
    iso__free(c->user);
    iso__free(c->wire);
    iso__free(c->state);
    iso__free(c->place);
    iso__free(c->plan);
    *c = (iso__coder){0};
}

// ---- Conversion -------------------------------------------------------------------------------------

static iso_comm_hook_bucket bucket_to_convert(const iso__coder *c, int i, const iso__bucket *bucket,
                                              void *gradient) {
    static const iso__coder_ranks unknown = {0};
    iso_comm_hook_bucket b = see_bucket(c, i, bucket, &unknown);
    b.gradient = gradient;
    b.wire = c->wire + c->place[i].wire;
    b.state = c->state ? c->state + c->place[i].state : NULL;
    return b;
}

iso_status iso__coder_encode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor) {
    iso_comm_hook_bucket what = bucket_to_convert(c, i, bucket, gradient);
    return c->hook.compress(&what, factor, c->hook.user);
}

iso_status iso__coder_decode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor) {
    iso_comm_hook_bucket what = bucket_to_convert(c, i, bucket, gradient);
    return c->hook.decompress(&what, factor, c->hook.user);
}

// ---- Phases -----------------------------------------------------------------------------------------

iso_status iso__coder_run(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                          void *const *data, const iso__coder_ranks *ranks, int phase,
                          double factor) {
    iso_comm_hook_bucket b = see_bucket(c, i, bucket, ranks);
    b.gradient = gradient;
    b.wire = gradient;
    b.state = c->plan[i].state_floats > 0 ? c->state + c->place[i].state : NULL;
    memcpy(b.data, data, sizeof(b.data));
    // Later phases of the exchange may run after the list of its buckets was counted.
    if (phase == 0) c->place[i].exchange = (long long)c->state[ALL_LISTS];
    b.exchange = c->place[i].exchange;
    return c->hook.run(&b, phase, factor, c->hook.user);
}

bool iso__coder_begins_later(const iso__coder *c) {
    return c->plan && (long long)c->state[UP_TO_START] < c->hook.start;
}

void iso__coder_count(const iso__coder *c) {
    if (!c->plan) return;
    if (iso__coder_begins_later(c)) c->state[UP_TO_START] += 1;
    float *all = &c->state[ALL_LISTS];
    *all = *all + 1 < (float)MOST_START ? *all + 1 : 0;
}

size_t iso__coder_counts(const iso__coder *c) { return c->plan && c->state ? COUNTS : 0; }
