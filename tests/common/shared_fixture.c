// SPDX-License-Identifier: MIT
// For tests of memory that ranks share: its life, and sums whose bits tell the order of the ranks.
#include "common/shared_fixture.h"

#include "comm/comm_calls.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

iso_status shared_alloc(iso_comm *comm, size_t bytes, void **memory) {
    void *made;
    ISO_TRY(iso__shareable_alloc(bytes, &made));
    iso_status status = iso__comm_share(comm, made);
    if (status < 0) iso__shareable_free(&made);
    ISO_TRY(status);
    *memory = made;
    return ISO_OK;
}

void shared_free(iso_comm *comm, void **memory) {
    iso__comm_unshare(comm, *memory);
    iso__shareable_free(memory);
}

float *shared_create(iso_comm *comm, size_t count) {
    void *memory = NULL;
    iso_assert_ok(shared_alloc(comm, count * sizeof(float), &memory));
    iso_assert_all(iso__comm_is_shared(comm, memory, count * sizeof(float)));
    return memory;
}

void shared_destroy(iso_comm *comm, float **memory) {
    void *pointer = *memory;
    shared_free(comm, &pointer);
    *memory = NULL;
}

// Of many magnitudes, so that the order of a sum is seen in its bits.
float shared_value(int rank, int exchange, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)rank, (uint32_t)exchange, 0}, bits[4];
    iso__philox(iso__philox_key_make(5, ISO_RNG_TEST, 0), counter, bits);
    return ldexpf(iso__uniform(bits[0]) - 0.5f, (int)(bits[1] % 20));
}

static float sum_in_rank_order(int exchange, size_t i) {
    float sum = shared_value(0, exchange, i);
    for (int r = 1; r < test_size; r++) sum += shared_value(r, exchange, i);
    return sum;
}

void shared_fill(float *data, size_t count, int exchange) {
    for (size_t i = 0; i < count; i++) data[i] = shared_value(test_rank, exchange, i);
}

bool shared_is_summed(const float *data, size_t count, int exchange) {
    for (size_t i = 0; i < count; i++)
        if (data[i] != sum_in_rank_order(exchange, i)) return false;
    return true;
}

bool shared_is_all(const float *data, size_t count, float wanted) {
    for (size_t i = 0; i < count; i++)
        if (data[i] != wanted) return false;
    return true;
}
