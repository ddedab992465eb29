// SPDX-License-Identifier: MIT
// Puts runs that differ in their seed only into groups, and groups of one machine into setups.
#include "report_groups.h"

#include "train/train_error.h"
#include "train/train_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Which runs belong together -----------------------------------------------------------------

static bool is_same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }
static bool is_same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }
// Logs of older versions do not have all numbers.
static bool is_other_number(double a, double b) { return !isnan(a) && !isnan(b) && a != b; }
static size_t line_length(const char *text) { return strcspn(text, "\n"); }

bool report_is_seed_line(const char *line) { return strncmp(line, "--seed ", 7) == 0; }

// "--KEY not given", or the default.
static bool is_default_line(const char *line) {
    const train_option *option = train_option_named(line);
    const iso_setting *s = option ? &option->setting : train_setting_named(line);
    const char *value = line + strcspn(line, " \n");
    const char *initial = s && s->initial ? s->initial : "not given";
    value += *value == ' ';
    size_t length = line_length(value);
    return (length == strlen("not given") && strncmp(value, "not given", length) == 0) ||
           (strlen(initial) == length && strncmp(value, initial, length) == 0);
}

// The path of a data set depends on the machine, so paths are not compared. The built-in digits are
// another data set.
static bool is_same_data(const char *line, const char *other) {
    static const char digits[] = "--data digits";
    size_t length = sizeof(digits) - 1;
    return !other || !strncmp(line, digits, length) == !strncmp(other, digits, length);
}

// A line that the other version does not list is the same if it has the default.
static bool is_same_line(const char *line, const char *other) {
    size_t length = line_length(line);
    const char *same = other ? train_options_line(other, line) : NULL;
    if (report_is_seed_line(line)) return true;
    if (strncmp(line, "--data ", 7) == 0) return is_same_data(line, same);
    if (!same) return is_default_line(line);
    return line_length(same) == length && strncmp(same, line, length) == 0;
}

// shared: only the settings that all runs of a sweep have in common.
static bool has_lines_of(const report_run *a, const report_run *b, bool shared) {
    for (const char *line = a->settings; line && *line;
         line += line_length(line), line += !!*line) {
        const train_option *option = train_option_named(line);
        bool counts = !shared || (option && option->scope & TRAIN_SHARED);
        if (line[0] == '-' && counts && !is_same_line(line, b->settings)) return false;
    }
    return true;
}

static bool is_same_settings(const report_run *a, const report_run *b, bool shared) {
    return has_lines_of(a, b, shared) && has_lines_of(b, a, shared);
}

static bool is_same_setup(const report_run *a, const report_run *b) {
    return is_same_number(a->ranks, b->ranks) && is_same_number(a->nodes, b->nodes) &&
           !is_other_number(a->test_images, b->test_images) &&
           is_same_text(a->machine, b->machine) && is_same_settings(a, b, true);
}

static bool is_same_group(const report_run *a, const report_run *b) {
    return is_same_text(a->name, b->name) && is_same_setup(a, b) && is_same_settings(a, b, false);
}

bool report_same_run(const report_run *a, const report_run *b) {
    return is_same_group(a, b) && is_same_number(a->seed, b->seed);
}

// ---- Groups -------------------------------------------------------------------------------------

static int64_t find_setup(report_groups *all, const report_run *run) {
    int64_t i = 0;
    while (i < all->setup_count && !is_same_setup(all->setups[i].first, run)) i++;
    if (i < all->setup_count) return i;
    report_setup *added = &all->setups[all->setup_count++];
    added->first = run;
    if (i < 26)
        snprintf(added->letter, sizeof(added->letter), "%c", (char)('A' + i));
    else
        snprintf(added->letter, sizeof(added->letter), "%d", (int)(i % 100000));
    return i;
}

// Behind those of a smaller seed.
static void insert_run(report_group *group, const report_run *run) {
    int64_t at = group->count++;
    for (; at > 0 && group->runs[at - 1]->seed > run->seed; at--)
        group->runs[at] = group->runs[at - 1];
    group->runs[at] = run;
}

static bool has_version(const report_setup *setup, const char *version) {
    size_t length = strlen(version);
    for (const char *at = setup->versions; at; at = strstr(at, ", ")) {
        if (*at == ',') at += 2;
        if (strncmp(at, version, length) == 0 && (!at[length] || at[length] == ',')) return true;
    }
    return false;
}

// Dates sort as text.
static void note_run(report_setup *setup, const report_run *run) {
    const char *date = run->date;
    size_t used = strlen(setup->versions);
    if (date && (!setup->begun || strcmp(date, setup->begun) < 0)) setup->begun = date;
    if (date && (!setup->latest || strcmp(date, setup->latest) > 0)) setup->latest = date;
    if (run->version && !has_version(setup, run->version))
        snprintf(setup->versions + used, sizeof(setup->versions) - used, "%s%s", used ? ", " : "",
                 run->version);
}

static iso_status add_run(report_groups *all, const report_run *run, size_t most) {
    int64_t i = 0;
    while (i < all->count && !is_same_group(all->groups[i].first, run)) i++;
    report_group *group = &all->groups[i];
    if (i == all->count) {
        all->count++;
        group->first = run;
        group->setup = find_setup(all, run);
        group->runs = calloc(most, sizeof(*group->runs));
        group->room = calloc(most, sizeof(*group->room));
        if (!group->runs || !group->room)
            return train_error(ISO_ERR_NOMEM, "out of memory for the report");
    }
    insert_run(group, run);
    note_run(&all->setups[group->setup], run);
    return ISO_OK;
}

// What is known of a run that is still to be made.
static bool is_same_plan(const report_run *left, const report_run *run) {
    return is_same_text(left->name, run->name) && is_same_text(left->options, run->options);
}

// One that failed and is to be made again counts once.
static void count_lacking(report_group *group, const report *study) {
    for (int64_t i = 0; i < study->failed_count; i++)
        group->failed += is_same_group(group->first, &study->failed[i]);
    for (int64_t i = 0; i < study->left_count; i++) {
        const report_run *left = &study->left[i];
        bool again = !is_same_plan(left, group->first);
        for (int64_t k = 0; k < study->failed_count && !again; k++)
            again = study->failed[k].seed == left->seed &&
                    is_same_group(group->first, &study->failed[k]);
        group->left += !again;
    }
}

// Groups of one name and setup have different settings: they are numbered.
static void label_group(report_groups *all, int64_t i) {
    report_group *group = &all->groups[i];
    int twins = 1;
    for (int64_t k = 0; k < i; k++)
        twins += all->groups[k].setup == group->setup &&
                 strcmp(all->groups[k].first->name, group->first->name) == 0;
    char number[16] = "", setup[16] = "", lacking[64] = "";
    long long seeds = (long long)report_group_seeds(group);
    if (twins > 1) snprintf(number, sizeof(number), " #%d", twins);
    if (all->setup_count > 1)
        snprintf(setup, sizeof(setup), " [%s]", all->setups[group->setup].letter);
    snprintf(group->name, sizeof(group->name), "%.70s%s", group->first->name, number);
    if (group->count < seeds)
        snprintf(lacking, sizeof(lacking), " (%lld of %lld seeds)", (long long)group->count, seeds);
    snprintf(group->label, sizeof(group->label), "%s%s%s", group->name, setup, lacking);
}

iso_status report_groups_make(const report *study, report_groups *out) {
    size_t most = (size_t)study->count + 1;
    *out = (report_groups){.study = study};
    out->setups = calloc(most, sizeof(*out->setups));
    out->groups = calloc(most, sizeof(*out->groups));
    out->room = calloc(2 * most, sizeof(*out->room));
    if (!out->setups || !out->groups || !out->room)
        return train_error(ISO_ERR_NOMEM, "out of memory for the report");
    for (int64_t i = 0; i < study->count; i++) TRY(add_run(out, &study->runs[i], most));
    for (int64_t i = 0; i < out->count; i++) count_lacking(&out->groups[i], study);
    for (int64_t i = 0; i < out->count; i++) label_group(out, i);
    return ISO_OK;
}

void report_groups_free(report_groups *groups) {
    for (int64_t i = 0; i < groups->count; i++) {
        free(groups->groups[i].runs);
        free(groups->groups[i].room);
    }
    free(groups->groups);
    free(groups->setups);
    free(groups->room);
    *groups = (report_groups){0};
}

const report_group *report_group_of(const report_groups *all, const report_run *run) {
    for (int64_t i = 0; i < all->count; i++)
        for (int64_t k = 0; k < all->groups[i].count; k++)
            if (all->groups[i].runs[k] == run) return &all->groups[i];
    return NULL;
}

// ---- Numbers of a group -------------------------------------------------------------------------

int64_t report_group_seeds(const report_group *group) {
    return group->count + group->failed + group->left;
}

double report_group_value(const report_groups *all, const report_group *group, int64_t run,
                          report_value value) {
    bool at_target = value == report_target_seconds || value == report_target_steps ||
                     value == report_target_megabytes;
    return at_target && group->failed > 0 ? NAN : value(all->study, group->runs[run]);
}

report_stat report_group_stat(const report_groups *all, const report_group *group,
                              report_value value) {
    for (int64_t i = 0; i < group->count; i++)
        group->room[i] = report_group_value(all, group, i, value);
    return report_stat_of(group->room, group->count);
}

int64_t report_group_reached(const report_groups *all, const report_group *group) {
    int64_t reached = 0;
    for (int64_t i = 0; i < group->count; i++)
        reached += report_reached(group->runs[i], all->study->target) != NULL;
    return reached;
}

const report_group *report_group_baseline(const report_groups *all, const report_group *group) {
    const char *given = all->study->baseline;
    const char *name = given ? given : all->groups[0].name;
    for (int64_t i = 0; i < all->count; i++) {
        const report_group *other = &all->groups[i];
        if (other->setup == group->setup && strcmp(other->name, name) == 0)
            return other == group ? NULL : other;
    }
    return NULL;
}

static report_paired compare_pairs(const report_groups *all, const report_group *group,
                                   const report_group *baseline, report_value value) {
    int64_t pairs = 0;
    for (int64_t i = 0, k = 0; i < group->count && k < baseline->count;) {
        const report_run *a = group->runs[i], *b = baseline->runs[k];
        if (a->seed == b->seed) {
            group->room[pairs] = report_group_value(all, group, i, value);
            baseline->room[pairs++] = report_group_value(all, baseline, k, value);
        }
        i += !(a->seed > b->seed);
        k += !(a->seed < b->seed);
    }
    return report_paired_test(group->room, baseline->room, pairs);
}

report_comparison report_compare_group(const report_groups *all, const report_group *group,
                                       int metric) {
    report_comparison out = {.baseline = report_group_baseline(all, group), .holm = NAN};
    report_value value = report_metrics[metric].value;
    double *p = all->room, *adjusted = all->room + all->count;
    if (!out.baseline) return out;
    for (int64_t i = 0; i < all->count; i++) {
        const report_group *other = &all->groups[i];
        bool counts = other->setup == group->setup && other != out.baseline;
        p[i] = counts ? compare_pairs(all, other, out.baseline, value).p : NAN;
    }
    int64_t own = report_group_seeds(group), others = report_group_seeds(out.baseline);
    out.seeds = own > others ? own : others;
    report_holm(p, adjusted, all->count);
    out.holm = adjusted[group - all->groups];
    out.test = compare_pairs(all, group, out.baseline, value);
    return out;
}

// ---- Which group is best ------------------------------------------------------------------------

static bool is_better(const report_groups *all, int64_t a, int64_t b) {
    const report_group *x = &all->groups[a], *y = &all->groups[b];
    double first = report_group_stat(all, x, report_target_seconds).mean;
    double second = report_group_stat(all, y, report_target_seconds).mean;
    if (isnan(first)) first = INFINITY;
    if (isnan(second)) second = INFINITY;
    if (first != second) return first < second;
    return report_group_stat(all, x, report_accuracy).mean >
           report_group_stat(all, y, report_accuracy).mean;
}

void report_groups_rank(const report_groups *all, int64_t *order) {
    for (int64_t i = 0; i < all->count; i++) {
        int64_t at = i;
        for (; at > 0 && is_better(all, i, order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
}
