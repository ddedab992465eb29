// SPDX-License-Identifier: MIT
// Shows the progress of a program: a line that is redrawn on a terminal, a few plain lines
// elsewhere.
#include "base/base.h"

#include <fcntl.h>
#include <isotherm/metrics.h>
#include <isotherm/trace.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_NS 100000000 // at least 0.1 s between two drawings
#define BAR_MOST  30        // cells of the bar
#define TEXT_ROOM 512

struct iso_progress_bar {
    FILE *to;
    char *label, *unit;
    bool terminal;
    int64_t total, first, done; // first: done before the bar was made
    double loss;
    int64_t start, drawn; // times
    int tenths;           // plain lines written so far reach this many tenths of the total
};

// Open MPI gives every local rank a pseudo-terminal without a width, even if mpirun writes to a
// file. Then the output of mpirun, the parent, decides. If it cannot be examined, the rank gets
// plain lines.
static bool is_terminal(FILE *to) {
    struct winsize size;
    if (!isatty(fileno(to))) return false;
    if (ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return true;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)getppid(), fileno(to));
    int parents = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    bool answer = parents >= 0 && isatty(parents);
    if (parents >= 0) close(parents);
    return answer;
}

iso_status iso_progress_bar_create(FILE *to, const char *label, int64_t total, const char *unit,
                                   iso_progress_bar **out) {
    ISO_CHECK(total > 0, ISO_ERR_ARG, "a progress bar of %lld %s: give a total of at least 1",
              (long long)total, unit);
    iso_status status;
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_progress_bar), &memory));
    iso_progress_bar *self = memory;
    ISO_TRY_GOTO(iso__strdup(label, &self->label));
    ISO_TRY_GOTO(iso__strdup(unit, &self->unit));
    self->to = to;
    self->terminal = to && is_terminal(to);
    self->total = total;
    self->loss = NAN;
    self->start = iso_now();
    self->drawn = self->start; // delays the first drawing until the rate is meaningful
    *out = self;
    return ISO_OK;
fail:
    iso__free(self->label);
    iso__free(self);
    return status;
}

static int terminal_width(FILE *to) {
    struct winsize size;
    if (ioctl(fileno(to), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

// "12:05" or "1:02:05".
static void duration_text(double seconds, char *text, size_t room) {
    long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : 1000000000;
    if (s >= 3600)
        snprintf(text, room, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, room, "%lld:%02lld", s / 60, s % 60);
}

// What follows the bar: done/total, rate, loss, ETA.
static void metrics_text(const iso_progress_bar *self, char *text, size_t room) {
    double elapsed = (double)(iso_now() - self->start) / 1e9;
    double rate = elapsed > 0 ? (double)(self->done - self->first) / elapsed : 0;
    int n = snprintf(text, room, "%lld/%lld %s", (long long)self->done, (long long)self->total,
                     self->unit);
    size_t used = (size_t)n < room ? (size_t)n : room - 1;
    if (rate > 0)
        used += (size_t)snprintf(text + used, room - used, "  %.*f/s", rate < 100 ? 1 : 0, rate);
    if (used < room && !isnan(self->loss))
        used += (size_t)snprintf(text + used, room - used,
                                 self->loss < 1e6 ? "  loss %.4f" : "  loss %.3g", self->loss);
    if (used < room && rate > 0) {
        char eta[32];
        duration_text((double)(self->total - self->done) / rate, eta, sizeof(eta));
        snprintf(text + used, room - used, "  ETA %s", eta);
    }
}

static void draw_bar(iso_progress_bar *self) {
    char text[TEXT_ROOM], metrics[TEXT_ROOM / 2], bar[BAR_MOST + 1];
    metrics_text(self, metrics, sizeof(metrics));
    // One column stays free: writing into the last one makes some terminals wrap.
    int width = terminal_width(self->to) - 1;
    int cells = width - (int)(strlen(self->label) + strlen(metrics)) - 5; // spaces and brackets
    if (cells > BAR_MOST) cells = BAR_MOST;
    if (cells >= 5) {
        int full = (int)((double)self->done / (double)self->total * cells);
        for (int i = 0; i < cells; i++) bar[i] = i < full ? '=' : i == full ? '>' : ' ';
        bar[cells] = 0;
        snprintf(text, sizeof(text), "%s [%s] %s", self->label, bar, metrics);
    } else {
        snprintf(text, sizeof(text), "%s %s", self->label, metrics);
    }
    fprintf(self->to, "\r%.*s\033[K", width, text);
    fflush(self->to);
    self->drawn = iso_now();
}

static void write_plain(iso_progress_bar *self) {
    char metrics[TEXT_ROOM / 2];
    int tenths = (int)((double)self->done / (double)self->total * 10);
    if (tenths <= self->tenths) return;
    self->tenths = tenths;
    metrics_text(self, metrics, sizeof(metrics));
    fprintf(self->to, "%s %s\n", self->label, metrics);
    fflush(self->to);
}

void iso_progress_bar_begin_at(iso_progress_bar *self, int64_t done) {
    self->first = self->done = done < self->total ? done : self->total;
    self->tenths = (int)((double)self->done / (double)self->total * 10);
    self->start = self->drawn = iso_now();
}

void iso_progress_bar_line(iso_progress_bar *self, const char *text, ...) {
    if (!self->to) return;
    va_list args;
    if (self->terminal) fputs("\r\033[K", self->to);
    va_start(args, text);
    vfprintf(self->to, text, args);
    va_end(args);
    fputc('\n', self->to);
    fflush(self->to);
}

void iso_progress_bar_update(iso_progress_bar *self, int64_t done, double loss) {
    if (!self->to) return;
    self->done = done < self->total ? done : self->total;
    self->loss = loss;
    if (!self->terminal)
        write_plain(self);
    else if (iso_now() - self->drawn >= REDRAW_NS)
        draw_bar(self);
}

static void free_bar(iso_progress_bar **bar) {
    iso__free((*bar)->label);
    iso__free((*bar)->unit);
    iso__free(*bar);
    *bar = NULL;
}

void iso_progress_bar_clear(iso_progress_bar **bar) {
    iso_progress_bar *self = bar ? *bar : NULL;
    if (!self) return;
    if (self->to && self->terminal && self->drawn != self->start) {
        fputs("\r\033[K", self->to);
        fflush(self->to);
    }
    free_bar(bar);
}

bool iso_progress_bar_is_redrawn(const iso_progress_bar *self) { return self->terminal; }

void iso_progress_bar_finish(iso_progress_bar **bar, const char *summary, ...) {
    iso_progress_bar *self = bar ? *bar : NULL;
    if (!self) return;
    if (self->to && self->terminal && !summary) draw_bar(self);
    if (self->to && summary) {
        va_list args;
        fprintf(self->to, "%s%s ", self->terminal ? "\r" : "", self->label);
        va_start(args, summary);
        vfprintf(self->to, summary, args);
        va_end(args);
        if (self->terminal) fputs("\033[K", self->to);
    }
    if (self->to && (summary || self->terminal)) {
        fputc('\n', self->to);
        fflush(self->to);
    }
    free_bar(bar);
}
