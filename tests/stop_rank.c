// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into one rank of a program: stops the process where it calls the
// function that STOP_AT names, and for ever.
#include <signal.h>

int STOP_AT(void);

int STOP_AT(void) {
    for (;;) raise(SIGSTOP);
}
