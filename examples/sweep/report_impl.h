// SPDX-License-Identifier: MIT
// Shared by the files of the report.
#ifndef EXAMPLES_REPORT_IMPL_H
#define EXAMPLES_REPORT_IMPL_H

#include "report_groups.h"

// ---- report_csv.c ----

void report_text_field(FILE *to, const char *text); // quoted, if that is needed
void report_write_points(FILE *to, const report_groups *all);
void report_write_syncs(FILE *to, const report_groups *all);
void report_write_runs(FILE *to, const report_groups *all);
// A line for each mode and metric: mean, deviation, 95 % interval.
void report_write_modes(FILE *to, const report_groups *all);
// A line for each mode and metric: the paired test against the baseline.
void report_write_comparisons(FILE *to, const report_groups *all);

// ---- report_plot.c ----

enum { REPORT_PLOTS = 15, REPORT_PROBLEM = 256 };
typedef struct report_plot {
    const char *title;
    const char *note; // under the title; NULL: none
    const char *file; // name without ending
    char *svg;        // NULL: there is nothing to plot
} report_plot;
typedef struct report_figures {
    report_plot plot[REPORT_PLOTS];
    bool pdf;                         // there are PDF files
    char problem[REPORT_PROBLEM];     // why there are no figures; "": there are
    char pdf_problem[REPORT_PROBLEM]; // why there are no PDF files, if there should be; "": none
} report_figures;
// Writes the figures to folder/figures: for each a script of gnuplot with its data, and if gnuplot
// is installed, SVG and PDF files. Free it with report_figures_free.
void report_figures_make(const report_groups *all, const char *folder, report_figures *out);
void report_figures_free(report_figures *figures);

// Colour, dashes and mark of a group, the same in figures and tables. They differ one by one, so
// that groups can be told apart in black and white, too.
typedef struct report_style {
    const char *colour; // "#rrggbb"
    int dashes[2];      // length and gap; 0: solid
    int mark;           // one of enum report_mark
} report_style;
enum report_mark { MARK_CIRCLE, MARK_SQUARE, MARK_UP, MARK_DOWN, MARK_DIAMOND, REPORT_MARKS };
report_style report_style_of(int64_t group);

// ---- report_pareto.c ----

// Which of the points are on the front: no other one has at most its cost and at least its gain,
// one of them better. Points that are not finite are not.
void report_pareto_front(const double *cost, const double *gain, int64_t count, bool *front);

// ---- report_gnuplot.c ----

// Scripts for gnuplot that are being written, and the files of their figures.
typedef struct gnuplot gnuplot;
// Returns NULL on failure, with the reason in problem.
gnuplot *gnuplot_open(const char *folder, char problem[REPORT_PROBLEM]);
// Begins the script of the figure with this name; what is written to it draws the figure. The
// string must live as long as the gnuplot.
FILE *gnuplot_begin(gnuplot *self, const char *name, int width, int height);
// Runs all scripts, to write SVG or PDF files. Returns false on failure, with the reason in
// problem.
bool gnuplot_run(gnuplot *self, bool pdf, char problem[REPORT_PROBLEM]);
// The drawing of a figure as an <svg> element, freed by the caller; NULL: it was not drawn.
char *gnuplot_take(gnuplot *self, const char *name);
// Puts the files of all these names in their place in folder/figures, and removes older files of
// these names that were not written again.
void gnuplot_close(gnuplot **self, const char *const *names, int count);
// In single quotes, in which gnuplot runs no commands.
void gnuplot_quote(FILE *to, const char *text);

// ---- report_html.c, report_tables.c, report_settings.c ----

void report_write_html(FILE *to, const report_groups *all, const report_figures *figures);
void report_escape(FILE *to, const char *text);
// Colour, dashes and mark, then the label.
void report_write_label(FILE *to, const report_groups *all, int64_t group);
void report_write_ranking(FILE *to, const report_groups *all);
void report_write_statistics(FILE *to, const report_groups *all);
void report_write_tests(FILE *to, const report_groups *all);
void report_write_times(FILE *to, const report_groups *all);
void report_write_failures(FILE *to, const report *study);
void report_write_setups(FILE *to, const report_groups *all);
void report_write_settings(FILE *to, const report_groups *all);

// ---- report_sources.c ----

// A table of the algorithms that the runs used: what they do, and where they come from.
void report_write_sources(FILE *to, const report_groups *all);

#endif
