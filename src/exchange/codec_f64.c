// SPDX-License-Identifier: MIT
// How f64 elements of a mean over nodes travel: as they are.
#include "exchange/codec.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

ISO_CLONES bool iso__f64_encode(size_t count, const double *restrict x, double factor,
                                double *restrict out) {
    int bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = x[i] * factor;
        bad |= !isfinite(out[i]);
    }
    return !bad;
}

#define TILE ((size_t)256) // doubles that stay in the first-level cache while all nodes are added

static void add_shares(const iso__codec_shares *shares, size_t first, size_t n,
                       double *restrict sum) {
    const double *x = (const double *)shares->data + first;
    memcpy(sum, x, n * sizeof(*sum));
    for (int k = 1; k < shares->nodes; k++) {
        x += shares->count;
        for (size_t i = 0; i < n; i++) sum[i] += x[i];
    }
}

bool iso__f64_mean(const iso__codec_shares *shares, double *out) {
    double sum[TILE], nodes = shares->nodes;
    bool finite = true;
    for (size_t first = 0; first < shares->count; first += TILE) {
        size_t n = shares->count - first < TILE ? shares->count - first : TILE;
        add_shares(shares, first, n, sum);
        for (size_t i = 0; i < n; i++) {
            out[first + i] = sum[i] / nodes;
            finite = finite && isfinite(out[first + i]);
        }
    }
    return finite;
}

bool iso__f64_decode(size_t count, const double *in, double *out) {
    return iso__f64_encode(count, in, 1, out);
}
