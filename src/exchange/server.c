// SPDX-License-Identifier: MIT
// An asynchronous parameter server whose shards are on several ranks; see server.h.
#include "exchange/server.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"

#include <stdio.h>
#include <string.h>

enum { PUSH = 1, ANSWER = 2 };              // tags
enum { HEADER = 64, UNIT = 64, NAME = 48 }; // bytes

// A message: whether it is the last push before ranks part, then the elements of a shard.
typedef struct header {
    int64_t last;
} header;

// Another rank: as a worker, whose pushes this rank serves, and as the server of its shard.
typedef struct peer {
    char *room, *changes, *answer; // messages
    iso_request *push, *answered;  // into `room`, from `room`
    iso_request *pushed, *pull;    // from `changes`, into `answer`
    bool last, asked;              // `room` has its last push; a push to it is under way
    bool awaited;                  // this rank waits for its push
    char push_name[NAME], answer_name[NAME];
} peer;

struct iso__server {
    iso_comm *comm;
    iso__flat size;
    int first;       // rank that serves, and all that follow it
    size_t share[2]; // elements of a shard
    size_t bytes;    // of a message
    char *copy;      // a message, too
    peer *peer;      // [ranks]
    double *arrival; // whether a rank failed; then filling
    iso_request *gathers;
    bool open;
    void (*served)(int rank, void *user);
    void *user;
    iso_status status; // of serving while it waits
    iso_traffic traffic;
};

// ---- Memory -----------------------------------------------------------------------------------------

static size_t size_of(bool f64) { return f64 ? sizeof(double) : sizeof(float); }

static char *elements_in(const iso__server *s, char *message, bool f64) {
    size_t f32 = iso__round_up(s->share[0] * sizeof(float), UNIT);
    return message + HEADER + (f64 ? f32 : 0);
}

static void choose_sizes(iso__server *s) {
    size_t shards = (size_t)(iso_comm_size(s->comm) - s->first);
    s->share[0] = (s->size.f32 + shards - 1) / shards;
    s->share[1] = (s->size.f64 + shards - 1) / shards;
    s->bytes = HEADER;
    for (int k = 0; k < 2; k++) s->bytes += iso__round_up(s->share[k] * size_of(k), UNIT);
}

bool iso__server_serves(const iso__server *s, int rank) { return rank >= s->first; }

static bool is_self(const iso__server *s, int rank) { return rank == iso_comm_rank(s->comm); }

static bool self_serves(const iso__server *s) {
    return iso__server_serves(s, iso_comm_rank(s->comm));
}

// Such a rank has no other work than to wait and to serve.
static bool only_serves(const iso__server *s) { return s->first > 0 && self_serves(s); }

static iso_status allocate_peer(iso__server *s, int rank) {
    peer *p = &s->peer[rank];
    bool serves = iso__server_serves(s, rank), other = !is_self(s, rank);
    snprintf(p->push_name, NAME, "changes of rank %d", rank);
    snprintf(p->answer_name, NAME, "parameters of rank %d", rank);
    if (serves) ISO_TRY(iso__alloc_zero(s->bytes, (void **)&p->changes));
    if (serves && other) ISO_TRY(iso__alloc_zero(s->bytes, (void **)&p->answer));
    return self_serves(s) && other ? iso__alloc_zero(s->bytes, (void **)&p->room) : ISO_OK;
}

static iso_status allocate_server(iso__server *s) {
    size_t numbers = iso__comm_reduction_room(s->comm, 1);
    int ranks = iso_comm_size(s->comm);
    ISO_TRY(iso__alloc_zero(numbers * sizeof(double), (void **)&s->arrival));
    ISO_TRY(iso__alloc_zero((size_t)ranks * sizeof(*s->peer), (void **)&s->peer));
    if (self_serves(s)) ISO_TRY(iso__alloc_zero(s->bytes, (void **)&s->copy));
    for (int r = 0; r < ranks; r++) ISO_TRY(allocate_peer(s, r));
    return ISO_OK;
}

iso_status iso__server_create(iso_comm *comm, int servers, iso__flat size,
                              void (*served)(int rank, void *user), void *user, iso__server **out) {
    void *memory;
    ISO_TRY(iso__comm_alloc_zero(comm, sizeof(iso__server), &memory));
    iso__server *s = memory;
    *s = (iso__server){.comm = iso_comm_retain(comm),
                       .size = size,
                       .first = servers > 0 ? iso_comm_size(comm) - servers : 0,
                       .served = served,
                       .user = user};
    choose_sizes(s);
    // A rank that failed alone would leave the others waiting for its answers.
    iso_status status = iso_comm_agree(comm, allocate_server(s));
    if (status < 0) iso__server_destroy(&s);
    ISO_TRY(status);
    *out = s;
    return ISO_OK;
}

// Whether MPI may still use the memory, which must then stay.
static bool is_under_way(const iso__server *s) {
    bool any = s->gathers != NULL;
    for (int r = 0; s->peer && r < iso_comm_size(s->comm); r++) {
        const peer *p = &s->peer[r];
        any = any || p->push || p->answered || p->pushed || p->pull;
    }
    return any;
}

void iso__server_destroy(iso__server **pointer) {
    iso__server *s = *pointer;
    *pointer = NULL;
    if (!s || is_under_way(s)) return;
    for (int r = 0; s->peer && r < iso_comm_size(s->comm); r++) {
        iso__free(s->peer[r].room);
        iso__free(s->peer[r].changes);
        iso__free(s->peer[r].answer);
    }
    iso__free(s->peer);
    iso__free(s->copy);
    iso__free(s->arrival);
    iso_comm_destroy(&s->comm);
    iso__free(s);
}

// ---- Shards -----------------------------------------------------------------------------------------

iso__server_part iso__server_shard(const iso__server *s, int rank) {
    iso__server_part shard = {{0}, {0}};
    for (int k = 0; k < 2 && iso__server_serves(s, rank); k++) {
        size_t all = k ? s->size.f64 : s->size.f32;
        size_t first = (size_t)(rank - s->first) * s->share[k];
        shard.first[k] = first < all ? first : all;
        size_t left = all - shard.first[k];
        shard.count[k] = left < s->share[k] ? left : s->share[k];
    }
    return shard;
}

void *iso__server_copy(const iso__server *s, bool f64) { return elements_in(s, s->copy, f64); }

void *iso__server_changes(const iso__server *s, int rank, bool f64) {
    return elements_in(s, s->peer[rank].changes, f64);
}

const void *iso__server_answer(const iso__server *s, int rank, bool f64) {
    return elements_in(s, is_self(s, rank) ? s->copy : s->peer[rank].answer, f64);
}

void iso__server_traffic(const iso__server *s, iso_traffic *out) { *out = s->traffic; }

// ---- Serving ----------------------------------------------------------------------------------------

// The header does not count as traffic.
static iso_status send_message(iso__server *s, int to, const char *from, int tag, const char *name,
                               iso_request **out) {
    iso__message m = {.send = from, .bytes = s->bytes, .with = to, .tag = tag};
    ISO_TRY(iso__comm_imessage(s->comm, &m, name, out));
    iso__count_message(&s->traffic, s->comm, to, s->bytes - HEADER);
    return ISO_OK;
}

static iso_status receive_message(iso__server *s, int from, char *to, int tag, const char *name,
                                  iso_request **out) {
    iso__message m = {.recv = to, .bytes = s->bytes, .with = from, .tag = tag};
    return iso__comm_imessage(s->comm, &m, name, out);
}

static void add_changes(iso__server *s, char *changes) {
    iso__server_part own = iso__server_shard(s, iso_comm_rank(s->comm));
    const float *d = (const void *)elements_in(s, changes, false);
    const double *e = (const void *)elements_in(s, changes, true);
    float *x = iso__server_copy(s, false);
    double *y = iso__server_copy(s, true);
    for (size_t i = 0; i < own.count[0]; i++) x[i] += d[i];
    for (size_t i = 0; i < own.count[1]; i++) y[i] += e[i];
}

static iso_status answer_worker(iso__server *s, int rank) {
    peer *p = &s->peer[rank];
    memcpy(p->room, s->copy, s->bytes);
    return send_message(s, rank, p->room, ANSWER, p->answer_name, &p->answered);
}

static bool serve_meanwhile(void *server) { return iso__server_serve_aside(server); }

static iso_status complete_request(iso__server *s, iso_request **request, iso__server_wait how) {
    if (how == ISO__SERVER_TEST) return iso__request_test(request, NULL);
    if (how == ISO__SERVER_WAIT) return iso_request_wait(request);
    const iso__idle idle = {serve_meanwhile, s, only_serves(s)};
    ISO_TRY(iso__request_wait_idle(request, &idle));
    return s->status;
}

// ISO_OK: a push is in `room`.
static iso_status receive_push(iso__server *s, int rank, iso__server_wait how) {
    peer *p = &s->peer[rank];
    iso_status status = complete_request(s, &p->answered, how); // the room is free
    if (status != ISO_OK) return status;
    if (!p->push) ISO_TRY(receive_message(s, rank, p->room, PUSH, p->push_name, &p->push));
    return complete_request(s, &p->push, how);
}

iso_status iso__server_serve(iso__server *s, int rank, iso__server_wait how) {
    peer *p = &s->peer[rank];
    bool expects = self_serves(s) && !is_self(s, rank) && s->open;
    if (!expects || p->last || p->awaited) return ISO_PENDING;
    p->awaited = how != ISO__SERVER_TEST; // meanwhile its requests stay as they are
    iso_status status = receive_push(s, rank, how);
    p->awaited = false;
    ISO_TRY(status);
    if (status != ISO_OK) return status;
    p->last = ((const header *)(const void *)p->room)->last;
    if (p->last) return ISO_PENDING;
    add_changes(s, p->room);
    if (s->served) s->served(rank, s->user);
    return answer_worker(s, rank);
}

iso_status iso__server_serve_all(iso__server *s) {
    ISO_TRY(s->status);
    for (int r = 0; r < iso_comm_size(s->comm); r++)
        ISO_TRY(iso__server_serve(s, r, ISO__SERVER_TEST));
    return ISO_OK;
}

bool iso__server_serve_aside(iso__server *s) {
    long long before = s->traffic.bytes_sent;
    if (s->status == ISO_OK) s->status = iso__server_serve_all(s);
    return s->status == ISO_OK && s->traffic.bytes_sent > before;
}

iso_status iso__server_open(iso__server *s) {
    if (s->open) return ISO_OK;
    s->open = true;
    for (int r = 0; r < iso_comm_size(s->comm); r++) {
        peer *p = &s->peer[r];
        p->last = false;
        if (is_self(s, r) || !self_serves(s) || p->push) continue;
        ISO_TRY(receive_message(s, r, p->room, PUSH, p->push_name, &p->push));
    }
    return ISO_OK;
}

// ---- Pushing ----------------------------------------------------------------------------------------

bool iso__server_is_asked(const iso__server *s, int rank) { return s->peer[rank].asked; }

static iso_status push_changes(iso__server *s, int rank, bool last) {
    peer *p = &s->peer[rank];
    ((header *)(void *)p->changes)->last = last;
    ISO_TRY(receive_message(s, rank, p->answer, ANSWER, p->answer_name, &p->pull));
    p->asked = true;
    return send_message(s, rank, p->changes, PUSH, p->push_name, &p->pushed);
}

iso_status iso__server_push(iso__server *s, int rank) {
    ISO_CHECK(!s->peer[rank].asked, ISO_ERR_STATE, "a push to rank %d is under way already", rank);
    if (!is_self(s, rank)) return push_changes(s, rank, false);
    add_changes(s, s->peer[rank].changes);
    return ISO_OK;
}

// The answer shows that the push has arrived, so the wait for the push's request is short.
static iso_status finish_pull(iso__server *s, int rank) {
    s->peer[rank].asked = false;
    ISO_TRY(iso_request_wait(&s->peer[rank].pushed));
    return ISO_OK;
}

iso_status iso__server_pull(iso__server *s, int rank, iso__server_wait how) {
    peer *p = &s->peer[rank];
    if (!p->asked) return ISO_PENDING;
    iso_status status = complete_request(s, &p->pull, how);
    ISO_TRY(status);
    return status == ISO_OK ? finish_pull(s, rank) : status;
}

// ---- Where ranks meet -------------------------------------------------------------------------------

iso_status iso__server_gather(iso__server *s, bool *failed) {
    int count = (int)iso__comm_reduction_room(s->comm, 1);
    s->arrival[0] = *failed;
    ISO_TRY(iso__comm_iallreduce_max(s->comm, s->arrival, count, "parameter server: all ranks meet",
                                     &s->gathers));
    ISO_TRY(complete_request(s, &s->gathers, ISO__SERVER_WAIT_SERVING));
    *failed = s->arrival[0] > 0;
    return ISO_OK;
}

// Serves a rank until its last push is here. Until then the rank may wait for answers.
static iso_status await_last(iso__server *s, int rank) {
    while (!s->peer[rank].last) ISO_TRY(iso__server_serve(s, rank, ISO__SERVER_WAIT_SERVING));
    return ISO_OK;
}

static iso_status add_all(iso__server *s, bool failed) {
    if (!self_serves(s)) return ISO_OK;
    for (int r = 0; r < iso_comm_size(s->comm); r++)
        if (!failed) add_changes(s, is_self(s, r) ? s->peer[r].changes : s->peer[r].room);
    for (int r = 0; r < iso_comm_size(s->comm); r++)
        if (!is_self(s, r)) ISO_TRY(answer_worker(s, r));
    return ISO_OK;
}

iso_status iso__server_finish(iso__server *s, bool failed) {
    int ranks = iso_comm_size(s->comm);
    for (int r = s->first; r < ranks; r++)
        if (!is_self(s, r)) ISO_TRY(push_changes(s, r, true));
    for (int r = 0; self_serves(s) && r < ranks; r++)
        if (!is_self(s, r)) ISO_TRY(await_last(s, r));
    s->open = false;
    ISO_TRY(add_all(s, failed));
    for (int r = 0; r < ranks; r++) {
        if (is_self(s, r)) continue;
        ISO_TRY(iso__server_pull(s, r, ISO__SERVER_WAIT));
        ISO_TRY(iso_request_wait(&s->peer[r].answered));
    }
    return ISO_OK;
}
