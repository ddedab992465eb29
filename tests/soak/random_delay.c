// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into the ranks of a program: makes a batch in a thousand come up to
// DELAY_MS later (30), on each rank other ones.
#define _GNU_SOURCE // RTLD_NEXT
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int iso_loader_next(void *loader, void *batch);

// xorshift64: the program's own random numbers stay as they are
static uint64_t draw_number(void) {
    static uint64_t state;
    if (state == 0) state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int iso_loader_next(void *loader, void *batch) {
    int (*real)(void *, void *);
    void *found = dlsym(RTLD_NEXT, "iso_loader_next");
    const char *text = getenv("DELAY_MS");
    long most = text ? atol(text) : 30;
    memcpy(&real, &found, sizeof(real));
    if (most > 0 && draw_number() % 1000 == 0) {
        long delay = (long)(draw_number() % (uint64_t)most);
        nanosleep(&(struct timespec){delay / 1000, delay % 1000 * 1000000}, NULL);
    }
    return real(loader, batch);
}
