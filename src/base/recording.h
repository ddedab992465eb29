// SPDX-License-Identifier: MIT
// Private to the library: what is recorded (isotherm/recorder.h has the format).
#ifndef ISO_BASE_RECORDING_H
#define ISO_BASE_RECORDING_H

#include "base/base.h"

#include <isotherm/recorder.h>
#include <stdatomic.h>

// ---- Progress -------------------------------------------------------------------------------------
// What the program began last, as static text; NULL: nothing since the thread of ISO_STEP_TIMEOUT
// took the mark away.
extern const char *_Atomic iso__alive_at;
// Training or evaluation has begun, and with it ISO_STEP_TIMEOUT.
extern atomic_bool iso__stepping;

// Thread-safe; one store. The program begins `what`. Everything that may take long in a program
// that works calls it, or waits for other ranks, or calls others that do.
static inline void iso__alive(const char *what) {
    atomic_store_explicit(&iso__alive_at, what, memory_order_relaxed);
}
// The same, of a part of a step.
static inline void iso__alive_step(const char *what) {
    iso__alive(what);
    atomic_store_explicit(&iso__stepping, true, memory_order_relaxed);
}

// ---- The ring -------------------------------------------------------------------------------------

// An event that belongs to no stream. Thread-safe, as everything that records is.
void iso__record(iso_recorder_event event, uint32_t sequence, const char *name);

// The index of a new stream for a group of ranks; group: a hash of them, not 0.
uint16_t iso__recorder_stream(uint64_t group, int rank, int size, const char *name);
// Ends recording in this stream. New streams may then take its place. The stream that was closed
// first is replaced first.
void iso__recorder_close(uint16_t stream);
// One thread at a time for each stream. sequence: the exchange's number in its stream, from 1.
void iso__record_posted(uint16_t stream, uint32_t sequence, uint64_t bytes, const char *name);
void iso__record_done(uint16_t stream, uint32_t sequence, uint64_t bytes, const char *name);
void iso__record_call(uint16_t stream, const char *name);

// Local, idempotent. Moves the recorder into a file, if ISO_RECORDER asks for one. rank, size: in
// MPI_COMM_WORLD. ISO_ERR_IO if the file cannot be made, ISO_ERR_STATE if the file's lock shows
// that a running process writes to it.
iso_status iso__recorder_open(int rank, int size);
// MPI_Finalize was called.
void iso__recorder_end(void);

#endif
