// SPDX-License-Identifier: MIT
// Writes the plots of a study as a script for gnuplot.
#include "report_impl.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define WIDTH      640
#define HEIGHT     380
#define BAR_HEIGHT 34
#define BAR_FRAME  90   // height of a bar plot without its bars
#define BEST_ERROR 0.01 // %: what no wrong answer at all is drawn as

// Okabe and Ito's colours, which people of all kinds of colour vision tell apart, without yellow.
report_style report_style_of(int64_t run) {
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                          "#e69f00", "#56b4e9", "#000000"};
    static const int dashes[][2] = {{0, 0}, {9, 5}, {3, 4}, {14, 3}};
    const int64_t n = sizeof(colours) / sizeof(*colours), m = sizeof(dashes) / sizeof(*dashes);
    const int *dash = dashes[run / n % m];
    return (report_style){.colour = colours[run % n], .dashes = {dash[0], dash[1]}};
}

// ---- What is plotted ----------------------------------------------------------------------------

typedef enum kind { STEPS, SECONDS, BYTES, LOSS, ACCURACY, DIVERGENCE, WAIT } kind;

typedef struct curves {
    const char *title, *note;
    kind x, y;
    bool syncs; // of syncs, not of points
} curves;

static const char accuracy_note[] = "Logarithmic in the error rate (100 % minus accuracy).";
static const char loss_note[] = "Mean since the previous evaluation.";
static const curves figures[] = {
    {"Test accuracy against time", accuracy_note, SECONDS, ACCURACY, false},
    {"Training loss against time", loss_note, SECONDS, LOSS, false},
    {"Test accuracy against steps", accuracy_note, STEPS, ACCURACY, false},
    {"Training loss against steps", loss_note, STEPS, LOSS, false},
    {"Test accuracy against bytes", accuracy_note, BYTES, ACCURACY, false},
    {"Training loss against bytes", loss_note, BYTES, LOSS, false},
    {"Divergence at each exchange of parameters",
     "Distance of the farthest rank from the mean, relative to the norm of the mean.", STEPS,
     DIVERGENCE, true},
    {"Exposed time of each exchange of parameters",
     "Time that rank 0 spent waiting for it; the rest of the exchange is hidden.", STEPS, WAIT,
     true},
};
enum { FIGURES = sizeof(figures) / sizeof(*figures), TARGET_BARS = FIGURES, WAIT_BARS };
_Static_assert(WAIT_BARS + 1 == REPORT_PLOTS, "every plot has its place");

static int64_t count_of(const report_run *run, bool syncs) {
    return syncs ? run->sync_count : run->point_count;
}

static double raw_value(const report_run *run, bool syncs, int64_t i, kind what) {
    const report_point *point = syncs ? NULL : &run->points[i];
    const report_sync *sync = syncs ? &run->syncs[i] : NULL;
    switch (what) {
    case STEPS: return syncs ? sync->step : point->step;
    case SECONDS: return point->seconds;
    case BYTES: return point->bytes;
    case LOSS: return point->train_loss;
    case ACCURACY: return fmax(100 * (1 - point->test_accuracy), BEST_ERROR);
    case DIVERGENCE: return sync->divergence;
    case WAIT: return sync->wait_ms;
    }
    return NAN;
}

// ---- Axes ---------------------------------------------------------------------------------------

typedef struct axis {
    char name; // 'x' or 'y'
    kind what;
    bool log;
    double low, high;      // of all values, > 0 where log
    double unit;           // what a value is divided by
    const char *unit_name; // "": none
} axis;

// Smallest value above 0, largest, and how many times the shortest run the longest is.
static void measure_range(const report *study, const curves *figure, axis *a, double *span) {
    double shortest = INFINITY, longest = 0;
    a->low = INFINITY;
    a->high = 0;
    for (int64_t r = 0; r < study->count; r++) {
        double most = 0;
        for (int64_t i = 0; i < count_of(&study->runs[r], figure->syncs); i++) {
            double value = raw_value(&study->runs[r], figure->syncs, i, a->what);
            if (value > 0) a->low = fmin(a->low, value);
            if (value > 0) most = fmax(most, value);
        }
        a->high = fmax(a->high, most);
        if (most > 0) shortest = fmin(shortest, most);
        longest = fmax(longest, most);
    }
    *span = longest / shortest;
}

static axis axis_of(const report *study, const curves *figure, char name) {
    axis a = {.name = name, .what = name == 'x' ? figure->x : figure->y, .unit = 1};
    double span;
    measure_range(study, figure, &a, &span);
    double decades = a.high > 0 ? a.high / a.low : 0;
    switch (a.what) {
    case SECONDS:
        a.log = span > 4;
        a.unit = a.high > 7200 ? 3600 : a.high > 600 ? 60 : 1;
        a.unit_name = a.high > 7200 ? "h" : a.high > 600 ? "min" : "s";
        break;
    case BYTES:
        a.log = span > 4;
        a.unit = a.high > 2e9 ? 1e9 : 1e6;
        a.unit_name = a.high > 2e9 ? "GB" : "MB";
        break;
    case LOSS: a.log = decades > 20; break;
    case ACCURACY: a.log = true; break;
    case DIVERGENCE: a.log = decades > 50; break;
    case STEPS:
    case WAIT: break;
    }
    a.low /= a.unit;
    a.high /= a.unit;
    return a;
}

static void label_axis(FILE *to, const axis *a) {
    static const char *const text[] = {[STEPS] = "steps",
                                       [SECONDS] = "training time",
                                       [BYTES] = "sent by all ranks",
                                       [LOSS] = "training loss",
                                       [ACCURACY] = "test accuracy (%)",
                                       [DIVERGENCE] = "divergence, relative to the parameters",
                                       [WAIT] = "exposed time (ms)"};
    fprintf(to, "set %clabel '%s", a->name, text[a->what]);
    if (a->unit_name) fprintf(to, " (%s)", a->unit_name);
    fputs("'\n", to);
}

// 1, 2 and 5 of each decade, or the decades alone where there are many.
static void scale_log(FILE *to, const axis *a) {
    bool dense = a->high / a->low < 2000;
    int first = (int)floor(log10(a->low)), last = (int)ceil(log10(a->high));
    fprintf(to, "set logscale %c\nset %ctics (", a->name, a->name);
    for (int e = first; e <= last; e++) {
        double one = pow(10, e);
        fprintf(to, "%s'%g' %g", e > first ? ", " : "", one, one);
        if (dense) fprintf(to, ", '%g' %g, '%g' %g", 2 * one, 2 * one, 5 * one, 5 * one);
    }
    fprintf(to, ")\nset %crange [%g:%g]\n", a->name, a->low / 1.1, a->high * 1.1);
}

// Upside down, so that more is better; what stands at 1 % of errors is 99.
static void scale_accuracy(FILE *to, const axis *a) {
    static const double errors[] = {100, 50,  20,  10,   5,    2,         1,
                                    0.5, 0.2, 0.1, 0.05, 0.02, BEST_ERROR};
    const size_t count = sizeof(errors) / sizeof(*errors);
    double worst = errors[0], best = errors[count - 1];
    fputs("set logscale y\nset ytics (", to);
    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s'%g' %g", i ? ", " : "", 100 - errors[i], errors[i]);
        if (errors[i] >= a->high) worst = errors[i];
        if (errors[count - 1 - i] <= a->low) best = errors[count - 1 - i];
    }
    fprintf(to, ")\nset yrange [%g:%g]\n", worst, best);
}

static void scale_axis(FILE *to, const axis *a) {
    label_axis(to, a);
    if (a->what == ACCURACY)
        scale_accuracy(to, a);
    else if (a->log)
        scale_log(to, a);
    else
        fprintf(to, "set %crange [0:%g]\n", a->name, a->high > 0 ? a->high * 1.03 : 1);
}

// ---- Plots --------------------------------------------------------------------------------------

static void set_look(FILE *to) {
    fputs("set encoding utf8\nunset key\nset border 3 linecolor '#555555'\n"
          "set tics nomirror out textcolor '#333333'\n"
          "set grid linetype 1 linecolor '#e4e4e4' linewidth 1\n",
          to);
}

static void write_curve(FILE *to, const report_run *run, const curves *figure, const axis *x,
                        const axis *y, int64_t number) {
    fprintf(to, "$run%lld << END\n", (long long)number);
    for (int64_t i = 0; i < count_of(run, figure->syncs); i++) {
        double h = raw_value(run, figure->syncs, i, x->what) / x->unit;
        double v = raw_value(run, figure->syncs, i, y->what) / y->unit;
        if (isfinite(h) && isfinite(v) && (!x->log || h > 0) && (!y->log || v > 0))
            fprintf(to, "%.9g %.9g\n", h, v);
    }
    fputs("END\n", to);
}

static void draw_curves(FILE *to, const report *study, bool dots) {
    fputs("plot ", to);
    for (int64_t r = 0; r < study->count; r++) {
        report_style style = report_style_of(r);
        fprintf(to, "%s$run%lld using 1:2 with %s linecolor '%s' linewidth 2", r ? ", " : "",
                (long long)r, dots ? "linespoints pointtype 7 pointsize 0.3" : "lines",
                style.colour);
        if (style.dashes[0]) fprintf(to, " dashtype (%d,%d)", style.dashes[0], style.dashes[1]);
    }
    fputc('\n', to);
}

static void mark_target(FILE *to, double error) {
    fprintf(to,
            "set arrow from graph 0, first %g to graph 1, first %g nohead linecolor '#888888' "
            "dashtype (4,4)\nset label 'target' at graph 0.01, first %g offset 0,0.5 "
            "textcolor '#666666'\n",
            error, error, error);
}

static bool plot_curves(gnuplot *plots, int i, const report *study) {
    const curves *figure = &figures[i];
    FILE *to = gnuplot_script(plots);
    axis x = axis_of(study, figure, 'x'), y = axis_of(study, figure, 'y');
    if (!(x.high > 0) || !(y.high > 0)) return false;
    gnuplot_output(plots, i, WIDTH, HEIGHT);
    set_look(to);
    scale_axis(to, &x);
    scale_axis(to, &y);
    if (y.what == ACCURACY) mark_target(to, 100 * (1 - study->target));
    for (int64_t r = 0; r < study->count; r++) write_curve(to, &study->runs[r], figure, &x, &y, r);
    draw_curves(to, study, !figure->syncs);
    return true;
}

static void write_quoted(FILE *to, const char *text) { // in single quotes gnuplot runs no commands
    putc('\'', to);
    for (; *text; text++) {
        if (*text == '\'') putc('\'', to);
        putc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    putc('\'', to);
}

typedef double (*bar_value)(const report *study, const report_run *run); // NaN: none

static double target_seconds(const report *study, const report_run *run) {
    const report_point *point = report_reached(run, study->target);
    return point ? point->seconds : NAN;
}

static double waited_ms(const report *study, const report_run *run) {
    (void)study;
    return run->wait_ms_per_step;
}

static void write_bars(FILE *to, const report *study, const int64_t *order, bar_value value) {
    fputs("set ytics scale 0 (", to);
    for (int64_t at = 0; at < study->count; at++) {
        fputs(at ? ", " : "", to);
        write_quoted(to, study->runs[order[at]].name);
        fprintf(to, " %lld", (long long)at + 1);
    }
    fputs(")\n$bars << END\n", to);
    for (int64_t at = 0; at < study->count; at++) {
        double bar = value(study, &study->runs[order[at]]);
        fprintf(to, "%.9g %lld 0x%s\n", isnan(bar) ? 0 : bar, (long long)at + 1,
                report_style_of(order[at]).colour + 1);
    }
    fputs("END\n", to);
}

// One horizontal bar a run, the best run on top.
static bool plot_bars(gnuplot *plots, int i, const report *study, const int64_t *order,
                      bar_value value, const char *label, const char *none) {
    FILE *to = gnuplot_script(plots);
    double most = 0;
    for (int64_t r = 0; r < study->count; r++) most = fmax(most, value(study, &study->runs[r]));
    if (!(most > 0)) return false;
    gnuplot_output(plots, i, WIDTH, BAR_FRAME + BAR_HEIGHT * (int)study->count);
    set_look(to);
    fprintf(to, "set border 1\nunset grid\nset xlabel '%s'\nset xrange [0:%g]\n", label,
            1.15 * most);
    fprintf(to, "set yrange [%lld.6:0.4]\nset style fill solid noborder\n",
            (long long)study->count);
    write_bars(to, study, order, value);
    fprintf(to,
            "plot $bars using ($1/2):2:(0):1:($2-0.33):($2+0.33):(int(column(3))) "
            "with boxxyerror linecolor rgb variable, "
            "$bars using 1:2:($1 > 0 ? gprintf('%%.3g', $1) : '%s') with labels left offset 1\n",
            none);
    return true;
}

// ---- All of them --------------------------------------------------------------------------------

static void plot_all(gnuplot *plots, const report *study, int64_t *order,
                     report_plot out[REPORT_PLOTS], bool drawn[REPORT_PLOTS]) {
    report_rank(study, order);
    for (int i = 0; i < FIGURES; i++) {
        out[i] = (report_plot){.title = figures[i].title, .note = figures[i].note};
        drawn[i] = plot_curves(plots, i, study);
    }
    out[TARGET_BARS] = (report_plot){.title = "Time to the target accuracy"};
    drawn[TARGET_BARS] = plot_bars(plots, TARGET_BARS, study, order, target_seconds,
                                   "training time until then (s)", "not reached");
    out[WAIT_BARS] =
        (report_plot){.title = "Exposed time of a step",
                      .note = "Time that the slowest rank spent waiting for exchanges."};
    drawn[WAIT_BARS] = plot_bars(plots, WAIT_BARS, study, order, waited_ms,
                                 "exposed time, mean of all steps (ms)", "0");
}

bool report_make_plots(const report *study, report_plot out[REPORT_PLOTS],
                       char problem[REPORT_PROBLEM]) {
    bool drawn[REPORT_PLOTS];
    gnuplot *plots = gnuplot_open(problem);
    int64_t *order = calloc((size_t)study->count + 1, sizeof(*order));
    bool good = plots && order;
    if (good) {
        plot_all(plots, study, order, out, drawn);
        good = gnuplot_run(plots, problem);
    }
    for (int i = 0; i < REPORT_PLOTS && good; i++)
        out[i].svg = drawn[i] ? gnuplot_take(plots, i) : NULL;
    gnuplot_close(&plots);
    free(order);
    return good;
}
