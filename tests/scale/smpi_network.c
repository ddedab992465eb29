// SPDX-License-Identifier: MIT
// The network of a simulated run. SMPI has messages of its own, but each one changes the rates of
// all others, so that a step takes time with the square of the ranks. Here a message costs the
// same on any number of ranks.
//
// A host has one link in each direction. A message takes the sender's link for its bytes, reaches
// the receiver's link after the latency, and takes that too. The messages of a link follow each
// other, as through TCP, in the order in which they were sent, or reached it. A message starts when
// it is sent, whether it is awaited or not. Messages within a host do not hinder each other.
//
// Events move the messages, at alarms between the turns of the ranks. All ranks are one process and
// share one network; another one runs only when one calls SimGrid.
#include "smpi_model.h"

#include <simgrid/engine.h>
#include <simgrid/semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS ((size_t)1 << 20)
#define INSTANT 1e-9 // SimGrid's times are as exact as that
#define NEVER   1e99

// A message, or a receive that has no message yet.
typedef struct message {
    struct message *next;   // in its bucket
    struct message *behind; // on its link, which it waits for, and then on the receiver's
    const model_group *group;
    int seq, tag, from, to, bytes;
    char *at, *values;    // at: where to; values: a copy, NULL if they do not matter
    double end;           // when it has arrived
    int *sent, *received; // count down; received: NULL as long as it is not awaited
} message;

// In one direction, with the messages that have not begun (out), or not arrived (in).
typedef struct cable {
    message *first, *last;
    double free_at;
} cable;

typedef struct seat {
    sg_sem_t wake;
    bool waits, rings; // rings: it will be woken
    bool news;         // all messages of a round have become complete since it looked last
    double bytes;      // of messages that have been sent or received since
} seat;

typedef enum event_kind { BEGINS, ARRIVES, ARRIVES_WITHIN, WAKES } event_kind;

typedef struct event {
    double time;
    uint64_t number; // equal times: the order of making
    event_kind kind;
    int place;     // the host whose first message it is, or a rank
    message *only; // of ARRIVES_WITHIN
} event;

static struct network {
    int ranks, each; // each: ranks of a host
    double rate, latency, node_rate, node_latency;
    cable *out, *in; // of each host
    seat *seat;      // of each rank
    event *heap;
    int events, room;
    uint64_t made;
    double alarm; // when the next event is due
    message **bucket, *spare;
    model_group *groups;
} * net;
static int me;
static void move_messages(void);

// ---- Events: a heap -------------------------------------------------------------------------------

static bool comes_before(const event *a, const event *b) {
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

static void add_event(double time, event_kind kind, int place, message *only) {
    if (net->events == net->room) {
        net->room = net->room ? 2 * net->room : 1024;
        net->heap = realloc(net->heap, (size_t)net->room * sizeof(*net->heap));
    }
    event fresh = {time, net->made++, kind, place, only};
    int i = net->events++;
    for (; i > 0 && comes_before(&fresh, &net->heap[(i - 1) / 2]); i = (i - 1) / 2)
        net->heap[i] = net->heap[(i - 1) / 2];
    net->heap[i] = fresh;
    if (time >= net->alarm) return;
    net->alarm = time;
    model_set_alarm(time, move_messages);
}

static event take_event(void) {
    event first = net->heap[0], last = net->heap[--net->events];
    int i = 0;
    for (int child; (child = 2 * i + 1) < net->events; i = child) {
        if (child + 1 < net->events && comes_before(&net->heap[child + 1], &net->heap[child]))
            child++;
        if (!comes_before(&net->heap[child], &last)) break;
        net->heap[i] = net->heap[child];
    }
    net->heap[i] = last;
    return first;
}

// ---- Links ----------------------------------------------------------------------------------------

static int host_of(int rank) { return rank / net->each; }

// Returns whether it is the first.
static bool append_message(cable *l, message *m) {
    m->behind = NULL;
    if (l->first)
        l->last->behind = m;
    else
        l->first = m;
    l->last = m;
    return l->first == m;
}

static message *take_first(cable *l) {
    message *m = l->first;
    l->first = m->behind;
    return m;
}

// Messages reach the other link in the order in which they begin: the latency is the same for all.
static void begin_message(message *m, double now) {
    int to = host_of(m->to);
    cable *in = &net->in[to];
    double needs = m->bytes / net->rate, reaches = now + net->latency;
    net->out[host_of(m->from)].free_at = now + needs;
    m->end = in->free_at = (reaches > in->free_at ? reaches : in->free_at) + needs;
    if (append_message(in, m)) add_event(m->end, ARRIVES, to, NULL);
}

static void begin_first(int host, double now) {
    cable *out = &net->out[host];
    begin_message(take_first(out), now);
    if (out->first) add_event(out->free_at, BEGINS, host, NULL);
}

static void start_message(message *m) {
    double now = simgrid_get_clock();
    int from = host_of(m->from);
    cable *out = &net->out[from];
    if (from == host_of(m->to))
        add_event(now + net->node_latency + m->bytes / net->node_rate, ARRIVES_WITHIN, from, m);
    else if (!out->first && out->free_at <= now + INSTANT)
        begin_message(m, now);
    else if (append_message(out, m))
        add_event(out->free_at, BEGINS, from, NULL);
}

// ---- Arrival --------------------------------------------------------------------------------------

static void wake_rank(int rank) {
    seat *s = &net->seat[rank];
    s->rings = false;
    if (!s->waits) return;
    s->waits = false;
    sg_sem_release(s->wake);
}

// A waiting rank sees what has arrived when it has woken up, and what it has sent at once.
static void note_message(int rank, int bytes, int *left, bool arrived) {
    seat *s = &net->seat[rank];
    s->bytes += bytes;
    if (--*left > 0) return;
    s->news = true;
    if (!s->waits || s->rings) return;
    s->rings = true;
    add_event(simgrid_get_clock() + (arrived ? model_costs()->wake_ns * 1e-9 : 0), WAKES, rank,
              NULL);
}

static void free_message(message *m) {
    free(m->values);
    m->next = net->spare;
    net->spare = m;
}

static void hand_over(message *m) {
    if (m->values) memcpy(m->at, m->values, (size_t)m->bytes);
    note_message(m->to, m->bytes, m->received, true);
    free_message(m);
}

// One that is not awaited yet stays in its bucket.
static void complete_message(message *m) {
    note_message(m->from, m->bytes, m->sent, false);
    m->sent = NULL;
    if (m->received) hand_over(m);
}

static void arrive_first(int host) {
    message *m = take_first(&net->in[host]);
    if (net->in[host].first) add_event(net->in[host].first->end, ARRIVES, host, NULL);
    complete_message(m);
}

static void handle_event(const event *e) {
    switch (e->kind) {
    case BEGINS: begin_first(e->place, e->time); break;
    case ARRIVES: arrive_first(e->place); break;
    case ARRIVES_WITHIN: complete_message(e->only); break;
    case WAKES: wake_rank(e->place); break;
    }
}

// An alarm that is followed by an earlier one finds nothing to do.
static void move_messages(void) {
    double now = simgrid_get_clock();
    if (net->alarm > now + INSTANT) return;
    while (net->events > 0 && net->heap[0].time <= now + INSTANT) {
        event e = take_event();
        handle_event(&e);
    }
    net->alarm = NEVER;
    if (net->events == 0) return;
    net->alarm = net->heap[0].time;
    model_set_alarm(net->alarm, move_messages);
}

// ---- Set-up ---------------------------------------------------------------------------------------

static double read_setting(const char *name) {
    const char *text = getenv(name);
    if (!text) fprintf(stderr, "%s is not set: use simulate.sh\n", name), abort();
    return atof(text);
}

static void *make_network(void) {
    struct network *fresh = calloc(1, sizeof(*fresh));
    MPI_Comm_size(MPI_COMM_WORLD, &fresh->ranks);
    fresh->each = (int)read_setting("ISO_TEST_SIM_EACH");
    fresh->rate = read_setting("ISO_TEST_SIM_RATE");
    fresh->latency = read_setting("ISO_TEST_SIM_LATENCY_US") * 1e-6;
    fresh->node_rate = read_setting("ISO_TEST_SIM_NODE_RATE");
    fresh->node_latency = read_setting("ISO_TEST_SIM_NODE_LATENCY_US") * 1e-6;
    size_t hosts = (size_t)(fresh->ranks / fresh->each), ranks = (size_t)fresh->ranks;
    fresh->out = calloc(hosts, sizeof(*fresh->out));
    fresh->in = calloc(hosts, sizeof(*fresh->in));
    fresh->seat = calloc(ranks, sizeof(*fresh->seat));
    for (size_t r = 0; r < ranks; r++) fresh->seat[r].wake = sg_sem_init(0);
    fresh->bucket = calloc(BUCKETS, sizeof(*fresh->bucket));
    fresh->alarm = NEVER;
    return fresh;
}

// Every rank has variables of its own: the first one leaves the address to the others.
static void find_network(void) {
    if (net) return;
    const char *known = getenv("ISO_TEST_SIM_NETWORK");
    void *found = NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (known && sscanf(known, "%p", &found) == 1) {
        net = found;
        return;
    }
    char text[32];
    net = make_network();
    snprintf(text, sizeof(text), "%p", (void *)net);
    setenv("ISO_TEST_SIM_NETWORK", text, 1);
}

model_group **model_groups(void) {
    find_network();
    return &net->groups;
}

// ---- Sending and receiving ------------------------------------------------------------------------

static message **bucket_of(const message *m) {
    uint64_t hash = (uint64_t)(uintptr_t)m->group + (uint64_t)m->seq * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (uint64_t)m->tag) * 0xff51afd7ed558ccdu;
    hash = (hash ^ hash >> 32 ^ (uint64_t)m->from << 20 ^ (uint64_t)m->to) * 0xc4ceb9fe1a85ec53u;
    return &net->bucket[(hash ^ hash >> 32) % BUCKETS];
}

static bool match_keys(const message *a, const message *b) {
    return a->group == b->group && a->seq == b->seq && a->tag == b->tag && a->from == b->from &&
           a->to == b->to;
}

// Takes the counterpart of m that came first out of the bucket. NULL: there is none, m is in it
// now.
static message *take_partner(message *m) {
    message **place = bucket_of(m);
    for (; *place; place = &(*place)->next) {
        message *other = *place;
        if (!match_keys(other, m) || !other->received == !m->received) continue;
        *place = other->next;
        return other;
    }
    m->next = NULL;
    *place = m;
    return NULL;
}

static void pair_message(message *m, char *at, int *received) {
    m->at = at, m->received = received;
}

static message *make_message(const model_comm *c, int from, int to, int tag, int bytes) {
    message *m = net->spare;
    if (m)
        net->spare = m->next;
    else
        m = malloc(sizeof(*m));
    *m = (message){.group = c->group, .seq = c->seq, .tag = tag, .bytes = bytes};
    m->from = c->group->world[from], m->to = c->group->world[to];
    return m;
}

void model_send(const void *at, int bytes, int to, int tag, const model_comm *comm, int *left) {
    message *m = make_message(comm, comm->rank, to, tag, bytes);
    m->sent = left;
    ++*left;
    if (bytes > 0 && !model_is_modelled(at))
        m->values = memcpy(malloc((size_t)bytes), at, (size_t)bytes);
    message *awaited = take_partner(m);
    if (awaited) {
        pair_message(m, awaited->at, awaited->received);
        free_message(awaited);
    }
    start_message(m);
}

void model_receive(void *at, int bytes, int from, int tag, const model_comm *comm, int *left) {
    message *m = make_message(comm, from, comm->rank, tag, bytes);
    m->at = at, m->received = left;
    ++*left;
    message *sent = take_partner(m);
    if (!sent) return;
    pair_message(sent, at, left);
    free_message(m);
    if (!sent->sent) hand_over(sent);
}

// ---- Looking --------------------------------------------------------------------------------------

double model_look(void) {
    find_network();
    seat *s = &net->seat[me];
    double bytes = s->bytes;
    s->bytes = 0;
    s->news = false;
    return bytes;
}

void model_wait(void) {
    seat *s = &net->seat[me];
    if (s->news) return;
    s->waits = true;
    sg_sem_acquire(s->wake);
}
