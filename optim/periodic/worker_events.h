// SPDX-License-Identifier: MIT
// Private to optim: what a worker of a parameter server did in the course of time. It is noted if
// some rank wants to be told, and done again in a run that repeats another one.
#ifndef ISO_WORKER_EVENTS_H
#define ISO_WORKER_EVENTS_H

#include "optim/periodic/periodic.h"

// `actions` of iso_daso_change is a sum: SERVED or MERGED, plus MEETING if ranks met after the
// step, plus ISO__EVENT_RANKS times the other rank.
enum {
    ISO__EVENT_SERVED = 1,  // the push of the other rank
    ISO__EVENT_MERGED = 2,  // the other rank's answer
    ISO__EVENT_MEETING = 4, // where ranks meet, before their last pushes
    ISO__EVENT_RANKS = 8
};

typedef struct iso__event {
    int64_t step, actions;
} iso__event;

typedef struct iso__events {
    bool noted;
    iso__event *done; // in their order, since they were last told
    size_t count, room;
    iso_status status;              // of noting one
    iso__event *again;              // of this rank, in their order; NULL: nothing is repeated
    size_t again_count, again_next; // the next one to do
    void (*changed)(const iso_daso_change *change, void *user);
    void *changed_user;
} iso__events;

// Local; then agree, which is collective. ISO_ERR_ARG for changes that no worker can have made.
iso_status iso__events_open(iso__events *events, const iso_daso_config *config,
                            const iso__periodic *p);
iso_status iso__events_agree(iso__events *events, const iso__periodic *p);
void iso__events_close(iso__events *events);
// The run goes on after this step.
void iso__events_continue(iso__events *events, int64_t step);

static inline bool iso__events_repeat(const iso__events *events) { return events->again != NULL; }
// Takes the next event that is to be repeated in this step, or where ranks meet after it.
bool iso__events_next(iso__events *events, int64_t step, bool meets, int *rank, int *kind);
// A list that is full grows, so the first part of a run may allocate.
void iso__events_add(iso__events *events, int64_t step, int rank, int kind);
// Collective. Tells rank 0's `changed` what all ranks did since the last call.
iso_status iso__events_tell(iso__events *events, const iso__periodic *p);

#endif
