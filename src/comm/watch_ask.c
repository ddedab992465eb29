// SPDX-License-Identifier: MIT
// The beat of this rank, and messages between hosts: a rank asks about a stream, and any rank of
// another host answers for all ranks of that host. All functions need the engine's lock.
#include "base/recording.h"
#include "comm/watch_impl.h"

#include <isotherm/trace.h>
#include <stdio.h>
#include <string.h>

enum { TAG = 1, MOST_AT_ONCE = 256 };

// Whether a message has left or arrived, so that its memory may be written again.
static bool has_left(MPI_Request *request) {
    int done = 1;
    if (*request != MPI_REQUEST_NULL) MPI_Test(request, &done, MPI_STATUS_IGNORE);
    return done;
}

// The rank of a board with the number `turn` modulo the number of the board's ranks.
static int choose_rank(const iso__watch *w, int board, int turn) {
    int ranks = 0, rank = w->lowest[board];
    for (int r = 0; r < w->size; r++) ranks += w->board_of[r] == board;
    for (turn %= ranks; turn > 0; turn--)
        for (rank++; w->board_of[rank] != board;) rank++;
    return rank;
}

static bool make_boxes(iso__watch *w) {
    size_t n = (size_t)w->boards;
    return iso__alloc_zero((size_t)w->size * sizeof(*w->heard), (void **)&w->heard) == ISO_OK &&
           iso__alloc_zero(n * w->message_bytes, (void **)&w->answers) == ISO_OK &&
           iso__alloc_zero(n * sizeof(*w->outbox), (void **)&w->outbox) == ISO_OK;
}

bool iso__watch_equip(iso__watch *w) {
    if (w->outbox) return true;
    bool made = make_boxes(w);
    for (int b = 0; made && b < w->boards; b++)
        w->outbox[b].ask = w->outbox[b].answer = MPI_REQUEST_NULL;
    if (made) return true;
    iso__free(w->heard);
    iso__free(w->answers);
    w->heard = NULL;
    w->answers = NULL;
    return false;
}

void iso__watch_ask(iso__watch *w, int board, int turn, uint64_t key) {
    iso__outbox *box = &w->outbox[board];
    if (!has_left(&box->ask)) return; // the host does not even take the last question
    box->asking[0] = 0;
    box->asking[1] = key;
    if (MPI_Isend(box->asking, sizeof(box->asking), MPI_BYTE, choose_rank(w, board, turn), TAG,
                  w->mpi, &box->ask) != MPI_SUCCESS)
        box->ask = MPI_REQUEST_NULL;
}

// An answer begins with the number of its facts, and the key.
static void send_answer(iso__watch *w, int to, uint64_t key, int64_t now_ns) {
    int board = w->board_of[to];
    iso__outbox *box = &w->outbox[board];
    uint64_t head[2] = {0, key};
    if (!has_left(&box->answer)) return; // it will ask again
    char *answer = w->answers + (size_t)board * w->message_bytes, *end = answer + sizeof(head);
    for (int r = 0; r < w->size; r++) {
        if (!w->seat[r]) continue;
        iso__fact fact = iso__seat_read(w, r, key, now_ns);
        memcpy(end, &fact, sizeof(fact));
        end += sizeof(fact);
        head[0]++;
    }
    memcpy(answer, head, sizeof(head));
    if (MPI_Isend(answer, (int)(end - answer), MPI_BYTE, to, TAG, w->mpi, &box->answer) !=
        MPI_SUCCESS)
        box->answer = MPI_REQUEST_NULL;
}

static void keep_facts(iso__watch *w, const uint64_t *head, size_t bytes, int64_t now_ns) {
    for (uint64_t i = 0; i < head[0] && 16 + (i + 1) * sizeof(iso__fact) <= bytes; i++) {
        iso__fact fact;
        memcpy(&fact, w->inbox + 16 + i * sizeof(fact), sizeof(fact));
        if (fact.rank < 0 || fact.rank >= w->size) continue;
        fact.waits_for[ISO_WAIT_ROOM - 1] = fact.doing[ISO_WAIT_ROOM - 1] = 0;
        w->heard[fact.rank] = (iso__heard){.at_ns = now_ns, .key = head[1], .fact = fact};
    }
}

// Begins to receive a message. Returns false if there is none.
static bool begin_message(iso__watch *w) {
    int there = 0;
    MPI_Message message;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, TAG, w->mpi, &there, &message, &status) != MPI_SUCCESS ||
        !there)
        return false;
    if (MPI_Imrecv(w->inbox, (int)w->message_bytes, MPI_BYTE, &message, &w->arriving) ==
        MPI_SUCCESS)
        return true;
    w->arriving = MPI_REQUEST_NULL;
    return false;
}

// Takes one message. Returns false if none has arrived completely. It does not wait for the rest of
// a message: the sender may have to make progress first, and may be stuck.
static bool take_message(iso__watch *w, int64_t now_ns) {
    int done = 0, bytes = 0;
    uint64_t head[2];
    MPI_Status status;
    if (w->arriving == MPI_REQUEST_NULL && !begin_message(w)) return false;
    if (MPI_Test(&w->arriving, &done, &status) != MPI_SUCCESS || !done) return false;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    memcpy(head, w->inbox, sizeof(head));
    if (!iso__watch_equip(w)) return true; // forgotten: whoever asks, asks again
    if (head[0] == 0)
        send_answer(w, status.MPI_SOURCE, head[1], now_ns);
    else
        keep_facts(w, head, (size_t)bytes, now_ns);
    return true;
}

// Shows the ranks that wait for this one what its program does. If there is no mark, the last one
// stays: the thread of ISO_STEP_TIMEOUT removes marks.
static void show_beat(iso__seat *own, int64_t now_ns) {
    const char *mark = atomic_load_explicit(&iso__alive_at, memory_order_relaxed);
    if (mark && strcmp(own->doing, mark) != 0) snprintf(own->doing, sizeof(own->doing), "%s", mark);
    atomic_store_explicit(&own->beat_ns, now_ns, memory_order_relaxed);
}

void iso__watch_pump(iso__engine *engine, int64_t now_ns) {
    engine->beaten_ns = now_ns;
    if (engine->finalized) return;
    for (iso__watch *w = engine->watches; w; w = w->older) {
        show_beat(w->seat[w->rank], now_ns);
        for (int i = 0; w->mpi != MPI_COMM_NULL && i < MOST_AT_ONCE; i++)
            if (!take_message(w, now_ns)) break;
    }
}

void iso__watch_poll(iso__engine *engine) {
    if (!engine->watches) return;
    int64_t now = iso_now();
    if (now - engine->beaten_ns >= engine->beat_ns) iso__watch_pump(engine, now);
}

void iso__watch_quit(iso__engine *engine) {
    for (iso__watch *w = engine->watches; w; w = w->older) {
        MPI_Group_free(&w->group);
        w->in_use = w->in_use || !has_left(&w->arriving);
        for (int b = 0; w->outbox && b < w->boards; b++) {
            bool asked = has_left(&w->outbox[b].ask), answered = has_left(&w->outbox[b].answer);
            w->in_use = w->in_use || !asked || !answered;
        }
    }
}
