// SPDX-License-Identifier: MIT
// Figures of bars: time to the target, and what a step is spent with.
#include "report_plot.h"

#include <math.h>
#include <stdlib.h>

enum { BAR_HEIGHT = 34, BAR_FRAME = 90 }; // BAR_FRAME: height of a figure without its bars

// Labels of the groups in their order, from above.
static void write_labels(FILE *to, const report_groups *all, const int64_t *order) {
    fprintf(to, "set border 1\nunset grid\nset yrange [%lld.6:0.4]\nset ytics scale 0 (",
            (long long)all->count);
    for (int64_t at = 0; at < all->count; at++) {
        fputs(at ? ", " : "", to);
        gnuplot_quote(to, all->groups[order[at]].label);
        fprintf(to, " %lld", (long long)at + 1);
    }
    fputs(")\n", to);
}

static FILE *begin_bars(gnuplot *plots, const report_groups *all, const int64_t *order,
                        const char *file, const char *label, double most) {
    FILE *to =
        gnuplot_begin(plots, file, PLOT_WIDTH, BAR_FRAME + PLOT_KEY + BAR_HEIGHT * (int)all->count);
    if (!to) return NULL;
    plot_look(to);
    fprintf(to, "set xlabel '%s'\nset xrange [0:%g]\n", label, 1.15 * most);
    write_labels(to, all, order);
    return to;
}

// ---- Time to the target -------------------------------------------------------------------------

static double most_of(const report_groups *all, report_value value) {
    double most = 0;
    for (int64_t g = 0; g < all->count; g++) {
        report_stat s = report_group_stat(all, &all->groups[g], value);
        most = fmax(most, s.mean + (isnan(s.half) ? 0 : s.half));
    }
    return most;
}

// "mean place colour low high"; 0: not reached by all seeds.
static void write_target_data(FILE *to, const report_groups *all, const int64_t *order) {
    fputs("$bars << END\n", to);
    for (int64_t at = 0; at < all->count; at++) {
        report_stat s = report_group_stat(all, &all->groups[order[at]], report_target_seconds);
        double mean = isnan(s.mean) ? 0 : s.mean, half = isnan(s.half) ? 0 : s.half;
        fprintf(to, "%.9g %lld 0x%s %.9g %.9g\n", mean, (long long)at + 1,
                report_style_of(order[at]).colour + 1, fmax(mean - half, 0), mean + half);
    }
    fputs("END\n", to);
}

static bool draw_target(gnuplot *plots, const report_groups *all, const int64_t *order,
                        const char *file) {
    double most = most_of(all, report_target_seconds);
    if (!(most > 0)) return false;
    FILE *to = begin_bars(plots, all, order, file, "training time until then (s)", most);
    if (!to) return false;
    write_target_data(to, all, order);
    fputs("set style fill solid noborder\n"
          "plot $bars using ($1/2):2:(0):1:($2-0.33):($2+0.33):(int(column(3))) "
          "with boxxyerror linecolor rgb variable, "
          "$bars using ($5 > $4 ? $1 : NaN):2:4:5 with xerrorbars pointtype 0 linecolor '#333333' "
          "linewidth 1.5, "
          "$bars using 5:2:($1 > 0 ? gprintf('%.3g', $1) : 'not reached by every seed') with "
          "labels left offset 1\n",
          to);
    return true;
}

// ---- What a step is spent with ------------------------------------------------------------------

static const struct {
    const char *title, *look;
    report_value value;
} part[] = {
    {"compute", "linecolor '#0072b2' linewidth 1 fillstyle solid 0.85 border", report_compute_ms},
    {"exposed exchange", "linecolor '#d55e00' linewidth 1 fillstyle pattern 4 border",
     report_exposed_ms},
    {"merge", "linecolor '#009e73' linewidth 1 fillstyle pattern 2 border", report_merge_ms},
};
enum { PARTS = sizeof(part) / sizeof(*part) };

// "place, then where each part ends".
static double write_time_data(FILE *to, const report_groups *all, const int64_t *order) {
    double most = 0;
    if (to) fputs("$bars << END\n", to);
    for (int64_t at = 0; at < all->count; at++) {
        double end = 0;
        if (to) fprintf(to, "%lld 0", (long long)at + 1);
        for (int i = 0; i < PARTS; i++) {
            double own = report_group_stat(all, &all->groups[order[at]], part[i].value).mean;
            end += isnan(own) ? 0 : own;
            if (to) fprintf(to, " %.9g", end);
        }
        if (to) fputc('\n', to);
        most = fmax(most, end);
    }
    if (to) fputs("END\n", to);
    return most;
}

static bool draw_times(gnuplot *plots, const report_groups *all, const int64_t *order,
                       const char *file) {
    double most = write_time_data(NULL, all, order);
    if (!(most > 0)) return false;
    FILE *to = begin_bars(plots, all, order, file, "mean of all steps (ms)", most);
    if (!to) return false;
    plot_key(to);
    write_time_data(to, all, order);
    for (int i = 0; i < PARTS; i++)
        fprintf(to,
                "%s$bars using (($%d+$%d)/2):1:%d:%d:($1-0.33):($1+0.33) with boxxyerror %s "
                "title '%s'",
                i ? ", \\\n  " : "plot ", i + 2, i + 3, i + 2, i + 3, part[i].look, part[i].title);
    fputs(", \\\n  $bars using 5:1:(gprintf('%.3g', $5)) with labels left offset 1 notitle\n", to);
    return true;
}

// ---- In the order of the ranking ----------------------------------------------------------------

static bool draw_ranked(gnuplot *plots, const report_groups *all, const char *file,
                        bool (*draw)(gnuplot *plots, const report_groups *all, const int64_t *order,
                                     const char *file)) {
    int64_t *order = calloc((size_t)all->count + 1, sizeof(*order));
    if (order) report_groups_rank(all, order);
    bool drawn = order && draw(plots, all, order, file);
    free(order);
    return drawn;
}

bool plot_target_bars(gnuplot *plots, const report_groups *all, const char *file) {
    return draw_ranked(plots, all, file, draw_target);
}

bool plot_time_bars(gnuplot *plots, const report_groups *all, const char *file) {
    return draw_ranked(plots, all, file, draw_times);
}
