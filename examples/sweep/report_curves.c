// SPDX-License-Identifier: MIT
// Figures of curves: of each group the mean over seeds, and a band of its 95 % interval.
#include "report_plot.h"

#include <math.h>

#define BEST_ERROR 0.01 // %: an error of 0 is drawn as this

enum { MARKS_ON_CURVE = 12 };

// ---- Values -------------------------------------------------------------------------------------

static double value_of(const report_run *run, bool syncs, int64_t i, kind what) {
    const report_point *point = syncs ? NULL : &run->points[i];
    const report_sync *sync = syncs ? &run->syncs[i] : NULL;
    switch (what) {
    case STEPS: return syncs ? sync->step : point->step;
    case SECONDS: return syncs ? sync->seconds : point->seconds;
    case BYTES: return point->bytes;
    case LOSS: return point->train_loss;
    case ACCURACY: return 100 * (1 - point->test_accuracy);
    case DIVERGENCE: return sync->divergence;
    case EXPOSED: return sync->wait_ms;
    case PERIOD: return sync->period;
    case WAIT: return sync->wait;
    case FINAL_ACCURACY: break;
    }
    return NAN;
}

// What every run of the group has.
static int64_t count_of(const report_group *group, bool syncs) {
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < group->count; i++) {
        int64_t own = syncs ? group->runs[i]->sync_count : group->runs[i]->point_count;
        if (own < least) least = own;
    }
    return least;
}

// Over the seeds, of the i-th evaluation or exchange.
static report_stat stat_at(const report_group *group, bool syncs, int64_t i, kind what) {
    for (int64_t r = 0; r < group->count; r++)
        group->room[r] = value_of(group->runs[r], syncs, i, what);
    return report_stat_of(group->room, group->count);
}

// Where it is drawn: errors on a logarithmic axis, and nothing below 0.
static double drawn_value(const axis *a, double value) {
    if (a->what == ACCURACY) return fmin(fmax(value, BEST_ERROR), 100);
    return fmax(value, a->log ? a->low / 1.1 : 0);
}

// ---- Axes ---------------------------------------------------------------------------------------

static axis axis_of(const report_groups *all, const curves *figure, char name) {
    axis a = {.name = name, .what = name == 'x' ? figure->x : figure->y, .low = INFINITY};
    double shortest = INFINITY, longest = 0;
    for (int64_t g = 0; g < all->count; g++) {
        const report_group *group = &all->groups[g];
        double most = 0;
        for (int64_t i = 0; i < count_of(group, figure->syncs); i++) {
            report_stat s = stat_at(group, figure->syncs, i, a.what);
            bool error = a.what == ACCURACY;
            axis_include(&a, error ? fmax(s.mean, BEST_ERROR) : s.mean);
            if (s.mean > 0) most = fmax(most, s.mean);
            if (!error && name == 'y') a.high = fmax(a.high, s.mean + s.half); // NaN: no more
        }
        if (most > 0) shortest = fmin(shortest, most);
        longest = fmax(longest, most);
    }
    axis_choose(&a, longest / shortest);
    return a;
}

// ---- Data ---------------------------------------------------------------------------------------

// "x mean low high"; without an interval low and high are the mean.
static void write_data(FILE *to, const report_group *group, const curves *figure, const axis *x,
                       const axis *y, int64_t number) {
    fprintf(to, "$mode%lld << END\n", (long long)number);
    for (int64_t i = 0; i < count_of(group, figure->syncs); i++) {
        double h = stat_at(group, figure->syncs, i, x->what).mean / x->unit;
        report_stat s = stat_at(group, figure->syncs, i, y->what);
        double half = isnan(s.half) ? 0 : s.half;
        if (!isfinite(h) || !isfinite(s.mean) || (x->log && h <= 0)) continue;
        if (y->log && y->what != ACCURACY && s.mean <= 0) continue;
        fprintf(to, "%.9g %.9g %.9g %.9g\n", h, drawn_value(y, s.mean / y->unit),
                drawn_value(y, (s.mean - half) / y->unit),
                drawn_value(y, (s.mean + half) / y->unit));
    }
    fputs("END\n", to);
}

// A group without data, as one without exchanges, has no line in the key.
static bool has_data(const report_group *group, const curves *figure) {
    for (int64_t i = 0; i < count_of(group, figure->syncs); i++) {
        report_stat s = stat_at(group, figure->syncs, i, figure->y);
        if (isfinite(s.mean) && (s.mean > 0 || figure->y == ACCURACY)) return true;
    }
    return false;
}

// ---- Curves -------------------------------------------------------------------------------------

static void draw_band(FILE *to, int64_t number) {
    fprintf(to,
            "$mode%lld using 1:3:4 with filledcurves fillstyle transparent solid 0.18 noborder "
            "linecolor '%s' notitle, \\\n  ",
            (long long)number, report_style_of(number).colour);
}

static void draw_curve(FILE *to, const report_group *group, const curves *figure, int64_t number) {
    int64_t every = (count_of(group, figure->syncs) + MARKS_ON_CURVE - 1) / MARKS_ON_CURVE;
    bool stairs = figure->y == PERIOD || figure->y == WAIT;
    fprintf(to, "$mode%lld using 1:2 with %s", (long long)number,
            stairs ? "fsteps" : "linespoints");
    plot_line_style(to, number);
    if (!stairs)
        fprintf(to, " pointtype %d pointsize 0.7 pointinterval %lld", plot_mark(number),
                (long long)(every > 0 ? every : 1));
    fputs(" title ", to);
    gnuplot_quote(to, group->label);
}

static void draw_all(FILE *to, const report_groups *all, const curves *figure) {
    const char *before = "plot ";
    for (int64_t g = 0; g < all->count; g++) {
        if (all->groups[g].count < 2 || !has_data(&all->groups[g], figure)) continue;
        fputs(before, to);
        draw_band(to, g);
        before = "";
    }
    for (int64_t g = 0; g < all->count; g++) {
        if (!has_data(&all->groups[g], figure)) continue;
        fputs(before, to);
        draw_curve(to, &all->groups[g], figure, g);
        before = ", \\\n  ";
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

bool plot_curves(gnuplot *plots, const report_groups *all, const curves *figure) {
    axis x = axis_of(all, figure, 'x'), y = axis_of(all, figure, 'y');
    if (!(x.high > 0) || !(y.high > 0)) return false;
    FILE *to = gnuplot_begin(plots, figure->file, PLOT_WIDTH, PLOT_HEIGHT + plot_key_height(all));
    if (!to) return false;
    plot_look(to);
    plot_key(to);
    axis_write(to, &x);
    axis_write(to, &y);
    if (y.what == ACCURACY) mark_target(to, 100 * (1 - all->study->target));
    for (int64_t g = 0; g < all->count; g++) write_data(to, &all->groups[g], figure, &x, &y, g);
    draw_all(to, all, figure);
    return true;
}
