// SPDX-License-Identifier: MIT
// The log: levels, and the rank before each message.
#include "base/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic int level = -1; // -1: not yet read from ISO_LOG
static _Atomic int rank = -1;
static FILE *_Atomic stream;
static _Atomic int silenced;

static const char *const level_name[] = {"error", "warn", "info", "debug"};

// The check of the environment refuses words that are not in its table.
int iso__debug_level(void) {
    const char *text = iso__env_string(ISO_ENV_DEBUG);
    if (!text) return ISO__DEBUG_OFF;
    return strcmp(text, "detail") == 0 ? ISO__DEBUG_DETAIL
           : strcmp(text, "info") == 0 ? ISO__DEBUG_INFO
                                       : ISO__DEBUG_OFF;
}

// The check of the environment refuses text that is not a level.
static void read_level(void) {
    const char *text = iso__env_string(ISO_ENV_LOG);
    level = ISO_LOG_WARN;
    for (int i = 0; text && i <= ISO_LOG_DEBUG; i++)
        if (strcmp(text, level_name[i]) == 0) level = i;
    if (iso__debug_level() > ISO__DEBUG_OFF && level < ISO_LOG_INFO) level = ISO_LOG_INFO;
}

int iso__log_level(void) {
    if (level < 0) read_level();
    return level;
}

void iso_log_set_level(iso_log_level new_level) { level = (int)new_level; }
void iso_log_set_stream(FILE *to) {
    stream = to;
    silenced = to == NULL;
}
void iso_log_set_rank(int new_rank) { rank = new_rank; }
int iso__log_rank(void) { return rank; }

void iso__log(iso_log_level at, const char *format, ...) {
    if ((int)at > iso__log_level() || silenced) return;
    FILE *to = stream ? stream : stderr;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    // One call, so that lines of ranks sharing a terminal do not mix.
    if (rank >= 0)
        fprintf(to, "isotherm[%d] %s: %s\n", rank, level_name[at], text);
    else
        fprintf(to, "isotherm %s: %s\n", level_name[at], text);
}

void iso__log_new_error(const iso_error *before, const char *during) {
    const iso_error *now = iso_last_error();
    if (now->code == before->code && strcmp(now->message, before->message) == 0) return;
    iso__log(ISO_LOG_ERROR, "%s: %s", during, now->message);
}
