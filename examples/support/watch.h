// SPDX-License-Identifier: MIT
// A thread beside a program: ends it where a wait inside MPI has no limit of its own, and when the
// system tells it to stop.
#ifndef EXAMPLES_WATCH_H
#define EXAMPLES_WATCH_H

// Starts the thread, which from here on receives SIGINT and SIGTERM: they end the program with the
// exit code 128 + signal. Call it first in main: threads that are there already would still receive
// the signals.
void watch_start(const char *program);
// ISO_TIMEOUT in seconds, or its default; 0: waits have no limit.
double watch_timeout(void);
// From here on the program waits in `what` ("MPI_Finalize"; NULL: it waits no longer). If that
// lasts longer than ISO_TIMEOUT, and at least a second, it ends with a sentence and the exit
// code 1.
void watch_limit(const char *what);
// What else the thread does, each as a function that may be NULL: `every_second`; `farewell` when a
// signal ends the program; `at_end` before the thread or watch_clean ends it.
void watch_every_second(void (*call)(void));
void watch_farewell(void (*call)(int signal));
void watch_at_end(void (*call)(void));
// What the thread calls last, right before it ends the program: nothing of that comes after it but
// what the main thread does within microseconds.
void watch_at_exit(void (*call)(void));
// Calls what was given to watch_at_end; the program is about to end without it.
void watch_clean(void);

#endif
