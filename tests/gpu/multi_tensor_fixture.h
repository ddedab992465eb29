// SPDX-License-Identifier: MIT
// For tests of updates that a GPU takes together: rules, memory, and series of updates.
#ifndef ISO_TEST_MULTI_TENSOR_FIXTURE_H
#define ISO_TEST_MULTI_TENSOR_FIXTURE_H

#include "common/device_fixture.h"
#include "device/cuda/runtime/cuda_impl.h"

// Skips the test where there is no GPU; graphs: "0" or "1".
target open_with(iso_dtype dtype, const char *graphs);
target open_cuda(iso_dtype dtype);
void finish(const target *on); // waits for all that was asked for
long long launches(const target *on);
const iso__cuda_multi_tensor *multi_tensor_of(const target *on);

enum { G, P, S0, S1, S2, ROLES };

// What all rules round to.
extern iso__rounded_to rounded_to;

// One update of `count` elements; x: where they are, by role.
typedef iso_status (*call)(const target *on, int64_t count, double lr, void *const x[ROLES]);
iso_status sgd(const target *on, int64_t count, double lr, void *const x[ROLES]);
iso_status adam(const target *on, int64_t count, double lr, void *const x[ROLES]);
iso_status adagrad(const target *on, int64_t count, double lr, void *const x[ROLES]);
iso_status scale(const target *on, int64_t count, double lr, void *const x[ROLES]);
enum { RULES = 13, SCALE = 9, RMSPROP_BOTH = 10, AMSGRAD = 11 };
extern const call rules[RULES];

enum { ELEMENTS = 60000 };

typedef struct memory {
    iso_tensor *x[ROLES];
} memory;
memory memory_create(const target *on); // the same numbers each time
void memory_destroy(memory *m);
void locate(const memory *m, int64_t first, int64_t first_g, void *x[ROLES]);
// All of it, so that what no update names is compared too. rule: for the message.
void check_same(const memory *a, const memory *b, double tolerance, int rule);

// `count` updates of `length` elements each, `stride` apart, with so many learning rates in turn.
typedef struct series {
    int count, length, stride, rates;
    long long launches; // that are expected
} series;
void run_series(const target *on, const memory *m, const series *s, bool one_by_one);

#endif
