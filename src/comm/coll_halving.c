// SPDX-License-Identifier: MIT
// The schedule of pairwise exchange by halves: pairwise.h.
#include "comm/pairwise.h"

// There are Q places, Q the power of two below P. The first 2 B ranks, B = P - Q, share places with
// their neighbours: the even rank keeps the left half of the vector there, the odd one the right
// half. Any other rank has a place of its own, with both halves. The halves are summed separately,
// between the ranks that keep them.
typedef struct places {
    int count, levels; // count == 2^levels
    int shared;        // the first so many places have two ranks
    int own;
} places;

typedef struct range {
    size_t from, to; // elements
} range;

static places places_of(const iso__pairwise *p) {
    places all = {.count = 1};
    while (2 * all.count <= p->size) {
        all.count *= 2;
        all.levels++;
    }
    all.shared = p->size - all.count;
    all.own = p->rank < 2 * all.shared ? p->rank / 2 : p->rank - all.shared;
    return all;
}

static bool shares_place(const iso__pairwise *p, const places *all) {
    return p->rank < 2 * all->shared;
}

static bool keeps_half(const iso__pairwise *p, const places *all, int half) {
    return !shares_place(p, all) || (p->rank & 1) == half;
}

// The rank that keeps a half at a place.
static int keeper_of(const places *all, int place, int half) {
    return place < all->shared ? 2 * place + half : place + all->shared;
}

// ---- Ranges ---------------------------------------------------------------------------------------

static range half_of(range r, bool right) {
    size_t middle = r.from + (r.to - r.from) / (2 * ISO_SLICE_UNIT) * ISO_SLICE_UNIT;
    return right ? (range){middle, r.to} : (range){r.from, middle};
}

static range side_of(const iso__pairwise_sum *s, int half) {
    return half_of((range){0, s->count}, half);
}

// The range of a half that a place still keeps after `levels` levels.
static range kept_at(const iso__pairwise_sum *s, int half, int place, int levels) {
    range r = side_of(s, half);
    for (int k = 0; k < levels; k++) r = half_of(r, place >> k & 1);
    return r;
}

static char *values_at(const iso__pairwise_sum *s, range r) {
    return s->data + r.from * s->base.request->unit;
}

// ---- Messages -------------------------------------------------------------------------------------

// One tag is enough for a sum: two ranks begin the messages between them in one order, which MPI
// keeps.
static int send_range(iso__pairwise_sum *s, range r, int to) {
    return iso__stages_send(&s->base, values_at(s, r), (int)(r.to - r.from),
                            iso__mpi_type(s->base.request->dtype), to, s->tag);
}

static int receive_range(iso__pairwise_sum *s, range r, int from, char *to) {
    return iso__stages_receive(&s->base, to, (int)(r.to - r.from),
                               iso__mpi_type(s->base.request->dtype), from, s->tag);
}

static int swap_ranges(iso__pairwise_sum *s, int with, range out, range in, char *to) {
    int rc = receive_range(s, in, with, to);
    return rc == MPI_SUCCESS ? send_range(s, out, with) : rc;
}

// For two neighbours that share a place: first each receives the half that it keeps. At the end
// each receives the sum of the other half.
static int swap_halves(iso__pairwise_sum *s, const places *all, bool last) {
    const iso__pairwise *p = s->pool;
    if (!shares_place(p, all)) return MPI_SUCCESS;
    range own = side_of(s, p->rank & 1), other = side_of(s, !(p->rank & 1));
    return last ? swap_ranges(s, p->rank ^ 1, own, other, values_at(s, other))
                : swap_ranges(s, p->rank ^ 1, other, own, s->blocks);
}

// Where the next part of a half is received. The part of the right half follows that of the left.
static char *block_of(const iso__pairwise_sum *s, const places *all, int half, int levels) {
    range left = kept_at(s, 0, all->own, levels);
    bool behind = half == 1 && !shares_place(s->pool, all);
    return s->blocks + (behind ? left.to - left.from : 0) * s->base.request->unit;
}

static int swap_parts(iso__pairwise_sum *s, const places *all, int level, bool gathers) {
    int partner = all->own ^ 1 << level, rc = MPI_SUCCESS;
    for (int half = 0; half < 2 && rc == MPI_SUCCESS; half++) {
        if (!keeps_half(s->pool, all, half)) continue;
        range own = kept_at(s, half, all->own, level + 1);
        range other = kept_at(s, half, partner, level + 1);
        int with = keeper_of(all, partner, half);
        rc = gathers ? swap_ranges(s, with, own, other, values_at(s, other))
                     : swap_ranges(s, with, other, own, block_of(s, all, half, level + 1));
    }
    return rc;
}

// ---- Stages ---------------------------------------------------------------------------------------

// The stages: between neighbours, through the levels, back through the levels, between neighbours.
static void shape_stages(iso__pairwise *p) {
    p->stages = 2 * places_of(p).levels + 2;
    p->messages = 4; // two halves in and out
}

static int post_stage(iso__pairwise_sum *s) {
    places all = places_of(s->pool);
    if (iso__engine_reserve(s->pool->engine, s->pool->messages) < 0) return MPI_ERR_NO_MEM;
    if (s->stage == 0 || s->stage > 2 * all.levels) return swap_halves(s, &all, s->stage > 0);
    bool gathers = s->stage > all.levels;
    return swap_parts(s, &all, gathers ? 2 * all.levels - s->stage : s->stage - 1, gathers);
}

static int add_range(const iso__pairwise_sum *s, char *block, range r) {
    char *both[] = {values_at(s, r), block};
    return iso__sum_in_order(s->pool->engine, both, 2, (int)(r.to - r.from),
                             s->base.request->dtype);
}

// A sum of two numbers does not depend on their order, so it does not matter which of two partners
// adds an element.
static int add_received(iso__pairwise_sum *s) {
    const iso__pairwise *p = s->pool;
    places all = places_of(p);
    int rc = MPI_SUCCESS;
    if (s->stage > all.levels) return MPI_SUCCESS;
    if (s->stage == 0)
        return shares_place(p, &all) ? add_range(s, s->blocks, side_of(s, p->rank & 1))
                                     : MPI_SUCCESS;
    for (int half = 0; half < 2 && rc == MPI_SUCCESS; half++)
        if (keeps_half(p, &all, half))
            rc = add_range(s, block_of(s, &all, half, s->stage),
                           kept_at(s, half, all.own, s->stage));
    return rc;
}

// Half of the data, plus the bytes by which rounding to ISO_SLICE_UNIT can lengthen a half.
static size_t block_bytes(const iso__pairwise *p, size_t bytes) {
    (void)p;
    return bytes / 2 + 6 * ISO_SLICE_UNIT * sizeof(double);
}

const iso__pairwise_schedule iso__pairwise_by_halves = {
    .shape = shape_stages, .block_bytes = block_bytes, .post = post_stage, .add = add_received};
