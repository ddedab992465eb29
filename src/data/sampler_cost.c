// SPDX-License-Identifier: MIT
// Gives the ranks samples of similar cost: sorts the samples by cost, and cuts them into groups
// with one sample for each rank.
#include "data/data_impl.h"

#include <math.h>
#include <string.h>

// Which numbers are drawn; the permutation itself draws with 0.
enum { NOISE = 1, GROUPS, MEMBERS, PLACE };

typedef struct iso__sampler_costs {
    double *cost, *key;    // [count], by sample; key: what is sorted by
    int64_t *order, *room; // [count]
    double range;          // largest cost - smallest cost
} costs;

iso_status iso__sampler_make_costs(iso_sampler *self) {
    const iso_sampler_config *c = &self->config;
    size_t count = (size_t)c->count;
    double least = INFINITY, most = -INFINITY;
    ISO_CHECK(c->cost_noise >= 0 && isfinite(c->cost_noise), ISO_ERR_ARG,
              "cost_noise %g of a sampler: give a number of at least 0", c->cost_noise);
    ISO_TRY(iso__alloc_zero(sizeof(*self->costs), (void **)&self->costs));
    costs *all = self->costs;
    ISO_TRY(iso__alloc(count * sizeof(double), (void **)&all->cost));
    ISO_TRY(iso__alloc(count * sizeof(double), (void **)&all->key));
    ISO_TRY(iso__alloc(count * sizeof(int64_t), (void **)&all->order));
    ISO_TRY(iso__alloc(count * sizeof(int64_t), (void **)&all->room));
    for (int64_t i = 0; i < c->count; i++) {
        double cost = all->cost[i] = c->cost(i, c->cost_user);
        ISO_CHECK(isfinite(cost), ISO_ERR_ARG,
                  "the cost of sample %lld is %g: a sampler needs finite costs", (long long)i,
                  cost);
        least = fmin(least, cost);
        most = fmax(most, cost);
    }
    all->range = most - least;
    return ISO_OK;
}

void iso__sampler_drop_costs(iso_sampler *self) {
    if (!self->costs) return;
    iso__free(self->costs->cost);
    iso__free(self->costs->key);
    iso__free(self->costs->order);
    iso__free(self->costs->room);
    iso__free(self->costs);
}

// ---- Sorting --------------------------------------------------------------------------------------------

static void merge_runs(const double *key, const int64_t *from, int64_t *to, int64_t middle,
                       int64_t end) {
    int64_t a = 0, b = middle;
    for (int64_t i = 0; i < end; i++) {
        bool first = b == end || (a < middle && key[from[a]] <= key[from[b]]);
        to[i] = first ? from[a++] : from[b++];
    }
}

// Samples of equal keys keep their order.
static void sort_samples(const double *key, int64_t *sample, int64_t *room, int64_t count) {
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t at = 0; at < count; at += 2 * run) {
            int64_t end = count - at < 2 * run ? count - at : 2 * run;
            merge_runs(key, sample + at, room + at, end < run ? end : run, end);
        }
        memcpy(sample, room, (size_t)count * sizeof(*sample));
    }
}

// ---- The order of an epoch ------------------------------------------------------------------------------

static void shuffle_some(iso__philox_key key, uint32_t which, int64_t first, int64_t *item,
                         int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)iso__draw_below(key, which, (uint64_t)(first + i), (uint64_t)i + 1);
        int64_t moved = item[i];
        item[i] = item[j];
        item[j] = moved;
    }
}

static void make_keys(const iso_sampler *self, iso__philox_key key) {
    const costs *all = self->costs;
    double noise = self->config.shuffle ? self->config.cost_noise * all->range : 0;
    for (int64_t i = 0; i < self->config.count; i++) {
        double drawn = (double)iso__draw_below(key, NOISE, (uint64_t)i, 1u << 30) * 0x1p-30;
        all->key[i] = all->cost[i] + (noise > 0 ? noise * drawn : 0);
    }
}

// Writes the groups to `to` in their order. The incomplete group is cut from between two others,
// and comes last.
static void list_groups(const iso_sampler *self, iso__philox_key key, int64_t *to) {
    const iso_sampler_config *c = &self->config;
    const costs *all = self->costs;
    int64_t ranks = c->ranks, full = c->count / ranks, left = c->count % ranks;
    int64_t *group = all->room;
    int64_t small = full; // the number of groups before it
    if (c->shuffle && left > 0) small = (int64_t)iso__draw_below(key, PLACE, 0, (uint64_t)full + 1);
    for (int64_t g = 0; g < full; g++) group[g] = g;
    if (c->shuffle) shuffle_some(key, GROUPS, 0, group, full);
    for (int64_t g = 0; g <= full; g++) {
        int64_t which = g < full ? group[g] : small, size = g < full ? ranks : left;
        int64_t from = which * ranks + (g < full && which >= small ? left : 0);
        memcpy(to + g * ranks, all->order + from, (size_t)size * sizeof(*to));
        if (c->shuffle) shuffle_some(key, MEMBERS, g * ranks, to + g * ranks, size);
    }
}

// The place of sample j of a rank in a global batch, which holds `rest` samples; -1: there is none.
static int64_t place_sample(const iso_sampler_config *c, int64_t rest, int rank, int64_t j) {
    int64_t share = rest / c->ranks, larger = rest % c->ranks;
    if (c->end == ISO_SAMPLER_PAD && larger > 0) {
        share++;
        larger = 0;
    }
    int64_t size = share + (rank < larger);
    int64_t place = share * rank + (rank < larger ? rank : larger) + j;
    return j < size && place < rest ? place : -1;
}

// A group has one place in the batch of each rank.
static void spread_groups(const iso_sampler *self, const int64_t *from) {
    const iso_sampler_config *c = &self->config;
    int64_t global = c->batch * c->ranks, *to = self->indices;
    for (int64_t first = 0; first < c->count; first += global) {
        int64_t rest = c->count - first < global ? c->count - first : global;
        int64_t most = (rest + c->ranks - 1) / c->ranks; // samples of a rank
        for (int64_t j = 0; j < most; j++)
            for (int r = 0; r < c->ranks; r++) {
                int64_t place = place_sample(c, rest, r, j);
                if (place >= 0) to[first + place] = *from++;
            }
    }
}

void iso__sampler_balance(iso_sampler *self, iso__philox_key key) {
    costs *all = self->costs;
    int64_t count = self->config.count;
    make_keys(self, key);
    memcpy(all->order, self->indices, (size_t)count * sizeof(int64_t));
    sort_samples(all->key, all->order, all->room, count);
    list_groups(self, key, self->indices);
    memcpy(all->order, self->indices, (size_t)count * sizeof(int64_t));
    spread_groups(self, all->order);
}
