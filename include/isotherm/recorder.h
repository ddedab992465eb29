// SPDX-License-Identifier: MIT
// The flight recorder: the last operations of every rank, for an analysis after the job has ended.
//
// Each process records its exchanges and waits in a ring of ISO_RECORDER_RECORDS entries. Recording
// is always on, allocates nothing, and takes less than 100 ns an entry. If the environment
// variable ISO_RECORDER names a folder, the ring lies in a file there, which the first
// iso_comm_create makes: FOLDER/rank-N.rec. The operating system keeps the file whatever ends the
// process, SIGKILL included. iso-postmortem FOLDER reads the files of all ranks. The structs below
// are the format of the file, in the byte order of the machine.
#ifndef ISOTHERM_RECORDER_H
#define ISOTHERM_RECORDER_H

#include <isotherm/status.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISO_RECORDER_MAGIC "isorec01" // 8 characters, without the terminating zero
// "make fuzz" tries shorter records.
#ifndef ISO_RECORDER_RECORDS
#define ISO_RECORDER_RECORDS 4096
#endif
#ifndef ISO_RECORDER_STREAMS
#define ISO_RECORDER_STREAMS 128
#endif
enum { ISO_RECORDER_TEXT = 512 };

typedef enum iso_recorder_event {
    ISO_RECORDER_POSTED = 1, // this rank has joined an exchange
    ISO_RECORDER_DONE,       // the exchange is complete on this rank
    ISO_RECORDER_CALL,       // this rank has called a blocking collective
    ISO_RECORDER_WAIT,       // the program begins to wait for what `name` says
    ISO_RECORDER_WOKE,       // that wait has ended
    ISO_RECORDER_NOTE,       // iso_recorder_note; sequence: its number
    ISO_RECORDER_ERROR,      // an error was reported; sequence: its iso_status, negated
    ISO_RECORDER_WARN        // a wait is long; name: who is missing; sequence: seconds so far
} iso_recorder_event;

// One entry of the ring, of 64 bytes.
typedef struct iso_recorder_entry {
    uint64_t number;   // 1, 2, 3, ... of the process; written last. Entry n is at (n - 1) modulo
                       // ISO_RECORDER_RECORDS. Another number: the entry is incomplete
    int64_t time_ns;   // since 1970
    uint64_t bytes;    // POSTED and DONE: of this rank
    uint32_t sequence; // POSTED, DONE, CALL: counts the stream from 1
    uint16_t event;    // iso_recorder_event
    uint16_t stream;   // POSTED, DONE, CALL: index into the streams; the last index stands for all
                       // that did not fit
    char name[32];     // of the bucket, layer or call, zero-terminated
} iso_recorder_entry;

// Operations that the ranks of a group start in the same order: entry `sequence` of a stream is the
// same operation on all of them. Streams of different processes correspond if group and ordinal are
// equal. A stream stays when its communicator is destroyed, until another one needs its place;
// those that find no room share the last place, and cannot be compared.
typedef struct iso_recorder_stream {
    uint64_t group;                // a hash of the ranks in MPI_COMM_WORLD; 0: the entry is unused
    uint32_t ordinal;              // counts the streams of the group in the process, from 0
    int32_t rank, size;            // in the group
    uint32_t posted, done, called; // the last sequence numbers
    uint64_t since; // entries up to this number belong to an earlier stream at this place
    char name[32];  // "exchanges and calls" of a communicator, or "channel"
} iso_recorder_stream;

// The file. Behind this struct follows text: stacks of the process, from execinfo.h.
typedef struct iso_recorder_file {
    char magic[8];
    uint32_t bytes;     // sizeof(iso_recorder_file): the version of the format
    int32_t rank, size; // in MPI_COMM_WORLD
    int32_t pid;
    int32_t failed_code; // of reason: an iso_status (< 0), or the number of a signal (> 0)
    int64_t started_ns;  // since 1970
    int64_t ended_ns;    // MPI_Finalize was called; 0: it was not
    int64_t failed_ns;   // reason was written; 0: it was not
    uint64_t job;        // equal for all ranks of a job
    uint64_t count;      // entries recorded so far
    char host[64];
    char reason[ISO_RECORDER_TEXT]; // the first time-out, fatal signal or iso_recorder_fail
    iso_recorder_stream stream[ISO_RECORDER_STREAMS];
    iso_recorder_entry entry[ISO_RECORDER_RECORDS];
} iso_recorder_file;

// Thread-safe, local. Records a text and a number, such as "step" and the number of the step.
// iso-postmortem prints the last note of each rank. Counts as progress of the program: without
// progress for ISO_STEP_TIMEOUT seconds, the process ends (docs/cluster.md).
void iso_recorder_note(const char *text, uint32_t number);

// Thread-safe, local. The program begins to wait for other ranks in a call of its own, and the wait
// has ended. what: as in "the barrier after an epoch"; the first 31 characters count.
void iso_recorder_wait(const char *what);
void iso_recorder_woke(const char *what);

// Thread-safe, local. Records why the program is about to end, and the stack of the calling thread.
// The first reason stays, except that another reason replaces a time-out. The library calls this
// function at a time-out (ISO_ERR_TIMEOUT), and when ISO_STEP_TIMEOUT ends the process. If
// ISO_RECORDER is set, the library also records SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, and
// then runs the previous handler of the signal.
void iso_recorder_fail(iso_status status, const char *reason);

// Local. The recorder's memory: a file's, if ISO_RECORDER is set and a communicator was made.
const iso_recorder_file *iso_recorder_memory(void);

#ifdef __cplusplus
}
#endif
#endif
