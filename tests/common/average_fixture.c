// SPDX-License-Identifier: MIT
// For tests of the weighted mean over nodes: the same arithmetic done by one process.
#include "common/average_fixture.h"

#include "exchange/wire.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void choose_layout(mean_case *c, int per_node) {
    char text[16];
    if (c->routes && c->per_node == per_node) return;
    iso__routes_destroy(&c->routes);
    c->per_node = per_node;
    c->nodes = (test_size + per_node - 1) / per_node;
    snprintf(text, sizeof(text), "%d", per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
    iso_assert_ok(iso__routes_create(test_comm, NULL, MOST_MEANS, &c->routes));
    c->layout = iso__routes_layout(c->routes);
    iso_assert_all(c->layout->nodes == c->nodes);
}

void mean_case_create(mean_case *c, int per_node, size_t count, const iso__average_config *config) {
    cr_assert_leq(count, (size_t)MOST_VALUES);
    choose_layout(c, per_node);
    c->count = count;
    c->config = *config;
    c->has_reference = false;
    memset(c->residual, 0, sizeof(c->residual));
    memset(c->share_residual, 0, sizeof(c->share_residual));
    iso_assert_ok(iso__average_create(c->routes, count, config, &c->average));
}

void mean_case_destroy(mean_case *c) { iso__average_destroy(&c->average); }

void mean_case_close(mean_case *c) {
    mean_case_destroy(c);
    iso__routes_destroy(&c->routes);
}

static int node_size(const mean_case *c, int node) {
    int left = test_size - node * c->per_node;
    return left < c->per_node ? left : c->per_node;
}

// The rank of a node whose values travel.
static int sending_rank(const mean_case *c, int group, int node) {
    return node * c->per_node + (group == ISO__SHARDS ? 0 : group % node_size(c, node));
}

bool mean_case_member(const mean_case *c, int group) {
    return group == ISO__SHARDS || sending_rank(c, group, test_rank / c->per_node) == test_rank;
}

static float draw(int source, int t, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)t, (uint32_t)source}, bits[4];
    iso__philox(iso__philox_key_make(3, ISO_RNG_TEST, 0), counter, bits);
    return (2 * iso__uniform(bits[0]) - 1) * ldexpf(1, (int)(bits[1] % 8) - 4);
}

void mean_case_values(const mean_case *c, int group, int rank, int t, float *out) {
    int source = group == ISO__SHARDS ? sending_rank(c, group, rank / c->per_node) : rank;
    for (size_t i = 0; i < c->count; i++) out[i] = draw(source, t, i);
}

unsigned mean_case_random(unsigned n) {
    static uint32_t calls;
    uint32_t counter[4] = {calls++}, bits[4];
    iso__philox(iso__philox_key_make(4, ISO_RNG_TEST, (uint64_t)test_rank), counter, bits);
    return bits[0] % n;
}

iso_status mean_case_exchange(mean_case *c, int group, int t, const float *values,
                              const float **mean) {
    static float own[MOST_VALUES];
    double metrics[ISO__METRICS] = {0};
    iso_status status = ISO_OK;
    if (!values) {
        mean_case_values(c, group, test_rank, t, own);
        values = own;
    }
    if (mean_case_random(4) == 0) usleep(mean_case_random(2000));
    iso_status started = iso__average_start(c->average, values, group, metrics);
    if (started < 0) return started;
    memset(own, 0x55, sizeof(own)); // it was copied
    unsigned polls = mean_case_random(3) ? mean_case_random(12) : 0;
    for (unsigned i = 0; status >= 0 && i < polls; i++) {
        if (mean_case_random(2)) usleep(mean_case_random(300));
        status = iso__average_poll(c->average);
    }
    return status < 0 ? status : iso__average_finish(c->average, mean, metrics);
}

// ---- The model ------------------------------------------------------------------------------------

static float rounded(iso_dtype wire, float x) {
    uint32_t room;
    float out;
    iso__wire_encode(wire, 1, &x, 1, &room);
    iso__wire_decode(wire, 1, &room, &out);
    return out;
}

static float factor_of(const mean_case *c, int node) {
    return (float)((double)node_size(c, node) / test_size * c->nodes);
}

// Volatile: every operation rounds.
static float plain_mean(const mean_case *c, const float *x) {
    bool round = c->config.round_sums;
    volatile float sum = 0;
    for (int n = 0; n < c->nodes; n++) {
        volatile float share = x[n] * factor_of(c, n);
        share = rounded(c->config.wire, share);
        sum = n == 0 ? share : sum + share;
        if (round) sum = rounded(c->config.wire, sum);
    }
    sum = sum / (float)c->nodes;
    return rounded(c->config.wire, sum);
}

static float mean_of_differences(mean_case *c, const float *x, size_t i) {
    volatile float sum = 0, v;
    for (int n = 0; n < c->nodes; n++) {
        v = x[n] - c->reference[i];
        v = v * factor_of(c, n);
        v = v + c->residual[n][i];
        volatile float share = rounded(c->config.wire, v);
        c->residual[n][i] = v - share;
        sum = n == 0 ? share : sum + share;
    }
    v = sum / (float)c->nodes;
    v = v + c->share_residual[i];
    sum = rounded(c->config.wire, v);
    c->share_residual[i] = v - sum;
    return c->reference[i] + sum;
}

static float model_one(mean_case *c, const float *x, size_t i) {
    if (c->nodes == 1) return x[0];
    if (!c->config.differences) return plain_mean(c, x);
    if (c->has_reference) return mean_of_differences(c, x, i);
    iso_dtype wire = c->config.wire;
    c->config.wire = ISO_F32;
    float mean = plain_mean(c, x);
    c->config.wire = wire;
    return mean;
}

void mean_case_model(mean_case *c, int group, int t, float *mean) {
    float x[MOST_NODES];
    for (size_t i = 0; i < c->count; i++) {
        for (int n = 0; n < c->nodes; n++) x[n] = draw(sending_rank(c, group, n), t, i);
        mean[i] = model_one(c, x, i);
        c->reference[i] = mean[i];
    }
    c->has_reference = c->config.differences;
}

bool mean_case_agrees(mean_case *c, int group, int t) {
    static float expected[MOST_VALUES];
    const float *mean = NULL;
    mean_case_model(c, group, t, expected);
    if (mean_case_exchange(c, group, t, NULL, &mean) < 0) {
        iso_error_print(stderr);
        return false;
    }
    if (!mean_case_member(c, group)) return mean == NULL;
    for (size_t i = 0; i < c->count; i++) {
        if (memcmp(&mean[i], &expected[i], sizeof(float)) == 0) continue;
        fprintf(stderr, "%d per node, group %d, exchange %d, element %zu of %zu: %a, not %a\n",
                c->per_node, group, t, i, c->count, mean[i], expected[i]);
        return false;
    }
    return true;
}
