// SPDX-License-Identifier: MIT
// The axes of figures: units, scales and tics.
#include "report_plot.h"

#include <math.h>
#include <stddef.h>

#define BEST_ERROR 0.01 // %: an error of 0 is drawn as this

void axis_include(axis *a, double value) {
    if (value > 0) a->low = fmin(a->low, value);
    if (value > 0) a->high = fmax(a->high, value);
}

static void choose_unit(axis *a) {
    if (a->what == SECONDS) {
        a->unit = a->high > 7200 ? 3600 : a->high > 600 ? 60 : 1;
        a->unit_name = a->high > 7200 ? "h" : a->high > 600 ? "min" : "s";
    } else if (a->what == BYTES) {
        a->unit = a->high > 2e9 ? 1e9 : 1e6;
        a->unit_name = a->high > 2e9 ? "GB" : "MB";
    }
}

void axis_choose(axis *a, double span) {
    double decades = a->high > 0 ? a->high / a->low : 0;
    a->unit = 1;
    choose_unit(a);
    switch (a->what) {
    case SECONDS:
    case BYTES: a->log = span > 4; break;
    case LOSS: a->log = decades > 20; break;
    case ACCURACY: a->log = true; break;
    case DIVERGENCE: a->log = decades > 50; break;
    default: break;
    }
    a->low /= a->unit;
    a->high /= a->unit;
}

static void write_label(FILE *to, const axis *a) {
    static const char *const text[] = {[STEPS] = "steps",
                                       [SECONDS] = "training time",
                                       [BYTES] = "sent by all ranks",
                                       [LOSS] = "training loss",
                                       [ACCURACY] = "test accuracy (%)",
                                       [DIVERGENCE] = "divergence, relative to the parameters",
                                       [EXPOSED] = "exposed time (ms)",
                                       [PERIOD] = "period (steps)",
                                       [WAIT] = "wait (steps)",
                                       [FINAL_ACCURACY] = "final test accuracy (%)"};
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

// Draws errors upside down, so that more is better: 1 % of errors is labelled 99.
static void scale_accuracy(FILE *to, const axis *a) {
    static const double errors[] = {100, 50,  20,  10,   5,    2,         1,
                                    0.5, 0.2, 0.1, 0.05, 0.02, BEST_ERROR};
    const size_t count = sizeof(errors) / sizeof(*errors);
    double worst = errors[0], best = errors[count - 1];
    fprintf(to, "set logscale %c\nset %ctics (", a->name, a->name);
    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s'%g' %g", i ? ", " : "", 100 - errors[i], errors[i]);
        if (errors[i] >= a->high) worst = errors[i];
        if (errors[count - 1 - i] <= a->low) best = errors[count - 1 - i];
    }
    // Beyond the outer tics, which gnuplot leaves out otherwise.
    fprintf(to, ")\nset %crange [%g:%g]\n", a->name, worst * 1.01, best / 1.01);
}

void axis_write(FILE *to, const axis *a) {
    write_label(to, a);
    if (a->what == ACCURACY)
        scale_accuracy(to, a);
    else if (a->what == FINAL_ACCURACY)
        fprintf(to, "set autoscale %c\nset offsets graph 0.05, graph 0.2, graph 0.08, graph 0.08\n",
                a->name);
    else if (a->log)
        scale_log(to, a);
    else
        fprintf(to, "set %crange [0:%g]\n", a->name, a->high > 0 ? a->high * 1.05 : 1);
}
