// SPDX-License-Identifier: MIT
// Runs gnuplot as a child process on scripts, and puts its drawings in their place.
#include "report_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define ALL  ".all"  // the script that runs the others
#define SAID ".said" // what gnuplot says

struct gnuplot {
    char folder[PATH_MAX - 512]; // of the figures
    char work[PATH_MAX - 256];   // where they grow; it goes with them
    const char *names[REPORT_PLOTS];
    int count;
    FILE *script; // of the latest one
    bool written; // all before
};

static void path_of(const char *folder, const char *name, const char *ending, char out[PATH_MAX]) {
    snprintf(out, PATH_MAX, "%s/%.100s%s", folder, name, ending);
}

static bool make_folder(const char *path) { return mkdir(path, 0777) == 0 || errno == EEXIST; }

gnuplot *gnuplot_open(const char *folder, char problem[REPORT_PROBLEM]) {
    gnuplot *self = calloc(1, sizeof(*self));
    snprintf(problem, REPORT_PROBLEM, "out of memory");
    if (!self) return NULL;
    self->written = true;
    int length = snprintf(self->folder, sizeof(self->folder), "%s/figures", folder);
    snprintf(self->work, sizeof(self->work), "%s/.figures", folder);
    bool fits = length < (int)sizeof(self->folder);
    if (fits && make_folder(self->folder) && make_folder(self->work)) return self;
    snprintf(problem, REPORT_PROBLEM, "the folder %.120s cannot be made: %s", self->folder,
             strerror(fits ? errno : ENAMETOOLONG));
    free(self);
    return NULL;
}

static void end_script(gnuplot *self) {
    if (!self->script) return;
    bool good = fflush(self->script) == 0 && !ferror(self->script);
    self->written = fclose(self->script) == 0 && good && self->written;
    self->script = NULL;
}

// SVG unless gnuplot is started with -e "pdf = 1". Widths in pixels are at 96 per inch.
static void write_terminal(FILE *to, const char *name, int width, int height) {
    fprintf(to,
            "# Draws %s.svg, and with gnuplot -e 'pdf = 1' %s.pdf. The data are in this file.\n"
            "reset\n"
            "if (exists('pdf')) {\n"
            "  set terminal pdfcairo size %.3fin,%.3fin noenhanced font 'sans-serif,10'\n"
            "  set output '%s.pdf'\n"
            "} else {\n"
            "  set terminal svg size %d,%d dynamic noenhanced font 'sans-serif,13' background "
            "'#ffffff' name '%s'\n"
            "  set output '%s.svg'\n"
            "}\n",
            name, name, width / 96.0, height / 96.0, name, width, height, name, name);
}

FILE *gnuplot_begin(gnuplot *self, const char *name, int width, int height) {
    char path[PATH_MAX];
    end_script(self);
    path_of(self->work, name, ".gp", path);
    self->script = fopen(path, "w");
    if (!self->script) self->written = false;
    if (!self->script) return NULL;
    self->names[self->count++] = name;
    write_terminal(self->script, name, width, height);
    return self->script;
}

void gnuplot_quote(FILE *to, const char *text) {
    putc('\'', to);
    for (; *text; text++) {
        if (*text == '\'') putc('\'', to);
        putc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    putc('\'', to);
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

// The last line that names a place in a script, which is where gnuplot gave up.
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

// In the folder where the figures grow, so that the scripts need no paths.
static bool write_all_script(gnuplot *self, bool pdf, const char *path) {
    FILE *to = fopen(path, "w");
    if (!to) return false;
    fputs("cd ", to);
    gnuplot_quote(to, self->work);
    fputs(pdf ? "\npdf = 1\n" : "\n", to);
    for (int i = 0; i < self->count; i++) fprintf(to, "load '%s.gp'\n", self->names[i]);
    fputs("unset output\n", to);
    bool good = !ferror(to);
    return fclose(to) == 0 && good;
}

bool gnuplot_run(gnuplot *self, bool pdf, char problem[REPORT_PROBLEM]) {
    char script[PATH_MAX], said[PATH_MAX];
    pid_t child;
    int outcome;
    end_script(self);
    path_of(self->work, ALL, "", script);
    path_of(self->work, SAID, "", said);
    bool written = self->written && write_all_script(self, pdf, script);
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

char *gnuplot_take(gnuplot *self, const char *name) {
    char path[PATH_MAX];
    path_of(self->work, name, ".svg", path);
    char *text = whole_file(path);
    char *begin = text ? strstr(text, "<svg") : NULL; // what stands before has no place in a page
    if (begin && strstr(begin, "</svg>")) {
        memmove(text, begin, strlen(begin) + 1);
        return text;
    }
    free(text);
    return NULL;
}

// An empty file is what gnuplot leaves when it fails.
static void place_file(const gnuplot *self, const char *name, const char *ending) {
    char from[PATH_MAX], to[PATH_MAX];
    struct stat info;
    path_of(self->work, name, ending, from);
    path_of(self->folder, name, ending, to);
    bool whole = stat(from, &info) == 0 && info.st_size > 0;
    if (whole && rename(from, to) == 0) return;
    unlink(from);
    unlink(to);
}

void gnuplot_close(gnuplot **self, const char *const *names, int count) {
    char path[PATH_MAX];
    if (!*self) return;
    end_script(*self);
    for (int i = 0; i < count; i++) {
        place_file(*self, names[i], ".gp");
        place_file(*self, names[i], ".svg");
        place_file(*self, names[i], ".pdf");
    }
    path_of((*self)->work, ALL, "", path);
    unlink(path);
    path_of((*self)->work, SAID, "", path);
    unlink(path);
    rmdir((*self)->work);
    free(*self);
    *self = NULL;
}
