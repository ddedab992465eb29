// Buckets come back: what is waited for, converted and updated, and opened for the next backward.
#include "parallel/reducer_impl.h"

#include <isotherm/trace.h>

// ---- A bucket's memory ------------------------------------------------------------------------------

static void scale_on_host(const iso_reducer *r, const iso__bucket *b, double factor) {
    void *data = r->arena + b->host_offset;
    float *x = data;
    double *y = data;
    if (b->dtype == ISO_F64)
        for (size_t k = 0; k < b->host_bytes / sizeof(double); k++) y[k] *= factor;
    else
        for (size_t k = 0; k < b->host_bytes / sizeof(float); k++) x[k] *= (float)factor;
}

iso_status iso__bucket_scale(iso_reducer *r, const iso__bucket *b, double factor) {
    if (factor == 1.0) return ISO_OK;
    if (r->device && !b->staged)
        return r->device->kernels[b->dtype]->scale(r->device,
                                                   (int64_t)(b->bytes / iso_dtype_size(b->dtype)),
                                                   factor, r->gradients + b->offset);
    scale_on_host(r, b, factor);
    return ISO_OK;
}

iso_comm_hook_bucket iso__bucket_for_hook(const iso_reducer *r, const iso__bucket *b) {
    return (iso_comm_hook_bucket){.count = b->host_bytes / iso_dtype_size(b->dtype),
                                  .dtype = b->dtype,
                                  .gradient = r->arena + b->host_offset,
                                  .wire = r->wire + b->wire_offset,
                                  .state = r->hook_state ? r->hook_state + b->state_offset : NULL,
                                  .name = b->label};
}

// ---- Waiting ----------------------------------------------------------------------------------------

typedef struct look {
    iso_reducer *r;
    const iso__bucket *awaited;
    iso_status status;
    int64_t spent_ns;
} look;

// While one bucket is awaited, another that has come back is updated.
static bool complete_another(void *user) {
    look *l = user;
    iso_reducer *r = l->r;
    for (int i = 0; l->status == ISO_OK && i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        if (b == l->awaited || b->state != ISO_BUCKET_POSTED || !r->slot[r->order[b->first]].update)
            continue;
        if (!iso__channel_is_done(iso__bucket_channel(r, b), b->item)) continue;
        int64_t start = iso_now();
        l->status = iso__bucket_complete(r, b);
        l->spent_ns += iso_now() - start;
        return true;
    }
    return false;
}

iso_status iso__bucket_wait(iso_reducer *r, iso__bucket *b) {
    if (r->way == ISO_WAY_HOST) return iso__bucket_await_channel(r, b);
    return iso__gpus_arrive(r, b);
}

// By NCCL, what comes back is shared out in one order: no other bucket may come between.
iso_status iso__bucket_await_channel(iso_reducer *r, iso__bucket *b) {
    iso__channel_idle idle = r->way == ISO_WAY_HOST ? complete_another : NULL;
    ISO_CHECK(!b->failed, ISO_ERR_STATE,
              "the gradients of \"%s\" were never exchanged: communication hook %s failed before",
              b->label, r->hook.name);
    if (b->state == ISO_BUCKET_LEAVING) ISO_TRY(iso__stage_flush(r));
    if (b->state != ISO_BUCKET_POSTED) return ISO_OK;
    look l = {.r = r, .awaited = b};
    int64_t start = iso_now();
    ISO_TRY(iso__channel_wait(iso__bucket_channel(r, b), b->item, idle, &l));
    ISO_TRY(l.status);
    b->state = ISO_BUCKET_REDUCED;
    iso__times_done(r, b, start, iso_now() - l.spent_ns);
    return ISO_OK;
}

// ---- Completing -------------------------------------------------------------------------------------

static iso_status learn_used(iso_reducer *r) {
    if (!r->used_request) return ISO_OK;
    ISO_TRY(iso_request_wait(&r->used_request));
    for (int i = 0; i < r->slot_count; i++) // what is not exchanged, each rank judges for itself
        r->slot[i].skipped = r->slot[i].local ? !r->slot[i].used : r->used[i] == 0;
    return ISO_OK;
}

// Updates may take the factor along, unless a part is not updated, is to stay as an average, or is
// updated with pieces of other buckets.
static bool can_fold(const iso_reducer *r, const iso__bucket *b) {
    for (int k = b->first; k <= b->last; k++) {
        const iso__grad_slot *s = &r->slot[r->order[k]];
        if (!s->update || s->keep) return false;
        if (r->place[s->param].pieces > 1 && !r->applier[s->owner].apply_piece) return false;
    }
    return true;
}

iso_status iso__bucket_decompress(iso_reducer *r, iso__bucket *b) {
    iso_comm_hook_bucket what = iso__bucket_for_hook(r, b);
    ISO_TRY(r->hook.decompress(&what, b->factor, r->hook.user));
    b->compressed = false;
    b->factor = 1;
    return ISO_OK;
}

// The sum becomes an average, unless an update folds the factor in. May be called again after an
// update that failed: what is done is not done twice.
static iso_status bring_back(iso_reducer *r, iso__bucket *b) {
    if (b->compressed) return iso__bucket_decompress(r, b);
    if (can_fold(r, b)) return ISO_OK;
    ISO_TRY(iso__bucket_scale(r, b, b->factor));
    b->factor = 1;
    return ISO_OK;
}

// All buckets have come back: the list starts again.
static void restart(iso_reducer *r) {
    r->issued = 0;
    r->ready_count = 0;
    for (int a = 0; a < r->applier_count; a++) r->applier[a].stepped = false;
    for (int i = 0; i < r->param_count; i++) r->place[i].arrived = 0;
    for (int i = 0; i < r->slot_count; i++) r->ready_count += r->slot[i].ready;
}

static void reopen(iso_reducer *r, iso__bucket *b) {
    b->state = ISO_BUCKET_OPEN;
    b->missing = b->last - b->first + 1;
    for (int k = b->first; k <= b->last; k++) {
        iso__grad_slot *s = &r->slot[r->order[k]];
        s->ready = s->used = s->update = false;
    }
    if (--r->busy == 0) restart(r);
}

iso_status iso__bucket_arrive(iso_reducer *r, iso__bucket *b) {
    if (b->state == ISO_BUCKET_OPEN) return ISO_OK;
    ISO_TRY(iso__bucket_wait(r, b));
    ISO_TRY(learn_used(r));
    ISO_TRY(bring_back(r, b));
    return iso__stage_in(r, b);
}

iso_status iso__bucket_complete(iso_reducer *r, iso__bucket *b) {
    if (b->state == ISO_BUCKET_OPEN) return ISO_OK;
    ISO_TRY(iso__bucket_arrive(r, b));
    ISO_TRY(iso__apply_bucket(r, b, b->factor));
    reopen(r, b);
    return ISO_OK;
}
