// SPDX-License-Identifier: MIT
// Private to the library: what a rank does while it waits for others.
#ifndef ISO_COMM_IDLE_H
#define ISO_COMM_IDLE_H

#include <stdbool.h>

typedef struct iso__idle {
    bool (*call)(void *user); // returns whether it did something; NULL: nothing is to be done
    void *user;
    bool endless; // the rank's only work is to wait: its waits have no time limit and never warn
} iso__idle;

#endif
