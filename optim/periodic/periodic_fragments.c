// SPDX-License-Identifier: MIT
// Which parameters each exchange of the periodic engine carries.
#include "optim/periodic/periodic.h"

#include <string.h>

// ---- Runs -----------------------------------------------------------------------------------------

static iso_status allocate_exchanges(iso__periodic *p) {
    int count = p->config.exchanges > 1 ? p->config.exchanges : 1;
    ISO_CHECK(count == 1 || p->config.state == ISO_STATE_SYNC_KEEP, ISO_ERR_UNSUPPORTED,
              "with %d exchanges, optimizer state cannot be averaged or reset", count);
    ISO_CHECK(count <= p->parameter_count, ISO_ERR_ARG,
              "%d parameter%s cannot be divided among %d fragments: use fewer fragments",
              p->parameter_count, ISO_PLURAL(p->parameter_count), count);
    size_t bytes = (size_t)count * sizeof(*p->exchange);
    ISO_TRY(iso__alloc_zero(bytes, (void **)&p->exchange));
    p->exchange_count = count;
    return ISO_OK;
}

// Takes consecutive spans of about `share` elements; the last exchange takes the rest.
static void choose_run(const iso__periodic *p, iso__periodic_exchange *x, size_t share, int end,
                       bool last) {
    size_t elements = 0;
    while (x->last < end &&
           (last || elements == 0 || elements + p->span[x->last].count / 2 < share))
        elements += p->span[x->last++].count;
}

// Takes the spans of exchange e. Spans are sorted by exchange.
static void choose_stride(const iso__periodic *p, iso__periodic_exchange *x, const int *exchange,
                          int e) {
    while (x->last < p->parameter_count && exchange[x->last] == e) x->last++;
}

// Flat arrays with f64 begin at multiples of 128 bytes.
static void divide_spans(iso__periodic *p, const int *exchange) {
    int first = 0, end = iso__periodic_last(p, ISO__PAYLOAD_WIRE);
    iso__flat all = iso__periodic_flat(p, 0, end);
    size_t left = all.f32 + all.f64;
    for (int i = 0; i < p->exchange_count; i++) {
        int others = p->exchange_count - i;
        iso__periodic_exchange *x = &p->exchange[i];
        *x = (iso__periodic_exchange){.first = first, .last = first, .offset = p->wire_floats};
        if (exchange)
            choose_stride(p, x, exchange, i);
        else
            choose_run(p, x, left / (size_t)others, end - others + 1, others == 1);
        x->size = iso__periodic_flat(p, x->first, x->last);
        first = x->last;
        left -= x->size.f32 + x->size.f64;
        p->wire_floats += iso__flat_bytes(x->size) / sizeof(float);
        if (all.f64) p->wire_floats = iso__round_up(p->wire_floats, 32);
    }
}

// ---- Strides --------------------------------------------------------------------------------------

// Whether two parameters belong to one layer: their names agree up to the last dot.
static bool same_layer(const char *a, const char *b) {
    const char *dot_a = strrchr(a, '.'), *dot_b = strrchr(b, '.');
    ptrdiff_t length = dot_a ? dot_a - a : 0;
    return dot_a && dot_b && length == dot_b - b && strncmp(a, b, (size_t)length) == 0;
}

// The exchange of each parameter.
static iso_status assign_layers(const iso__periodic *p, int *exchange) {
    const iso__slot *slot = iso__optimizer_innermost(p->inner)->slot;
    int layers = 0;
    for (int i = 0; i < p->parameter_count; i++) {
        if (i == 0 || !same_layer(slot[i - 1].name, slot[i].name)) layers++;
        exchange[i] = (layers - 1) % p->exchange_count;
    }
    ISO_CHECK(
        layers >= p->exchange_count, ISO_ERR_ARG,
        "%d layer%s with parameters cannot be divided among %d fragments: use fewer fragments, "
        "or runs of parameters instead of strides",
        layers, ISO_PLURAL(layers), p->exchange_count);
    return ISO_OK;
}

// Sorts spans by exchange, and keeps the order of those of one exchange.
static iso_status sort_spans(iso__periodic *p, int *exchange) {
    size_t count = (size_t)p->parameter_count, sorted = 0;
    iso__span *span = NULL;
    int *of = NULL;
    iso_status status = iso__alloc(count * sizeof(*span), (void **)&span);
    if (status == ISO_OK) status = iso__alloc(count * sizeof(*of), (void **)&of);
    for (int e = 0; status == ISO_OK && e < p->exchange_count; e++)
        for (size_t i = 0; i < count; i++) {
            if (exchange[i] != e) continue;
            span[sorted] = p->span[i];
            of[sorted++] = e;
        }
    if (status == ISO_OK) {
        memcpy(p->span, span, count * sizeof(*span));
        memcpy(exchange, of, count * sizeof(*of));
    }
    iso__free(span);
    iso__free(of);
    return status;
}

static iso_status divide_strides(iso__periodic *p) {
    int *exchange;
    ISO_TRY(iso__alloc_zero((size_t)p->parameter_count * sizeof(*exchange), (void **)&exchange));
    iso_status status = assign_layers(p, exchange);
    if (status == ISO_OK) status = sort_spans(p, exchange);
    if (status == ISO_OK) divide_spans(p, exchange);
    iso__free(exchange);
    return status;
}

iso_status iso__periodic_divide(iso__periodic *p) {
    ISO_TRY(allocate_exchanges(p));
    if (p->config.strides && p->exchange_count > 1) return divide_strides(p);
    divide_spans(p, NULL);
    return ISO_OK;
}
