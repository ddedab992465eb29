// SPDX-License-Identifier: MIT
// Levels of local SGD: groups of ranks of several sizes, each with its period.
#include "optim/periodic/sync_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- PyTorch's rule -------------------------------------------------------------------------------

int iso__daso_level_at(const iso_daso_level *level, int count, int64_t before) {
    while (count > 0 && before % level[count - 1].period != 0) count--;
    return count - 1;
}

int64_t iso__daso_level_next(const iso_daso_level *level, int count, int64_t before) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < count; i++) {
        int64_t period = level[i].period;
        next = iso__smaller(next, before + (period - before % period) % period);
    }
    return next;
}

// ---- Text -----------------------------------------------------------------------------------------

void iso__daso_levels_write(const iso_daso_level *level, int count,
                            char text[ISO__DASO_LEVELS_ROOM]) {
    size_t used = 0, room = ISO__DASO_LEVELS_ROOM;
    snprintf(text, room, "none");
    for (int i = 0; i < count && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64 ":%d", i > 0 ? "," : "",
                                 level[i].period, level[i].ranks);
}

// Returns the end of a level, or NULL.
static const char *parse_level(const char *text, iso_daso_level *out) {
    char *end;
    if (*text < '0' || *text > '9') return NULL;
    long long period = strtoll(text, &end, 10);
    if (*end != ':' || end[1] < '0' || end[1] > '9' || period > INT32_MAX) return NULL;
    long ranks = strtol(end + 1, &end, 10);
    if ((*end && *end != ',' && *end != '+') || ranks > INT32_MAX) return NULL;
    *out = (iso_daso_level){.period = period, .ranks = (int)ranks};
    return end;
}

iso_status iso_daso_levels_parse(const char *text, iso_daso_config *config) {
    iso_daso_level level[ISO_DASO_LEVELS] = {{0, 0}};
    int count = 0;
    for (const char *at = text, *end = "";; at = end + 1) {
        ISO_CHECK(count < ISO_DASO_LEVELS, ISO_ERR_ARG, "levels %s: give at most %d levels", text,
                  ISO_DASO_LEVELS);
        end = parse_level(at, &level[count++]);
        ISO_CHECK(end, ISO_ERR_ARG,
                  "levels %s: give PERIOD:RANKS for each level, separated by commas, such as "
                  "4:2,8:4",
                  text);
        if (!*end) break;
    }
    memcpy(config->level, level, sizeof(level));
    config->level_count = count;
    config->global_skip = level[0].period;
    return ISO_OK;
}

// ---- Checks ---------------------------------------------------------------------------------------

// of: what rises, "period" or "number of ranks".
static iso_status check_rise(const char *text, const char *of, int64_t before, int64_t value) {
    ISO_CHECK(value >= 1, ISO_ERR_ARG,
              "levels %s: the %s of a level is %" PRId64 ", but in PERIOD:RANKS both must be at "
              "least 1",
              text, of, value);
    ISO_CHECK(value > before, ISO_ERR_ARG,
              "levels %s: the %s must rise from level to level, and %" PRId64 " follows %" PRId64,
              text, of, value, before);
    return ISO_OK;
}

static iso_status check_groups(const iso_daso_config *c, const char *text, int ranks) {
    for (int i = 0; i < c->level_count; i++)
        ISO_CHECK(ranks % c->level[i].ranks == 0, ISO_ERR_ARG,
                  "levels %s: %d rank%s cannot be divided into groups of %d: give a divisor", text,
                  ranks, ISO_PLURAL(ranks), c->level[i].ranks);
    int last = c->level[c->level_count - 1].ranks;
    ISO_CHECK(last == ranks, ISO_ERR_ARG,
              "levels %s: the last level averages over %d rank%s, and there are %d: end with a "
              "level of all ranks",
              text, last, ISO_PLURAL(last), ranks);
    return ISO_OK;
}

static iso_status check_use(const iso_daso_config *c, const char *text) {
    ISO_CHECK(c->unit == ISO_SCOPE_RANK && c->policy == ISO_POLICY_FIXED && c->batches_to_wait >= 0,
              ISO_ERR_ARG,
              "levels %s need unit ISO_SCOPE_RANK, ISO_POLICY_FIXED and batches_to_wait of at "
              "least 0, as iso_hierarchical_sgd_config sets them",
              text);
    ISO_CHECK(c->global_skip == c->level[0].period, ISO_ERR_ARG,
              "levels %s: global_skip is %" PRId64 ", it must be the period of the first level",
              text, c->global_skip);
    return ISO_OK;
}

iso_status iso__daso_levels_check(const iso_daso_config *c, int ranks) {
    char text[ISO__DASO_LEVELS_ROOM];
    int64_t period = 0, group = 0;
    ISO_CHECK(c->level_count >= 0 && c->level_count <= ISO_DASO_LEVELS, ISO_ERR_ARG,
              "daso: level_count is %d, it must be from 1 to %d (0: no levels)", c->level_count,
              ISO_DASO_LEVELS);
    if (c->level_count == 0) return ISO_OK;
    iso__daso_levels_write(c->level, c->level_count, text);
    for (int i = 0; i < c->level_count; i++) {
        ISO_TRY(check_rise(text, "period", period, c->level[i].period));
        ISO_TRY(check_rise(text, "number of ranks", group, c->level[i].ranks));
        period = c->level[i].period;
        group = c->level[i].ranks;
    }
    ISO_TRY(check_use(c, text));
    return ranks > 0 ? check_groups(c, text, ranks) : ISO_OK;
}
