// SPDX-License-Identifier: MIT
// Buckets of two element types, short and long, through any transport.
#include "common/transport_fixture.h"
#include "comm/comm_state.h"
#include "comm/traffic.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <float.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 7, ROUNDS = 4, STAYS = 3, TAILED = 6, TAIL = 2560, ROW = 16 };

// The third and the last are long, also where each rank of a node sends a shard of them in 16 bits.
static const size_t elements_of[BUCKETS] = {16, 64, 150000, 8, 1024, 4096, 200000};
static const iso_dtype dtype_of[BUCKETS] = {ISO_F32, ISO_F64, ISO_F32, ISO_F64,
                                            ISO_F32, ISO_F64, ISO_F32};
static const char *const label_of[BUCKETS] = {"a", "b", "c", "stays", "e", "f", "g"};

typedef struct world {
    iso__scopes *scopes;
    iso__store store;
    iso__coder coder;
    iso__bucket bucket[BUCKETS];
    iso_comm_hook_tensor tensor[BUCKETS]; // of sparse buckets
    iso__buckets buckets;
    iso__exchange_stats stats;
    iso__transport *transport;
    void *mirror; // of gradients, in memory of the host
    int rounds;   // so far
} world;

// Sums over a few ranks, halves and quarters of them are exact, also in 16 bits.
static double value_of(int rank, int round, int b, size_t k) {
    return (double)((rank * 5 + round * 3 + b + (int)(k % 7)) % 5) - 2;
}

// Sums of these are rounded.
static double rough_value(int rank, int b, size_t k) {
    return (double)((rank * 7919 + b * 104729 + (int)k * 31) % 1009) / 1009 - 0.5;
}

static void set_value(const iso__bucket *b, void *memory, size_t k, double x) {
    if (b->dtype == ISO_F64)
        ((double *)memory)[k] = x;
    else
        ((float *)memory)[k] = (float)x;
}

static double get_value(const iso__bucket *b, const void *memory, size_t k) {
    return b->dtype == ISO_F64 ? ((const double *)memory)[k] : (double)((const float *)memory)[k];
}

static size_t count_of(const iso__bucket *b) { return b->bytes / iso_dtype_size(b->dtype); }

// ---- Memory -----------------------------------------------------------------------------------------

static void make_sparse(iso__bucket *b, iso_comm_hook_tensor *tensor) {
    *tensor = (iso_comm_hook_tensor){b->label, 0, count_of(b), ROW};
    b->tensor = tensor;
    b->tensor_count = 1;
    b->sparse_rows = count_of(b) / ROW;
}

static size_t lay_out(world *w, bool with_tail, bool sparse) {
    size_t unit = iso__scopes_unit(w->scopes), offset = 0;
    if (unit == 0) unit = 64;
    for (int b = 0; b < BUCKETS; b++) {
        size_t bytes = elements_of[b] * iso_dtype_size(dtype_of[b]);
        bytes = (bytes + unit - 1) / unit * unit;
        w->bucket[b] = (iso__bucket){.label = label_of[b],
                                     .offset = offset,
                                     .bytes = bytes,
                                     .dtype = dtype_of[b],
                                     .local = b == STAYS};
        if (b == TAILED && with_tail) w->bucket[b].tail = TAIL;
        if (sparse && (b == 0 || b == TRANSPORT_F32 || b == 5))
            make_sparse(&w->bucket[b], &w->tensor[b]);
        offset += bytes;
    }
    w->buckets = (iso__buckets){w->bucket, BUCKETS};
    return offset;
}

static void move_mirror(world *w, bool out) {
    iso_device *device = w->store.device;
    void *gradients = w->store.gradients;
    if (!device) {
        memcpy(out ? gradients : w->mirror, out ? w->mirror : gradients, w->store.bytes);
        return;
    }
    if (!out) iso_assert_ok(device->ops->remote->finish(device));
    iso_assert_ok(device->ops->remote->copy(device, ISO__QUEUE_COMPUTE, out ? w->mirror : gradients,
                                            out ? gradients : w->mirror, w->store.bytes));
    iso_assert_ok(device->ops->remote->finish(device));
}

static void open_world(world *w, const transport_case *c) {
    const iso_comm_hook *hook = c->hook ? c->hook : &iso_hook_plain;
    iso_assert_ok(iso__comm_locate(test_comm));
    iso_assert_ok(
        iso__scopes_create(test_comm, c->device, hook, true, c->zero, c->sparse, &w->scopes));
    size_t bytes = lay_out(w, !hook->compress && !hook->run && !c->zero, c->sparse);
    iso__coder_ranks all = {.rank = test_rank, .ranks = test_size};
    iso_assert_ok(iso__coder_create(hook, &w->buckets, &all, true, &w->coder));
    iso_assert_ok(iso__store_create(bytes, c->device, &w->store));
    iso_assert_ok(iso__store_make_arena(&w->store, iso__scopes_may_share(w->scopes)));
    if (w->store.device)
        iso_assert_ok(iso__pinned_alloc(w->store.device, bytes, &w->mirror));
    else
        iso_assert_ok(iso__alloc(bytes, &w->mirror));
    iso__transport_setup setup = {.store = &w->store,
                                  .coder = &w->coder,
                                  .buckets = &w->buckets,
                                  .stats = &w->stats,
                                  .world = test_comm};
    iso_assert_ok(iso__scopes_choose(w->scopes, c->scope, &setup, &w->transport));
    cr_assert_str_eq(w->transport->ops->name, c->name);
}

static void close_world(world *w) {
    iso_assert_all(iso__scopes_destroy(&w->scopes));
    if (w->store.device)
        iso__pinned_free(w->store.device, w->mirror);
    else
        iso__free(w->mirror);
    iso__store_destroy(&w->store);
    iso__coder_destroy(&w->coder);
}

// ---- A round ----------------------------------------------------------------------------------------

enum { ROUGH = -1 };

// round: of value_of, or ROUGH.
static void write_gradients(world *w, int round) {
    for (int b = 0; b < BUCKETS; b++)
        for (size_t k = 0; k < count_of(&w->bucket[b]); k++)
            set_value(&w->bucket[b], (char *)w->mirror + w->bucket[b].offset, k,
                      round == ROUGH ? rough_value(test_rank, b, k)
                                     : value_of(test_rank, round, b, k));
    move_mirror(w, true);
    w->rounds++;
}

static void post_all(world *w, int round, double before, double after) {
    bool any = !w->transport->in_order;
    for (int n = 0; n < BUCKETS; n++) {
        int b = any ? (n + test_rank + round) % BUCKETS : n;
        if (b == STAYS) continue;
        if (test_rank == round % test_size && n == 2) usleep(20000);
        iso_assert_ok(w->transport->ops->post(w->transport, b, before, after));
        iso_assert_ok(iso__transport_advance(w->transport));
    }
    iso_assert_ok(iso__transport_flush(w->transport));
}

// Where each rank has its shard of what has arrived: gives all shards to all ranks.
static iso_status share_shards(world *w) {
    iso__transport *t = w->transport;
    if (t->shards == 0) return ISO_OK;
    for (int b = 0; b < BUCKETS; b++) {
        int at = (b + test_rank) % BUCKETS;
        if (at != STAYS) ISO_TRY(t->ops->publish(t, at));
    }
    for (int b = BUCKETS - 1; b >= 0; b--) {
        iso__exchange_times times;
        if (b == STAYS) continue;
        ISO_TRY(t->ops->collect(t, b, NULL, &times));
        iso_assert_all(times.known && t->ops->is_collected(t, b));
    }
    return ISO_OK;
}

// left: what is left to multiply with.
static void arrive_all(world *w, int round, double left[BUCKETS]) {
    iso__transport *t = w->transport;
    for (int b = BUCKETS - 1; b >= 0; b--) {
        bool whole = (b + round) % 2 == 0;
        iso__exchange_times times;
        left[b] = 1;
        if (b == STAYS) continue;
        iso_assert_ok(t->ops->arrive(t, b, NULL, whole ? NULL : &left[b], &times));
        iso_assert_all(!times.known || times.done_ns >= times.posted_ns);
        if (b % 3) continue;
        iso_assert_ok(t->ops->arrive(t, b, NULL, NULL, &times));
        iso_assert_all(!times.known); // told before
        left[b] = 1;
    }
    iso_assert_ok(iso__transport_finish(t));
    iso_assert_ok(share_shards(w));
}

// A tail is multiplied by nothing.
static bool is_sum(const world *w, int b, int round, double factor, double left, int ranks) {
    const iso__bucket *bucket = &w->bucket[b];
    const char *memory = (const char *)w->mirror + bucket->offset;
    size_t tail = count_of(bucket) - bucket->tail / iso_dtype_size(bucket->dtype);
    for (size_t k = 0; k < count_of(bucket); k++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) sum += value_of(ranks == 1 ? test_rank : r, round, b, k);
        if (k < tail) sum *= factor;
        if (get_value(bucket, memory, k) * (k < tail ? left : 1) != sum) return false;
    }
    return true;
}

static int ranks_of(const world *w, int b) {
    return b == STAYS || !w->transport->travels ? 1 : test_size;
}

// What all ranks have posted with factors of 1 has arrived.
static void assert_plain_sums(world *w, int round) {
    move_mirror(w, false);
    for (int b = 0; b < BUCKETS; b++) iso_assert_all(is_sum(w, b, round, 1, 1, ranks_of(w, b)));
}

static iso_status post_list(world *w) {
    iso__transport *t = w->transport;
    for (int b = 0; b < BUCKETS; b++)
        if (b != STAYS) ISO_TRY(t->ops->post(t, b, 1, 1));
    return ISO_OK;
}

// It may wait for other ranks, and is not to be what times out later.
static iso_status flush_list(world *w) {
    iso_status status = ISO_ERR_TIMEOUT;
    while (status == ISO_ERR_TIMEOUT) status = iso__transport_flush(w->transport);
    return status;
}

static iso_status post_in_order(world *w) {
    ISO_TRY(post_list(w));
    return flush_list(w);
}

static iso_status arrive_in_order(world *w, const iso__idle *idle) {
    iso__transport *t = w->transport;
    for (int b = 0; b < BUCKETS; b++)
        if (b != STAYS) ISO_TRY(t->ops->arrive(t, b, idle, NULL, NULL));
    ISO_TRY(iso__transport_finish(t));
    return share_shards(w);
}

static void exchange_factors(world *w, int round) {
    double left[BUCKETS], before = round % 2 ? 0.5 : 1, after = round > 1 ? 0.25 : 1;
    write_gradients(w, round);
    post_all(w, round, before, after);
    arrive_all(w, round, left);
    move_mirror(w, false);
    for (int b = 0; b < BUCKETS; b++) {
        double factor = b == STAYS ? 1 : before * after;
        iso_assert_all(is_sum(w, b, round, factor, left[b], ranks_of(w, b)));
    }
}

// ---- What a rank knows before it waits --------------------------------------------------------------

// Sums that NCCL makes the host does not see.
static bool host_sees(const world *w) { return !w->transport->nccl; }

static bool is_late(void) { return test_rank == test_size - 1; }

// How many buckets are back, as soon as `enough` are, or after so many seconds.
static int count_back(world *w, int enough, double seconds) {
    iso__transport *t = w->transport;
    for (int64_t start = iso_now();;) {
        int count = 0;
        if (iso__transport_advance(t) < 0) return -1;
        for (int b = 0; b < BUCKETS; b++) count += b != STAYS && t->ops->is_back(t, b);
        if (count >= enough || (double)(iso_now() - start) > seconds * 1e9) return count;
        usleep(1000);
    }
}

static bool count_calls(void *user) {
    ++*(int *)user;
    return false;
}

// Nothing is back before the last rank has posted it. Afterwards all is, and nobody waits.
static void back_means_complete(world *w) {
    int calls = 0, round = w->rounds;
    const iso__idle idle = {.call = count_calls, .user = &calls};
    write_gradients(w, round);
    iso_assert_ok(is_late() ? ISO_OK : post_list(w));
    bool early = !is_late() && count_back(w, 1, 0.02) > 0;
    iso_assert_all(!early || !w->transport->travels);
    iso_assert_ok(is_late() ? post_list(w) : ISO_OK);
    iso_assert_ok(flush_list(w));
    int all = host_sees(w) ? BUCKETS - 1 : 0;
    iso_assert_all(count_back(w, all > 0 ? all : 1, all > 0 ? 20 : 0.02) == all);
    iso_assert_ok(arrive_in_order(w, &idle));
    iso_assert_all(calls == 0);
    assert_plain_sums(w, round);
}

// The late rank posts when all others have been idle.
static bool tell_late_rank(void *user) {
    int *calls = user;
    if ((*calls)++ == 0) MPI_Send(calls, 1, MPI_INT, test_size - 1, 0, MPI_COMM_WORLD);
    return false;
}

static void await_idle_ranks(void) {
    for (int r = 0, calls; r < test_size - 1; r++)
        MPI_Recv(&calls, 1, MPI_INT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void who_waits_is_idle(world *w) {
    int calls = 0, round = w->rounds;
    const iso__idle idle = {.call = tell_late_rank, .user = &calls};
    if (!w->transport->travels || !host_sees(w)) return;
    write_gradients(w, round);
    if (is_late()) await_idle_ranks();
    iso_status status = post_in_order(w);
    if (status == ISO_OK) status = arrive_in_order(w, is_late() ? NULL : &idle);
    iso_assert_ok(status);
    assert_plain_sums(w, round);
}

// ---- The order of long buckets ----------------------------------------------------------------------

// The last bucket first, each in two chunks.
static void long_buckets_turn_round(world *w) {
    iso__transport *t = w->transport;
    iso__chunk chunk[2 * BUCKETS];
    int bucket[BUCKETS], count = 0, round = w->rounds;
    iso__channel *channel = t->ops->plan ? t->ops->plan(t, bucket, &count) : NULL;
    if (!channel) return; // shared memory sums in the order of posting
    iso_assert_all(count == 2 && bucket[0] == 2 && bucket[1] == BUCKETS - 1);
    for (int k = 0; k < count; k++) {
        size_t bytes = t->wire_bytes[bucket[k]], half = bytes / 128 * 64;
        iso__chunk *of = chunk + 2 * (count - 1 - k);
        of[0] = (iso__chunk){k, 0, half};
        of[1] = (iso__chunk){k, half, bytes - half};
    }
    iso_assert_ok(iso__channel_set_plan(channel, chunk, 2 * count, SIZE_MAX));
    write_gradients(w, round);
    iso_assert_ok(post_in_order(w));
    iso_assert_ok(arrive_in_order(w, NULL));
    assert_plain_sums(w, round);
}

// ---- Sums that are rounded --------------------------------------------------------------------------

static double stored_value(const iso__bucket *b, double x) {
    return b->dtype == ISO_F64 ? x : (double)(float)x;
}

// Of two numbers there is one sum. Of more each addition may round.
static bool is_near(const world *w, int b, int ranks) {
    const iso__bucket *bucket = &w->bucket[b];
    const char *memory = (const char *)w->mirror + bucket->offset;
    double epsilon = bucket->dtype == ISO_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    for (size_t k = 0; k < count_of(bucket); k++) {
        double sum = 0, size = 0, got = get_value(bucket, memory, k);
        for (int r = 0; r < ranks; r++) {
            double x = stored_value(bucket, rough_value(ranks == 1 ? test_rank : r, b, k));
            sum += x;
            size += fabs(x);
        }
        if (ranks <= 2 && got != stored_value(bucket, sum)) return false;
        if (fabs(got - sum) > ranks * epsilon * size) return false;
    }
    return true;
}

static int64_t exchange_rough(world *w) {
    uint64_t hash = ISO_HASH_START;
    write_gradients(w, ROUGH);
    iso_assert_ok(post_in_order(w));
    iso_assert_ok(arrive_in_order(w, NULL));
    move_mirror(w, false);
    for (int b = 0; b < BUCKETS; b++) {
        iso_assert_all(is_near(w, b, ranks_of(w, b)));
        const iso__bucket *k = &w->bucket[b];
        if (b != STAYS) hash = iso__hash(hash, (char *)w->mirror + k->offset, k->bytes);
    }
    return (int64_t)(hash >> 1);
}

// The same bits on all ranks, and again.
static void rounding_is_the_same_everywhere(world *w) {
    int64_t hash = exchange_rough(w), again = exchange_rough(w), least = hash, most = hash;
    iso_assert_all(hash == again);
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, &least, 1, ISO_MIN));
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, &most, 1, ISO_MAX));
    iso_assert_all(least == most || !w->transport->travels);
}

void transport_conforms(const transport_case *c) {
    world w = {0};
    open_world(&w, c);
    for (int round = 0; round < ROUNDS; round++) exchange_factors(&w, round);
    back_means_complete(&w);
    who_waits_is_idle(&w);
    if (!c->hook) rounding_is_the_same_everywhere(&w);
    long_buckets_turn_round(&w);
    iso_assert_all(w.stats.exchanges == (w.transport->travels ? w.rounds * (BUCKETS - 1) : 0));
    close_world(&w);
}

// ---- Asked again ------------------------------------------------------------------------------------

// How the calls went, on the clock of iso_now.
typedef struct attempts {
    int64_t first_start, first_end, last_start, last_end;
    int64_t between; // at least so long was spent between calls
    iso_status first, last;
} attempts;

static iso_status attempt(world *w, int b, attempts *a, iso__exchange_times *times) {
    double left = 1;
    a->last_start = iso_now();
    iso_status status = w->transport->ops->arrive(w->transport, b, NULL, &left, times);
    a->last_end = iso_now();
    return status;
}

static attempts arrive_again(world *w, int b, bool late, iso__exchange_times *times) {
    attempts a = {.first = ISO_OK};
    if (!late) a.first = attempt(w, b, &a, times);
    a.first_start = a.last_start;
    a.first_end = a.last_end;
    MPI_Barrier(MPI_COMM_WORLD); // only now the late ones come
    if (late) a.first = post_in_order(w);
    do {
        int64_t ended = a.last_end;
        usleep(30000);
        a.last = attempt(w, b, &a, times);
        if (ended) a.between += a.last_start - ended;
    } while (a.last == ISO_ERR_TIMEOUT); // this machine may be that slow
    return a;
}

// The wait goes from the first call to the last one, less what was between the calls.
static bool is_whole(const world *w, const attempts *a, const iso__exchange_times *t) {
    int64_t waited = t->wait_end_ns - t->wait_start_ns - t->away_ns;
    int64_t whole = a->last_end - a->first_start - a->between;
    return t->known && t->posted_ns > 0 && t->done_ns >= t->posted_ns &&
           t->left_device == (w->store.device != NULL) && t->wait_start_ns >= a->first_start &&
           t->wait_start_ns <= a->first_end && waited >= 0 && waited <= whole;
}

static void limit_waits(const world *w, const transport_case *c, double limit_s) {
    test_comm->timeout_s = iso__scopes_comm(w->scopes, c->scope)->timeout_s = limit_s;
}

void transport_keeps_times(const transport_case *c, int b, void (*fault)(void)) {
    const double limit_s = 0.5;
    bool late = !fault && test_rank >= test_size / 2;
    iso_comm *before = test_comm;
    iso__exchange_times times;
    world w = {0};
    test_comm = test_comm_with_limit(60);
    open_world(&w, c);
    limit_waits(&w, c, fault ? 60 : limit_s);
    write_gradients(&w, 0);
    iso_assert_ok(late ? ISO_OK : post_in_order(&w));
    if (fault) fault();
    attempts a = arrive_again(&w, b, late, &times);
    iso_assert_all(late ? a.first == ISO_OK : fault ? a.first < 0 : a.first == ISO_ERR_TIMEOUT);
    iso_assert_ok(a.last);
    iso_assert_all(late || is_whole(&w, &a, &times));
    double waited = (double)(times.wait_end_ns - times.wait_start_ns - times.away_ns);
    iso_assert_all(fault || late || waited >= limit_s * 1e9);
    if (w.transport->shards > 0 || w.transport->ops->advance) // it goes on after a bucket is back
        iso_assert_ok(arrive_in_order(&w, NULL));
    move_mirror(&w, false);
    iso_assert_all(is_sum(&w, b, 0, 1, 1, test_size));
    close_world(&w);
    iso_comm_destroy(&test_comm);
    test_comm = before;
}

// ---- Out of step ------------------------------------------------------------------------------------

void transport_stays_in_step(const transport_case *c, void (*fault)(void)) {
    iso_comm *before = test_comm;
    bool fails = test_rank == 1;
    world w = {0};
    test_comm = test_comm_with_limit(1.5); // which some transports keep when they are created
    open_world(&w, c);
    iso__transport *t = w.transport;
    write_gradients(&w, 0);
    if (fails) fault();
    iso_status first = t->ops->post(t, 0, 1, 1), second = t->ops->post(t, 1, 1, 1);
    iso_assert_all((first < 0) == fails && (second < 0) == fails);
    iso_status sum = t->ops->arrive(t, 0, NULL, NULL, NULL);
    if (sum == ISO_OK) sum = iso__transport_finish(t);
    iso_assert_all(sum < 0);
    close_world(&w);
    iso_comm_destroy(&test_comm);
    test_comm = before;
}
