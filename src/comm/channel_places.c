// SPDX-License-Identifier: MIT
// What the chunks of a channel's plan need while they are under way, made when the plan is set.
#include "comm/blocks.h"
#include "comm/channel_impl.h"
#include "comm/pairwise.h"

#define CUT_UNIT ((size_t)64) // cells begin on cache lines
// The maximum number of places for exchanges of blocks and for sums. Many ranks keep more sums in
// flight (iso__sums_under_way).
enum { MOST_CELLS = 16, MOST_SUMS = 32 };

// ---- Requests ---------------------------------------------------------------------------------------

// The maximum number of chunks that can be under way at once.
static int most_at_once(const iso__chunk *chunk, int count, size_t window) {
    size_t least = SIZE_MAX;
    for (int k = 0; k < count; k++) least = chunk[k].bytes < least ? chunk[k].bytes : least;
    return window / least + 1 < (size_t)count ? (int)(window / least + 1) : count;
}

static iso_status reserve_requests(iso__channel *c, int room) {
    iso__engine *engine = c->comm->engine;
    if (room <= c->room) return ISO_OK;
    pthread_mutex_lock(&engine->lock);
    iso_status status = iso__request_reserve(engine, room - c->room);
    pthread_mutex_unlock(&engine->lock);
    if (status == ISO_OK) c->room = room;
    return status;
}

// ---- Cells ------------------------------------------------------------------------------------------

static void free_cells(iso__channel *c) {
    if (c->cell) iso__free(c->cell[0].memory);
    iso__free(c->cell);
    c->cell = NULL;
    c->cell_count = 0;
}

// ---- Exchanges in stages ----------------------------------------------------------------------------

static bool is_sum_by_messages(const iso__channel *c, const iso__channel_entry *m) {
    return m->given.operation == ISO__SUM && iso__channel_ops(c, m) == &iso__collective_mpi;
}

// The number of chunks that can be under way at once, at most `limit`, of the items for which `of`
// is true. *longest: the bytes of the longest of these chunks.
static int chunks_at_once(const iso__channel *c,
                          bool (*of)(const iso__channel *, const iso__channel_entry *),
                          size_t limit, size_t *longest) {
    int count = 0;
    *longest = 0;
    for (int k = 0; k < c->chunk_count; k++) {
        if (!of(c, &c->item[c->chunk[k].item])) continue;
        *longest = c->chunk[k].bytes > *longest ? c->chunk[k].bytes : *longest;
        count++;
    }
    if (count == 0) return 0;
    size_t most = c->window / *longest < limit ? c->window / *longest + 1 : limit;
    return (size_t)count > most ? (int)most : count;
}

// If all chunks can be under way together, each has a place of its own.
static iso_status create_pairwise(iso__channel *c, int count, size_t longest) {
    size_t total = 0;
    void *bytes;
    for (int k = 0; k < c->chunk_count; k++) total += c->chunk[k].bytes;
    bool fixed = total <= c->window;
    if (fixed) count = c->chunk_count;
    ISO_TRY(iso__alloc((size_t)count * sizeof(size_t), &bytes));
    for (int k = 0; k < count; k++) {
        bool sum = !fixed || is_sum_by_messages(c, &c->item[c->chunk[k].item]);
        ((size_t *)bytes)[k] = !sum ? 0 : fixed ? c->chunk[k].bytes : longest;
    }
    iso__pairwise_config config = {.rank = c->comm->rank,
                                   .size = c->comm->size,
                                   .count = count,
                                   .bytes = bytes,
                                   .fixed = fixed};
    iso_status status = iso__pairwise_create(c->comm->engine, &config, &c->pairwise);
    iso__free(bytes);
    return status;
}

static iso_status make_pairwise(iso__channel *c) {
    size_t longest;
    unsigned turn = c->pairwise ? c->pairwise->turn : 0; // a rank may set a plan once more
    iso__pairwise_destroy(&c->pairwise);
    int count = c->sums_pairwise ? chunks_at_once(c, is_sum_by_messages, MOST_SUMS, &longest) : 0;
    if (count > 0) ISO_TRY(create_pairwise(c, count, longest));
    if (c->pairwise) c->pairwise->turn = turn;
    return ISO_OK;
}

static iso_status make_cells(iso__channel *c) {
    size_t longest, ranks = (size_t)c->comm->size;
    int count = chunks_at_once(c, iso__channel_uses_cells, MOST_CELLS, &longest);
    free_cells(c);
    if (count == 0) return ISO_OK;
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*c->cell), (void **)&c->cell));
    c->cell_count = count;
    size_t each = (ranks * longest + CUT_UNIT - 1) / CUT_UNIT * CUT_UNIT;
    ISO_TRY(iso__alloc((size_t)count * each, (void **)&c->cell[0].memory));
    for (int i = 1; i < count; i++) c->cell[i].memory = c->cell[i - 1].memory + each;
    return ISO_OK;
}

static bool is_block_exchange(const iso__channel *c, const iso__channel_entry *m) {
    return iso__channel_ops(c, m) == &iso__collective_blocks;
}

static iso_status make_blocks(iso__channel *c) {
    size_t longest;
    int turn = c->blocks ? c->blocks->turn : 0; // as above
    iso__blocks_destroy(&c->blocks);
    int count = chunks_at_once(c, is_block_exchange, MOST_CELLS, &longest);
    if (count > 0) ISO_TRY(iso__blocks_create(c->comm, count, &c->blocks));
    if (c->blocks) c->blocks->turn = turn;
    return ISO_OK;
}

// ---- All of them ------------------------------------------------------------------------------------

iso_status iso__channel_make_places(iso__channel *c) {
    ISO_TRY(make_cells(c));
    ISO_TRY(make_pairwise(c));
    ISO_TRY(make_blocks(c));
    return reserve_requests(c, most_at_once(c->chunk, c->chunk_count, c->window));
}

void iso__channel_free_places(iso__channel *c) {
    iso__pairwise_destroy(&c->pairwise);
    iso__blocks_destroy(&c->blocks);
    free_cells(c);
}
