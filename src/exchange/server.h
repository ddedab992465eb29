// SPDX-License-Identifier: MIT
// Private to src/exchange and optim: an asynchronous parameter server of one flat array
// (average.h). Either every rank is a worker and also serves a shard of the array, or the last
// ranks only serve, and the others are the workers. Shards are in the order of the ranks that
// serve, and have nearly equal numbers of elements of each type.
//
// The server of a shard has a copy of it. A worker pushes what it has changed in a shard since it
// last knew the copy. The server adds each push to its copy, and answers with the copy of then. As
// in Downpour SGD (Dean et al., NeurIPS 2012) no worker waits for another one, and shards are
// updated independently. Downpour pushes gradients, here the sums of all updates are pushed, so
// workers may use any optimizer. With x the parameters of a worker, k what it knows, y the copy,
// and a scale a:
//
//   push    d = a (x - k),  k = x
//   serve   y = y + d,      the answer is y
//   pull    x = y + (x - k),  k = y
//
// So x - k is always what a worker has changed and has not pushed. Without updates, the sum of y
// and of a (x - k) over the workers, and of what is under way, stays the same.
//
// A worker has at most one push to a server under way, which the answer ends. So a server needs
// room for one message of each worker. It starts to receive into this room before a push comes,
// answers from the same room, and then starts to receive again. Push and answer have different
// tags, so neither waits behind the other. A server serves in calls of its own rank only; while it
// computes, messages travel, but no push is served. So a rank that makes no step delays the pulls
// of its own shard, and nothing else. Where ranks meet, a rank that is no worker also makes a push,
// without changes, to get the parameters.
//
// Where ranks meet, they agree that all are there. Each worker pulls what it has asked for, and
// then makes a last push of every shard. A server keeps last pushes until it has those of all
// ranks, adds them in the order of the ranks, and gives all of them the same answer. Nothing is
// under way afterwards, and after the pulls all ranks have the same array. A rank that waits there
// serves meanwhile. So ranks cannot wait for each other in a circle: every wait is for an answer to
// a push, which its server gives in each of its own waits, or for last pushes, which come once
// their workers have their answers.
//
// Two things depend on timing: the order in which a server takes pushes, and the step in which a
// worker takes an answer. A run that repeats both gives the same bits.
#ifndef ISO_SERVER_H
#define ISO_SERVER_H

#include "exchange/average.h"

typedef struct iso__server iso__server;

// The elements of the array that a rank serves, of f32 ([0]) and of f64 ([1]), in an array of one
// type.
typedef struct iso__server_part {
    size_t first[2], count[2];
} iso__server_part;

// What a call does if its message has not arrived: it returns ISO_PENDING, or waits without serving
// other ranks, or serves their pushes while it waits.
typedef enum iso__server_wait {
    ISO__SERVER_TEST,
    ISO__SERVER_WAIT,
    ISO__SERVER_WAIT_SERVING
} iso__server_wait;

// Collective. All memory is allocated here. comm is retained; nothing else may send messages
// between two ranks on it. servers: so many ranks, the last ones, only serve, fewer than all; 0:
// all ranks serve and are workers. served: called for every push of another rank that this rank has
// added, except the last ones.
iso_status iso__server_create(iso_comm *comm, int servers, iso__flat size,
                              void (*served)(int rank, void *user), void *user, iso__server **out);
// Local. Messages that are under way (after an error) keep their memory.
void iso__server_destroy(iso__server **server);

bool iso__server_serves(const iso__server *server, int rank); // it has a shard
// Local. The shard that `rank` serves: its elements, none if the rank has no shard; the copy, which
// exists only on that rank; the values of the next push, which may be written while no push to that
// rank is under way; the answer, valid from a pull until the next push. All but the first require
// that the rank has a shard.
iso__server_part iso__server_shard(const iso__server *server, int rank);
void *iso__server_copy(const iso__server *server, bool f64);
void *iso__server_changes(const iso__server *server, int rank, bool f64);
const void *iso__server_answer(const iso__server *server, int rank, bool f64);

// Local. From now on this rank receives pushes. Does nothing if it does already.
iso_status iso__server_open(iso__server *server);
// Local. Pushes to this rank itself are served at once.
iso_status iso__server_push(iso__server *server, int rank);
bool iso__server_is_asked(const iso__server *server, int rank); // a push is under way
// ISO_OK: the answer to the push is here. ISO_PENDING if none is under way.
iso_status iso__server_pull(iso__server *server, int rank, iso__server_wait how);
// ISO_OK: the push of another rank was added and answered. ISO_PENDING if it was the last one.
iso_status iso__server_serve(iso__server *server, int rank, iso__server_wait how);
// The same for all ranks whose pushes have arrived, in the order of the ranks, at most one of each.
iso_status iso__server_serve_all(iso__server *server);
// The same while this rank waits for something else. Returns whether it served. Later calls return
// the error, if there was one.
bool iso__server_serve_aside(iso__server *server);

// For the points where ranks meet: all ranks call these two in this order. No push may be under way
// in the second call. gather waits until all ranks are there. *failed: whether this rank has
// failed, and then whether any rank has.
iso_status iso__server_gather(iso__server *server, bool *failed);
// Pushes the changes of all shards, and waits for all answers. failed: the copies stay as they are.
iso_status iso__server_finish(iso__server *server, bool failed);

// Sent by this rank so far: values and their padding, as iso_traffic (isotherm/comm.h) counts.
void iso__server_traffic(const iso__server *server, iso_traffic *out);

#endif
