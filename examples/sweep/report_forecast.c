// SPDX-License-Identifier: MIT
// Shows what the modes of a study would take on another network, and which one would be first.
#include "report_impl.h"
#include "report_predict.h"

#include <math.h>
#include <stdlib.h>

static report_stat stat_of(const report_groups *all, int64_t g, report_value value) {
    return report_group_stat(all, &all->groups[g], value);
}

// Means over the seeds of a group; NaN if one of them has no number.
typedef struct forecast {
    int64_t group;
    double target_seconds, seconds;
} forecast;

// each: room for a prediction for each run.
static forecast make_forecast(const report_groups *all, int64_t g, report_prediction *each) {
    const report_group *group = &all->groups[g];
    forecast out = {.group = g};
    for (int64_t i = 0; i < group->count; i++) each[i] = report_predict(all->study, group->runs[i]);
    for (int64_t i = 0; i < group->count; i++)
        group->room[i] = group->failed > 0 ? NAN : each[i].target_seconds; // as in the ranking
    out.target_seconds = report_stat_of(group->room, group->count).mean;
    for (int64_t i = 0; i < group->count; i++) group->room[i] = each[i].seconds;
    out.seconds = report_stat_of(group->room, group->count).mean;
    return out;
}

static double or_never(double seconds) { return isnan(seconds) ? INFINITY : seconds; }

// By the setup, then by the predicted time to the target, then to the end.
static bool is_ahead(const report_groups *all, const forecast *a, const forecast *b) {
    int64_t first = all->groups[a->group].setup, second = all->groups[b->group].setup;
    if (first != second) return first < second;
    if (or_never(a->target_seconds) != or_never(b->target_seconds))
        return or_never(a->target_seconds) < or_never(b->target_seconds);
    return or_never(a->seconds) < or_never(b->seconds);
}

// Free it; NULL: there is no memory.
static forecast *sort_forecasts(const report_groups *all) {
    forecast *order = calloc((size_t)all->count + 1, sizeof(*order));
    report_prediction *each = calloc((size_t)all->study->count + 1, sizeof(*each));
    for (int64_t i = 0; order && each && i < all->count; i++) {
        forecast new = make_forecast(all, i, each);
        int64_t at = i;
        for (; at > 0 && is_ahead(all, &new, &order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = new;
    }
    if (!each) free(order);
    free(each);
    return each ? order : NULL;
}

static bool is_first(const report_groups *all, const forecast *order, int64_t at) {
    return at == 0 || all->groups[order[at].group].setup != all->groups[order[at - 1].group].setup;
}

// ---- The page -----------------------------------------------------------------------------------

static void write_cell(FILE *to, double seconds) {
    if (isfinite(seconds))
        fprintf(to, "<td>%.1f</td>", seconds);
    else
        fputs("<td></td>", to);
}

static void write_winner(FILE *to, const report_groups *all, const forecast *winner) {
    if (isnan(winner->seconds)) return;
    fputs("<p>Predicted winner: <b>", to);
    report_escape(to, all->groups[winner->group].label);
    if (isnan(winner->target_seconds))
        fprintf(to, "</b>, %.1f s to the end.</p>\n", winner->seconds);
    else
        fprintf(to, "</b>, %.1f s to %.4g %% test accuracy.</p>\n", winner->target_seconds,
                100 * all->study->target);
}

static void write_unpredicted(FILE *to, const report_groups *all) {
    int64_t local = 0;
    for (int64_t i = 0; i < all->count; i++) local += report_is_local(all->groups[i].runs[0]);
    if (local > 0)
        fprintf(to,
                "<p class=\"note\">%lld of %lld modes cannot be predicted: their ranks were on one "
                "node, so nothing is known of their exchanges over a network. Measure them with "
                "<code>ISO_RANKS_PER_NODE=1</code>.</p>\n",
                (long long)local, (long long)all->count);
}

void report_write_predictions(FILE *to, const report_groups *all) {
    const report_network *network = &all->study->network;
    forecast *order = network->rate > 0 ? sort_forecasts(all) : NULL;
    if (!order) return;
    fprintf(to, "<h2>Predicted on a network of %.6g Mbit/s</h2>\n", network->rate);
    for (int64_t i = 0; i < all->count; i++)
        if (is_first(all, order, i)) write_winner(to, all, &order[i]);
    fprintf(to,
            "<p class=\"note\">Each node sends and receives at %.6g Mbit/s, with %.6g ms more "
            "latency than when the runs were measured. Computing, steps and bytes are those of the "
            "runs; an exchange takes at least as long as it took, and as its bytes need.</p>\n",
            network->rate, network->latency);
    write_unpredicted(to, all);
    fputs("<div class=\"wide\"><table><tr><th class=\"text\">mode</th>"
          "<th>to target, measured<br><small>s</small></th>"
          "<th>to target, predicted<br><small>s</small></th>"
          "<th>to the end, measured<br><small>s</small></th>"
          "<th>to the end, predicted<br><small>s</small></th></tr>\n",
          to);
    for (int64_t i = 0; i < all->count; i++) {
        fputs("<tr><td class=\"text\">", to);
        report_write_label(to, all, order[i].group);
        fputs("</td>", to);
        write_cell(to, stat_of(all, order[i].group, report_target_seconds).mean);
        write_cell(to, order[i].target_seconds);
        write_cell(to, stat_of(all, order[i].group, report_seconds).mean);
        write_cell(to, order[i].seconds);
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

void report_write_predicted(FILE *to, const report_groups *all) {
    const report_network *network = &all->study->network;
    forecast *order = sort_forecasts(all);
    fputs("run,setup,place,rate_mbit,latency_ms,seeds,seconds_to_target,"
          "predicted_seconds_to_target,seconds,predicted_seconds,failed,left\r\n",
          to);
    for (int64_t i = 0, place = 1; order && i < all->count; i++, place++) {
        const report_group *group = &all->groups[order[i].group];
        if (is_first(all, order, i)) place = 1;
        report_text_field(to, group->name);
        fprintf(to, ",%s,%lld,%.10g,%.10g,%lld", all->setups[group->setup].letter, (long long)place,
                network->rate, network->latency, (long long)group->count);
        write_number(to, stat_of(all, order[i].group, report_target_seconds).mean);
        write_number(to, order[i].target_seconds);
        write_number(to, stat_of(all, order[i].group, report_seconds).mean);
        write_number(to, order[i].seconds);
        fprintf(to, ",%lld,%lld\r\n", (long long)group->failed, (long long)group->left);
    }
    free(order);
}
