// When buckets are ready and needed: statistics, and the plan of the order in which they leave.
#include "parallel/plan.h"
#include "parallel/reducer_impl.h"

#include <isotherm/trace.h>
#include <string.h>

#define WARM_LISTS 3 // memory is touched, kernels are created: times say nothing yet

// ---- Watching ---------------------------------------------------------------------------------------

// A clock that stands still in waits.
static int64_t clock_of(const iso_reducer *r, int64_t now) { return now - r->waited_ns; }

void iso__times_begin(iso_reducer *r) {
    r->origin_ns = iso_now();
    r->origin_clock = clock_of(r, r->origin_ns);
}

void iso__times_ready(iso_reducer *r, iso__bucket *b) {
    iso__bucket_times *t = &b->times;
    t->ready_ns = iso_now();
    t->need_ns = 0;
    t->origin_ns = r->origin_ns;
    t->origin_clock = r->origin_clock;
    t->round = (int)(r->lists % ISO_PLAN_ROUNDS);
    t->plan_ready[t->round] = (double)(clock_of(r, t->ready_ns) - r->origin_clock) * 1e-6;
}

void iso__times_need(iso_reducer *r, iso__bucket *b) {
    iso__bucket_times *t = &b->times;
    if (t->ready_ns == 0 || t->need_ns != 0) return;
    t->need_ns = iso_now();
    t->plan_need[t->round] = (double)(clock_of(r, t->need_ns) - t->origin_clock) * 1e-6;
    t->need_ms += (double)(t->need_ns - t->origin_ns) * 1e-6;
    t->needs++;
}

void iso__times_done(iso_reducer *r, iso__bucket *b, int64_t wait_start, int64_t wait_end) {
    iso__bucket_times *t = &b->times;
    iso__channel_times s = iso__channel_times_of(iso__bucket_channel(r, b), b->item);
    double wait_ms = (double)(wait_end - wait_start) * 1e-6;
    r->waited_ns += wait_end - wait_start;
    r->stats.wait_ms += wait_ms;
    r->stats.exchange_ms += (double)(s.done_ns - s.posted_ns) * 1e-6;
    t->ready_ms += (double)(t->ready_ns - t->origin_ns) * 1e-6;
    t->start_ms += (double)(s.posted_ns - t->origin_ns) * 1e-6;
    t->done_ms += (double)(s.done_ns - t->origin_ns) * 1e-6;
    t->wait_ms += wait_ms;
    t->exchanges++;
    iso_trace_span(ISO_LANE_QUEUE, b->label, t->ready_ns, s.posted_ns);
    iso_trace_span(ISO_LANE_EXCHANGE, b->label, s.posted_ns, s.done_ns);
    iso_trace_span(ISO_LANE_WAIT, b->label, wait_start, wait_end);
}

iso_status iso_reducer_get_bucket_stats(const iso_reducer *r, int bucket, iso_bucket_stats *out) {
    ISO_CHECK(bucket >= 0 && bucket < r->bucket_count, ISO_ERR_ARG,
              "the reducer has no bucket %d: they are 0 to %d", bucket, r->bucket_count - 1);
    const iso__bucket *b = &r->bucket[bucket];
    const iso__bucket_times *t = &b->times;
    double each = t->exchanges > 0 ? 1.0 / (double)t->exchanges : 0;
    *out = (iso_bucket_stats){.name = b->label,
                              .bytes = b->bytes,
                              .wire_bytes = b->wire_bytes,
                              .exchanges = t->exchanges,
                              .ready_ms = t->ready_ms * each,
                              .start_ms = t->start_ms * each,
                              .done_ms = t->done_ms * each,
                              .need_ms = t->needs > 0 ? t->need_ms / (double)t->needs : 0,
                              .wait_ms = t->wait_ms * each};
    return ISO_OK;
}

// ---- Planning ---------------------------------------------------------------------------------------

static double median_of_rounds(const double *value) {
    double sorted[ISO_PLAN_ROUNDS];
    memcpy(sorted, value, sizeof(sorted));
    return iso__median(sorted, ISO_PLAN_ROUNDS);
}

// The slowest rank's times of long buckets, the same on all ranks; item: [bucket_count], ms: twice
// as many.
static iso_status gather_times(iso_reducer *r, iso__plan_item *item, double *ms, int *count) {
    *count = 0;
    for (int i = 0; i < r->bucket_count; i++) {
        const iso__bucket *b = &r->bucket[i];
        if (b->local || b->lane != ISO_CHANNEL_LONG) continue;
        ms[2 * *count] = median_of_rounds(b->times.plan_ready);
        ms[2 * *count + 1] = median_of_rounds(b->times.plan_need);
        item[(*count)++] = (iso__plan_item){.bytes = b->wire_bytes, .unit = sizeof(double)};
    }
    ISO_TRY(iso_comm_allreduce_f64(r->world, ms, (size_t)*count * 2, ISO_MAX));
    for (int k = 0; k < *count; k++) {
        item[k].ready_ms = ms[2 * k];
        // The first layer is needed at once; what the last steps did not ask for can wait.
        double at_once = item[k].ready_ms + 1e-3, need = ms[2 * k + 1];
        item[k].need_ms = need == 0 ? 1e12 : need > at_once ? need : at_once;
    }
    return ISO_OK;
}

typedef struct agreed_plan {
    int64_t count, window;
    iso__part *part;
} agreed_plan;

static iso_status make(iso_reducer *r, const iso__plan_item *item, int items, agreed_plan *out) {
    iso__channel_load now = iso__channel_load_of(r->channel[r->scope][ISO_CHANNEL_LONG]);
    double bytes = (double)(now.bytes - r->load.bytes);
    double ms = (double)(now.busy_ns - r->load.busy_ns) * 1e-6;
    if (ms <= 0 || bytes <= 0) return ISO_OK; // nothing has travelled: the plan stays as it is
    iso__plan_config config = iso__plan_choose(bytes / ms);
    int count = 0;
    ISO_TRY(iso__plan_make(item, items, &config, &out->part, &count));
    out->count = count;
    out->window = (int64_t)config.window;
    iso__log(
        ISO_LOG_INFO,
        "order by need: %d parts of at most %zu KiB, %zu KiB under way (the exchange moves %.0f "
        "MB/s)",
        count, config.part_bytes >> 10, config.window >> 10, config.bytes_per_ms * 1e-3);
    return ISO_OK;
}

// Rank 0's plan becomes everybody's.
static iso_status share(iso_reducer *r, agreed_plan *plan, iso_status made) {
    int64_t head[2] = {made == ISO_OK ? plan->count : 0, plan->window};
    ISO_TRY(iso_comm_bcast(r->world, head, sizeof(head), 0));
    if (head[0] == 0) return made; // rank 0 could not: all go on as before
    plan->count = head[0];
    plan->window = head[1];
    size_t bytes = (size_t)plan->count * sizeof(*plan->part);
    iso_status status = ISO_OK;
    if (!plan->part) status = iso__alloc_zero(bytes, (void **)&plan->part);
    ISO_TRY(iso_comm_agree(r->world, status));
    ISO_TRY(iso_comm_bcast(r->world, plan->part, bytes, 0));
    status = iso__channel_set_plan(r->channel[r->scope][ISO_CHANNEL_LONG], plan->part,
                                   (int)plan->count, (size_t)plan->window);
    ISO_TRY(iso_comm_agree(r->world, status)); // or ranks would go on in different orders
    r->stats.planned = true;
    return ISO_OK;
}

static iso_status plan_together(iso_reducer *r, iso__plan_item *item, double *ms) {
    agreed_plan agreed = {0};
    int items = 0;
    iso_status made = ISO_OK;
    ISO_TRY(gather_times(r, item, ms, &items));
    if (iso_comm_rank(r->world) == 0) made = make(r, item, items, &agreed);
    iso_status status = share(r, &agreed, made);
    iso__free(agreed.part);
    ISO_TRY(status);
    return ISO_OK;
}

// mine: how this rank has come here; if one has failed, nobody plans.
static iso_status plan(iso_reducer *r, iso_status mine) {
    iso__plan_item *item = NULL;
    double *ms = NULL;
    size_t count = (size_t)r->bucket_count;
    if (mine == ISO_OK) mine = iso__alloc_zero(count * sizeof(*item), (void **)&item);
    if (mine == ISO_OK) mine = iso__alloc_zero(count * 2 * sizeof(*ms), (void **)&ms);
    iso_status status = mine; // another rank's error is told there
    if (iso_comm_agree(r->world, mine) == ISO_OK) status = plan_together(r, item, ms);
    iso__free(ms);
    iso__free(item);
    ISO_TRY(status);
    return ISO_OK;
}

// By what all ranks know alike: lists are counted when they leave, not when they come back.
static bool can_plan(const iso_reducer *r) {
    return r->sync == ISO_SYNC_LAZY && r->want_order == ISO_ORDER_NEED && !r->planned &&
           r->scope == ISO_SCOPE_WORLD && !r->hook.silent && r->channel[r->scope][ISO_CHANNEL_LONG];
}

iso_status iso__reducer_plan(iso_reducer *r, iso_status mine) {
    if (!can_plan(r) || r->lists < WARM_LISTS) return ISO_OK;
    if (r->lists == WARM_LISTS && r->load.bytes == 0)
        r->load = iso__channel_load_of(r->channel[r->scope][ISO_CHANNEL_LONG]);
    if (r->lists < WARM_LISTS + ISO_PLAN_ROUNDS + 1) return ISO_OK;
    r->planned = true;
    iso_status finished = iso_reducer_finish(r);
    return plan(r, mine < 0 ? mine : finished);
}
