// SPDX-License-Identifier: MIT
// For tests of channels: buffers of several types, random plans, and ranks of random speed.
#ifndef ISO_TEST_CHANNEL_FIXTURE_H
#define ISO_TEST_CHANNEL_FIXTURE_H

#include "comm/channel.h"

enum { CHANNEL_ITEMS = 100, CHANNEL_CHUNKS = 800 };

typedef struct channel_rig {
    iso__channel *channel;
    iso_comm *comm;
    int items;
    iso__channel_item item[CHANNEL_ITEMS];
    char label[CHANNEL_ITEMS][16]; // "item 0", ...
    float *shared;                 // memory of the f32 items, if ranks share memory
    uint32_t drawn;                // random numbers that all ranks draw
    uint32_t mine;                 // and those of this rank alone
    int rounds[CHANNEL_ITEMS];     // how often each was filled
} channel_rig;

// Random numbers below `below`. channel_draw: the same on every rank; channel_draw_mine: different
// on each.
uint32_t channel_draw(channel_rig *rig, uint32_t below);
uint32_t channel_draw_mine(channel_rig *rig, uint32_t below);

// Collective. Items of random length up to `most` elements, of f32 (in shared memory, if asked
// for), f64 and bf16, in chunks of 400 bytes and with a window of 1000 bytes.
void channel_rig_create(channel_rig *rig, iso_comm *comm, int items, size_t most, bool shared);
void channel_rig_destroy(channel_rig *rig);

// Writes chunks of random length in random order, ascending within an item. Returns their number.
int channel_random_plan(channel_rig *rig, iso__chunk *chunk);
// A random order of the numbers below count, of this rank alone.
void channel_shuffle_mine(channel_rig *rig, int *order, int count);
// Sometimes sleeps, for up to `most` microseconds.
void channel_stumble(channel_rig *rig, uint32_t most);

// Writes this rank's numbers for the item's next round. They are small integers whose sum over four
// ranks is at most 256, so sums are exact in any order, even in bf16.
void channel_fill(channel_rig *rig, int item);
// Whether the item holds the sums of the round that was filled last.
bool channel_is_summed(const channel_rig *rig, int item);

// Stumbles, fills the item and makes it ready. Looks for it a few times, then waits.
iso_status channel_give(channel_rig *rig, int item);
iso_status channel_complete(channel_rig *rig, int item);
// A round of all items; each rank gives and completes them in an order and at a speed of its own.
// Whether all were summed.
bool channel_random_round(channel_rig *rig);

#endif
