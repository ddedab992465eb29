// SPDX-License-Identifier: MIT
// A process that ends a launcher which has outlived its job.
#define _GNU_SOURCE
#include "watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct process {
    long pid, parent;
    unsigned long long began; // in ticks since the machine was started
    char state;               // Z: it has ended
    char name[32];
} process;

static process launcher; // pid 0: not on this host
static double limit;     // seconds; 0: there is no watchdog
static int line = -1;    // connection to the watchdog, which notices when it closes

// ---- The launcher -------------------------------------------------------------------------------

static bool read_process(long pid, process *out) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    FILE *from = fopen(path, "r");
    size_t length = from ? fread(text, 1, sizeof(text) - 1, from) : 0;
    if (from) fclose(from);
    text[length] = 0;
    const char *name = strchr(text, '('), *rest = strrchr(text, ')');
    if (!name || !rest) return false;
    *out = (process){.pid = pid};
    snprintf(out->name, sizeof(out->name), "%.*s", (int)(rest - name - 1), name + 1);
    return sscanf(rest + 1,
                  " %c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                  "%llu",
                  &out->state, &out->parent, &out->began) == 3;
}

static bool is_launcher(const char *name) {
    return strncmp(name, "mpirun", 6) == 0 || strncmp(name, "mpiexec", 7) == 0 ||
           strcmp(name, "orterun") == 0 || strcmp(name, "prterun") == 0;
}

// The ranks of other hosts descend from these.
static bool is_daemon(const char *name) {
    return strcmp(name, "orted") == 0 || strcmp(name, "prted") == 0 || strcmp(name, "prte") == 0;
}

// The nearest one: a job may have been started from within another.
static void find_launcher(void) {
    process at;
    for (long pid = getppid(); pid > 1 && read_process(pid, &at); pid = at.parent) {
        if (is_launcher(at.name)) launcher = at;
        if (is_launcher(at.name) || is_daemon(at.name)) return;
    }
}

static bool launcher_lives(void) {
    process now;
    return read_process(launcher.pid, &now) && now.began == launcher.began && now.state != 'Z';
}

// ---- The watchdog -------------------------------------------------------------------------------

// Whether the launcher ends within so many seconds.
static bool launcher_ends(double seconds) {
    for (double left = seconds; launcher_lives(); left -= 0.1) {
        if (left <= 0) return false;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return true;
}

// Each rank of this host has a watchdog, and only one may act: the one that binds this name first.
// The name is no file, and vanishes with the process.
static bool claim_launcher(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int claim = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "iso-watchdog-%ld-%llu", launcher.pid,
             launcher.began);
    return bind(claim, (struct sockaddr *)&name, sizeof(name)) == 0 || errno != EADDRINUSE;
}

// Opens the launcher's own stderr: the launcher waits until pipes of the ranks' output are closed.
static int open_errors(void) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/fd/2", launcher.pid);
    return open(path, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
}

// Prints after the launcher has ended: in a file, the launcher could overwrite text that follows
// its own.
static void end_launcher(const char *program) {
    static const int signals[] = {SIGTERM, SIGKILL};
    int to = open_errors();
    for (int i = 0; i < 2 && launcher_lives(); i++) {
        kill((pid_t)launcher.pid, signals[i]);
        (void)launcher_ends(3);
    }
    if (to >= 0 && !launcher_lives())
        dprintf(to,
                "%s: %s (pid %ld) still ran %g s after the end of a rank and was ended "
                "(ISO_WATCHDOG)\n",
                program, launcher.name, launcher.pid, limit);
}

// Whether the rank says that it ends well. Otherwise the line ends with the rank.
static bool hear_farewell(int from) {
    char farewell;
    ssize_t heard;
    do heard = read(from, &farewell, 1);
    while (heard < 0 && errno == EINTR);
    return heard == 1;
}

static _Noreturn void keep_watch(const char *program, int from) {
    signal(SIGPIPE, SIG_IGN);
    setsid(); // or it ends with its rank
    for (int fd = 0; fd < 1024; fd++)
        if (fd != from) close(fd); // the launcher waits until nobody has its pipes
    for (int fd = 0; fd < 3 && fd != from; fd++)
        if (open("/dev/null", O_RDWR) < 0) _exit(EXIT_FAILURE);
    prctl(PR_SET_NAME, "iso-watchdog");
    if (!hear_farewell(from) && !launcher_ends(limit) && claim_launcher()) end_launcher(program);
    _exit(EXIT_SUCCESS);
}

// ---- Its rank -----------------------------------------------------------------------------------

// A value that cannot be read counts as 0 here; the library reports the error.
static double read_limit(void) {
    const char *text = getenv("ISO_WATCHDOG");
    char *end;
    if (!text || !*text) return 0;
    double value = strtod(text, &end);
    return !*end && value >= 0 && value <= 1e9 ? value : 0;
}

void watchdog_start(const char *program) {
    int ends[2];
    find_launcher();
    double seconds = read_limit();
    if (launcher.pid == 0 || seconds == 0) return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    limit = seconds;
    pid_t child = fork();
    if (child == 0) keep_watch(program, ends[0]);
    close(ends[0]);
    line = ends[1];
    if (child > 0) return;
    close(line);
    line = -1;
    limit = 0;
}

void watchdog_end(void) {
    if (line < 0) return;
    (void)send(line, "", 1, MSG_NOSIGNAL); // the watchdog may have been killed
    close(line);
    line = -1;
}

void watchdog_outlook(char *text, size_t room) {
    if (launcher.pid == 0)
        snprintf(text, room,
                 "if its launcher goes on, as mpirun does when it cannot reach a host, end it with "
                 "kill -9; with ISO_WATCHDOG=SECONDS a rank on its host does so");
    else if (limit > 0)
        snprintf(text, room,
                 "if %s (pid %ld) still runs %g s later, it is ended, too "
                 "(ISO_WATCHDOG)",
                 launcher.name, launcher.pid, limit);
    else
        snprintf(
            text, room,
            "if %s goes on, because it cannot reach a host, end it with: kill -9 %ld (next time, "
            "ISO_WATCHDOG=SECONDS does this)",
            launcher.name, launcher.pid);
}
