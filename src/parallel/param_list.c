// SPDX-License-Identifier: MIT
// Refuses invalid parameters and lists of them: memory that is listed twice, layers whose
// parameters are not adjacent, and lists that differ between ranks.
#include "parallel/param_list.h"

#include "comm/comm_calls.h"
#include "comm/same_lines.h"
#include "device/device_impl.h"

#include <string.h>

static iso_status check_param(const iso_reducer_param *p, int i) {
    ISO_CHECK(p->name && p->value && p->count > 0, ISO_ERR_ARG,
              "parameter %d (counted from 0) of the reducer needs a name, a value and at least one "
              "element",
              i);
    ISO_CHECK(iso__is_real(p->dtype), ISO_ERR_TYPE,
              "parameter \"%s\" is %s: the reducer takes f32, f64, bf16 and f16", p->name,
              iso_dtype_name(p->dtype));
    ISO_CHECK(p->row == 0 || p->count % p->row == 0, ISO_ERR_ARG,
              "parameter \"%s\" has %zu element%s in rows of %zu: give whole rows, or 0", p->name,
              p->count, ISO_PLURAL(p->count), p->row);
    ISO_CHECK(!p->delayed || !p->local, ISO_ERR_ARG,
              "parameter \"%s\" is both delayed and not exchanged (local): choose one", p->name);
    ISO_CHECK(
        p->sparse_rows == 0 || (p->row > 0 && p->count / p->row <= UINT32_MAX), ISO_ERR_ARG,
        "parameter \"%s\" has sparse_rows and row %zu: give the number of elements of a row, so "
        "that there are at most 2^32 - 1 rows",
        p->name, p->row);
    return ISO_OK;
}

typedef struct span {
    uintptr_t first, end;
    int param;
    bool gradient;
} span;

static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->param != y->param) return x->param < y->param ? -1 : 1;
    return (int)x->gradient - (int)y->gradient;
}

static int list_spans(const iso_reducer_param *params, int count, span *spans) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = params[i].count * iso_dtype_size(params[i].dtype);
        uintptr_t value = (uintptr_t)params[i].value, gradient = (uintptr_t)params[i].gradient;
        spans[n++] = (span){value, value + bytes, i, false};
        if (gradient) spans[n++] = (span){gradient, gradient + bytes, i, true};
    }
    return n;
}

// Of two arrays at least one is a gradient.
static iso_status check_gradient(const iso_reducer_param *params, const span *a, const span *b) {
    ISO_CHECK(b->first >= a->end, ISO_ERR_ARG,
              "the %s of parameter \"%s\" and the %s of \"%s\" overlap in memory: give each an "
              "array of its own, or no gradient for memory of the reducer",
              a->gradient ? "gradient" : "value", params[a->param].name,
              b->gradient ? "gradient" : "value", params[b->param].name);
    return ISO_OK;
}

// An array that is listed twice would be updated twice, each time with only some of its gradient.
static iso_status check_apart(const iso_reducer_param *params, int count, span *spans) {
    int n = list_spans(params, count, spans);
    qsort(spans, (size_t)n, sizeof(span), by_address);
    for (int i = 1; i < n; i++) {
        const char *a = params[spans[i - 1].param].name, *b = params[spans[i].param].name;
        if (spans[i].gradient || spans[i - 1].gradient) {
            ISO_TRY(check_gradient(params, &spans[i - 1], &spans[i]));
            continue;
        }
        ISO_CHECK(
            spans[i].first != spans[i - 1].first, ISO_ERR_ARG,
            "parameters \"%s\" and \"%s\" of the reducer are the same array: list it once, and "
            "report its gradient when all layers that use it have added to it",
            a, b);
        ISO_CHECK(
            spans[i].first >= spans[i - 1].end, ISO_ERR_ARG,
            "parameters \"%s\" and \"%s\" of the reducer overlap in memory: give each an array "
            "of its own",
            a, b);
    }
    return ISO_OK;
}

typedef struct run {
    int layer, param; // its first one
} run;

static int by_layer(const void *a, const void *b) {
    const run *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x->param > y->param) - (x->param < y->param);
}

static iso_status check_layers(const iso_reducer_param *params, int count, run *runs) {
    int n = 0;
    for (int i = 0; i < count; i++)
        if (i == 0 || params[i].layer != params[i - 1].layer) runs[n++] = (run){params[i].layer, i};
    qsort(runs, (size_t)n, sizeof(run), by_layer);
    for (int k = 1; k < n; k++)
        ISO_CHECK(runs[k].layer != runs[k - 1].layer, ISO_ERR_ARG,
                  "parameters \"%s\" and \"%s\" of the reducer are of layer %d, and others stand "
                  "between them: list the parameters of a layer one after the other, or give each "
                  "group a number of its own",
                  params[runs[k - 1].param].name, params[runs[k].param].name, runs[k].layer);
    return ISO_OK;
}

iso_status iso__params_check(const iso_reducer_param *params, int count) {
    void *memory = NULL;
    size_t each = 2 * sizeof(span) > sizeof(run) ? 2 * sizeof(span) : sizeof(run);
    for (int i = 0; i < count; i++) ISO_TRY(check_param(&params[i], i));
    ISO_TRY(iso__alloc((size_t)count * each, &memory));
    iso_status status = check_apart(params, count, memory);
    if (status == ISO_OK) status = check_layers(params, count, memory);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- The same on all ranks ------------------------------------------------------------------------

#define LINE_ROOM 384

static void describe_params(const iso_reducer_param *params, int count, char *text) {
    for (int i = 0; i < count; i++) {
        const iso_reducer_param *p = &params[i];
        char size[64], rows[48] = "", sparse[48] = "";
        snprintf(size, sizeof(size), "%zu element%s", p->count, ISO_PLURAL(p->count));
        if (p->row > 0) snprintf(rows, sizeof(rows), " in rows of %zu", p->row);
        if (p->sparse_rows > 0)
            snprintf(sparse, sizeof(sparse), ", sparse_rows %zu", p->sparse_rows);
        const char *how = p->local ? ", not exchanged" : p->delayed ? ", delayed" : "";
        text += snprintf(text, LINE_ROOM, "parameter \"%.160s\" %.63s%s %s (layer %d)%s%s\n",
                         p->name, p->shape_text ? p->shape_text : size, rows,
                         iso_dtype_name(p->dtype), p->layer, how, sparse);
    }
}

// A hash that includes the text which the lines cut off.
static uint64_t hash_params(const iso_reducer_param *params, int count, uint64_t further) {
    uint64_t hash = iso__hash(ISO_HASH_START, &further, sizeof(further));
    for (int i = 0; i < count; i++) {
        uint64_t numbers[2] = {params[i].count, params[i].shape_id};
        hash = iso__hash(hash, numbers, sizeof(numbers));
        hash = iso__hash(hash, params[i].name, strlen(params[i].name));
    }
    return hash;
}

iso_status iso__params_check_ranks(iso_comm *comm, const iso_reducer_param *params, int count,
                                   const char *settings, uint64_t further) {
    void *list;
    ISO_TRY(iso__comm_alloc_zero(comm, (size_t)count * LINE_ROOM + 1, &list));
    describe_params(params, count, list);
    const iso__lines mine = {.list = list,
                             .element = "parameter",
                             .settings = settings,
                             .further = hash_params(params, count, further),
                             .omitted = "names, shapes or buckets"};
    iso_status status = iso__comm_check_lines(comm, &mine);
    iso__free(list);
    ISO_TRY(status);
    return ISO_OK;
}
