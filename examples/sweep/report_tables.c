// SPDX-License-Identifier: MIT
// The tables of the page: the ranking, statistics over seeds, paired tests, times and failures.
#include "report_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Cells --------------------------------------------------------------------------------------

static void number_cell(FILE *to, int digits, double value, const char *none) {
    if (isfinite(value))
        fprintf(to, "<td>%.*f</td>", digits, value);
    else
        fprintf(to, "<td>%s</td>", none);
}

// "12.3 &#177; 0.4": mean and half of the 95 % interval.
static void stat_cell(FILE *to, int digits, report_stat s, double scale, const char *none) {
    if (isfinite(s.mean) && isfinite(s.half))
        fprintf(to, "<td>%.*f &#177; %.*f</td>", digits, scale * s.mean, digits, scale * s.half);
    else
        number_cell(to, digits, scale * s.mean, none);
}

static void range_cell(FILE *to, int digits, report_stat s, double scale) {
    if (isfinite(s.half))
        fprintf(to, "<td>%.*f .. %.*f</td>", digits, scale * (s.mean - s.half), digits,
                scale * (s.mean + s.half));
    else
        fputs("<td></td>", to);
}

// What each run ended with, each once: "13 (auto)" or "13, 14 (auto)".
static void steps_cell(FILE *to, const report_group *group,
                       const char *(*effective)(const report_run *), const char *requested) {
    fputs("<td>", to);
    for (int64_t i = 0; i < group->count; i++) {
        bool again = false;
        const char *own = effective(group->runs[i]);
        for (int64_t k = 0; k < i; k++) again |= strcmp(effective(group->runs[k]), own) == 0;
        if (again) continue;
        if (i > 0) fputs(", ", to);
        report_escape(to, own);
    }
    if (*requested) {
        fputs(" (", to);
        report_escape(to, requested);
        fputs(")", to);
    }
    fputs("</td>", to);
}

static const char *period_of(const report_run *run) { return run->period; }
static const char *wait_of(const report_run *run) { return run->wait; }

static void label_cell(FILE *to, const report_groups *all, int64_t g, bool options) {
    fputs("<td class=\"text\">", to);
    report_write_label(to, all, g);
    if (options) {
        fputs("<code>", to);
        report_escape(to, all->groups[g].first->options);
        fputs("</code>", to);
    }
    fputs("</td>", to);
}

// "3 of 5 seeds", if some but not all have reached the target.
static void reached_text(const report_groups *all, const report_group *group, char text[64]) {
    int64_t reached = report_group_reached(all, group);
    snprintf(text, 64, "not reached");
    if (reached > 0)
        snprintf(text, 64, "%lld of %lld seeds", (long long)reached,
                 (long long)report_group_seeds(group));
}

// "5", or "4 of 5" of what should be there. The caller closes it.
static void begin_count_cell(FILE *to, int64_t count, int64_t of) {
    fprintf(to, "<td>%lld", (long long)count);
    if (count < of) fprintf(to, " of %lld", (long long)of);
}

// With the reasons why seeds lack.
static void seeds_cell(FILE *to, const report_group *group) {
    begin_count_cell(to, group->count, report_group_seeds(group));
    if (group->failed > 0) fprintf(to, "<br><small>%lld failed</small>", (long long)group->failed);
    if (group->left > 0) fprintf(to, "<br><small>%lld to be made</small>", (long long)group->left);
    fputs("</td>", to);
}

static int64_t most_seeds(const report_groups *all) {
    int64_t most = 0;
    for (int64_t g = 0; g < all->count; g++)
        if (all->groups[g].count > most) most = all->groups[g].count;
    return most;
}

// ---- The ranking --------------------------------------------------------------------------------

static void write_rank(FILE *to, const report_groups *all, int64_t place, int64_t g) {
    const report_group *group = &all->groups[g];
    static const struct {
        report_value value;
        int digits;
        double scale;
    } column[] = {{report_accuracy, 2, 100}, {report_loss, 4, 1},         {report_steps, 0, 1},
                  {report_seconds, 1, 1},    {report_speed, 2, 1},        {report_megabytes, 1, 1},
                  {report_exposed_ms, 2, 1}, {report_exposed_share, 1, 1}};
    char none[64];
    reached_text(all, group, none);
    fprintf(to, "<tr><td>%lld</td>", (long long)place);
    label_cell(to, all, g, true);
    seeds_cell(to, group);
    stat_cell(to, 1, report_group_stat(all, group, report_target_seconds), 1, none);
    stat_cell(to, 0, report_group_stat(all, group, report_target_steps), 1, "");
    stat_cell(to, 1, report_group_stat(all, group, report_target_megabytes), 1, "");
    for (size_t i = 0; i < sizeof(column) / sizeof(*column); i++)
        stat_cell(to, column[i].digits, report_group_stat(all, group, column[i].value),
                  column[i].scale, "");
    steps_cell(to, group, period_of, group->first->period_requested);
    steps_cell(to, group, wait_of, group->first->wait_requested);
    fputs("</tr>\n", to);
}

void report_write_ranking(FILE *to, const report_groups *all) {
    int64_t *order = calloc((size_t)all->count + 1, sizeof(*order));
    fprintf(to,
            "<h2>Modes, sorted by time to reach %.4g %% test accuracy</h2>\n"
            "<p class=\"note\">Means over seeds &#177; half of the 95 %% confidence interval. The "
            "time to the target has a mean if every seed reached it; a run that failed did not. "
            "\"4 of 5\": the mean is over 4 seeds; the runs of the others failed, or are still to "
            "be made.</p>\n"
            "<div class=\"wide\"><table><tr><th></th><th class=\"text\">mode</th><th>seeds</th>"
            "<th>time to target<br><small>s</small></th><th>steps to target</th>"
            "<th>sent until target<br><small>MB, all ranks</small></th>"
            "<th>final accuracy<br><small>%%</small></th><th>training loss<br><small>mean of last "
            "steps</small></th><th>steps</th>"
            "<th>time<br><small>s</small></th><th>speed<br><small>steps/s</small></th>"
            "<th>sent<br><small>MB, all ranks</small></th><th>exposed<br><small>ms a "
            "step</small></th>"
            "<th>exposed<br><small>%% of time</small></th>"
            "<th>period<br><small>steps (requested)</small></th>"
            "<th>wait<br><small>steps (requested)</small></th></tr>\n",
            100 * all->study->target);
    if (order) report_groups_rank(all, order);
    for (int64_t i = 0; order && i < all->count; i++) write_rank(to, all, i + 1, order[i]);
    fputs("</table></div>\n", to);
    free(order);
}

// ---- Over seeds ---------------------------------------------------------------------------------

static void write_metric(FILE *to, const report_groups *all, const report_metric *m) {
    for (int64_t g = 0; g < all->count; g++) {
        const report_group *group = &all->groups[g];
        report_stat s = report_group_stat(all, group, m->value);
        bool at_target = m->value == report_target_seconds;
        int64_t count = at_target ? report_group_reached(all, group) : group->count;
        fprintf(to, "<tr><td class=\"text\">%s%s%s</td>", m->title, m->unit[0] ? ", " : "",
                m->unit);
        label_cell(to, all, g, false);
        begin_count_cell(to, count, report_group_seeds(group));
        fputs("</td>", to);
        number_cell(to, m->digits, m->scale * s.mean, "");
        number_cell(to, m->digits + 1, m->scale * s.deviation, "");
        range_cell(to, m->digits, s, m->scale);
        fputs("</tr>\n", to);
    }
}

void report_write_statistics(FILE *to, const report_groups *all) {
    fputs("<h2>Statistics over seeds</h2>\n", to);
    if (most_seeds(all) < 2) {
        fputs("<p>Every mode has one seed, so there is no confidence interval and no test: give "
              "several seeds with --seeds.</p>\n",
              to);
        return;
    }
    fputs(
        "<p class=\"note\">Standard deviation of the sample. Intervals by Student's t, one degree "
        "of freedom less than seeds. A mode with one seed has no interval.</p>\n"
        "<div class=\"wide\"><table><tr><th class=\"text\">what</th><th class=\"text\">mode</th>"
        "<th>seeds</th><th>mean</th><th>standard deviation</th><th>95 % interval</th></tr>\n",
        to);
    for (int i = 0; i < REPORT_METRICS; i++) write_metric(to, all, &report_metrics[i]);
    fputs("</table></div>\n", to);
}

// ---- Paired tests -------------------------------------------------------------------------------

static void p_cell(FILE *to, double p) {
    if (p < 0.0001)
        fputs("<td>&lt; 0.0001</td>", to);
    else
        number_cell(to, 4, p, "");
}

static void write_test(FILE *to, const report_groups *all, int64_t g, int metric) {
    const report_metric *m = &report_metrics[metric];
    report_comparison c = report_compare_group(all, &all->groups[g], metric);
    const report_stat *d = &c.test.difference;
    if (!c.baseline) return;
    fprintf(to, "<tr><td class=\"text\">%s%s%s</td>", m->title, m->unit[0] ? ", " : "", m->unit);
    label_cell(to, all, g, false);
    fputs("<td class=\"text\">", to);
    report_escape(to, c.baseline->label);
    fputs("</td>", to);
    begin_count_cell(to, d->count, c.seeds);
    fputs("</td>", to);
    number_cell(to, m->digits + 1, m->scale * d->mean, "");
    range_cell(to, m->digits + 1, *d, m->scale);
    if (d->count >= 2 && isfinite(d->mean) && isnan(c.test.p)) {
        fputs("<td colspan=\"3\">the same for every seed</td></tr>\n", to);
        return;
    }
    number_cell(to, 2, c.test.t, "");
    p_cell(to, c.test.p);
    p_cell(to, c.holm);
    fputs("</tr>\n", to);
}

static bool has_baseline(const report_groups *all) {
    const char *name = all->study->baseline;
    for (int64_t g = 0; g < all->count && name; g++)
        if (strcmp(all->groups[g].name, name) == 0) return true;
    return !name;
}

void report_write_tests(FILE *to, const report_groups *all) {
    if (most_seeds(all) < 2) return;
    if (!has_baseline(all)) {
        fputs("<h2>Differences from the baseline</h2>\n<p class=\"note\">No run of the baseline, ",
              to);
        report_escape(to, all->study->baseline);
        fputs(", has results.</p>\n", to);
        return;
    }
    fputs(
        "<h2>Differences from the baseline</h2>\n"
        "<p class=\"note\">Mode minus baseline, paired by seed: mean difference, its 95 % "
        "interval, and the two-sided paired t test. The last column adjusts p for all comparisons "
        "of this number (Holm).</p>\n"
        "<div class=\"wide\"><table><tr><th class=\"text\">what</th><th class=\"text\">mode</th>"
        "<th class=\"text\">baseline</th><th>pairs</th><th>difference</th><th>95 % interval</th>"
        "<th>t</th><th>p</th><th>p, adjusted</th></tr>\n",
        to);
    for (int i = 0; i < REPORT_METRICS; i++)
        for (int64_t g = 0; g < all->count; g++) write_test(to, all, g, i);
    fputs("</table></div>\n", to);
}

// ---- Times --------------------------------------------------------------------------------------

void report_write_times(FILE *to, const report_groups *all) {
    static const report_value value[] = {report_compute_ms, report_exposed_ms, report_merge_ms};
    fputs("<h2>Where the time of a step goes</h2>\n"
          "<p class=\"note\">Milliseconds, mean of all steps. Exposed exchange: the slowest rank's "
          "waits for exchanges. Merge: the slowest rank's converting, summing and merging of "
          "parameters. Compute: the rest of the training time. On a busy machine the two can be of "
          "different ranks and overlap; where they leave no rest, it is shown as 0.</p>\n"
          "<div class=\"wide\"><table><tr><th class=\"text\">mode</th><th>compute</th><th>exposed "
          "exchange</th><th>merge</th></tr>\n",
          to);
    for (int64_t g = 0; g < all->count; g++) {
        fputs("<tr>", to);
        label_cell(to, all, g, false);
        for (int i = 0; i < 3; i++)
            stat_cell(to, 2, report_group_stat(all, &all->groups[g], value[i]), 1, "");
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

// ---- Failures -----------------------------------------------------------------------------------

void report_write_failures(FILE *to, const report *study) {
    if (study->failed_count == 0) return;
    fputs("<h2>Runs that failed</h2>\n<div class=\"wide\"><table><tr><th class=\"text\">mode</th>"
          "<th>seed</th><th class=\"text\">why</th></tr>\n",
          to);
    for (int64_t r = 0; r < study->failed_count; r++) {
        fputs("<tr><td class=\"text\">", to);
        report_escape(to, study->failed[r].name);
        fputs("<code>", to);
        report_escape(to, study->failed[r].options);
        fputs("</code></td>", to);
        number_cell(to, 0, study->failed[r].seed, "");
        fputs("<td class=\"text\">", to);
        report_escape(to, study->failed[r].failure);
        fputs("</td></tr>\n", to);
    }
    fputs("</table></div>\n", to);
}
