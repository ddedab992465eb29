// SPDX-License-Identifier: MIT
// The weighted mean over nodes: its shards and chunks, and its state.
#include "exchange/average_impl.h"

#include <math.h>

size_t iso__average_chunks(const iso__average *a, size_t count) {
    size_t chunk = a->config.chunk;
    return chunk == 0 || count <= chunk ? count > 0 : (count + chunk - 1) / chunk;
}

static size_t round_block(const iso__average *a, size_t count) {
    size_t group = a->config.wire->group, unit = ISO__AVERAGE_UNIT;
    return iso__round_up(count, group > unit ? group : unit);
}

size_t iso__average_lay_out(iso__average *a, size_t first, size_t count) {
    size_t offset = 0, nodes = (size_t)a->layout->nodes;
    a->chunk_count = (int)iso__average_chunks(a, count);
    for (int i = 0; i < a->chunk_count; i++) {
        iso__average_chunk *c = &a->chunk[i];
        size_t later = (size_t)(a->chunk_count - 1 - i) * a->config.chunk;
        *c = (iso__average_chunk){.first = first, .count = count - later, .offset = offset};
        c->block = round_block(a, (c->count + nodes - 1) / nodes);
        offset += c->block * nodes;
        first += c->count;
        count -= c->count;
    }
    return offset;
}

void iso__average_shard(const iso__average *a, int l, size_t *first, size_t *count) {
    size_t from = (size_t)l * a->shard;
    if (from > a->count) from = a->count;
    *first = from;
    *count = a->count - from < a->shard ? a->count - from : a->shard;
}

bool iso__average_busy(const iso__average *a) { return a->phase != ISO__AVERAGE_IDLE; }

bool iso__average_has_reference(const iso__average *a) {
    return a->config.differences && !isnan(a->mean[a->current][0]);
}
