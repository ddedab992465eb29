// SPDX-License-Identifier: MIT
// A process that outlives this one, and ends a launcher on this host that does not end by itself:
// Open MPI's mpirun waits for ever for its daemon on a host that it cannot reach any more.
#ifndef EXAMPLES_WATCHDOG_H
#define EXAMPLES_WATCHDOG_H

#include <stddef.h>

// Call it first in main, while there is one thread. If ISO_WATCHDOG is set to a number of seconds
// above 0, and this process descends from a launcher on this host, starts the watchdog: if this
// process ends without watchdog_end, and the launcher still lives so many seconds later, the
// watchdog ends it: by SIGTERM and, 3 s later, by SIGKILL. Then it says so on the standard error of
// the launcher. It signals no other process: a launcher is known by its pid and the time at which
// it was started.
void watchdog_start(const char *program);
// Call it after MPI_Finalize: the watchdog leaves.
void watchdog_end(void);
// For the message of a rank that has waited in vain: writes a clause that says what happens to a
// launcher that goes on after MPI_Abort: what the watchdog does, or what the user should do.
void watchdog_outlook(char *text, size_t room);

#endif
