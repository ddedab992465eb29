// SPDX-License-Identifier: MIT
// Scatters, gathers and all-to-alls of channels: blocks of random length, in shared memory, by
// messages, and in two levels.
#include "common/channel_fixture.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include "comm/traffic.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void setup_poll(void) {
    setenv("ISO_PROGRESS", "poll", 1);
    test_mpi_setup();
}
static void setup_off(void) {
    setenv("ISO_PROGRESS", "off", 1);
    test_mpi_setup();
}

TestSuite(np1_blocks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_blocks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_blocks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_blocks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_blocks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_blocks_poll, .init = setup_poll, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_blocks_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);

// Every item is a block of each rank. What is scattered is gathered again.
enum { SCATTER, GATHER, KINDS, ITEMS = 7, MOST = 3000 };

typedef struct rig {
    channel_rig draws; // random numbers only
    iso__channel *channel[KINDS];
    char *memory;
    bool shared;
    iso_dtype dtype;
    size_t block[ITEMS]; // elements
    char *data[ITEMS];
    int round;
} rig;

static size_t item_count(const rig *r, int i) { return r->block[i] * (size_t)test_size; }

static double get(const rig *r, int i, size_t k) {
    return r->dtype == ISO_F64 ? ((const double *)(void *)r->data[i])[k]
                               : (double)((const float *)(void *)r->data[i])[k];
}

static void put(rig *r, int i, size_t k, double x) {
    if (r->dtype == ISO_F64)
        ((double *)(void *)r->data[i])[k] = x;
    else
        ((float *)(void *)r->data[i])[k] = (float)x;
}

static double given(const rig *r, int rank, int i, size_t k) {
    return (double)shared_value(rank, ITEMS * r->round + i, k);
}

// ---- Nodes ------------------------------------------------------------------------------------------

static int nodes = 1; // of the channels' ranks
static bool in_turn;  // rank r is on node r % nodes; false: nodes have adjacent ranks

static int node_of(int rank) { return in_turn ? rank % nodes : rank * nodes / test_size; }

static void seat_on(int count, bool turns) {
    int64_t node[8];
    nodes = count;
    in_turn = turns;
    for (int r = 0; r < test_size; r++) node[r] = node_of(r);
    iso_assert_ok(iso__comm_place(test_comm, node));
}

// A node's sum is in the order of its ranks.
static double node_sum(const rig *r, int node, int i, size_t k) {
    double d = 0;
    float f = 0;
    for (int rank = 0; rank < test_size; rank++) {
        if (node_of(rank) != node) continue;
        d += given(r, rank, i, k);
        f += (float)given(r, rank, i, k);
    }
    return r->dtype == ISO_F64 ? d : (double)f;
}

// Those of nodes are added in the order of isotherm/comm.h: of 2 to 6 nodes, the first ones beyond
// a power of two with their neighbours, and then in pairs. The bits tell.
static double summed(const rig *r, int i, size_t k) {
    double sum[8];
    int left = nodes, power = 1;
    while (2 * power <= nodes) power *= 2;
    for (int n = 0; n < nodes; n++) sum[n] = node_sum(r, n, i, k);
    for (int pairs = nodes - power; left > 1; pairs = left / 2) {
        for (int n = 0; n < left - pairs; n++) {
            double a = n < pairs ? sum[2 * n] : sum[n + pairs], b = n < pairs ? sum[2 * n + 1] : 0;
            sum[n] = r->dtype == ISO_F64 ? a + b : (double)((float)a + (float)b);
        }
        left -= pairs;
    }
    return sum[0];
}

static void create_rig(rig *r, iso__operation scatter, bool shared, iso_dtype dtype, size_t chunk,
                       size_t window) {
    size_t most = (size_t)MOST * (size_t)test_size, size = iso_dtype_size(dtype);
    iso__channel_item item[KINDS][ITEMS];
    *r = (rig){.shared = shared, .dtype = dtype};
    r->memory =
        shared ? (char *)shared_create(test_comm, most * ITEMS) : malloc(most * ITEMS * size);
    for (int i = 0; i < ITEMS; i++) {
        r->block[i] = channel_draw(&r->draws, i % 2 ? 20 : MOST) + 1;
        r->data[i] = r->memory + (size_t)i * most * size;
        for (int kind = 0; kind < KINDS; kind++)
            item[kind][kind == SCATTER ? i : ITEMS - 1 - i] =
                (iso__channel_item){.data = r->data[i],
                                    .bytes = r->block[i] * size,
                                    .dtype = dtype,
                                    .label = "block",
                                    .operation = kind == SCATTER ? scatter : ISO__GATHER};
    }
    for (int kind = 0; kind < KINDS; kind++)
        iso_assert_ok(
            iso__channel_create(test_comm, item[kind], ITEMS, chunk, window, &r->channel[kind]));
}
static void create(rig *r, bool shared, iso_dtype dtype, size_t chunk, size_t window) {
    create_rig(r, ISO__SCATTER, shared, dtype, chunk, window);
}

static void destroy(rig *r) {
    for (int kind = 0; kind < KINDS; kind++)
        iso_assert_all(iso__channel_destroy(&r->channel[kind]));
    float *memory = (float *)(void *)r->memory;
    if (r->shared)
        shared_destroy(test_comm, &memory);
    else
        free(r->memory);
}

static int number_of(int kind, int i) { return kind == SCATTER ? i : ITEMS - 1 - i; }

static iso_status scatter_all(rig *r) {
    int order[ITEMS];
    channel_shuffle_mine(&r->draws, order, ITEMS);
    for (int n = 0; n < ITEMS; n++) {
        int i = order[n];
        channel_stumble(&r->draws, 300);
        for (size_t k = 0; k < item_count(r, i); k++) put(r, i, k, given(r, test_rank, i, k));
        ISO_TRY(iso__channel_ready(r->channel[SCATTER], number_of(SCATTER, i)));
    }
    return ISO_OK;
}

// This rank's block is the sum, and the others are as they were.
static bool is_scattered(const rig *r, int i) {
    size_t first = r->block[i] * (size_t)test_rank;
    for (size_t k = 0; k < item_count(r, i); k++) {
        bool own = k >= first && k < first + r->block[i];
        if (get(r, i, k) != (own ? summed(r, i, k) : given(r, test_rank, i, k))) return false;
    }
    return true;
}

static bool is_gathered(const rig *r, int i) {
    for (size_t k = 0; k < item_count(r, i); k++)
        if (get(r, i, k) != summed(r, i, k)) return false;
    return true;
}

// Gathers begin while other scatters are under way, in the order of each rank.
static iso_status gather_all(rig *r, bool *right) {
    int order[ITEMS];
    channel_shuffle_mine(&r->draws, order, ITEMS);
    for (int n = 0; n < ITEMS; n++) {
        int i = order[n];
        ISO_TRY(iso__channel_wait(r->channel[SCATTER], number_of(SCATTER, i), NULL, NULL));
        *right = *right && is_scattered(r, i);
        channel_stumble(&r->draws, 300);
        ISO_TRY(iso__channel_ready(r->channel[GATHER], number_of(GATHER, i)));
    }
    return ISO_OK;
}

static iso_status collect_all(rig *r, bool *right) {
    int order[ITEMS];
    channel_shuffle_mine(&r->draws, order, ITEMS);
    for (int n = 0; n < ITEMS; n++) {
        int i = order[n];
        ISO_TRY(iso__channel_wait(r->channel[GATHER], number_of(GATHER, i), NULL, NULL));
        *right = *right && is_gathered(r, i);
    }
    return ISO_OK;
}

static void rounds(bool shared, iso_dtype dtype, size_t chunk, size_t window, int count) {
    rig r;
    create(&r, shared, dtype, chunk, window);
    bool right = true;
    for (r.round = 0; r.round < count; r.round++) {
        iso_status status = scatter_all(&r);
        if (status == ISO_OK) status = gather_all(&r, &right);
        if (status == ISO_OK) status = collect_all(&r, &right);
        iso_assert_ok(status);
        iso_assert_all(right);
    }
    destroy(&r);
}

static void many(bool shared, iso_dtype dtype, int count) {
    rounds(shared, dtype, 64, 64, count);             // one chunk at a time
    rounds(shared, dtype, 400, 3000, count);          // several
    rounds(shared, dtype, SIZE_MAX, SIZE_MAX, count); // whole items
}

Test(np1_blocks, of_one_rank) { many(false, ISO_F32, 3); }
Test(np2_blocks, by_messages) { many(false, ISO_F32, 20); }
Test(np3_blocks, by_messages) { many(false, ISO_F32, 10); }
Test(np4_blocks, by_messages) { many(false, ISO_F32, 6); }
Test(np2_blocks, of_f64) { many(false, ISO_F64, 20); }
Test(np3_blocks_poll, of_f64) { many(false, ISO_F64, 10); }
Test(np4_blocks_off, by_messages) { many(false, ISO_F32, 6); }
Test(np2_blocks, in_shared_memory) { many(true, ISO_F32, 20); }
Test(np3_blocks, in_shared_memory) { many(true, ISO_F32, 10); }
Test(np4_blocks, in_shared_memory) { many(true, ISO_F32, 6); }
Test(np3_blocks_poll, in_shared_memory) { many(true, ISO_F32, 10); }
Test(np4_blocks_off, in_shared_memory) { many(true, ISO_F32, 6); }

// ---- Two levels -------------------------------------------------------------------------------------

static void many_on_nodes(int count, iso_dtype dtype) {
    for (int turns = 0; turns < 2; turns++) {
        seat_on(count, turns);
        many(false, dtype, test_size > 4 ? 1 : 2);
    }
}

Test(np4_blocks, on_two_nodes) { many_on_nodes(2, ISO_F32); }
Test(np4_blocks_off, on_two_nodes) { many_on_nodes(2, ISO_F64); }
Test(np6_blocks, on_two_nodes) { many_on_nodes(2, ISO_F64); }
Test(np6_blocks, on_three_nodes) { many_on_nodes(3, ISO_F32); }
Test(np6_blocks, on_nodes_of_one_rank) { many_on_nodes(6, ISO_F32); }
Test(np4_blocks, on_nodes_of_one_rank) { many_on_nodes(4, ISO_F64); }

// A block crosses between two nodes once. On unequal nodes there is one level.
static void count_bytes(bool equal) {
    for (int kind = 0; kind < KINDS; kind++) {
        rig r;
        iso_traffic sent = {0};
        create(&r, false, ISO_F32, 400, 3000);
        iso__channel_count(r.channel[kind], number_of(kind, 1), &sent);
        int64_t bytes = (int64_t)(r.block[1] * sizeof(float)), beside = 0;
        for (int rank = 0; rank < test_size; rank++) beside += node_of(rank) == node_of(test_rank);
        iso_assert_all(iso__channel_in_two_levels(r.channel[kind], 0) == equal);
        iso_assert_all(sent.bytes_sent == (test_size - 1) * bytes);
        iso_assert_all(sent.bytes_between_nodes ==
                       (equal ? nodes - 1 : test_size - beside) * bytes);
        destroy(&r);
    }
}
Test(np6_blocks, blocks_cross_once) {
    seat_on(3, true);
    count_bytes(true);
}
Test(np3_blocks, unequal_nodes_have_one_level) {
    seat_on(2, true);
    count_bytes(false);
    nodes = 1; // added in rank order
    many(false, ISO_F32, 3);
}

// ---- A scatter among the ranks of each node ---------------------------------------------------------

// Blocks k * nodes and the following ones are the sum over all ranks on the k-th rank of each node;
// the others are as they were.
static bool is_scattered_in_nodes(const rig *r, int i) {
    size_t part = r->block[i] * (size_t)nodes;
    int place = in_turn ? test_rank / nodes : test_rank % (test_size / nodes);
    for (size_t k = 0; k < item_count(r, i); k++) {
        bool own = k / part == (size_t)place;
        if (get(r, i, k) != (own ? summed(r, i, k) : given(r, test_rank, i, k))) return false;
    }
    return true;
}

static void scatter_in_nodes(iso_dtype dtype, size_t chunk, size_t window, int count) {
    rig r;
    bool right = true;
    create_rig(&r, ISO__NODE_SCATTER, false, dtype, chunk, window);
    for (r.round = 0; r.round < count; r.round++) {
        iso_assert_ok(scatter_all(&r));
        for (int i = ITEMS - 1; i >= 0; i--) {
            iso_assert_ok(iso__channel_wait(r.channel[SCATTER], i, NULL, NULL));
            right = right && is_scattered_in_nodes(&r, i);
        }
        iso_assert_all(right);
    }
    destroy(&r);
}

static void many_in_nodes(int count, iso_dtype dtype) {
    for (int turns = 0; turns < 2; turns++) {
        seat_on(count, turns);
        scatter_in_nodes(dtype, 400, 3000, 3);
        scatter_in_nodes(dtype, SIZE_MAX, SIZE_MAX, 3);
    }
}

Test(np4_blocks, among_the_ranks_of_two_nodes) { many_in_nodes(2, ISO_F32); }
Test(np4_blocks, among_the_ranks_of_four_nodes) { many_in_nodes(4, ISO_F64); }
Test(np6_blocks, among_the_ranks_of_two_nodes) { many_in_nodes(2, ISO_F64); }
Test(np6_blocks, among_the_ranks_of_three_nodes) { many_in_nodes(3, ISO_F32); }

Test(np2_blocks, scatters_in_nodes_need_equal_nodes) {
    float data[2] = {0};
    iso__channel *channel = NULL;
    iso__channel_item item = {
        .data = data, .bytes = 4, .dtype = ISO_F32, .label = "fc1", .operation = ISO__NODE_SCATTER};
    iso_assert_all(iso__channel_create(test_comm, &item, 1, 64, 64, &channel) ==
                   ISO_ERR_UNSUPPORTED);
    cr_assert(
        strstr(iso_last_error()->message, "\"fc1\" is scattered among the ranks of each node"));
}

// ---- All-to-all -------------------------------------------------------------------------------------

// What a rank holds for another: element k of an item.
static int64_t held(int from, int to, int i, int round, size_t k) {
    return (((int64_t)from * 8 + to) * ITEMS + i) * 1000 + round + ((int64_t)k << 32);
}

// Each block in its place, of every item.
static bool is_exchanged(const rig *r, int i) {
    const int64_t *data = (const int64_t *)(void *)r->data[i];
    for (int from = 0; from < test_size; from++)
        for (size_t k = 0; k < r->block[i]; k++)
            if (*data++ != held(from, test_rank, i, r->round, k)) return false;
    return true;
}

static void fill_blocks(rig *r, int i) {
    int64_t *data = (int64_t *)(void *)r->data[i];
    for (int to = 0; to < test_size; to++)
        for (size_t k = 0; k < r->block[i]; k++) *data++ = held(test_rank, to, i, r->round, k);
}

static void create_exchange(rig *r, size_t chunk, size_t window) {
    iso__channel_item item[ITEMS];
    size_t most = (size_t)MOST * (size_t)test_size * sizeof(int64_t);
    *r = (rig){.memory = malloc(most * ITEMS)};
    for (int i = 0; i < ITEMS; i++) {
        r->block[i] = channel_draw(&r->draws, i % 2 ? 20 : MOST) + 1;
        r->data[i] = r->memory + (size_t)i * most;
        item[i] = (iso__channel_item){.data = r->data[i],
                                      .bytes = r->block[i] * sizeof(int64_t),
                                      .dtype = ISO_I64,
                                      .label = "block",
                                      .operation = ISO__ALLTOALL};
    }
    iso_assert_ok(iso__channel_create(test_comm, item, ITEMS, chunk, window, &r->channel[0]));
}

static iso_status exchange_all(rig *r, bool *right) {
    int order[ITEMS];
    channel_shuffle_mine(&r->draws, order, ITEMS);
    for (int n = 0; n < ITEMS; n++) {
        channel_stumble(&r->draws, 300);
        fill_blocks(r, order[n]);
        ISO_TRY(iso__channel_ready(r->channel[0], order[n]));
    }
    for (int n = ITEMS - 1; n >= 0; n--) {
        ISO_TRY(iso__channel_wait(r->channel[0], order[n], NULL, NULL));
        *right = *right && is_exchanged(r, order[n]);
    }
    return ISO_OK;
}

static void exchanges(size_t chunk, size_t window, int count) {
    rig r;
    bool right = true;
    create_exchange(&r, chunk, window);
    for (r.round = 0; r.round < count; r.round++) {
        iso_assert_ok(exchange_all(&r, &right));
        iso_assert_all(right);
    }
    iso_assert_all(iso__channel_destroy(&r.channel[0]));
    free(r.memory);
}

static void many_exchanges(int count) {
    exchanges(64, 64, count);
    exchanges(400, 3000, count);
    exchanges(SIZE_MAX, SIZE_MAX, count);
}

Test(np1_blocks, all_to_all) { many_exchanges(3); }
Test(np2_blocks, all_to_all) { many_exchanges(10); }
Test(np3_blocks, all_to_all) { many_exchanges(6); }
Test(np4_blocks, all_to_all) { many_exchanges(4); }
Test(np3_blocks_poll, all_to_all) { many_exchanges(6); }
Test(np4_blocks_off, all_to_all) { many_exchanges(4); }

// ---- Refused ----------------------------------------------------------------------------------------

Test(np2_blocks, integers_are_not_summed) {
    int64_t data = 0;
    iso__channel *channel = NULL;
    iso__channel_item item = {.data = &data, .bytes = 8, .dtype = ISO_I64, .label = "counts"};
    iso_assert_all(iso__channel_create(test_comm, &item, 1, 64, 64, &channel) ==
                   ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "counts"));
}

Test(np2_blocks, sixteen_bits_are_refused) {
    uint16_t data[2] = {0};
    iso__channel *channel = NULL;
    iso__channel_item item = {
        .data = data, .bytes = 2, .dtype = ISO_BF16, .label = "half", .operation = ISO__SCATTER};
    iso_assert_all(iso__channel_create(test_comm, &item, 1, 64, 64, &channel) ==
                   ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "half"));
}
