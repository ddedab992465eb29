// Refuses lists of parameters that no exchange can serve: memory listed twice, and layers of which
// the parameters stand apart.
#include "parallel/reducer_impl.h"

typedef struct span {
    uintptr_t first, end;
    int param;
} span;

static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->param > y->param) - (x->param < y->param);
}

// An array that is listed twice would be updated twice, each time by a part of its gradient.
static iso_status check_apart(const iso_reducer_param *params, int count, span *spans) {
    for (int i = 0; i < count; i++) {
        uintptr_t first = (uintptr_t)params[i].value;
        spans[i] = (span){first, first + params[i].count * iso_dtype_size(params[i].dtype), i};
    }
    qsort(spans, (size_t)count, sizeof(span), by_address);
    for (int i = 1; i < count; i++) {
        const char *a = params[spans[i - 1].param].name, *b = params[spans[i].param].name;
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

iso_status iso__reducer_check_list(const iso_reducer_param *params, int count) {
    void *memory = NULL;
    size_t each = sizeof(span) > sizeof(run) ? sizeof(span) : sizeof(run);
    ISO_TRY(iso__alloc((size_t)count * each, &memory));
    iso_status status = check_apart(params, count, memory);
    if (status == ISO_OK) status = check_layers(params, count, memory);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}
