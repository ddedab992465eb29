// SPDX-License-Identifier: MIT
// Fragments that take turns, as a schedule: which ones are sent and merged after a step. It follows
// from the number of the step alone.
#include "optim/periodic/sync_plan.h"

iso_status iso__daso_fragments_check(const iso_daso_config *c) {
    if (c->fragments == 0 || c->fragments == 1) return ISO_OK;
    ISO_CHECK(c->fragments > 1 && c->fragments <= ISO_DASO_FRAGMENTS, ISO_ERR_ARG,
              "daso: fragments is %d, it must be from 0 to %d", c->fragments, ISO_DASO_FRAGMENTS);
    ISO_CHECK(c->fragment_order == ISO_FRAGMENT_RUNS || c->fragment_order == ISO_FRAGMENT_STRIDES,
              ISO_ERR_ARG,
              "daso: fragment_order is %d, it must be ISO_FRAGMENT_RUNS or ISO_FRAGMENT_STRIDES",
              (int)c->fragment_order);
    ISO_CHECK(c->global_skip >= c->fragments, ISO_ERR_ARG,
              "daso: %d fragments need a global_skip of at least %d, because one is exchanged at a "
              "time: it is %lld",
              c->fragments, c->fragments, (long long)c->global_skip);
    ISO_CHECK(c->batches_to_wait >= 0 && c->policy == ISO_POLICY_FIXED && c->local_skip == 1 &&
                  c->state == ISO_STATE_SYNC_KEEP && c->level_count == 0,
              ISO_ERR_ARG,
              "daso: fragments need a batches_to_wait of at least 0, ISO_POLICY_FIXED, "
              "ISO_STATE_SYNC_KEEP, local_skip 1 and no levels");
    return ISO_OK;
}

// The step of the last send of fragment f, counted from the start of cycling; 0: none yet.
static int64_t last_send(const iso__daso_schedule *s, int f) {
    int64_t period = s->global_skip, now = s->step - s->warmup;
    int64_t first = (f + 1) * period / s->fragments - s->batches_to_wait;
    while (first < 1) first += period;
    return now < first ? 0 : now - (now - first) % period;
}

// Merges fragments whose wait is over; at the end, all that are under way. A send of this step
// comes later.
static void plan_merges(const iso__daso_schedule *s, bool ends, iso__sync_plan *out) {
    int64_t now = s->step - s->warmup, wait = s->batches_to_wait;
    for (int f = 0; f < s->fragments; f++) {
        int64_t sent = last_send(s, f);
        if (sent == now) sent -= s->global_skip; // the one before
        if (sent < 1 || now - sent > wait || (now - sent < wait && !ends)) continue;
        iso__action *merge = iso__plan_add(out, ISO__MERGE);
        merge->exchange = f;
        merge->age = merge->weight = now - sent;
    }
}

bool iso__daso_fragment_is_open(const iso__daso_schedule *s, int fragment) {
    int64_t now = s->step - s->warmup, sent = last_send(s, fragment);
    return sent >= 1 && now - sent < s->batches_to_wait;
}

static void plan_sends(const iso__daso_schedule *s, iso__sync_plan *out) {
    for (int f = 0; f < s->fragments; f++) {
        if (last_send(s, f) != s->step - s->warmup) continue;
        iso__plan_add(out, ISO__SEND)->exchange = f;
        if (s->batches_to_wait == 0) iso__plan_add(out, ISO__FULL)->exchange = f;
    }
}

void iso__daso_fragments_plan(const iso__daso_schedule *s, bool ends, iso__sync_plan *out) {
    plan_merges(s, ends, out);
    if (!ends || s->batches_to_wait == 0) plan_sends(s, out);
    if (ends) iso__plan_add(out, ISO__FULL)->state = s->cooldown > 0;
}
