// SPDX-License-Identifier: MIT
// The figures of a study: which there are, and how they look.
#include "report_plot.h"

#include <stdlib.h>
#include <string.h>

// ---- How a group looks --------------------------------------------------------------------------

// Okabe and Ito's colours, which people of all kinds of colour vision tell apart, without yellow.
report_style report_style_of(int64_t group) {
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                          "#e69f00", "#56b4e9", "#000000"};
    static const int dashes[][2] = {{0, 0}, {9, 5}, {3, 4}, {14, 3}};
    const int64_t n = sizeof(colours) / sizeof(*colours), m = sizeof(dashes) / sizeof(*dashes);
    const int *dash = dashes[group % m];
    return (report_style){.colour = colours[group % n],
                          .dashes = {dash[0], dash[1]},
                          .mark = (int)(group % REPORT_MARKS)};
}

int plot_mark(int64_t group) {
    static const int types[REPORT_MARKS] = {
        [MARK_CIRCLE] = 7, [MARK_SQUARE] = 5, [MARK_UP] = 9, [MARK_DOWN] = 11, [MARK_DIAMOND] = 13};
    return types[report_style_of(group).mark];
}

void plot_line_style(FILE *to, int64_t group) {
    report_style style = report_style_of(group);
    fprintf(to, " linecolor '%s' linewidth 2", style.colour);
    if (style.dashes[0]) fprintf(to, " dashtype (%d,%d)", style.dashes[0], style.dashes[1]);
}

void plot_look(FILE *to) {
    fputs("set encoding utf8\nunset key\nset border 3 linecolor '#555555'\n"
          "set tics nomirror out textcolor '#333333'\n"
          "set grid linetype 1 linecolor '#e4e4e4' linewidth 1\n",
          to);
}

void plot_key(FILE *to) { fputs("set key tmargin center horizontal samplen 4\n", to); }

// Some three labels fit in a line.
int plot_key_height(const report_groups *all) { return (int)((all->count + 2) / 3) * PLOT_KEY; }

// ---- Which there are ----------------------------------------------------------------------------

static const char accuracy_note[] = "Logarithmic in the error rate (100 % minus accuracy).";
static const char loss_note[] = "Mean since the previous evaluation.";
static const char front_note[] =
    "Final accuracy, mean over seeds with 95 % intervals. The line is the Pareto front: no mode "
    "has both a lower cost and a higher accuracy.";
static const char divergence_note[] =
    "Distance of the farthest rank from the mean, relative to its norm (gossip: of two ranks).";
static const curves curve[] = {
    {"accuracy_time", "Test accuracy against time", accuracy_note, SECONDS, ACCURACY, false},
    {"loss_time", "Training loss against time", loss_note, SECONDS, LOSS, false},
    {"accuracy_steps", "Test accuracy against steps", accuracy_note, STEPS, ACCURACY, false},
    {"loss_steps", "Training loss against steps", loss_note, STEPS, LOSS, false},
    {"accuracy_bytes", "Test accuracy against bytes", accuracy_note, BYTES, ACCURACY, false},
    {"loss_bytes", "Training loss against bytes", loss_note, BYTES, LOSS, false},
    {"divergence_steps", "Divergence at each exchange of parameters", divergence_note, STEPS,
     DIVERGENCE, true},
    {"divergence_time", "Divergence against time", divergence_note, SECONDS, DIVERGENCE, true},
    {"exposed_steps", "Exposed time of each exchange of parameters",
     "Time that rank 0 spent waiting for it; the rest of the exchange is hidden.", STEPS, EXPOSED,
     true},
    {"period_steps", "Effective period", "Steps between two sends.", STEPS, PERIOD, true},
    {"wait_steps", "Effective wait", "Steps from a send to its merge.", STEPS, WAIT, true},
};
enum {
    CURVES = sizeof(curve) / sizeof(*curve),
    FRONT_BYTES = CURVES,
    FRONT_TIME,
    TARGET_BARS,
    TIME_BARS
};
_Static_assert(TIME_BARS + 1 == REPORT_PLOTS, "every figure has its place");

static const report_plot other[] = {
    {"Accuracy against bytes", front_note, "pareto_bytes", NULL},
    {"Accuracy against time", front_note, "pareto_time", NULL},
    {"Time to the target accuracy", "Mean over seeds; whiskers are 95 % intervals.", "target_time",
     NULL},
    {"Where the time of a step goes",
     "Exposed: the slowest rank's waits for exchanges. Merge: the slowest rank's converting, "
     "summing and merging of parameters. Compute: the rest.",
     "step_time", NULL},
};

// ---- All of them --------------------------------------------------------------------------------

static void draw_figures(gnuplot *plots, const report_groups *all, bool drawn[REPORT_PLOTS]) {
    for (int i = 0; i < CURVES; i++) drawn[i] = plot_curves(plots, all, &curve[i]);
    drawn[FRONT_BYTES] = plot_pareto(plots, all, "pareto_bytes", BYTES);
    drawn[FRONT_TIME] = plot_pareto(plots, all, "pareto_time", SECONDS);
    drawn[TARGET_BARS] = plot_target_bars(plots, all, "target_time");
    drawn[TIME_BARS] = plot_time_bars(plots, all, "step_time");
}

static void name_figures(report_figures *out, const char *names[REPORT_PLOTS]) {
    for (int i = 0; i < REPORT_PLOTS; i++) {
        const curves *c = &curve[i < CURVES ? i : 0];
        out->plot[i] = (report_plot){.title = c->title, .note = c->note, .file = c->file};
        if (i >= CURVES) out->plot[i] = other[i - CURVES];
        names[i] = out->plot[i].file;
    }
}

void report_figures_make(const report_groups *all, const char *folder, report_figures *out) {
    const char *names[REPORT_PLOTS];
    bool drawn[REPORT_PLOTS] = {false};
    char problem[REPORT_PROBLEM] = "";
    memset(out, 0, sizeof(*out));
    name_figures(out, names);
    gnuplot *plots = gnuplot_open(folder, problem);
    if (plots) draw_figures(plots, all, drawn);
    bool good = plots && gnuplot_run(plots, false, problem);
    for (int i = 0; i < REPORT_PLOTS && good; i++)
        out->plot[i].svg = drawn[i] ? gnuplot_take(plots, names[i]) : NULL;
    if (!good) memcpy(out->problem, problem, sizeof(problem));
    if (good && all->study->final) out->pdf = gnuplot_run(plots, true, out->pdf_problem);
    gnuplot_close(&plots, names, REPORT_PLOTS);
}

void report_figures_free(report_figures *figures) {
    for (int i = 0; i < REPORT_PLOTS; i++) free(figures->plot[i].svg);
}
