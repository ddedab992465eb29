// SPDX-License-Identifier: MIT
// Continues a run that a killed sweep was making, from the state that it saved.
#include "sweep.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Of the run that is being made; the library writes sets of files beside it.
static char state[PATH_MAX];

static void choose_state(const sweep *self, int run) {
    snprintf(state, sizeof(state), "%s/.%s.state", self->folder, self->list.entries[run]->file);
}

// Whether the log that was left behind is of the same run.
static bool is_same_run(const sweep *self, int run, const char *log) {
    char now[SWEEP_SETTINGS_ROOM];
    char *before = report_log_settings(log);
    sweep_settings(self, run, now);
    bool same = before && strcmp(before, now) == 0;
    free(before);
    return same;
}

// On rank 0. If the saved state cannot be read, the run begins anew.
static bool can_continue(const sweep *self, int run, const char *log) {
    int64_t newest;
    bool saved = iso_resume_newest(state, &newest) == ISO_OK && newest >= 0;
    return saved && is_same_run(self, run, log);
}

bool sweep_resume_begin(sweep *self, int run, const char *log) {
    static bool continues; // MPI may write to it until the broadcast ends
    train_options *options = &self->options[run];
    continues = false;
    if (self->checkpoint_every < 0) return false;
    choose_state(self, run);
    options->checkpoint = state;
    options->checkpoint_every = self->checkpoint_every;
    if (self->world.rank == 0) continues = can_continue(self, run, log);
    train_bcast(&continues, sizeof(continues), 0, "the broadcast of how the run begins");
    options->resume = continues ? state : NULL;
    return continues;
}

void sweep_resume_end(const sweep *self, int run) {
    char lock[PATH_MAX + 8];
    choose_state(self, run);
    (void)iso_resume_remove(state);
    if (self->world.rank != 0) return;
    unlink(state); // the parameters of the last epoch
    snprintf(lock, sizeof(lock), "%s.lock", state);
    unlink(lock);
}
