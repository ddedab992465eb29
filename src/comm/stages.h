// SPDX-License-Identifier: MIT
// Private to src/comm: exchanges made of messages between pairs of ranks, in several stages. A
// stage begins when all messages of the one before are complete. So ranks begin stages in orders of
// their own, and tags tell which exchange a message belongs to. Without a helper thread a rank
// begins a stage in its next call of the library.
#ifndef ISO_STAGES_H
#define ISO_STAGES_H

#include "comm/request.h"

// One exchange; a part of the struct of its kind. The engine's lock guards it.
typedef struct iso__stages {
    iso__engine *engine;
    iso_request *request; // that it belongs to; NULL: given up, or free
    MPI_Comm mpi;
    int messages, error; // under way; the first error
    bool taken;          // in use, or MPI may still write into its memory
    bool listed;         // in the engine's list
    // A stage is complete, or a message has failed: begins the next stage, or ends the exchange.
    void (*advance)(struct iso__stages *stages);
    struct iso__stages *next;
} iso__stages;

// Tags of the exchanges of a communicator, in turn: 2 * ISO_STAGES_TURNS of each kind, from these
// on. MPI allows at least 32767.
enum { ISO_STAGES_TURNS = 8192, ISO_STAGES_PAIRWISE = 0, ISO_STAGES_BLOCKS = 2 * ISO_STAGES_TURNS };

// Call both without the lock. The first makes permanent room for so many messages at once, the
// second gives it up. Give it up even if the first failed.
iso_status iso__stages_promise(iso__engine *engine, int messages);
void iso__stages_take_back(iso__engine *engine, int messages);

// Begin a message of `count` elements, for which the engine has room (iso__engine_reserve). Return
// an MPI return code.
int iso__stages_send(iso__stages *s, const void *data, int count, MPI_Datatype type, int to,
                     int tag);
int iso__stages_receive(iso__stages *s, void *data, int count, MPI_Datatype type, int from,
                        int tag);
// Call it after beginning the first stage, with the MPI return code rc, which it returns. If rc is
// MPI_SUCCESS, the request has one more part under way. Otherwise the exchange is given up.
int iso__stages_begun(iso__stages *s, int rc);
// Tells the request that the exchange is complete, or has failed, and leaves it. Messages that are
// still under way use the exchange's memory, so it stays taken until they are complete.
void iso__stages_end(iso__stages *s, int error);
// A message is complete.
void iso__stages_count(iso__stages *s, int error);
// Advances the exchanges whose stages are complete. Returns whether there were any.
bool iso__stages_progress(iso__engine *engine);

#endif
