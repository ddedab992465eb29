// SPDX-License-Identifier: MIT
// Sums by pairwise exchange, on numbers of ranks that are no power of two: against the order of
// additions that isotherm/comm.h gives, for every type, length and chunk.
#include "comm/channel.h"
#include "comm/comm_state.h"
#include "comm/pairwise.h"
#include "comm/traffic.h"
#include "common/balance.h"
#include "common/mpi_fixture.h"
#include "exchange/codec.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void setup_rabenseifner(void) {
    setenv("ISO_IALLREDUCE", "3", 1);
    test_mpi_setup();
}
static void setup_poll(void) {
    setenv("ISO_PROGRESS", "poll", 1);
    test_mpi_setup();
}
static void setup_halving(void) {
    setenv("ISO_IALLREDUCE", "6", 1);
    test_mpi_setup();
}
static void setup_halving_poll(void) {
    setenv("ISO_IALLREDUCE", "6", 1);
    setup_poll();
}

#define SUITE(ranks)                                                                               \
    TestSuite(np##ranks##_pairwise, .init = test_mpi_setup, .fini = test_mpi_teardown,             \
              .timeout = 60)
SUITE(3);
SUITE(4);
SUITE(5);
SUITE(6);
SUITE(7);
SUITE(17);
TestSuite(np3_pairwise_poll, .init = setup_poll, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_pairwise_never, .init = setup_rabenseifner, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_pairwise_never, .init = setup_rabenseifner, .fini = test_mpi_teardown, .timeout = 60);
// MPI's own algorithm, which is not known: a ring is assumed.
static void setup_unknown(void) {
    setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "0", 1);
    test_mpi_setup();
}
TestSuite(np5_pairwise_unknown, .init = setup_unknown, .fini = test_mpi_teardown, .timeout = 60);

// By halves, as between more than 128 ranks.
#define HALVING_SUITE(ranks)                                                                       \
    TestSuite(np##ranks##_halving, .init = setup_halving, .fini = test_mpi_teardown, .timeout = 60)
HALVING_SUITE(3);
HALVING_SUITE(4);
HALVING_SUITE(5);
HALVING_SUITE(6);
HALVING_SUITE(7);
HALVING_SUITE(17);
TestSuite(np7_halving_poll, .init = setup_halving_poll, .fini = test_mpi_teardown, .timeout = 60);

// ---- In MPI's place -------------------------------------------------------------------------------

static bool watching;
static int reductions, messages;
static int64_t sent;

int MPI_Iallreduce(const void *send, void *data, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    reductions += watching;
    return PMPI_Iallreduce(send, data, count, type, op, comm, request);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    if (watching) {
        messages++;
        sent += (int64_t)count * size;
    }
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

// ---- Numbers --------------------------------------------------------------------------------------

// Of many magnitudes, so that the order of a sum shows in its bits.
static double value_of(int rank, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)rank}, bits[4];
    iso__philox(iso__philox_key_make(7, ISO_RNG_TEST, 0), counter, bits);
    double digits = (bits[0] + bits[2] * 0x1p-32) * 0x1p-32 - 0.5; // as many as an f64 has
    return ldexp(digits, (int)(bits[1] % 10));
}

static double rounded(iso_dtype type, double x) {
    if (type == ISO_F64) return x;
    float f = (float)x;
    uint16_t h;
    if (type == ISO_F32) return f;
    iso__codec_of(type)->encode(1, &f, 1, &h);
    iso__codec_of(type)->decode(1, &h, &f);
    return f;
}

static double read_value(iso_dtype type, const void *data, size_t i) {
    float f;
    if (type == ISO_F64) return ((const double *)data)[i];
    if (type == ISO_F32) return ((const float *)data)[i];
    iso__codec_of(type)->decode(1, (const uint16_t *)data + i, &f);
    return f;
}

static void write_value(iso_dtype type, void *data, size_t i, double x) {
    float f = (float)x;
    if (type == ISO_F64)
        ((double *)data)[i] = x;
    else if (type == ISO_F32)
        ((float *)data)[i] = f;
    else
        iso__codec_of(type)->encode(1, &f, 1, (uint16_t *)data + i);
}

// The order of isotherm/comm.h. A sum of two numbers in f64, rounded, is that of f32 and of 16
// bits.
static double sum_of(iso_dtype type, size_t i) {
    double part[32];
    int power = 1;
    while (2 * power <= test_size) power *= 2;
    int beyond = test_size - power;
    for (int r = 0; r < test_size; r++) part[r] = rounded(type, value_of(r, i));
    for (int v = 0; v < power; v++)
        part[v] = v < beyond ? rounded(type, part[2 * v] + part[2 * v + 1]) : part[v + beyond];
    for (; power > 1; power /= 2)
        for (int v = 0; v < power / 2; v++) part[v] = rounded(type, part[2 * v] + part[2 * v + 1]);
    return part[0];
}

// ---- Sums -----------------------------------------------------------------------------------------

typedef struct rig {
    iso__channel *channel;
    iso_dtype type;
    size_t count;
    void *data; // with a guard of one element
} rig;

static void create_rig(rig *r, iso_comm *comm, iso_dtype type, size_t count, size_t chunk) {
    *r = (rig){.type = type, .count = count};
    r->data = malloc((count + 1) * iso_dtype_size(type));
    const iso__channel_item item = {
        .data = r->data, .bytes = count * iso_dtype_size(type), .dtype = type, .label = "x"};
    iso_assert_ok(iso__channel_create(comm, &item, 1, chunk, 3 * chunk, &r->channel));
}

static void destroy_rig(rig *r) {
    iso_assert_all(iso__channel_destroy(&r->channel));
    free(r->data);
}

static iso_status sum(rig *r) {
    for (size_t i = 0; i < r->count; i++) write_value(r->type, r->data, i, value_of(test_rank, i));
    write_value(r->type, r->data, r->count, 77);
    watching = true;
    iso_status status = iso__channel_ready(r->channel, 0);
    if (status == ISO_OK) status = iso__channel_wait(r->channel, 0, NULL, NULL);
    watching = false;
    return status;
}

static bool is_summed(const rig *r) {
    for (size_t i = 0; i < r->count; i++)
        if (read_value(r->type, r->data, i) != sum_of(r->type, i)) return false;
    return read_value(r->type, r->data, r->count) == 77;
}

static void has_one_order(iso_dtype type, size_t count, size_t chunk) {
    rig r;
    create_rig(&r, test_comm, type, count, chunk);
    for (int round = 0; round < 3; round++) {
        iso_assert_ok(sum(&r));
        iso_assert_all(is_summed(&r));
    }
    destroy_rig(&r);
}

static void every_type_and_length(const size_t *length, int lengths) {
    static const iso_dtype types[] = {ISO_F32, ISO_F64, ISO_BF16, ISO_F16};
    static const size_t chunks[] = {64, 1024, 1 << 20};
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < lengths; k++)
            for (int c = 0; c < 3; c++)
                if (length[k] < 100 * chunks[c]) has_one_order(types[t], length[k], chunks[c]);
}

// Fewer elements than ranks, and than a slice begins at; whole slices, and what is left over.
static const size_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 47, 48, 49, 80, 95, 113, 1000, 4099};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

static void sums_have_one_order(void) {
    every_type_and_length(lengths, LENGTHS);
    iso_assert_all(reductions == 0 && messages > 0);
}

Test(np3_pairwise, sums_have_one_order) { sums_have_one_order(); }
Test(np5_pairwise, sums_have_one_order) { sums_have_one_order(); }
Test(np6_pairwise, sums_have_one_order) { sums_have_one_order(); }
Test(np7_pairwise, sums_have_one_order) { sums_have_one_order(); }
Test(np3_pairwise_poll, sums_have_one_order) { sums_have_one_order(); }

Test(np3_halving, sums_have_one_order) { sums_have_one_order(); }
Test(np5_halving, sums_have_one_order) { sums_have_one_order(); }
Test(np6_halving, sums_have_one_order) { sums_have_one_order(); }
Test(np7_halving, sums_have_one_order) { sums_have_one_order(); }
Test(np7_halving_poll, sums_have_one_order) { sums_have_one_order(); }

// A rank more than a power of two.
static void of_seventeen_ranks_have_one_order(void) {
    static const size_t some[] = {1, 300, 4099};
    for (int k = 0; k < 3; k++) has_one_order(ISO_F32, some[k], 1 << 20);
    iso_assert_all(reductions == 0 && messages > 0);
}
Test(np17_pairwise, sums_have_one_order) { of_seventeen_ranks_have_one_order(); }
Test(np17_halving, sums_have_one_order) { of_seventeen_ranks_have_one_order(); }

static void chunks_suffice(const char *per_node, size_t expected) {
    setenv("ISO_RANKS_PER_NODE", per_node, 1);
    iso_assert_ok(iso__comm_locate(test_comm));
    iso__channel_needs needs = iso__channel_needs_for(test_comm, NULL);
    iso_assert_all(needs.chunk == expected && needs.under_way == 2);
}

// Up to 8 KiB for each rank that a message goes to.
Test(np3_pairwise, chunks_are_not_cut_into_short_messages) { chunks_suffice("1", 3 * 8192); }
Test(np4_pairwise, other_sums_take_any_chunk) { chunks_suffice("1", 0); }
Test(np3_halving, sums_take_any_chunk) { chunks_suffice("1", 0); }

Test(np6_pairwise, chunks_of_two_levels_are_as_long_for_each_slice) {
    iso__channel_nodes three = {.nodes = 3, .slices = 2}, two = {.nodes = 2, .slices = 3};
    chunks_suffice("1", 6 * 8192);
    iso_assert_all(iso__channel_needs_for(test_comm, &three).chunk == 2 * 3 * 8192);
    iso_assert_all(iso__channel_needs_for(test_comm, &two).chunk == 0);
}

// So the bits of a run are those of MPI's algorithm, if it is known: with few elements it is a
// ring.
static void has_the_bits_of_rabenseifners(void) {
    static const size_t long_enough[] = {48, 80, 1000, 4104};
    if (!strstr(iso_comm_algorithm_text(test_comm), "Rabenseifner"))
        test_mpi_skip("MPI does not say by which algorithm it sums");
    every_type_and_length(long_enough, 4);
    iso_assert_all(reductions > 0 && messages == 0);
}

Test(np3_pairwise_never, has_the_bits_of_rabenseifners) { has_the_bits_of_rabenseifners(); }
Test(np5_pairwise_never, has_the_bits_of_rabenseifners) { has_the_bits_of_rabenseifners(); }

static void is_not_for_a_power_of_two(void) {
    has_one_order(ISO_F32, 1000, 1024);
    iso_assert_all(reductions > 0 && messages == 0);
}
Test(np4_pairwise, is_not_for_a_power_of_two) { is_not_for_a_power_of_two(); }
Test(np4_halving, is_not_for_a_power_of_two) { is_not_for_a_power_of_two(); }

static iso__sum_cost cost_apart(int algorithm, int ranks) {
    int64_t node_of[1000];
    for (int r = 0; r < ranks; r++) node_of[r] = r;
    return iso__sum_cost_of(algorithm, node_of, ranks);
}

// With one rank more than sum directly.
Test(np3_pairwise, is_by_halves_between_many_ranks) {
    iso__engine *engine = test_comm->engine;
    bool directly = iso__pairwise_choice(engine, 127) == ISO_SUM_PAIRWISE;
    bool halves = iso__pairwise_choice(engine, 129) == ISO_SUM_HALVING &&
                  iso__pairwise_choice(engine, 1000) == ISO_SUM_HALVING;
    double all = cost_apart(ISO_SUM_HALVING, 1000).all;
    iso_assert_all(directly && halves && iso__pairwise_choice(engine, 128) == 0 &&
                   iso__pairwise_choice(engine, 1024) == 0);
    iso_assert_all(fabs(all - 2 * 999) < 1e-6);
}

// ---- Bytes ----------------------------------------------------------------------------------------

// All ranks together send 2 (P - 1) times the data, the least that a sum takes. No rank sends more
// than 2 - 1 / Q times the data, Q the power of two below P, but for what slices and halves differ
// by. Rabenseifner's algorithm sends up to 5/2 times.
static void sends_the_least(void) {
    enum { COUNT = 7001 };
    rig r;
    iso_traffic counted = {0};
    create_rig(&r, test_comm, ISO_F32, COUNT, 4096);
    iso_assert_ok(iso__comm_locate(test_comm));
    iso_assert_ok(sum(&r));
    iso__channel_count(r.channel, 0, &counted);
    int64_t all[2] = {sent, counted.bytes_sent};
    int power = test_size == 3 ? 2 : 4;
    bool fair = sent <= (int64_t)sizeof(float) * (2 * COUNT - COUNT / power + 128);
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, all, 2, ISO_SUM));
    iso_assert_all(all[0] == 2 * (test_size - 1) * COUNT * (int64_t)sizeof(float));
    iso_assert_all(all[1] == all[0]);
    iso_assert_all(fair);
    destroy_rig(&r);
}

Test(np3_pairwise, sends_the_least) { sends_the_least(); }
Test(np5_pairwise, sends_the_least) { sends_the_least(); }
Test(np3_halving, sends_the_least) { sends_the_least(); }
Test(np5_halving, sends_the_least) { sends_the_least(); }
Test(np7_halving, sends_the_least) { sends_the_least(); }

// Ranks of a node are better added before anything leaves it, as MPI's all-reduce does.
static void leaves_nodes_with_several_ranks_to_mpi(const char *ranks_per_node, bool several) {
    rig r;
    setenv("ISO_RANKS_PER_NODE", ranks_per_node, 1);
    iso_assert_ok(iso__comm_locate(test_comm));
    create_rig(&r, test_comm, ISO_BF16, 3000, 1024);
    reductions = messages = 0;
    iso_assert_ok(sum(&r));
    iso_assert_all(is_summed(&r));
    iso_assert_all(several ? reductions > 0 && messages == 0 : reductions == 0 && messages > 0);
    destroy_rig(&r);
}

Test(np6_pairwise, leaves_nodes_with_several_ranks_to_mpi) {
    leaves_nodes_with_several_ranks_to_mpi("2", true);
    leaves_nodes_with_several_ranks_to_mpi("3", true);
    leaves_nodes_with_several_ranks_to_mpi("1", false);
}
Test(np3_pairwise, leaves_nodes_with_several_ranks_to_mpi) {
    // By a ring, which is assumed of an unknown algorithm, as much would cross between two nodes.
    bool known = strstr(iso_comm_algorithm_text(test_comm), "Rabenseifner");
    leaves_nodes_with_several_ranks_to_mpi("2", known);
    leaves_nodes_with_several_ranks_to_mpi("3", false); // nothing leaves the node
}

// By halves, ranks exchange with the partners of MPI's algorithm, so that no more crosses.
Test(np6_halving, takes_nodes_with_several_ranks) {
    if (!strstr(iso_comm_algorithm_text(test_comm), "Rabenseifner"))
        test_mpi_skip("MPI does not say by which algorithm it sums");
    leaves_nodes_with_several_ranks_to_mpi("2", false);
    leaves_nodes_with_several_ranks_to_mpi("3", false);
}

Test(np5_pairwise_unknown, is_for_ranks_on_nodes_of_their_own) {
    leaves_nodes_with_several_ranks_to_mpi("1", false);
}

// ---- Memory ---------------------------------------------------------------------------------------

enum { ITEMS = 16, EACH = 1000 };

static void list_items(iso__channel_item *item, float (*data)[EACH]) {
    for (int i = 0; i < ITEMS; i++)
        item[i] = (iso__channel_item){
            .data = data[i], .bytes = sizeof(data[i]), .dtype = ISO_F32, .label = "x"};
}

// Not even in a round in which all sums are under way at once, because the other ranks are late.
static void later_rounds_allocate_nothing(size_t window) {
    static float data[ITEMS][EACH];
    iso__channel_item item[ITEMS];
    iso__channel *c;
    bool same = true;
    list_items(item, data);
    iso_assert_ok(iso__channel_create(test_comm, item, ITEMS, SIZE_MAX, window, &c));
    for (int round = 0; round < 8; round++) {
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        MPI_Barrier(MPI_COMM_WORLD);
        if (round > 5 && test_rank > 0) usleep(30000);
        iso_status status = ISO_OK;
        for (int i = 0; i < ITEMS && status == ISO_OK; i++) {
            status = iso__channel_ready(c, i);
            if (round <= 5 && status == ISO_OK) status = iso__channel_wait(c, i, NULL, NULL);
        }
        for (int i = 0; i < ITEMS && status == ISO_OK; i++)
            status = iso__channel_wait(c, i, NULL, NULL);
        iso_memory_balance(NULL, NULL, &after);
        iso_assert_ok(status);
        same = same && (round < 1 || after == before);
    }
    iso_assert_all(same);
    iso_assert_all(iso__channel_destroy(&c));
}

Test(np3_pairwise, later_rounds_allocate_nothing) { later_rounds_allocate_nothing(SIZE_MAX); }
Test(np3_halving, later_rounds_allocate_nothing) { later_rounds_allocate_nothing(SIZE_MAX); }
Test(np7_halving, later_rounds_allocate_nothing) { later_rounds_allocate_nothing(SIZE_MAX); }
Test(np5_pairwise, later_rounds_allocate_nothing) { later_rounds_allocate_nothing(SIZE_MAX); }
Test(np5_pairwise, later_rounds_allocate_nothing_in_a_window) {
    later_rounds_allocate_nothing(3 * EACH * sizeof(float));
}
Test(np5_halving, later_rounds_allocate_nothing_in_a_window) {
    later_rounds_allocate_nothing(3 * EACH * sizeof(float));
}

// One long item among short ones: blocks for it once, and not for each.
Test(np3_pairwise, takes_memory_for_what_is_summed) {
    enum { LONG = 1 << 20 };
    static float data[ITEMS][EACH];
    iso__channel_item item[ITEMS];
    iso__channel *c;
    long long before, after;
    float *large = calloc(LONG, sizeof(float));
    list_items(item, data);
    item[3].data = large;
    item[3].bytes = LONG * sizeof(float);
    iso_memory_balance(NULL, &before, NULL);
    iso_assert_ok(iso__channel_create(test_comm, item, ITEMS, SIZE_MAX, SIZE_MAX, &c));
    iso_memory_balance(NULL, &after, NULL);
    iso_assert_all(after - before < (long long)(LONG * sizeof(float)));
    iso_assert_all(iso__channel_destroy(&c));
    free(large);
}

// More sums than there are tags, with ranks of random speed.
static void tags_repeat(void) {
    enum { SUMS = 60, ROUNDS = 160, COUNT = 64 }; // 9600
    static float data[SUMS][COUNT];
    iso__channel_item item[SUMS];
    iso__channel *c;
    unsigned seed = (unsigned)test_rank;
    bool right = true;
    for (int i = 0; i < SUMS; i++)
        item[i] = (iso__channel_item){
            .data = data[i], .bytes = sizeof(data[i]), .dtype = ISO_F32, .label = "x"};
    iso_assert_ok(iso__channel_create(test_comm, item, SUMS, SIZE_MAX, SIZE_MAX, &c));
    for (int round = 0; round < ROUNDS && right; round++) {
        for (int i = 0; i < SUMS; i++) {
            for (int k = 0; k < COUNT; k++) data[i][k] = (float)(i + k + round + test_rank);
            seed = seed * 1103515245u + 12345u;
            if ((seed >> 16) % 40 == 0) usleep((seed >> 18) % 700);
            right = right && iso__channel_ready(c, i) == ISO_OK;
        }
        for (int i = 0; i < SUMS; i++) {
            right = right && iso__channel_wait(c, i, NULL, NULL) == ISO_OK;
            for (int k = 0; k < COUNT; k++)
                right = right && data[i][k] == (float)(3 * (i + k + round) + 3);
        }
    }
    iso_assert_all(right);
    iso_assert_all(iso__channel_destroy(&c));
}
Test(np3_pairwise, tags_repeat) { tags_repeat(); }
Test(np3_halving, tags_repeat) { tags_repeat(); }
