// SPDX-License-Identifier: MIT
// Measures when buckets are ready and needed: for statistics, and for the plan of the order in
// which they leave.
#include "parallel/reducer/planner.h"

#include "parallel/reducer/plan.h"

#include <isotherm/trace.h>
#include <string.h>

#define CAN_WAIT_MS 1e12 // is needed after everything else
#define WARM_LISTS  3    // first touch of memory and creation of kernels distort their times
enum { ROUNDS = 5 };     // lists whose times make the plan

// Times of the latest exchange, sums over all exchanges, and the times for the plan.
typedef struct bucket_times {
    int64_t ready_ns, need_ns;       // need_ns: 0 until it is needed
    int64_t done_ns;                 // of the sum
    int64_t origin_ns, origin_clock; // of its backward
    int round;                       // index of this backward in plan_ready and plan_need
    double ready_ms, start_ms, done_ms, need_ms, wait_ms; // sums, since the first gradient
    long long exchanges, needs;
    double plan_ready[ROUNDS], plan_need[ROUNDS]; // ms without waits
} bucket_times;

struct iso__planner {
    const iso__layout *layout;
    iso_comm *world;
    bool wanted, planned; // planned: true even if planning failed
    bool in_force;
    bucket_times *times;             // [buckets]
    int *bucket;                     // [buckets], of the planned channel's items
    int64_t origin_ns, origin_clock; // start of the backward: on the clock of iso_now, and on the
                                     // clock without waits
    int64_t waited_ns;
    double wait_ms, exchange_ms;
    iso__channel_load load; // when measuring for the plan began
};

iso_status iso__planner_create(const iso__layout *layout, iso_comm *world, bool wanted,
                               iso__planner **out) {
    iso_status status;
    iso__planner *p;
    size_t count = (size_t)layout->bucket_count;
    ISO_TRY(iso__alloc_zero(sizeof(*p), (void **)&p));
    *p = (iso__planner){.layout = layout, .world = world, .wanted = wanted};
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*p->times), (void **)&p->times));
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*p->bucket), (void **)&p->bucket));
    *out = p;
    return ISO_OK;
fail:
    iso__planner_destroy(&p);
    return status;
}

void iso__planner_destroy(iso__planner **pointer) {
    iso__planner *p = *pointer;
    *pointer = NULL;
    if (!p) return;
    iso__free(p->times);
    iso__free(p->bucket);
    iso__free(p);
}

// ---- Watching ---------------------------------------------------------------------------------------

// A clock that stops during waits.
static int64_t clock_of(const iso__planner *p, int64_t now) { return now - p->waited_ns; }

void iso__planner_begin(iso__planner *p) {
    p->origin_ns = iso_now();
    p->origin_clock = clock_of(p, p->origin_ns);
}

void iso__planner_ready(iso__planner *p, int bucket, long long list) {
    bucket_times *t = &p->times[bucket];
    t->ready_ns = iso_now();
    t->need_ns = 0;
    t->origin_ns = p->origin_ns;
    t->origin_clock = p->origin_clock;
    t->round = (int)(list % ROUNDS);
    t->plan_ready[t->round] = (double)(clock_of(p, t->ready_ns) - p->origin_clock) * 1e-6;
}

void iso__planner_need(iso__planner *p, int bucket) {
    bucket_times *t = &p->times[bucket];
    if (t->ready_ns == 0 || t->need_ns != 0) return;
    t->need_ns = iso_now();
    t->plan_need[t->round] = (double)(clock_of(p, t->need_ns) - t->origin_clock) * 1e-6;
    t->need_ms += (double)(t->need_ns - t->origin_ns) * 1e-6;
    t->needs++;
}

// When backward reported the gradient, the device had only been given the work.
static void correct_ready(bucket_times *t, int64_t ready_ns) {
    t->plan_ready[t->round] += (double)(ready_ns - t->ready_ns) * 1e-6;
    t->ready_ns = ready_ns;
}

// Adds an exchange that is over, and the wait for it.
static void count_exchange(iso__planner *p, int bucket, const iso__exchange_times *x,
                           int64_t ready_ns, int64_t spent_ns) {
    const char *label = p->layout->range[bucket].label;
    int64_t wait_end = x->wait_end_ns - x->away_ns - spent_ns;
    double wait_ms = (double)(wait_end - x->wait_start_ns) * 1e-6;
    p->waited_ns += wait_end - x->wait_start_ns;
    p->wait_ms += wait_ms;
    p->exchange_ms += (double)(x->done_ns - x->posted_ns) * 1e-6;
    p->times[bucket].wait_ms += wait_ms;
    iso_trace_span(ISO_LANE_QUEUE, label, ready_ns, x->posted_ns);
    iso_trace_span(ISO_LANE_EXCHANGE, label, x->posted_ns, x->done_ns);
    iso_trace_span(ISO_LANE_WAIT, label, x->wait_start_ns, wait_end);
}

void iso__planner_arrived(iso__planner *p, int bucket, const iso__exchange_times *x,
                          int64_t spent_ns) {
    bucket_times *t = &p->times[bucket];
    if (!x->known) return;
    if (x->left_device) correct_ready(t, x->ready_ns);
    count_exchange(p, bucket, x, t->ready_ns, spent_ns);
    t->ready_ms += (double)(t->ready_ns - t->origin_ns) * 1e-6;
    t->start_ms += (double)(x->posted_ns - t->origin_ns) * 1e-6;
    t->done_ms += (double)(x->done_ns - t->origin_ns) * 1e-6;
    t->done_ns = x->done_ns;
    t->exchanges++;
}

void iso__planner_collected(iso__planner *p, int bucket, const iso__exchange_times *x,
                            int64_t spent_ns) {
    bucket_times *t = &p->times[bucket];
    if (!x->known) return;
    count_exchange(p, bucket, x, x->ready_ns, spent_ns);
    if (t->done_ns > 0) t->done_ms += (double)(x->done_ns - t->done_ns) * 1e-6;
}

void iso__planner_go_on(iso__planner *p, const iso__planner *from) {
    p->wait_ms = from->wait_ms;
    p->exchange_ms = from->exchange_ms;
}

void iso__planner_waited(iso__planner *p, int64_t start_ns) {
    int64_t waited = iso_now() - start_ns;
    p->waited_ns += waited;
    p->wait_ms += (double)waited * 1e-6;
}

void iso__planner_add_stats(const iso__planner *p, iso_reducer_stats *out) {
    out->wait_ms = p->wait_ms;
    out->exchange_ms = p->exchange_ms;
    out->planned = p->in_force;
}

void iso__planner_bucket_stats(const iso__planner *p, int bucket, iso_bucket_stats *out) {
    const bucket_times *t = &p->times[bucket];
    double each = t->exchanges > 0 ? 1.0 / (double)t->exchanges : 0;
    out->exchanges = t->exchanges;
    out->ready_ms = t->ready_ms * each;
    out->start_ms = t->start_ms * each;
    out->done_ms = t->done_ms * each;
    out->need_ms = t->needs > 0 ? t->need_ms / (double)t->needs : 0;
    out->wait_ms = t->wait_ms * each;
}

// ---- Planning ---------------------------------------------------------------------------------------
//
// Why delayed buckets cannot block a rank: the proof in channel.h needs one plan on all ranks, and
// that a rank makes the whole round ready before its first wait. Rank 0 makes the one plan, with or
// without them. A rank posts a delayed bucket later than it could, but before it waits: it waits
// only after the end of its backward, which makes every bucket ready (iso__round_close), and then
// all buckets leave, the delayed ones last. In blocking mode, a rank posts and awaits buckets by
// number, and without a plan by need this is also the order of the chunks.

static double median_of_rounds(const double *value) {
    double sorted[ROUNDS];
    memcpy(sorted, value, sizeof(sorted));
    return iso__median(sorted, ROUNDS);
}

// Delayed buckets leave after all others. They are ready last and can wait: among buckets that are
// ready and can wait, the plan sends the one with the lowest number first.
static void delay_items(const iso__planner *p, iso__plan_item *item, int count) {
    double last_ms = 0;
    for (int k = 0; k < count; k++)
        if (item[k].ready_ms > last_ms) last_ms = item[k].ready_ms;
    for (int k = 0; k < count; k++) {
        if (p->bucket[k] < p->layout->first_delayed) continue;
        item[k].ready_ms = last_ms;
        item[k].need_ms = CAN_WAIT_MS;
    }
}

// The slowest rank's times of `count` long buckets, equal on all ranks. ms: [2 * count], scratch.
static iso_status gather_times(const iso__planner *p, const iso__transport *transport,
                               iso__plan_item *item, double *ms, int count) {
    for (int k = 0; k < count; k++) {
        const bucket_times *t = &p->times[p->bucket[k]];
        ms[2 * k] = median_of_rounds(t->plan_ready);
        ms[2 * k + 1] = median_of_rounds(t->plan_need);
        item[k] =
            (iso__plan_item){.bytes = transport->wire_bytes[p->bucket[k]], .unit = sizeof(double)};
    }
    ISO_TRY(iso_comm_allreduce_f64(p->world, ms, (size_t)count * 2, ISO_MAX));
    for (int k = 0; k < count; k++) {
        item[k].ready_ms = ms[2 * k];
        // The first layer is needed immediately; buckets that the last steps did not need can wait.
        double at_once = item[k].ready_ms + 1e-3, need = ms[2 * k + 1];
        item[k].need_ms = need == 0 ? CAN_WAIT_MS : need > at_once ? need : at_once;
    }
    delay_items(p, item, count);
    return ISO_OK;
}

typedef struct agreed_plan {
    int64_t count, window;
    iso__chunk *chunk;
} agreed_plan;

static iso_status make_plan(const iso__planner *p, iso__channel *channel,
                            const iso__plan_item *item, int items, agreed_plan *out) {
    iso__channel_load now = iso__channel_load_of(channel);
    double bytes = (double)(now.bytes - p->load.bytes);
    double ms = (double)(now.busy_ns - p->load.busy_ns) * 1e-6;
    if (ms <= 0 || bytes <= 0) return ISO_OK; // nothing has travelled: keep the plan
    iso__plan_config config = iso__plan_choose(bytes / ms, iso__channel_needs_of(channel));
    int count = 0;
    ISO_TRY(iso__plan_make(item, items, &config, &out->chunk, &count));
    out->count = count;
    out->window = (int64_t)config.window;
    iso__log(
        ISO_LOG_INFO,
        "order by need: %d chunks of at most %zu KiB, %zu KiB under way (the exchange moves %.0f "
        "MB/s)",
        count, config.chunk_bytes >> 10, config.window >> 10, config.bytes_per_ms * 1e-3);
    return ISO_OK;
}

// Makes rank 0's plan the plan of all ranks.
static iso_status share_plan(iso__planner *p, iso__channel *channel, agreed_plan *plan,
                             iso_status made) {
    int64_t head[2] = {made == ISO_OK ? plan->count : 0, plan->window};
    ISO_TRY(iso_comm_bcast(p->world, head, sizeof(head), 0));
    if (head[0] == 0) return made; // rank 0 has no plan: all ranks keep the old one
    plan->count = head[0];
    plan->window = head[1];
    size_t bytes = (size_t)plan->count * sizeof(*plan->chunk);
    iso_status status = ISO_OK;
    if (!plan->chunk) status = iso__alloc_zero(bytes, (void **)&plan->chunk);
    ISO_TRY(iso_comm_agree(p->world, status));
    ISO_TRY(iso_comm_bcast(p->world, plan->chunk, bytes, 0));
    status = iso__channel_set_plan(channel, plan->chunk, (int)plan->count, (size_t)plan->window);
    ISO_TRY(iso_comm_agree(p->world, status)); // otherwise the orders of the ranks would differ
    p->in_force = true;
    return ISO_OK;
}

static iso_status plan_together(iso__planner *p, const iso__transport *transport,
                                iso__plan_item *item, double *ms) {
    agreed_plan agreed = {0};
    int items = 0;
    iso_status made = ISO_OK;
    iso__channel *channel = transport->ops->plan(transport, p->bucket, &items);
    ISO_TRY(gather_times(p, transport, item, ms, items));
    if (iso_comm_rank(p->world) == 0) made = make_plan(p, channel, item, items, &agreed);
    iso_status status = share_plan(p, channel, &agreed, made);
    iso__free(agreed.chunk);
    ISO_TRY(status);
    return ISO_OK;
}

// If a rank has failed before, no rank plans.
iso_status iso__planner_plan(iso__planner *p, const iso__transport *transport, iso_status mine) {
    iso__plan_item *item = NULL;
    double *ms = NULL;
    size_t count = (size_t)p->layout->bucket_count;
    if (mine == ISO_OK) mine = iso__alloc_zero(count * sizeof(*item), (void **)&item);
    if (mine == ISO_OK) mine = iso__alloc_zero(count * 2 * sizeof(*ms), (void **)&ms);
    iso_status status = mine; // an error of another rank is reported there
    if (iso_comm_agree(p->world, mine) == ISO_OK) status = plan_together(p, transport, item, ms);
    iso__free(ms);
    iso__free(item);
    ISO_TRY(status);
    return ISO_OK;
}

// Counts lists when they leave, not when they come back, so that the count is equal on all ranks.
bool iso__planner_is_due(iso__planner *p, const iso__transport *transport, long long lists) {
    int items;
    if (!p->wanted || p->planned || lists < WARM_LISTS || !transport->ops->plan) return false;
    iso__channel *channel = transport->ops->plan(transport, p->bucket, &items);
    if (!channel) return false;
    if (lists == WARM_LISTS && p->load.bytes == 0) p->load = iso__channel_load_of(channel);
    if (lists < WARM_LISTS + ROUNDS + 1) return false;
    p->planned = true;
    return true;
}
