// SPDX-License-Identifier: MIT
// The flight records of a job (isotherm/recorder.h), and what they say about its end.
#ifndef EXAMPLES_POSTMORTEM_H
#define EXAMPLES_POSTMORTEM_H

#include <isotherm/recorder.h>
#include <stdio.h>

// What one rank has left.
typedef struct process {
    iso_recorder_file *file;
    char *stacks;    // the text behind it
    char live;       // state of its process, as in ps; 'X': it has ended; 0: not known
    int64_t last_ns; // when the last entry was written; the start, if there is none
    uint32_t started[ISO_RECORDER_STREAMS][2]; // exchanges and blocking collectives of a stream
    iso_recorder_entry waiting;                // event 0: the rank does not wait
    iso_recorder_entry note;                   // event 0: none
} process;

typedef struct job {
    int size;      // ranks
    process *rank; // [size]; file is NULL where there is no record
    int found;     // ranks that have one
    // The first failure of a rank. Without one: now if the job runs, else the newest time in any
    // record. What ranks did later does not count: mpirun may continue a stopped rank in order to
    // end it.
    int64_t end_ns;
    bool runs; // a process of it lives on this host
} job;

// Reads all records of a folder; prints a warning for each that cannot be used. If there are
// records of several jobs, those of the job that started last count. ISO_ERR_IO with a message if
// there is none. The records belong to *out; job_free frees them.
iso_status job_read(const char *folder, job *out);
void job_free(job *j);
// Entry number n of a process; NULL if it was overwritten, or is incomplete.
const iso_recorder_entry *job_entry(const process *p, uint64_t n);
// Whether the entry belongs to the stream that is at its place now, not to an earlier one.
bool job_is_of_stream(const process *p, const iso_recorder_entry *e);

// An operation that ranks of a group have not started in the same order.
typedef struct divergence {
    uint32_t ordinal, sequence;
    bool call; // a blocking collective, not an exchange
    int a, b;  // ranks
    const iso_recorder_entry *of_a, *of_b;
} divergence;
// The first in time. Returns whether there is one.
bool job_diverges(const job *j, divergence *out);

// A rank that has started less of a stream than another.
typedef struct gap {
    int rank, ahead;               // ahead: a rank that has started the most
    uint16_t stream, stream_ahead; // indices on the two ranks
    bool call;
    uint32_t started, most;
} gap;
// The gap of a rank that has lasted longest; of equal ones, that in calls. false: there is none.
bool job_gap(const job *j, int rank, gap *out);

// The entry with this sequence number; NULL if it is not among those kept.
const iso_recorder_entry *job_find(const process *p, uint16_t stream, bool call, uint32_t sequence);

// Prints the analysis, the stacks of all ranks that left one, or the entries of one rank, the
// oldest first.
void job_print(const job *j, FILE *to);
void job_print_stacks(const job *j, FILE *to);
void job_print_entries(const process *p, FILE *to);

#endif
