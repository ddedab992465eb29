// SPDX-License-Identifier: MIT
// Writes the page of a study: tables and figures in one self-contained file.
#include "report_impl.h"
#include "report_predict.h"

#include <string.h>

static const char head[] = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width\">\n";
static const char look[] =
    "<style>\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2em auto; padding: 0 1.5em;"
    " max-width: 1320px; }\n"
    "h1 { font-size: 1.5em; margin: 0; } h2 { font-size: 1.15em; margin: 2em 0 .5em; }\n"
    ".note { color: #555; margin: .2em 0; }\n"
    ".wide { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: .93em; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd;"
    " white-space: nowrap; vertical-align: top; }\n"
    "th { font-weight: 600; vertical-align: bottom; } th small { font-weight: 400; color: #555; }\n"
    ".text { text-align: left; white-space: normal; }\n"
    "td code { display: block; font-size: .8em; color: #555; white-space: normal; }\n"
    "pre { font-size: .8em; white-space: pre-wrap; margin: .3em 0; }\n"
    ".plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), "
    "1fr));"
    " gap: 1.5em 2em; margin-top: 1.5em; }\n"
    "figure { margin: 0; display: flex; flex-direction: column; justify-content: space-between; "
    "break-inside: avoid; }\n"
    "figcaption { font-weight: 600; }\n"
    "figcaption .note { font-weight: 400; font-size: .9em; }\n"
    "figure svg { width: 100%; height: auto; }\n"
    "@media print { body { font-size: 10pt; margin: 0; padding: 0; max-width: none; }"
    " .wide { overflow: visible; } th, td { padding: .2em .35em; white-space: normal; }"
    " tr { break-inside: avoid; } .plots { grid-template-columns: 1fr 1fr; }"
    " h2 { break-after: avoid; } }\n"
    "</style>\n";

void report_escape(FILE *to, const char *text) {
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

void report_write_label(FILE *to, const report_groups *all, int64_t group) {
    static const char *const marks[REPORT_MARKS] = {[MARK_CIRCLE] =
                                                        "M9 5a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
                                                    [MARK_SQUARE] = "M9.5 1.5h7v7h-7z",
                                                    [MARK_UP] = "M13 .5l4.5 8h-9z",
                                                    [MARK_DOWN] = "M13 9.5l4.5 -8h-9z",
                                                    [MARK_DIAMOND] = "M13 0l5 5l-5 5l-5 -5z"};
    report_style style = report_style_of(group);
    fprintf(to,
            "<svg width=\"30\" height=\"10\" aria-hidden=\"true\"><path d=\"M0 5h26\" "
            "stroke=\"%s\" stroke-width=\"2\"",
            style.colour);
    if (style.dashes[0])
        fprintf(to, " stroke-dasharray=\"%d %d\"", style.dashes[0], style.dashes[1]);
    fprintf(to, "/><path d=\"%s\" fill=\"%s\"/></svg>", marks[style.mark], style.colour);
    report_escape(to, all->groups[group].label);
}

// ---- Figures ------------------------------------------------------------------------------------

static void write_figure(FILE *to, const report_plot *plot, bool pdf) {
    fputs("<figure><figcaption>", to);
    report_escape(to, plot->title);
    if (plot->note) fprintf(to, "<div class=\"note\">%s</div>", plot->note);
    fprintf(to, "</figcaption>\n%s", plot->svg);
    fprintf(to, "<div class=\"note\">figures/%s: <a href=\"figures/%s.svg\">SVG</a>", plot->file,
            plot->file);
    if (pdf) fprintf(to, " <a href=\"figures/%s.pdf\">PDF</a>", plot->file);
    fprintf(to, " <a href=\"figures/%s.gp\">script with data</a></div></figure>\n", plot->file);
}

static void write_figures(FILE *to, const report_groups *all, const report_figures *figures) {
    fputs("<h2>Figures</h2>\n", to);
    if (figures->problem[0]) {
        fputs("<p>There are no plots: ", to);
        report_escape(to, figures->problem);
        fputs(".</p>\n<p class=\"note\">figures/ has gnuplot's scripts, with their data.</p>\n",
              to);
        return;
    }
    fputs(
        "<p class=\"note\">Curves are means over seeds, and bands are 95 % confidence intervals of "
        "the mean at each point. A mode with one seed has no band.</p>\n",
        to);
    if (!figures->pdf && all->study->final) {
        fputs("<p>There are no PDF files: ", to);
        report_escape(to, figures->pdf_problem);
        fputs(". They need a gnuplot with Cairo (Debian: gnuplot-nox).</p>\n", to);
    }
    fputs("<div class=\"plots\">\n", to);
    for (int i = 0; i < REPORT_PLOTS; i++)
        if (figures->plot[i].svg) write_figure(to, &figures->plot[i], figures->pdf);
    fputs("</div>\n", to);
}

// ---- The page -----------------------------------------------------------------------------------

void report_write_html(FILE *to, const report_groups *all, const report_figures *figures) {
    fputs(head, to);
    fputs("<title>", to);
    report_escape(to, all->study->title);
    fputs("</title>\n", to);
    fputs(look, to);
    fputs("</head><body>\n<h1>", to);
    report_escape(to, all->study->title);
    fputs("</h1>\n", to);
    report_write_setups(to, all);
    report_write_ranking(to, all);
    report_write_predictions(to, all);
    report_write_statistics(to, all);
    report_write_tests(to, all);
    report_write_times(to, all);
    report_write_failures(to, all->study);
    write_figures(to, all, figures);
    report_write_settings(to, all);
    report_write_sources(to, all);
    fputs("</body></html>\n", to);
}
