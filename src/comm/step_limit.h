// SPDX-License-Identifier: MIT
// Private to src/comm: ends a process whose program makes no progress (ISO_STEP_TIMEOUT).
#ifndef ISO_STEP_LIMIT_H
#define ISO_STEP_LIMIT_H

#include "base/base.h"

// What is known of the program's progress.
typedef struct iso__step_limit {
    double limit_s;
    int64_t period_ns; // between two looks
    int64_t idle_ns;   // without progress so far
    const char *last;  // the operation that was marked last; static text
} iso__step_limit;

void iso__step_limit_set(iso__step_limit *limit, double seconds);
// Removes the mark that iso__alive has left since the last look. passed_ns: the time since then.
// Returns whether the program has made no progress for limit_s since its first step began. A late
// look counts as two periods at most, because the whole process was stopped or had no processor.
bool iso__step_limit_look(iso__step_limit *limit, int64_t passed_ns);

// Starts a thread that watches the calling thread's program, if ISO_STEP_TIMEOUT asks for it. The
// thread needs no MPI and takes no lock of the library. Once a process.
iso_status iso__step_limit_start(void);
void iso__step_limit_stop(void);

#endif
