// SPDX-License-Identifier: MIT
// Ends a training run on a signal: after a step, with its state saved, if there is a checkpoint to
// save it to; else at once. Prints the newest checkpoint and how to continue, and leaves no
// incomplete file.
#include "train.h"

#include "support/watch.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; // of what follows
static const train_options *options;
static int64_t saved_epoch; // that --checkpoint holds; 0: none of this run's
static bool redrawn;        // a progress line is open on stdout

// The effect of the next signal. WAITS: there is no run; only SIGINT and SIGTERM end the program.
// SAVES: the run is saved and stops. ENDS: the program ends.
enum { WAITS, SAVES, ENDS };
static _Atomic int effect;
static _Atomic bool tells;      // this process prints what becomes of the run
static _Atomic int taken;       // the first signal that the run ends for; 0: none
static _Atomic int64_t hard_at; // when SIGINT or SIGTERM was first taken

// ---- What is said -------------------------------------------------------------------------------

// The newest set of --resume's files under path.
static bool find_newest(const char *path, int64_t *step) {
    return path && iso_resume_newest(path, step) >= 0 && *step >= 0;
}

static void say_how_to_go_on(const char *why) {
    int64_t step;
    const char *path = options->checkpoint;
    bool found = find_newest(path, &step);
    if (!found && (found = find_newest(options->resume, &step))) path = options->resume;
    if (found)
        fprintf(stderr,
                "train: stopped by %s: the newest checkpoint is %s.step-%012lld: continue with the "
                "same %s%s\n",
                why, path, (long long)step,
                options->resume_auto ? "command" : "options and --resume ",
                options->resume_auto ? "" : path);
    else if (saved_epoch > 0)
        fprintf(stderr,
                "train: stopped by %s: the newest checkpoint is %s, of epoch %lld: --load %s "
                "starts a new run with its parameters\n",
                why, options->checkpoint, (long long)saved_epoch, options->checkpoint);
    else
        fprintf(stderr, "train: stopped by %s: nothing was saved%s\n", why,
                options->checkpoint ? " yet" : ": runs with --checkpoint can be resumed");
}

static const char *name_signal(int code) {
    switch (code) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    default: return "a signal to another rank";
    }
}

// Runs in the thread of watch.h. The main thread may be drawing, or be blocked while it draws.
static void say_farewell(int code) {
    pthread_mutex_lock(&guard);
    for (int i = 0; i < 10 && ftrylockfile(stdout) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    ssize_t written = redrawn ? write(STDOUT_FILENO, "\n", 1) : 0;
    (void)written;
    // The launcher ends all ranks in this way.
    bool ended = code == SIGTERM && watch_by_launcher();
    say_how_to_go_on(ended ? "SIGTERM from the launcher, which was stopped or has lost a rank"
                           : name_signal(code));
}

// Runs in the thread of watch.h, or before the run. A launcher may leave too little time to save.
static void say_aside(int code) {
    int64_t step;
    char newest[PATH_MAX + 32] = "nothing is saved";
    pthread_mutex_lock(&guard);
    ssize_t written = redrawn ? write(STDOUT_FILENO, "\n", 1) : 0;
    (void)written;
    if (find_newest(options->checkpoint, &step))
        snprintf(newest, sizeof(newest), "the newest checkpoint is %s.step-%012lld",
                 options->checkpoint, (long long)step);
    fprintf(stderr,
            "train: %s: if all ranks are alive, the run will be saved within about half a second; "
            "until then %s\n",
            name_signal(code), newest);
    pthread_mutex_unlock(&guard);
}

void train_stop_tell(void) { say_how_to_go_on(name_signal(taken)); }

// ---- Signals ------------------------------------------------------------------------------------

// Some launchers send each signal twice. A repetition after a second is from an impatient user.
static bool is_repeated(int code) {
    int64_t never = 0, now = iso_now();
    if (code != SIGINT && code != SIGTERM) return false;
    return !atomic_compare_exchange_strong(&hard_at, &never, now) && now - never > 1000000000;
}

// In the thread of watch.h. Returns whether the program goes on.
static bool take_signal(int code) {
    int none = 0;
    if (effect == ENDS || (effect == WAITS && (code == SIGINT || code == SIGTERM))) return false;
    bool first = atomic_compare_exchange_strong(&taken, &none, code);
    if (effect == WAITS) return true;
    if (first && tells) say_aside(code);
    return !is_repeated(code);
}

void train_stop_catch(void) { watch_stop(take_signal); }

// Whether ranks repeat their own steps. A rank may then have to run ahead of the others as it did
// before, and the exchange of a check would hold it back.
static bool repeats_ranks(const train_run *run) {
    return run->replay_count > 0 && run->replay[0].cause == ISO_CAUSE_RANK;
}

iso_status train_stop_check(train_run *run, bool now, bool *stops) {
    *stops = false;
    if (!run->stop || (!now && repeats_ranks(run))) return ISO_OK;
    if (taken) iso_stop_request(run->stop);
    return now ? iso_stop_check_now(run->stop, stops) : iso_stop_check(run->stop, stops);
}

// ---- Incomplete files ---------------------------------------------------------------------------

// Whether this is an incomplete file of this process: BASE, anything, and .tmp.PID.
static bool is_partial(const char *name, const char *base) {
    char end[32];
    int length = snprintf(end, sizeof(end), ".tmp.%ld", (long)getpid());
    size_t used = strlen(name), begin = strlen(base);
    return used >= begin + (size_t)length && strncmp(name, base, begin) == 0 &&
           strcmp(name + used - length, end) == 0;
}

static void remove_partial(const char *path) {
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    if (slash) snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path) + 1, path);
    DIR *files = opendir(folder);
    if (!files) return;
    for (const struct dirent *at; (at = readdir(files));)
        if (is_partial(at->d_name, slash ? slash + 1 : path))
            (void)unlinkat(dirfd(files), at->d_name, 0);
    closedir(files);
}

// The checkpoint may be a link, and its sets stand beside the link.
static void remove_partial_of(const char *path) {
    char target[PATH_MAX];
    if (!path) return;
    remove_partial(path);
    if (realpath(path, target)) remove_partial(target);
}

static void remove_all_partial(void) {
    remove_partial_of(options->checkpoint);
    remove_partial_of(options->checkpoint_best);
}

// ---- The run ------------------------------------------------------------------------------------

void train_stop_begin(const train_options *of_run, bool says) {
    options = of_run;
    tells = says;
    if (says) watch_farewell(say_farewell);
    watch_at_exit(remove_all_partial);
    effect = options->checkpoint ? SAVES : ENDS;
    if (!taken) return; // else a signal came before the run
    if (effect == ENDS) kill(getpid(), taken);
    if (effect == SAVES && says) say_aside(taken);
}

void train_stop_saved(int64_t epoch) {
    pthread_mutex_lock(&guard);
    saved_epoch = epoch;
    pthread_mutex_unlock(&guard);
}

void train_stop_line(bool is_redrawn) {
    pthread_mutex_lock(&guard);
    redrawn = is_redrawn;
    pthread_mutex_unlock(&guard);
}

void train_stop_end(void) {
    effect = WAITS;
    if (tells) watch_farewell(NULL);
    watch_at_exit(NULL);
}
