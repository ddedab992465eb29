// How long one exchange of all buckets takes when there is nothing to hide it behind.
#include "parallel/reducer_impl.h"

#include <isotherm/trace.h>

static bool has_channel(const iso_reducer *r, const iso__bucket *b) {
    return r->way == ISO_WAY_HOST && r->comm && iso_comm_size(r->comm) > 1 && !b->local &&
           !r->hook.silent;
}

static iso_status exchange_once(iso_reducer *r, double *ms) {
    ISO_TRY(iso_comm_barrier(r->world));
    int64_t start = iso_now();
    if (r->way != ISO_WAY_HOST) ISO_TRY(iso__gpus_exchange_once(r));
    for (int i = 0; i < r->bucket_count; i++) {
        const iso__bucket *b = &r->bucket[i];
        if (has_channel(r, b)) ISO_TRY(iso__channel_ready(iso__bucket_channel(r, b), b->item));
    }
    for (int i = 0; i < r->bucket_count; i++) {
        const iso__bucket *b = &r->bucket[i];
        if (has_channel(r, b))
            ISO_TRY(iso__channel_wait(iso__bucket_channel(r, b), b->item, NULL, NULL));
    }
    *ms = (double)(iso_now() - start) * 1e-6;
    return ISO_OK;
}

iso_status iso_reducer_measure_exchange(iso_reducer *r, int repeats, double *ms) {
    ISO_CHECK(repeats > 0, ISO_ERR_ARG, "an exchange is measured at least once, not %d times",
              repeats);
    ISO_CHECK(r->busy == 0 && r->ready_count == 0, ISO_ERR_STATE,
              "an exchange is pending: call iso_reducer_finish before measuring");
    double *each;
    if (r->device) ISO_TRY(r->device->ops->remote->finish(r->device)); // copies out of the arena
    ISO_TRY(iso__alloc((size_t)repeats * sizeof(*each), (void **)&each));
    // Zeros: repeated sums of leftover gradients would overflow into slow arithmetic.
    for (size_t k = 0; k < r->arena_bytes; k++) r->arena[k] = 0;
    iso_status status = r->device ? iso__stage_zero(r, 0, r->arena_bytes) : ISO_OK;
    for (int i = -1; status == ISO_OK && i < repeats; i++) // the first one warms up
        status = exchange_once(r, &each[i < 0 ? 0 : i]);
    if (status == ISO_OK) status = iso_comm_allreduce_f64(r->world, each, (size_t)repeats, ISO_MAX);
    if (status == ISO_OK) *ms = iso__median(each, repeats);
    iso__free(each);
    ISO_TRY(status);
    return ISO_OK;
}
