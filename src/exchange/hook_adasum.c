// SPDX-License-Identifier: MIT
// Adasum (Maleki et al., Scaling distributed training with adaptive summation, MLSys 2021): the
// gradients of two ranks are added with the parts that they have in common counted once:
//
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b        of each tensor
//
// Every rank gets the gradients of all ranks, and computes the same tree of pairs.
#include "exchange/coder.h"

#include <string.h>

static iso_status declare_adasum(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                 void *user) {
    (void)user;
    plan->plain = b->dtype != ISO_F32;
    if (plan->plain) return ISO_OK;
    plan->phase_count = 1;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_GATHER, b->count, ISO_F32};
    return ISO_OK;
}

enum { LANES = 8 }; // partial sums of a dot product, added in the same order on all machines

static double dot_product(const float *a, const float *b, size_t n) {
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) lane[k] += (double)a[i + k] * (double)b[i + k];
    for (; i < n; i++) lane[0] += (double)a[i] * (double)b[i];
    for (size_t k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}

// The factor of one of the two gradients. A gradient of 0 has no common part to leave out. If one
// gradient is much smaller than the other, its factor may exceed the range of f32.
static double keep_share(double dot, double square) {
    return square > 0 ? 1 - dot / (2 * square) : 1;
}

// a = adasum(a, b)
static void add_pair(float *a, const float *b, size_t n) {
    double dot = dot_product(a, b, n);
    double of_a = keep_share(dot, dot_product(a, a, n));
    double of_b = keep_share(dot, dot_product(b, b, n));
    for (size_t i = 0; i < n; i++) a[i] = (float)(of_a * (double)a[i] + of_b * (double)b[i]);
}

// Combines the gradients of `ranks` ranks from `first` on. The result replaces those of rank
// `first`. The first half of the ranks is the largest power of two below `ranks`.
static void add_ranks(const iso_comm_hook_bucket *b, const iso_comm_hook_tensor *t, int first,
                      int ranks) {
    int half = 1;
    if (ranks < 2) return;
    while (2 * half < ranks) half *= 2;
    add_ranks(b, t, first, half);
    add_ranks(b, t, first + half, ranks - half);
    float *all = b->data[0], *place = all + t->offset;
    add_pair(place + (size_t)first * b->count, place + (size_t)(first + half) * b->count, t->count);
}

// In the last call, `factor` is the one that makes a sum an average. But Adasum's result replaces
// the average, not the sum, so it is also multiplied by the number of ranks.
static iso_status run_adasum(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    (void)user;
    float *g = b->gradient, *all = b->data[0], *own = all + (size_t)b->rank * b->count;
    float scale = (float)(phase == 0 ? factor : factor * b->ranks);
    for (size_t i = 0; phase == 0 && i < b->count; i++) own[i] = g[i] * scale;
    if (phase == 0) return ISO_OK;
    for (int k = 0; k < b->tensor_count; k++) {
        const iso_comm_hook_tensor *t = &b->tensor[k];
        add_ranks(b, t, 0, b->ranks);
        for (size_t i = t->offset; i < t->offset + t->count; i++) g[i] = all[i] * scale;
    }
    return ISO_OK;
}

const iso_comm_hook iso_hook_adasum = {
    .name = "adasum", .wire = ISO_F32, .declare = declare_adasum, .run = run_adasum};
