// SPDX-License-Identifier: MIT
// A lock file names the process that writes a checkpoint, or the folder of a sweep.
#ifndef EXAMPLES_TRAIN_LOCK_H
#define EXAMPLES_TRAIN_LOCK_H

#include <isotherm/status.h>

typedef struct train_lock {
    const char *target; // what one writer at a time may have, a checkpoint or a folder
    const char *path;   // of the lock file
    const char *writer; // "training run", "sweep"
    const char *option; // that gives the target
} train_lock;

// Local, for one process of a run; the strings live as long as the lock is held. Takes the lock,
// which another writer holds as long as its process lives and has touched the lock within a minute;
// a lock that is left over is taken with a warning. ISO_ERR_STATE names the holder. From then on a
// second of watch.h keeps the lock fresh, and ends the program where another writer has taken it.
iso_status train_lock_take(const train_lock *lock);
// Does nothing where no lock is held.
void train_lock_release(void);

#endif
