// SPDX-License-Identifier: MIT
// Private to src/comm: finds out which ranks keep the others waiting.
//
// Every rank counts the collectives that it begins, for each group of ranks that call collectives
// in one order (a stream). The ranks of a host show each other these counts on boards in shared
// memory, with a beat, which the thread that drives progress renews. A rank that has waited for
// long compares the counts with its own: a rank whose count is lower has not arrived. It asks other
// hosts by messages, shortly before it reports; any rank of a host answers for all of them. Without
// a long wait nothing is sent.
#ifndef ISO_STALL_H
#define ISO_STALL_H

#include <isotherm/comm.h>
#include <mpi.h>
#include <stdatomic.h>

struct iso__engine;
typedef struct iso__watch iso__watch;
typedef struct iso__seat iso__seat;

// Collectives that all ranks of a group begin in the same order.
typedef struct iso__stream {
    uint64_t key;            // the same on all its ranks; 0: not shown to other ranks
    uint64_t begun;          // on this rank
    iso__seat *seat;         // this rank's
    _Atomic uint64_t *shown; // where the seat shows `begun`
    uint16_t record;         // its index in the flight recorder
    bool recorded;           // it has one
} iso__stream;

// ---- watch_make.c, watch_seat.c ----
// Collective. Gives comm a watch over its ranks, which it shares with other communicators, and
// opens its streams. mine: the status of this rank so far; if it is an error, every rank returns
// it.
iso_status iso__watch_join(iso_comm *comm, iso_status mine);
// Local; with the engine's lock. A stream without room on the board stays invisible.
void iso__stream_open(iso__watch *watch, iso__stream *stream, uint64_t key);
void iso__stream_close(iso__stream *stream);
// Counts a collective that begins now. Returns its number, from 0.
uint64_t iso__stream_count(iso__stream *stream, int64_t now_ns);
// Frees all watches of the engine, after iso__watch_quit.
void iso__watch_free_all(struct iso__engine *engine);

// ---- watch_ask.c; with the engine's lock ----
// Renews this rank's beat, and answers what other hosts ask.
void iso__watch_pump(struct iso__engine *engine, int64_t now_ns);
// The same, unless that happened within the period of the beat.
void iso__watch_poll(struct iso__engine *engine);
// Before MPI is finalised: gives up what is under way.
void iso__watch_quit(struct iso__engine *engine);

// ---- stall.c ----
// A wait that warns when it is long.
typedef struct iso__patience {
    iso_comm *comm;
    const iso__stream *stream; // NULL: which ranks have arrived is not known
    const char *what;          // "a barrier"; the name of an exchange
    bool exchange;
    int64_t next_ns;  // call iso__patience_tick when it has waited for so long
    int64_t warn_ns;  // when the next warning is due; 0: never
    int64_t asked_ns; // when other hosts were first asked before this report
    int asked;
    bool shown;   // on the board
    bool endless; // the wait has no time limit, and never warns
    // Of a wait outside MPI. under_way: the number of collectives of the stream under way. The wait
    // is for the oldest one (0: see stall.c). apart: the thread must not call MPI, so it asks no
    // other host.
    int under_way;
    bool apart;
} iso__patience;

iso__patience iso__patience_begin(iso_comm *comm, const iso__stream *stream, const char *what);
// With the engine's lock. Does what is due after so long a wait: asks other hosts, or warns.
void iso__patience_tick(iso__patience *patience, int64_t waited_ns);
void iso__patience_end(iso__patience *patience); // with the engine's lock
// The same without the lock.
void iso__patience_tick_unlocked(iso__patience *patience, int64_t waited_ns);
void iso__patience_end_unlocked(iso__patience *patience);
// With the engine's lock. Who is missing, as a clause: "rank 4 on node2 is stopped"; where nothing
// is known, that another rank is stuck.
const char *iso__patience_verdict(const iso__patience *patience, char *text, size_t room);
const char *iso__patience_verdict_unlocked(const iso__patience *patience, char *text, size_t room);
// "rank 3 of 4": this rank as verdicts number it, which is not its number in a node's communicator.
enum { ISO_SELF_ROOM = 40 };
const char *iso__comm_self_text(const iso_comm *comm, char text[ISO_SELF_ROOM]);

#endif
