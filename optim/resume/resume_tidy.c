// SPDX-License-Identifier: MIT
// Removes files of saved state that are no longer needed: old sets and unfinished files.
#include "optim/resume/resume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

typedef struct tidying {
    iso_comm *comm;
    const char *path;
    const iso__set_head *saved; // NULL: nothing was saved yet
    int64_t *kept;              // steps
    int kept_count;
} tidying;

static bool is_kept(const tidying *t, int64_t step) {
    for (int i = 0; i < t->kept_count; i++)
        if (t->kept[i] == step) return true;
    return false;
}

// Rank 0 answers for shared files and for those of ranks that this run does not have.
static bool is_mine(const tidying *t, const iso__set_file *file) {
    int rank = iso_comm_rank(t->comm);
    return file->rank == rank ||
           (rank == 0 && (file->rank == ISO__SHARED_FILE || file->rank >= iso_comm_size(t->comm)));
}

static bool is_garbage(const tidying *t, const iso__set_file *file) {
    // This process writes nothing while it tidies: in a container, numbers repeat.
    bool ours = file->pid == getpid();
    if (file->pid != 0) return ours || (kill((pid_t)file->pid, 0) != 0 && errno == ESRCH);
    if (!is_kept(t, file->step)) return true;
    return file->old && t->saved && file->step == t->saved->step;
}

static void remove_garbage(const tidying *t, const iso__set_file *files, int count, bool shared) {
    for (int i = 0; i < count; i++)
        if ((files[i].rank == ISO__SHARED_FILE) == shared && is_mine(t, &files[i]) &&
            is_garbage(t, &files[i]))
            iso__set_remove(t->path, &files[i]);
}

// Before a save, keeps all sets with a shared file. After it, keeps the new set and the one before
// it. Sets of later steps are from a run that was abandoned.
static void choose_kept(tidying *t) {
    int kept = 0;
    for (int i = 0; t->saved && i < t->kept_count; i++) {
        if (t->kept[i] > t->saved->step)
            iso__log(ISO_LOG_WARN,
                     "saved state %s.step-%012" PRId64 " is removed: it is of a later step than "
                     "%" PRId64 ", which was saved now",
                     t->path, t->kept[i], t->saved->step);
        else if (kept < 2)
            t->kept[kept++] = t->kept[i];
    }
    if (t->saved) t->kept_count = kept;
}

// On rank 0. Shared files go before those of ranks, which are no set without one.
static iso_status begin_tidying(tidying *t) {
    iso__set_file *files = NULL;
    int count = 0;
    ISO_TRY(iso__set_list(t->path, &files, &count));
    iso_status status = iso__set_steps(files, count, false, &t->kept, &t->kept_count);
    if (status >= 0) {
        choose_kept(t);
        remove_garbage(t, files, count, true);
    }
    iso__free(files);
    return status;
}

static iso_status share_kept(tidying *t) {
    int64_t count = t->kept_count;
    bool root = iso_comm_rank(t->comm) == 0;
    ISO_TRY(iso_comm_bcast(t->comm, &count, sizeof(count), 0));
    size_t bytes = (size_t)count * sizeof(int64_t);
    void *memory = NULL;
    iso_status status = root ? ISO_OK : iso__alloc(bytes, &memory);
    if (!root) t->kept = memory;
    ISO_TRY(iso_comm_agree(t->comm, status));
    t->kept_count = (int)count;
    ISO_TRY(iso_comm_bcast(t->comm, t->kept, bytes, 0));
    return ISO_OK;
}

static iso_status run_tidying(tidying *t) {
    iso__set_file *files = NULL;
    int count = 0;
    // A failure to tidy is no error: a save that follows reports it, or has succeeded already.
    int64_t begun = iso_comm_rank(t->comm) != 0 || begin_tidying(t) >= 0;
    ISO_TRY(iso_comm_allreduce_i64(t->comm, &begun, 1, ISO_MIN));
    if (!begun) return ISO_OK;
    ISO_TRY(share_kept(t));
    if (iso__set_list(t->path, &files, &count) < 0) return ISO_OK;
    remove_garbage(t, files, count, false);
    iso__free(files);
    return ISO_OK;
}

iso_status iso__set_tidy(iso_comm *comm, const char *path, const iso__set_head *saved) {
    tidying t = {.comm = comm, .path = path, .saved = saved};
    iso_status status = run_tidying(&t);
    iso__free(t.kept);
    ISO_TRY(status);
    return ISO_OK;
}

// Shared files go first: without one the others are no set.
iso_status iso_resume_remove(const char *path) {
    iso__set_file *files = NULL;
    int count = 0;
    ISO_TRY(iso__set_path_check(path));
    ISO_TRY(iso__set_list(path, &files, &count));
    for (int shared = 1; shared >= 0; shared--)
        for (int i = 0; i < count; i++)
            if ((files[i].rank == ISO__SHARED_FILE) == (shared == 1) && files[i].pid == 0)
                iso__set_remove(path, &files[i]);
    iso__free(files);
    return ISO_OK;
}
