// SPDX-License-Identifier: MIT
// What the files of the report share.
#ifndef EXAMPLES_REPORT_IMPL_H
#define EXAMPLES_REPORT_IMPL_H

#include "report.h"

// ---- report.c ----

// First to the target, then highest accuracy: order[count] begins with the best.
void report_rank(const report *study, int64_t *order);
// The first evaluation that reached the accuracy; NULL: none did.
const report_point *report_reached(const report_run *run, double accuracy);
// Part of the run's time that the slowest rank stood in waits.
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
// Makes the plots; the caller frees each svg. False when there are none: problem says why.
bool report_make_plots(const report *study, report_plot plots[REPORT_PLOTS],
                       char problem[REPORT_PROBLEM]);

// ---- report_gnuplot.c ----

// A gnuplot script being written; plot i is to go to the file output_path gives.
typedef struct gnuplot gnuplot;
// NULL: problem says why.
gnuplot *gnuplot_open(char problem[REPORT_PROBLEM]);
FILE *gnuplot_script(gnuplot *self);
// Makes plot i the one that the following commands draw.
void gnuplot_output(gnuplot *self, int i, int width, int height);
// Runs the script. False: problem says why.
bool gnuplot_run(gnuplot *self, char problem[REPORT_PROBLEM]);
// The drawing of plot i as an <svg> element, freed by the caller; NULL: it was not drawn.
char *gnuplot_take(gnuplot *self, int i);
void gnuplot_close(gnuplot **self);

#endif
