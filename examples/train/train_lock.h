// SPDX-License-Identifier: MIT
// A lock file names the process that writes to a checkpoint, or to the folder of a sweep.
#ifndef EXAMPLES_TRAIN_LOCK_H
#define EXAMPLES_TRAIN_LOCK_H

#include <isotherm/status.h>

typedef struct train_lock {
    const char *target; // what only one process at a time may write: a checkpoint or a folder
    const char *path;   // of the lock file
    const char *writer; // "training run", "sweep"
    const char *option; // the option that names the target
} train_lock;

// Local, for one process of a run, which may hold two locks. The strings must live as long as the
// lock is held. Takes the lock. ISO_ERR_STATE, naming the holder, if another writer holds it: its
// process lives and has touched the lock within a minute. Takes over a stale lock with a warning.
// From then on the thread of watch.h touches the lock every 10 seconds, and ends the program if
// another writer has taken it.
iso_status train_lock_take(const train_lock *lock);
// The number of locks that this process holds.
int train_lock_held(void);
// Releases the locks that were taken after the first `kept`.
void train_lock_release_beyond(int kept);
// Releases all locks of this process. Does nothing if none is held.
void train_lock_release(void);

#endif
