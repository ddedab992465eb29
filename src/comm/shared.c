// SPDX-License-Identifier: MIT
// Memory that the ranks of a node share: checks whether it is possible, creates and frees it.
//
// POSIX shared memory rather than an MPI window: Open MPI 4.1 unmaps windows in MPI_Finalize, after
// which gradients may still be read; it waits for ever if /dev/shm is full on only one rank; and if
// tmpfs fills up later, touching a window kills the process.
#include "comm/comm_calls.h"
#include "comm/segment.h"
#include "comm/shared_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

// ---- Memory that can be shared: it lies behind room for the board ---------------------------------

static iso__board *board_of(void *memory) {
    return (iso__board *)(void *)((char *)memory - sizeof(iso__board));
}

static size_t whole_bytes(const iso__board *board) { return sizeof(*board) + board->bytes; }

iso_status iso__shareable_alloc(size_t bytes, void **memory) {
    void *at = mmap(NULL, sizeof(iso__board) + bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ISO_CHECK(at != MAP_FAILED, ISO_ERR_NOMEM, "no memory for %zu bytes", bytes);
    iso__board *board = at;
    board->bytes = bytes;
    *memory = board + 1;
    return ISO_OK;
}

void iso__shareable_free(void **memory) {
    if (*memory) munmap(board_of(*memory), whole_bytes(board_of(*memory)));
    *memory = NULL;
}

// ---- Segments: one per rank, named by its id until all have mapped it -----------------------------

static void unmap_boards(iso__shared *s) {
    for (int r = 0; s->board && r < s->comm->size; r++)
        if (s->board[r] && s->board[r] != s->own) munmap(s->board[r], whole_bytes(s->own));
}

// Creates this rank's segment with the contents of its memory. Returns the id of the segment, or 0
// if there is no room.
static int64_t create_segment(iso__shared *s) {
    int64_t id;
    iso__board *board = iso__segment_create(whole_bytes(s->own), &id);
    if (!board) return 0;
    memcpy(board + 1, s->own + 1, s->own->bytes);
    board->bytes = s->own->bytes;
    board->id = id;
    board->helped = s->comm->engine->mode == ISO_PROGRESS_THREAD;
    s->board[s->comm->rank] = board;
    return id;
}

// Maps the segments of the other ranks. Returns false if one cannot be mapped.
static bool map_segments(iso__shared *s, const int64_t *id) {
    for (int r = 0; r < s->comm->size; r++) {
        if (s->board[r]) continue;
        s->board[r] = iso__segment_map(id[r], whole_bytes(s->own), NULL);
        if (!s->board[r] || s->board[r]->id != id[r]) return false;
    }
    return true;
}

// Maps this rank's segment at the address of its memory, which it replaces.
static iso_status move_in(iso__shared *s, int64_t id) {
    iso__board **mine = &s->board[s->comm->rank];
    size_t bytes = whole_bytes(s->own);
    ISO_CHECK(iso__segment_map(id, bytes, s->own) == s->own, ISO_ERR_NOMEM,
              "shared memory of %zu bytes could not be mapped: %s", bytes, strerror(errno));
    munmap(*mine, bytes);
    *mine = s->own;
    return ISO_OK;
}

// ---- Whether memory is shared ---------------------------------------------------------------------

iso_status iso__node_collective(int *out) {
    static const char *const name[] = {"auto", "shm", "mpi", "nccl", "nccl-all"};
    const char *text = iso__env_string(ISO_ENV_NODE_COLLECTIVE);
    *out = ISO_NODE_AUTO;
    for (int i = 0; text && i <= ISO_NODE_NCCL_ALL; i++)
        if (strcmp(text, name[i]) == 0) *out = i;
    return iso__env_check(ISO_ENV_NODE_COLLECTIVE);
}

static iso_status all_hold(iso_comm *comm, bool mine, bool *out) {
    int64_t vote = mine;
    ISO_TRY(iso_comm_allreduce_i64(comm, &vote, 1, ISO_MIN));
    *out = vote != 0;
    return ISO_OK;
}

// Creates and maps all segments. *why_not: the reason why that failed on some rank, else NULL.
static iso_status share_segments(iso__shared *s, int64_t *id, const char **why_not) {
    iso_comm *comm = s->comm;
    int64_t mine = create_segment(s);
    bool all = false;
    id[comm->rank] = mine;
    iso_status status = iso_comm_allreduce_i64(comm, id, (size_t)comm->size, ISO_SUM);
    if (status >= 0) {
        bool mapped = true;
        *why_not = NULL;
        for (int r = 0; r < comm->size; r++)
            if (id[r] == 0) *why_not = "there is no room for shared memory";
        if (!*why_not) mapped = map_segments(s, id);
        status = all_hold(comm, mapped, &all);
        if (!all) *why_not = "a rank cannot reach the shared memory of another";
        if (all && !*why_not) status = iso_comm_agree(comm, move_in(s, mine));
    }
    iso__segment_unlink(mine); // no rank needs the name any more
    return status;
}

// Checks whether settings or hosts rule out sharing. *why_not: the reason, the same on every rank;
// NULL if there is none.
static iso_status check_settings(iso_comm *comm, size_t bytes, int *mode, const char **why_not) {
    bool together = false;
    ISO_TRY(iso_comm_agree(comm, iso__node_collective(mode)));
    ISO_TRY(iso__comm_check_equal(comm, *mode,
                                  "ISO_NODE_COLLECTIVE (auto, shm, mpi, nccl, nccl-all: 0 to 4)"));
    ISO_TRY(iso__comm_check_equal(comm, (int64_t)bytes, "the size of shared memory"));
    *why_not = *mode == ISO_NODE_MPI ? "ISO_NODE_COLLECTIVE"
               : comm->size == 1     ? "one rank"
               : comm->shared        ? "the communicator has shared memory already"
                                     : NULL;
    if (*why_not) return ISO_OK;
    ISO_TRY(iso__comm_on_one_host(comm, &together)); // ISO_RANKS_PER_NODE may have made the "node"
    if (!together) *why_not = "the ranks are on several hosts";
    return ISO_OK;
}

// ---- Life -----------------------------------------------------------------------------------------

static void free_record(iso__shared *s) {
    if (!s) return;
    unmap_boards(s);
    iso__free(s->board);
    iso__free(s);
}

static iso_status allocate_record(iso_comm *comm, iso__board *own, iso__shared **out,
                                  int64_t **id) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__shared), &memory));
    *out = memory;
    **out = (iso__shared){.comm = comm, .own = own, .bytes = own->bytes};
    ISO_TRY(iso__alloc_zero((size_t)comm->size * sizeof(iso__board *), (void **)&(*out)->board));
    ISO_TRY(iso__alloc_zero((size_t)comm->size * sizeof(**id), (void **)id));
    return ISO_OK;
}

// *out is NULL if memory cannot be shared; *why_not is then the reason.
static iso_status create_record(iso_comm *comm, iso__board *own, iso__shared **out,
                                const char **why_not) {
    iso__shared *s = NULL;
    int64_t *id = NULL;
    iso_status status = iso_comm_agree(comm, allocate_record(comm, own, &s, &id));
    if (status >= 0) status = share_segments(s, id, why_not);
    iso__free(id);
    if (status < 0 || *why_not) {
        free_record(s);
        s = NULL;
    }
    ISO_TRY(status);
    *out = s;
    return ISO_OK;
}

static void log_choice(const iso_comm *comm, const char *why_not) {
    if (comm->rank > 0) return;
    if (why_not)
        iso__log(ISO_LOG_INFO, "node collective: MPI (%s)", why_not);
    else
        iso__log(ISO_LOG_INFO, "node collective: shared memory of %d ranks", comm->size);
}

// Takes the engine's lock, because its threads walk the list.
static void list_memory(iso__engine *engine, iso__shared *s, bool add) {
    pthread_mutex_lock(&engine->lock);
    iso__shared **at = &engine->shared;
    if (add) s->older = *at;
    while (!add && *at != s) at = &(*at)->older;
    *at = add ? s : s->older;
    pthread_mutex_unlock(&engine->lock);
}

iso_status iso__comm_share(iso_comm *comm, void *memory) {
    int mode;
    const char *why_not = NULL;
    iso__shared *s = NULL;
    iso__board *own = board_of(memory);
    ISO_TRY(check_settings(comm, own->bytes, &mode, &why_not));
    if (!why_not) ISO_TRY(create_record(comm, own, &s, &why_not));
    log_choice(comm, why_not);
    ISO_CHECK(s || mode != ISO_NODE_SHM || comm->size == 1 || comm->shared, ISO_ERR_UNSUPPORTED,
              "ISO_NODE_COLLECTIVE is shm, but %s: set it to auto or mpi", why_not);
    if (!s) return ISO_OK;
    list_memory(comm->engine, s, true);
    comm->shared = s;
    return ISO_OK;
}

void iso__comm_unshare(iso_comm *comm, void *memory) {
    iso__shared *s = comm->shared;
    if (!s || !memory || s->own != board_of(memory)) return;
    list_memory(comm->engine, s, false);
    comm->shared = NULL;
    free_record(s);
}
