// SPDX-License-Identifier: MIT
// Exchanges that each rank starts and merges at its own steps; see periodic.h.
#include "comm/comm_calls.h"
#include "optim/periodic/periodic.h"

#include <isotherm/trace.h>
#include <string.h>

// What a rank did after a step: a sum of these, and PHASE times how far an exchange had come.
enum { MERGED = 1, SENT = 2, PHASE = 4 };

static iso__periodic_exchange *exchange_of(iso__periodic *p) { return &p->exchange[0]; }

// ---- Merging and sending --------------------------------------------------------------------------

static iso_status run_action(iso__periodic *p, iso__action_kind kind, int64_t step) {
    iso__sync_plan plan = {.next = p->scope};
    iso__action *action = iso__plan_add(&plan, kind);
    action->age = action->weight = step - p->async.sent_at;
    return iso__periodic_run(p, &plan, ISO__PAYLOAD_WIRE);
}

static iso_status send_now(iso__periodic *p, int64_t step) {
    p->async.sent_at = step;
    p->async.sent_ns = iso_now();
    return run_action(p, ISO__SEND, step);
}

// Whether MERGE has work to do: to merge an exchange, or to clear one that failed where ranks met.
static bool has_merge(const iso__periodic_exchange *x) { return x->pending || x->dropped; }

static iso_status poll_arrival(iso__periodic_exchange *x, bool *arrived) {
    *arrived = has_merge(x);
    if (x->pending && !x->held) {
        ISO_TRY(iso__average_poll(x->average));
        *arrived = iso__average_progress(x->average) == ISO__AVERAGE_ARRIVED;
    }
    return ISO_OK;
}

static bool send_due(const iso__periodic *p) {
    double ms = (double)(iso_now() - p->async.sent_ns) * 1e-6;
    return p->async.sent_ns == 0 || ms >= p->async.interval_ms;
}

static unsigned progress_of(const iso__periodic_exchange *x) {
    return x->pending && !x->held ? (unsigned)iso__average_progress(x->average) : 0;
}

// As fast as exchanges arrive.
static iso_status step_freely(iso__periodic *p, int64_t step, unsigned *did) {
    bool arrived;
    iso__periodic_exchange *x = exchange_of(p);
    ISO_TRY(poll_arrival(x, &arrived));
    if (arrived) ISO_TRY(run_action(p, ISO__MERGE, step));
    bool sends = !x->pending && send_due(p);
    if (sends) ISO_TRY(send_now(p, step));
    *did = (arrived ? MERGED : 0u) + (sends ? SENT : 0u) + PHASE * progress_of(x);
    return ISO_OK;
}

// As in the run that is repeated.
static iso_status step_again(iso__periodic *p, int64_t step, unsigned did) {
    iso__periodic_exchange *x = exchange_of(p);
    if (did & MERGED && has_merge(x)) ISO_TRY(run_action(p, ISO__MERGE, step));
    if (did & SENT && !x->pending) ISO_TRY(send_now(p, step));
    if (x->pending && !x->held) ISO_TRY(iso__average_reach(x->average, (int)(did / PHASE)));
    return ISO_OK;
}

iso_status iso__async_step(iso__periodic *p, int64_t step) {
    iso__async *a = &p->async;
    unsigned did = a->again ? a->again[step] : 0;
    a->step = step;
    a->apart = true;
    ISO_TRY(a->again ? step_again(p, step, did) : step_freely(p, step, &did));
    if (a->did) a->did[step] = (unsigned char)did;
    return ISO_OK;
}

// ---- Where ranks meet -----------------------------------------------------------------------------

static iso_status merge_pending(iso__periodic *p) {
    return has_merge(exchange_of(p)) ? run_action(p, ISO__MERGE, p->async.step) : ISO_OK;
}

static int64_t count_merged(const iso__periodic_exchange *x) { return x->starts - has_merge(x); }

// An exchange that fails does so on all ranks. Ranks that noticed it earlier have already started
// the next one.
static iso_status catch_up(iso__periodic *p, int64_t started, int64_t merged) {
    iso__periodic_exchange *x = exchange_of(p);
    iso_status status = ISO_OK;
    while (x->starts < started) {
        iso_status failed = merge_pending(p);
        if (failed < 0) status = failed;
        ISO_TRY(send_now(p, p->async.step));
    }
    if (count_merged(x) < merged) ISO_TRY(merge_pending(p));
    ISO_TRY(status);
    return ISO_OK;
}

// did: of the steps after p->async.told.
static void tell_rank(const iso__periodic *p, int rank, const char *did, int64_t count) {
    unsigned char before = 0;
    for (int64_t i = 0; i < count; i++) {
        iso_daso_change change = {.step = p->async.told + 1 + i,
                                  .cause = ISO_CAUSE_RANK,
                                  .rank = rank,
                                  .actions = (unsigned char)did[i]};
        if (did[i] && ((change.actions & (MERGED | SENT)) || change.actions != before))
            p->async.changed(&change, p->async.changed_user);
        before = (unsigned char)did[i];
    }
}

static iso_status tell_steps(iso__periodic *p) {
    iso__async *a = &p->async;
    int64_t count = a->step - a->told;
    size_t *sizes;
    char *all;
    if (!a->did) return ISO_OK;
    if (count < 0) count = 0;
    ISO_TRY(iso_comm_gather(p->comm, a->did + a->told + 1, (size_t)count, 0, &all, &sizes));
    // After an error, ranks may have made different numbers of steps.
    bool alike = all && a->changed;
    for (int r = 0; alike && r < iso_comm_size(p->comm); r++) alike = sizes[r] == (size_t)count;
    for (int r = 0; alike && r < iso_comm_size(p->comm); r++)
        tell_rank(p, r, all + r * count, count);
    iso_comm_free(all);
    iso_comm_free(sizes);
    a->told = a->step;
    return ISO_OK;
}

static iso_status meet_ranks(iso__periodic *p) {
    const iso__periodic_exchange *x = exchange_of(p);
    ISO_TRY(iso_comm_agree(p->comm, iso_data_parallel_finish(p->data_parallel)));
    int64_t most[2] = {x->starts, count_merged(x)};
    ISO_TRY(iso_comm_allreduce_i64(p->comm, most, 2, ISO_MAX));
    ISO_TRY(iso_comm_agree(p->comm, catch_up(p, most[0], most[1])));
    return ISO_OK;
}

static iso_status meet_and_tell(iso__periodic *p) {
    if (iso__comm_is_finalized(p->comm)) return ISO_OK;
    p->async.apart = false;
    iso_status status = meet_ranks(p);
    ISO_TRY(status < 0 ? status : tell_steps(p));
    return ISO_OK;
}

iso_status iso__async_end(iso__periodic *p, int64_t step) {
    p->async.step = step;
    p->async.apart = true;
    ISO_TRY(meet_and_tell(p));
    return merge_pending(p);
}

// ---- Life -----------------------------------------------------------------------------------------

void iso__async_continue(iso__periodic *p, int64_t step) {
    p->async.step = p->async.told = step;
    p->async.apart = false;
    iso__worker_continue(p);
}

static void read_changes(const iso_daso_config *config, int rank, unsigned char *again) {
    for (int64_t i = 0; i < config->replay_count; i++) {
        const iso_daso_change *c = &config->replay[i];
        bool mine = c->cause == ISO_CAUSE_RANK && c->rank == rank;
        if (mine && c->step >= 1 && c->step <= config->total_steps)
            again[c->step] = (unsigned char)c->actions;
    }
}

// told: some rank wants to be told.
static iso_status allocate_steps(iso__periodic *p, const iso_daso_config *config, bool told) {
    size_t bytes = (size_t)config->total_steps + 1;
    if (told) ISO_TRY(iso__alloc_zero(bytes, (void **)&p->async.did));
    if (config->replay) ISO_TRY(iso__alloc_zero(bytes, (void **)&p->async.again));
    return ISO_OK;
}

iso_status iso__async_open(iso__periodic *p, const iso_daso_config *config) {
    int64_t told = config->changed != NULL;
    p->async = (iso__async){.meet = meet_and_tell,
                            .interval_ms = config->interval_ms,
                            .changed = config->changed,
                            .changed_user = config->changed_user};
    ISO_TRY(iso_comm_allreduce_i64(p->comm, &told, 1, ISO_MAX));
    ISO_TRY(iso_comm_agree(p->comm, allocate_steps(p, config, told)));
    if (config->replay) read_changes(config, iso_comm_rank(p->comm), p->async.again);
    return ISO_OK;
}

void iso__async_close(iso__periodic *p) {
    iso__free(p->async.did);
    iso__free(p->async.again);
    p->async = (iso__async){0};
}
