// SPDX-License-Identifier: MIT
// Writes the page of a study: a ranked table and the plots, in one self-contained file.
#include "report_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width\">\n";
static const char look[] =
    "<style>\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2em auto; padding: 0 1.5em;"
    " max-width: 1320px; }\n"
    "h1 { font-size: 1.5em; margin: 0; } h2 { font-size: 1.15em; margin: 2em 0 .5em; }\n"
    ".note { color: #666; margin: .2em 0; }\n"
    ".legend { position: sticky; top: 0; background: #fff; padding: .5em 0; margin-top: 1em;"
    " border-bottom: 1px solid #ddd; }\n"
    ".legend span { margin-right: 1.6em; white-space: nowrap; }\n"
    ".wide { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: .93em; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #e4e4e4;"
    " white-space: nowrap; }\n"
    "th { font-weight: 600; vertical-align: bottom; } th small { font-weight: 400; color: #666; }\n"
    "th:nth-child(2), td:nth-child(2) { text-align: left; }\n"
    "td code { display: block; font-size: .8em; color: #666; white-space: normal; }\n"
    ".plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), "
    "1fr));"
    " gap: 1.5em 2em; margin-top: 1.5em; }\n"
    "figure { margin: 0; display: flex; flex-direction: column; justify-content: space-between; }\n"
    "figcaption { font-weight: 600; }\n"
    "figcaption .note { font-weight: 400; font-size: .9em; }\n"
    "figure svg { width: 100%; height: auto; }\n"
    "</style>\n";

static void write_escaped(FILE *to, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        default: putc(*text, to);
        }
    }
}

// ---- The table ----------------------------------------------------------------------------------

static void write_swatch(FILE *to, int64_t run) {
    report_style style = report_style_of(run);
    fprintf(to,
            "<svg width=\"30\" height=\"10\" aria-hidden=\"true\"><path d=\"M0 5h26\" "
            "stroke=\"%s\" stroke-width=\"3\"",
            style.colour);
    if (style.dashes[0])
        fprintf(to, " stroke-dasharray=\"%d %d\"", style.dashes[0], style.dashes[1]);
    fputs("/></svg>", to);
}

static void write_cell(FILE *to, const char *format, double value, const char *none) {
    fputs("<td>", to);
    if (isfinite(value))
        fprintf(to, format, value);
    else
        fputs(none, to);
    fputs("</td>", to);
}

// "13 (auto)": what was in force, and what was asked for.
static void steps_cell(FILE *to, const char *effective, const char *requested) {
    fputs("<td>", to);
    write_escaped(to, effective);
    if (*requested) {
        fputs(" (", to);
        write_escaped(to, requested);
        fputs(")", to);
    }
    fputs("</td>", to);
}

// "0.1234 (469)": what the loss is, and of how many steps at the end.
static void loss_cell(FILE *to, const report_run *run) {
    if (isfinite(run->train_loss) && isfinite(run->train_loss_steps))
        fprintf(to, "<td>%.4f (%.0f)</td>", run->train_loss, run->train_loss_steps);
    else
        write_cell(to, "%.4f", run->train_loss, "");
}

static void write_row(FILE *to, const report *study, int64_t place, int64_t r) {
    const report_run *run = &study->runs[r];
    const report_point *at = report_reached(run, study->target);
    fprintf(to, "<tr><td>%lld</td><td>", (long long)place);
    write_swatch(to, r);
    write_escaped(to, run->name);
    fputs("<code>", to);
    write_escaped(to, run->options);
    fputs("</code></td>", to);
    write_cell(to, "%.1f", at ? at->seconds : NAN, "not reached");
    write_cell(to, "%.0f", at ? at->step : NAN, "");
    write_cell(to, "%.1f", at ? at->bytes / 1e6 : NAN, "");
    write_cell(to, "%.2f", 100 * run->test_accuracy, "");
    loss_cell(to, run);
    write_cell(to, "%.0f", run->steps, "");
    write_cell(to, "%.1f", run->seconds, "");
    write_cell(to, "%.2f", run->steps / run->seconds, "");
    write_cell(to, "%.1f", run->bytes / 1e6, "");
    write_cell(to, "%.2f", run->wait_ms_per_step, "");
    write_cell(to, "%.1f", 100 * report_share_waited(run), "");
    steps_cell(to, run->period, run->period_requested);
    steps_cell(to, run->wait, run->wait_requested);
    fputs("</tr>\n", to);
}

static void write_table(FILE *to, const report *study, const int64_t *order) {
    fprintf(
        to,
        "<h2>Runs, sorted by time to reach %.4g %% test accuracy</h2>\n"
        "<div class=\"wide\"><table><tr><th></th><th>run</th>"
        "<th>time to target<br><small>s</small></th><th>steps to target</th>"
        "<th>sent until target<br><small>MB, all ranks</small></th>"
        "<th>final accuracy<br><small>%%</small></th><th>training loss<br><small>mean of last "
        "steps</small></th><th>steps</th>"
        "<th>time<br><small>s</small></th><th>speed<br><small>steps/s</small></th>"
        "<th>sent<br><small>MB, all ranks</small></th><th>exposed<br><small>ms a step</small></th>"
        "<th>exposed<br><small>%% of time</small></th>"
        "<th>period<br><small>steps (requested)</small></th>"
        "<th>wait<br><small>steps (requested)</small></th></tr>\n",
        100 * study->target);
    for (int64_t i = 0; i < study->count; i++) write_row(to, study, i + 1, order[i]);
    fputs("</table></div>\n", to);
}

static void write_failures(FILE *to, const report *study) {
    if (study->failed_count == 0) return;
    fputs("<h2>Runs that failed</h2>\n<div class=\"wide\"><table><tr><th></th><th>run</th>"
          "<th>why</th></tr>\n",
          to);
    for (int64_t r = 0; r < study->failed_count; r++) {
        fputs("<tr><td></td><td>", to);
        write_escaped(to, study->failed[r].name);
        fputs("<code>", to);
        write_escaped(to, study->failed[r].options);
        fputs("</code></td><td>", to);
        write_escaped(to, study->failed[r].failure);
        fputs("</td></tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

// ---- The plots ----------------------------------------------------------------------------------

static void write_legend(FILE *to, const report *study) {
    fputs("<div class=\"legend\">", to);
    for (int64_t r = 0; r < study->count; r++) {
        fputs("<span>", to);
        write_swatch(to, r);
        write_escaped(to, study->runs[r].name);
        fputs("</span>", to);
    }
    fputs("</div>\n", to);
}

static void write_figure(FILE *to, const report_plot *plot) {
    fputs("<figure><figcaption>", to);
    write_escaped(to, plot->title);
    if (plot->note) fprintf(to, "<div class=\"note\">%s</div>", plot->note);
    fprintf(to, "</figcaption>\n%s</figure>\n", plot->svg);
}

static void write_plots(FILE *to, const report *study) {
    report_plot all[REPORT_PLOTS] = {0};
    char problem[REPORT_PROBLEM] = "out of memory";
    fputs("<h2>Plots</h2>\n", to);
    if (!report_make_plots(study, all, problem)) {
        fputs("<p>There are no plots: ", to);
        write_escaped(to, problem);
        fputs(".</p>\n", to);
        return;
    }
    write_legend(to, study);
    fputs("<div class=\"plots\">\n", to);
    for (int i = 0; i < REPORT_PLOTS; i++) {
        if (all[i].svg) write_figure(to, &all[i]);
        free(all[i].svg);
    }
    fputs("</div>\n", to);
}

void report_write_html(FILE *to, const report *study) {
    int64_t *order = calloc((size_t)study->count + 1, sizeof(*order));
    fputs(head, to);
    fputs("<title>", to);
    write_escaped(to, study->title);
    fputs("</title>\n", to);
    fputs(look, to);
    fputs("</head><body>\n<h1>", to);
    write_escaped(to, study->title);
    fputs("</h1>\n<p class=\"note\">", to);
    write_escaped(to, study->setting);
    fputs("</p>\n", to);
    if (order) {
        report_rank(study, order);
        write_table(to, study, order);
    }
    free(order);
    write_failures(to, study);
    write_plots(to, study);
    fputs("</body></html>\n", to);
}
