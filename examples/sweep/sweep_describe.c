// SPDX-License-Identifier: MIT
// What a run is made with, as its log keeps it: options, ranks, machine, version and date.
#include "sweep.h"

#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { MACHINE_ROOM = 256 };

void sweep_settings(const sweep *self, int run, char text[SWEEP_SETTINGS_ROOM]) {
    const train_options *options = &self->options[run];
    train_options_text(options, true, text, TRAIN_OPTIONS_ROOM);
    size_t used = strlen(text);
    snprintf(text + used, SWEEP_SETTINGS_ROOM - used,
             "--data %.256s\n--load %.256s\n--progress %s\n--eval-every %lld\n%d ranks\n",
             options->data, options->load ? options->load : "not given",
             options->progress ? options->progress : "not given", (long long)options->eval_every,
             self->world.ranks);
}

// "model name : X" on x86; elsewhere the kernel tells the architecture only.
static void processor_text(char text[128]) {
    char line[256];
    struct utsname system;
    FILE *from = fopen("/proc/cpuinfo", "r");
    text[0] = 0;
    while (from && !text[0] && fgets(line, sizeof(line), from)) {
        char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon) snprintf(text, 128, "%.120s", colon + 1 + strspn(colon + 1, " \t"));
    }
    if (from) fclose(from);
    text[strcspn(text, "\n")] = 0;
    if (!text[0] && uname(&system) == 0) snprintf(text, 128, "%.100s", system.machine);
}

// Of rank 0. Host names are left out: jobs of one cluster run on different hosts.
static void machine_text(const sweep *self, char text[MACHINE_ROOM]) {
    char processor[128];
    processor_text(processor);
    snprintf(text, MACHINE_ROOM, "%s, %.100s", processor, iso_device_describe(self->world.device));
}

static void date_text(char text[32]) {
    time_t now = time(NULL);
    struct tm parts;
    text[0] = 0;
    if (gmtime_r(&now, &parts)) strftime(text, 32, "%Y-%m-%d %H:%M:%S", &parts);
}

void sweep_describe(const sweep *self, int run, iso_json_log *log) {
    char settings[SWEEP_SETTINGS_ROOM], machine[MACHINE_ROOM], date[32];
    sweep_settings(self, run, settings);
    machine_text(self, machine);
    date_text(date);
    iso_json_begin(log, "run");
    iso_json_string(log, "name", self->list.entries[run]->name);
    iso_json_string(log, "options", self->list.entries[run]->options);
    iso_json_string(log, "settings", settings);
    iso_json_int(log, "seed", self->options[run].seed);
    iso_json_int(log, "ranks", self->world.ranks);
    iso_json_int(log, "nodes", self->world.nodes);
    iso_json_string(log, "machine", machine);
    iso_json_string(log, "version", ISO_VERSION);
    iso_json_string(log, "date", date);
    iso_json_end(log);
}
