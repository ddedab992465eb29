// SPDX-License-Identifier: MIT
// Loads the newest set of files that is complete and undamaged on every rank.
#include "optim/resume/resume_impl.h"

#include <inttypes.h>
#include <string.h>

typedef struct load {
    iso_comm *comm;
    const char *path;
    const iso_state *state;
    bool own;     // whether any rank has own entries
    int64_t step; // of the set that is tried
    iso__set_head head;
    bool relaid;              // other ranks shared nodes when it was saved
    iso__safetensors file[2]; // of each iso_state_owner; shared: on rank 0
    int64_t *begin;           // of each shared entry, in the data of its file; -1: not there
    void *data;               // of the shared file, on other ranks than 0
    int64_t rows;             // of forward_counters in it
    void *merged;             // own arrays, if is_foreign()
} load;

// Whether the own arrays of all ranks are merged, because ranks or nodes are others.
static bool is_foreign(const load *l) {
    return l->relaid || l->head.ranks != iso_comm_size(l->comm);
}

static void forget_set(load *l) {
    for (int k = 0; k < 2; k++) iso__safetensors_close(&l->file[k]);
    iso__free(l->begin);
    iso__free(l->data);
    iso__free(l->merged);
    l->begin = NULL;
    l->data = l->merged = NULL;
}

// ---- One file -----------------------------------------------------------------------------------

static iso_status check_head(const load *l, const iso__safetensors *file, const iso__set_head *head,
                             int rank) {
    int ranks = iso_comm_size(l->comm);
    ISO_CHECK(head->step == l->step && head->rank == rank, ISO_ERR_FORMAT,
              "%s is not what its name says: it was saved under another one", file->path);
    if (l->state->saved_ranks && head->ranks > 0 && head->ranks != ranks) return ISO_OK;
    ISO_CHECK(head->ranks == ranks, ISO_ERR_MISMATCH,
              "%s was saved by %d rank%s and this run has %d: resume with the same number",
              file->path, head->ranks, ISO_PLURAL(head->ranks), ranks);
    ISO_CHECK(
        head->own == l->own, ISO_ERR_MISMATCH,
        "%s was saved by another kind of training: it has %s that differ between ranks, and this "
        "run has %s",
        file->path, l->own ? "no entries" : "entries", l->own ? "some" : "none");
    return ISO_OK;
}

// Reads and checks everything that can be wrong with a file.
static iso_status read_file(load *l, const char *name, iso_state_owner owner) {
    iso__safetensors *file = &l->file[owner];
    bool shared = owner == ISO_STATE_SHARED;
    iso__set_head head;
    ISO_TRY(iso__set_open(name, file, &head));
    ISO_TRY(check_head(l, file, &head, shared ? ISO__SHARED_FILE : iso_comm_rank(l->comm)));
    ISO_CHECK(shared || head.set == l->head.set, ISO_ERR_FORMAT,
              "%s and the other files of step %" PRId64 " belong to different sets", name, l->step);
    if (shared)
        ISO_TRY(iso__shared_match(file, l->state, head.ranks, &l->rows));
    else
        ISO_TRY(iso__safetensors_match(file, l->state->array[owner], l->state->count[owner]));
    ISO_TRY(iso__set_load(file));
    if (shared) l->head = head;
    return ISO_OK;
}

// After the shared file has been read.
static iso_status compare_layouts(load *l) {
    const iso_state *state = l->state;
    const iso__safetensors *file = &l->file[ISO_STATE_SHARED];
    const iso__stored *stored =
        state->layout ? iso__safetensors_find(file, state->layout_name) : NULL;
    int64_t saved = -1;
    if (stored) memcpy(&saved, file->data + stored->begin, sizeof(saved));
    bool same_ranks = l->head.ranks == iso_comm_size(l->comm);
    l->relaid = stored && same_ranks && saved != *state->layout;
    ISO_CHECK(!l->relaid || state->relaid, ISO_ERR_MISMATCH,
              "%s was saved with the ranks distributed over nodes in another way: distribute them "
              "as then",
              file->path);
    return ISO_OK;
}

static iso_status read_shared(load *l) {
    char name[ISO__PATH_ROOM];
    iso__set_path(l->path, l->step, ISO__SHARED_FILE, "", name);
    ISO_TRY(read_file(l, name, ISO_STATE_SHARED));
    return compare_layouts(l);
}

static iso_status read_own(load *l) {
    char name[ISO__PATH_ROOM];
    iso__set_own_path(l->path, &l->head, iso_comm_rank(l->comm), name);
    return read_file(l, name, ISO_STATE_OWN);
}

// ---- One set ------------------------------------------------------------------------------------

// The same on every rank: ISO_OK, ISO_PENDING (the set is damaged or incomplete; the last error
// says why), or an error.
static iso_status agree_verdict(iso_comm *comm, iso_status mine) {
    int64_t grade = mine >= 0 ? 0 : mine == ISO_ERR_FORMAT || mine == ISO_ERR_IO ? 1 : 2;
    int64_t worst = grade;
    ISO_TRY(iso_comm_allreduce_i64(comm, &worst, 1, ISO_MAX));
    iso_status status = iso_comm_agree(comm, grade == worst ? mine : ISO_OK);
    if (worst == 1 && (status == ISO_ERR_FORMAT || status == ISO_ERR_IO)) return ISO_PENDING;
    return status;
}

static iso_status alloc_shared(load *l, int64_t bytes) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)l->state->count[ISO_STATE_SHARED] * sizeof(int64_t), &memory));
    l->begin = memory;
    if (iso_comm_rank(l->comm) != 0) ISO_TRY(iso__alloc((size_t)bytes, &l->data));
    return ISO_OK;
}

static int64_t begin_of(const iso__safetensors *file, const iso__array *array) {
    const iso__stored *stored = iso__safetensors_find(file, array->name);
    return stored ? stored->begin : -1;
}

// Rank 0 sends what it has read to all.
static iso_status share_file(load *l) {
    int count = l->state->count[ISO_STATE_SHARED];
    const iso__safetensors *file = &l->file[ISO_STATE_SHARED];
    bool root = iso_comm_rank(l->comm) == 0;
    int64_t bytes = file->data_bytes;
    ISO_TRY(iso_comm_bcast(l->comm, &bytes, sizeof(bytes), 0));
    ISO_TRY(iso_comm_bcast(l->comm, &l->rows, sizeof(l->rows), 0));
    ISO_TRY(iso_comm_agree(l->comm, alloc_shared(l, bytes)));
    for (int i = 0; root && i < count; i++)
        l->begin[i] = begin_of(file, &l->state->array[ISO_STATE_SHARED][i]);
    ISO_TRY(iso_comm_bcast(l->comm, l->begin, (size_t)count * sizeof(int64_t), 0));
    ISO_TRY(iso_comm_bcast(l->comm, root ? file->data : l->data, (size_t)bytes, 0));
    return ISO_OK;
}

// Merges the own arrays of all ranks that saved. Rank 0 reads them, and all ranks get the result.
static iso_status merge_own(load *l) {
    size_t bytes = iso__own_bytes(l->state);
    bool root = iso_comm_rank(l->comm) == 0;
    ISO_TRY(iso__own_match(l->comm, l->state));
    ISO_TRY(iso_comm_agree(l->comm, iso__alloc(bytes + 1, &l->merged)));
    iso_status mine = root ? iso__own_merge_all(l->path, &l->head, l->state, l->merged) : ISO_OK;
    iso_status status = agree_verdict(l->comm, mine);
    if (status != ISO_OK) return status;
    if (bytes > 0) ISO_TRY(iso_comm_bcast(l->comm, l->merged, bytes, 0));
    return ISO_OK;
}

static iso_status try_set(load *l) {
    bool root = iso_comm_rank(l->comm) == 0;
    iso_status status = agree_verdict(l->comm, root ? read_shared(l) : ISO_OK);
    if (status != ISO_OK) return status;
    ISO_TRY(iso_comm_bcast(l->comm, &l->head, sizeof(l->head), 0));
    ISO_TRY(iso_comm_bcast(l->comm, &l->relaid, sizeof(l->relaid), 0));
    status = is_foreign(l) ? merge_own(l) : agree_verdict(l->comm, l->own ? read_own(l) : ISO_OK);
    if (status != ISO_OK) return status;
    ISO_TRY(share_file(l));
    return ISO_OK;
}

// begin -1: the file lacks this optional number, which becomes -1.
static iso_status place_array(const iso__array *array, const char *data, int64_t begin) {
    void *to;
    ISO_TRY(iso__array_open(array, ISO_WRITE, &to));
    if (begin >= 0)
        memcpy(to, data + begin, iso__array_bytes(array));
    else
        memset(to, 0xff, iso__array_bytes(array));
    ISO_TRY(iso__array_close(array));
    return ISO_OK;
}

// This rank takes row rank % rows of forward_counters.
static void place_table(const load *l, const char *data, int64_t begin) {
    const iso_state *state = l->state;
    size_t bytes = (size_t)state->places * sizeof(int64_t);
    int64_t row = iso_comm_rank(l->comm) % l->rows;
    if (bytes > 0)
        memcpy(state->table + (int64_t)state->row * state->places,
               data + begin + row * (int64_t)bytes, bytes);
}

static iso_status place_shared(const load *l) {
    bool root = iso_comm_rank(l->comm) == 0;
    const char *data = root ? l->file[ISO_STATE_SHARED].data : l->data;
    for (int i = 0; i < l->state->count[ISO_STATE_SHARED]; i++) {
        const iso__array *array = &l->state->array[ISO_STATE_SHARED][i];
        bool table = l->state->table && array->data == l->state->table;
        if (table && (is_foreign(l) || l->rows != array->shape[0]))
            place_table(l, data, l->begin[i]);
        else
            ISO_TRY(place_array(array, data, l->begin[i]));
    }
    return ISO_OK;
}

static iso_status place_merged(const load *l) {
    const char *data = l->merged;
    for (int i = 0; i < l->state->count[ISO_STATE_OWN]; i++) {
        const iso__array *array = &l->state->array[ISO_STATE_OWN][i];
        size_t kept = iso__own_kept(l->state, i);
        void *to;
        ISO_TRY(iso__array_open(array, ISO_WRITE, &to));
        memset(to, 0, iso__array_bytes(array)); // what is not kept
        memcpy(to, data, kept);
        ISO_TRY(iso__array_close(array));
        data += iso__own_room(l->state, i);
    }
    return ISO_OK;
}

static iso_status place_own(const load *l) {
    const iso__safetensors *own = &l->file[ISO_STATE_OWN];
    for (int i = 0; i < l->state->count[ISO_STATE_OWN]; i++) {
        const iso__array *array = &l->state->array[ISO_STATE_OWN][i];
        ISO_TRY(place_array(array, own->data, begin_of(own, array)));
    }
    return ISO_OK;
}

static void tell_ranks(const load *l) {
    if (iso_comm_rank(l->comm) != 0) return;
    iso__log(ISO_LOG_INFO,
             "the state of step %" PRId64 " was saved by %d rank%s and is loaded by %d%s: of what "
             "each rank had, %d entries become the mean, sum or first, and %d begin at zero",
             l->step, l->head.ranks, ISO_PLURAL(l->head.ranks), iso_comm_size(l->comm),
             l->relaid ? ", distributed over nodes in another way" : "",
             l->state->count[ISO_STATE_OWN] - iso__own_zeros(l->state), iso__own_zeros(l->state));
}

static iso_status place_all(const load *l) {
    ISO_TRY(place_shared(l));
    ISO_TRY(is_foreign(l) ? place_merged(l) : place_own(l));
    iso__state_scatter(l->state);
    if (is_foreign(l) && l->state->moved) l->state->moved(l->state->moved_user);
    if (is_foreign(l)) tell_ranks(l);
    if (l->state->saved_ranks) *l->state->saved_ranks = l->head.ranks;
    if (l->state->relaid) *l->state->relaid = l->relaid;
    return ISO_OK;
}

// ---- The newest set -----------------------------------------------------------------------------

// On rank 0: the steps of all sets, whole or not, newest first.
static iso_status list_steps(const char *path, int64_t **out, int *count) {
    iso__set_file *files = NULL;
    int file_count = 0;
    ISO_TRY(iso__set_path_check(path));
    ISO_TRY(iso__set_list(path, &files, &file_count));
    iso_status status = iso__set_steps(files, file_count, true, out, count);
    iso__free(files);
    ISO_TRY(status);
    if (*count > 0) return ISO_OK;
    const char *slash = strrchr(path, '/');
    const char *step = strstr(slash ? slash : path, ".step-"); // a file of a set was given
    ISO_CHECK(!step, ISO_ERR_IO, "there is no saved state %s.step-*: give the path without %s",
              path, step);
    return ISO_FAIL(
        ISO_ERR_IO,
        "there is no saved state %s.step-*: check the path, or start the run without resuming",
        path);
}

// Step number i of rank 0's list.
static iso_status try_step(load *l, const int64_t *steps, int i) {
    if (iso_comm_rank(l->comm) == 0) l->step = steps[i];
    ISO_TRY(iso_comm_bcast(l->comm, &l->step, sizeof(l->step), 0));
    forget_set(l);
    return try_set(l);
}

#define REASON_ROOM sizeof(((iso_error *)0)->message)

// The reason names a file of the path.
static iso_status fail_all(iso_status code, const char *reason) {
    return ISO_FAIL(code,
                    "no saved state is complete and intact (the newest: %.350s): start a new run "
                    "under another path, or give the path of an intact copy",
                    reason);
}

static iso_status load_newest(load *l, const int64_t *steps, int count) {
    char reason[REASON_ROOM] = "";
    for (int i = 0; i < count; i++) {
        iso_status status = try_step(l, steps, i);
        if (status == ISO_OK) return iso_comm_agree(l->comm, place_all(l));
        ISO_TRY(status);
        const char *message = iso_last_error()->message;
        if (iso_comm_rank(l->comm) == 0)
            iso__log(ISO_LOG_WARN, "the saved state of step %" PRId64 " is skipped: %s", l->step,
                     message);
        if (i == 0) memcpy(reason, message, sizeof(reason));
    }
    return fail_all(ISO_ERR_IO, reason);
}

iso_status iso_resume_load(iso_comm *comm, const char *path, const iso_state *state,
                           int64_t *step) {
    load l = {.comm = comm, .path = path, .state = state};
    int64_t *steps = NULL, own = state->count[ISO_STATE_OWN] > 0;
    int count = 0;
    ISO_TRY(iso__state_match(comm, state, 0, NULL));
    ISO_TRY(iso_comm_allreduce_i64(comm, &own, 1, ISO_MAX));
    l.own = own != 0;
    iso_status status =
        iso_comm_agree(comm, iso_comm_rank(comm) == 0 ? list_steps(path, &steps, &count) : ISO_OK);
    if (status >= 0) status = iso_comm_bcast(comm, &count, sizeof(count), 0);
    if (status >= 0) status = load_newest(&l, steps, count);
    forget_set(&l);
    iso__free(steps);
    ISO_TRY(status);
    *step = l.step;
    return ISO_OK;
}

// ---- One entry of it ------------------------------------------------------------------------------

static iso_status read_entry(const char *name, const char *file, size_t bytes, void *data) {
    iso__safetensors opened;
    iso__set_head head;
    ISO_TRY(iso__set_open(file, &opened, &head));
    const iso__stored *stored = iso__safetensors_find(&opened, name);
    iso_status status = ISO_OK;
    if (!stored || stored->end - stored->begin != (int64_t)bytes)
        status = ISO_FAIL(ISO_ERR_MISMATCH,
                          "%s has no entry %s of %zu byte%s: it was saved by another program", file,
                          name, bytes, ISO_PLURAL(bytes));
    else
        status = iso__set_load_one(&opened, stored, data);
    iso__safetensors_close(&opened);
    ISO_TRY(status);
    return ISO_OK;
}

// On rank 0. Reads the entry from the newest shared file in which it is intact.
static iso_status read_newest(const char *path, const char *name, size_t bytes, void *data) {
    int64_t *steps = NULL;
    int count = 0, tried = 0;
    char reason[REASON_ROOM] = "";
    iso_status status = list_steps(path, &steps, &count), newest = ISO_OK;
    while (tried < count) {
        char file[ISO__PATH_ROOM];
        iso__set_path(path, steps[tried], ISO__SHARED_FILE, "", file);
        status = read_entry(name, file, bytes, data);
        if (status >= 0 || status == ISO_ERR_MISMATCH) break;
        if (tried++ > 0) continue;
        newest = status;
        memcpy(reason, iso_last_error()->message, sizeof(reason));
    }
    if (count > 0 && tried == count) status = fail_all(newest, reason);
    iso__free(steps);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_resume_read(iso_comm *comm, const char *path, const char *name, size_t bytes,
                           void *data) {
    void *memory = NULL;
    bool root = iso_comm_rank(comm) == 0;
    iso_status status = iso_comm_agree(comm, iso__alloc(bytes, &memory));
    if (status >= 0)
        status = iso_comm_agree(comm, root ? read_newest(path, name, bytes, memory) : ISO_OK);
    if (status >= 0) status = iso_comm_bcast(comm, memory, bytes, 0);
    if (status >= 0) memcpy(data, memory, bytes);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}
