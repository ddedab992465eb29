// Exchanges that go on in rounds: parts of buffers leave in the order of one plan.
#include "comm/stream.h"
#include "comm/traffic.h"

#include <isotherm/trace.h>
#include <stdatomic.h>
#include <string.h>

// An MPI call counts elements in an int: longer parts are split.
#define MOST_BYTES ((size_t)1 << 30)
#define CUT_UNIT   ((size_t)64) // parts begin on cache lines

typedef struct item {
    iso__stream_item given;
    // Rounds for which it was made ready, and of these those it is done with: they differ by one
    // while it is under way. Written with the lock held; `completed` last, after the times.
    _Atomic uint64_t announced, completed;
    int parts, last; // how many; the plan's index of the last one
    int parts_left;  // of the round under way
    iso__stream_times times;
} item;

// The engine's lock guards everything but what is atomic.
struct iso__stream {
    iso_comm *comm;
    MPI_Comm mpi;
    item *item;
    int count;
    iso__part *part; // the plan
    int part_count;
    int next;                 // of the plan, to be posted
    uint64_t round;           // of that part
    size_t window, in_flight; // bytes
    int room;                 // requests that are there for it
    int queue;                // of exchanges in shared memory; 0: it takes no part in them
    int64_t busy_since;
    iso__stream_load load;
    // The first error, and its text, written before it. Nothing is posted any more.
    _Atomic int error;
    char message[400];
    iso__stream *older; // in the engine's list
};

static bool is_pending(const item *m) {
    return atomic_load_explicit(&m->announced, memory_order_relaxed) !=
           atomic_load_explicit(&m->completed, memory_order_acquire);
}

static bool has_failed(const iso__stream *s) {
    return atomic_load_explicit(&s->error, memory_order_acquire) != ISO_OK;
}

// Of the thread that asks; the error may be that of another.
static iso_status verdict(const iso__stream *s, int i) {
    if (!is_pending(&s->item[i])) return ISO_OK;
    ISO_CHECK(!has_failed(s), (iso_status)atomic_load(&s->error), "%s", s->message);
    ISO_CHECK(!s->comm->engine->finalized, ISO_ERR_STATE,
              "the exchange of \"%s\" was still out when MPI_Finalize was called",
              s->item[i].given.label);
    return ISO_PENDING;
}

// Keeps what this thread's error record says.
static void fail(iso__stream *s, const item *m, iso_status status) {
    if (has_failed(s)) return;
    snprintf(s->message, sizeof(s->message), "the exchange of \"%s\" failed: %.300s",
             m->given.label, iso_last_error()->message);
    atomic_store_explicit(&s->error, (int)status, memory_order_release);
}

// ---- Parts, with the lock held ----------------------------------------------------------------------

static bool may_post(const iso__stream *s) {
    if (s->part_count == 0 || has_failed(s)) return false;
    const iso__part *p = &s->part[s->next];
    if (s->item[p->item].announced <= s->round) return false;
    return s->in_flight == 0 || (s->in_flight <= s->window && p->bytes <= s->window - s->in_flight);
}

static const iso__collective_ops *ops_of(const iso__stream *s, const item *m, const void *data,
                                         size_t bytes) {
    if (s->queue == 0) return &iso__collective_mpi;
    return iso__collective_choose(s->comm, data, bytes, m->given.dtype);
}

static iso_status post(iso__stream *s, const iso__part *part) {
    item *m = &s->item[part->item];
    char *data = (char *)m->given.data + part->offset;
    iso_request *request;
    ISO_TRY(iso__request_begin(s->comm, m->given.label, part->bytes, &request));
    request->mpi = s->mpi;
    request->next = data;
    request->unit = iso_dtype_size(m->given.dtype);
    request->left = part->bytes / request->unit;
    request->dtype = m->given.dtype;
    request->queue = s->queue;
    request->call = iso__mpi_allreduce;
    request->stream = s;
    request->stream_item = part->item;
    if (part->offset == 0) m->times.posted_ns = request->posted_ns;
    if (s->in_flight == 0) s->busy_since = request->posted_ns;
    iso_status status = ops_of(s, m, data, part->bytes)->post(request);
    if (status < 0) {
        request->stream = NULL;
        iso__request_release(s->comm->engine, &request);
    }
    ISO_TRY(status);
    s->in_flight += part->bytes;
    return ISO_OK;
}

static bool issue(iso__stream *s) {
    bool any = false;
    while (may_post(s)) {
        const iso__part *part = &s->part[s->next];
        iso_status status = post(s, part);
        if (status < 0) fail(s, &s->item[part->item], status);
        any = any || status >= 0;
        if (status < 0 || ++s->next < s->part_count) continue;
        s->next = 0;
        s->round++;
    }
    return any;
}

bool iso__streams_issue(iso__engine *engine) {
    bool any = false;
    for (iso__stream *s = engine->streams; s; s = s->older) any = issue(s) || any;
    return any;
}

void iso__stream_part_done(iso_request *request) {
    iso__stream *s = request->stream;
    item *m = &s->item[request->stream_item];
    s->in_flight -= request->bytes;
    s->load.bytes += (int64_t)request->bytes;
    if (s->in_flight == 0) s->load.busy_ns += request->done_ns - s->busy_since;
    if (request->mpi_error) {
        fail(s, m,
             iso__mpi_error(request->mpi_error, "an all-reduce", __func__, __FILE__, __LINE__));
    } else if (--m->parts_left == 0) {
        m->times.done_ns = request->done_ns;
        atomic_fetch_add_explicit(&m->completed, 1, memory_order_release);
    }
    iso__request_release(s->comm->engine, &request);
}

// ---- The plan ---------------------------------------------------------------------------------------

static bool nothing_pending(const iso__stream *s) {
    for (int i = 0; i < s->count; i++)
        if (is_pending(&s->item[i])) return false;
    return true;
}

int iso__stream_parts(const iso__stream *s) { return s->part_count; }

size_t iso__cut_count(size_t bytes, size_t unit, size_t most) {
    size_t units = (bytes - 1) / unit + 1, each = most > unit ? most / unit : 1;
    return (units - 1) / each + 1;
}

size_t iso__cut_at(size_t bytes, size_t unit, size_t count, size_t k) {
    size_t units = (bytes - 1) / unit + 1, longer = units % count;
    size_t at = (units / count * k + (k < longer ? k : longer)) * unit;
    return at < bytes ? at : bytes;
}

// Writes a part as parts of at most so many bytes; gives their number.
static size_t cut(iso__part part, size_t most, iso__part *out) {
    size_t count = iso__cut_count(part.bytes, CUT_UNIT, most);
    for (size_t k = 0; k < count; k++) {
        size_t at = iso__cut_at(part.bytes, CUT_UNIT, count, k);
        size_t end = iso__cut_at(part.bytes, CUT_UNIT, count, k + 1);
        out[k] = (iso__part){.item = part.item, .offset = part.offset + at, .bytes = end - at};
    }
    return count;
}

static iso_status check_part(const iso__stream *s, const iso__part *p, const size_t *covered) {
    ISO_CHECK(p->item >= 0 && p->item < s->count, ISO_ERR_ARG,
              "a plan has a part of buffer %d: there are %d", p->item, s->count);
    const iso__stream_item *given = &s->item[p->item].given;
    ISO_CHECK(p->offset == covered[p->item] && p->bytes > 0 && p->bytes <= given->bytes - p->offset,
              ISO_ERR_ARG,
              "a plan has %zu bytes of \"%s\" from %zu on, where the next of its %zu bytes is %zu",
              p->bytes, given->label, p->offset, given->bytes, covered[p->item]);
    ISO_CHECK(p->bytes % iso_dtype_size(given->dtype) == 0, ISO_ERR_ARG,
              "a plan has %zu bytes of \"%s\", which is no whole number of its elements", p->bytes,
              given->label);
    return ISO_OK;
}

// Gives the number of parts, none of them longer than MOST_BYTES.
static iso_status check_plan(const iso__stream *s, const iso__part *part, int count,
                             size_t *covered, int *total) {
    *total = 0;
    for (int k = 0; k < count; k++) {
        ISO_TRY(check_part(s, &part[k], covered));
        covered[part[k].item] += part[k].bytes;
        *total += (int)iso__cut_count(part[k].bytes, CUT_UNIT, MOST_BYTES);
    }
    for (int i = 0; i < s->count; i++)
        ISO_CHECK(covered[i] == s->item[i].given.bytes, ISO_ERR_ARG,
                  "a plan covers %zu of the %zu bytes of \"%s\"", covered[i],
                  s->item[i].given.bytes, s->item[i].given.label);
    return ISO_OK;
}

// How many parts can be under way at once.
static int most_at_once(const iso__part *part, int count, size_t window) {
    size_t least = SIZE_MAX;
    for (int k = 0; k < count; k++) least = part[k].bytes < least ? part[k].bytes : least;
    return window / least + 1 < (size_t)count ? (int)(window / least + 1) : count;
}

static iso_status reserve(iso__stream *s, int room) {
    iso__engine *engine = s->comm->engine;
    if (room <= s->room) return ISO_OK;
    pthread_mutex_lock(&engine->lock);
    iso_status status = iso__request_reserve(engine, room - s->room);
    pthread_mutex_unlock(&engine->lock);
    if (status == ISO_OK) s->room = room;
    return status;
}

// Takes over the parts, which are in order.
static void adopt_plan(iso__stream *s, iso__part *part, int count, size_t window) {
    pthread_mutex_lock(&s->comm->engine->lock);
    for (int i = 0; i < s->count; i++) s->item[i].parts = 0;
    for (int k = 0; k < count; k++) {
        s->item[part[k].item].parts++;
        s->item[part[k].item].last = k;
    }
    iso__part *old = s->part;
    s->part = part;
    s->part_count = count;
    s->window = window;
    pthread_mutex_unlock(&s->comm->engine->lock);
    iso__free(old);
}

iso_status iso__stream_set_plan(iso__stream *s, const iso__part *part, int count, size_t window) {
    ISO_CHECK(nothing_pending(s) && s->next == 0, ISO_ERR_STATE,
              "a plan was given in the middle of a round: wait for all of its buffers first");
    void *covered, *copy;
    int total;
    ISO_TRY(iso__alloc_zero((size_t)s->count * sizeof(size_t), &covered));
    iso_status status = check_plan(s, part, count, covered, &total);
    iso__free(covered);
    ISO_TRY(status);
    ISO_TRY(iso__alloc((size_t)total * sizeof(iso__part), &copy));
    iso__part *end = copy;
    for (int k = 0; k < count; k++) end += cut(part[k], MOST_BYTES, end);
    adopt_plan(s, copy, total, window);
    return reserve(s, most_at_once(s->part, total, window));
}

static iso_status plan_in_order(iso__stream *s, size_t part_bytes, size_t window) {
    size_t total = 0;
    void *memory;
    for (int i = 0; i < s->count; i++)
        total += iso__cut_count(s->item[i].given.bytes, CUT_UNIT, part_bytes);
    ISO_TRY(iso__alloc(total * sizeof(iso__part), &memory));
    iso__part *end = memory;
    for (int i = 0; i < s->count; i++)
        end += cut((iso__part){i, 0, s->item[i].given.bytes}, part_bytes, end);
    iso_status status = iso__stream_set_plan(s, memory, (int)total, window);
    iso__free(memory);
    return status;
}

// ---- Life -------------------------------------------------------------------------------------------

static iso_status check_item(const iso__stream_item *given) {
    ISO_CHECK(iso__mpi_type(given->dtype) != MPI_DATATYPE_NULL, ISO_ERR_UNSUPPORTED,
              "MPI cannot sum elements of type %s, of which \"%s\" is",
              iso_dtype_name(given->dtype), given->label);
    ISO_CHECK(given->bytes > 0 && given->bytes % iso_dtype_size(given->dtype) == 0, ISO_ERR_ARG,
              "\"%s\" has %zu bytes, which is no whole number of its elements", given->label,
              given->bytes);
    return ISO_OK;
}

static iso_status setup(iso__stream *s, const iso__stream_item *given, int count, size_t part_bytes,
                        size_t window) {
    for (int i = 0; i < count; i++) ISO_TRY(check_item(&given[i]));
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(item), (void **)&s->item));
    s->count = count;
    for (int i = 0; i < count; i++) s->item[i].given = given[i];
    return plan_in_order(s, part_bytes, window);
}

// The same one on all ranks, which create and destroy streams in one order.
static void take_queue(iso__stream *s) {
    for (int q = 1; q < ISO_QUEUES && s->queue == 0; q++)
        if (!s->comm->queue_taken[q]) s->queue = q;
    s->comm->queue_taken[s->queue] = true;
}

// With the lock of the engine, whose threads walk the list.
static void list(iso__stream *s, bool add) {
    iso__engine *engine = s->comm->engine;
    pthread_mutex_lock(&engine->lock);
    iso__stream **at = &engine->streams;
    if (add) s->older = *at;
    while (!add && *at && *at != s) at = &(*at)->older;
    if (*at || add) *at = add ? s : s->older;
    pthread_mutex_unlock(&engine->lock);
}

iso_status iso__stream_create(iso_comm *comm, const iso__stream_item *given, int count,
                              size_t part_bytes, size_t window, iso__stream **out) {
    iso_status status;
    iso__stream *s;
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE, "a stream was created after MPI_Finalize");
    ISO_TRY(iso__alloc_zero(sizeof(*s), (void **)&s));
    s->comm = iso_comm_retain(comm);
    s->mpi = MPI_COMM_NULL;
    ISO_TRY_GOTO(iso_comm_agree(comm, setup(s, given, count, part_bytes, window)));
    ISO_TRY_GOTO(iso__comm_meet(comm, "the barrier before MPI_Comm_dup"));
    // With its error handler, which returns.
    ISO_TRY_GOTO(iso__comm_make(comm, &(iso__comm_recipe){.from = comm->mpi}, &s->mpi));
    take_queue(s);
    list(s, true);
    *out = s;
    return ISO_OK;
fail:
    iso__stream_destroy(&s);
    return status;
}

// What a time-out or an error left under way: MPI may still write into the items.
static bool is_in_use(iso__stream *s) {
    pthread_mutex_lock(&s->comm->engine->lock);
    bool in_use = s->in_flight > 0;
    if (in_use && !has_failed(s)) {
        ISO_FAIL(ISO_ERR_STATE, "its stream was destroyed");
        fail(s, &s->item[0], ISO_ERR_STATE); // nothing more is posted
    }
    pthread_mutex_unlock(&s->comm->engine->lock);
    return in_use;
}

static void give_back(iso__stream *s) {
    pthread_mutex_lock(&s->comm->engine->lock);
    iso__request_unreserve(s->comm->engine, s->room);
    pthread_mutex_unlock(&s->comm->engine->lock);
}

bool iso__stream_destroy(iso__stream **pointer) {
    iso__stream *s = *pointer;
    *pointer = NULL;
    if (!s) return true;
    if (is_in_use(s)) {
        iso__log(ISO_LOG_ERROR, "a stream was destroyed with exchanges under way: it stays");
        return false;
    }
    list(s, false);
    give_back(s);
    s->comm->queue_taken[s->queue] = false;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && s->mpi != MPI_COMM_NULL) MPI_Comm_free(&s->mpi);
    iso_comm_destroy(&s->comm);
    iso__free(s->part);
    iso__free(s->item);
    iso__free(s);
    return true;
}

iso_status iso__stream_move(iso__stream *s, int i, void *data) {
    ISO_CHECK(nothing_pending(s), ISO_ERR_STATE, "\"%s\" was moved while exchanges were under way",
              s->item[i].given.label);
    s->item[i].given.data = data;
    return ISO_OK;
}

// ---- Ready, test, wait ------------------------------------------------------------------------------

iso_status iso__stream_ready(iso__stream *s, int i) {
    item *m = &s->item[i];
    iso__engine *engine = s->comm->engine;
    ISO_CHECK(!engine->finalized, ISO_ERR_STATE, "an exchange was started after MPI_Finalize");
    ISO_TRY(verdict(s, i));
    ISO_CHECK(!is_pending(m), ISO_ERR_STATE,
              "\"%s\" was made ready twice: its exchange is still under way", m->given.label);
    pthread_mutex_lock(&engine->lock);
    m->times = (iso__stream_times){.ready_ns = iso_now()};
    m->parts_left = m->parts;
    atomic_fetch_add_explicit(&m->announced, 1, memory_order_relaxed);
    issue(s);
    iso__engine_kick(engine);
    pthread_mutex_unlock(&engine->lock);
    ISO_TRY(verdict(s, i));
    return ISO_OK;
}

iso_status iso__stream_test(iso__stream *s, int i) {
    // The helper looks after it.
    if (is_pending(&s->item[i]) && s->comm->engine->mode != ISO_PROGRESS_THREAD)
        iso__engine_assist(s->comm->engine);
    return verdict(s, i);
}

// An item that is not ready on this rank and must leave before this one has left; -1: none.
static int find_blocking(const iso__stream *s, const item *m) {
    uint64_t round = s->round, last = m->announced - 1;
    for (int k = s->next; round < last || (round == last && k <= m->last);) {
        if (s->item[s->part[k].item].announced <= round) return s->part[k].item;
        if (++k < s->part_count) continue;
        k = 0;
        round++;
    }
    return -1;
}

typedef struct awaited_item {
    const iso__stream *stream;
    const item *item;
} awaited_item;

static bool is_over(const void *what) {
    const awaited_item *a = what;
    return !is_pending(a->item) || has_failed(a->stream);
}

static iso_status wait_locked(iso__stream *s, const item *m, iso__stream_idle idle, void *user) {
    if (is_over(&(awaited_item){s, m})) {
        iso__engine_adapt(s->comm->engine, m->times.ready_ns, true); // it may sleep longer
        return ISO_OK;
    }
    int blocking = find_blocking(s, m);
    ISO_CHECK(blocking < 0, ISO_ERR_STATE,
              "\"%s\" is waited for, but \"%s\" leaves before it and was not made ready on this "
              "rank: make all of a round ready first",
              m->given.label, s->item[blocking].given.label);
    return iso__engine_wait(s->comm->engine, &(iso__awaited){.comm = s->comm,
                                                             .name = m->given.label,
                                                             .began_ns = m->times.ready_ns,
                                                             .what = &(awaited_item){s, m},
                                                             .is_done = is_over,
                                                             .idle = idle,
                                                             .user = user});
}

bool iso__stream_is_done(const iso__stream *s, int i) { return !is_pending(&s->item[i]); }

iso_status iso__stream_wait(iso__stream *s, int i, iso__stream_idle idle, void *user) {
    if (atomic_load_explicit(&s->item[i].announced, memory_order_relaxed) == 0) return ISO_OK;
    pthread_mutex_lock(&s->comm->engine->lock);
    iso_status status = wait_locked(s, &s->item[i], idle, user);
    pthread_mutex_unlock(&s->comm->engine->lock);
    ISO_TRY(status);
    ISO_TRY(verdict(s, i));
    return ISO_OK;
}

iso__stream_times iso__stream_times_of(const iso__stream *s, int i) { return s->item[i].times; }

void iso__stream_count(const iso__stream *s, int i, iso_traffic *to) {
    const item *m = &s->item[i];
    bool shared = ops_of(s, m, m->given.data, m->given.bytes) == &iso__collective_shm;
    (shared ? iso__count_node_sum : iso__count_sum)(to, s->comm, m->given.bytes);
}

iso__stream_load iso__stream_load_of(iso__stream *s) {
    pthread_mutex_lock(&s->comm->engine->lock);
    iso__stream_load load = s->load;
    if (s->in_flight > 0) load.busy_ns += iso_now() - s->busy_since;
    pthread_mutex_unlock(&s->comm->engine->lock);
    return load;
}
