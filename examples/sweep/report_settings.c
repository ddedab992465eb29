// SPDX-License-Identifier: MIT
// What the runs of a study were made with: machines, ranks, dates, versions, and all options.
#include "report_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Setups -------------------------------------------------------------------------------------

static void count_text(FILE *to, double count, const char *noun) {
    if (isfinite(count)) fprintf(to, "%.0f %s%s", count, noun, count == 1 ? "" : "s");
}

static void write_dates(FILE *to, const report_setup *setup) {
    if (!setup->begun) return;
    report_escape(to, setup->begun);
    if (strcmp(setup->begun, setup->latest) == 0) return;
    fputs(" to ", to);
    report_escape(to, setup->latest);
}

static void value_of_line(FILE *to, const char *settings, const char *option) {
    const char *line = settings ? strstr(settings, option) : NULL;
    if (!line) return;
    char value[256];
    snprintf(value, sizeof(value), "%.*s", (int)strcspn(line + strlen(option), "\n"),
             line + strlen(option));
    report_escape(to, value);
}

static void write_setup(FILE *to, const report_groups *all, int64_t s) {
    const report_run *first = all->setups[s].first;
    fprintf(to, "<tr><td class=\"text\">%s</td><td class=\"text\">", all->setups[s].letter);
    count_text(to, first->ranks, "rank");
    fputs(" on ", to);
    count_text(to, first->nodes, "node");
    fputs("</td><td class=\"text\">", to);
    report_escape(to, first->machine ? first->machine : "");
    fputs("</td><td class=\"text\">", to);
    value_of_line(to, first->settings, "--data ");
    fputs("</td><td class=\"text\">", to);
    value_of_line(to, first->settings, "--model ");
    fputs("</td><td class=\"text\">", to);
    write_dates(to, &all->setups[s]);
    fputs("</td><td class=\"text\">", to);
    report_escape(to, all->setups[s].versions);
    fputs("</td></tr>\n", to);
}

void report_write_setups(FILE *to, const report_groups *all) {
    if (all->count == 0) return;
    fputs(
        "<div class=\"wide\"><table><tr><th class=\"text\">setup</th><th class=\"text\">ranks</th>"
        "<th class=\"text\">machine</th><th class=\"text\">data</th><th "
        "class=\"text\">network</th><th class=\"text\">date (UTC)</th><th "
        "class=\"text\">isotherm</th></tr>\n",
        to);
    for (int64_t s = 0; s < all->setup_count; s++) write_setup(to, all, s);
    fputs("</table></div>\n", to);
}

// ---- All options --------------------------------------------------------------------------------

static size_t line_length(const char *text) { return strcspn(text, "\n"); }

static bool has_line(const char *settings, const char *line, size_t length) {
    for (const char *at = settings; at && *at; at += line_length(at), at += *at == '\n')
        if (line_length(at) == length && strncmp(at, line, length) == 0) return true;
    return false;
}

static bool is_common(const report_groups *all, const char *line) {
    for (int64_t g = 0; g < all->count; g++)
        if (!has_line(all->groups[g].first->settings, line, line_length(line))) return false;
    return true;
}

// Lines that all groups have, or that not all of them have. An option that was not given anywhere
// says nothing.
static void write_lines(FILE *to, const report_groups *all, const char *settings, bool common) {
    for (const char *at = settings; at && *at; at += line_length(at), at += *at == '\n') {
        char line[1024];
        snprintf(line, sizeof(line), "%.*s", (int)line_length(at), at);
        size_t length = strlen(line);
        bool given = length < 10 || strcmp(line + length - 10, " not given") != 0;
        if (line[0] != '-' || report_is_seed_line(line) || !given || is_common(all, at) != common)
            continue;
        report_escape(to, line);
        fputs("  ", to);
    }
}

static void write_seeds(FILE *to, const report_group *group) {
    for (int64_t i = 0; i < group->count; i++)
        if (isfinite(group->runs[i]->seed))
            fprintf(to, "%s%.0f", i ? ", " : "", group->runs[i]->seed);
}

void report_write_settings(FILE *to, const report_groups *all) {
    if (all->count == 0) return;
    fputs("<h2>Settings</h2>\n<p class=\"note\">Of all modes:</p>\n<pre>", to);
    write_lines(to, all, all->groups[0].first->settings, true);
    fputs(
        "</pre>\n<p class=\"note\">Of each mode, what others do not have:</p>\n"
        "<div class=\"wide\"><table><tr><th class=\"text\">mode</th><th class=\"text\">options</th>"
        "<th class=\"text\">seeds</th></tr>\n",
        to);
    for (int64_t g = 0; g < all->count; g++) {
        fputs("<tr><td class=\"text\">", to);
        report_write_label(to, all, g);
        fputs("</td><td class=\"text\"><pre>", to);
        write_lines(to, all, all->groups[g].first->settings, false);
        fputs("</pre></td><td class=\"text\">", to);
        write_seeds(to, &all->groups[g]);
        fputs("</td></tr>\n", to);
    }
    fputs("</table></div>\n", to);
}
