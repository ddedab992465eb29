// SPDX-License-Identifier: MIT
// Batches whose tensors are not those of their samples: a function of the program makes them.
#include "data/loader_impl.h"

#include <string.h>

static iso_status check_tensor(const iso_make_config *c, int t) {
    const iso_tensor_spec *spec = &c->tensors[t];
    int64_t size = 1;
    bool stored = spec->dtype == ISO_F32 || spec->dtype == ISO_F64 || spec->dtype == ISO_I64 ||
                  spec->dtype == ISO_I32 || spec->dtype == ISO_U8;
    bool label = c->labels && t == c->inputs;
    ISO_CHECK(stored && (!label || spec->dtype == ISO_I32), ISO_ERR_ARG,
              "tensor %d of the batches that a loader is to make has elements %s: give %s", t,
              iso_dtype_name(spec->dtype), label ? "i32, for labels" : "f32, f64, i64, i32 or u8");
    ISO_CHECK(spec->ndim >= 0 && spec->ndim < ISO_MAX_DIMS, ISO_ERR_ARG,
              "tensor %d of the batches that a loader is to make has %d dimensions beside the "
              "first: give 0 to %d",
              t, spec->ndim, ISO_MAX_DIMS - 1);
    for (int d = 0; d < spec->ndim; d++)
        ISO_CHECK(spec->shape[d] >= 1 && !__builtin_mul_overflow(size, spec->shape[d], &size),
                  ISO_ERR_ARG,
                  "dimension %d of tensor %d of the batches that a loader is to make is %lld: it "
                  "must be at least 1, and the tensor must fit into memory",
                  d, t, (long long)spec->shape[d]);
    return ISO_OK;
}

static iso_status check_config(const iso_make_config *c) {
    ISO_CHECK(c->make && c->tensors && c->inputs >= 1 && c->targets >= 0 && c->rows >= 0,
              ISO_ERR_ARG,
              "a loader is to make batches of %d inputs, %d targets and at most %lld rows: give a "
              "function, the tensors, and at least one input",
              c->inputs, c->targets, (long long)c->rows);
    ISO_CHECK(!c->labels || c->targets > 0, ISO_ERR_ARG,
              "a loader is to make batches with labels, but without a target that holds them");
    for (int t = 0; t < c->inputs + c->targets; t++) ISO_TRY(check_tensor(c, t));
    return ISO_OK;
}

iso_status iso__make_init(const iso_make_config *config, iso__make *out) {
    void *memory;
    if (!config) return ISO_OK;
    ISO_TRY(check_config(config));
    size_t bytes = (size_t)(config->inputs + config->targets) * sizeof(*config->tensors);
    ISO_TRY(iso__alloc(bytes, &memory));
    memcpy(memory, config->tensors, bytes);
    *out = (iso__make){.function = config->make,
                       .inputs = config->inputs,
                       .outputs = config->inputs + config->targets,
                       .labels = config->labels ? config->inputs : -1,
                       .tensors = memory,
                       .rows = config->rows};
    return ISO_OK;
}

void iso__make_free(iso__make *make) { iso__free(make->tensors); }

// Room for the samples of the largest batch, one tensor after the other.
iso_status iso__make_worker(const iso_loader *loader, iso__worker *worker) {
    size_t samples = (size_t)iso__loader_largest(loader), bytes = 0;
    void *memory;
    if (!loader->make.function) return ISO_OK;
    ISO_TRY(iso__alloc((size_t)loader->make.outputs * sizeof(void *), &memory));
    worker->made = memory;
    ISO_TRY(iso__alloc((size_t)loader->tensors * sizeof(iso_tensor_spec), &memory));
    worker->specs = memory;
    for (int t = 0; t < loader->tensors; t++)
        bytes += iso__round_up(samples * loader->bytes[t], 64);
    ISO_TRY(iso__alloc(bytes, &worker->samples));
    char *at = worker->samples;
    for (int t = 0; t < loader->tensors; t++) {
        worker->batch[t] = at;
        at += iso__round_up(samples * loader->bytes[t], 64);
    }
    return ISO_OK;
}

static iso_status check_size(const char *what, int t, int64_t size, int64_t most) {
    ISO_CHECK(size >= 1 && size <= most, ISO_ERR_ARG,
              "the make function of a loader made %s of tensor %d %lld: it may be 1 to %lld", what,
              t, (long long)size, (long long)most);
    return ISO_OK;
}

static iso_status check_made(const iso_loader *loader, const iso_made_batch *made) {
    const iso__make *make = &loader->make;
    for (int t = 0; t < make->outputs; t++) {
        const iso_tensor_spec *now = &made->specs[t], *full = &make->tensors[t];
        ISO_CHECK(now->dtype == full->dtype && now->ndim == full->ndim, ISO_ERR_ARG,
                  "the make function of a loader changed type or number of dimensions of tensor "
                  "%d: it may only make dimensions smaller",
                  t);
        ISO_TRY(check_size("the first dimension", t, made->rows[t], iso__loader_rows(loader)));
        for (int d = 0; d < full->ndim; d++) {
            char what[48];
            snprintf(what, sizeof(what), "dimension %d of a row", d);
            ISO_TRY(check_size(what, t, now->shape[d], full->shape[d]));
        }
    }
    return ISO_OK;
}

iso_status iso__make_batch(const iso_loader *loader, const iso_collate_batch *samples,
                           const iso_made_batch *made) {
    if (samples->n == 0) return ISO_OK;
    iso_status status = loader->make.function(samples, made, loader->user);
    ISO_CHECK(status >= 0 || iso_last_error()->code == status, status,
              "the make function of a loader failed: %s", iso_status_string(status));
    ISO_TRY(status);
    return check_made(loader, made);
}
