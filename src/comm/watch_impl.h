// SPDX-License-Identifier: MIT
// Private to the files watch_*.c and stall.c: what ranks know about each other.
#ifndef ISO_WATCH_IMPL_H
#define ISO_WATCH_IMPL_H

#include "comm/comm_state.h"
#include "comm/request.h"
#include "comm/stall.h"

enum { ISO_STREAMS = 64, ISO_HOST_ROOM = 48, ISO_WAIT_ROOM = 40 };

// What a rank shows to the ranks of its host. Only that rank writes it.
struct iso__seat {
    _Alignas(64) _Atomic int64_t beat_ns; // the thread that drives progress ran; 0: not yet
    _Atomic int64_t moved_ns;             // a collective began
    _Atomic int64_t waits_ns;             // a long wait began; 0: none
    _Atomic uint64_t waits_key;           // of its stream
    char waits_for[ISO_WAIT_ROOM];
    char doing[ISO_WAIT_ROOM]; // what the program began last (recording.h), at the last beat
    int64_t process, born;     // its id, and when it started (/proc)
    int64_t space;             // the namespace of that id; 0: not known
    bool helped;               // a helper thread beats
    struct {
        _Atomic uint64_t key, begun;
    } stream[ISO_STREAMS];
};

typedef enum iso__health {
    ISO_HEALTH_UNKNOWN, // nothing was heard
    ISO_HEALTH_WELL,
    ISO_HEALTH_STOPPED, // by a signal
    ISO_HEALTH_ENDED,
    ISO_HEALTH_SILENT // no beat
} iso__health;

// What is known of one rank, concerning one stream. Travels in answers.
typedef struct iso__fact {
    int32_t rank, health;
    uint64_t begun;   // UINT64_MAX: it does not show the stream
    int32_t beat_ms;  // since its last beat
    int32_t moved_ms; // since its last collective
    int32_t waits_ms; // since it waits; -1: it does not
    int32_t same;     // it waits in this stream
    char waits_for[ISO_WAIT_ROOM];
    char doing[ISO_WAIT_ROOM]; // "": not known
} iso__fact;

typedef struct iso__heard { // of a rank of another host
    int64_t at_ns;          // 0: never
    uint64_t key;
    iso__fact fact;
} iso__heard;

// Messages to one other host, which are still under way; MPI_REQUEST_NULL: none.
typedef struct iso__outbox {
    MPI_Request ask, answer;
    uint64_t asking[2];
} iso__outbox;

// A watch serves all communicators whose ranks it contains. It lives until MPI_Finalize.
struct iso__watch {
    uint64_t id; // the same on all its ranks
    int rank, size;
    MPI_Group group;
    MPI_Comm mpi;  // for messages between hosts; MPI_COMM_NULL: there is one host
    int *board_of; // [size] the number of each rank's board
    int boards;
    int *lowest;                 // [boards] the lowest rank of each
    char (*host)[ISO_HOST_ROOM]; // [boards] its name
    iso__seat **seat;            // [size] NULL: of another board
    void *board;
    size_t board_bytes;
    int board_ranks; // most ranks of one board
    // heard, outbox and answers are NULL until another host is first asked, or asks
    // (iso__watch_equip). inbox exists from the start if there are several boards.
    iso__heard *heard;    // [size]
    iso__outbox *outbox;  // [boards]
    char *answers;        // [boards] messages
    char *inbox;          // room for one message
    MPI_Request arriving; // the message that is under way into inbox
    size_t message_bytes;
    int64_t period_ns; // of the beat
    bool in_use;       // MPI still uses its memory, so it is never freed
    iso__watch *older; // in the engine's list
};

void iso__watch_free(iso__watch *watch); // accepts NULL

static inline const char *iso__watch_host(const iso__watch *w, int rank) {
    return w->host[w->board_of[rank]];
}
// With the engine's lock. Makes what messages between hosts need. Returns false if there is no
// memory.
bool iso__watch_equip(iso__watch *watch);
// With the engine's lock: asks another board about a stream, through its rank number `turn`.
void iso__watch_ask(iso__watch *watch, int board, int turn, uint64_t key);
// What the seat of a rank of this board shows.
iso__fact iso__seat_read(const iso__watch *watch, int rank, uint64_t key, int64_t now_ns);
// The moment at which a process was started, in clock ticks since boot, and its state (as in ps);
// -1: there is no such process.
int64_t iso__process_born(int64_t process, char *state);

#endif
