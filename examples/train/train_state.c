// SPDX-License-Identifier: MIT
// Saves the state of a training run, and resumes from it.
#include "train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_ROOM = 4096 };

// The settings that a run must keep for its continuation to be meaningful: a line for each option.
// Text after FROM is shown but not compared.
#define FROM ", from "

#define CHECKSUM "--data's checksum "

// Whether the test loss affects the parameters: it then sets the learning rate.
static bool uses_test_loss(const train_run *run) {
    return strcmp(run->options->schedule, "plateau") == 0;
}

// A checksum of the data that affect the parameters.
static uint64_t sum_data(const train_run *run) {
    uint64_t train = iso_dataset_checksum(run->world->train_set);
    uint64_t test = iso_dataset_checksum(run->world->test_set);
    return uses_test_loss(run) ? train ^ (test << 1 | test >> 63) : train;
}

static iso_status describe_settings(const train_run *run, char text[SETTINGS_ROOM]) {
    const iso_dataset_info *info = &run->world->info;
    iso_dataset_info test;
    train_options options = *run->options;
    options.classes = info->classes; // given or not
    iso_dataset_get_info(run->world->test_set, &test);
    options.test_limit = -1;
    if (uses_test_loss(run) && run->test_samples < test.count)
        options.test_limit = run->test_samples;
    memset(text, 0, SETTINGS_ROOM); // all of it is saved
    train_options_text(&options, true, text, SETTINGS_ROOM);
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, SETTINGS_ROOM - used,
                             "--data of %lld images of %lld x %lld x %lld", (long long)info->count,
                             (long long)info->channels, (long long)info->height,
                             (long long)info->width);
    for (int64_t c = 0; c < info->channels && used < SETTINGS_ROOM; c++)
        used +=
            (size_t)snprintf(text + used, SETTINGS_ROOM - used, "%s mean %.9g and deviation %.9g",
                             c ? "," : " with", info->mean[c], info->std[c]);
    if (used < SETTINGS_ROOM)
        used += (size_t)snprintf(text + used, SETTINGS_ROOM - used, FROM "%s\n%s%016" PRIx64 "\n",
                                 run->options->data, CHECKSUM, sum_data(run));
    if (used < SETTINGS_ROOM) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "the options and the name of --data have more than %d characters, so the "
                       "run cannot be saved or resumed: give --data a shorter name",
                       SETTINGS_ROOM - 1);
}

// ---- Settings as text ---------------------------------------------------------------------------

#define LIST_ROOM 400

// Adds a line to a list of options as one gives them.
static void list_option(char list[LIST_ROOM], const char *line) {
    size_t used = strlen(list), name = strcspn(line, " "), all = strcspn(line, "\n");
    const char *comma = used > 0 ? ", " : "";
    bool absent = strncmp(line + name, " not given", all - name) == 0;
    bool present = strncmp(line + name, " given", all - name) == 0;
    snprintf(list + used, LIST_ROOM - used, "%s%s%.*s", comma, absent ? "no " : "",
             (int)(absent || present ? name : all), line);
}

static size_t compared_length(const char *line) {
    size_t all = strcspn(line, "\n");
    const char *from = strstr(line, FROM);
    return from && from < line + all ? (size_t)(from - line) : all;
}

static bool same_option(const char *a, const char *b) {
    size_t length = compared_length(a);
    return length == compared_length(b) && strncmp(a, b, length) == 0;
}

// ---- Defaults -----------------------------------------------------------------------------------

static bool is_line(const char *line, const char *option) {
    size_t length = strlen(option);
    return line && strncmp(line, option, length) == 0 && (!line[length] || line[length] == '\n');
}

// Of the optimizer that the text names.
static bool optimizer_of(const char *text, iso_optimizer_kind *out) {
    char name[TRAIN_LINE_ROOM];
    const char *line = train_options_line(text, "--optimizer ");
    if (!line) return false;
    line += strlen("--optimizer ");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(line, "\n"), line);
    return iso_optimizer_kind_parse(name, out) >= 0;
}

// The line of an option in a text of options; where that was not given but its default is known,
// a line with the default in `room`.
static const char *with_default(const char *text, const char *line, char room[TRAIN_LINE_ROOM]) {
    iso_optimizer_kind kind;
    if (is_line(line, "--bucket-mb not given")) {
        iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
        snprintf(room, TRAIN_LINE_ROOM, "--bucket-mb %.9g", config.bucket_mb);
        return room;
    }
    if (line != train_setting_default_line(text, line, room)) return room;
    bool lr = is_line(line, "--lr not given");
    if ((!lr && !is_line(line, "--weight-decay not given")) || !optimizer_of(text, &kind))
        return line;
    snprintf(room, TRAIN_LINE_ROOM, "--%s %.9g", lr ? "lr" : "weight-decay",
             lr ? train_default_lr(kind) : iso_hyper_default(kind).weight_decay);
    return room;
}

// ---- What may differ ----------------------------------------------------------------------------

// The wire of a line if it may differ from the saved run's; else NULL. Gradients may change their
// wire, except one with state (feedback) or one that lets parameters drift apart (noop). If
// parameters are exchanged, the wire is the form of what was under way.
static const char *free_wire(const train_run *run, const char *line) {
    static const char *const lines[] = {"--wire f32", "--wire bf16", "--wire f16"};
    const iso_strategy *strategy;
    // `complete`: it exchanges parameters.
    if (iso_strategy_find(run->options->sync, &strategy) < 0 || strategy->complete) return NULL;
    for (int i = 0; i < 3; i++)
        if (is_line(line, lines[i])) return lines[i] + strlen("--wire ");
    return NULL;
}

// ZeRO may differ: saved state is always whole, however ranks divide it in memory.
static bool is_free_zero(const train_run *run, const char *line) {
    static const char *const options[] = {"--zero ", "--zero-stage ", "--zero-scope "};
    const iso_strategy *strategy;
    if (iso_strategy_find(run->options->sync, &strategy) < 0 || strategy->complete) return false;
    for (int i = 0; i < 3; i++)
        if (strncmp(line, options[i], strlen(options[i])) == 0) return true;
    return false;
}

static iso_status compare_settings(train_run *run, const char *saved, const char *here) {
    char before[LIST_ROOM] = "", now[LIST_ROOM] = "";
    const char *old_sync = train_options_line(saved, "--sync ");
    bool extends = true; // nothing else differs
    bool other_sync = old_sync && !same_option(old_sync, train_options_line(here, "--sync "));
    for (const char *line = here, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *old = train_options_line(saved, line); // none: an option that there was not yet
        if (!old || same_option(old, line) || (other_sync && train_setting_named(line))) continue;
        if (train_ranks_free(run, line) || is_free_zero(run, line)) continue;
        char old_room[TRAIN_LINE_ROOM], room[TRAIN_LINE_ROOM];
        const char *old_value = with_default(saved, old, old_room);
        const char *value = with_default(here, line, room);
        if (same_option(old_value, value)) continue; // a default was given
        if (train_extend_takes(run, line, old_value)) continue;
        extends = extends && train_extend_names(line);
        const char *old_wire = free_wire(run, old_value);
        if (old_wire && free_wire(run, value)) {
            run->old_wire = old_wire;
            continue;
        }
        // If the message names other data, the checksum adds nothing.
        if (strncmp(line, CHECKSUM, strlen(CHECKSUM)) == 0 && strstr(before, "--data of")) continue;
        list_option(before, old_value);
        list_option(now, value);
    }
    if (!before[0]) return ISO_OK;
    return train_error(ISO_ERR_MISMATCH,
                       "%s was saved with %s, and this run has %s: resume with the options it was "
                       "saved with, %sor begin a new run under another --checkpoint",
                       run->options->resume, before, now,
                       extends ? "add --extend to go on with these, " : "");
}

// ---- What to resume -----------------------------------------------------------------------------

bool train_state_choose(const train_world *world, train_options *options) {
    static int64_t step; // MPI may write to it until the broadcast ends
    bool first = world->rank == 0;
    if (!options->resume || strcmp(options->resume, "auto") != 0) return true;
    step = -1;
    if (!train_all_well(first ? iso_resume_newest(options->checkpoint, &step) : ISO_OK))
        return false;
    train_bcast(&step, sizeof(step), 0, "the broadcast of what --resume auto found");
    options->resume_auto = true;
    options->resume = step >= 0 ? options->checkpoint : NULL;
    if (step >= 0) options->load = NULL;
    return true;
}

// The settings of the newest set of which the shared file is intact.
static char accepted[SETTINGS_ROOM];

iso_status train_state_check(train_run *run) {
    char here[SETTINGS_ROOM];
    TRY(iso_resume_read(run->world->comm, run->options->resume, "train/settings", sizeof(accepted),
                        accepted));
    accepted[SETTINGS_ROOM - 1] = 0;
    TRY(describe_settings(run, here));
    iso_status status = train_ranks_check(run, accepted);
    iso_status compared = compare_settings(run, accepted, here); // it names what was changed
    return compared < 0 ? compared : status;
}

// Other files of that set may be damaged. An older one may be from before --extend, or from other
// ranks. The same on all ranks.
static iso_status check_loaded(train_run *run, const train_shares *before, int64_t step,
                               char settings[SETTINGS_ROOM], const iso_loader_state *samples) {
    char here[SETTINGS_ROOM];
    settings[SETTINGS_ROOM - 1] = 0;
    if (strcmp(settings, accepted) == 0) return ISO_OK;
    run->extended[0] = 0;
    run->other_rate = false;
    TRY(describe_settings(run, here));
    bool fits = samples->ranks == before->ranks && samples->batch == before->batch;
    if (fits && compare_settings(run, settings, here) == ISO_OK) return ISO_OK;
    return train_error(
        ISO_ERR_MISMATCH,
        "the newest saved state of %s is damaged, and that of step %lld was saved "
        "with other options or ranks: remove the files %s.step-* of later steps, and "
        "resume from this one",
        run->options->resume, (long long)step, run->options->resume);
}

// ---- The list -----------------------------------------------------------------------------------

#define NUMBERS(type) ((int64_t)(sizeof(type) / 8))

static iso_status list_state(train_run *run, char settings[SETTINGS_ROOM],
                             iso_loader_state *samples, iso_state *state) {
    _Static_assert(sizeof(train_position) % 8 == 0 && sizeof(train_sums) % 8 == 0,
                   "saved as numbers of 8 bytes");
    TRY(iso_training_state(run->model, run->optimizer, state));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/settings", ISO_STATE_U8, SETTINGS_ROOM,
                      settings));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/position", ISO_STATE_I64,
                      NUMBERS(train_position), &run->at));
    TRY(train_schedule_state(run, state));
    if (run->options->finite || run->scaler || train_outlier_on(run))
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/skipped", ISO_STATE_I64, 1,
                          &run->skipped));
    if (run->scaler)
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/scaler", ISO_STATE_F64,
                          ISO_GRAD_SCALER_STATE, iso_grad_scaler_state(run->scaler)));
    if (run->noise)
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/noise", ISO_STATE_F64,
                          ISO_NOISE_SCALE_STATE, iso_noise_scale_state(run->noise)));
    TRY(train_outlier_state(run, state));
    if (run->validation_loader)
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/best", ISO_STATE_F64, NUMBERS(train_best),
                          &run->best));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/samples", ISO_STATE_I64,
                      NUMBERS(iso_loader_state), samples));
    TRY(iso_state_add(state, ISO_STATE_OWN, "train/sums", ISO_STATE_F64, NUMBERS(train_sums),
                      &run->sum));
    return iso_state_set_own_rule(state, "train/sums", ISO_OWN_SUM);
}

// The sums with what other parts of the library have counted. After resuming, those begin at 0.
static train_sums with_counts(const train_run *run) {
    train_sums sum = run->sum;
    iso_reducer_stats gradients;
    iso_traffic moved = {0};
    (void)iso_data_parallel_get_traffic(run->model, &moved);
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    sum.wait_ms += gradients.wait_ms;
    sum.bytes_sent += (double)moved.bytes_sent;
    sum.bytes_between += (double)moved.bytes_between_nodes;
    return sum;
}

iso_status train_state_save(train_run *run) {
    char settings[SETTINGS_ROOM];
    iso_state *state;
    iso_loader_state samples;
    train_sums before = run->sum;
    train_log_sync(run); // a run that goes on from this state keeps its log
    TRY(describe_settings(run, settings));
    iso_loader_get_state(run->train_loader, &samples);
    samples.epoch = run->at.epoch; // its next batch, also where an epoch has just ended
    samples.next = run->at.batch;
    TRY(iso_state_create(&state));
    run->sum = with_counts(run);
    iso_status status = list_state(run, settings, &samples, state);
    if (status >= 0)
        status = iso_resume_save(run->world->comm, run->options->checkpoint, run->at.step, state);
    iso_state_destroy(&state);
    run->sum = before;
    return status;
}

// The library reports mismatches in terms of files. The cause is nearly always one of these
// options.
static iso_status explain_mismatch(const train_run *run, iso_status status) {
    const train_options *o = run->options;
    if (status != ISO_ERR_MISMATCH) return status;
    return train_error(status, "cannot resume with --model %s, --optimizer %s and --sync %s: %s",
                       o->model, o->optimizer, o->sync, iso_last_error()->message);
}

static iso_status load_state(train_run *run, iso_state *state) {
    char settings[SETTINGS_ROOM] = "";
    iso_loader_state samples;
    int64_t step;
    const iso_hyper initial = *iso_optimizer_hyper(run->optimizer);
    const train_shares before = run->before;
    TRY(list_state(run, settings, &samples, state));
    if (run->other_ranks) iso_state_accept_ranks(state, &run->before.ranks);
    iso_state_accept_nodes(state, &run->other_nodes);
    TRY(explain_mismatch(run,
                         iso_resume_load(run->world->comm, run->options->resume, state, &step)));
    TRY(check_loaded(run, &before, step, settings, &samples));
    iso_status status = train_ranks_convert(run, &samples);
    if (status >= 0) status = train_extend_go_on(run, &initial, &samples);
    if (status >= 0) status = iso_loader_set_state(run->train_loader, &samples);
    TRY(iso_comm_agree(run->world->comm, status)); // a rank may be out of memory or threads
    return iso_training_loaded(run->model, run->optimizer);
}

iso_status train_state_load(train_run *run) {
    iso_state *state;
    TRY(iso_state_create(&state));
    iso_status status = load_state(run, state);
    iso_state_destroy(&state);
    TRY(status);
    return iso_strategy_get_stats(run->strategy, run->optimizer, &run->seen);
}
