// SPDX-License-Identifier: MIT
// The lock of a checkpoint: FILE.lock beside it names the training run that writes it.
#ifndef EXAMPLES_TRAIN_LOCK_H
#define EXAMPLES_TRAIN_LOCK_H

#include <isotherm/status.h>

// Local, for one process of a run. Takes the lock of the checkpoint at path, which another run
// holds as long as its process lives and has touched the lock within a minute; a lock that is left
// over is taken with a warning. ISO_ERR_STATE names the holder. From then on a second of watch.h
// keeps the lock fresh, and ends the program where another run has taken it.
iso_status train_lock_take(const char *path);
// Does nothing where no lock is held.
void train_lock_release(void);

#endif
