// SPDX-License-Identifier: MIT
// Writes the tables of a study as CSV (RFC 4180).
#include "report_impl.h"

#include <math.h>
#include <string.h>

// ---- Fields -------------------------------------------------------------------------------------

void report_text_field(FILE *to, const char *text) {
    if (!text) return;
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, to);
        return;
    }
    putc('"', to);
    for (; *text; text++) {
        if (*text == '"') putc('"', to);
        putc(*text, to);
    }
    putc('"', to);
}

static void next_text(FILE *to, const char *text) {
    putc(',', to);
    report_text_field(to, text);
}

// An unknown number is an empty field.
static void number_fields(FILE *to, const double *numbers, int count) {
    for (int i = 0; i < count; i++) {
        if (isfinite(numbers[i]))
            fprintf(to, ",%.10g", numbers[i]);
        else
            putc(',', to);
    }
}

static void end_line(FILE *to) { fputs("\r\n", to); }

// ---- Runs ---------------------------------------------------------------------------------------

// The name of a mode: "name #2" tells it from another one of this name. NULL: the run failed.
static const char *name_of(const report_group *group, const report_run *run) {
    return group ? group->name : run->name;
}

static const char *setup_of(const report_groups *all, const report_group *group) {
    return group ? all->setups[group->setup].letter : "";
}

void report_write_points(FILE *to, const report_groups *all) {
    const report *study = all->study;
    fputs("run,seed,step,seconds,bytes,train_loss,test_accuracy,setup\r\n", to);
    for (int64_t r = 0; r < study->count; r++) {
        const report_run *run = &study->runs[r];
        const report_group *group = report_group_of(all, run);
        for (int64_t i = 0; i < run->point_count; i++) {
            const report_point *p = &run->points[i];
            report_text_field(to, name_of(group, run));
            number_fields(to,
                          (double[]){run->seed, p->step, p->seconds, p->bytes, p->train_loss,
                                     p->test_accuracy},
                          6);
            next_text(to, setup_of(all, group));
            end_line(to);
        }
    }
}

void report_write_syncs(FILE *to, const report_groups *all) {
    const report *study = all->study;
    fputs("run,seed,step,divergence,wait_ms,exchange_ms,period,wait,setup\r\n", to);
    for (int64_t r = 0; r < study->count; r++) {
        const report_run *run = &study->runs[r];
        const report_group *group = report_group_of(all, run);
        for (int64_t i = 0; i < run->sync_count; i++) {
            const report_sync *s = &run->syncs[i];
            report_text_field(to, name_of(group, run));
            number_fields(to,
                          (double[]){run->seed, s->step, s->divergence, s->wait_ms, s->exchange_ms,
                                     s->period, s->wait},
                          7);
            next_text(to, setup_of(all, group));
            end_line(to);
        }
    }
}

// What is known of every run, whether it failed or not.
static void begin_run(FILE *to, const report_groups *all, const report_run *run) {
    report_text_field(to, name_of(report_group_of(all, run), run));
    number_fields(to, &run->seed, 1);
    next_text(to, run->options);
}

static void end_run(FILE *to, const report_groups *all, const report_run *run) {
    number_fields(to, (double[]){run->ranks, run->nodes}, 2);
    next_text(to, run->machine);
    next_text(to, run->version);
    next_text(to, run->date);
    next_text(to, run->failure);
    next_text(to, setup_of(all, report_group_of(all, run)));
    end_line(to);
}

enum { RUN_NUMBERS = 15 };

static void write_run(FILE *to, const report_groups *all, const report_run *run) {
    const report *study = all->study;
    const report_point *at = report_reached(run, study->target);
    double numbers[RUN_NUMBERS] = {study->target,
                                   report_target_seconds(study, run),
                                   report_target_steps(study, run),
                                   at ? at->bytes : NAN,
                                   run->test_accuracy,
                                   run->train_loss,
                                   run->steps,
                                   run->seconds,
                                   report_speed(study, run),
                                   run->bytes,
                                   run->wait_ms_per_step,
                                   run->merge_ms_per_step,
                                   report_compute_ms(study, run),
                                   report_exposed_share(study, run) / 100,
                                   (double)run->sync_count};
    begin_run(to, all, run);
    number_fields(to, numbers, RUN_NUMBERS);
    fprintf(to, ",%s,%s,%s,%s", run->period, run->period_requested, run->wait, run->wait_requested);
    end_run(to, all, run);
}

void report_write_runs(FILE *to, const report_groups *all) {
    const report *study = all->study;
    double unknown[RUN_NUMBERS];
    for (int i = 0; i < RUN_NUMBERS; i++) unknown[i] = NAN;
    fputs("run,seed,options,target,seconds_to_target,steps_to_target,bytes_to_target,test_accuracy,"
          "train_loss,steps,seconds,steps_per_second,bytes,wait_ms_per_step,merge_ms_per_step,"
          "compute_ms_per_step,share_waited,syncs,period,period_requested,wait,wait_requested,"
          "ranks,nodes,machine,version,date,failure,setup\r\n",
          to);
    for (int64_t r = 0; r < study->count; r++) write_run(to, all, &study->runs[r]);
    for (int64_t r = 0; r < study->failed_count; r++) {
        begin_run(to, all, &study->failed[r]);
        number_fields(to, unknown, RUN_NUMBERS);
        fputs(",,,,", to);
        end_run(to, all, &study->failed[r]);
    }
}

// ---- Modes --------------------------------------------------------------------------------------

static void begin_group(FILE *to, const report_groups *all, const report_group *group) {
    report_text_field(to, group->name);
    next_text(to, all->setups[group->setup].letter);
}

void report_write_modes(FILE *to, const report_groups *all) {
    fputs("run,setup,options,ranks,nodes,machine,metric,seeds,mean,deviation,low,high,failed,left,"
          "reached\r\n",
          to);
    for (int64_t g = 0; g < all->count; g++) {
        const report_group *group = &all->groups[g];
        for (int i = 0; i < REPORT_METRICS; i++) {
            report_stat s = report_group_stat(all, group, report_metrics[i].value);
            begin_group(to, all, group);
            next_text(to, group->first->options);
            number_fields(to, (double[]){group->first->ranks, group->first->nodes}, 2);
            next_text(to, group->first->machine);
            next_text(to, report_metrics[i].key);
            number_fields(to,
                          (double[]){(double)s.count, s.mean, s.deviation, s.mean - s.half,
                                     s.mean + s.half, (double)group->failed, (double)group->left,
                                     (double)report_group_reached(all, group)},
                          8);
            end_line(to);
        }
    }
}

void report_write_comparisons(FILE *to, const report_groups *all) {
    fputs("run,setup,baseline,metric,pairs,difference,low,high,t,p,p_holm,seeds\r\n", to);
    for (int i = 0; i < REPORT_METRICS; i++) {
        for (int64_t g = 0; g < all->count; g++) {
            const report_group *group = &all->groups[g];
            report_comparison c = report_compare_group(all, group, i);
            const report_stat *d = &c.test.difference;
            if (!c.baseline) continue;
            begin_group(to, all, group);
            next_text(to, c.baseline->name);
            next_text(to, report_metrics[i].key);
            number_fields(to,
                          (double[]){(double)d->count, d->mean, d->mean - d->half,
                                     d->mean + d->half, c.test.t, c.test.p, c.holm,
                                     (double)c.seeds},
                          8);
            end_line(to);
        }
    }
}
