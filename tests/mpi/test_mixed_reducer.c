// SPDX-License-Identifier: MIT
// The reducer with parameters of two element types: what its buckets hold, and that sums are right.
#include "common/mpi_fixture.h"
#include "parallel/reducer/reducer_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_mixed_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_mixed_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_mixed_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_mixed_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Layer a has both types, b one, c the other, d and e both, in another order, and several of one.
static const struct {
    const char *name;
    iso_dtype dtype;
    size_t count;
    int layer;
} shape[] = {
    {"a.weight", ISO_F32, 5, 0},  {"a.bias", ISO_F64, 3, 0}, {"b.weight", ISO_F64, 700, 1},
    {"c.weight", ISO_F32, 33, 2}, {"c.bias", ISO_F32, 1, 2}, {"d.weight", ISO_F64, 40, 3},
    {"d.scale", ISO_F32, 9, 3},   {"d.bias", ISO_F64, 2, 3}, {"e.bias", ISO_F32, 7, 4},
    {"e.weight", ISO_F64, 11, 4},
};
enum { PARAMS = sizeof(shape) / sizeof(shape[0]), MOST = 700 };
static double value[PARAMS][MOST]; // floats where the type is f32

static double get(const void *data, iso_dtype dtype, size_t k) {
    return dtype == ISO_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static void set(void *data, iso_dtype dtype, size_t k, double x) {
    if (dtype == ISO_F64)
        ((double *)data)[k] = x;
    else
        ((float *)data)[k] = (float)x;
}

// p -= lr * mean
static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)user;
    for (size_t k = 0; k < shape[i].count; k++)
        set(value[i], shape[i].dtype, k,
            get(value[i], shape[i].dtype, k) -
                *(const double *)hyper * (get(gradient, shape[i].dtype, k) * scale));
    return ISO_OK;
}

static iso_status create(iso_sync sync, size_t bucket_bytes, iso_scope scope, int other,
                         iso_reducer **out) {
    iso_reducer_param params[PARAMS];
    iso_reducer_config config = {
        .sync = sync, .bucket_bytes = bucket_bytes, .scope = scope, .unused = ISO_UNUSED_ZERO};
    for (int i = 0; i < PARAMS; i++) {
        iso_dtype dtype = i == other ? ISO_F32 : shape[i].dtype;
        for (size_t k = 0; k < shape[i].count; k++) set(value[i], dtype, k, i);
        params[i] = (iso_reducer_param){.name = shape[i].name,
                                        .value = value[i],
                                        .count = shape[i].count,
                                        .dtype = dtype,
                                        .layer = shape[i].layer};
    }
    return iso_reducer_create(test_comm, params, PARAMS, &config, out);
}

// ---- Buckets --------------------------------------------------------------------------------------

static bool bucket_is_sound(const iso__layout *l, int bucket) {
    const iso__bucket *b = &l->bucket[bucket];
    const iso__range *range = &l->range[bucket];
    size_t offset = b->offset;
    for (int k = range->first; k <= range->last; k++) {
        const iso__grad_slot *s = &l->slot[l->order[k]];
        if (s->bucket != bucket || s->dtype != b->dtype || s->offset != offset) return false;
        offset += (s->count * iso_dtype_size(s->dtype) + 63) / 64 * 64;
        char layer[2] = {s->name[0], 0};
        if (!strstr(b->label, layer)) return false;
    }
    return offset == b->offset + b->bytes;
}

// Every slot in one bucket of its type, all of a layer and type in the same; buckets one after the
// other in the arena, in the order in which a backward completes them.
static bool buckets_are_sound(const iso__layout *l) {
    size_t offset = 0;
    int next = 0, lowest_before = PARAMS;
    for (int b = 0; b < l->bucket_count; b++) {
        int lowest = PARAMS;
        if (l->range[b].first != next || l->bucket[b].offset != offset) return false;
        if (!bucket_is_sound(l, b)) return false;
        for (int k = l->range[b].first; k <= l->range[b].last; k++)
            lowest = l->order[k] < lowest ? l->order[k] : lowest;
        bool same_layer =
            lowest_before < PARAMS && shape[lowest].layer == shape[lowest_before].layer;
        if (lowest > lowest_before && !same_layer) return false;
        lowest_before = lowest;
        next = l->range[b].last + 1;
        offset += l->bucket[b].bytes;
    }
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < i; k++)
            if (shape[i].layer == shape[k].layer && shape[i].dtype == shape[k].dtype &&
                l->slot[i].bucket != l->slot[k].bucket)
                return false;
    return next == PARAMS && offset == l->bytes;
}

static int count_buckets(size_t bucket_bytes) {
    iso_reducer *r;
    iso_assert_ok(create(ISO_SYNC_LAZY, bucket_bytes, ISO_SCOPE_WORLD, -1, &r));
    iso_assert_all(buckets_are_sound(&r->layout));
    int count = r->layout.bucket_count;
    iso_reducer_destroy(&r);
    return count;
}

Test(np2_mixed_reducer, a_bucket_holds_one_type) {
    iso_assert_all(count_buckets(0) == 8); // one for each layer and type: 2, 1, 1, 2, 2
    iso_assert_all(count_buckets(1 << 30) == 2);
    // f64: e + d (88 + 320 + 16, in units of 64 bytes 512), b, and a; f32: e + d + c, and a.
    iso_assert_all(count_buckets(256) == 5);
}

// ---- Sums -----------------------------------------------------------------------------------------

// Whole numbers, with what only f64 can hold.
static double gradient_of(int rank, int step, int i) {
    return (double)((rank + 1) * (step + 1) + i) + (shape[i].dtype == ISO_F64 ? 0x1p-40 : 0);
}

// lr = ranks, so that lr * mean = sum; another order of gradients on each rank. `unused` has no
// gradient in every second step.
static iso_status train_step(iso_reducer *r, int step, int unused) {
    double lr = test_size;
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < PARAMS; i++) status = iso_reducer_param_needed(r, i);
    iso_reducer_zero_grad(r);
    for (int n = 0; status == ISO_OK && n < PARAMS; n++) {
        int i = (n * 3 + step + test_rank) % PARAMS;
        if (i == unused && step % 2) continue;
        for (size_t k = 0; k < shape[i].count; k++)
            set(iso_reducer_grad(r, i), shape[i].dtype, k, gradient_of(test_rank, step, i));
        status = iso_reducer_grad_ready(r, i);
    }
    return status == ISO_OK ? iso_reducer_step(r, &lr) : status;
}

static bool trained(int steps, int unused) {
    for (int i = 0; i < PARAMS; i++) {
        double expected = i;
        for (int step = 0; step < steps; step++)
            for (int rank = 0; rank < test_size && (i != unused || step % 2 == 0); rank++)
                expected -= gradient_of(rank, step, i);
        double tolerance = shape[i].dtype == ISO_F64 ? 1e-13 : 1e-3;
        for (size_t k = 0; k < shape[i].count; k++) {
            double got = get(value[i], shape[i].dtype, k);
            if (got < expected - tolerance || got > expected + tolerance) return false;
        }
    }
    return true;
}

static void sums_are_right(iso_sync sync, size_t bucket_bytes, iso_scope scope, int unused) {
    iso_reducer *r;
    iso_status status = ISO_OK;
    iso_assert_ok(create(sync, bucket_bytes, scope, -1, &r));
    iso_assert_ok(iso_reducer_set_apply(r, descend, sizeof(double), NULL));
    for (int step = 0; status == ISO_OK && step < 6; step++) status = train_step(r, step, unused);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    iso_assert_all(trained(6, unused));
    iso_reducer_destroy(&r);
}

static void all_sums_are_right(iso_scope scope) {
    static const size_t bytes[] = {0, 256, 1 << 30};
    for (int i = 0; i < 3; i++) {
        sums_are_right(ISO_SYNC_LAZY, bytes[i], scope, -1);
        sums_are_right(ISO_SYNC_BLOCKING, bytes[i], scope, -1);
        sums_are_right(ISO_SYNC_LAZY, bytes[i], scope, 1); // of a layer of both, the f64 part
    }
}

Test(np1_mixed_reducer, sums_are_right) { all_sums_are_right(ISO_SCOPE_WORLD); }
Test(np2_mixed_reducer, sums_are_right) { all_sums_are_right(ISO_SCOPE_WORLD); }
Test(np3_mixed_reducer, sums_are_right) { all_sums_are_right(ISO_SCOPE_WORLD); }
// In memory that ranks share, which adds up f32 only.
Test(np2_mixed_reducer, sums_in_a_node_are_right) { all_sums_are_right(ISO_SCOPE_NODE); }
Test(np4_mixed_reducer, sums_in_a_node_are_right) { all_sums_are_right(ISO_SCOPE_NODE); }

static void averages_are_left_in_place(void) {
    iso_reducer *r;
    iso_status status = ISO_OK;
    double worst = 0;
    iso_assert_ok(create(ISO_SYNC_LAZY, 256, ISO_SCOPE_WORLD, -1, &r));
    for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
        for (size_t k = 0; k < shape[i].count; k++)
            set(iso_reducer_grad(r, i), shape[i].dtype, k, gradient_of(test_rank, (int)k, i));
        status = iso_reducer_grad_ready(r, i);
    }
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < shape[i].count; k++) {
            double mean = 0;
            for (int rank = 0; rank < test_size; rank++)
                mean += gradient_of(rank, (int)k, i) / test_size;
            double error = get(iso_reducer_grad(r, i), shape[i].dtype, k) / mean - 1;
            error = error < 0 ? -error : error;
            worst = fmax(worst, shape[i].dtype == ISO_F64 ? error : error * 1e-9);
        }
    iso_assert_all(worst < 2e-15);
    iso_reducer_destroy(&r);
}
Test(np2_mixed_reducer, averages_are_left_in_place) { averages_are_left_in_place(); }
Test(np3_mixed_reducer, averages_are_left_in_place) { averages_are_left_in_place(); }

// ---- Agreement ------------------------------------------------------------------------------------

Test(np3_mixed_reducer, another_type_on_one_rank_is_refused_on_all) {
    iso_reducer *r = NULL;
    iso_status status = create(ISO_SYNC_LAZY, 0, ISO_SCOPE_WORLD, test_rank == 1 ? 5 : -1, &r);
    const char *message = iso_last_error()->message;
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(message, "rank 1") && strstr(message, "d.weight"));
    iso_assert_all(strstr(message, "f32") && strstr(message, "f64"));
}

Test(np2_mixed_reducer, other_types_are_refused_on_all) {
    iso_reducer *r = NULL;
    iso_reducer_param param = {.name = "x", .value = value[0], .count = 4, .dtype = ISO_I64};
    iso_reducer_config config = {.sync = ISO_SYNC_LAZY};
    iso_assert_all(iso_reducer_create(test_comm, &param, 1, &config, &r) == ISO_ERR_TYPE);
    iso_assert_all(strstr(iso_last_error()->message, "i64") != NULL);
}
