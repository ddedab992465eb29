// SPDX-License-Identifier: MIT
// A thread that ends the program if a wait inside MPI takes too long, and when a signal asks for
// it.
#ifndef EXAMPLES_WATCH_H
#define EXAMPLES_WATCH_H

#include <stdbool.h>

// Starts the thread. From here on it receives SIGINT, SIGTERM, SIGUSR1 and SIGUSR2, which end the
// program with exit code 128 + signal. Call it first in main, because threads that exist already
// would still receive the signals.
void watch_start(const char *program);
// ISO_TIMEOUT in seconds, or its default; 0: waits have no limit.
double watch_timeout(void);
// Call it before a wait in `what` ("MPI_Finalize"), and with NULL after it. If the wait lasts
// longer than ISO_TIMEOUT, and at least a second, the program ends with a message and exit code 1.
void watch_limit(const char *what);
// Set functions that the thread calls (NULL: none). watch_every_second: every second.
// watch_farewell: when a signal ends the program. watch_at_end: once, before the thread ends the
// program or when watch_clean is called.
void watch_every_second(void (*call)(void));
// Sets a function that the thread calls on a signal, before anything else (NULL: none). If it
// returns true, the program goes on.
void watch_stop(bool (*call)(int signal));
void watch_farewell(void (*call)(int signal));
// Whether the last signal came from the launcher (mpirun, orted), which is this rank's parent.
bool watch_by_launcher(void);
void watch_at_end(void (*call)(void));
// Sets a function that the thread calls right before it ends the program, after the function of
// watch_at_end; watch_clean does not call it.
void watch_at_exit(void (*call)(void));
// Calls the function of watch_at_end. Call it before the program ends without the thread.
void watch_clean(void);

#endif
