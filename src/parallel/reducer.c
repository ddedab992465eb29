// The asynchronous gradient engine: buckets leave in one agreed order, and are waited for when
// needed.
#include "parallel/reducer_impl.h"

#include "comm/comm_impl.h"

#include <isotherm/trace.h>
#include <string.h>

// ---- Life -----------------------------------------------------------------------------------------

static iso_status copy_slot(iso__grad_slot *slot, const iso_reducer_param *param, int i) {
    ISO_CHECK(param->name && param->value && param->count > 0, ISO_ERR_ARG,
              "parameter %d of the reducer needs a name, a value and at least one element", i);
    ISO_CHECK(param->dtype == ISO_F32 || param->dtype == ISO_F64, ISO_ERR_TYPE,
              "parameter \"%s\" is %s: the reducer takes f32 and f64", param->name,
              iso_dtype_name(param->dtype));
    *slot = (iso__grad_slot){
        .value = param->value, .count = param->count, .dtype = param->dtype, .layer = param->layer};
    ISO_TRY(iso__strdup(param->name, &slot->name));
    return ISO_OK;
}

static iso_status broadcast_values(iso_reducer *r) {
    for (int i = 0; i < r->slot_count; i++) {
        iso__grad_slot *s = &r->slot[i];
        ISO_TRY(iso_comm_bcast(r->world, s->value, s->count * iso_dtype_size(s->dtype), 0));
    }
    return ISO_OK;
}

static iso_status setup(iso_reducer *r, const iso_reducer_param *params, int count,
                        const iso_reducer_config *config) {
    ISO_CHECK(count > 0, ISO_ERR_ARG, "a reducer needs at least one parameter");
    ISO_CHECK((int)config->sync >= 0 && config->sync <= ISO_SYNC_NONE, ISO_ERR_ARG,
              "unknown sync mode %d", (int)config->sync);
    ISO_TRY(iso__scope_check(config->scope));
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*r->slot), (void **)&r->slot));
    r->slot_count = count;
    for (int i = 0; i < count; i++) ISO_TRY(copy_slot(&r->slot[i], &params[i], i));
    ISO_TRY(iso__reducer_make_buckets(r, config->bucket_bytes));
    r->stats.bucket_count = r->bucket_count;
    r->stats.bytes_per_step = r->arena_bytes;
    return ISO_OK;
}

static iso_status match(iso_reducer *r, const iso_reducer_param *params, int count,
                        const iso_reducer_config *config) {
    static const char *const sync_name[] = {"lazy", "blocking", "none"};
    char settings[160];
    snprintf(settings, sizeof(settings),
             "%d parameters, buckets of %zu bytes, sync mode %s, scope %s", count,
             config->bucket_bytes, sync_name[config->sync], iso__scope_name(config->scope));
    return iso__match(r->world, params, count, settings);
}

iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out) {
    iso_status status;
    iso_reducer *r = NULL;
    ISO_TRY(iso__alloc_zero(sizeof(*r), (void **)&r));
    r->sync = config->sync;
    // A rank that failed alone would leave the others waiting in what follows.
    ISO_TRY_GOTO(iso_comm_agree(comm, setup(r, params, count, config)));
    // A communicator of its own: no exchange of others can come between those of one list.
    iso_comm_config own = {.progress = iso_comm_progress(comm), .timeout_s = comm->timeout_s};
    ISO_TRY_GOTO(iso_comm_create(iso_comm_mpi(comm), &own, &r->world));
    ISO_TRY_GOTO(match(r, params, count, config));
    ISO_TRY_GOTO(iso__reducer_choose_scope(r, config->scope));
    ISO_TRY_GOTO(broadcast_values(r));
    *out = r;
    return ISO_OK;
fail:
    iso_reducer_destroy(&r);
    return status;
}

static void release_slots(iso_reducer *r) {
    for (int i = 0; r->slot && i < r->slot_count; i++) iso__free(r->slot[i].name);
    iso__free(r->slot);
}

void iso_reducer_destroy(iso_reducer **pointer) {
    iso_reducer *r = *pointer;
    *pointer = NULL;
    if (!r) return;
    if (r->arena && iso_reducer_finish(r) < 0) {
        iso__log(ISO_LOG_ERROR, "while completing pending exchanges: %s",
                 iso_last_error()->message);
        return; // MPI may still write into the arena: it stays
    }
    release_slots(r);
    iso__free(r->order);
    iso__free(r->bucket);
    iso__reducer_free_arena(r);
    iso__free(r->hyper);
    iso_comm_destroy(&r->node);
    iso_comm_destroy(&r->world);
    iso__free(r);
}

void *iso_reducer_grad(iso_reducer *r, int i) {
    return i >= 0 && i < r->slot_count ? r->arena + r->slot[i].offset : NULL;
}

iso_status iso_reducer_set_apply(iso_reducer *r, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user) {
    ISO_CHECK(!apply || !r->apply, ISO_ERR_STATE,
              "these gradients have an optimizer already: destroy it before tying another");
    iso_status status = iso_reducer_finish(r);
    if (status < 0) r->apply = NULL; // its owner may be going away
    ISO_TRY(status);
    void *hyper;
    ISO_TRY(iso__alloc(hyper_bytes, &hyper));
    iso__free(r->hyper);
    r->hyper = hyper;
    r->hyper_bytes = hyper_bytes;
    r->apply = apply;
    r->apply_user = user;
    return ISO_OK;
}

bool iso__reducer_is_ready(const iso_reducer *r, int i) { return r->slot[i].ready; }

// ---- Issue and wait -------------------------------------------------------------------------------

static bool exchanges(const iso_reducer *r) {
    return r->comm && iso_comm_size(r->comm) > 1 && r->sync != ISO_SYNC_NONE;
}

// What makes a sum an average.
static double average_factor(const iso_reducer *r) {
    return exchanges(r) ? 1.0 / iso_comm_size(r->comm) : 1.0;
}

static iso_status wait_bucket(iso_reducer *r, iso__bucket *b) {
    if (b->state != ISO_BUCKET_POSTED) return ISO_OK;
    ISO_CHECK(b->request, ISO_ERR_STATE, "the exchange of \"%s\" has failed before", b->label);
    int64_t start = iso_now(), posted = iso__request_posted_ns(b->request), done = 0;
    ISO_TRY(iso__request_finish(&b->request, &done));
    int64_t end = iso_now();
    b->state = ISO_BUCKET_REDUCED;
    r->stats.wait_ms += (double)(end - start) * 1e-6;
    r->stats.exchange_ms += (double)(done - posted) * 1e-6;
    iso_trace_span(ISO_LANE_QUEUE, b->label, b->ready_ns, posted);
    iso_trace_span(ISO_LANE_EXCHANGE, b->label, posted, done);
    iso_trace_span(ISO_LANE_WAIT, b->label, start, end);
    return ISO_OK;
}

static iso_status post_bucket(iso_reducer *r, iso__bucket *b) {
    if (!exchanges(r)) {
        b->state = ISO_BUCKET_REDUCED;
        r->busy++;
        return ISO_OK;
    }
    ISO_TRY(iso_comm_iallreduce(r->comm, r->arena + b->offset, b->bytes / iso_dtype_size(b->dtype),
                                b->dtype, b->label, &b->request));
    b->state = ISO_BUCKET_POSTED;
    r->busy++;
    *(r->scope == ISO_SCOPE_WORLD ? &r->stats.bytes_world : &r->stats.bytes_node) +=
        (long long)b->bytes;
    if (r->sync == ISO_SYNC_BLOCKING) ISO_TRY(wait_bucket(r, b));
    return ISO_OK;
}

// Issues from the one list that all ranks share. MPI matches collectives of a communicator by their
// order, so readiness on one rank never reorders it: a rank whose next bucket is not ready waits
// with the later ones.
static iso_status issue_ready(iso_reducer *r) {
    while (r->next < r->bucket_count && r->bucket[r->next].missing == 0) {
        iso__bucket *b = &r->bucket[r->next++]; // a wait that times out must not issue it again
        if (r->next == r->bucket_count) r->fresh = r->keep_average = true;
        ISO_TRY(post_bucket(r, b));
    }
    return ISO_OK;
}

static void mark_ready(iso_reducer *r, int i) {
    iso__bucket *b = &r->bucket[r->slot[i].bucket];
    r->slot[i].ready = true;
    r->ready_count++;
    if (--b->missing == 0) b->ready_ns = iso_now();
}

iso_status iso_reducer_grad_ready(iso_reducer *r, int i) {
    ISO_CHECK(i >= 0 && i < r->slot_count, ISO_ERR_ARG,
              "the reducer has no parameter %d: it has %d", i, r->slot_count);
    iso__grad_slot *s = &r->slot[i];
    ISO_CHECK(!s->ready && r->bucket[s->bucket].state == ISO_BUCKET_OPEN, ISO_ERR_STATE,
              "the gradient of \"%s\" was reported ready twice: call iso_reducer_param_needed (or "
              "run a forward) "
              "between two backwards",
              s->name);
    mark_ready(r, i);
    iso_comm_poll(r->world);
    return issue_ready(r);
}

// Parameters that this backward did not reach contribute zeros, so that every rank issues the whole
// list; or what earlier backwards left there, if it is still wanted.
static iso_status close_backward(iso_reducer *r) {
    for (int i = r->slot_count - 1; i >= 0; i--) {
        iso__grad_slot *s = &r->slot[i];
        if (s->ready || r->bucket[s->bucket].state != ISO_BUCKET_OPEN) continue;
        if (!r->fresh || !r->keep_average)
            memset(r->arena + s->offset, 0, s->count * iso_dtype_size(s->dtype));
        mark_ready(r, i);
    }
    return issue_ready(r);
}

// ---- Complete -------------------------------------------------------------------------------------

// All buckets have come back: the list starts again from its first entry.
static void restart(iso_reducer *r) {
    r->next = 0;
    r->stepped = false;
    r->ready_count = 0;
    for (int i = 0; i < r->slot_count; i++) r->ready_count += r->slot[i].ready;
}

static void reopen(iso_reducer *r, iso__bucket *b) {
    b->state = ISO_BUCKET_OPEN;
    b->update = false;
    b->missing = b->last - b->first + 1;
    for (int k = b->first; k <= b->last; k++) r->slot[r->order[k]].ready = false;
    if (--r->busy == 0) restart(r);
}

static void average_in_place(const iso_reducer *r, const iso__bucket *b) {
    double factor = average_factor(r);
    void *data = r->arena + b->offset;
    float *x = data;
    if (factor == 1.0) return;
    if (b->dtype == ISO_F64)
        for (size_t k = 0; k < b->bytes / sizeof(double); k++) ((double *)data)[k] *= factor;
    else
        for (size_t k = 0; k < b->bytes / sizeof(float); k++) x[k] *= (float)factor;
}

static iso_status update(iso_reducer *r, iso__bucket *b, double scale) {
    for (int k = b->first; k <= b->last; k++) {
        int i = r->order[k];
        ISO_TRY(r->apply(i, r->arena + r->slot[i].offset, scale, r->hyper, r->apply_user));
    }
    return ISO_OK;
}

static iso_status complete_bucket(iso_reducer *r, iso__bucket *b) {
    if (b->state == ISO_BUCKET_OPEN) return ISO_OK;
    ISO_TRY(wait_bucket(r, b));
    bool keep = !b->update || r->keep_average;
    if (keep) average_in_place(r, b);
    if (b->update && r->apply) ISO_TRY(update(r, b, keep ? 1.0 : average_factor(r)));
    reopen(r, b);
    return ISO_OK;
}

static bool backward_is_open(const iso_reducer *r) {
    return r->next < r->bucket_count && r->ready_count > 0;
}

iso_status iso_reducer_param_needed(iso_reducer *r, int i) {
    ISO_CHECK(i >= 0 && i < r->slot_count, ISO_ERR_ARG,
              "the reducer has no parameter %d: it has %d", i, r->slot_count);
    iso_comm_poll(r->world);
    if (backward_is_open(r)) ISO_TRY(close_backward(r));
    return complete_bucket(r, &r->bucket[r->slot[i].bucket]);
}

iso_status iso_reducer_finish(iso_reducer *r) {
    do {
        if (backward_is_open(r)) ISO_TRY(close_backward(r));
        // In the order in which they were issued: the first ones are the first to be complete.
        for (int b = 0; b < r->bucket_count; b++) ISO_TRY(complete_bucket(r, &r->bucket[b]));
    } while (backward_is_open(r)); // reported while earlier exchanges were still out
    return ISO_OK;
}

// Someone looked between backward and step, so that everything is back: the arena holds averages.
static iso_status update_now(iso_reducer *r) {
    for (int b = 0; b < r->bucket_count; b++) ISO_TRY(update(r, &r->bucket[b], 1.0));
    return ISO_OK;
}

iso_status iso_reducer_step(iso_reducer *r, const void *hyper) {
    ISO_CHECK(r->apply, ISO_ERR_STATE, "step() was called on a reducer that has no apply callback");
    ISO_CHECK(r->unsynced == 0, ISO_ERR_STATE,
              "step() after %d backwards inside no_sync, whose gradients this rank has alone: make "
              "the last backward before a step outside of it",
              r->unsynced);
    // An update that no forward has asked for still needs the hyperparameters of its own step; and
    // a list of which a part is back must come back whole.
    if (r->stepped || (r->fresh && r->busy < r->bucket_count)) ISO_TRY(iso_reducer_finish(r));
    memcpy(r->hyper, hyper, r->hyper_bytes);
    r->stats.steps++;
    if (!r->fresh) ISO_TRY(close_backward(r));
    r->fresh = false;
    if (r->busy == 0) return update_now(r);
    for (int b = 0; b < r->bucket_count; b++) r->bucket[b].update = true;
    r->stepped = true;
    if (r->sync == ISO_SYNC_LAZY) return ISO_OK;
    return iso_reducer_finish(r);
}

void iso_reducer_zero_grad(iso_reducer *r) { r->keep_average = false; }
void iso_reducer_poll(iso_reducer *r) { iso_comm_poll(r->world); }

void iso_reducer_get_stats(const iso_reducer *r, iso_reducer_stats *out) {
    *out = r->stats;
    out->shared_memory = r->comm && iso__comm_is_shared(r->comm, r->arena, r->arena_bytes);
}
