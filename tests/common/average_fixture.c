// SPDX-License-Identifier: MIT
// For tests of the weighted mean over nodes: the same arithmetic done by one process.
#include "common/average_fixture.h"

#include "common/codec_model.h"

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

static float rounded(const iso__codec *wire, float x) {
    uint32_t room;
    float out;
    wire->encode(1, &x, 1, &room);
    wire->decode(1, &room, &out);
    return out;
}

// The model goes over groups of the wire; for an element type, any size will do.
enum { GROUP = MOST_GROUP };

static size_t group_of(const mean_case *c) {
    return c->config.wire->group > 1 ? c->config.wire->group : GROUP;
}

static float factor_of(const mean_case *c, int node) {
    return (float)((double)node_size(c, node) / test_size * c->nodes);
}

// x: the values of all nodes, of a group that begins at `first`. Volatile: every operation rounds.
typedef float group_values[MOST_NODES][GROUP];

static void plain_mean(const mean_case *c, const iso__codec *wire, size_t n, const group_values *x,
                       float *mean) {
    float v[GROUP], share[GROUP], sum[GROUP];
    for (int k = 0; k < c->nodes; k++) {
        for (size_t i = 0; i < n; i++) v[i] = (*x)[k][i] * factor_of(c, k);
        codec_model_round(wire, n, v, share);
        for (size_t i = 0; i < n; i++) {
            volatile float s = k == 0 ? share[i] : sum[i] + share[i];
            sum[i] = c->config.round_sums ? rounded(wire, s) : s;
        }
    }
    for (size_t i = 0; i < n; i++) sum[i] = sum[i] / (float)c->nodes;
    codec_model_round(wire, n, sum, mean);
}

static void mean_of_differences(mean_case *c, size_t first, size_t n, const group_values *x,
                                float *mean) {
    float v[GROUP], share[GROUP], sum[GROUP];
    const iso__codec *wire = c->config.wire;
    for (int k = 0; k < c->nodes; k++) {
        float *residual = c->residual[k] + first;
        for (size_t i = 0; i < n; i++) {
            volatile float d = (*x)[k][i] - c->reference[first + i];
            d = d * factor_of(c, k);
            v[i] = d + residual[i];
        }
        codec_model_round(wire, n, v, share);
        for (size_t i = 0; i < n; i++) residual[i] = v[i] - share[i];
        for (size_t i = 0; i < n; i++) sum[i] = k == 0 ? share[i] : sum[i] + share[i];
    }
    float *residual = c->share_residual + first;
    for (size_t i = 0; i < n; i++) {
        volatile float s = sum[i] / (float)c->nodes;
        v[i] = s + residual[i];
    }
    codec_model_round(wire, n, v, share);
    for (size_t i = 0; i < n; i++) residual[i] = v[i] - share[i];
    for (size_t i = 0; i < n; i++) mean[i] = c->reference[first + i] + share[i];
}

static void model_group(mean_case *c, int group, int t, size_t first, size_t n, float *mean) {
    static group_values x;
    for (int k = 0; k < c->nodes; k++)
        for (size_t i = 0; i < n; i++) x[k][i] = draw(sending_rank(c, group, k), t, first + i);
    if (c->nodes == 1)
        memcpy(mean, x[0], n * sizeof(float));
    else if (c->has_reference)
        mean_of_differences(c, first, n, (const group_values *)&x, mean);
    else
        plain_mean(c, c->config.differences ? &iso__codec_f32 : c->config.wire, n,
                   (const group_values *)&x, mean);
}

// A shard begins at a multiple of 32 elements, its first chunk is the remainder, and the groups of
// a chunk begin with it.
static void model_shard(mean_case *c, int group, int t, size_t first, size_t count, float *mean) {
    size_t chunk = c->config.chunk ? c->config.chunk : count;
    for (size_t at = 0, size; at < count; at += size) {
        size = (count - at) % chunk ? (count - at) % chunk : chunk;
        for (size_t i = 0; i < size; i += group_of(c)) {
            size_t n = size - i < group_of(c) ? size - i : group_of(c), from = first + at + i;
            model_group(c, group, t, from, n, mean + from);
        }
    }
}

void mean_case_model(mean_case *c, int group, int t, float *mean) {
    size_t shards = group == ISO__SHARDS ? (size_t)c->layout->smallest : 1;
    size_t each = (c->count + shards - 1) / shards;
    if (shards > 1) each = (each + 31) / 32 * 32;
    for (size_t first = 0; first < c->count; first += each)
        model_shard(c, group, t, first, c->count - first < each ? c->count - first : each, mean);
    memcpy(c->reference, mean, c->count * sizeof(float));
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

// ---- Nothing gets lost ----------------------------------------------------------------------------

void mean_case_left(mean_case *c, double *left) {
    iso__average_array item[ISO__AVERAGE_ARRAYS];
    size_t shards = (size_t)c->layout->smallest, nodes = (size_t)c->nodes;
    size_t each = ((c->count + shards - 1) / shards + 31) / 32 * 32;
    size_t first = (size_t)c->layout->local_rank * each;
    memset(left, 0, c->count * sizeof(*left));
    if (iso__average_arrays(c->average, item) == 3 && first < c->count) {
        size_t share = item[2].count * (size_t)c->layout->node_index;
        for (size_t i = 0; i < item[1].count; i++)
            left[first + i] += (double)item[1].data[i] / (double)nodes;
        for (size_t i = 0; i < item[2].count && share + i < item[1].count; i++)
            left[first + share + i] += (double)item[2].data[i];
    }
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, left, (int64_t)c->count, ISO_SUM));
}

static void exact_mean(const mean_case *c, int t, double *mean) {
    static float x[MOST_VALUES];
    memset(mean, 0, c->count * sizeof(*mean));
    for (int rank = 0; rank < test_size; rank++) {
        mean_case_values(c, ISO__SHARDS, rank, t, x);
        for (size_t i = 0; i < c->count; i++) mean[i] += (double)x[i] / test_size;
    }
}

static void lose_nothing(mean_case *c) {
    static double before[MOST_VALUES], after[MOST_VALUES], exact[MOST_VALUES];
    double worst = 0, most = 0;
    const float *mean = NULL;
    memset(before, 0, sizeof(before));
    for (int t = 0; t < 5; t++) {
        iso_assert_ok(mean_case_exchange(c, ISO__SHARDS, t, NULL, &mean));
        exact_mean(c, t, exact);
        mean_case_left(c, after);
        for (size_t i = 0; i < c->count; i++) {
            worst = fmax(worst, fabs((double)mean[i] + after[i] - exact[i] - before[i]));
            most = fmax(most, fabs(after[i]));
        }
        memcpy(before, after, sizeof(before));
    }
    iso_assert_all(worst < 16 * 0x1p-22); // values are below 8
    iso_assert_all(c->nodes == 1 || most > 1e-3);
}

void mean_case_loses_nothing(mean_case *c, size_t count, const iso__average_config *config) {
    for (int per_node = 1; per_node <= 2; per_node++) {
        mean_case_create(c, per_node, count, config);
        lose_nothing(c);
        mean_case_destroy(c);
    }
    mean_case_close(c);
}

void mean_case_equals_model(mean_case *c, const iso__codec *wire, bool differences) {
    const size_t counts[] = {1, 33, wire->group, 1000, 4099};
    const size_t chunks[] = {0, 7, wire->group, 1000, 1001};
    for (int per_node = 1; per_node <= test_size; per_node++)
        for (int i = 0; i < 5; i++) {
            iso__average_config config = {
                .wire = wire, .differences = differences, .chunk = chunks[(i + per_node) % 5]};
            bool agrees = true;
            mean_case_create(c, per_node, counts[i], &config);
            for (int t = 0; t < 6; t++) agrees = mean_case_agrees(c, ISO__SHARDS, t) && agrees;
            iso_assert_all(agrees);
            mean_case_destroy(c);
        }
    mean_case_close(c);
}

void mean_case_counts(mean_case *c, long long sent, long long between_nodes) {
    iso__average_stats before, after;
    iso__average_get_stats(c->average, &before);
    bool agrees = mean_case_agrees(c, ISO__SHARDS, 1);
    iso__average_get_stats(c->average, &after);
    iso_assert_all(agrees && after.bytes_sent - before.bytes_sent == sent);
    iso_assert_all(after.bytes_between_nodes - before.bytes_between_nodes == between_nodes);
}
