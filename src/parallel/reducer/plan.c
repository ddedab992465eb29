// SPDX-License-Identifier: MIT
// The order in which chunks of buckets leave: among those that are ready, the one needed first.
#include "parallel/reducer/plan.h"

#include <limits.h>

// A chunk occupies the wire for about this time (ms). A bucket that becomes ready later but is
// needed earlier waits only for the chunks under way.
#define CHUNK_MS 1.0
// Smaller chunks cost too much overhead for each exchange; larger ones gain nothing.
#define LEAST_CHUNK_BYTES ((size_t)64 << 10)
#define MOST_CHUNK_BYTES  ((size_t)1 << 20)
#define ROUND_BYTES       ((size_t)4 << 10)
// While one chunk is on the wire, the next one is already posted.
#define CHUNKS_UNDER_WAY 2

iso__plan_config iso__plan_choose(double bytes_per_ms) {
    double wanted = bytes_per_ms * CHUNK_MS;
    size_t chunk = LEAST_CHUNK_BYTES;
    if (wanted >= (double)MOST_CHUNK_BYTES)
        chunk = MOST_CHUNK_BYTES;
    else if (wanted > (double)LEAST_CHUNK_BYTES)
        chunk = ((size_t)wanted + ROUND_BYTES / 2) / ROUND_BYTES * ROUND_BYTES;
    return (iso__plan_config){
        .bytes_per_ms = bytes_per_ms, .chunk_bytes = chunk, .window = CHUNKS_UNDER_WAY * chunk};
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

// Among the items that are ready and have chunks left, the one that is needed first; -1: none is
// ready, and *next_ms is the time at which one will be.
static int find_urgent(const iso__plan_item *item, int count, const size_t *chunks,
                       const size_t *sent, double now_ms, double *next_ms) {
    int urgent = -1;
    bool waits = false;
    for (int i = 0; i < count; i++) {
        if (sent[i] == chunks[i]) continue;
        if (item[i].ready_ms <= now_ms) {
            if (urgent < 0 || item[i].need_ms < item[urgent].need_ms) urgent = i;
        } else if (!waits || item[i].ready_ms < *next_ms) {
            *next_ms = item[i].ready_ms;
            waits = true;
        }
    }
    return urgent;
}

// Writes all chunks. sent must be all zeros.
static void simulate_wire(const iso__plan_item *item, int count, double bytes_per_ms,
                          const size_t *chunks, size_t *sent, iso__chunk *chunk) {
    double now_ms = 0, next_ms = 0;
    size_t total = 0;
    for (int i = 0; i < count; i++) total += chunks[i];
    for (size_t k = 0; k < total;) {
        int i = find_urgent(item, count, chunks, sent, now_ms, &next_ms);
        if (i < 0) {
            now_ms = next_ms;
            continue;
        }
        size_t at = iso__cut_at(item[i].bytes, item[i].unit, chunks[i], sent[i]);
        size_t end = iso__cut_at(item[i].bytes, item[i].unit, chunks[i], ++sent[i]);
        chunk[k++] = (iso__chunk){.item = i, .offset = at, .bytes = end - at};
        now_ms += (double)(end - at) / bytes_per_ms;
    }
}

iso_status iso__plan_make(const iso__plan_item *item, int count, const iso__plan_config *config,
                          iso__chunk **chunks, int *chunk_count) {
    iso_status status;
    size_t *each = NULL, total = 0;
    iso__chunk *chunk = NULL;
    ISO_TRY(check_items(item, count, config));
    ISO_TRY(iso__alloc_zero(2 * (size_t)count * sizeof(size_t), (void **)&each)); // chunks and sent
    ISO_TRY_GOTO(count_chunks(item, count, config, each, &total));
    ISO_TRY_GOTO(iso__alloc(total * sizeof(iso__chunk), (void **)&chunk));
    simulate_wire(item, count, config->bytes_per_ms, each, each + count, chunk);
    iso__free(each);
    *chunks = chunk;
    *chunk_count = (int)total;
    return ISO_OK;
fail:
    iso__free(each);
    return status;
}
