// For tests of streams: buffers of several types, random plans, and ranks of random speed.
#ifndef ISO_TEST_STREAM_FIXTURE_H
#define ISO_TEST_STREAM_FIXTURE_H

#include "comm/stream.h"

enum { STREAM_ITEMS = 100, STREAM_PARTS = 800 };

typedef struct stream_rig {
    iso__stream *stream;
    iso_comm *comm;
    int items;
    iso__stream_item item[STREAM_ITEMS];
    char label[STREAM_ITEMS][16]; // "item 0", ...
    float *shared;                // what holds the f32 items, if ranks share memory
    uint32_t drawn;               // random numbers that all ranks draw
    uint32_t mine;                // and those of this rank alone
    int rounds[STREAM_ITEMS];     // how often each was filled
} stream_rig;

// Numbers below `below`, the same on every rank, and others on every rank.
uint32_t stream_draw(stream_rig *rig, uint32_t below);
uint32_t stream_draw_mine(stream_rig *rig, uint32_t below);

// Collective. Items of random length up to `most` elements, of f32 (in shared memory, if asked
// for), f64 and bf16, in parts of 400 bytes and with a window of 1000 bytes.
void stream_rig_create(stream_rig *rig, iso_comm *comm, int items, size_t most, bool shared);
void stream_rig_destroy(stream_rig *rig);

// Parts of random length in random order, ascending within an item; gives how many.
int stream_random_plan(stream_rig *rig, iso__part *part);
// A random order of the numbers below count, of this rank alone.
void stream_shuffle_mine(stream_rig *rig, int *order, int count);
// Sleeps for up to `most` microseconds, or, mostly, not at all.
void stream_stumble(stream_rig *rig, uint32_t most);

// Writes this rank's numbers for the item's next round. They are small whole numbers, of four ranks
// at most 256 in all: sums are exact in any order, in bf16 as well.
void stream_fill(stream_rig *rig, int item);
// Whether the item holds the sums of the round that was filled last.
bool stream_is_summed(const stream_rig *rig, int item);

#endif
