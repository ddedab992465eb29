// SPDX-License-Identifier: MIT
// Creates communicators under the time-out. MPI's calls for that block without a limit, so a
// separate thread makes them if MPI allows several threads.
#include "base/recording.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>

#include <pthread.h>
#include <time.h>

// Shared with the thread. The caller frees it, or the thread if the caller has given up.
typedef struct creation {
    iso__comm_recipe recipe;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, given_up;
    int rc;
    MPI_Comm made;
} creation;

static const char *const name_of[] = {[ISO_MAKE_DUP] = "MPI_Comm_dup",
                                      [ISO_MAKE_COPY] = "MPI_Comm_create_group",
                                      [ISO_MAKE_SPLIT] = "MPI_Comm_split",
                                      [ISO_MAKE_GROUP] = "MPI_Comm_create_group"};

enum { COPY_TAG = 32000 }; // at most 32767; no other message of the library has it

static int copy_comm(MPI_Comm from, MPI_Comm like, MPI_Comm *out) {
    MPI_Group all;
    int rc = MPI_Comm_group(like, &all);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPI_Comm_create_group(from, all, COPY_TAG, out);
    MPI_Group_free(&all);
    return rc == MPI_SUCCESS ? MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN) : rc;
}

static int call_mpi(const iso__comm_recipe *recipe, MPI_Comm *out) {
    const iso__comm_recipe *r = recipe;
    switch (r->kind) {
    case ISO_MAKE_DUP: return MPI_Comm_dup(r->from, out);
    case ISO_MAKE_COPY: return copy_comm(r->from, r->like, out);
    case ISO_MAKE_SPLIT: return MPI_Comm_split(r->from, r->color, r->key, out);
    case ISO_MAKE_GROUP: break;
    }
    return MPI_Comm_create_group(r->from, r->group, r->key, out);
}

static void free_creation(creation *c) {
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    iso__free(c);
}

static void *run_creation(void *argument) {
    creation *c = argument;
    int rc = call_mpi(&c->recipe, &c->made);
    pthread_mutex_lock(&c->lock);
    c->rc = rc;
    c->done = true;
    bool given_up = c->given_up;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (given_up) free_creation(c);
    return NULL;
}

// Waits for a millisecond at most, and drives progress: the awaited rank may be waiting for this
// one.
static void await_change(iso_comm *comm, creation *c) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
    if (!comm->engine || c->done) return;
    pthread_mutex_unlock(&c->lock);
    iso__engine_assist(comm->engine);
    pthread_mutex_lock(&c->lock);
}

// Whether the communicator was created within the time-out.
static bool await_creation(iso_comm *comm, creation *c, iso__patience *patience) {
    int64_t start = iso_now(), limit = (int64_t)(comm->timeout_s * 1e9);
    pthread_mutex_lock(&c->lock);
    while (!c->done && (limit == 0 || iso_now() - start < limit)) {
        await_change(comm, c);
        pthread_mutex_unlock(&c->lock);
        iso__patience_tick_unlocked(patience, iso_now() - start);
        pthread_mutex_lock(&c->lock);
    }
    bool done = c->done;
    c->given_up = !done;
    pthread_mutex_unlock(&c->lock);
    return done;
}

// Makes the communicator in a thread of its own. Returns false if it was given up.
static bool await_beside(iso_comm *comm, creation *c, iso__patience *patience) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_creation, c) != 0) {
        run_creation(c); // without a thread there is no time-out
        return true;
    }
    bool done = await_creation(comm, c, patience);
    if (done)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    iso__patience_end_unlocked(patience);
    return done;
}

// Without a time-out.
static iso_status create_here(const iso__comm_recipe *recipe, MPI_Comm *out) {
    int rc = call_mpi(recipe, out);
    ISO_TRY_MPI_CODE(rc, name_of[recipe->kind]);
    return ISO_OK;
}

static iso_status create_beside(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out) {
    void *memory;
    char missing[320], self[ISO_SELF_ROOM];
    const char *name = name_of[recipe->kind];
    bool all = recipe->kind != ISO_MAKE_GROUP;
    if (all) iso__stream_count(&comm->meetings, iso_now()); // as on ranks that have memory
    if (iso__alloc_zero(sizeof(creation), &memory) < 0) return create_here(recipe, out);
    creation *c = memory;
    iso__patience patience = iso__patience_begin(comm, all ? &comm->meetings : NULL, name);
    iso_recorder_wait(name);
    c->recipe = *recipe;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    bool made = await_beside(comm, c, &patience);
    if (!made) iso__comm_lose(comm);
    ISO_CHECK(made, ISO_ERR_TIMEOUT, "%s waited %g s in %s: %s (ISO_TIMEOUT sets the limit)",
              iso__comm_self_text(comm, self), comm->timeout_s, name,
              iso__patience_verdict_unlocked(&patience, missing, sizeof(missing)));
    iso_recorder_woke(name);
    int rc = c->rc;
    *out = c->made;
    free_creation(c);
    if (rc != MPI_SUCCESS) return iso__mpi_error(rc, name, __func__, __FILE__, __LINE__);
    return ISO_OK;
}

static iso_status create_anyhow(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out) {
    int level = MPI_THREAD_SINGLE;
    ISO_TRY_MPI(MPI_Query_thread(&level));
    if (level == MPI_THREAD_MULTIPLE) return create_beside(comm, recipe, out);
    return create_here(recipe, out);
}

iso_status iso__comm_make(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out) {
    iso_status status = create_anyhow(comm, recipe, out);
    if (status < 0) iso__comm_lose(comm); // the others may wait in MPI's call
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__comm_copy(iso_comm *comm, MPI_Comm from, MPI_Comm *out) {
    iso__comm_recipe recipe = {ISO_MAKE_COPY, .from = from, .like = from};
    return iso__comm_make(comm, &recipe, out);
}

iso_status iso__comm_list_group(iso_comm *comm, const int *members, int count, MPI_Group *out) {
    MPI_Group all;
    ISO_TRY_MPI(MPI_Comm_group(comm->mpi, &all));
    int rc = MPI_Group_incl(all, count, members, out);
    MPI_Group_free(&all);
    ISO_TRY_MPI_CODE(rc, "MPI_Group_incl");
    return ISO_OK;
}

iso_status iso__comm_make_group(iso_comm *comm, MPI_Group *group, int tag, MPI_Comm *out) {
    iso__comm_recipe recipe = {ISO_MAKE_GROUP, comm->mpi, .key = tag, .group = *group};
    iso_status status = iso__comm_make(comm, &recipe, out);
    if (status != ISO_ERR_TIMEOUT) MPI_Group_free(group); // after a time-out MPI still uses it
    ISO_TRY(status);
    return ISO_OK;
}
