// SPDX-License-Identifier: MIT
// The workers of a parameter server: what a rank pushes and pulls, and when; see periodic.h.
#include "comm/comm_calls.h"
#include "comm/traffic.h"
#include "exchange/server.h"
#include "optim/periodic/worker_events.h"
#include "optim/resume/resume_impl.h"
#include "parallel/parallel_impl.h"

#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

struct iso__worker {
    iso__server *server;
    iso_comm *comm; // for its messages
    double scale;
    int64_t period;
    bool together;      // ranks push and pull where they meet, and meet in every period
    int64_t *pushed_at; // [ranks]: the step of the last push, or where this rank began to push
    bool open;          // it takes pushes
    bool meets;         // ranks meet now
    bool lost;          // where ranks met, a wait failed, so they may be at different places
    iso__events events;
};

// ---- Shards -----------------------------------------------------------------------------------------

// Consecutive elements of a parameter: their values, what this rank knows of them, and the same
// elements in a message.
typedef struct slice {
    void *now, *known, *message;
    size_t count;
    bool f64;
    double scale;
} slice;

#define SLICES(T, name)                                                                            \
    static void merge_##name(const slice *s) {                                                     \
        T *x = s->now, *known = s->known;                                                          \
        const T *answer = s->message;                                                              \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            x[i] = answer[i] + (x[i] - known[i]);                                                  \
            known[i] = answer[i];                                                                  \
        }                                                                                          \
    }                                                                                              \
    static bool change_##name(const slice *s) {                                                    \
        const T *x = s->now, *known = s->known;                                                    \
        T *changes = s->message, scale = (T)s->scale;                                              \
        bool finite = true;                                                                        \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            changes[i] = scale * (x[i] - known[i]);                                                \
            finite = finite && isfinite(changes[i]);                                               \
        }                                                                                          \
        return finite;                                                                             \
    }                                                                                              \
    static bool look_##name(const slice *s) {                                                      \
        const T *x = s->now;                                                                       \
        bool finite = true;                                                                        \
        for (size_t i = 0; i < s->count; i++) finite = finite && isfinite(x[i]);                   \
        return finite;                                                                             \
    }

SLICES(float, f32)
SLICES(double, f64)

static size_t bytes_of(bool f64, size_t count) {
    return count * (f64 ? sizeof(double) : sizeof(float));
}

// What happens to a slice. Returns whether all is finite.
typedef bool (*slice_op)(const slice *s);
static bool merge_slice(const slice *s) {
    (s->f64 ? merge_f64 : merge_f32)(s);
    return true;
}
static bool change_slice(const slice *s) { return (s->f64 ? change_f64 : change_f32)(s); }
static bool keep_slice(const slice *s) {
    memcpy(s->known, s->now, bytes_of(s->f64, s->count));
    return true;
}
static bool look_slice(const slice *s) { return (s->f64 ? look_f64 : look_f32)(s); }

// The number of elements that a parameter and the shard share. `at` is the parameter's offset in
// the array of its type. *first: the first of them, counted from the beginning of the parameter.
static size_t cut_span(const iso__server_part *shard, const iso__span *span, size_t at,
                       size_t *first) {
    size_t from = shard->first[span->f64], to = from + shard->count[span->f64];
    if (from < at) from = at;
    if (to > at + span->count) to = at + span->count;
    *first = from - at;
    return from < to ? to - from : 0;
}

static iso_status for_each_shard(iso__periodic *p, iso_status (*act)(iso__periodic *p, int rank)) {
    for (int r = 0; r < iso_comm_size(p->comm); r++)
        if (iso__server_serves(p->worker->server, r)) ISO_TRY(act(p, r));
    return ISO_OK;
}

// Finds the parameters that share elements with the shard. at: the elements of each type before the
// first of them.
static void find_spans(const iso__periodic *p, const iso__server_part *shard, int *first, int *last,
                       size_t at[2]) {
    size_t seen[2] = {0}, unused;
    *first = *last = 0;
    for (int i = 0; i < p->parameter_count; i++) {
        const iso__span *span = &p->span[i];
        if (cut_span(shard, span, seen[span->f64], &unused) > 0) {
            if (*last == 0) memcpy(at, seen, sizeof(seen));
            if (*last == 0) *first = i;
            *last = i + 1;
        }
        seen[span->f64] += span->count;
    }
}

// Applies op to the slices of a shard in parameters [first, last), which are mapped. before: the
// elements of each type before first. message: see visit_shard. Returns whether all is finite.
static bool apply_slices(iso__periodic *p, const iso__server_part *shard, void *const message[2],
                         slice_op op, int first, int last, const size_t before[2]) {
    size_t from, at[2] = {before[0], before[1]};
    size_t f64 = iso__flat_f64(iso__periodic_flat(p, 0, p->parameter_count));
    bool finite = true;
    for (int i = first; i < last; i++) {
        bool k = p->span[i].f64;
        size_t count = cut_span(shard, &p->span[i], at[k], &from);
        slice s = {.count = count, .f64 = k, .scale = p->worker->scale};
        s.now = (char *)p->span[i].host + bytes_of(k, from);
        s.known = (char *)p->sent + (k ? f64 : 0) + bytes_of(k, at[k] + from);
        if (count > 0) s.message = (char *)message[k] + bytes_of(k, at[k] + from - shard->first[k]);
        if (count > 0) finite = op(&s) && finite;
        at[k] += p->span[i].count;
    }
    return finite;
}

// Applies op to all slices of a shard, and if all is finite, `then`, unless it is NULL. message:
// elements of each type. put: parameters change.
static iso_status visit_shard(iso__periodic *p, int rank, void *const message[2], slice_op op,
                              slice_op then, bool put) {
    int first, last;
    size_t at[2] = {0};
    iso__server_part shard = iso__server_shard(p->worker->server, rank);
    find_spans(p, &shard, &first, &last, at);
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__periodic_map(p, first, last));
    bool finite = apply_slices(p, &shard, message, op, first, last, at);
    if (finite && then) apply_slices(p, &shard, message, then, first, last, at);
    if (put) ISO_TRY(iso__periodic_unmap(p, first, last));
    ISO_CHECK(finite, ISO_ERR_STATE,
              "rank %d: parameters are not finite: they were not pushed: try a lower learning rate",
              iso_comm_rank(p->comm));
    return ISO_OK;
}

static iso_status merge_answer(iso__periodic *p, int rank) {
    const iso__worker *w = p->worker;
    void *answer[2];
    for (int k = 0; k < 2; k++)
        answer[k] = (void *)(uintptr_t)iso__server_answer(w->server, rank, k);
    return visit_shard(p, rank, answer, merge_slice, NULL, true);
}

static iso_status take_changes(iso__periodic *p, int rank) {
    void *changes[2];
    for (int k = 0; k < 2; k++) changes[k] = iso__server_changes(p->worker->server, rank, k);
    // What is refused counts as not pushed.
    return visit_shard(p, rank, changes, change_slice, keep_slice, false);
}

// The same in two parts, as all shards are pushed together, or none.
static iso_status make_changes(iso__periodic *p, int rank) {
    void *changes[2];
    for (int k = 0; k < 2; k++) changes[k] = iso__server_changes(p->worker->server, rank, k);
    return visit_shard(p, rank, changes, change_slice, NULL, false);
}

static iso_status keep_changes(iso__periodic *p, int rank) {
    void *const none[2] = {p->sent, p->sent}; // not used
    return visit_shard(p, rank, none, keep_slice, NULL, false);
}

static iso_status look_at(iso__periodic *p, int rank) {
    void *const none[2] = {p->sent, p->sent}; // not used
    return visit_shard(p, rank, none, look_slice, NULL, false);
}

// ---- Steps ------------------------------------------------------------------------------------------

static void note_served(int rank, void *user) {
    iso__periodic *p = user;
    iso__events_add(&p->worker->events, p->async.step, rank,
                    ISO__EVENT_SERVED | (p->worker->meets ? ISO__EVENT_MEETING : 0));
}

// *merged: the answer was there, or was waited for.
static iso_status pull_shard(iso__periodic *p, int rank, iso__server_wait how, bool *merged) {
    iso__worker *w = p->worker;
    iso_status status = iso__server_pull(w->server, rank, how);
    ISO_TRY(status);
    if (status != ISO_OK) return ISO_OK;
    *merged = true;
    p->stats.last_age = p->async.step - w->pushed_at[rank];
    iso__events_add(&w->events, p->async.step, rank,
                    ISO__EVENT_MERGED | (w->meets ? ISO__EVENT_MEETING : 0));
    return merge_answer(p, rank);
}

static iso_status pull_all(iso__periodic *p, iso__server_wait how) {
    bool merged = false;
    for (int r = 0; r < iso_comm_size(p->comm); r++) ISO_TRY(pull_shard(p, r, how, &merged));
    p->stats.syncs += merged;
    return ISO_OK;
}

// Does what the run that is repeated did here, in the same order.
static iso_status repeat_events(iso__periodic *p) {
    int rank, kind;
    bool merged = false;
    iso__worker *w = p->worker;
    while (iso__events_next(&w->events, p->async.step, w->meets, &rank, &kind))
        if (kind & ISO__EVENT_MERGED)
            ISO_TRY(pull_shard(p, rank, ISO__SERVER_WAIT, &merged));
        else
            ISO_TRY(iso__server_serve(w->server, rank, ISO__SERVER_WAIT));
    p->stats.syncs += merged;
    return ISO_OK;
}

static iso_status push_if_due(iso__periodic *p, int rank) {
    iso__worker *w = p->worker;
    bool due = p->async.step - w->pushed_at[rank] >= w->period;
    if (!due || iso__server_is_asked(w->server, rank)) return ISO_OK;
    ISO_TRY(take_changes(p, rank));
    ISO_TRY(iso__server_push(w->server, rank));
    w->pushed_at[rank] = p->async.step;
    return rank == iso_comm_rank(p->comm) ? merge_answer(p, rank) : ISO_OK;
}

// Traffic is that of the server's messages.
static void count_traffic(iso__periodic *p, const iso_traffic *before) {
    iso_traffic now;
    iso__server_traffic(p->worker->server, &now);
    p->stats.bytes_sent += now.bytes_sent - before->bytes_sent;
    p->stats.bytes_between_nodes += now.bytes_between_nodes - before->bytes_between_nodes;
}

static iso_status exchange_alone(iso__periodic *p) {
    iso__worker *w = p->worker;
    iso_traffic before;
    int64_t began = iso_now();
    iso__server_traffic(w->server, &before);
    if (iso__events_repeat(&w->events)) {
        ISO_TRY(repeat_events(p));
    } else {
        ISO_TRY(iso__server_serve_all(w->server));
        ISO_TRY(pull_all(p, ISO__SERVER_TEST));
    }
    if (!p->serves) ISO_TRY(for_each_shard(p, push_if_due));
    count_traffic(p, &before);
    p->stats.work_ms += (double)(iso_now() - began) * 1e-6;
    return ISO_OK;
}

// Serves pushes while a rank that only serves waits for the others in any call.
static bool serve_aside(void *user) {
    iso__periodic *p = user;
    iso_traffic before;
    if (iso__events_repeat(&p->worker->events)) return false; // a replay serves each in its step
    iso__server_traffic(p->worker->server, &before);
    bool served = iso__server_serve_aside(p->worker->server);
    count_traffic(p, &before);
    return served;
}

// Meanwhile waits have no time limit: an epoch of the others may take long.
static void serve_aside_too(iso__periodic *p, bool open) {
    if (p->serves) iso__comm_set_idle(p->comm, (iso__idle){serve_aside, p, open});
}

// A meeting cannot be repeated, because its messages are matched by their order.
static iso_status check_lost(const iso__worker *w) {
    ISO_CHECK(!w->lost, ISO_ERR_STATE,
              "the ranks of this parameter server did not meet when they were to: end the program, "
              "and go on from a checkpoint");
    return ISO_OK;
}

// Servers begin with the parameters, which all ranks have.
static iso_status fill_copy(iso__periodic *p) {
    iso__worker *w = p->worker;
    iso__server_part own = iso__server_shard(w->server, iso_comm_rank(p->comm));
    size_t f64 = iso__flat_f64(iso__periodic_flat(p, 0, p->parameter_count));
    ISO_TRY(iso__periodic_fetch(p, 0, p->parameter_count, p->sent));
    for (int k = 0; k < 2; k++)
        if (own.count[k] > 0)
            memcpy(iso__server_copy(w->server, k),
                   (char *)p->sent + (k ? f64 : 0) + bytes_of(k, own.first[k]),
                   bytes_of(k, own.count[k]));
    return ISO_OK;
}

iso_status iso__worker_begin(iso__periodic *p) {
    iso__worker *w = p->worker;
    if (!w || w->open) return ISO_OK;
    ISO_TRY(check_lost(w));
    p->async.apart = true;
    if (p->equal) ISO_TRY(fill_copy(p));
    for (int r = 0; r < iso_comm_size(p->comm); r++) w->pushed_at[r] = p->async.step;
    ISO_TRY(iso__server_open(w->server));
    w->open = true;
    serve_aside_too(p, true);
    return ISO_OK;
}

// ---- Where ranks meet -------------------------------------------------------------------------------

// A rank that fails alone pushes nothing, but takes part: the others wait for its push, and learn
// of its error where they have met.
static iso_status clear_changes(iso__periodic *p, int rank) {
    iso__server *server = p->worker->server;
    iso__server_part shard = iso__server_shard(server, rank);
    for (int k = 0; k < 2; k++)
        if (shard.count[k] > 0)
            memset(iso__server_changes(server, rank, k), 0, bytes_of(k, shard.count[k]));
    return ISO_OK;
}

static iso_status meet_ranks(iso__periodic *p, bool failed, iso_status *mine) {
    iso__worker *w = p->worker;
    if (iso__events_repeat(&w->events)) ISO_TRY(repeat_events(p));
    ISO_TRY(iso__server_gather(w->server, &failed));
    iso_status status = pull_all(p, ISO__SERVER_WAIT_SERVING);
    if (status == ISO_ERR_TIMEOUT || status == ISO_ERR_MPI) return status;
    if (status == ISO_OK && !failed) status = for_each_shard(p, make_changes);
    if (status == ISO_OK && !failed) status = for_each_shard(p, keep_changes);
    if (status < 0) *mine = status;
    if (*mine < 0) ISO_TRY(for_each_shard(p, clear_changes));
    ISO_TRY(iso__server_finish(w->server, failed));
    return failed ? ISO_OK : for_each_shard(p, merge_answer);
}

static iso_status meet_workers(iso__periodic *p) {
    iso__worker *w = p->worker;
    iso_traffic before;
    int64_t began = iso_now();
    if (iso__comm_is_finalized(p->comm)) return ISO_OK;
    ISO_TRY(check_lost(w));
    if (!w->open) return ISO_OK;
    w->open = p->async.apart = false;
    serve_aside_too(p, false);
    p->last_step_ns = 0; // this wait is not part of a step
    iso__server_traffic(w->server, &before);
    iso_status mine = for_each_shard(p, look_at);
    w->meets = true;
    iso_status status = meet_ranks(p, mine < 0, &mine);
    w->meets = false;
    w->lost = status < 0; // a rank has not come, or MPI failed
    ISO_TRY(status);
    count_traffic(p, &before);
    p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
    p->stats.wait_ms += p->last_wait_ms;
    ISO_TRY(iso_comm_agree(p->comm, mine));
    p->equal = p->node_equal = true;
    return iso__events_tell(&w->events, p);
}

static iso_status meet_if_due(iso__periodic *p) {
    iso__worker *w = p->worker;
    int own = iso_comm_rank(p->comm);
    if (p->async.step - w->pushed_at[own] < w->period) return ISO_OK;
    ISO_TRY(meet_workers(p));
    p->stats.syncs++;
    p->stats.last_wait_ms = p->last_wait_ms;
    return ISO_OK;
}

iso_status iso__worker_step(iso__periodic *p, int64_t step) {
    iso__worker *w = p->worker;
    p->async.step = step;
    if (!w) return ISO_OK;
    return w->together ? meet_if_due(p) : exchange_alone(p);
}

iso_status iso__worker_end(iso__periodic *p, int64_t step) {
    p->async.step = step;
    return p->worker ? meet_workers(p) : ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

bool iso__worker_pending(const iso__periodic *p) {
    bool any = false;
    for (int r = 0; p->worker && r < iso_comm_size(p->comm); r++)
        any = any || iso__server_is_asked(p->worker->server, r);
    return any;
}

iso_status iso__worker_state(iso__periodic *p, iso_state *state) {
    p->saved.servers = p->config.servers;
    if (p->config.servers == 0) return ISO_OK;
    return iso__state_add_own(state, ISO_OWN_REFUSED, "daso/servers", ISO_STATE_I64, 1,
                              &p->saved.servers);
}

iso_status iso__worker_loaded(const iso__periodic *p) {
    ISO_CHECK(p->saved.servers == p->config.servers, ISO_ERR_MISMATCH,
              "the state was saved by a parameter server with %lld rank%s that only served, and "
              "this one has %d: continue with the same settings",
              (long long)p->saved.servers, ISO_PLURAL(p->saved.servers), p->config.servers);
    return ISO_OK;
}

iso_status iso__worker_check_reset(const iso__periodic *p) {
    ISO_CHECK(p->config.servers == 0, ISO_ERR_UNSUPPORTED,
              "a parameter server with ranks that only serve cannot be reset, as these have no "
              "optimizer state: create a new optimizer");
    return ISO_OK;
}

void iso__worker_continue(iso__periodic *p) {
    if (p->worker) iso__events_continue(&p->worker->events, p->async.step);
}

static iso_status allocate_worker(iso__periodic *p, const iso_daso_config *config) {
    size_t ranks = (size_t)iso_comm_size(p->comm);
    ISO_TRY(iso__alloc_zero(sizeof(*p->worker), (void **)&p->worker));
    iso__worker *w = p->worker;
    w->period = config->global_skip;
    w->together = config->push == ISO_PUSH_SYNC;
    w->scale = config->push_scale > 0 ? config->push_scale : 1.0 / iso__periodic_trainers(p);
    ISO_TRY(iso__alloc_zero(ranks * sizeof(*w->pushed_at), (void **)&w->pushed_at));
    return iso__events_open(&w->events, config, p);
}

// A rank that only serves computes no batches, so it has no batch statistics, and buffers cannot be
// synchronised at each batch.
static iso_status divide_ranks(iso__periodic *p) {
    iso__buffer_sync *buffers = iso__data_parallel_buffers(p->data_parallel);
    iso_buffer_when when = buffers->config.when;
    ISO_CHECK(
        !iso__comm_is_idle(p->comm), ISO_ERR_STATE,
        "the ranks that only serve do so for one parameter server of a communicator: give this "
        "one a communicator of its own");
    ISO_CHECK(when == ISO_BUFFERS_AT_EVALUATION || when == ISO_BUFFERS_ON_CALL, ISO_ERR_UNSUPPORTED,
              "a parameter server with ranks that only serve synchronises buffers at evaluations "
              "or on call: set buffers.when so");
    p->serves = iso__server_serves(p->worker->server, iso_comm_rank(p->comm));
    iso__buffer_sync_weigh(buffers, !p->serves, iso__periodic_trainers(p), 0);
    serve_aside_too(p, false);
    return ISO_OK;
}

static void join_ranks(iso__periodic *p) {
    iso__buffer_sync *buffers = iso__data_parallel_buffers(p->data_parallel);
    iso__buffer_sync_weigh(buffers, 1, iso_comm_size(p->comm), 0);
    if (p->serves) iso__comm_set_idle(p->comm, (iso__idle){0});
}

iso_status iso__worker_open(iso__periodic *p, const iso_daso_config *config) {
    iso__flat size = iso__periodic_flat(p, 0, p->parameter_count);
    if (iso_comm_size(p->comm) == 1) return ISO_OK; // nobody to share with
    ISO_TRY(iso_comm_agree(p->comm, allocate_worker(p, config)));
    iso__worker *w = p->worker;
    ISO_TRY(iso__events_agree(&w->events, p));
    ISO_TRY(iso__comm_create_like(p->comm, iso_comm_mpi(p->comm), false, &w->comm));
    ISO_TRY(iso_comm_agree(w->comm, iso__comm_place_subset(w->comm, p->layout->world)));
    ISO_TRY(iso__server_create(w->comm, config->servers, size, note_served, p, &w->server));
    p->async = (iso__async){.meet = meet_workers};
    return config->servers > 0 ? iso_comm_agree(p->comm, divide_ranks(p)) : ISO_OK;
}

void iso__worker_close(iso__periodic *p) {
    iso__worker *w = p->worker;
    if (!w) return;
    if (p->config.servers > 0) join_ranks(p);
    iso__server_destroy(&w->server);
    iso_comm_destroy(&w->comm);
    iso__events_close(&w->events);
    iso__free(w->pushed_at);
    iso__free(w);
    p->worker = NULL;
}
