// SPDX-License-Identifier: MIT
// All-reduces of bf16 and f16 on 1 to 5 ranks: against sums that are known, and every rank the same
// bits.
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"
#include "exchange/codec.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static void setup_algorithm(const char *number) {
    setenv("ISO_IALLREDUCE", number, 1);
    test_mpi_setup();
}
static void setup_own_choice(void) { setup_algorithm("0"); }
static void setup_ring(void) { setup_algorithm("1"); }
static void setup_binomial(void) { setup_algorithm("2"); }
static void setup_doubling(void) { setup_algorithm("4"); }

TestSuite(np1_sum16, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sum16, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sum16, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_sum16, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_sum16, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_sum16_own_choice, .init = setup_own_choice, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_sum16_ring, .init = setup_ring, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_sum16_binomial, .init = setup_binomial, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_sum16_doubling, .init = setup_doubling, .fini = test_mpi_teardown, .timeout = 60);

enum { PART = 512 * 1024 / 2, MOST = 3 * PART, GUARD = 8 };
static const iso_dtype types[] = {ISO_BF16, ISO_F16};
// One rank's numbers, below the ranks and around them; whole parts and what is left over.
static const size_t counts[] = {1,   2, 3, 4, 5, 63, 64, 65, 1000, PART, PART + 1, 2 * PART - 1,
                                MOST};
enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };
static uint16_t data[MOST + GUARD], again[MOST + GUARD];

static uint16_t encoded(iso_dtype type, float x) {
    uint16_t h;
    iso__codec_of(type)->encode(1, &x, 1, &h);
    return h;
}

static float decoded(iso_dtype type, uint16_t h) {
    float x;
    iso__codec_of(type)->decode(1, &h, &x);
    return x;
}

static float rounded(iso_dtype type, float x) { return decoded(type, encoded(type, x)); }

// Of many magnitudes, so that the order of a sum shows in its bits.
static float value_of(int rank, int exchange, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)rank, (uint32_t)exchange}, bits[4];
    iso__philox(iso__philox_key_make(7, ISO_RNG_TEST, 0), counter, bits);
    return ldexpf(iso__uniform(bits[0]) - 0.5f, (int)(bits[1] % 10));
}

static void fill(iso_dtype type, uint16_t *out, size_t count, int exchange) {
    for (size_t i = 0; i < count; i++) out[i] = encoded(type, value_of(test_rank, exchange, i));
}

static iso_status sum(iso_dtype type, uint16_t *x, size_t count) {
    iso_request *request;
    ISO_TRY(iso_comm_iallreduce(test_comm, x, count, type, "sum", &request));
    return iso_request_wait(&request);
}

// Collective. Whether all ranks have the same bytes.
static bool equal_everywhere(const void *x, size_t bytes) {
    uint64_t hash = iso__hash(ISO_HASH_START, x, bytes);
    int64_t range[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
    return iso_comm_allreduce_i64(test_comm, range, 2, ISO_MAX) == ISO_OK && range[0] == -range[1];
}

// ---- Values -----------------------------------------------------------------------------------------

// Small whole numbers are exact in any order: 5 ranks give at most 75.
static void whole_numbers(void) {
    for (int c = 0; c < 2 * COUNTS; c++) {
        iso_dtype type = types[c % 2];
        size_t n = counts[c / 2], wrong = 0;
        for (size_t i = 0; i < n + GUARD; i++)
            data[i] = encoded(type, i < n ? (float)((test_rank + 1) * (int)(i % 6)) : 77);
        iso_assert_ok(sum(type, data, n));
        float ranks = (float)(test_size * (test_size + 1) / 2);
        for (size_t i = 0; i < n; i++) wrong += decoded(type, data[i]) != ranks * (float)(i % 6);
        for (size_t i = n; i < n + GUARD; i++) wrong += decoded(type, data[i]) != 77;
        iso_assert_all(wrong == 0);
    }
}

Test(np1_sum16, whole_numbers_are_exact) { whole_numbers(); }
Test(np2_sum16, whole_numbers_are_exact) { whole_numbers(); }
Test(np3_sum16, whole_numbers_are_exact) { whole_numbers(); }
Test(np4_sum16, whole_numbers_are_exact) { whole_numbers(); }
Test(np5_sum16, whole_numbers_are_exact) { whole_numbers(); }

// Two ranks: the sum in f32, rounded once. A sum that lost bits on the way would not be that.
Test(np2_sum16, two_ranks_round_the_exact_sum) {
    for (int t = 0; t < 2; t++) {
        size_t wrong = 0;
        fill(types[t], data, PART + 5, 1);
        iso_assert_ok(sum(types[t], data, PART + 5));
        for (size_t i = 0; i < PART + 5; i++) {
            float x = rounded(types[t], value_of(0, 1, i)),
                  y = rounded(types[t], value_of(1, 1, i));
            wrong += data[i] != encoded(types[t], x + y);
        }
        iso_assert_all(wrong == 0);
    }
}

// Three ranks: one of the three orders there are.
Test(np3_sum16, three_ranks_round_after_every_addition) {
    for (int t = 0; t < 2; t++) {
        size_t wrong = 0;
        fill(types[t], data, PART + 5, 1);
        iso_assert_ok(sum(types[t], data, PART + 5));
        for (size_t i = 0; i < PART + 5; i++) {
            float x[3];
            bool found = false;
            for (int r = 0; r < 3; r++) x[r] = rounded(types[t], value_of(r, 1, i));
            for (int r = 0; r < 3; r++) {
                float two = rounded(types[t], x[r] + x[(r + 1) % 3]);
                found = found || data[i] == encoded(types[t], two + x[(r + 2) % 3]);
            }
            wrong += !found;
        }
        iso_assert_all(wrong == 0);
    }
}

// 256 + 1 is a tie in bf16, 2048 + 1 in f16: to even, that is down; 259 and 2051 go up.
Test(np2_sum16, ties_go_to_even) {
    const float most[] = {256, 2048};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < 2; i++)
            data[i] = encoded(types[t], test_rank == 0 ? most[t] : (float)(1 + 2 * i));
        iso_assert_ok(sum(types[t], data, 2));
        iso_assert_all(decoded(types[t], data[0]) == most[t]);
        iso_assert_all(decoded(types[t], data[1]) == most[t] + 4);
    }
}

// What one rank cannot represent all ranks must see.
static void not_finite(void) {
    const float large[] = {3e38f, 60000};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < 100; i++) data[i] = encoded(types[t], 1);
        data[10] = encoded(types[t], large[t]);
        data[20] = encoded(types[t], test_rank == test_size - 1 ? NAN : 1);
        data[30] = encoded(types[t], test_rank == 0 ? INFINITY : 1);
        data[40] = encoded(types[t], test_rank == 0 ? INFINITY : -INFINITY);
        iso_assert_ok(sum(types[t], data, 100));
        iso_assert_all(isinf(decoded(types[t], data[10])) && isnan(decoded(types[t], data[20])));
        iso_assert_all(isinf(decoded(types[t], data[30])) && isnan(decoded(types[t], data[40])));
        iso_assert_all(decoded(types[t], data[0]) == (float)test_size);
        iso_assert_all(equal_everywhere(data, 200));
    }
}

Test(np2_sum16, what_is_not_finite_is_seen_by_all) { not_finite(); }
Test(np3_sum16, what_is_not_finite_is_seen_by_all) { not_finite(); }
Test(np5_sum16, what_is_not_finite_is_seen_by_all) { not_finite(); }

// ---- The same bits ----------------------------------------------------------------------------------

static void same_bits(void) {
    for (int c = 0; c < 2 * COUNTS; c++) {
        fill(types[c % 2], data, counts[c / 2], c);
        iso_assert_ok(sum(types[c % 2], data, counts[c / 2]));
        iso_assert_all(equal_everywhere(data, 2 * counts[c / 2]));
    }
}

Test(np2_sum16, ranks_get_the_same_bits) { same_bits(); }
Test(np3_sum16, ranks_get_the_same_bits) { same_bits(); }
Test(np4_sum16, ranks_get_the_same_bits) { same_bits(); }
Test(np5_sum16, ranks_get_the_same_bits) { same_bits(); }
Test(np5_sum16_own_choice, ranks_get_the_same_bits) { same_bits(); }
Test(np5_sum16_ring, ranks_get_the_same_bits) { same_bits(); }
Test(np5_sum16_binomial, ranks_get_the_same_bits) { same_bits(); }
Test(np5_sum16_doubling, ranks_get_the_same_bits) { same_bits(); }

// So that no plan of parts changes what a run computes.
static void pieces_give_the_same_bits(void) {
    enum { WHOLE = 2 * PART + 100 };
    const size_t cut[] = {0, 64, 1000, 70000, 70064, PART + 1, WHOLE};
    for (int t = 0; t < 2; t++) {
        fill(types[t], data, WHOLE, 3);
        fill(types[t], again, WHOLE, 3);
        iso_assert_ok(sum(types[t], data, WHOLE));
        iso_status status = ISO_OK;
        for (int c = 0; c < 6 && status == ISO_OK; c++)
            status = sum(types[t], again + cut[c], cut[c + 1] - cut[c]);
        iso_assert_ok(status);
        iso_assert_all(memcmp(data, again, 2 * WHOLE) == 0);
    }
}

Test(np3_sum16, pieces_give_the_same_bits) { pieces_give_the_same_bits(); }
Test(np4_sum16, pieces_give_the_same_bits) { pieces_give_the_same_bits(); }
Test(np5_sum16, pieces_give_the_same_bits) { pieces_give_the_same_bits(); }

// ---- Beside others ----------------------------------------------------------------------------------

// Memory that ranks share sums f32 by itself; 16 bit there goes by messages.
Test(np3_sum16, in_shared_memory_too) {
    void *memory = NULL;
    iso_assert_ok(shared_alloc(test_comm, 4096, &memory));
    float *f32 = memory;
    uint16_t *f16 = (uint16_t *)(f32 + 512);
    iso_request *first, *second;
    for (size_t i = 0; i < 512; i++) f32[i] = 1, f16[i] = encoded(ISO_F16, 2);
    iso_assert_ok(iso_comm_iallreduce(test_comm, f32, 512, ISO_F32, "f32", &first));
    iso_assert_ok(iso_comm_iallreduce(test_comm, f16, 512, ISO_F16, "f16", &second));
    iso_assert_ok(iso_request_wait(&second));
    iso_assert_ok(iso_request_wait(&first));
    size_t wrong = 0;
    for (size_t i = 0; i < 512; i++) wrong += f32[i] != 3 || decoded(ISO_F16, f16[i]) != 6;
    iso_assert_all(wrong == 0);
    shared_free(test_comm, &memory);
}

Test(np2_sum16, whole_number_types_are_refused) {
    iso_request *request;
    int64_t x = 1;
    iso_assert_all(iso_comm_iallreduce(test_comm, &x, 1, ISO_I64, "i64", &request) ==
                   ISO_ERR_UNSUPPORTED);
}
