// SPDX-License-Identifier: MIT
// Creates watches: who shares a board with whom, the boards, and the connection between hosts.
#include "comm/comm_calls.h"
#include "comm/segment.h"
#include "comm/watch_impl.h"

#include <isotherm/trace.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEAT_MOST_NS  500000000
#define BEAT_LEAST_NS 20000000

// ---- Memory ---------------------------------------------------------------------------------------

static iso_status allocate_watch(int size, iso__watch **out) {
    void *memory;
    size_t n = (size_t)size;
    ISO_TRY(iso__alloc_zero(sizeof(iso__watch), &memory));
    iso__watch *w = *out = memory;
    w->mpi = MPI_COMM_NULL;
    w->arriving = MPI_REQUEST_NULL;
    w->group = MPI_GROUP_NULL;
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->board_of), (void **)&w->board_of));
    return iso__alloc_zero(n * sizeof(iso__seat *), (void **)&w->seat);
}

// ---- Hosts and boards -----------------------------------------------------------------------------

// Numbers the boards. lowest[r]: the lowest rank that shares a board with rank r.
static iso_status number_boards(iso__watch *w, const int64_t *lowest) {
    for (int r = 0; r < w->size; r++)
        w->board_of[r] = lowest[r] == r ? w->boards++ : w->board_of[lowest[r]];
    size_t n = (size_t)w->boards;
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->lowest), (void **)&w->lowest));
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->host), (void **)&w->host));
    for (int r = w->size - 1; r >= 0; r--) w->lowest[w->board_of[r]] = r;
    return ISO_OK;
}

// lowest: [size].
static iso_status find_boards(iso_comm *comm, iso__watch *w, int64_t *lowest) {
    ISO_TRY(iso__comm_find_hosts(comm, lowest));
    return iso_comm_agree(comm, number_boards(w, lowest));
}

static int count_ranks(const iso__watch *w, int board) {
    int n = 0;
    for (int r = 0; r < w->size; r++) n += w->board_of[r] == board;
    return n;
}

// Each board's lowest rank gives its name; the others add zeros.
static iso_status name_hosts(iso_comm *comm, iso__watch *w) {
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int length, own = w->board_of[w->rank];
    size_t words = (size_t)w->boards * sizeof(*w->host) / sizeof(int64_t);
    MPI_Get_processor_name(name, &length);
    if (w->lowest[own] == w->rank)
        snprintf(w->host[own], ISO_HOST_ROOM, "%.*s", ISO_HOST_ROOM - 1, name);
    return iso_comm_allreduce_i64(comm, (void *)w->host, words, ISO_SUM);
}

// With the board mapped: where the seats are, and what this rank shows.
static void take_seats(const iso_comm *comm, iso__watch *w) {
    iso__seat *next = w->board;
    for (int r = 0; r < w->size; r++)
        if (w->board_of[r] == w->board_of[w->rank]) w->seat[r] = next++;
    iso__seat *own = w->seat[w->rank];
    struct stat space;
    char state;
    own->process = getpid();
    own->born = iso__process_born(own->process, &state);
    own->space = stat("/proc/self/ns/pid", &space) == 0 ? (int64_t)space.st_ino : 0;
    own->helped = comm->engine->mode == ISO_PROGRESS_THREAD;
    atomic_store(&own->moved_ns, iso_now());
    atomic_store(&own->beat_ns, iso_now());
}

// Gives every rank a board of its own.
static iso_status part_ranks(iso__watch *w) {
    void *host, *lowest;
    size_t n = (size_t)w->size;
    ISO_TRY(iso__alloc_zero(n * sizeof(*w->host), &host));
    iso_status status = iso__alloc_zero(n * sizeof(*w->lowest), &lowest);
    if (status < 0) iso__free(host);
    ISO_TRY(status);
    for (int r = 0; r < w->size; r++) {
        memcpy((char *)host + (size_t)r * sizeof(*w->host), iso__watch_host(w, r),
               sizeof(*w->host));
        ((int *)lowest)[r] = r;
    }
    for (int r = 0; r < w->size; r++) w->board_of[r] = r;
    iso__free(w->host);
    iso__free(w->lowest);
    w->host = host;
    w->lowest = lowest;
    w->boards = w->size;
    return ISO_OK;
}

// Without shared memory ranks ask each other by messages.
static iso_status separate_boards(iso__watch *w) {
    if (w->board) munmap(w->board, w->board_bytes);
    w->board = NULL;
    ISO_TRY(part_ranks(w));
    w->board_ranks = 1;
    w->board_bytes = sizeof(iso__seat);
    memset(w->seat, 0, (size_t)w->size * sizeof(iso__seat *));
    w->board =
        mmap(NULL, w->board_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->board == MAP_FAILED) w->board = NULL;
    ISO_CHECK(w->board, ISO_ERR_NOMEM, "no memory for %zu bytes", w->board_bytes);
    return ISO_OK;
}

// id: [size] zeros.
static iso_status share_boards(iso_comm *comm, iso__watch *w, int64_t *id) {
    int64_t mine = 0;
    int lead = w->lowest[w->board_of[w->rank]];
    for (int b = 0; b < w->boards; b++) {
        int ranks = count_ranks(w, b);
        w->board_ranks = ranks > w->board_ranks ? ranks : w->board_ranks;
    }
    w->board_bytes = (size_t)w->board_ranks * sizeof(iso__seat);
    if (lead == w->rank) w->board = iso__segment_create(w->board_bytes, &mine);
    id[w->rank] = w->board ? mine : 0;
    iso_status status = iso_comm_allreduce_i64(comm, id, (size_t)w->size, ISO_SUM);
    if (status == ISO_OK && lead != w->rank && id[lead])
        w->board = iso__segment_map(id[lead], w->board_bytes, NULL);
    int64_t all = w->board != NULL;
    if (status == ISO_OK) status = iso_comm_allreduce_i64(comm, &all, 1, ISO_MIN);
    if (w->board && lead == w->rank) iso__segment_unlink(mine);
    if (status == ISO_OK && !all) status = iso_comm_agree(comm, separate_boards(w));
    ISO_TRY(status);
    take_seats(comm, w);
    return ISO_OK;
}

// ---- The watch ------------------------------------------------------------------------------------

static int64_t choose_period(const iso_comm *comm) {
    double warn = comm->engine->stall_warn_s, limit = comm->timeout_s;
    double first = warn > 0 && (limit == 0 || warn < limit) ? warn : limit;
    int64_t period = first > 0 && first < 1e3 ? (int64_t)(first * 1e8) : BEAT_MOST_NS;
    return period < BEAT_LEAST_NS ? BEAT_LEAST_NS : period > BEAT_MOST_NS ? BEAT_MOST_NS : period;
}

static iso_status connect_hosts(iso_comm *comm, iso__watch *w) {
    if (w->boards == 1) return ISO_OK; // all on one host
    w->message_bytes = 2 * sizeof(uint64_t) + (size_t)w->board_ranks * sizeof(iso__fact);
    ISO_TRY(iso_comm_agree(comm, iso__alloc_zero(w->message_bytes, (void **)&w->inbox)));
    ISO_TRY(iso__comm_meet(comm, "the barrier before MPI_Comm_create_group"));
    return iso__comm_copy(comm, comm->mpi, &w->mpi);
}

static iso_status fill_watch(iso_comm *comm, iso__watch *w) {
    void *memory = NULL;
    w->rank = comm->rank;
    w->size = comm->size;
    w->period_ns = choose_period(comm);
    ISO_TRY(iso__comm_alloc_zero(comm, (size_t)w->size * sizeof(int64_t), &memory));
    iso_status status = find_boards(comm, w, memory);
    if (status == ISO_OK) status = name_hosts(comm, w);
    memset(memory, 0, (size_t)w->size * sizeof(int64_t));
    if (status == ISO_OK) status = share_boards(comm, w, memory);
    if (status == ISO_OK) status = connect_hosts(comm, w);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status create_watch(iso_comm *comm, uint64_t id, iso__watch **out) {
    iso__watch *w = NULL;
    iso__engine *engine = comm->engine;
    iso_status status = allocate_watch(comm->size, &w);
    if (status == ISO_OK && MPI_Comm_group(comm->mpi, &w->group) != MPI_SUCCESS)
        status = ISO_FAIL(ISO_ERR_MPI, "MPI_Comm_group failed");
    status = iso_comm_agree(comm, status);
    if (status == ISO_OK) status = fill_watch(comm, w);
    if (status < 0) {
        if (w && w->group != MPI_GROUP_NULL) MPI_Group_free(&w->group);
        if (!comm->lost) iso__watch_free(w); // after a time-out MPI may still write into it
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    w->id = id;
    pthread_mutex_lock(&engine->lock);
    w->older = engine->watches;
    engine->watches = w;
    if (engine->beat_ns == 0 || w->period_ns < engine->beat_ns) engine->beat_ns = w->period_ns;
    pthread_cond_signal(&engine->wake); // the helper beats from now on
    pthread_mutex_unlock(&engine->lock);
    *out = w;
    return ISO_OK;
}

// ---- Joining --------------------------------------------------------------------------------------

// seat_of[r] = the number of rank r in the watch. Returns false if the watch misses one. own: the
// numbers 0, 1, ...
static bool find_seats(const iso__watch *w, MPI_Group group, int size, const int *own,
                       int *seat_of) {
    if (MPI_Group_translate_ranks(group, size, own, w->group, seat_of) != MPI_SUCCESS) return false;
    for (int r = 0; r < size; r++)
        if (seat_of[r] == MPI_UNDEFINED) return false;
    return true;
}

// The number of a new watch or stream.
static int64_t make_number(void) {
    static atomic_int made;
    int64_t seed[3] = {getpid(), iso_now(), atomic_fetch_add(&made, 1)};
    return (int64_t)(iso__hash(ISO_HASH_START, seed, sizeof(seed)) >> 2) + 1;
}

static iso_status choose_watch(iso_comm *comm, MPI_Group group, const int *own) {
    pthread_mutex_lock(&comm->engine->lock);
    iso__watch *w = comm->engine->watches;
    pthread_mutex_unlock(&comm->engine->lock);
    while (w && !find_seats(w, group, comm->size, own, comm->seat_of)) w = w->older;
    int64_t id = w ? (int64_t)w->id : 0;
    int64_t vote[3] = {id, -id, comm->rank == 0 ? make_number() : INT64_MAX};
    ISO_TRY(iso_comm_allreduce_i64(comm, vote, 3, ISO_MIN));
    bool same = vote[0] > 0 && vote[0] == -vote[1];
    if (!same) ISO_TRY(create_watch(comm, (uint64_t)vote[2], &w));
    if (!same) find_seats(w, group, comm->size, own, comm->seat_of);
    pthread_mutex_lock(&comm->engine->lock);
    iso__stream_open(w, &comm->meetings, (uint64_t)vote[2]);
    iso__stream_open(w, &comm->sums, (uint64_t)vote[2] + 1);
    comm->watch = w;
    pthread_mutex_unlock(&comm->engine->lock);
    return ISO_OK;
}

static iso_status join_watch(iso_comm *comm, iso_status mine) {
    void *memory = NULL;
    MPI_Group group = MPI_GROUP_NULL;
    if (comm->size == 1) return mine;
    size_t bytes = (size_t)comm->size * sizeof(int);
    if (mine == ISO_OK) mine = iso__alloc(bytes, (void **)&comm->seat_of);
    if (mine == ISO_OK) mine = iso__alloc(bytes, &memory);
    int rc = MPI_Comm_group(comm->mpi, &group);
    if (mine == ISO_OK && rc != MPI_SUCCESS)
        mine = iso__mpi_error(rc, "MPI_Comm_group", __func__, __FILE__, __LINE__);
    iso_status status = iso_comm_agree(comm, mine);
    int *own = memory;
    for (int r = 0; own && r < comm->size; r++) own[r] = r;
    if (status == ISO_OK) status = choose_watch(comm, group, own);
    if (group != MPI_GROUP_NULL) MPI_Group_free(&group);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

// Turns ISO_DEBUG=detail off meanwhile, because it numbers the collectives of the program.
iso_status iso__watch_join(iso_comm *comm, iso_status mine) {
    iso__debug *debug = comm->debug;
    comm->debug = NULL;
    iso_status status = join_watch(comm, mine);
    comm->debug = debug;
    ISO_TRY(status);
    return ISO_OK;
}
