// SPDX-License-Identifier: MIT
// Plans of chunks: against brute force on small instances, and their properties on large ones.
#include "common/balance.h"
#include "parallel/reducer/plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(plan, .fini = balance_check);

enum { MOST = 6 };

static uint32_t drawn;
static uint32_t draw(uint32_t below) {
    uint32_t counter[4] = {drawn++, 0, 0, 0}, bits[4];
    iso__philox(iso__philox_key_make(3, ISO_RNG_TEST, 0), counter, bits);
    return bits[0] % below;
}

static double later(double x, double y) { return x > y ? x : y; }

// ---- The largest lateness is minimal ----------------------------------------------------------------

typedef struct instance {
    iso__plan_item item[MOST];
    int count;
} instance;

// Chunks of one byte, of which the wire takes one per ms; they become ready at whole ms.
static const iso__plan_config one_byte = {.bytes_per_ms = 1, .chunk_bytes = 1, .window = 1};

static instance random_instance(int count, uint32_t most_chunks) {
    instance x = {.count = count};
    for (int i = 0; i < count; i++) {
        double ready = draw(6);
        x.item[i] = (iso__plan_item){.bytes = 1 + draw(most_chunks),
                                     .unit = 1,
                                     .ready_ms = ready,
                                     .need_ms = ready + 1 + draw(12)};
    }
    return x;
}

// One more chunk of item i at the earliest time; *lateness grows if it was the last one.
static double send(const instance *x, int i, size_t *left, double now_ms, double *lateness) {
    now_ms = later(now_ms, x->item[i].ready_ms) + 1;
    if (--left[i] == 0) *lateness = later(*lateness, now_ms - x->item[i].need_ms);
    return now_ms;
}

// Of all orders of the chunks.
static double least_lateness(const instance *x, const size_t *left, double now_ms, double so_far) {
    double least = INFINITY;
    bool any = false;
    for (int i = 0; i < x->count; i++) {
        if (left[i] == 0) continue;
        any = true;
        size_t rest[MOST];
        double lateness = so_far;
        memcpy(rest, left, sizeof(rest));
        double then = send(x, i, rest, now_ms, &lateness);
        double best = least_lateness(x, rest, then, lateness);
        if (best < least) least = best;
    }
    return any ? least : so_far;
}

static double lateness_of(const instance *x, size_t *left, const iso__chunk *chunk, int count) {
    double now_ms = 0, lateness = -INFINITY;
    for (int k = 0; k < count; k++) now_ms = send(x, chunk[k].item, left, now_ms, &lateness);
    return lateness;
}

Test(plan, no_order_has_a_smaller_largest_lateness) {
    for (int n = 0; n < 400; n++) {
        instance x = random_instance(2 + (int)draw(3), 3);
        size_t left[MOST] = {0};
        for (int i = 0; i < x.count; i++) left[i] = x.item[i].bytes;
        double least = least_lateness(&x, left, 0, -INFINITY);
        iso__chunk *chunk;
        int count;
        cr_assert_eq(iso__plan_make(x.item, x.count, &one_byte, &chunk, &count), ISO_OK);
        double lateness = lateness_of(&x, left, chunk, count);
        cr_assert(lateness == least, "instance %d: %g ms late, %g ms is possible", n, lateness,
                  least);
        iso__free(chunk);
    }
}

// ---- Properties -------------------------------------------------------------------------------------

// Every byte once, in ascending order within an item, in whole units, in chunks that are nearly
// equal and not too long.
static void check_chunks(const instance *x, const iso__plan_config *config, const iso__chunk *chunk,
                         int count) {
    size_t at[MOST] = {0}, least[MOST], most[MOST] = {0};
    for (int i = 0; i < x->count; i++) least[i] = SIZE_MAX;
    for (int k = 0; k < count; k++) {
        const iso__chunk *p = &chunk[k];
        cr_assert(p->item >= 0 && p->item < x->count && p->offset == at[p->item]);
        cr_assert(p->bytes > 0 && p->bytes % x->item[p->item].unit == 0);
        cr_assert(p->bytes <= config->chunk_bytes || p->bytes == x->item[p->item].unit);
        at[p->item] += p->bytes;
        if (p->bytes < least[p->item]) least[p->item] = p->bytes;
        if (p->bytes > most[p->item]) most[p->item] = p->bytes;
    }
    for (int i = 0; i < x->count; i++) {
        cr_assert_eq(at[i], x->item[i].bytes);
        cr_assert(most[i] - least[i] <= x->item[i].unit);
    }
}

Test(plan, chunks_cover_every_item_once) {
    for (int n = 0; n < 500; n++) {
        instance x = random_instance(1 + (int)draw(MOST), 1);
        for (int i = 0; i < x.count; i++) {
            x.item[i].unit = 1 + draw(100);
            x.item[i].bytes = x.item[i].unit * (1 + draw(500));
        }
        iso__plan_config config = {.bytes_per_ms = 1 + draw(5000), .chunk_bytes = 1 + draw(2000)};
        iso__chunk *chunk;
        int count;
        cr_assert_eq(iso__plan_make(x.item, x.count, &config, &chunk, &count), ISO_OK);
        check_chunks(&x, &config, chunk, count);
        iso__free(chunk);
    }
}

static void expect_items(const instance *x, const iso__plan_config *config, const int *wanted,
                         int wanted_count) {
    iso__chunk *chunk;
    int count;
    cr_assert_eq(iso__plan_make(x->item, x->count, config, &chunk, &count), ISO_OK);
    cr_assert_eq(count, wanted_count, "%d chunks", count);
    for (int k = 0; k < count; k++)
        cr_expect_eq(chunk[k].item, wanted[k], "chunk %d is of item %d", k, chunk[k].item);
    iso__free(chunk);
}

// It waits for the chunk that is under way, and for nothing else, however much is behind that
// chunk: small ones overtake large ones.
Test(plan, what_is_needed_first_waits_for_one_chunk) {
    for (int n = 0; n < 500; n++) {
        instance x = random_instance(2 + (int)draw(MOST - 1), 60);
        iso__plan_item *first = &x.item[draw((uint32_t)x.count)];
        first->bytes = 1 + draw(3);
        first->need_ms = first->ready_ms + 0.5;
        for (int i = 0; i < x.count; i++)
            if (&x.item[i] != first) x.item[i].need_ms += first->need_ms;
        iso__plan_config config = {.bytes_per_ms = 1 + draw(9), .chunk_bytes = 1 + draw(9)};
        double longest = (double)config.chunk_bytes / config.bytes_per_ms, now_ms = 0;
        iso__chunk *chunk;
        int count, k = 0;
        cr_assert_eq(iso__plan_make(x.item, x.count, &config, &chunk, &count), ISO_OK);
        for (; &x.item[chunk[k].item] != first; k++)
            now_ms = later(now_ms, x.item[chunk[k].item].ready_ms) +
                     (double)chunk[k].bytes / config.bytes_per_ms;
        cr_assert_leq(now_ms, first->ready_ms + longest + 1e-9, "instance %d", n);
        iso__free(chunk);
    }
}

// Layer 0 is needed first and ready last. The wire takes anything at once: as they become ready.
Test(plan, an_infinitely_fast_wire_sends_as_things_become_ready) {
    const instance x = {{{20, 1, 3, 10}, {20, 1, 2, 11}, {20, 1, 1, 12}}, 3};
    iso__plan_config config = {.bytes_per_ms = INFINITY, .chunk_bytes = 10, .window = 20};
    expect_items(&x, &config, (const int[]){2, 2, 1, 1, 0, 0}, 6);
    config.bytes_per_ms = 1e9; // nearly
    expect_items(&x, &config, (const int[]){2, 2, 1, 1, 0, 0}, 6);
}

Test(plan, what_is_ready_at_once_goes_by_need_and_ties_by_number) {
    const instance x = {{{20, 1, 1, 30}, {10, 1, 1, 10}, {20, 1, 1, 20}, {10, 1, 1, 20}}, 4};
    const iso__plan_config config = {.bytes_per_ms = 10, .chunk_bytes = 10, .window = 20};
    expect_items(&x, &config, (const int[]){1, 2, 2, 3, 0, 0}, 6);
}

// The wire is behind: what becomes ready later and is needed earlier goes in between, after the
// chunk that is under way.
Test(plan, an_earlier_need_comes_in_between) {
    const instance x = {{{20, 1, 1.5, 5}, {50, 1, 0, 6}}, 2};
    const iso__plan_config config = {.bytes_per_ms = 10, .chunk_bytes = 10, .window = 20};
    expect_items(&x, &config, (const int[]){1, 1, 0, 0, 1, 1, 1}, 7);
}

Test(plan, items_of_more_elements_than_an_int_counts) {
    const instance x = {{{((size_t)3 << 33) + 64, 64, 0, 2}, {64, 64, 1, 2}}, 2};
    const iso__plan_config config = {
        .bytes_per_ms = 1e6, .chunk_bytes = 1 << 20, .window = 2 << 20};
    iso__chunk *chunk;
    int count;
    cr_assert_eq(iso__plan_make(x.item, x.count, &config, &chunk, &count), ISO_OK);
    cr_expect_eq(count, (3 << 13) + 2);
    check_chunks(&x, &config, chunk, count);
    iso__free(chunk);
}

// ---- Choice, and what is refused ---------------------------------------------------------------------

Test(plan, chunks_take_about_a_millisecond) {
    const double speeds[] = {0, 1, 65536, 70000, 125000, 500000, 1048000, 1.25e6, 1e12, INFINITY};
    for (int n = 0; n < (int)(sizeof(speeds) / sizeof(speeds[0])); n++) {
        iso__plan_config config = iso__plan_choose(speeds[n], (iso__channel_needs){.under_way = 2});
        double wanted = later(65536, speeds[n]) < 1 << 20 ? later(65536, speeds[n]) : 1 << 20;
        cr_expect(config.chunk_bytes % 4096 == 0 && config.bytes_per_ms == speeds[n]);
        cr_expect(fabs((double)config.chunk_bytes - wanted) <= 2048, "%zu for %g",
                  config.chunk_bytes, speeds[n]);
        cr_expect(config.window == 2 * config.chunk_bytes);
        size_t least = 3 << 18; // of sums whose messages would become short
        iso__plan_config longer =
            iso__plan_choose(speeds[n], (iso__channel_needs){.chunk = least, .under_way = 6});
        cr_expect(longer.chunk_bytes == (config.chunk_bytes < least ? least : config.chunk_bytes));
        cr_expect(longer.window == 6 * longer.chunk_bytes);
    }
}

Test(plan, more_chunks_are_under_way_on_more_ranks) {
    static const int ranks[] = {1, 2, 3, 8, 9, 16, 17, 32, 64, 1024};
    static const int expected[] = {2, 2, 2, 2, 4, 4, 6, 6, 8, 16};
    for (int i = 0; i < 10; i++) cr_expect_eq(iso__sums_under_way(ranks[i]), expected[i]);
}

static iso_status made(iso__plan_item item, iso__plan_config config) {
    iso__chunk *chunk = NULL;
    int count = 0;
    iso_status status = iso__plan_make(&item, 1, &config, &chunk, &count);
    iso__free(chunk);
    return status;
}

Test(plan, nonsense_is_refused) {
    const iso__plan_item item = {.bytes = 8, .unit = 4, .ready_ms = 0, .need_ms = 1};
    const iso__plan_config config = {.bytes_per_ms = 1, .chunk_bytes = 4};
    cr_expect_eq(made(item, config), ISO_OK);
    cr_expect_eq(made((iso__plan_item){8, 3, 0, 1}, config), ISO_ERR_ARG);
    cr_expect_eq(made((iso__plan_item){0, 4, 0, 1}, config), ISO_ERR_ARG);
    cr_expect_eq(made((iso__plan_item){8, 0, 0, 1}, config), ISO_ERR_ARG);
    cr_expect_eq(made((iso__plan_item){8, 4, 1, 1}, config), ISO_ERR_ARG);
    cr_expect_eq(made((iso__plan_item){8, 4, NAN, 1}, config), ISO_ERR_ARG);
    cr_expect_eq(made(item, (iso__plan_config){.bytes_per_ms = 0, .chunk_bytes = 4}), ISO_ERR_ARG);
    cr_expect_eq(made(item, (iso__plan_config){.bytes_per_ms = NAN, .chunk_bytes = 4}),
                 ISO_ERR_ARG);
    cr_expect_eq(made(item, (iso__plan_config){.bytes_per_ms = 1}), ISO_ERR_ARG);
    cr_expect_eq(made((iso__plan_item){(size_t)1 << 40, 4, 0, 1}, config), ISO_ERR_ARG);
}
