// SPDX-License-Identifier: MIT
// Shows what the modes of a study would take on another network, and which one would be first.
#include "report_impl.h"
#include "report_predict.h"

#include <math.h>
#include <stdlib.h>

static report_stat stat_of(const report_groups *all, int64_t g, report_value value) {
    return report_group_stat(all, &all->groups[g], value);
}

static double or_never(double seconds) { return isnan(seconds) ? INFINITY : seconds; }

// By the setup, then by the predicted time to the target, then to the end.
static bool is_ahead(const report_groups *all, int64_t a, int64_t b) {
    const report_value values[] = {report_predicted_target_seconds, report_predicted_seconds};
    if (all->groups[a].setup != all->groups[b].setup)
        return all->groups[a].setup < all->groups[b].setup;
    for (int i = 0; i < 2; i++) {
        double x = or_never(stat_of(all, a, values[i]).mean);
        double y = or_never(stat_of(all, b, values[i]).mean);
        if (x != y) return x < y;
    }
    return false;
}

// Free it; NULL: there is no memory.
static int64_t *sort_groups(const report_groups *all) {
    int64_t *order = calloc((size_t)all->count + 1, sizeof(*order));
    for (int64_t i = 0; order && i < all->count; i++) {
        int64_t at = i;
        for (; at > 0 && is_ahead(all, i, order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

static bool is_first(const report_groups *all, const int64_t *order, int64_t at) {
    return at == 0 || all->groups[order[at]].setup != all->groups[order[at - 1]].setup;
}

// ---- The page -----------------------------------------------------------------------------------

static void write_cell(FILE *to, double seconds) {
    if (isfinite(seconds))
        fprintf(to, "<td>%.1f</td>", seconds);
    else
        fputs("<td></td>", to);
}

static void write_winner(FILE *to, const report_groups *all, int64_t g) {
    double target = stat_of(all, g, report_predicted_target_seconds).mean;
    double end = stat_of(all, g, report_predicted_seconds).mean;
    if (isnan(end)) return;
    fputs("<p>Predicted winner: <b>", to);
    report_escape(to, all->groups[g].label);
    if (isnan(target))
        fprintf(to, "</b>, %.1f s to the end.</p>\n", end);
    else
        fprintf(to, "</b>, %.1f s to %.4g %% test accuracy.</p>\n", target,
                100 * all->study->target);
}

void report_write_predictions(FILE *to, const report_groups *all) {
    static const report_value values[] = {report_target_seconds, report_predicted_target_seconds,
                                          report_seconds, report_predicted_seconds};
    const report_network *network = &all->study->network;
    int64_t *order = network->rate > 0 ? sort_groups(all) : NULL;
    if (!order) return;
    fprintf(to, "<h2>Predicted on a network of %.6g Mbit/s</h2>\n", network->rate);
    for (int64_t i = 0; i < all->count; i++)
        if (is_first(all, order, i)) write_winner(to, all, order[i]);
    fprintf(to,
            "<p class=\"note\">Each node sends and receives at %.6g Mbit/s, with %.6g ms more "
            "latency than when the runs were measured. Computing, steps and bytes are those of the "
            "runs; an exchange takes at least as long as it took, and as its bytes need. Ranks of "
            "one node are predicted as they were measured.</p>\n"
            "<div class=\"wide\"><table><tr><th class=\"text\">mode</th>"
            "<th>to target, measured<br><small>s</small></th>"
            "<th>to target, predicted<br><small>s</small></th>"
            "<th>to the end, measured<br><small>s</small></th>"
            "<th>to the end, predicted<br><small>s</small></th></tr>\n",
            network->rate, network->latency);
    for (int64_t i = 0; i < all->count; i++) {
        fputs("<tr><td class=\"text\">", to);
        report_write_label(to, all, order[i]);
        fputs("</td>", to);
        for (int k = 0; k < 4; k++) write_cell(to, stat_of(all, order[i], values[k]).mean);
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
    free(order);
}

// ---- The table ----------------------------------------------------------------------------------

static void write_number(FILE *to, double number) {
    if (isfinite(number))
        fprintf(to, ",%.10g", number);
    else
        putc(',', to);
}

// Names have no quotes or commas.
void report_write_predicted(FILE *to, const report_groups *all) {
    const report_network *network = &all->study->network;
    int64_t *order = sort_groups(all);
    fputs("run,setup,place,rate_mbit,latency_ms,seeds,seconds_to_target,"
          "predicted_seconds_to_target,seconds,predicted_seconds\r\n",
          to);
    for (int64_t i = 0, place = 1; order && i < all->count; i++, place++) {
        const report_group *group = &all->groups[order[i]];
        if (is_first(all, order, i)) place = 1;
        fprintf(to, "%s,%s,%lld,%.10g,%.10g,%lld", group->name, all->setups[group->setup].letter,
                (long long)place, network->rate, network->latency, (long long)group->count);
        write_number(to, stat_of(all, order[i], report_target_seconds).mean);
        write_number(to, stat_of(all, order[i], report_predicted_target_seconds).mean);
        write_number(to, stat_of(all, order[i], report_seconds).mean);
        write_number(to, stat_of(all, order[i], report_predicted_seconds).mean);
        fputs("\r\n", to);
    }
    free(order);
}
