// SPDX-License-Identifier: MIT
// Shared by the files that write figures.
#ifndef EXAMPLES_REPORT_PLOT_H
#define EXAMPLES_REPORT_PLOT_H

#include "report_impl.h"

enum { PLOT_WIDTH = 640, PLOT_HEIGHT = 400, PLOT_KEY = 18 }; // pixels; a key line has PLOT_KEY

// ---- report_axis.c ----

typedef enum kind {
    STEPS,
    SECONDS,
    BYTES,
    LOSS,
    ACCURACY,
    DIVERGENCE,
    EXPOSED,
    PERIOD,
    WAIT,
    FINAL_ACCURACY
} kind;

typedef struct axis {
    char name; // 'x' or 'y'
    kind what;
    bool log;
    double low, high;      // of all values, > 0 where log
    double unit;           // what a value is divided by
    const char *unit_name; // NULL: none
} axis;

// Includes a value in the range. Ignores values that are not above 0.
void axis_include(axis *a, double value);
// Chooses unit and scale by the range. span: how many times the shortest run the longest is.
void axis_choose(axis *a, double span);
// Writes label, scale, tics and range.
void axis_write(FILE *to, const axis *a);

// ---- report_curves.c ----

typedef struct curves {
    const char *file, *title, *note;
    kind x, y;
    bool syncs; // of syncs, not of points
} curves;
// Returns false if there is nothing to draw.
bool plot_curves(gnuplot *plots, const report_groups *all, const curves *figure);

// ---- report_bars.c ----

// One horizontal bar a group, the best on top.
bool plot_target_bars(gnuplot *plots, const report_groups *all, const char *file);
// What a step is spent with: computing, exposed exchanges, merging.
bool plot_time_bars(gnuplot *plots, const report_groups *all, const char *file);

// ---- report_pareto.c ----

bool plot_pareto(gnuplot *plots, const report_groups *all, const char *file, kind cost);

// ---- report_plot.c ----

void plot_look(FILE *to);
// " linecolor ... dashtype ..." of a group.
void plot_line_style(FILE *to, int64_t group);
int plot_mark(int64_t group); // gnuplot's point type
// A key above the figure.
void plot_key(FILE *to);
int plot_key_height(const report_groups *all);

#endif
