// SPDX-License-Identifier: MIT
// Saves a set of files: own entries first, then the shared ones, whose file marks the set as
// complete.
#include "device/device_impl.h"
#include "optim/resume/resume_impl.h"
#include "tensor/element.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct save {
    iso_comm *comm;
    const char *path;
    const iso_state *state;
    iso__set_head head;
    uint64_t *hash[2]; // of each iso_state_owner
} save;

// Two sets never have the same number.
static uint64_t draw_number(const save *s) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t sources[5] = {now.tv_sec, now.tv_nsec, getpid(), (int64_t)(intptr_t)s, s->head.step};
    return iso__hash(ISO_HASH_START, sources, sizeof(sources));
}

static iso_status is_finite(const iso__array *a, bool *out) {
    void *data;
    *out = true;
    iso_dtype type = iso__safetensors_type(a->dtype);
    if (!iso__is_real(type)) return ISO_OK;
    int64_t count = (int64_t)(iso__array_bytes(a) / iso_dtype_size(type));
    ISO_TRY(iso__array_open(a, ISO_READ, &data));
    for (int64_t n = 0; n < count && *out; n++) *out = isfinite(iso__element_get(type, data, n));
    return iso__array_close(a);
}

// NaN or infinite parameters must not replace the last good set.
static iso_status check_finite(const save *s) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < s->state->count[k]; i++) {
            const iso__array *a = &s->state->array[k][i];
            bool finite;
            if (strncmp(a->name, "param/", 6) != 0) continue;
            ISO_TRY(is_finite(a, &finite));
            ISO_CHECK(finite, ISO_ERR_STATE,
                      "parameter %s is not finite after step %" PRId64 ": nothing was saved as "
                      "%s, try a lower learning rate",
                      a->name + 6, s->head.step, s->path);
        }
    return ISO_OK;
}

static iso_status prepare_save(save *s) {
    ISO_TRY(iso__set_path_check(s->path));
    ISO_CHECK(s->head.step >= 0, ISO_ERR_ARG, "state of the negative step %" PRId64, s->head.step);
    ISO_TRY(check_finite(s));
    for (int k = 0; k < 2; k++) {
        void *memory;
        ISO_TRY(iso__alloc((size_t)s->state->count[k] * sizeof(uint64_t), &memory));
        s->hash[k] = memory;
        ISO_TRY(iso__set_hashes(s->state->array[k], s->state->count[k], s->hash[k]));
    }
    return ISO_OK;
}

static iso_status write_file(const save *s, iso_state_owner owner) {
    char file[ISO__PATH_ROOM];
    iso__set_head head = s->head;
    head.rank = owner == ISO_STATE_OWN ? iso_comm_rank(s->comm) : ISO__SHARED_FILE;
    iso__set_path(s->path, head.step, head.rank, "", file);
    return iso__set_write(file, &head, s->state->array[owner], s->state->count[owner],
                          s->hash[owner]);
}

// The number of the set that a finished file belongs to; 0: there is no such file, or a damaged
// one.
static uint64_t set_of(const char *path, int64_t step, int rank) {
    char file[ISO__PATH_ROOM];
    iso__safetensors opened;
    iso__set_head head;
    iso__set_path(path, step, rank, "", file);
    if (iso__set_open(file, &opened, &head) < 0) return 0;
    iso__safetensors_close(&opened);
    return head.set;
}

// A set of the same step stays whole until the new shared file replaces its shared file.
static iso_status keep_same_step(const save *s, uint64_t replaced) {
    char from[ISO__PATH_ROOM], to[ISO__PATH_ROOM];
    int rank = iso_comm_rank(s->comm);
    if (replaced == 0 || set_of(s->path, s->head.step, rank) != replaced) return ISO_OK;
    iso__set_path(s->path, s->head.step, rank, "", from);
    iso__set_path(s->path, s->head.step, rank, ".old", to);
    ISO_CHECK(rename(from, to) == 0, ISO_ERR_IO, "cannot rename %s to %s: %s", from, to,
              strerror(errno));
    return ISO_OK;
}

static iso_status write_own(const save *s, uint64_t replaced) {
    ISO_TRY(keep_same_step(s, replaced));
    ISO_TRY(write_file(s, ISO_STATE_OWN));
    return ISO_OK;
}

// Rank 0 draws the number of the set and looks for one to replace.
static iso_status announce_save(save *s, uint64_t *replaced) {
    uint64_t numbers[2] = {0};
    if (iso_comm_rank(s->comm) == 0) {
        numbers[0] = draw_number(s);
        numbers[1] = set_of(s->path, s->head.step, ISO__SHARED_FILE);
    }
    int64_t own = s->state->count[ISO_STATE_OWN] > 0;
    ISO_TRY(iso_comm_bcast(s->comm, numbers, sizeof(numbers), 0));
    ISO_TRY(iso_comm_allreduce_i64(s->comm, &own, 1, ISO_MAX));
    s->head.set = numbers[0];
    s->head.own = own != 0;
    *replaced = numbers[1];
    return ISO_OK;
}

// A save that failed removes its own files: left in place, they would keep a full disk full.
static void drop_own(const save *s) {
    char file[ISO__PATH_ROOM];
    int rank = iso_comm_rank(s->comm);
    iso_error why = *iso_last_error(); // looking at the file may fail, too
    if (set_of(s->path, s->head.step, rank) == s->head.set) {
        iso__set_path(s->path, s->head.step, rank, "", file);
        if (unlink(file) != 0)
            iso__log(ISO_LOG_WARN, "cannot remove %s: %s", file, strerror(errno));
    }
    iso__error(why.code, __func__, __FILE__, __LINE__, "%s", why.message);
}

// False: without word from the others, this rank may be alone in thinking that the save failed.
static bool all_know(iso_status status) {
    return status != ISO_ERR_MPI && status != ISO_ERR_TIMEOUT;
}

static iso_status write_all_own(const save *s, uint64_t replaced) {
    iso_status status = iso_comm_agree(s->comm, write_own(s, replaced));
    if (status < 0 && all_know(status)) drop_own(s);
    ISO_TRY(status);
    return ISO_OK;
}

// Writing may report a failure although the shared file is complete. The set is then complete, and
// its own files stay.
static iso_status write_shared(const save *s) {
    iso_status mine = iso_comm_rank(s->comm) == 0 ? write_file(s, ISO_STATE_SHARED) : ISO_OK;
    iso_status status = iso_comm_agree(s->comm, mine);
    if (status < 0 && s->head.own && all_know(status)) {
        iso_error why = *iso_last_error();
        int64_t stands = iso_comm_rank(s->comm) == 0 &&
                         set_of(s->path, s->head.step, ISO__SHARED_FILE) == s->head.set;
        bool known = iso_comm_bcast(s->comm, &stands, sizeof(stands), 0) >= 0;
        iso__error(why.code, __func__, __FILE__, __LINE__, "%s", why.message);
        if (known && !stands) drop_own(s);
    }
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status save_set(save *s) {
    uint64_t replaced = 0;
    ISO_TRY(iso__state_match(s->comm, s->state, s->head.step, s->hash[ISO_STATE_SHARED]));
    ISO_TRY(iso__set_tidy(s->comm, s->path, NULL));
    ISO_TRY(announce_save(s, &replaced));
    if (s->head.own) ISO_TRY(write_all_own(s, replaced));
    ISO_TRY(write_shared(s));
    ISO_TRY(iso__set_tidy(s->comm, s->path, &s->head));
    return ISO_OK;
}

iso_status iso_resume_newest(const char *path, int64_t *step) {
    iso__set_file *files = NULL;
    int64_t *steps = NULL;
    int count = 0, step_count = 0;
    *step = -1;
    ISO_TRY(iso__set_path_check(path));
    ISO_TRY(iso__set_list(path, &files, &count));
    iso_status status = iso__set_steps(files, count, false, &steps, &step_count);
    if (status >= 0 && step_count > 0) *step = steps[0];
    iso__free(steps);
    iso__free(files);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_resume_save(iso_comm *comm, const char *path, int64_t step, const iso_state *state) {
    save s = {comm, path, state, {.step = step, .ranks = iso_comm_size(comm)}, {NULL}};
    iso_status status = iso_comm_agree(comm, prepare_save(&s));
    if (status >= 0) status = save_set(&s);
    for (int k = 0; k < 2; k++) iso__free(s.hash[k]);
    ISO_TRY(status);
    return ISO_OK;
}
