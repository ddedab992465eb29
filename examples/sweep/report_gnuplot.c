// SPDX-License-Identifier: MIT
// Runs gnuplot as a child process on a script, and reads its drawings.
#include "report_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct gnuplot {
    char
        folder[PATH_MAX - 32]; // of the script, what gnuplot says, and the plots; it goes with them
    FILE *script;
};

static void path_of(const gnuplot *self, const char *name, char out[PATH_MAX]) {
    snprintf(out, PATH_MAX, "%s/%s", self->folder, name);
}

static void plot_path(const gnuplot *self, int i, char out[PATH_MAX]) {
    char name[32];
    snprintf(name, sizeof(name), "%d.svg", i);
    path_of(self, name, out);
}

gnuplot *gnuplot_open(char problem[REPORT_PROBLEM]) {
    char path[PATH_MAX];
    const char *place = getenv("TMPDIR");
    gnuplot *self = calloc(1, sizeof(*self));
    snprintf(problem, REPORT_PROBLEM, "out of memory");
    if (!self) return NULL;
    snprintf(self->folder, sizeof(self->folder), "%s/isotherm-plots-XXXXXX",
             place && *place ? place : "/tmp");
    bool made = mkdtemp(self->folder);
    path_of(self, "script", path);
    if (made) self->script = fopen(path, "w");
    if (self->script) return self;
    snprintf(problem, REPORT_PROBLEM, "a temporary file cannot be made in %.120s: %s", self->folder,
             strerror(errno));
    if (made) rmdir(self->folder);
    free(self);
    return NULL;
}

FILE *gnuplot_script(gnuplot *self) { return self->script; }

void gnuplot_output(gnuplot *self, int i, int width, int height) {
    char path[PATH_MAX];
    plot_path(self, i, path);
    fprintf(self->script,
            "reset\nset terminal svg size %d,%d dynamic noenhanced font 'sans-serif,13' ", width,
            height);
    fputs("background '#ffffff'\nset output '", self->script);
    for (const char *at = path; *at; at++) {
        if (*at == '\'') putc('\'', self->script);
        putc(*at, self->script);
    }
    fputs("'\n", self->script);
}

// ---- The child ----------------------------------------------------------------------------------

static int spawn_gnuplot(const char *script, const char *said, pid_t *child) {
    char *arguments[] = {"gnuplot", "-d", (char *)script, NULL}; // -d: no settings of the user
    posix_spawn_file_actions_t files;
    int error = posix_spawn_file_actions_init(&files);
    if (error) return error;
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    error = posix_spawnp(child, "gnuplot", &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

// The last line that names a place in the script, which is where gnuplot gave up.
static void last_words(const char *said, char problem[REPORT_PROBLEM]) {
    char line[160];
    FILE *from = fopen(said, "r");
    snprintf(problem, REPORT_PROBLEM, "gnuplot failed");
    while (from && fgets(line, sizeof(line), from)) {
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, "line ")) snprintf(problem, REPORT_PROBLEM, "gnuplot failed: %s", line);
    }
    if (from) fclose(from);
}

bool gnuplot_run(gnuplot *self, char problem[REPORT_PROBLEM]) {
    char script[PATH_MAX], said[PATH_MAX];
    pid_t child;
    int outcome;
    path_of(self, "script", script);
    path_of(self, "said", said);
    bool written = fflush(self->script) == 0 && !ferror(self->script);
    int error = written ? spawn_gnuplot(script, said, &child) : EIO;
    if (error == ENOENT)
        snprintf(problem, REPORT_PROBLEM, "gnuplot is not installed (Debian: gnuplot-nox)");
    else if (error)
        snprintf(problem, REPORT_PROBLEM, "gnuplot could not be started: %s", strerror(error));
    if (error) return false;
    while (waitpid(child, &outcome, 0) < 0)
        if (errno != EINTR) return false;
    if (WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) return true;
    last_words(said, problem);
    return false;
}

// ---- What it drew -------------------------------------------------------------------------------

static char *whole_file(const char *path) {
    FILE *from = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (!from) return NULL;
    if (getdelim(&text, &room, 0, from) < 0) { // an SVG file has no NUL
        free(text);
        text = NULL;
    }
    fclose(from);
    return text;
}

char *gnuplot_take(gnuplot *self, int i) {
    char path[PATH_MAX];
    plot_path(self, i, path);
    char *text = whole_file(path);
    char *begin = text ? strstr(text, "<svg") : NULL; // what stands before has no place in a page
    if (begin && strstr(begin, "</svg>")) {
        memmove(text, begin, strlen(begin) + 1);
        return text;
    }
    free(text);
    return NULL;
}

void gnuplot_close(gnuplot **self) {
    char path[PATH_MAX];
    if (!*self) return;
    fclose((*self)->script);
    path_of(*self, "script", path);
    unlink(path);
    path_of(*self, "said", path);
    unlink(path);
    for (int i = 0; i < REPORT_PLOTS; i++) {
        plot_path(*self, i, path);
        unlink(path);
    }
    rmdir((*self)->folder);
    free(*self);
    *self = NULL;
}
