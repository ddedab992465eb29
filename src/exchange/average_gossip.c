// SPDX-License-Identifier: MIT
// Gossip instead of a mean over nodes: which ranks average with each other, and the copies of each
// other's values that they keep if differences travel.
#include "exchange/average_impl.h"

#include "comm/comm_calls.h"

#include <math.h>
#include <string.h>

// ---- Whom it averages with ------------------------------------------------------------------------

int iso__average_turns(const iso__average *a) {
    int rounds = 1, ranks = a->layout->nodes;
    if (a->config.kind == ISO__GOSSIP_PAIRS) return (ranks + 1) / 2;
    if (a->config.kind == ISO__GOSSIP_RING) return ranks > 2 ? 2 : 1;
    while (rounds < 30 && 1 << rounds < ranks) rounds++;
    return rounds;
}

// ceil(log2 P) distances take turns.
static iso__average_peers choose_next(int turn, int rank, int ranks) {
    int distance = (1 << turn) % ranks;
    return (iso__average_peers){(rank + distance) % ranks, (rank - distance + ranks) % ranks};
}

// Up and down the ring.
static iso__average_peers choose_neighbour(int turn, int rank, int ranks) {
    int up = (rank + 1) % ranks, down = (rank + ranks - 1) % ranks;
    return turn == 0 ? (iso__average_peers){up, down} : (iso__average_peers){down, up};
}

// The lower half of the ranks is shifted along the upper half.
static iso__average_peers choose_partner(int turn, int rank, int ranks) {
    int half = (ranks + 1) / 2;
    int partner = rank < half ? half + (rank + turn) % half : (rank - turn) % half;
    if (partner == ranks) partner = rank; // with an odd number of ranks, one has no partner
    return (iso__average_peers){partner, partner};
}

iso__average_peers iso__average_choose_peers(const iso__average *a) {
    int rank = iso_comm_rank(a->leaders), ranks = a->layout->nodes;
    int turn = (int)(a->turn % iso__average_turns(a));
    switch (a->config.kind) {
    case ISO__GOSSIP_PAIRS: return choose_partner(turn, rank, ranks);
    case ISO__GOSSIP_RING: return choose_neighbour(turn, rank, ranks);
    default: return choose_next(turn, rank, ranks);
    }
}

// ---- Values ---------------------------------------------------------------------------------------

bool iso__average_mix(bool f64, size_t count, void *own, const void *peer) {
    float *x = own;
    double *y = own;
    bool finite = true;
    for (size_t i = 0; !f64 && i < count; i++) {
        x[i] = (x[i] + ((const float *)peer)[i]) / 2;
        finite = finite && isfinite(x[i]);
    }
    for (size_t i = 0; f64 && i < count; i++) {
        y[i] = (y[i] + ((const double *)peer)[i]) / 2;
        finite = finite && isfinite(y[i]);
    }
    return finite;
}

// ---- Differences from copies ----------------------------------------------------------------------

// Elements that are worked on at a time: whole groups of every codec.
enum { COPY_TILE = 1024 };

static size_t tile_size(size_t count, size_t at) {
    return count - at < COPY_TILE ? count - at : COPY_TILE;
}

// The copies of this turn: of this rank's values, which the receiver also has, and of the sender's.
static float *own_copy(const iso__average *a) {
    size_t turn = (size_t)(a->turn % iso__average_turns(a));
    return a->copies + 2 * turn * a->count;
}
static float *peer_copy(const iso__average *a) { return own_copy(a) + a->count; }

size_t iso__average_copy_count(const iso__average *a) {
    return a->copies ? 2 * (size_t)iso__average_turns(a) * a->count : 0;
}

iso_status iso__average_set_copies(iso__average *a, const float *values) {
    bool finite = true;
    for (size_t i = 0; i < a->count; i++) finite = finite && isfinite(values[i]);
    ISO_CHECK(finite, ISO_ERR_STATE, "parameters are not finite: try a lower learning rate");
    for (size_t at = 0; at < iso__average_copy_count(a); at += a->count)
        memcpy(a->copies + at, values, a->count * sizeof(float));
    return ISO_OK;
}

bool iso__average_encode_copy(iso__average *a, const float *x, char *to) {
    const float *copy = own_copy(a);
    bool finite = true;
    memcpy(a->result, x, a->count * sizeof(float));
    for (size_t at = 0; at < a->count; at += COPY_TILE) {
        float difference[COPY_TILE];
        size_t n = tile_size(a->count, at);
        for (size_t i = 0; i < n; i++) difference[i] = x[at + i] - copy[at + i];
        finite = a->wire->encode(n, difference, 1, to + a->wire->bytes(at)) && finite;
    }
    return finite;
}

bool iso__average_mix_copies(iso__average *a, const char *sent, const char *received) {
    const float *own = own_copy(a), *peer = peer_copy(a);
    float *x = a->result, half = (float)(a->config.consensus_step / 2);
    bool finite = true;
    for (size_t at = 0; at < a->count; at += COPY_TILE) {
        float mine[COPY_TILE], its[COPY_TILE];
        size_t n = tile_size(a->count, at), bytes = a->wire->bytes(at);
        finite = a->wire->decode_difference(n, sent + bytes, own + at, mine) && finite;
        finite = a->wire->decode_difference(n, received + bytes, peer + at, its) && finite;
        for (size_t i = 0; i < n; i++) {
            x[at + i] += half * (its[i] - mine[i]);
            finite = finite && isfinite(x[at + i]);
        }
    }
    return finite;
}

// Computes the same copies as iso__average_mix_copies, so they are finite if those were.
void iso__average_commit_copies(iso__average *a, const char *sent, const char *received) {
    if (a->report[0] == 0) a->wire->decode_add(a->count, sent, own_copy(a));
    if (a->peer_report[0] == 0 && a->cause != ISO_CAUSE_MPI)
        a->wire->decode_add(a->count, received, peer_copy(a));
}

// ---- Reports ----------------------------------------------------------------------------------------

enum { REPORT = 1 + ISO__METRICS };
_Static_assert(REPORT * sizeof(double) <= ISO__AVERAGE_MESSAGE, "one message");

void iso__average_send_report(iso__average *a) {
    iso__average_peers with = iso__average_choose_peers(a);
    a->metrics[0] = iso__average_own_verdict(a);
    memcpy(a->report, a->metrics, REPORT * sizeof(double));
    a->report[1] = 0;                                   // how long it takes is not known yet
    memset(a->peer_report, 0, REPORT * sizeof(double)); // in case it does not arrive
    iso__messages m = {.send = a->report,
                       .recv = a->peer_report,
                       .bytes = ISO__AVERAGE_MESSAGE,
                       .to = with.to,
                       .from = with.from};
    iso__average_note(a, iso__comm_imessages(a->leaders, &m, "gossip (report)", &a->report_sent,
                                             &a->report_came));
}

iso_status iso__average_finish_report(iso__average *a, bool wait) {
    iso_status status = iso__average_settle(a, &a->report_came, wait);
    if (status == ISO_OK) status = iso__average_settle(a, &a->report_sent, wait);
    for (int i = 0; status == ISO_OK && i < REPORT; i++)
        if (a->peer_report[i] > a->metrics[i]) a->metrics[i] = a->peer_report[i];
    return status;
}
