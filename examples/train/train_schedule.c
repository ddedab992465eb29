// SPDX-License-Identifier: MIT
// The learning rate of a training run: --schedule and its options.
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Settings -----------------------------------------------------------------------------------

static bool is_schedule(const train_run *run, const char *schedule) {
    return strcmp(run->options->schedule, schedule) == 0;
}

// Reads "5,10" into `out`, which may be NULL to count only; -1: it is no such list.
static int read_epochs(const char *text, int64_t *out) {
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long epoch = strtoll(at, &end, 10);
        if (end == at || errno || epoch < 1 || epoch > (long long)1e12) return -1;
        if (out) out[count] = epoch;
        count++;
        if (!*end) return count;
        if (*end != ',') return -1;
        at = end;
    }
}

iso_status train_schedule_check(const train_options *o) {
    if (o->milestones && read_epochs(o->milestones, NULL) < 0)
        return train_error(ISO_ERR_ARG, "--milestones %s: give epochs from 1, as in 5,10",
                           o->milestones);
    if (strcmp(o->schedule, "plateau") == 0 && o->gamma >= 1)
        return train_error(ISO_ERR_ARG, "--gamma %g: give a number below 1 for --schedule plateau",
                           o->gamma);
    return ISO_OK;
}

// In epochs where they are given, else at half and three quarters of the run.
static iso_status set_milestones(train_run *run, int64_t epoch_steps, int64_t steps) {
    iso_schedule *s = &run->schedule;
    const char *text = run->options->milestones;
    int count = text ? read_epochs(text, NULL) : 2;
    run->milestones = calloc((size_t)count, sizeof(*run->milestones));
    if (!run->milestones) return train_error(ISO_ERR_NOMEM, "out of memory for --milestones");
    if (text) {
        read_epochs(text, run->milestones);
        s->interval = epoch_steps;
    } else {
        run->milestones[0] = steps > 1 ? steps / 2 : 1; // 0 would be before the first step
        run->milestones[1] = steps > 1 ? 3 * steps / 4 : 1;
    }
    s->milestones = run->milestones;
    s->milestone_count = count;
    return ISO_OK;
}

// What a given --step-size means.
static void set_step_size(train_run *run, int64_t epoch_steps) {
    int64_t epochs = run->options->step_size;
    if (epochs < 0) return;
    run->schedule.t_0 = epochs * epoch_steps; // falls with every update
    run->schedule.step_size = epochs;
    if (is_schedule(run, "step")) run->schedule.interval = epoch_steps;
}

static iso_status set_plateau(train_run *run) {
    iso_lr_plateau_config config = ISO_LR_PLATEAU_DEFAULT;
    config.plateau.patience = run->options->patience;
    config.factor = run->schedule.gamma;
    return is_schedule(run, "plateau") ? iso_lr_plateau_init(&run->plateau, &config) : ISO_OK;
}

static void warn_of_warmup(const train_run *run) {
    if (run->schedule.warmup_steps < run->steps || run->world->rank != 0) return;
    fprintf(stderr,
            "%s: warning: --warmup-lr-steps %lld does not end within the %lld step%s of the run: "
            "the learning rate does not reach that of --lr%s: give fewer\n",
            train_error_name(), (long long)run->schedule.warmup_steps, (long long)run->steps,
            run->steps == 1 ? "" : "s",
            is_schedule(run, "plateau") ? "" : ", and --schedule has no effect");
}

iso_status train_schedule_setup(train_run *run, iso_optimizer_kind optimizer, double lr) {
    const train_options *o = run->options;
    iso_schedule_kind kind = ISO_SCHEDULE_CONSTANT; // lowered on plateaus
    int64_t warmup = o->warmup_lr_steps, epoch_steps = run->epoch_steps;
    int64_t steps = run->steps > warmup ? run->steps - warmup : 1;
    if (!is_schedule(run, "plateau")) TRY(iso_schedule_kind_parse(o->schedule, &kind));
    run->schedule = iso_schedule_default(kind, lr, steps);
    run->schedule.warmup_steps = warmup;
    if (warmup > 0) warn_of_warmup(run);
    run->lr = lr;
    run->lr_factor = 1;
    if (!isnan(o->gamma)) run->schedule.gamma = o->gamma;
    // Does not cycle a momentum that the user gave. RMSprop has none unless it is given.
    run->schedule.cycle_momentum = isnan(o->momentum) && optimizer != ISO_RMSPROP;
    if (kind == ISO_SCHEDULE_EXPONENTIAL) run->schedule.interval = epoch_steps;
    set_step_size(run, epoch_steps);
    if (kind == ISO_SCHEDULE_MULTI_STEP) TRY(set_milestones(run, epoch_steps, steps));
    TRY(set_plateau(run));
    return iso_schedule_check(&run->schedule);
}

// ---- Steps and epochs ---------------------------------------------------------------------------

void train_schedule_step(train_run *run) {
    iso_schedule now = run->schedule;
    now.lr = run->lr * run->lr_factor;
    iso_schedule_apply(&now, run->at.step, iso_optimizer_hyper(run->optimizer));
}

void train_schedule_epoch(train_run *run, double test_loss) {
    if (is_schedule(run, "plateau") && iso_lr_plateau_test(&run->plateau, test_loss))
        run->lr = iso_lr_plateau_reduced(&run->plateau, run->lr);
}

iso_status train_schedule_state(train_run *run, iso_state *state) {
    iso_plateau *p = &run->plateau.detector;
    const struct {
        const char *name;
        iso_state_type type;
        void *data;
    } entries[] = {{"train/lr", ISO_STATE_F64, &run->lr},
                   {"train/plateau/best", ISO_STATE_F64, &p->best},
                   {"train/plateau/num_bad_epochs", ISO_STATE_I64, &p->bad},
                   {"train/plateau/cooldown_counter", ISO_STATE_I64, &p->cooldown_counter},
                   {"train/plateau/last_epoch", ISO_STATE_I64, &p->last_epoch}};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        TRY(iso_state_add(state, ISO_STATE_SHARED, entries[i].name, entries[i].type, 1,
                          entries[i].data));
    return ISO_OK;
}
