// Saves where a training run stands, and goes on from there.
#include "train.h"

#include <stdlib.h>
#include <string.h>

enum { SETTINGS_ROOM = 4096 };

// What a run must have had from its beginning for its continuation to mean anything.
static void describe(const train_run *run, char text[SETTINGS_ROOM]) {
    const iso_dataset_info *info = &run->world->info;
    memset(text, 0, SETTINGS_ROOM); // all of it is saved
    train_options_text(run->options, true, text, SETTINGS_ROOM);
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, SETTINGS_ROOM - used, "%lld images of %lld x %lld x %lld",
                             (long long)info->count, (long long)info->channels,
                             (long long)info->height, (long long)info->width);
    for (int64_t c = 0; c < info->channels && used < SETTINGS_ROOM; c++)
        used += (size_t)snprintf(text + used, SETTINGS_ROOM - used,
                                 " with mean %.9g and deviation %.9g%s", info->mean[c],
                                 info->std[c], c + 1 < info->channels ? "," : "\n");
}

#define NUMBERS(type) ((int64_t)(sizeof(type) / 8))

static iso_status list(train_run *run, char settings[SETTINGS_ROOM], iso_loader_state *samples,
                       iso_state *state) {
    _Static_assert(sizeof(train_position) % 8 == 0 && sizeof(train_sums) % 8 == 0,
                   "saved as numbers of 8 bytes");
    TRY(iso_training_state(run->model, run->optimizer, state));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/settings", ISO_STATE_U8, SETTINGS_ROOM,
                      settings));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/position", ISO_STATE_I64,
                      NUMBERS(train_position), &run->at));
    TRY(train_schedule_state(run, state));
    TRY(iso_state_add(state, ISO_STATE_SHARED, "train/samples", ISO_STATE_I64,
                      NUMBERS(iso_loader_state), samples));
    return iso_state_add(state, ISO_STATE_OWN, "train/sums", ISO_STATE_F64, NUMBERS(train_sums),
                         &run->sum);
}

// Sums hold what other parts of the program count, too, so that counting can begin at 0 again.
static train_sums with_counts(const train_run *run) {
    train_sums sum = run->sum;
    iso_reducer_stats gradients;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    sum.wait_ms += gradients.wait_ms;
    sum.bytes_sent += (double)(gradients.bytes_world + gradients.bytes_node);
    sum.bytes_between += run->world->nodes > 1 ? (double)gradients.bytes_world : 0;
    return sum;
}

iso_status train_state_save(train_run *run) {
    char settings[SETTINGS_ROOM];
    iso_state *state;
    iso_loader_state samples;
    train_sums before = run->sum;
    describe(run, settings);
    iso_loader_get_state(run->train_loader, &samples);
    samples.epoch = run->at.epoch; // its next batch, also where an epoch has just ended
    samples.next = run->at.batch;
    TRY(iso_state_create(&state));
    run->sum = with_counts(run);
    iso_status status = list(run, settings, &samples, state);
    if (status >= 0)
        status = iso_resume_save(run->world->comm, run->options->checkpoint, run->at.step, state);
    iso_state_destroy(&state);
    run->sum = before;
    return status;
}

static iso_status check_settings(const train_run *run, const char *saved) {
    char here[SETTINGS_ROOM];
    describe(run, here);
    if (memcmp(saved, here, SETTINGS_ROOM) == 0) return ISO_OK;
    size_t line = train_options_difference(saved, here);
    return train_error(ISO_ERR_MISMATCH,
                       "%s was trained with %.*s and this run has %.*s: resume with the same",
                       run->options->resume, (int)strcspn(saved + line, "\n"), saved + line,
                       (int)strcspn(here + line, "\n"), here + line);
}

// What the library finds is told in terms of files; the cause is nearly always one of these
// options.
static iso_status explain(const train_run *run, iso_status status) {
    const train_options *o = run->options;
    if (status != ISO_ERR_MISMATCH) return status;
    return train_error(status, "cannot resume with --model %s, --optimizer %s and --sync %s: %s",
                       o->model, o->optimizer, o->sync, iso_last_error()->message);
}

static iso_status load(train_run *run, iso_state *state) {
    char settings[SETTINGS_ROOM] = "";
    iso_loader_state samples;
    int64_t step;
    TRY(list(run, settings, &samples, state));
    TRY(explain(run, iso_resume_load(run->world->comm, run->options->resume, state, &step)));
    settings[SETTINGS_ROOM - 1] = 0;
    TRY(check_settings(run, settings));
    TRY(iso_loader_set_state(run->train_loader, &samples));
    return iso_training_loaded(run->model, run->optimizer);
}

iso_status train_state_load(train_run *run) {
    iso_state *state;
    TRY(iso_state_create(&state));
    iso_status status = load(run, state);
    iso_state_destroy(&state);
    TRY(status);
    if (run->periodic) TRY(run->strategy->stats(run->optimizer, &run->seen));
    return ISO_OK;
}
