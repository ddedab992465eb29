// SPDX-License-Identifier: MIT
// Drives the exchanges under way: by a helper thread that sleeps between tests, by polling, or by
// threads that wait.
#include "base/recording.h"
#include "comm/channel_impl.h"
#include "comm/hierarchy.h"
#include "comm/stages.h"
#include "comm/step_limit.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <string.h>
#include <time.h>

// The time (ns) that exchanges in flight get to complete when MPI_Finalize is called.
#define DRAIN_NS 10000000000

static int attribute = MPI_KEYVAL_INVALID; // of MPI_COMM_SELF; its value is the engine
static pthread_mutex_t birth = PTHREAD_MUTEX_INITIALIZER;

static const char *const mode_name[] = {"auto", "off", "poll", "thread"};

const char *iso_progress_name(iso_progress mode) { return mode_name[mode]; }

iso_status iso_progress_parse(const char *name, iso_progress *out) {
    for (int i = 0; i <= ISO_PROGRESS_THREAD; i++)
        if (strcmp(name, mode_name[i]) == 0) {
            *out = (iso_progress)i;
            return ISO_OK;
        }
    return ISO_FAIL(ISO_ERR_ARG, "unknown progress mode \"%s\": give auto, off, poll or thread",
                    name);
}

// ---- Testing --------------------------------------------------------------------------------------

void iso__engine_test_all(iso__engine *engine) {
    bool work = engine->oldest || engine->in_flight > 0; // or messages of what was given up
    if (!work || engine->finalized) return;
    bool more;
    do {
        iso__collective_mpi.progress(engine);
        more = iso__stages_progress(engine);
        more = iso__collective_shm.progress(engine) || more;
        more = iso__collective_hierarchy.progress(engine) || more;
        more = iso__channels_issue(engine) || more; // completed chunks have made room
    } while (more);
}

void iso__engine_assist(iso__engine *engine) {
    if (engine->mode == ISO_PROGRESS_THREAD) return;
    pthread_mutex_lock(&engine->lock);
    iso__engine_test_all(engine);
    iso__watch_poll(engine);
    pthread_mutex_unlock(&engine->lock);
}

// ---- Waiting --------------------------------------------------------------------------------------

// With the lock held: lists the exchanges that are not complete, oldest first. Says how many more
// there are than fit into `room`.
static void list_pending(const iso__engine *engine, char *text, size_t room) {
    enum { MORE = 24 }; // bytes for ", and 12345 more"
    size_t used = 0;
    int more = 0;
    text[0] = 0;
    for (const iso_request *r = engine->oldest; r; r = r->newer) {
        char item[96];
        int n = snprintf(item, sizeof(item), "%s\"%.40s\" (%zu bytes)", used ? ", " : "", r->name,
                         r->bytes);
        bool fits = more == 0 && used + (size_t)n + MORE < room;
        if (fits) used += (size_t)snprintf(text + used, room - used, "%s", item);
        more += !fits;
    }
    if (more > 0) snprintf(text + used, room - used, ", and %d more", more);
}

static iso_status timed_out(const iso__engine *engine, const iso__awaited *awaited,
                            const iso__patience *patience) {
    char pending[160], missing[300], self[ISO_SELF_ROOM];
    list_pending(engine, pending, sizeof(pending));
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "%s waited %g s for the exchange of \"%.40s\"; in flight: %s: %s "
                    "(ISO_TIMEOUT sets the limit)",
                    iso__comm_self_text(awaited->comm, self), awaited->comm->timeout_s,
                    awaited->name, pending,
                    iso__patience_verdict(patience, missing, sizeof(missing)));
}

// Calls the idle function, while the helper drives progress. Returns the time that it took (ns).
static int64_t do_other_work(iso__engine *engine, const iso__awaited *awaited, bool *did) {
    int64_t start = iso_now();
    engine->waiters--;
    iso__engine_kick(engine);
    pthread_mutex_unlock(&engine->lock);
    *did = awaited->idle.call(awaited->idle.user);
    pthread_mutex_lock(&engine->lock);
    engine->waiters++;
    return iso_now() - start;
}

static iso_status drive_until_done(iso__engine *engine, const iso__awaited *awaited,
                                   iso__patience *patience) {
    int64_t start = iso_now(), limit = (int64_t)(awaited->comm->timeout_s * 1e9);
    bool idle = awaited->idle.call != NULL; // call it: it may find work
    if (awaited->idle.endless) limit = 0;
    uint64_t seen = 0;
    while (!awaited->is_done(awaited->what)) {
        iso__engine_test_all(engine);
        if (awaited->is_done(awaited->what)) break;
        ISO_CHECK(!engine->finalized, ISO_ERR_STATE,
                  "the exchange of \"%s\" was still in flight when MPI_Finalize was called",
                  awaited->name);
        int64_t waited = iso_now() - start;
        if (limit > 0 && waited > limit) return timed_out(engine, awaited, patience);
        if (waited >= patience->next_ns) iso__patience_tick(patience, waited);
        if (awaited->idle.call && (idle || seen != engine->completions)) {
            seen = engine->completions;
            int64_t took = do_other_work(engine, awaited, &idle);
            if (!awaited->idle.endless) start += took;
            continue;
        }
        pthread_mutex_unlock(&engine->lock);
        sched_yield(); // sleeping here was measured to cost 1 ms of a 40 ms exchange
        pthread_mutex_lock(&engine->lock);
    }
    return ISO_OK;
}

iso_status iso__engine_wait(iso__engine *engine, const iso__awaited *awaited) {
    iso__engine_adapt(engine, awaited->began_ns, awaited->is_done(awaited->what));
    engine->waiters++;
    iso__patience patience = iso__patience_begin(awaited->comm, awaited->stream, awaited->name);
    patience.exchange = true;
    patience.endless = awaited->idle.endless;
    iso_recorder_wait(awaited->name);
    iso_status status = drive_until_done(engine, awaited, &patience);
    if (status == ISO_OK) iso_recorder_woke(awaited->name);
    iso__patience_end(&patience);
    engine->waiters--;
    iso__engine_kick(engine);
    return status;
}

// ---- Helper thread --------------------------------------------------------------------------------

// Sleeps until it is woken, or until the next beat.
static void sleep_helper(iso__engine *engine) {
    struct timespec until;
    if (engine->beat_ns == 0) {
        pthread_cond_wait(&engine->wake, &engine->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + engine->beat_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&engine->wake, &engine->lock, &until);
}

static void *run_helper(void *argument) {
    iso__engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    while (!engine->stop) {
        iso__watch_poll(engine);
        bool work = engine->oldest || engine->in_flight > 0;
        if (!work || engine->waiters > 0) {
            sleep_helper(engine);
            continue;
        }
        iso__engine_test_all(engine);
        long ns = (long)(engine->sleep_us * 1e3);
        pthread_mutex_unlock(&engine->lock);
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        pthread_mutex_lock(&engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

static void stop_helper(iso__engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool runs = engine->thread_runs;
    engine->stop = true;
    engine->thread_runs = false;
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    if (runs) pthread_join(engine->thread, NULL);
}

// ---- Life -----------------------------------------------------------------------------------------

static void free_engine(iso__engine *engine) {
    while (engine->free_list) {
        iso_request *request = engine->free_list;
        engine->free_list = request->next_in_line;
        iso__free(request);
    }
    iso__free(engine->mpi);
    iso__free(engine->owner);
    iso__free(engine->completed);
    iso__free(engine->statuses);
    iso__watch_free_all(engine);
    pthread_cond_destroy(&engine->wake);
    pthread_mutex_destroy(&engine->lock);
    iso__free(engine);
}

void iso__engine_release(iso__engine **pointer) {
    iso__engine *engine = *pointer;
    *pointer = NULL;
    pthread_mutex_lock(&birth);
    bool last = engine && --engine->references == 0;
    pthread_mutex_unlock(&birth);
    if (last) free_engine(engine);
}

// Called by MPI_Finalize before anything else is torn down: MPI_Finalize under a live helper
// crashes.
static int on_finalize(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    iso__engine *engine = value;
    stop_helper(engine);
    iso__step_limit_stop();
    iso__recorder_end();
    pthread_mutex_lock(&engine->lock);
    for (int64_t start = iso_now(); engine->oldest && iso_now() - start < DRAIN_NS;)
        iso__engine_test_all(engine);
    if (!engine->oldest)
        iso__sum16_free(engine);
    else
        iso__log(ISO_LOG_ERROR,
                 "MPI_Finalize was called with exchanges that other ranks did not complete; the "
                 "first is \"%s\"",
                 engine->oldest->name);
    iso__watch_quit(engine);
    engine->finalized = true;
    pthread_mutex_unlock(&engine->lock);
    attribute = MPI_KEYVAL_INVALID;
    iso__engine_release(&engine);
    return MPI_SUCCESS;
}

static iso_status choose_mode(iso__engine *engine, iso_progress wanted) {
    const char *source = "asked for";
    if (wanted == ISO_PROGRESS_AUTO) {
        const char *text = iso__env_string(ISO_ENV_PROGRESS);
        if (text) ISO_TRY(iso_progress_parse(text, &wanted));
        source = "ISO_PROGRESS";
    }
    int level;
    ISO_TRY_MPI(MPI_Query_thread(&level));
    bool multiple = level == MPI_THREAD_MULTIPLE;
    if (wanted == ISO_PROGRESS_AUTO) {
        wanted = multiple ? ISO_PROGRESS_THREAD : ISO_PROGRESS_POLL;
        source =
            multiple ? "MPI_THREAD_MULTIPLE" : "MPI was not initialised with MPI_THREAD_MULTIPLE";
    } else if (wanted == ISO_PROGRESS_THREAD && !multiple) {
        wanted = ISO_PROGRESS_POLL;
        source = "a thread needs MPI_THREAD_MULTIPLE from MPI_Init_thread";
        iso__log(ISO_LOG_WARN, "progress: polling instead of a thread: %s", source);
    }
    engine->mode = wanted;
    snprintf(engine->why, sizeof(engine->why), "%s (%s)", mode_name[wanted], source);
    return ISO_OK;
}

static iso_status start_engine(iso__engine *engine, iso_progress wanted) {
    ISO_TRY(choose_mode(engine, wanted));
    double fixed;
    ISO_TRY(iso__env_number(ISO_ENV_PROGRESS_US, -1, &fixed));
    engine->sleep_fixed = fixed >= 0;
    ISO_TRY(iso__env_number(ISO_ENV_STALL_WARN, 30, &engine->stall_warn_s));
    engine->sleep_us = fixed >= 0 ? fixed : 100;
    if (engine->mode == ISO_PROGRESS_THREAD) {
        int rc = pthread_create(&engine->thread, NULL, run_helper, engine);
        ISO_CHECK(rc == 0, ISO_ERR_NOMEM, "could not start the progress thread: %s", strerror(rc));
        engine->thread_runs = true;
    }
    ISO_TRY(iso__step_limit_start());
    ISO_TRY_MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &attribute, NULL));
    ISO_TRY_MPI(MPI_Comm_set_attr(MPI_COMM_SELF, attribute, engine));
    iso__log(ISO_LOG_INFO, "progress: %s", engine->why);
    return ISO_OK;
}

static iso_status create_engine(iso_progress wanted, iso__engine **out) {
    iso_status status;
    iso__engine *engine;
    ISO_TRY(iso__alloc_zero(sizeof(*engine), (void **)&engine));
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->wake, &clock);
    pthread_condattr_destroy(&clock);
    engine->references = 1; // the attribute's
    ISO_TRY_GOTO(iso__sum16_create(engine));
    ISO_TRY_GOTO(start_engine(engine, wanted));
    *out = engine;
    return ISO_OK;
fail:
    stop_helper(engine);
    iso__step_limit_stop();
    iso__sum16_free(engine);
    free_engine(engine);
    return status;
}

static iso_status find_engine(iso_progress wanted, iso__engine **out) {
    iso__engine *engine = NULL;
    int found = 0;
    if (attribute != MPI_KEYVAL_INVALID)
        ISO_TRY_MPI(MPI_Comm_get_attr(MPI_COMM_SELF, attribute, &engine, &found));
    if (!found)
        ISO_TRY(create_engine(wanted, &engine));
    else if (wanted != ISO_PROGRESS_AUTO && wanted != engine->mode)
        iso__log(ISO_LOG_WARN, "progress stays %s: the first communicator of a process decides",
                 engine->why);
    engine->references++;
    *out = engine;
    return ISO_OK;
}

iso_status iso__engine_acquire(iso_progress wanted, iso__engine **out) {
    pthread_mutex_lock(&birth);
    iso_status status = find_engine(wanted, out);
    pthread_mutex_unlock(&birth);
    return status;
}
