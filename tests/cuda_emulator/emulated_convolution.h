// SPDX-License-Identifier: MIT
// The convolutions of the emulated cuDNN: which algorithm can do which, and the sums themselves.
#ifndef EMULATED_CONVOLUTION_H
#define EMULATED_CONVOLUTION_H

#include <cudnn.h>

#include <vector>

#include "emulated_internal.h"

namespace emulated {

enum class Direction { forward, filter, input };

// x [n, c, h, w], weights [k, c / groups, r, s], y [n, k, oh, ow]; with channels last [n, h, w, c],
// [k, r, s, c / groups] and [n, oh, ow, k].
struct Convolution {
    Direction direction;
    cudnnDataType_t type;
    bool f64, last, flipped;
    cudnnMathType_t math;
    int n, c, h, w, k, r, s, oh, ow, groups;
    int padding[2], stride[2], dilation[2];
};

// One line of what a heuristic returns.
struct Candidate {
    int algorithm;
    bool supported, deterministic;
    size_t workspace;
    cudnnMathType_t math;
};
std::vector<Candidate> candidates(const Convolution &c); // the quickest first
bool algorithm_can_do(const Convolution &c, int algorithm, size_t *workspace);
bool algorithm_fuses(int algorithm); // bias and relu, forward
// Addresses that are multiples of 16 bytes.
bool algorithm_needs_16(const Convolution &c, int algorithm);
bool is_deterministic(Direction direction, int algorithm);

inline size_t element_size(const Convolution &c) {
    return c.f64 ? 8 : c.type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
}

struct ConvolutionRun {
    Convolution conv;
    bool deterministic;
    const void *x, *w, *y; // one of them is the result
    double alpha, beta;
    const void *added; // what beta scales
    const void *bias;  // null: none
    bool relu;
};
void run_convolution(const ConvolutionRun &run); // with device pointers, in the executor

} // namespace emulated

#endif
