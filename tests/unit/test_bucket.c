// SPDX-License-Identifier: MIT
// Buckets: PyTorch's assignment, what no assignment may break, sizes beyond 32 bits, and errors.
#include "common/balance.h"
#include "common/fixture.h"
#include "parallel/reducer/layout.h"

#include <criterion/criterion.h>
#include <isotherm/comm.h>
#include <string.h>

TestSuite(bucket, .fini = balance_check, .timeout = 60);

enum { MOST_SLOTS = 60 };

// A layout that has slots and nothing else; their values are nowhere.
typedef struct model {
    iso__layout layout;
    iso__grad_slot slot[MOST_SLOTS];
    char name[MOST_SLOTS][16];
} model;

static void add_slot(model *m, int layer, iso_dtype dtype, size_t count, bool local) {
    int i = m->layout.slot_count++;
    snprintf(m->name[i], sizeof(m->name[i]), "l%d.p%d", layer, i);
    m->layout.slot = m->slot;
    m->slot[i] = (iso__grad_slot){
        .name = m->name[i], .count = count, .dtype = dtype, .layer = layer, .local = local};
}

static iso_status assign(model *m, iso__bucket_sizes sizes) {
    return iso__layout_assign(&m->layout, &sizes);
}

static void forget(model *m) {
    iso__free(m->layout.order);
    iso__free(m->layout.bucket);
    iso__free(m->layout.range);
    iso__free(m->layout.tensor);
    m->layout.order = NULL;
    m->layout.bucket = NULL;
}

// ---- PyTorch's ------------------------------------------------------------------------------------

typedef struct golden_case {
    const double *bytes, *types, *limits, *bucket, *from_front;
    int64_t count, limit_count;
} golden_case;

// Tensors are listed in the order of the backward there: tensor k is slot count - 1 - k.
static golden_case load(fixture *f, const char *name, model *m) {
    golden_case c = {0};
    c.bytes = fixture_get(f, name, "bytes", &c.count);
    c.types = fixture_get(f, name, "types", NULL);
    c.limits = fixture_get(f, name, "limits", &c.limit_count);
    c.bucket = fixture_get(f, name, "bucket", NULL);
    c.from_front = fixture_get(f, name, "from_front", NULL);
    for (int i = 0; i < c.count; i++) {
        int64_t k = c.count - 1 - i;
        iso_dtype dtype = c.types[k] != 0 ? ISO_F64 : ISO_F32;
        add_slot(m, i, dtype, (size_t)c.bytes[k] / iso_dtype_size(dtype), false);
    }
    return c;
}

// With several types PyTorch orders buckets by their first tensors, which are ready early; here
// they leave in the order in which they become complete. So it is compared who shares a bucket.
static void expect_partition(const char *name, const model *m, const golden_case *c) {
    for (int i = 0; i < c->count; i++)
        for (int j = 0; j < i; j++) {
            bool theirs = c->bucket[c->count - 1 - i] == c->bucket[c->count - 1 - j];
            cr_assert_eq(m->slot[i].bucket == m->slot[j].bucket, theirs,
                         "%s: slots %d and %d share a bucket %s only", name, i, j,
                         theirs ? "in PyTorch" : "here");
        }
}

static void expect_order(const char *name, const model *m, const golden_case *c) {
    for (int i = 0; i < c->count; i++)
        cr_assert_eq(m->slot[i].bucket, (int)c->bucket[c->count - 1 - i], "%s: slot %d", name, i);
}

static iso__bucket_sizes sizes_of(const golden_case *c, size_t *list) {
    for (int i = 0; i < c->limit_count; i++) list[i] = (size_t)c->limits[i];
    if (c->limit_count == 1) return (iso__bucket_sizes){.cap = list[0]};
    if (c->limit_count == 2) return (iso__bucket_sizes){.first = list[0], .cap = list[1]};
    return (iso__bucket_sizes){.list = list, .list_count = (int)c->limit_count};
}

Test(bucket, are_pytorchs) {
    const char *const names[] = {"one", "first", "list", "oversized", "mixed", "each"};
    fixture *f = fixture_open("buckets.txt");
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        model m = {0};
        size_t list[8];
        golden_case c = load(f, names[n], &m);
        cr_assert_eq(assign(&m, sizes_of(&c, list)), ISO_OK);
        expect_partition(names[n], &m, &c);
        if (strcmp(names[n], "mixed") != 0) expect_order(names[n], &m, &c);
        forget(&m);
    }
    fixture_close(&f);
}

// The bucket of the first layer, as PyTorch fills it with DDP_SET_LAST_BUCKET_CAP=1.
Test(bucket, last_size_is_pytorchs) {
    const char *const names[] = {"one", "first", "list", "oversized"};
    fixture *f = fixture_open("buckets.txt");
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        model m = {0};
        golden_case c = load(f, names[n], &m);
        size_t last = (size_t)fixture_get(f, names[n], "last", NULL)[0];
        cr_assert_eq(assign(&m, (iso__bucket_sizes){.cap = 4096, .last = last}), ISO_OK);
        for (int i = 0; i < c.count; i++)
            cr_assert_eq(m.slot[i].bucket == m.layout.bucket_count - 1, c.from_front[i] == 0,
                         "%s: slot %d", names[n], i);
        forget(&m);
    }
    fixture_close(&f);
}

// ---- What no assignment may break -------------------------------------------------------------------

static uint32_t draw(uint32_t *state, uint32_t below) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(*state >> 8) * below) >> 24);
}

static void make_random(model *m, uint32_t *state) {
    int layers = 1 + (int)draw(state, 12);
    bool mixed = draw(state, 2), locals = draw(state, 2);
    *m = (model){0};
    for (int l = 0; l < layers; l++)
        for (uint32_t i = 1 + draw(state, 4); i > 0; i--)
            add_slot(m, l, mixed && draw(state, 2) ? ISO_F64 : ISO_F32, 1 + draw(state, 700),
                     locals && draw(state, 4) == 0);
}

static iso__bucket_sizes random_sizes(uint32_t *state, size_t *list) {
    if (draw(state, 3) == 0) {
        int count = 1 + (int)draw(state, 4);
        for (int i = 0; i < count; i++) list[i] = draw(state, 6000);
        return (iso__bucket_sizes){.list = list, .list_count = count};
    }
    return (iso__bucket_sizes){.cap = draw(state, 2) * draw(state, 9000),
                               .first = draw(state, 2) * draw(state, 3000),
                               .last = draw(state, 2) * draw(state, 5000)};
}

static size_t bytes_of(const iso__grad_slot *s) {
    return (s->count * iso_dtype_size(s->dtype) + 63) / 64 * 64;
}

static bool same_kind(const iso__grad_slot *a, const iso__grad_slot *b) {
    return a->dtype == b->dtype && a->local == b->local;
}

static void expect_sound(const model *m) {
    int seen[MOST_SLOTS] = {0}, next = 0, lowest_before = m->layout.slot_count;
    size_t offset = 0;
    for (int n = 0; n < m->layout.bucket_count; n++) {
        const iso__bucket *b = &m->layout.bucket[n];
        const iso__range *range = &m->layout.range[n];
        int lowest = m->layout.slot_count;
        cr_assert(range->first == next && range->last >= range->first && b->offset == offset);
        for (int k = range->first; k <= range->last; k++) {
            const iso__grad_slot *s = &m->slot[m->layout.order[k]];
            cr_assert(s->bucket == n && s->dtype == b->dtype && s->local == b->local);
            cr_assert_eq(s->offset, offset);
            offset += bytes_of(s);
            seen[m->layout.order[k]]++;
            lowest = m->layout.order[k] < lowest ? m->layout.order[k] : lowest;
        }
        cr_assert_lt(lowest, lowest_before); // the order in which a backward completes them
        cr_assert_eq(b->bytes, offset - b->offset);
        lowest_before = lowest;
        next = range->last + 1;
    }
    cr_assert_eq(offset, m->layout.bytes);
    for (int i = 0; i < m->layout.slot_count; i++) cr_assert_eq(seen[i], 1);
}

// Of one kind, a layer is in one bucket, and buckets hold layers that follow each other.
static void expect_whole_layers(const model *m) {
    for (int i = 0; i < m->layout.slot_count; i++)
        for (int j = 0; j < i; j++) {
            const iso__grad_slot *low = &m->slot[j], *high = &m->slot[i];
            if (!same_kind(low, high)) continue;
            cr_assert(low->bucket >= high->bucket); // the lower one does not leave earlier
            if (low->layer == high->layer) cr_assert_eq(low->bucket, high->bucket);
        }
}

// Bytes of the layers of bucket b without its lowest (or highest) layer.
static size_t bytes_without(const model *m, int bucket, bool lowest) {
    const iso__range *range = &m->layout.range[bucket];
    int first = m->slot[m->layout.order[range->first]].layer,
        last = m->slot[m->layout.order[range->last]].layer;
    size_t bytes = 0;
    for (int k = range->first; k <= range->last; k++) {
        const iso__grad_slot *s = &m->slot[m->layout.order[k]];
        if (s->layer != (lowest ? last : first)) bytes += bytes_of(s);
    }
    return bytes;
}

// Each bucket but the leftover holds at least its size, and without its lowest layer less.
static void expect_sizes(const model *m, const iso__bucket_sizes *sizes) {
    for (int n = 0; n < m->layout.bucket_count; n++) {
        const iso__bucket *b = &m->layout.bucket[n];
        int before = 0, behind = 0;
        for (int k = 0; k < m->layout.bucket_count; k++) {
            bool same =
                m->layout.bucket[k].dtype == b->dtype && m->layout.bucket[k].local == b->local;
            before += same && k < n;
            behind += same && k > n;
        }
        if (sizes->last > 0 && behind == 0) {
            cr_assert_lt(bytes_without(m, n, false), sizes->last);
            if (before > 0) cr_assert_geq(b->bytes, sizes->last);
            continue;
        }
        size_t size = sizes->list
                          ? sizes->list[before < sizes->list_count ? before : sizes->list_count - 1]
                      : before == 0 && sizes->first ? sizes->first
                                                    : sizes->cap;
        size_t without = bytes_without(m, n, true);
        cr_assert(without == 0 || without < size);
        if (behind > (sizes->last > 0)) cr_assert_geq(b->bytes, size);
    }
}

Test(bucket, random_models_are_sound) {
    uint32_t state = 1;
    for (int round = 0; round < 3000; round++) {
        model m;
        size_t list[4];
        make_random(&m, &state);
        iso__bucket_sizes sizes = random_sizes(&state, list);
        cr_assert_eq(assign(&m, sizes), ISO_OK);
        expect_sound(&m);
        expect_whole_layers(&m);
        expect_sizes(&m, &sizes);
        forget(&m);
    }
}

// ---- Delayed ones -----------------------------------------------------------------------------------

// The buckets of those that are not delayed are those of a model without the others; the others
// share a bucket of each type, behind them.
static void expect_delayed(const model *m, const model *rest, const int *place) {
    int types = m->layout.bucket_count - m->layout.first_delayed;
    cr_assert_eq(m->layout.first_delayed, rest->layout.bucket_count);
    cr_assert(types >= 0 && types <= 2);
    for (int i = 0; i < m->layout.slot_count; i++) {
        const iso__grad_slot *s = &m->slot[i];
        cr_assert_eq(s->delayed, s->bucket >= m->layout.first_delayed);
        if (!s->delayed) cr_assert_eq(s->bucket, rest->slot[place[i]].bucket);
        for (int j = 0; s->delayed && j < i; j++)
            if (m->slot[j].delayed && m->slot[j].dtype == s->dtype)
                cr_assert_eq(m->slot[j].bucket, s->bucket);
    }
    int needed_first = iso__layout_last(&m->layout);
    for (int b = needed_first + 1; b < m->layout.first_delayed; b++)
        cr_assert(m->layout.bucket[b].local);
    for (int b = 0; b < m->layout.first_delayed; b++)
        if (!m->layout.bucket[b].local) cr_assert_lt(needed_first, m->layout.first_delayed);
}

Test(bucket, delayed_ones_are_last) {
    uint32_t state = 7;
    for (int round = 0; round < 3000; round++) {
        model m, rest = {0};
        size_t list[4];
        int place[MOST_SLOTS] = {0};
        make_random(&m, &state);
        uint32_t few = draw(&state, 4);
        for (int i = 0; i < m.layout.slot_count; i++) {
            iso__grad_slot *s = &m.slot[i];
            s->delayed = !s->local && draw(&state, 4) < few;
            place[i] = rest.layout.slot_count;
            if (!s->delayed) add_slot(&rest, s->layer, s->dtype, s->count, s->local);
        }
        if (rest.layout.slot_count == 0) continue;
        iso__bucket_sizes sizes = random_sizes(&state, list);
        cr_assert_eq(assign(&m, sizes), ISO_OK);
        cr_assert_eq(assign(&rest, sizes), ISO_OK);
        expect_delayed(&m, &rest, place);
        forget(&m);
        forget(&rest);
    }
}

// ---- Sizes and text -------------------------------------------------------------------------------

// 2^31 + 16 floats and more: nothing may be computed in 32 bits.
Test(bucket, sizes_beyond_32_bits) {
    size_t large = ((size_t)1 << 31) + 16;
    model m = {0};
    add_slot(&m, 0, ISO_F32, 1, false);
    add_slot(&m, 1, ISO_F32, large, false);
    add_slot(&m, 2, ISO_F64, 3 * large, false);
    add_slot(&m, 3, ISO_F32, 2, false);
    cr_assert_eq(assign(&m, (iso__bucket_sizes){.cap = 5 * large}), ISO_OK);
    expect_sound(&m);
    cr_assert_eq(m.layout.bytes, 64 + 4 * large + 24 * large + 64);
    cr_assert_eq(m.layout.bucket_count, 2); // 3 and 1 and 0 share one: 4 * large < cap
    forget(&m);
}

Test(bucket, more_than_memory_is_refused) {
    for (int i = 0; i < 2; i++) {
        model m = {0};
        add_slot(&m, 0, ISO_F64, i ? SIZE_MAX / 8 : SIZE_MAX / 40, false);
        add_slot(&m, 1, ISO_F64, SIZE_MAX / 40, false);
        add_slot(&m, 2, ISO_F64, SIZE_MAX / 40, false);
        cr_assert_eq(assign(&m, (iso__bucket_sizes){0}), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, i ? "\"l0.p0\"" : "\"l1.p1\""), "%s",
                  iso_last_error()->message);
        forget(&m);
    }
}

static void refuse(iso__bucket_sizes sizes, const char *word) {
    model m = {0};
    add_slot(&m, 0, ISO_F32, 4, false);
    cr_assert_eq(assign(&m, sizes), ISO_ERR_ARG, "not refused: %s", word);
    cr_assert(strstr(iso_last_error()->message, word), "%s", iso_last_error()->message);
    forget(&m);
}

Test(bucket, contradictory_sizes_are_refused) {
    size_t list[] = {100, (size_t)-1};
    refuse((iso__bucket_sizes){.cap = (size_t)-5}, "a bucket");
    refuse((iso__bucket_sizes){.first = (size_t)-5}, "a first bucket");
    refuse((iso__bucket_sizes){.last = (size_t)-5}, "a last bucket");
    refuse((iso__bucket_sizes){.list = list, .list_count = 2}, "the list of bucket sizes");
    refuse((iso__bucket_sizes){.list = list, .list_count = -1}, "a list of -1");
    refuse((iso__bucket_sizes){.list = list}, "a list of 0");
    refuse((iso__bucket_sizes){.list_count = 2}, "NULL");
    refuse((iso__bucket_sizes){.list = list, .list_count = 1, .cap = 7}, "one of the two");
    refuse((iso__bucket_sizes){.list = list, .list_count = 1, .last = 7}, "one of the two");
}

Test(bucket, text_has_one_line_for_each) {
    model m = {0};
    char *text;
    add_slot(&m, 0, ISO_F32, 5, false);
    add_slot(&m, 0, ISO_F64, 9, false);
    add_slot(&m, 1, ISO_F32, 17, false);
    add_slot(&m, 1, ISO_F32, 17, true);
    cr_assert_eq(assign(&m, (iso__bucket_sizes){.cap = 1 << 20}), ISO_OK);
    cr_assert_eq(iso__layout_text(&m.layout, &text), ISO_OK);
    cr_assert_str_eq(text, "bucket 0: 128 bytes, f32, not exchanged: l1.p3\n"
                           "bucket 1: 128 bytes, f64: l0.p1\n"
                           "bucket 2: 192 bytes, f32: l1.p2, l0.p0\n");
    iso_comm_free(text);
    forget(&m);
}

// ---- Long parameters of one layer --------------------------------------------------------------------

enum { KIB = 256, BLOCK = 8 }; // elements of f32

// A block of a transformer, whose tensors are one layer, between two others.
static void create_block(iso__layout *l, bool local) {
    static float memory[1400 * KIB];
    static const char *const name[] = {"e.token", "b.ln",  "b.qkv",   "b.proj",
                                       "b.fc",    "b.out", "b.shift", "h.head"};
    static const int layer[] = {0, 1, 1, 1, 1, 1, 1, 2};
    static const size_t kib[] = {100, 1, 192, 64, 256, 256, 1, 300};
    iso_reducer_param param[BLOCK];
    size_t at = 0;
    for (int i = 0; i < BLOCK; at += kib[i++] * KIB)
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = memory + at,
                                       .count = kib[i] * KIB,
                                       .dtype = ISO_F32,
                                       .layer = layer[i],
                                       .local = local && i == 5};
    cr_assert_eq(iso__layout_create(param, BLOCK, &(iso__bucket_sizes){0}, 0, 0, 0, l), ISO_OK);
}

static void expect_buckets(const iso__layout *l, const int *bucket) {
    for (int i = 0; i < BLOCK; i++)
        cr_expect_eq(iso__layout_piece(l, i, 0)->bucket, bucket[i], "parameter %d: bucket %d", i,
                     iso__layout_piece(l, i, 0)->bucket);
}

// They are ready and needed at different times. What is short goes with a long one.
Test(bucket, long_parameters_of_a_layer_travel_apart) {
    iso__layout l;
    create_block(&l, false);
    expect_buckets(&l, (const int[]){4, 3, 3, 3, 2, 1, 1, 0});
    iso__layout_destroy(&l);
}

// What is not exchanged makes nothing long.
Test(bucket, local_parameters_part_nothing) {
    iso__layout l;
    create_block(&l, true);
    expect_buckets(&l, (const int[]){4, 3, 3, 3, 2, 1, 2, 0});
    iso__layout_destroy(&l);
}

// ---- Pieces -------------------------------------------------------------------------------------------

// Kernels for a single row may sum in another order than those for several.
Test(bucket, no_piece_is_a_single_row) {
    static float memory[400 * 64];
    for (size_t rows = 30; rows <= 400; rows++) {
        iso__layout l;
        iso_reducer_param param = {
            .name = "w", .value = memory, .count = rows * 64, .dtype = ISO_F32, .row = 64};
        cr_assert_eq(iso__layout_create(&param, 1, &(iso__bucket_sizes){0}, 4096, 0, 0, &l),
                     ISO_OK);
        cr_assert(l.place[0].pieces > 1 || rows < 34);
        for (int k = 0; k < l.place[0].pieces; k++)
            cr_assert(iso__layout_piece(&l, 0, k)->count >= 128, "piece %d of %zu rows", k, rows);
        iso__layout_destroy(&l);
    }
}

// Such as the weight of a layer with one output, or a parameter of shape [1, T, D].
Test(bucket, a_parameter_of_one_row_is_not_cut, .timeout = 10) {
    static float memory[4096];
    iso__layout l;
    iso_reducer_param param = {
        .name = "w", .value = memory, .count = 4096, .dtype = ISO_F32, .row = 4096};
    cr_assert_eq(iso__layout_create(&param, 1, &(iso__bucket_sizes){0}, 4096, 0, 0, &l), ISO_OK);
    cr_assert(l.place[0].pieces == 1);
    iso__layout_destroy(&l);
}
