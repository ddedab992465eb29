// SPDX-License-Identifier: MIT
// In which order parts of buckets leave: earliest need first, among what is ready.
#include "parallel/reducer/plan.h"

#include <limits.h>

// A part occupies the wire for about so long: what is needed earlier and becomes ready meanwhile
// waits for no more than the parts that are under way.
#define PART_MS 1.0
// Below, what every exchange costs on its own counts; above, nothing is gained.
#define LEAST_PART_BYTES ((size_t)64 << 10)
#define MOST_PART_BYTES  ((size_t)1 << 20)
#define ROUND_BYTES      ((size_t)4 << 10)
// While one part is on the wire the next one is already posted.
#define PARTS_UNDER_WAY 2

iso__plan_config iso__plan_choose(double bytes_per_ms) {
    double wanted = bytes_per_ms * PART_MS;
    size_t part = LEAST_PART_BYTES;
    if (wanted >= (double)MOST_PART_BYTES)
        part = MOST_PART_BYTES;
    else if (wanted > (double)LEAST_PART_BYTES)
        part = ((size_t)wanted + ROUND_BYTES / 2) / ROUND_BYTES * ROUND_BYTES;
    return (iso__plan_config){
        .bytes_per_ms = bytes_per_ms, .part_bytes = part, .window = PARTS_UNDER_WAY * part};
}

static iso_status check(const iso__plan_item *item, int count, const iso__plan_config *config) {
    ISO_CHECK(config->bytes_per_ms > 0 && config->part_bytes > 0, ISO_ERR_ARG,
              "a plan for a wire of %g bytes per ms in parts of %zu bytes: both must be above 0",
              config->bytes_per_ms, config->part_bytes);
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

// How many parts each item has, and all of them.
static iso_status count_parts(const iso__plan_item *item, int count, const iso__plan_config *config,
                              size_t *parts, size_t *total) {
    *total = 0;
    for (int i = 0; i < count; i++)
        *total += parts[i] = iso__cut_count(item[i].bytes, item[i].unit, config->part_bytes);
    ISO_CHECK(*total <= INT_MAX, ISO_ERR_ARG, "a plan of %zu parts: choose longer ones", *total);
    return ISO_OK;
}

// The item that is needed first among those that are ready and have parts left; -1: none is ready,
// and *next_ms says when one will be.
static int find_urgent(const iso__plan_item *item, int count, const size_t *parts,
                       const size_t *sent, double now_ms, double *next_ms) {
    int urgent = -1;
    bool waits = false;
    for (int i = 0; i < count; i++) {
        if (sent[i] == parts[i]) continue;
        if (item[i].ready_ms <= now_ms) {
            if (urgent < 0 || item[i].need_ms < item[urgent].need_ms) urgent = i;
        } else if (!waits || item[i].ready_ms < *next_ms) {
            *next_ms = item[i].ready_ms;
            waits = true;
        }
    }
    return urgent;
}

// Writes all parts; sent: zeros.
static void simulate(const iso__plan_item *item, int count, double bytes_per_ms,
                     const size_t *parts, size_t *sent, iso__part *part) {
    double now_ms = 0, next_ms = 0;
    size_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i];
    for (size_t k = 0; k < total;) {
        int i = find_urgent(item, count, parts, sent, now_ms, &next_ms);
        if (i < 0) {
            now_ms = next_ms;
            continue;
        }
        size_t at = iso__cut_at(item[i].bytes, item[i].unit, parts[i], sent[i]);
        size_t end = iso__cut_at(item[i].bytes, item[i].unit, parts[i], ++sent[i]);
        part[k++] = (iso__part){.item = i, .offset = at, .bytes = end - at};
        now_ms += (double)(end - at) / bytes_per_ms;
    }
}

iso_status iso__plan_make(const iso__plan_item *item, int count, const iso__plan_config *config,
                          iso__part **parts, int *part_count) {
    iso_status status;
    size_t *each = NULL, total = 0;
    iso__part *part = NULL;
    ISO_TRY(check(item, count, config));
    ISO_TRY(iso__alloc_zero(2 * (size_t)count * sizeof(size_t), (void **)&each)); // and sent
    ISO_TRY_GOTO(count_parts(item, count, config, each, &total));
    ISO_TRY_GOTO(iso__alloc(total * sizeof(iso__part), (void **)&part));
    simulate(item, count, config->bytes_per_ms, each, each + count, part);
    iso__free(each);
    *parts = part;
    *part_count = (int)total;
    return ISO_OK;
fail:
    iso__free(each);
    return status;
}
