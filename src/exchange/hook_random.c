// SPDX-License-Identifier: MIT
// Communication hooks that draw random numbers: different ones in each exchange, but the same ones
// in a resumed run.
#include "exchange/coder.h"
#include "exchange/hook_shards.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static bool is_lost(float x) { return (iso__bits_of(x) & 0x7f800000) == 0x7f800000; }

// ---- Random gradients -----------------------------------------------------------------------------------

// The bucket is divided into `kept` runs of nearly equal length. All ranks draw the same element of
// each run.
typedef struct runs {
    size_t count, kept;
    iso__philox_key key;
    uint32_t exchange;
    uint32_t bits[4]; // drawn for runs 4 k to 4 k + 3
} runs;

static size_t kept_runs(const iso_comm_hook_bucket *b, const iso_randomk_config *config) {
    double kept = ceil(config->ratio * (double)b->count);
    return kept < 1 ? 1 : (size_t)kept;
}

static runs begin_runs(const iso_comm_hook_bucket *b, const iso_randomk_config *config) {
    return (runs){.count = b->count,
                  .kept = kept_runs(b, config),
                  .key = iso__philox_key_make(config->seed, ISO_RNG_HOOK, (uint64_t)b->index),
                  .exchange = (uint32_t)b->exchange};
}

// The first element of run k; that of run `kept` is the end.
static size_t run_begin(const runs *r, size_t k) {
    size_t more = r->count % r->kept;
    return k * (r->count / r->kept) + (k < more ? k : more);
}

// Draws the element of run k. Call it for the runs in ascending order, because it draws four runs
// at a time.
static size_t draw_place(runs *r, size_t k) {
    uint32_t counter[4] = {(uint32_t)(k / 4), r->exchange};
    size_t begin = run_begin(r, k), length = run_begin(r, k + 1) - begin;
    if (k % 4 == 0) iso__philox(r->key, counter, r->bits);
    return begin + (size_t)((uint64_t)r->bits[k % 4] * length >> 32);
}

static iso_status declare_random(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                 void *user) {
    const iso_randomk_config *config = user;
    ISO_CHECK(config->ratio > 0 && config->ratio <= 1, ISO_ERR_ARG,
              "communication hook randomk with a ratio of %g: give a number above 0, at most 1",
              config->ratio);
    if (iso__hook_leaves(b, plan)) return ISO_OK;
    ISO_CHECK(b->count <= UINT32_MAX, ISO_ERR_UNSUPPORTED,
              "communication hook randomk was given bucket %s of %zu elements: it takes %u at most",
              b->name, b->count, UINT32_MAX);
    plan->phase_count = 1;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_SUM, kept_runs(b, config), ISO_F32};
    plan->state_floats = b->count;
    return ISO_OK;
}

// If a value of a run is not finite, sends it in place of the drawn one, so that all ranks see it.
// The drawn value then stays in the state.
static void send_drawn(const iso_comm_hook_bucket *b, runs *r, float factor) {
    const float *g = b->gradient;
    float *v = b->state, *out = b->data[0];
    for (size_t k = 0; k < r->kept; k++) {
        size_t place = draw_place(r, k), end = run_begin(r, k + 1);
        float lost = 0;
        for (size_t i = run_begin(r, k); i < end; i++) {
            v[i] = g[i] * factor + v[i];
            if (!is_lost(v[i])) continue;
            lost = v[i];
            v[i] = 0;
        }
        out[k] = is_lost(lost) ? lost : v[place];
        if (!is_lost(lost)) v[place] = 0;
    }
}

static void take_drawn(const iso_comm_hook_bucket *b, runs *r, float factor) {
    const float *in = b->data[0];
    float *g = b->gradient;
    memset(g, 0, b->count * sizeof(float));
    for (size_t k = 0; k < r->kept; k++) g[draw_place(r, k)] = in[k] * factor;
}

static iso_status run_random(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    runs r = begin_runs(b, user);
    if (phase == 0)
        send_drawn(b, &r, (float)factor);
    else
        take_drawn(b, &r, (float)factor);
    return ISO_OK;
}

static iso_randomk_config default_randomk = ISO_RANDOMK_DEFAULT;

const iso_comm_hook iso__hook_randomk = {.name = "randomk",
                                         .wire = ISO_F32,
                                         .declare = declare_random,
                                         .run = run_random,
                                         .user = &default_randomk,
                                         .user_bytes = sizeof(default_randomk)};

iso_comm_hook iso_hook_randomk(const iso_randomk_config *config) {
    iso_comm_hook hook = iso__hook_randomk;
    if (config) hook.user = (void *)(uintptr_t)config;
    return hook;
}

// ---- Dithering ------------------------------------------------------------------------------------------

// An element is encoded in 4 bits as its level plus 8. Level 7 is the largest magnitude of the
// group, and level -7 its negative.
enum { GROUP = 256, LEVELS = 7, DRAWN = 8 }; // a draw serves 8 elements, with 16 bits each

typedef struct dithered {
    float scale;
    uint8_t code[GROUP / 2]; // elements 2 i and 2 i + 1 in the lower and the upper half
} dithered;

static const iso__hook_shards shards = {GROUP, sizeof(dithered)};

typedef struct dice {
    iso__philox_key key;
    uint32_t exchange, phase;
} dice;

static uint32_t drawn_word(const uint32_t bits[4], size_t i) {
    return bits[i / 2] >> i % 2 * 16 & 0xffff;
}

// Stochastic rounding: rounds x, from -1 to 1, to one of the two levels next to it. The nearer one
// is more probable.
static uint8_t choose_level(float x, uint32_t word) {
    float random = ((float)word + 0.5f) * 0x1p-16f;
    float level = floorf(x * (float)LEVELS + random);
    level = level > (float)LEVELS ? (float)LEVELS : level < -(float)LEVELS ? -(float)LEVELS : level;
    return (uint8_t)((int)level + 8);
}

static float largest_magnitude(const float *v, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = iso__bits_of(v[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return iso__float_of(most);
}

static void dither_group(const float *v, size_t n, const dice *d, size_t first, dithered *out) {
    uint32_t bits[4];
    float scale = largest_magnitude(v, n);
    memset(out->code, 0x88, sizeof(out->code)); // zeros
    out->scale = is_lost(scale) ? NAN : scale;
    if (is_lost(scale) || scale == 0) return;
    for (size_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)((first + i) / DRAWN), d->exchange, d->phase};
        if (i % DRAWN == 0) iso__philox(d->key, counter, bits);
        uint8_t level = choose_level(v[i] / scale, drawn_word(bits, i % DRAWN));
        uint8_t old = out->code[i / 2];
        out->code[i / 2] =
            i % 2 ? (uint8_t)((old & 15) | level << 4) : (uint8_t)((old & 240) | level);
    }
}

// first: the number of v's first element in the bucket, a multiple of the group.
static void dither_values(const float *v, iso__hook_shard s, float factor, const dice *d,
                          dithered *out) {
    float scaled[GROUP];
    for (size_t at = 0; at < s.count; at += GROUP, out++) {
        size_t n = s.count - at < GROUP ? s.count - at : GROUP;
        for (size_t i = 0; i < n; i++) scaled[i] = v[s.first + at + i] * factor;
        dither_group(scaled, n, d, s.first + at, out);
    }
}

// v = (add ? v : 0) + in * factor
static void read_values(float *v, iso__hook_shard s, const dithered *in, float factor, bool add) {
    for (size_t i = 0; i < s.count; i++) {
        const dithered *from = &in[i / GROUP];
        uint8_t code = from->code[i % GROUP / 2] >> i % 2 * 4 & 15;
        float value = (float)((int)code - 8) * (from->scale / (float)LEVELS) * factor;
        v[s.first + i] = add ? v[s.first + i] + value : value;
    }
}

static iso_status declare_dithering(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                    void *user) {
    (void)user;
    if (iso__hook_leaves(b, plan)) return ISO_OK;
    iso__hook_shards_declare(b, &shards, plan);
    return ISO_OK;
}

static iso_status run_dithering(const iso_comm_hook_bucket *b, int phase, double factor,
                                void *user) {
    (void)user;
    uint64_t stream = (uint64_t)b->rank << 32 | (uint32_t)b->index;
    dice d = {iso__philox_key_make(0, ISO_RNG_HOOK, stream), (uint32_t)b->exchange,
              (uint32_t)phase};
    iso__hook_shard own = iso__hook_shard_of(b, &shards, b->rank);
    for (int r = 0; r < b->ranks; r++) {
        iso__hook_shard s = iso__hook_shard_of(b, &shards, r);
        dithered *block = phase < 2 ? iso__hook_shard_block(b, &shards, 0, r)
                                    : iso__hook_shard_block(b, &shards, 1, r);
        if (phase == 0) dither_values(b->gradient, s, (float)factor, &d, block);
        if (phase == 1) read_values(b->gradient, own, block, 1, r > 0);
        if (phase == 2) read_values(b->gradient, s, block, (float)factor, false);
    }
    if (phase == 1)
        dither_values(b->gradient, own, 1, &d, iso__hook_shard_block(b, &shards, 1, b->rank));
    return ISO_OK;
}

const iso_comm_hook iso_hook_dithering = {
    .name = "dithering", .wire = ISO_F32, .declare = declare_dithering, .run = run_dithering};
