// SPDX-License-Identifier: MIT
// A small decoder-only transformer on plain arrays, as somebody's own training code would have it:
// it knows neither the library nor MPI, and says when it needs a tensor and when a gradient is
// final.
#ifndef BENCH_TRANSFORMER_NET_H
#define BENCH_TRANSFORMER_NET_H

#include <stdbool.h>
#include <stddef.h>

enum { NET_MOST_TENSORS = 256 };

typedef struct net_shape {
    int layers, width, heads, vocabulary, length, batch; // length: tokens of a sequence
    bool tied; // the token embedding is the last matrix, too
} net_shape;

typedef struct net_tensor {
    char name[32];
    size_t count;
    int layer;                      // 0: embeddings; 1 to layers: blocks; then what is above them
    float *value, *moment, *square; // moment, square: AdamW's
    float *gradient;                // given by the owner
} net_tensor;

// Called with a tensor's number before the forward reads it; after its gradient is final.
typedef void (*net_call)(void *user, int tensor);

typedef struct net net;

// Tensors are numbered as the forward needs them. All values are drawn from seed.
net *net_create(const net_shape *shape, unsigned seed);
void net_destroy(net *n);
int net_tensors(const net *n);
net_tensor *net_tensor_of(net *n, int i);
// Tokens: batch x (length + 1); the loss is the mean cross entropy of the next one.
double net_forward(net *n, const int *tokens, net_call needed, void *user);
void net_backward(net *n, const int *tokens, net_call ready, void *user);
// The update of tensor i with gradient * scale, in step number `step` (from 1 on).
void net_adamw(net *n, int i, const float *gradient, double scale, double rate, int step);

#endif
