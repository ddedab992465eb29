// SPDX-License-Identifier: MIT
// Counter-based random numbers: the same draw for the same (seed, purpose, stream, counter)
// everywhere.
#include "base/base.h"

#include <string.h>

// splitmix64 finaliser (Steele et al., OOPSLA'14): spreads close seeds over the key space.
static uint64_t mix_seed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

iso__philox_key iso__philox_key_make(uint64_t seed, uint32_t purpose, uint64_t stream) {
    uint64_t k = mix_seed(mix_seed(mix_seed(seed) ^ purpose) ^ stream);
    return (iso__philox_key){{(uint32_t)k, (uint32_t)(k >> 32)}};
}

void iso__philox(iso__philox_key key, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// Unbiased in [0, bound): Lemire, "Fast random integer generation in an interval" (2019). Counter
// words: the position in words 0 and 1, the attempt in word 2, and `shard` in word 3.
uint64_t iso__draw_below(iso__philox_key key, uint32_t shard, uint64_t position, uint64_t bound) {
    uint64_t unfair = -bound % bound; // 2^64 mod bound
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, shard};
    for (;; counter[2]++) {
        uint32_t word[4];
        iso__philox(key, counter, word);
        uint64_t bits = (uint64_t)word[1] << 32 | word[0];
        unsigned __int128 product = (unsigned __int128)bits * bound;
        if ((uint64_t)product >= unfair) return (uint64_t)(product >> 64);
    }
}

uint64_t iso__hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

// A permutation of lanes for a given word, and of words for a given lane. So a difference in a
// single word always changes the checksum.
static inline uint64_t stir_lane(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * 0x9e3779b97f4a7c15u;
    return lane ^ lane >> 32;
}

// Independent chains of multiplications, so that none waits for another.
enum { LANES = ISO__CHECKSUM_LANES };

static void stir_word(uint64_t lane[LANES], const void *from) {
    uint64_t word[LANES];
    memcpy(word, from, sizeof(word));
    for (int i = 0; i < LANES; i++) lane[i] = stir_lane(lane[i], word[i]);
}

iso__checksum_state iso__checksum_begin(uint64_t sum) {
    iso__checksum_state out = {.sum = sum};
    for (int i = 0; i < LANES; i++) out.lane[i] = sum + (uint64_t)i;
    return out;
}

void iso__checksum_add(iso__checksum_state *state, const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t lane[LANES];
    if (bytes == 0) return; // data may be NULL
    state->bytes += bytes;
    if (state->filled > 0) {
        size_t now = sizeof(state->rest) - state->filled;
        if (now > bytes) now = bytes;
        memcpy(state->rest + state->filled, at, now);
        state->filled += now, at += now, bytes -= now;
        if (state->filled < sizeof(state->rest)) return;
        stir_word(state->lane, state->rest);
        state->filled = 0;
    }
    memcpy(lane, state->lane, sizeof(lane));
    for (; bytes >= sizeof(lane); at += sizeof(lane), bytes -= sizeof(lane)) stir_word(lane, at);
    memcpy(state->lane, lane, sizeof(lane));
    memcpy(state->rest, at, bytes);
    state->filled = bytes;
}

uint64_t iso__checksum_end(iso__checksum_state *state) {
    if (state->filled > 0) { // zeros follow; the length comes in below
        memset(state->rest + state->filled, 0, sizeof(state->rest) - state->filled);
        stir_word(state->lane, state->rest);
    }
    uint64_t sum = stir_lane(state->sum, state->bytes);
    for (int i = 0; i < LANES; i++) sum = stir_lane(sum, state->lane[i]);
    return mix_seed(sum);
}

uint64_t iso__checksum(uint64_t sum, const void *data, size_t bytes) {
    iso__checksum_state state = iso__checksum_begin(sum);
    iso__checksum_add(&state, data, bytes);
    return iso__checksum_end(&state);
}
