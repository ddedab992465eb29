// SPDX-License-Identifier: MIT
// Final accuracy against a cost, and which modes are on the Pareto front.
#include "report_plot.h"

#include <math.h>
#include <stdlib.h>

static bool is_beaten(const double *cost, const double *gain, int64_t i, int64_t by) {
    return cost[by] <= cost[i] && gain[by] >= gain[i] && (cost[by] < cost[i] || gain[by] > gain[i]);
}

void report_pareto_front(const double *cost, const double *gain, int64_t count, bool *front) {
    for (int64_t i = 0; i < count; i++) {
        front[i] = isfinite(cost[i]) && isfinite(gain[i]);
        for (int64_t k = 0; k < count && front[i]; k++)
            front[i] = !(isfinite(cost[k]) && isfinite(gain[k]) && is_beaten(cost, gain, i, k));
    }
}

// ---- Means of the groups ------------------------------------------------------------------------

typedef struct means {
    double *cost, *gain;
    bool *front;
    report_value value; // of the cost
} means;

static bool make_means(const report_groups *all, kind cost, means *out) {
    size_t count = (size_t)all->count + 1;
    *out = (means){.cost = calloc(count, sizeof(double)),
                   .gain = calloc(count, sizeof(double)),
                   .front = calloc(count, sizeof(bool)),
                   .value = cost == BYTES ? report_megabytes : report_seconds};
    if (!out->cost || !out->gain || !out->front) return false;
    for (int64_t g = 0; g < all->count; g++) {
        out->cost[g] = report_group_stat(all, &all->groups[g], out->value).mean;
        if (cost == BYTES) out->cost[g] *= 1e6;
        out->gain[g] = 100 * report_group_stat(all, &all->groups[g], report_accuracy).mean;
    }
    return true;
}

static void free_means(means *m) {
    free(m->cost);
    free(m->gain);
    free(m->front);
}

// Costs on different machines are not compared.
static void find_front(const report_groups *all, const means *m, int64_t setup, double *cost) {
    for (int64_t g = 0; g < all->count; g++)
        cost[g] = all->groups[g].setup == setup ? m->cost[g] : NAN;
    report_pareto_front(cost, m->gain, all->count, m->front);
}

// ---- The figure ---------------------------------------------------------------------------------

// Each front by rising cost, up to the right end of the figure; an empty line between two.
static void write_fronts(FILE *to, const report_groups *all, const means *m, const axis *x) {
    double *cost = calloc((size_t)all->count + 1, sizeof(*cost));
    fputs("$front << END\n", to);
    for (int64_t setup = 0; cost && setup < all->setup_count; setup++) {
        double from = -INFINITY, gain = NAN;
        find_front(all, m, setup, cost);
        for (int64_t next = 0; next >= 0;) {
            next = -1;
            for (int64_t g = 0; g < all->count; g++)
                if (m->front[g] && cost[g] > from && (next < 0 || cost[g] < cost[next])) next = g;
            if (next < 0) break;
            from = cost[next];
            gain = m->gain[next];
            fprintf(to, "%.9g %.9g\n", from / x->unit, gain);
        }
        if (isfinite(gain)) fprintf(to, "%.9g %.9g\n\n", x->high * (x->log ? 1.1 : 1.05), gain);
    }
    fputs("END\n", to);
    free(cost);
}

// "cost gain, then low and high of both".
static void write_points(FILE *to, const report_groups *all, const means *m, const axis *x) {
    for (int64_t g = 0; g < all->count; g++) {
        const report_group *group = &all->groups[g];
        double cost = report_group_stat(all, group, m->value).half * m->cost[g] /
                      report_group_stat(all, group, m->value).mean;
        double gain = 100 * report_group_stat(all, group, report_accuracy).half;
        if (!isfinite(cost)) cost = 0;
        if (!isfinite(gain)) gain = 0;
        double low = fmax(m->cost[g] - cost, x->log ? x->low * x->unit / 1.1 : 0);
        fprintf(to, "$mode%lld << END\n", (long long)g);
        if (isfinite(m->cost[g]) && isfinite(m->gain[g]))
            fprintf(to, "%.9g %.9g %.9g %.9g %.9g %.9g\n", m->cost[g] / x->unit, m->gain[g],
                    low / x->unit, (m->cost[g] + cost) / x->unit, m->gain[g] - gain,
                    m->gain[g] + gain);
        fputs("END\n", to);
    }
}

static void draw_points(FILE *to, const report_groups *all) {
    fputs("plot $front using 1:2 with steps linecolor '#888888' linewidth 1.5 dashtype (4,3) title "
          "'Pareto front'",
          to);
    for (int64_t g = 0; g < all->count; g++) {
        fprintf(to,
                ", \\\n  $mode%lld using 1:2:3:4:5:6 with xyerrorbars linecolor '%s' linewidth "
                "1.5 pointtype %d pointsize 1.2 title ",
                (long long)g, report_style_of(g).colour, plot_mark(g));
        gnuplot_quote(to, all->groups[g].label);
    }
    fputc('\n', to);
}

static bool draw_means(gnuplot *plots, const report_groups *all, const means *m, const char *file,
                       kind cost) {
    axis x = {.name = 'x', .what = cost, .low = INFINITY};
    axis y = {.name = 'y', .what = FINAL_ACCURACY, .unit = 1};
    for (int64_t g = 0; g < all->count; g++) axis_include(&x, m->cost[g]);
    if (!(x.high > 0)) return false;
    axis_choose(&x, x.high / x.low);
    FILE *to = gnuplot_begin(plots, file, PLOT_WIDTH, PLOT_HEIGHT + plot_key_height(all));
    if (!to) return false;
    plot_look(to);
    plot_key(to);
    axis_write(to, &x);
    axis_write(to, &y);
    write_fronts(to, all, m, &x);
    write_points(to, all, m, &x);
    draw_points(to, all);
    return true;
}

bool plot_pareto(gnuplot *plots, const report_groups *all, const char *file, kind cost) {
    means m;
    bool drawn = make_means(all, cost, &m) && draw_means(plots, all, &m, file, cost);
    free_means(&m);
    return drawn;
}
