// SPDX-License-Identifier: MIT
// Tournaments in which some parameters stay with their trainer. See isotherm/tournament.h.
//
// A model travels as a whole. What stays is put back into it before it is tried.
#include "optim/periodic/periodic.h"

#include "parallel/parallel_impl.h"

#include <string.h>

enum { MOST_PATTERNS = 64 };

// Whether the name has the form of a pattern, in which '*' stands for any characters.
static bool has_form(const char *name, const char *pattern, size_t length) {
    const char *end = pattern + length, *behind = NULL,
               *from = NULL; // after the last '*'; where its match ends
    while (*name) {
        if (pattern < end && *pattern == '*') {
            behind = ++pattern;
            from = name;
        } else if (pattern < end && *pattern == *name) {
            pattern++;
            name++;
        } else if (behind) {
            pattern = behind;
            name = ++from;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

// Whether the parameter or buffer of this name moves. Marks the patterns that it matches.
static bool is_moving(const iso_tournament *t, const char *name, uint64_t *matched) {
    bool any = false;
    const char *at = t->weights;
    if (!at) return t->moves(name, t->user);
    for (int i = 0; i < MOST_PATTERNS; i++) {
        size_t length = strcspn(at, ",");
        if (has_form(name, at, length)) {
            *matched |= (uint64_t)1 << i;
            any = true;
        }
        if (!at[length]) return any;
        at += length + 1;
    }
    return any;
}

// Each pattern must have matched a name, or it is a mistake.
static iso_status check_patterns(const iso_tournament *t, uint64_t matched) {
    const char *at = t->weights;
    for (int i = 0; at; i++) {
        size_t length = strcspn(at, ",");
        ISO_CHECK(i < MOST_PATTERNS, ISO_ERR_ARG,
                  "`weights` of a tournament has more than %d patterns: use '*' in fewer",
                  MOST_PATTERNS);
        ISO_CHECK(matched >> i & 1, ISO_ERR_ARG,
                  "no parameter or buffer has a name like \"%.*s\", one of the `weights` of a "
                  "tournament",
                  (int)length, at);
        at = at[length] ? at + length + 1 : NULL;
    }
    return ISO_OK;
}

static void add_piece(iso__periodic *p, size_t at, size_t bytes) {
    p->match.stays[p->match.stay_count++] = (iso__stay){at, bytes};
}

// Keeps parameter i, and its part of each optimizer state that travels.
static void keep_parameter(iso__periodic *p, const size_t *place, int last, int i) {
    int slot = p->span[i].slot, first = p->parameter_count + p->buffer_count;
    size_t bytes = iso__span_bytes(&p->span[i]);
    p->match.own_state[slot] = true;
    add_piece(p, place[i], bytes);
    // Each state has a span for each slot.
    for (int k = first + slot; k < last; k += p->parameter_count) add_piece(p, place[k], bytes);
}

// Keeps the buffers that stay. Only those of f32 and f64 are spans.
static void keep_buffers(iso__periodic *p, const size_t *place, const iso_buffer_list *buffers,
                         uint64_t *matched) {
    const iso_tournament *t = p->config.tournament;
    for (int i = 0, span = p->parameter_count; i < buffers->count; i++) {
        if (buffers->item[i]->value->dtype == ISO_I64) continue;
        bool moves = is_moving(t, buffers->name[i], matched);
        if (!moves && span < p->exchange[0].last)
            add_piece(p, place[span], iso__span_bytes(&p->span[span]));
        span++;
    }
}

static iso_status choose_pieces(iso__periodic *p, size_t *place, const iso_buffer_list *buffers) {
    const iso_tournament *t = p->config.tournament;
    const iso__slot *slot = iso__optimizer_innermost(p->inner)->slot;
    int last = p->exchange[0].last, moving = 0;
    uint64_t matched = 0;
    iso__flat_cursor next = iso__flat_begin(iso__periodic_flat(p, 0, last));
    for (int i = 0; i < last; i++) place[i] = iso__flat_next(&next, &p->span[i]);
    for (int i = 0; i < p->parameter_count; i++) {
        bool moves = is_moving(t, slot[p->span[i].slot].name, &matched);
        moving += moves;
        if (!moves) keep_parameter(p, place, last, i);
    }
    keep_buffers(p, place, buffers, &matched);
    ISO_TRY(check_patterns(t, matched));
    ISO_CHECK(moving > 0, ISO_ERR_ARG,
              "a tournament lets none of %d parameters move: choose at least one in %s",
              p->parameter_count, t->weights ? "`weights`" : "`moves`");
    return ISO_OK;
}

iso_status iso__match_choice_open(iso__periodic *p, uint64_t *hash) {
    size_t *place = NULL;
    size_t most = (size_t)(p->parameter_count * (1 + ISO_OPTIMIZER_STATES) + p->buffer_count);
    if (!p->config.tournament->moves && !p->config.tournament->weights) return ISO_OK;
    ISO_TRY(iso__alloc_zero(most * sizeof(iso__stay), (void **)&p->match.stays));
    ISO_TRY(iso__alloc_zero((size_t)p->parameter_count, (void **)&p->match.own_state));
    ISO_TRY(iso__alloc_zero((size_t)p->span_count * sizeof(*place), (void **)&place));
    iso_status status = choose_pieces(p, place, iso__data_parallel_buffers(p->data_parallel)->list);
    iso__free(place);
    ISO_TRY(status);
    *hash = iso__hash(ISO_HASH_START, p->match.stays,
                      (size_t)p->match.stay_count * sizeof(*p->match.stays));
    return ISO_OK;
}

void iso__match_choice_close(iso__periodic *p) {
    iso__free(p->match.stays);
    iso__free(p->match.own_state);
}

void iso__match_choice_keep(const iso__periodic *p, float *model, const float *own) {
    for (int i = 0; i < p->match.stay_count; i++) {
        const iso__stay *piece = &p->match.stays[i];
        memcpy((char *)model + piece->at, (const char *)own + piece->at, piece->bytes);
    }
}
