// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into one rank of a program: stops the process where it calls the
// function that STOP_AT names, and for ever. STOP_AFTER in the environment: so many calls pass
// first, of a function with at most six arguments, integers or pointers. STOP_GOES_ON: each
// time only until SIGCONT. STOP_COMPUTES: the process computes for ever instead.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#define TEXT(name)  #name
#define NAME(macro) TEXT(macro)

typedef int function(long a, long b, long c, long d, long e, long f);
function STOP_AT;

int STOP_AT(long a, long b, long c, long d, long e, long f) {
    static int calls;
    const char *pass = getenv("STOP_AFTER");
    bool passes = pass && calls++ < atoi(pass);
    static volatile unsigned long turns;
    while (!passes && getenv("STOP_COMPUTES")) turns++;
    for (bool goes_on = passes; !goes_on; goes_on = getenv("STOP_GOES_ON")) raise(SIGSTOP);
    return ((function *)dlsym(RTLD_NEXT, NAME(STOP_AT)))(a, b, c, d, e, f);
}
