// SPDX-License-Identifier: MIT
// The order in which chunks of buckets leave: among those that are ready, the one needed first.
#include "parallel/reducer/plan.h"

#include <limits.h>

// A chunk occupies the wire for about this time (ms). A bucket that becomes ready later but is
// needed earlier waits only for the chunks under way.
#define CHUNK_MS 1.0
// Smaller chunks cost too much overhead for each exchange; larger ones gain nothing, unless they
// become short messages to many ranks (iso__channel_needs).
#define LEAST_CHUNK_BYTES ((size_t)64 << 10)
#define MOST_CHUNK_BYTES  ((size_t)1 << 20)
#define ROUND_BYTES       ((size_t)4 << 10)

iso__plan_config iso__plan_choose(double bytes_per_ms, iso__channel_needs needs) {
    double wanted = bytes_per_ms * CHUNK_MS;
    size_t chunk = LEAST_CHUNK_BYTES;
    if (wanted >= (double)MOST_CHUNK_BYTES)
        chunk = MOST_CHUNK_BYTES;
    else if (wanted > (double)LEAST_CHUNK_BYTES)
        chunk = ((size_t)wanted + ROUND_BYTES / 2) / ROUND_BYTES * ROUND_BYTES;
    if (chunk < needs.chunk) chunk = needs.chunk;
    return (iso__plan_config){.bytes_per_ms = bytes_per_ms,
                              .chunk_bytes = chunk,
                              .window = (size_t)needs.under_way * chunk};
}

static iso_status check_items(const iso__plan_item *item, int count,
                              const iso__plan_config *config) {
    ISO_CHECK(config->bytes_per_ms > 0 && config->chunk_bytes > 0, ISO_ERR_ARG,
              "a plan for a wire of %g bytes per ms in chunks of %zu bytes: both must be above 0",
              config->bytes_per_ms, config->chunk_bytes);
    for (int i = 0; i < count; i++) {
        const iso__plan_item *m = &item[i];
        ISO_CHECK(m->bytes > 0 && m->unit > 0 && m->bytes % m->unit == 0, ISO_ERR_ARG,
                  "a plan for bucket %d of %zu bytes in units of %zu: give whole units", i,
                  m->bytes, m->unit);
        ISO_CHECK(m->need_ms > m->ready_ms, ISO_ERR_ARG,
                  "a plan for bucket %d, needed %g ms after it is ready: it must be later", i,
                  m->need_ms - m->ready_ms);
    }
    return ISO_OK;
}

// Counts the chunks of each item and of all items.
static iso_status count_chunks(const iso__plan_item *item, int count,
                               const iso__plan_config *config, size_t *chunks, size_t *total) {
    *total = 0;
    for (int i = 0; i < count; i++)
        *total += chunks[i] = iso__cut_count(item[i].bytes, item[i].unit, config->chunk_bytes);
    ISO_CHECK(*total <= INT_MAX, ISO_ERR_ARG, "a plan of %zu chunks: choose longer ones", *total);
    return ISO_OK;
}

// ---- Items that are ready ---------------------------------------------------------------------------

// An item, in the order in which they become ready.
typedef struct arrival {
    double ready_ms;
    int item;
} arrival;

static int by_ready(const void *a, const void *b) {
    const arrival *x = a, *y = b;
    if (x->ready_ms != y->ready_ms) return x->ready_ms < y->ready_ms ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

// The ready items that have chunks left, as a binary heap: first[0] is needed first.
typedef struct urgency {
    const iso__plan_item *item;
    int *first, count;
} urgency;

static bool is_sooner(const urgency *u, int a, int b) {
    double x = u->item[a].need_ms, y = u->item[b].need_ms;
    return x != y ? x < y : a < b;
}

static void add_item(urgency *u, int item) {
    int at = u->count++;
    for (int above; at > 0 && is_sooner(u, item, u->first[above = (at - 1) / 2]); at = above)
        u->first[at] = u->first[above];
    u->first[at] = item;
}

static void drop_first(urgency *u) {
    int last = u->first[--u->count], at = 0;
    for (int below; (below = 2 * at + 1) < u->count; at = below) {
        if (below + 1 < u->count && is_sooner(u, u->first[below + 1], u->first[below])) below++;
        if (!is_sooner(u, u->first[below], last)) break;
        u->first[at] = u->first[below];
    }
    u->first[at] = last;
}

// ---- The wire ---------------------------------------------------------------------------------------

// What making a plan needs, for each item.
typedef struct plan_work {
    size_t *chunks, *sent;
    arrival *arrival;
    urgency ready;
} plan_work;

static void free_work(plan_work *w) {
    iso__free(w->chunks);
    iso__free(w->sent);
    iso__free(w->arrival);
    iso__free(w->ready.first);
}

static iso_status allocate_work(const iso__plan_item *item, int count, plan_work *w) {
    size_t n = (size_t)count;
    w->ready.item = item;
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->chunks), (void **)&w->chunks));
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->sent), (void **)&w->sent));
    ISO_TRY(iso__alloc(n * sizeof(*w->arrival), (void **)&w->arrival));
    ISO_TRY(iso__alloc(n * sizeof(*w->ready.first), (void **)&w->ready.first));
    for (int i = 0; i < count; i++) w->arrival[i] = (arrival){item[i].ready_ms, i};
    qsort(w->arrival, n, sizeof(*w->arrival), by_ready);
    return ISO_OK;
}

// Writes all chunks.
static void simulate_wire(const iso__plan_item *item, int count, double bytes_per_ms, size_t total,
                          plan_work *w, iso__chunk *chunk) {
    double now_ms = 0;
    int next = 0;
    for (size_t k = 0; k < total;) {
        while (next < count && w->arrival[next].ready_ms <= now_ms)
            add_item(&w->ready, w->arrival[next++].item);
        if (w->ready.count == 0) {
            now_ms = w->arrival[next].ready_ms;
            continue;
        }
        int i = w->ready.first[0];
        size_t at = iso__cut_at(item[i].bytes, item[i].unit, w->chunks[i], w->sent[i]);
        size_t end = iso__cut_at(item[i].bytes, item[i].unit, w->chunks[i], ++w->sent[i]);
        chunk[k++] = (iso__chunk){.item = i, .offset = at, .bytes = end - at};
        now_ms += (double)(end - at) / bytes_per_ms;
        if (w->sent[i] == w->chunks[i]) drop_first(&w->ready);
    }
}

iso_status iso__plan_make(const iso__plan_item *item, int count, const iso__plan_config *config,
                          iso__chunk **chunks, int *chunk_count) {
    iso_status status;
    size_t total = 0;
    plan_work work = {0};
    iso__chunk *chunk = NULL;
    ISO_TRY(check_items(item, count, config));
    ISO_TRY_GOTO(allocate_work(item, count, &work));
    ISO_TRY_GOTO(count_chunks(item, count, config, work.chunks, &total));
    ISO_TRY_GOTO(iso__alloc(total * sizeof(iso__chunk), (void **)&chunk));
    simulate_wire(item, count, config->bytes_per_ms, total, &work, chunk);
    *chunks = chunk;
    *chunk_count = (int)total;
fail:
    free_work(&work);
    return status;
}
