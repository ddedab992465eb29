// SPDX-License-Identifier: MIT
// Shared by the files of the report.
#ifndef EXAMPLES_REPORT_IMPL_H
#define EXAMPLES_REPORT_IMPL_H

#include "report.h"

// ---- report.c ----

// Ranks the runs, best first: by time to the target, then by accuracy. order has study->count
// elements.
void report_rank(const report *study, int64_t *order);
// The first evaluation that reached the accuracy; NULL: none did.
const report_point *report_reached(const report_run *run, double accuracy);
// The fraction of the run's time that the slowest rank spent in waits.
double report_share_waited(const report_run *run);

// ---- report_html.c ----

void report_write_html(FILE *to, const report *study);

// ---- report_plot.c ----

// Colour and dashes of a run, the same in plots and in the legend.
typedef struct report_style {
    const char *colour; // "#rrggbb"
    int dashes[2];      // length and gap; 0: solid
} report_style;
report_style report_style_of(int64_t run);

typedef struct report_plot {
    const char *title;
    const char *note; // under the title; NULL: none
    char *svg;        // NULL: there is nothing to plot
} report_plot;
enum { REPORT_PLOTS = 10, REPORT_PROBLEM = 256 };
// Makes the plots; the caller frees each svg. Returns false if there are none, with the reason in
// problem.
bool report_make_plots(const report *study, report_plot plots[REPORT_PLOTS],
                       char problem[REPORT_PROBLEM]);

// ---- report_gnuplot.c ----

// A gnuplot script that is being written, and the files of its plots.
typedef struct gnuplot gnuplot;
// Returns NULL on failure, with the reason in problem.
gnuplot *gnuplot_open(char problem[REPORT_PROBLEM]);
FILE *gnuplot_script(gnuplot *self);
// The following commands draw plot i.
void gnuplot_output(gnuplot *self, int i, int width, int height);
// Runs the script. Returns false on failure, with the reason in problem.
bool gnuplot_run(gnuplot *self, char problem[REPORT_PROBLEM]);
// The drawing of plot i as an <svg> element, freed by the caller; NULL: it was not drawn.
char *gnuplot_take(gnuplot *self, int i);
void gnuplot_close(gnuplot **self);

#endif
