// SPDX-License-Identifier: MIT
// Private to the library: what a rank does while it waits for others.
#ifndef ISO_COMM_IDLE_H
#define ISO_COMM_IDLE_H

#include <stdbool.h>

typedef struct iso__idle {
    bool (*call)(void *user); // returns whether it did something; NULL: nothing is to be done
    void *user;
    bool endless; // the rank is there for this: the wait has no time limit, and warns of nothing
} iso__idle;

#endif
