// SPDX-License-Identifier: MIT
// Communication hooks that send few bits of each gradient, or few gradients. They add what they
// leave out to the next gradients (error feedback).
#include "exchange/codec.h"
#include "exchange/coder.h"
#include "exchange/hook_shards.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

// ---- Few bits of each gradient --------------------------------------------------------------------------

// user: which codec.
static const iso__codec *codec_for(void *user) { return *(const iso__codec *const *)user; }

static iso__hook_shards shards_for(const iso__codec *codec) {
    return (iso__hook_shards){codec->group, codec->bytes(codec->group)};
}

static iso_status declare_bits(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                               void *user) {
    iso__hook_shards shards = shards_for(codec_for(user));
    if (iso__hook_leaves(b, plan)) return ISO_OK;
    iso__hook_shards_declare(b, &shards, plan);
    plan->state_floats = b->count;
    return ISO_OK;
}

static void send_shards(const iso_comm_hook_bucket *b, const iso__codec *codec, double factor) {
    const float *g = b->gradient;
    iso__hook_shards shards = shards_for(codec);
    for (int r = 0; r < b->ranks; r++) {
        iso__hook_shard s = iso__hook_shard_of(b, &shards, r);
        codec->encode_feedback(s.count, g + s.first, (float)factor, b->state + s.first,
                               iso__hook_shard_block(b, &shards, 0, r));
    }
    iso__hook_clear_padding(b, b->state);
}

// Sums in the order of the ranks, then adds this rank's residual for the shard. The rounding error
// of the encoded sum is the new residual, which joins this rank's next gradients.
static void send_sum(const iso_comm_hook_bucket *b, const iso__codec *codec) {
    iso__hook_shards shards = shards_for(codec);
    iso__hook_shard s = iso__hook_shard_of(b, &shards, b->rank);
    float *sum = (float *)b->gradient + s.first, *residual = b->state + s.first;
    codec->decode(s.count, iso__hook_shard_block(b, &shards, 0, 0), sum);
    for (int r = 1; r < b->ranks; r++)
        codec->decode_add(s.count, iso__hook_shard_block(b, &shards, 0, r), sum);
    iso__hook_clear_padding(b, b->gradient);
    codec->encode_feedback(s.count, sum, 1, residual,
                           iso__hook_shard_block(b, &shards, 1, b->rank));
    iso__hook_clear_padding(b, b->state);
}

static void take_sums(const iso_comm_hook_bucket *b, const iso__codec *codec, double factor) {
    iso__hook_shards shards = shards_for(codec);
    for (int r = 0; r < b->ranks; r++) {
        iso__hook_shard s = iso__hook_shard_of(b, &shards, r);
        codec->decode_scaled(s.count, iso__hook_shard_block(b, &shards, 1, r), (float)factor,
                             (float *)b->gradient + s.first);
    }
}

static iso_status run_bits(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    const iso__codec *codec = codec_for(user);
    if (phase == 0)
        send_shards(b, codec, factor);
    else if (phase == 1)
        send_sum(b, codec);
    else
        take_sums(b, codec, factor);
    return ISO_OK;
}

static const iso__codec *eight_bits = &iso__codec_int8, *eight_bit_floats = &iso__codec_fp8,
                        *one_bit = &iso__codec_onebit;

const iso_comm_hook iso_hook_int8 = {
    .name = "int8", .wire = ISO_F32, .declare = declare_bits, .run = run_bits, .user = &eight_bits};
const iso_comm_hook iso_hook_fp8 = {.name = "fp8",
                                    .wire = ISO_F32,
                                    .declare = declare_bits,
                                    .run = run_bits,
                                    .user = &eight_bit_floats};
const iso_comm_hook iso_hook_onebit = {
    .name = "onebit", .wire = ISO_F32, .declare = declare_bits, .run = run_bits, .user = &one_bit};

// ---- The largest gradients ------------------------------------------------------------------------------

typedef struct entry {
    uint32_t index;
    float value;
} entry;

static size_t kept_count(const iso_comm_hook_bucket *b, const iso_topk_config *config) {
    double count = ceil(config->ratio * (double)b->count);
    return count < 1 ? 1 : (size_t)count;
}

static iso_status declare_topk(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                               void *user) {
    const iso_topk_config *config = user;
    ISO_CHECK(config->ratio > 0 && config->ratio <= 1, ISO_ERR_ARG,
              "communication hook topk with a ratio of %g: give a number above 0, at most 1",
              config->ratio);
    if (iso__hook_leaves(b, plan)) return ISO_OK;
    ISO_CHECK(b->count <= UINT32_MAX, ISO_ERR_UNSUPPORTED,
              "communication hook topk was given bucket %s of %zu elements: it takes %u at most",
              b->name, b->count, UINT32_MAX);
    plan->phase_count = 1;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_GATHER, kept_count(b, config), ISO_I64};
    plan->state_floats = b->count;
    return ISO_OK;
}

static uint32_t magnitude_of(float x) { return iso__bits_of(x) & 0x7fffffff; }

enum { DIGITS = 1 << 11 };

// Counts, for each value of the digit, the magnitudes that have it and whose bits in `above` equal
// `prefix`.
static void count_digits(const float *v, size_t count, uint32_t prefix, uint32_t above, int shift,
                         uint32_t found[DIGITS]) {
    memset(found, 0, DIGITS * sizeof(*found));
    for (size_t i = 0; i < count; i++) {
        uint32_t m = magnitude_of(v[i]);
        if ((m & above) == prefix) found[m >> shift & (DIGITS - 1)]++;
    }
}

// The k-th largest magnitude, digit by digit; *equal: how many of the k largest are equal to it.
static uint32_t select_magnitude(const float *v, size_t count, size_t k, size_t *equal) {
    static const int shifts[] = {21, 10, 0};
    uint32_t prefix = 0, above = 0, found[DIGITS];
    for (int d = 0; d < 3; d++) {
        count_digits(v, count, prefix, above, shifts[d], found);
        uint32_t digit = DIGITS - 1;
        while (found[digit] < k) k -= found[digit--];
        prefix |= digit << shifts[d];
        above = ~0u << shifts[d];
    }
    *equal = k;
    return prefix;
}

// Entries are in ascending order of index; of those equal to the smallest magnitude sent, the first
// ones go. Values that are not finite rank highest; their residual becomes 0 even if there are too
// many to send.
static void send_largest(const iso_comm_hook_bucket *b, size_t kept, double factor) {
    const float *g = b->gradient;
    float *v = b->state;
    entry *out = (entry *)b->data[0] + (size_t)b->rank * kept;
    size_t equal;
    for (size_t i = 0; i < b->count; i++) v[i] = g[i] * (float)factor + v[i];
    uint32_t least = select_magnitude(v, b->count, kept, &equal);
    for (size_t i = 0; i < b->count; i++) {
        uint32_t m = magnitude_of(v[i]);
        bool sent = m > least || (m == least && equal > 0), lost = m >= 0x7f800000;
        if (sent && m == least) equal--;
        if (sent) *out++ = (entry){(uint32_t)i, v[i]};
        if (sent || lost) v[i] = 0;
    }
}

static void add_largest(const iso_comm_hook_bucket *b, size_t kept, double factor) {
    const entry *in = b->data[0];
    float *g = b->gradient;
    memset(g, 0, b->count * sizeof(float));
    for (size_t k = 0; k < kept * (size_t)b->ranks; k++)
        if (in[k].index < b->count) g[in[k].index] += in[k].value * (float)factor;
}

static iso_status run_topk(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    size_t kept = kept_count(b, user);
    if (phase == 0)
        send_largest(b, kept, factor);
    else
        add_largest(b, kept, factor);
    return ISO_OK;
}

static iso_topk_config default_topk = ISO_TOPK_DEFAULT;

const iso_comm_hook iso__hook_topk = {.name = "topk",
                                      .wire = ISO_F32,
                                      .declare = declare_topk,
                                      .run = run_topk,
                                      .user = &default_topk,
                                      .user_bytes = sizeof(default_topk)};

iso_comm_hook iso_hook_topk(const iso_topk_config *config) {
    iso_comm_hook hook = iso__hook_topk;
    if (config) hook.user = (void *)(uintptr_t)config;
    return hook;
}
