// SPDX-License-Identifier: MIT
// Outer optimizers in the periodic engine: their memory, and the parameters they work on.
#include "optim/periodic/periodic.h"

#include <string.h>

iso_status iso__periodic_outer_open(iso__periodic *p) {
    const iso_outer *outer = p->config.outer;
    for (int k = 0; outer && k < outer->states; k++)
        ISO_TRY(iso__alloc_zero(p->wire_floats * sizeof(float), (void **)&p->outer_state[k]));
    return ISO_OK;
}

void iso__periodic_outer_close(iso__periodic *p) {
    const iso_outer *outer = p->config.outer;
    for (int k = 0; k < ISO_OUTER_STATES; k++) iso__free(p->outer_state[k]);
    if (outer && outer->destroy) outer->destroy(outer->user);
}

void iso__periodic_outer_begin(iso__periodic *p, iso__periodic_exchange *x, const float *values) {
    if (!p->config.outer) return;
    x->merges = 0;
    for (int k = 0; k < p->config.outer->states; k++) {
        float *state = p->outer_state[k] + x->offset;
        if (k == 0)
            memcpy(state, values, iso__flat_bytes(x->size));
        else
            memset(state, 0, iso__flat_bytes(x->size));
    }
}

// A parameter, which is mapped, and its place in flat arrays of x.
static iso_outer_span span_at(const iso__periodic *p, const iso__periodic_exchange *x, int i,
                              size_t at) {
    iso__base_optimizer *core = iso__optimizer_innermost(p->inner);
    iso_outer_span span = {.count = p->span[i].count,
                           .f64 = p->span[i].f64,
                           .now = p->span[i].host,
                           .ranks = p->layout->nodes,
                           .merges = x->merges,
                           .lr = iso__group_hyper(core, core->slot[p->span[i].slot].group)->lr};
    for (int k = 0; k < p->config.outer->states; k++)
        span.state[k] = (char *)(p->outer_state[k] + x->offset) + at;
    return span;
}

// Optimizer state and buffers, which are last, travel as they are.
static bool is_state(const iso__periodic *p, int i) { return i >= p->parameter_count; }

iso_status iso__periodic_outer_send(iso__periodic *p, const iso__periodic_exchange *x, float *to) {
    const iso_outer *outer = p->config.outer;
    iso__flat_cursor next = iso__flat_begin(x->size);
    if (!outer || !outer->send) return iso__periodic_fetch(p, x->first, x->last, to);
    ISO_TRY(iso__periodic_map(p, x->first, x->last));
    for (int i = x->first; i < x->last; i++) {
        size_t at = iso__flat_next(&next, &p->span[i]);
        if (is_state(p, i)) {
            memcpy((char *)to + at, p->span[i].host, iso__span_bytes(&p->span[i]));
            continue;
        }
        iso_outer_span span = span_at(p, x, i, at);
        outer->send(outer, &span, (char *)to + at);
    }
    return iso__periodic_unmap(p, x->first, x->last);
}

// Makes the anchor the reference of later differences. Not for a rule with `send`: what it sends
// stays close to the last mean.
static iso_status move_reference(iso__periodic *p, const iso__periodic_exchange *x) {
    const iso_outer *outer = p->config.outer;
    if (outer->states == 0 || outer->send) return ISO_OK;
    return iso__average_move_reference(x->average, p->outer_state[0] + x->offset);
}

// Sets the state to the mean; after a wait, merges both by HeAT's rule. The next differences refer
// to this mean.
static void merge_state(iso__periodic *p, const iso__periodic_exchange *x, int i, size_t at,
                        int64_t age, const float *mean) {
    const iso__span *span = &p->span[i];
    size_t bytes = iso__span_bytes(span);
    double ignored = 0;
    iso__merge_args args = {.sent = (const char *)(p->sent + x->offset) + at,
                            .mean = (const char *)mean + at,
                            .nodes = p->layout->nodes,
                            .age = age,
                            .f64 = span->f64};
    if (age > 0)
        iso__merge(ISO_MERGE_HEAT, span->count, span->host, &args, &ignored, &ignored);
    else
        memcpy(span->host, args.mean, bytes);
    iso__periodic_lift(span);
    if (p->config.outer->states > 0)
        memcpy((char *)(p->outer_state[0] + x->offset) + at, args.mean, bytes);
}

iso_status iso__periodic_outer_merge(iso__periodic *p, iso__periodic_exchange *x, int64_t age,
                                     const float *mean) {
    const iso_outer *outer = p->config.outer;
    iso__flat_cursor next = iso__flat_begin(x->size);
    x->merges++;
    ISO_TRY(iso__periodic_map(p, x->first, x->last));
    for (int i = x->first; i < x->last; i++) {
        size_t at = iso__flat_next(&next, &p->span[i]);
        if (is_state(p, i)) {
            merge_state(p, x, i, at, age, mean);
            continue;
        }
        iso_outer_span span = span_at(p, x, i, at);
        span.sent = (const char *)(p->sent + x->offset) + at;
        span.mean = (const char *)mean + at;
        span.age = age;
        outer->merge(outer, &span);
    }
    ISO_TRY(iso__periodic_unmap(p, x->first, x->last));
    return move_reference(p, x);
}
