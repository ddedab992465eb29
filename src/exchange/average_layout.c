// SPDX-License-Identifier: MIT
// The weighted mean over nodes: its shards and chunks, and its state.
#include "exchange/average_impl.h"

#include <math.h>

size_t iso__average_chunks(const iso__average *a, size_t count) {
    size_t chunk = a->config.chunk;
    return chunk == 0 || count <= chunk ? count > 0 : (count + chunk - 1) / chunk;
}

size_t iso__average_blocks(const iso__average *a) {
    return iso__average_has_peer(a) ? 1 : (size_t)a->layout->nodes;
}

static size_t round_block(const iso__average *a, iso__average_type type, size_t count) {
    size_t group = type == ISO__AVERAGE_F32 ? a->config.wire->group : 1, unit = ISO__AVERAGE_UNIT;
    return iso__round_up(count, group > unit ? group : unit);
}

static void lay_out_type(iso__average *a, iso__average_type type) {
    size_t offset = 0, blocks = iso__average_blocks(a);
    size_t first = a->carried[type].first, count = a->carried[type].count;
    int chunks = (int)iso__average_chunks(a, count);
    for (int i = 0; i < chunks; i++) {
        iso__average_chunk *c = &a->chunk[a->chunk_count++];
        size_t later = (size_t)(chunks - 1 - i) * a->config.chunk;
        *c = (iso__average_chunk){
            .type = type, .first = first, .count = count - later, .offset = offset};
        c->block = round_block(a, type, (c->count + blocks - 1) / blocks);
        offset += c->block * blocks;
        first += c->count;
        count -= c->count;
    }
    a->room[type] = offset;
}

void iso__average_lay_out(iso__average *a) {
    a->chunk_count = 0;
    lay_out_type(a, ISO__AVERAGE_F32);
    lay_out_type(a, ISO__AVERAGE_F64);
}

size_t iso__average_f64_base(const iso__average *a, const iso__codec *wire) {
    return iso__round_up(wire->bytes(a->room[ISO__AVERAGE_F32]), ISO__AVERAGE_MESSAGE);
}

size_t iso__average_room_bytes(const iso__average *a, const iso__codec *wire) {
    return iso__average_f64_base(a, wire) + a->room[ISO__AVERAGE_F64] * sizeof(double);
}

size_t iso__average_at(const iso__average *a, iso__average_type type) {
    return type == ISO__AVERAGE_F32 ? 0 : iso__flat_f64((iso__flat){.f32 = a->count});
}

iso__average_range iso__average_shard(const iso__average *a, iso__average_type type, int l) {
    size_t from = (size_t)l * a->shard[type], count = a->size[type];
    if (from > count) from = count;
    return (iso__average_range){from,
                                count - from < a->shard[type] ? count - from : a->shard[type]};
}

bool iso__average_busy(const iso__average *a) { return a->phase != ISO__AVERAGE_IDLE; }

bool iso__average_has_reference(const iso__average *a) {
    return a->config.differences && !isnan(a->mean[a->current][0]);
}
