// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into one rank of a program: makes the function that SLOW_AT names, of
// up to four integers or pointers, take SLOW_MS longer.
#define _GNU_SOURCE // RTLD_NEXT
#include <dlfcn.h>
#include <string.h>
#include <time.h>

#define TEXT_OF(name) TEXT(name)
#define TEXT(name)    #name

int SLOW_AT(void *a, void *b, void *c, void *d);

int SLOW_AT(void *a, void *b, void *c, void *d) {
    int (*real)(void *, void *, void *, void *);
    void *found = dlsym(RTLD_NEXT, TEXT_OF(SLOW_AT));
    memcpy(&real, &found, sizeof(real));
    nanosleep(&(struct timespec){SLOW_MS / 1000, SLOW_MS % 1000 * 1000000L}, NULL);
    return real(a, b, c, d);
}
