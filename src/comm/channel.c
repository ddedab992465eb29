// SPDX-License-Identifier: MIT
// Exchanges that are repeated in rounds: chunks of buffers leave in the order of one plan.
#include "base/recording.h"
#include "comm/blocks.h"
#include "comm/channel_impl.h"
#include "comm/hierarchy.h"
#include "comm/pairwise.h"
#include "comm/traffic.h"

#include <isotherm/trace.h>
#include <string.h>

// An MPI call counts elements in an int: longer chunks are split.
#define MOST_BYTES ((size_t)1 << 30)
#define CUT_UNIT   ((size_t)64) // chunks begin on cache lines

// The status of an item, with an error record of the calling thread: another thread may have found
// the error.
static iso_status item_verdict(const iso__channel *c, int i) {
    if (!iso__entry_is_pending(&c->item[i])) return ISO_OK;
    ISO_CHECK(!iso__channel_has_failed(c), (iso_status)atomic_load(&c->error), "%s", c->message);
    ISO_CHECK(!c->comm->engine->finalized, ISO_ERR_STATE,
              "the exchange of \"%s\" was still in flight when MPI_Finalize was called",
              c->item[i].given.label);
    return ISO_PENDING;
}

// ---- The plan ---------------------------------------------------------------------------------------

static bool nothing_pending(const iso__channel *c) {
    for (int i = 0; i < c->count; i++)
        if (iso__entry_is_pending(&c->item[i])) return false;
    return true;
}

size_t iso__cut_count(size_t bytes, size_t unit, size_t most) {
    size_t units = (bytes - 1) / unit + 1, each = most > unit ? most / unit : 1;
    return (units - 1) / each + 1;
}

size_t iso__cut_at(size_t bytes, size_t unit, size_t count, size_t k) {
    size_t units = (bytes - 1) / unit + 1, longer = units % count;
    size_t at = (units / count * k + (k < longer ? k : longer)) * unit;
    return at < bytes ? at : bytes;
}

// Cuts a chunk into chunks of at most `most` bytes, and returns their number.
static size_t cut_chunk(iso__chunk chunk, size_t most, iso__chunk *out) {
    size_t count = iso__cut_count(chunk.bytes, CUT_UNIT, most);
    for (size_t k = 0; k < count; k++) {
        size_t at = iso__cut_at(chunk.bytes, CUT_UNIT, count, k);
        size_t end = iso__cut_at(chunk.bytes, CUT_UNIT, count, k + 1);
        out[k] = (iso__chunk){.item = chunk.item, .offset = chunk.offset + at, .bytes = end - at};
    }
    return count;
}

static iso_status check_chunk(const iso__channel *c, const iso__chunk *p, const size_t *covered) {
    ISO_CHECK(p->item >= 0 && p->item < c->count, ISO_ERR_ARG,
              "a plan has a chunk of buffer %d: there are %d", p->item, c->count);
    const iso__channel_item *given = &c->item[p->item].given;
    ISO_CHECK(p->offset == covered[p->item] && p->bytes > 0 && p->bytes <= given->bytes - p->offset,
              ISO_ERR_ARG,
              "a plan continues \"%s\" at byte %zu with %zu bytes, but its next byte is %zu of %zu",
              given->label, p->offset, p->bytes, covered[p->item], given->bytes);
    ISO_CHECK(p->bytes % iso_dtype_size(given->dtype) == 0, ISO_ERR_ARG,
              "a plan has %zu bytes of \"%s\", which is not a whole number of its elements",
              p->bytes, given->label);
    return ISO_OK;
}

static iso_status check_phase(const iso__channel *c, const iso__chunk *before,
                              const iso__chunk *p) {
    const iso__channel_item *a = &c->item[before->item].given, *b = &c->item[p->item].given;
    ISO_CHECK(a->phase <= b->phase, ISO_ERR_ARG,
              "a plan has \"%s\" of phase %d after \"%s\" of phase %d: phases must ascend",
              b->label, b->phase, a->label, a->phase);
    return ISO_OK;
}

// The maximum length of a chunk. In two levels, a message of blocks has one chunk for each node.
static size_t most_bytes(const iso__channel *c) {
    size_t nodes = c->nodes > 0 ? (size_t)c->nodes : 1;
    return MOST_BYTES / nodes / CUT_UNIT * CUT_UNIT;
}

// Checks the plan. *out: the number of its chunks once none is longer than most_bytes.
static iso_status check_plan(const iso__channel *c, const iso__chunk *chunk, int count,
                             size_t *covered, int *total) {
    *total = 0;
    for (int k = 0; k < count; k++) {
        ISO_TRY(check_chunk(c, &chunk[k], covered));
        if (k > 0) ISO_TRY(check_phase(c, &chunk[k - 1], &chunk[k]));
        covered[chunk[k].item] += chunk[k].bytes;
        *total += (int)iso__cut_count(chunk[k].bytes, CUT_UNIT, most_bytes(c));
    }
    for (int i = 0; i < c->count; i++)
        ISO_CHECK(covered[i] == c->item[i].given.bytes, ISO_ERR_ARG,
                  "a plan covers %zu of the %zu bytes of \"%s\"", covered[i],
                  c->item[i].given.bytes, c->item[i].given.label);
    return ISO_OK;
}

// Makes these chunks the plan, and owns them.
static void adopt_plan(iso__channel *c, iso__chunk *chunk, int count, size_t window) {
    pthread_mutex_lock(&c->comm->engine->lock);
    for (int i = 0; i < c->count; i++) c->item[i].chunks = 0;
    for (int k = 0; k < count; k++) {
        c->item[chunk[k].item].chunks++;
        c->item[chunk[k].item].last = k;
    }
    iso__chunk *old = c->chunk;
    c->chunk = chunk;
    c->chunk_count = count;
    c->window = window;
    pthread_mutex_unlock(&c->comm->engine->lock);
    iso__free(old);
}

iso_status iso__channel_set_plan(iso__channel *c, const iso__chunk *chunk, int count,
                                 size_t window) {
    ISO_CHECK(nothing_pending(c) && c->next == 0, ISO_ERR_STATE,
              "a plan was given in the middle of a round: wait for all of its buffers first");
    void *covered, *copy;
    int total;
    ISO_TRY(iso__alloc_zero((size_t)c->count * sizeof(size_t), &covered));
    iso_status status = check_plan(c, chunk, count, covered, &total);
    iso__free(covered);
    ISO_TRY(status);
    ISO_TRY(iso__alloc((size_t)total * sizeof(iso__chunk), &copy));
    iso__chunk *end = copy;
    for (int k = 0; k < count; k++) end += cut_chunk(chunk[k], most_bytes(c), end);
    adopt_plan(c, copy, total, window);
    return iso__channel_make_places(c);
}

// The lowest phase above this one; -1: there is none.
static int phase_after(const iso__channel *c, int phase) {
    int next = -1;
    for (int i = 0; i < c->count; i++) {
        int p = c->item[i].given.phase;
        if (p > phase && (next < 0 || p < next)) next = p;
    }
    return next;
}

static iso_status plan_in_order(iso__channel *c, size_t chunk_bytes, size_t window) {
    size_t total = 0;
    void *memory;
    for (int i = 0; i < c->count; i++)
        total += iso__cut_count(c->item[i].given.bytes, CUT_UNIT, chunk_bytes);
    ISO_TRY(iso__alloc(total * sizeof(iso__chunk), &memory));
    iso__chunk *end = memory;
    for (int phase = phase_after(c, -1); phase >= 0; phase = phase_after(c, phase))
        for (int i = 0; i < c->count; i++)
            if (c->item[i].given.phase == phase)
                end += cut_chunk((iso__chunk){i, 0, c->item[i].given.bytes}, chunk_bytes, end);
    iso_status status = iso__channel_set_plan(c, memory, (int)total, window);
    iso__free(memory);
    return status;
}

// ---- Life -------------------------------------------------------------------------------------------

static iso_status check_item(const iso__channel *c, const iso__channel_item *given) {
    ISO_CHECK(given->bytes > 0 && given->bytes % iso_dtype_size(given->dtype) == 0, ISO_ERR_ARG,
              "\"%s\" has %zu bytes, which is not a whole number of its elements", given->label,
              given->bytes);
    ISO_CHECK((int)given->operation >= 0 && given->operation <= ISO__ALLTOALL, ISO_ERR_UNSUPPORTED,
              "\"%s\" has operation %d, which channels do not know", given->label,
              (int)given->operation);
    bool known = iso__mpi_type(given->dtype) != MPI_DATATYPE_NULL;
    ISO_CHECK(given->operation != ISO__SUM || known, ISO_ERR_UNSUPPORTED,
              "\"%s\" has elements of type %s, which MPI cannot sum", given->label,
              iso_dtype_name(given->dtype));
    bool sums = given->dtype == ISO_F32 || given->dtype == ISO_F64;
    bool scatters = given->operation == ISO__SCATTER || given->operation == ISO__NODE_SCATTER;
    ISO_CHECK(!scatters || sums, ISO_ERR_UNSUPPORTED,
              "\"%s\" has elements of type %s: sums of blocks are of f32 or f64", given->label,
              iso_dtype_name(given->dtype));
    ISO_CHECK(given->operation != ISO__NODE_SCATTER || c->nodes > 0, ISO_ERR_UNSUPPORTED,
              "\"%s\" is scattered among the ranks of each node, but there are no equal nodes",
              given->label);
    ISO_CHECK(given->phase >= 0, ISO_ERR_ARG, "\"%s\" has phase %d: phases begin at 0",
              given->label, given->phase);
    return ISO_OK;
}

static iso_status take_items(iso__channel *c, const iso__channel_item *given, int count,
                             size_t chunk_bytes, size_t window) {
    for (int i = 0; i < count; i++) ISO_TRY(check_item(c, &given[i]));
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(iso__channel_entry), (void **)&c->item));
    c->count = count;
    for (int i = 0; i < count; i++) c->item[i].given = given[i];
    return plan_in_order(c, chunk_bytes, window);
}

// Takes the engine's lock, because its threads walk the list.
static void list_channel(iso__channel *c, bool add) {
    iso__engine *engine = c->comm->engine;
    pthread_mutex_lock(&engine->lock);
    iso__channel **at = &engine->channels;
    if (add) c->older = *at;
    while (!add && *at && *at != c) at = &(*at)->older;
    if (*at || add) *at = add ? c : c->older;
    pthread_mutex_unlock(&engine->lock);
}

// All ranks create the same channels in one order, so that they choose the same key.
static void open_stream(iso__channel *c) {
    iso_comm *comm = c->comm;
    uint64_t from[2] = {comm->sums.key, ++comm->channels};
    if (!comm->watch) return;
    pthread_mutex_lock(&comm->engine->lock);
    iso__stream_open(comm->watch, &c->stream, iso__hash(ISO_HASH_START, from, sizeof(from)));
    pthread_mutex_unlock(&comm->engine->lock);
}

iso_status iso__channel_create(iso_comm *comm, const iso__channel_item *given, int count,
                               size_t chunk_bytes, size_t window, iso__channel **out) {
    iso__channel *c = NULL;
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE, "a channel was created after MPI_Finalize");
    iso_status status = iso__alloc_zero(sizeof(*c), (void **)&c);
    if (status == ISO_OK) {
        c->comm = iso_comm_retain(comm);
        c->mpi = MPI_COMM_NULL;
        c->queue = iso__comm_take_queue(comm); // take_items needs this and the next two members
        c->sums_pairwise = iso__channel_sums_pairwise(comm);
        c->nodes = iso__blocks_nodes(comm);
        status = take_items(c, given, count, chunk_bytes, window);
    }
    ISO_TRY_GOTO(iso_comm_agree(comm, status));
    ISO_TRY_GOTO(iso__comm_meet(comm, "the barrier before MPI_Comm_create_group"));
    ISO_TRY_GOTO(iso__comm_copy(comm, comm->mpi, &c->mpi));
    open_stream(c);
    c->stream.record = iso__recorder_stream(comm->group, comm->rank, comm->size, "channel");
    c->stream.recorded = true;
    list_channel(c, true);
    *out = c;
    return ISO_OK;
fail:
    iso__channel_destroy(&c);
    return status;
}

iso_status iso__channel_use_nodes(iso__channel *c, const iso__channel_nodes *nodes) {
    ISO_TRY(iso__hierarchy_create(c->comm, nodes, &c->hierarchy));
    return iso_comm_agree(c->comm, iso__channel_make_places(c)); // for sums of other types
}

// Whether a time-out or an error left an exchange under way, so that MPI may still write into
// items.
static bool is_in_use(iso__channel *c) {
    pthread_mutex_lock(&c->comm->engine->lock);
    bool in_use = c->in_flight > 0;
    for (int i = 0; i < c->cell_count; i++) in_use = in_use || c->cell[i].taken;
    in_use =
        in_use || iso__pairwise_is_in_use(c->pairwise) || iso__hierarchy_is_in_use(c->hierarchy);
    in_use = in_use || iso__blocks_are_in_use(c->blocks);
    if (in_use && !iso__channel_has_failed(c)) {
        ISO_FAIL(ISO_ERR_STATE, "its channel was destroyed");
        iso__channel_fail(c, &c->item[0], ISO_ERR_STATE); // nothing more is posted
    }
    pthread_mutex_unlock(&c->comm->engine->lock);
    return in_use;
}

static void give_back(iso__channel *c) {
    if (c->stream.recorded) iso__recorder_close(c->stream.record);
    pthread_mutex_lock(&c->comm->engine->lock);
    iso__request_unreserve(c->comm->engine, c->room);
    iso__stream_close(&c->stream);
    pthread_mutex_unlock(&c->comm->engine->lock);
}

bool iso__channel_destroy(iso__channel **pointer) {
    iso__channel *c = *pointer;
    *pointer = NULL;
    if (!c) return true;
    if (is_in_use(c)) {
        iso__log(ISO_LOG_ERROR,
                 "a channel was destroyed with exchanges under way: its memory is not freed");
        return false;
    }
    list_channel(c, false);
    give_back(c);
    iso__comm_give_queue(c->comm, c->queue);
    iso__hierarchy_destroy(&c->hierarchy);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && c->mpi != MPI_COMM_NULL) MPI_Comm_free(&c->mpi);
    iso__channel_free_places(c);
    iso_comm_destroy(&c->comm);
    iso__free(c->chunk);
    iso__free(c->item);
    iso__free(c);
    return true;
}

// ---- Ready and wait ---------------------------------------------------------------------------------

iso_status iso__channel_ready(iso__channel *c, int i) {
    iso__channel_entry *m = &c->item[i];
    iso__engine *engine = c->comm->engine;
    ISO_CHECK(!engine->finalized, ISO_ERR_STATE, "an exchange was started after MPI_Finalize");
    ISO_TRY(item_verdict(c, i));
    ISO_CHECK(!iso__entry_is_pending(m), ISO_ERR_STATE,
              "\"%s\" was made ready twice: its exchange is still under way", m->given.label);
    pthread_mutex_lock(&engine->lock);
    m->times = (iso__channel_times){.ready_ns = iso_now()};
    m->chunks_left = m->chunks;
    atomic_fetch_add_explicit(&m->announced, 1, memory_order_relaxed);
    iso__channel_issue(c);
    iso__engine_kick(engine);
    pthread_mutex_unlock(&engine->lock);
    ISO_TRY(item_verdict(c, i));
    return ISO_OK;
}

// An item that is not ready on this rank, although one of its chunks must leave before the last
// chunk of m; -1: none.
static int find_blocking(const iso__channel *c, const iso__channel_entry *m) {
    uint64_t round = c->round, last = m->announced - 1;
    for (int k = c->next; round < last || (round == last && k <= m->last);) {
        if (c->item[c->chunk[k].item].announced <= round) return c->chunk[k].item;
        if (++k < c->chunk_count) continue;
        k = 0;
        round++;
    }
    return -1;
}

typedef struct awaited_item {
    const iso__channel *channel;
    const iso__channel_entry *item;
} awaited_item;

static bool is_over(const void *what) {
    const awaited_item *a = what;
    return !iso__entry_is_pending(a->item) || iso__channel_has_failed(a->channel);
}

static iso_status wait_locked(iso__channel *c, const iso__channel_entry *m, iso__channel_idle idle,
                              void *user) {
    if (is_over(&(awaited_item){c, m})) {
        iso__engine_adapt(c->comm->engine, m->times.ready_ns, true); // it may sleep longer
        return ISO_OK;
    }
    if (c->comm->engine->finalized) return ISO_OK; // the verdict will say so
    int blocking = find_blocking(c, m);
    ISO_CHECK(blocking < 0, ISO_ERR_STATE,
              "\"%s\" is waited for, but \"%s\" leaves before it and was not made ready on this "
              "rank: make all of a round ready first",
              m->given.label, c->item[blocking].given.label);
    return iso__engine_wait(c->comm->engine, &(iso__awaited){.comm = c->comm,
                                                             .stream = &c->stream,
                                                             .name = m->given.label,
                                                             .began_ns = m->times.ready_ns,
                                                             .what = &(awaited_item){c, m},
                                                             .is_done = is_over,
                                                             .idle = {idle, user, false}});
}

bool iso__channel_is_done(const iso__channel *c, int i) {
    return !iso__entry_is_pending(&c->item[i]);
}

iso_status iso__channel_wait(iso__channel *c, int i, iso__channel_idle idle, void *user) {
    if (atomic_load_explicit(&c->item[i].announced, memory_order_relaxed) == 0) return ISO_OK;
    pthread_mutex_lock(&c->comm->engine->lock);
    iso_status status = wait_locked(c, &c->item[i], idle, user);
    pthread_mutex_unlock(&c->comm->engine->lock);
    ISO_TRY(status);
    ISO_TRY(item_verdict(c, i));
    return ISO_OK;
}

iso__channel_times iso__channel_times_of(const iso__channel *c, int i) { return c->item[i].times; }

iso__channel_load iso__channel_load_of(iso__channel *c) {
    pthread_mutex_lock(&c->comm->engine->lock);
    iso__channel_load load = c->load;
    if (c->in_flight > 0) load.busy_ns += iso_now() - c->busy_since;
    pthread_mutex_unlock(&c->comm->engine->lock);
    return load;
}
