// SPDX-License-Identifier: MIT
// Non-blocking collectives under SimGrid's SMPI, as Open MPI's libnbc makes them: each is a list of
// sends, receives and sums in rounds, and a round begins only when a call of this rank has found
// the one before complete. SMPI's own would send all messages at once, whoever calls MPI.
//
// The linker puts these functions in place of MPI's (--wrap), so the library is simulated as it is.
// Of one rank: SMPI gives every rank variables of its own.
#include "smpi_model.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum step_kind { SEND, RECV, SUM, ROUND } step_kind;

typedef struct step {
    step_kind kind;
    char *at, *from; // from: of a sum
    int count, peer; // count: bytes, but of a sum elements
} step;

typedef struct schedule {
    model_comm comm; // as it was at the start
    MPI_Datatype type;
    MPI_Op op;
    int tag;
    step *step;
    int count, room, at;
    int left; // messages of the round under way
    void *scratch;
    bool complete;
    struct schedule *next; // of those that are not complete
} schedule;

static schedule *active;
static bool computed; // since it looked last
static double unpaid; // bytes of messages that have become complete, and held up no kernel yet

// ---- Building -------------------------------------------------------------------------------------

static schedule *begin_schedule(MPI_Comm comm, MPI_Datatype type, MPI_Op op) {
    schedule *s = calloc(1, sizeof(*s));
    model_comm *c = model_find_comm(comm);
    s->tag = model_take_tag(c);
    s->comm = *c, s->type = type, s->op = op;
    return s;
}

static void add_step(schedule *s, step_kind kind, const void *at, int count, int peer) {
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 16;
        s->step = realloc(s->step, (size_t)s->room * sizeof(*s->step));
    }
    s->step[s->count++] = (step){kind, (char *)(uintptr_t)at, NULL, count, peer};
}

static void add_sum(schedule *s, const void *from, void *at, int count) {
    add_step(s, ROUND, NULL, 0, 0);
    add_step(s, SUM, at, count, 0);
    s->step[s->count - 1].from = (char *)(uintptr_t)from;
}

static void add_round(schedule *s) { add_step(s, ROUND, NULL, 0, 0); }

static int size_of(MPI_Datatype type) {
    int size;
    MPI_Type_size(type, &size);
    return size;
}

static char *after(void *at, MPI_Datatype type, int64_t count) {
    MPI_Aint low, extent;
    MPI_Type_get_extent(type, &low, &extent);
    return (char *)at + count * (int64_t)extent;
}

// ---- Progress -------------------------------------------------------------------------------------

static void start_message(schedule *s, const step *m) {
    if (m->kind == SEND)
        model_send(m->at, m->count, m->peer, s->tag, &s->comm, &s->left);
    else
        model_receive(m->at, m->count, m->peer, s->tag, &s->comm, &s->left);
}

static void run_sum(const schedule *s, const step *sum) {
    size_t bytes = (size_t)sum->count * (size_t)size_of(s->type);
    if (!model_is_modelled(sum->at))
        MPI_Reduce_local(sum->from, sum->at, sum->count, s->type, s->op);
    model_spend(model_costs()->sum_ns * (double)bytes);
}

static void finish_schedule(schedule *s) {
    s->complete = true;
    free(s->step);
    free(s->scratch);
}

// Posts rounds until one has to be waited for.
static void advance_schedule(schedule *s) {
    for (;;) {
        if (s->left > 0) return;
        if (s->at == s->count) break;
        for (; s->at < s->count && s->step[s->at].kind != ROUND; s->at++) {
            if (s->step[s->at].kind == SUM)
                run_sum(s, &s->step[s->at]);
            else
                start_message(s, &s->step[s->at]);
        }
        if (s->at < s->count) s->at++;
    }
    finish_schedule(s);
}

static void advance_all(void) {
    unpaid += model_look();
    if (computed) {
        double bytes = unpaid;
        computed = false, unpaid = 0;
        model_spend(model_costs()->byte_ns * bytes);
    }
    for (schedule **link = &active; *link;) {
        schedule *s = *link;
        advance_schedule(s);
        if (s->complete)
            *link = s->next;
        else
            link = &s->next;
    }
}

// ---- Requests -------------------------------------------------------------------------------------

static int start_schedule(schedule *s, MPI_Request *out) {
    schedule **end = &active;
    while (*end) end = &(*end)->next;
    *end = s;
    *out = (MPI_Request)((uintptr_t)s | 1);
    advance_all();
    return MPI_SUCCESS;
}

static schedule *schedule_of(MPI_Request request) {
    uintptr_t bits = (uintptr_t)request;
    return bits & 1 ? (schedule *)(bits - 1) : NULL;
}

static bool take_complete(MPI_Request *request) {
    schedule *s = schedule_of(*request);
    if (!s->complete) return false;
    free(s);
    *request = MPI_REQUEST_NULL;
    return true;
}

int __wrap_MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    (void)status;
    advance_all();
    *done = *request == MPI_REQUEST_NULL || take_complete(request);
    return MPI_SUCCESS;
}

int __wrap_MPI_Testsome(int count, MPI_Request *request, int *found, int *index,
                        MPI_Status *status) {
    (void)status;
    advance_all();
    int known = 0;
    *found = 0;
    for (int i = 0; i < count; i++) {
        if (request[i] == MPI_REQUEST_NULL) continue;
        known++;
        if (take_complete(&request[i])) index[(*found)++] = i;
    }
    if (known == 0) *found = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

// SMPI has none; the library asks only for questions of ranks that have waited long.
int __wrap_MPI_Improbe(int source, int tag, MPI_Comm comm, int *found, MPI_Message *message,
                       MPI_Status *status) {
    (void)source, (void)tag, (void)comm, (void)message, (void)status;
    *found = 0;
    return MPI_SUCCESS;
}

// A rank that waits calls this between two tests: until a message of its is complete, the tests
// would find nothing.
int __wrap_sched_yield(void) {
    if (!active) {
        model_spend(5000);
        return 0;
    }
    model_wait();
    advance_all();
    unpaid = 0; // they have held up nothing
    return 0;
}

// A kernel of the model.
int __real_smpi_nanosleep(const struct timespec *span, struct timespec *rest);
int __wrap_smpi_nanosleep(const struct timespec *span, struct timespec *rest) {
    computed = true;
    return __real_smpi_nanosleep(span, rest);
}

// ---- Messages -------------------------------------------------------------------------------------

static int start_single(step_kind kind, const void *at, int bytes, int peer, int tag, MPI_Comm comm,
                        MPI_Request *out) {
    schedule *s = calloc(1, sizeof(*s));
    s->comm = *model_find_comm(comm);
    s->tag = tag;
    add_step(s, kind, at, bytes, peer);
    return start_schedule(s, out);
}

int __wrap_MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request *out) {
    return start_single(SEND, at, count * size_of(type), to, tag, comm, out);
}

// That its end waits for the receiver does not change when data arrive: the window is longer than
// what is on its way.
int __wrap_MPI_Issend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                      MPI_Request *out) {
    return start_single(SEND, at, count * size_of(type), to, tag, comm, out);
}

int __wrap_MPI_Irecv(void *at, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                     MPI_Request *out) {
    return start_single(RECV, at, count * size_of(type), from, tag, comm, out);
}

// ---- Collectives ----------------------------------------------------------------------------------

// A token to the rank 1, 2, 4 ... further on.
int __wrap_MPI_Ibarrier(MPI_Comm comm, MPI_Request *out) {
    int rank, size;
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    schedule *s = begin_schedule(comm, MPI_BYTE, MPI_OP_NULL);
    s->scratch = calloc(2, 1);
    for (int far = 1; far < size; far *= 2) {
        add_step(s, RECV, s->scratch, 1, (rank - far + size) % size);
        add_step(s, SEND, (char *)s->scratch + 1, 1, (rank + far) % size);
        add_round(s);
    }
    return start_schedule(s, out);
}

// To up to 4 ranks the root sends itself; short messages take a tree, long ones a chain in pieces.
static void send_chain(schedule *s, char *data, int bytes, int from, int to) {
    int piece = bytes < 512 * 1024 ? 8192 : 32768, pieces = (bytes + piece - 1) / piece;
    for (int i = 0; i < pieces; i++) {
        int n = i < pieces - 1 ? bytes / pieces : bytes - bytes / pieces * (pieces - 1);
        char *at = data + (size_t)(bytes / pieces) * (size_t)i;
        if (from >= 0) add_step(s, RECV, at, n, from), add_round(s);
        if (to >= 0) add_step(s, SEND, at, n, to);
        if (to >= 0 && from < 0) add_round(s);
    }
}

static void send_tree(schedule *s, void *data, int bytes, int place, int root, int size) {
    int high = 1;
    while (high <= place) high *= 2; // this place hears from place - high / 2
    if (place > 0) {
        add_step(s, RECV, data, bytes, (place - high / 2 + root) % size);
        add_round(s);
    }
    for (; place + high < size; high *= 2)
        add_step(s, SEND, data, bytes, (place + high + root) % size);
}

int __wrap_MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm,
                      MPI_Request *out) {
    int rank, size, bytes = count * size_of(type);
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    int place = (rank - root + size) % size;
    schedule *s = begin_schedule(comm, type, MPI_OP_NULL);
    if (size <= 4) {
        for (int r = 0; r < size && rank == root; r++)
            if (r != root) add_step(s, SEND, data, bytes, r);
        if (rank != root) add_step(s, RECV, data, bytes, root);
    } else if (bytes < 65536) {
        send_tree(s, data, bytes, place, root, size);
    } else {
        send_chain(s, data, bytes, place > 0 ? (rank - 1 + size) % size : -1,
                   place < size - 1 ? (rank + 1) % size : -1);
    }
    return start_schedule(s, out);
}

// Every rank sends to every other, first to the next one: libnbc begins with rank 0, but its
// messages share the links, so that no rank gets all of them at once.
int __wrap_MPI_Iallgather(const void *send, int send_count, MPI_Datatype send_type, void *recv,
                          int count, MPI_Datatype type, MPI_Comm comm, MPI_Request *out) {
    (void)send_count, (void)send_type;
    int rank, size, bytes = count * size_of(type);
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    schedule *s = begin_schedule(comm, type, MPI_OP_NULL);
    char *own = after(recv, type, (int64_t)rank * count);
    if (send != MPI_IN_PLACE) memcpy(own, send, (size_t)bytes);
    for (int far = 1; far < size; far++) {
        int to = (rank + far) % size, from = (rank - far + size) % size;
        add_step(s, RECV, after(recv, type, (int64_t)from * count), bytes, from);
        add_step(s, SEND, own, bytes, to);
    }
    return start_schedule(s, out);
}

int __wrap_MPI_Ialltoall(const void *send, int send_count, MPI_Datatype send_type, void *recv,
                         int count, MPI_Datatype type, MPI_Comm comm, MPI_Request *out) {
    int rank, size, bytes = count * size_of(type);
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    void *from = (void *)(uintptr_t)send;
    schedule *s = begin_schedule(comm, type, MPI_OP_NULL);
    char *own = after(recv, type, (int64_t)rank * count);
    if (!model_is_modelled(own))
        memcpy(own, after(from, send_type, (int64_t)rank * send_count), (size_t)bytes);
    for (int far = 1; far < size; far++) {
        int to = (rank + far) % size, other = (rank - far + size) % size;
        add_step(s, RECV, after(recv, type, (int64_t)other * count), bytes, other);
        add_step(s, SEND, after(from, send_type, (int64_t)to * send_count), bytes, to);
    }
    return start_schedule(s, out);
}

int __wrap_MPI_Igather(const void *send, int send_count, MPI_Datatype send_type, void *recv,
                       int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *out) {
    int rank, size, bytes = send_count * size_of(send_type);
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    schedule *s = begin_schedule(comm, type, MPI_OP_NULL);
    if (rank != root) add_step(s, SEND, send, bytes, root);
    for (int r = 0; r < size && rank == root; r++)
        if (r != root) add_step(s, RECV, after(recv, type, (int64_t)r * count), bytes, r);
    if (rank == root) memcpy(after(recv, type, (int64_t)root * count), send, (size_t)bytes);
    return start_schedule(s, out);
}

// ---- All-reduce -----------------------------------------------------------------------------------

// What both ways know of themselves.
typedef struct reduction {
    schedule *s;
    char *data, *scratch;
    int count, unit, rank, size;
} reduction;

static void add_exchange(const reduction *r, int first, int n, int peer, step_kind kind) {
    char *at = (kind == RECV ? r->scratch : r->data) + (size_t)first * (size_t)r->unit;
    add_step(r->s, kind, at, n * r->unit, peer);
}

static void add_part(const reduction *r, int first, int n) {
    size_t offset = (size_t)first * (size_t)r->unit;
    add_sum(r->s, r->scratch + offset, r->data + offset, n);
    add_round(r->s);
}

static void receive_result(const reduction *r, int first, int n, int peer) {
    add_step(r->s, RECV, r->data + (size_t)first * (size_t)r->unit, n * r->unit, peer);
}

// Rabenseifner: halves are exchanged and summed with ranks 1, 2, 4 ... away, until each rank has a
// share of the sum; then the shares go back the same way. The ranks beyond a power of two (`extra`)
// leave their values with their left neighbour before, and get the result after.
static bool fold_extra(const reduction *r, int extra) {
    int left = r->count / 2, right = r->count - left;
    if (r->rank >= 2 * extra) return true;
    if (r->rank % 2) {
        add_exchange(r, 0, left, r->rank - 1, SEND);
        add_exchange(r, left, right, r->rank - 1, RECV);
        add_part(r, left, right);
        add_exchange(r, left, right, r->rank - 1, SEND);
        add_round(r->s);
        receive_result(r, 0, r->count, r->rank - 1);
        return false;
    }
    add_exchange(r, left, right, r->rank + 1, SEND);
    add_exchange(r, 0, left, r->rank + 1, RECV);
    add_part(r, 0, left);
    receive_result(r, left, right, r->rank + 1);
    add_round(r->s);
    return true;
}

typedef struct window {
    int send, send_count, keep, keep_count, peer;
} window;

static void halve_and_double(const reduction *r, int power, int extra) {
    window w[32];
    int depth = 0, first = 0, count = r->count;
    int place = r->rank < 2 * extra ? r->rank / 2 : r->rank - extra;
    for (int far = 1; far < power; far *= 2, depth++) {
        int other = place ^ far, peer = other < extra ? 2 * other : other + extra, half = count / 2;
        bool low = r->rank < peer;
        w[depth] = low ? (window){first + half, count - half, first, half, peer}
                       : (window){first, half, first + half, count - half, peer};
        add_exchange(r, w[depth].send, w[depth].send_count, peer, SEND);
        add_exchange(r, w[depth].keep, w[depth].keep_count, peer, RECV);
        add_part(r, w[depth].keep, w[depth].keep_count);
        first = w[depth].keep, count = w[depth].keep_count;
    }
    while (depth-- > 0) {
        add_exchange(r, w[depth].keep, w[depth].keep_count, w[depth].peer, SEND);
        receive_result(r, w[depth].send, w[depth].send_count, w[depth].peer);
        add_round(r->s);
    }
}

static void plan_halves(const reduction *r, int power) {
    int extra = r->size - power;
    if (!fold_extra(r, extra)) return;
    halve_and_double(r, power, extra);
    if (r->rank < 2 * extra) add_exchange(r, 0, r->count, r->rank + 1, SEND);
}

// A ring, which libnbc takes if there are fewer elements than ranks: 2 (P - 1) rounds.
static int share_of(const reduction *r, int i, int *count) {
    int each = r->count / r->size, more = r->count % r->size;
    *count = each + (i < more);
    return i * each + (i < more ? i : more);
}

static void plan_ring(const reduction *r) {
    int P = r->size, to = (r->rank + 1) % P, from = (r->rank - 1 + P) % P, n;
    for (int k = 0; k < 2 * P - 2; k++) {
        int first = share_of(r, (r->rank + 1 - k + 2 * P) % P, &n);
        add_exchange(r, first, n, to, SEND);
        first = share_of(r, (r->rank - k + 2 * P) % P, &n);
        if (k < P - 1)
            add_step(r->s, RECV, r->scratch, n * r->unit, from);
        else
            receive_result(r, first, n, from);
        if (k < P - 1) add_sum(r->s, r->scratch, r->data + (size_t)first * (size_t)r->unit, n);
        add_round(r->s);
    }
}

int __wrap_MPI_Iallreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                          MPI_Comm comm, MPI_Request *out) {
    reduction r = {.data = recv, .count = count, .unit = size_of(type)};
    MPI_Comm_rank(comm, &r.rank), MPI_Comm_size(comm, &r.size);
    size_t bytes = (size_t)count * (size_t)r.unit;
    r.s = begin_schedule(comm, type, op);
    if (send != MPI_IN_PLACE) memcpy(recv, send, bytes);
    r.scratch = recv;
    if (!model_is_modelled(recv)) r.s->scratch = r.scratch = malloc(bytes ? bytes : 1);
    int power = 1;
    while (2 * power <= r.size) power *= 2;
    if (count >= power)
        plan_halves(&r, power);
    else
        plan_ring(&r);
    return start_schedule(r.s, out);
}

// Along a tree to the root; also the others than root have memory for sums.
int __wrap_MPI_Ireduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                       int root, MPI_Comm comm, MPI_Request *out) {
    int rank, size, bytes = count * size_of(type);
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    schedule *s = begin_schedule(comm, type, op);
    char *scratch = s->scratch = malloc(2 * (size_t)bytes + 1), *sum = scratch + bytes;
    if (rank == root) sum = recv;
    if (send != MPI_IN_PLACE) memcpy(sum, send, (size_t)bytes);
    int place = (rank - root + size) % size, far = 1;
    for (; far < size && !(place & far); far *= 2) {
        if (place + far >= size) continue;
        add_step(s, RECV, scratch, bytes, (place + far + root) % size);
        add_sum(s, scratch, sum, count);
        add_round(s);
    }
    if (place > 0) add_step(s, SEND, sum, bytes, (place - far + root) % size);
    return start_schedule(s, out);
}
