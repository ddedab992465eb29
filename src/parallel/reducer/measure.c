// SPDX-License-Identifier: MIT
// Measures the time of one exchange of all buckets, with no computation to hide it.
#include "parallel/reducer/reducer_impl.h"

#include <isotherm/trace.h>
#include <string.h>

static iso_status exchange_once(iso_reducer *r, double *ms) {
    iso__transport *t = r->transport;
    double left;
    ISO_TRY(iso_comm_barrier(r->world));
    int64_t start = iso_now();
    for (int b = 0; t->travels && b < r->buckets.count; b++)
        if (!r->buckets.item[b].local) ISO_TRY(t->ops->post(t, b, 1, 1));
    ISO_TRY(iso__transport_flush(t));
    for (int b = 0; t->travels && b < r->buckets.count; b++)
        if (!r->buckets.item[b].local) ISO_TRY(t->ops->arrive(t, b, NULL, &left, NULL));
    for (int b = r->buckets.count - 1; t->shards > 0 && b >= 0; b--)
        if (!r->buckets.item[b].local) ISO_TRY(t->ops->publish(t, b));
    for (int b = r->buckets.count - 1; t->shards > 0 && b >= 0; b--)
        if (!r->buckets.item[b].local) ISO_TRY(t->ops->collect(t, b, NULL, NULL));
    ISO_TRY(iso__transport_finish(t));
    if (r->store.device) ISO_TRY(iso__store_remote(&r->store)->finish(r->store.device));
    *ms = (double)(iso_now() - start) * 1e-6;
    return ISO_OK;
}

// Clears the gradients: repeated sums of old ones would overflow, and arithmetic with infinities is
// slow.
static iso_status clear_store(iso_reducer *r) {
    iso_device *device = r->store.device;
    if (!device) return iso__store_zero(&r->store, 0, r->store.bytes);
    ISO_TRY(device->ops->remote->finish(device)); // pending copies out of the arena
    memset(r->store.arena, 0, r->store.bytes);
    return iso__store_zero(&r->store, 0, r->store.bytes);
}

static iso_status measure_each(iso_reducer *r, int repeats, double *each) {
    ISO_TRY(clear_store(r));
    for (int i = -1; i < repeats; i++) // the first one warms up
        ISO_TRY(exchange_once(r, &each[i < 0 ? 0 : i]));
    iso__store_drop(&r->store, 0, r->store.bytes);
    return iso_comm_allreduce_f64(r->world, each, (size_t)repeats, ISO_MAX);
}

// Statistics do not count these exchanges.
iso_status iso_reducer_measure_exchange(iso_reducer *r, int repeats, double *ms) {
    iso__exchange_stats before = r->exchanged;
    double *each;
    ISO_CHECK(repeats > 0, ISO_ERR_ARG, "an exchange is measured at least once, not %d times",
              repeats);
    ISO_CHECK(iso__round_is_idle(r->round), ISO_ERR_STATE,
              "an exchange is pending: call iso_reducer_finish before measuring");
    ISO_TRY(iso__alloc((size_t)repeats * sizeof(*each), (void **)&each));
    r->coder.off = true;
    iso_status status = measure_each(r, repeats, each);
    r->coder.off = false;
    r->exchanged = before;
    if (status == ISO_OK) *ms = iso__median(each, repeats);
    iso__free(each);
    ISO_TRY(status);
    return ISO_OK;
}
