// SPDX-License-Identifier: MIT
// SyncBatchNorm: ranks with parts of a batch compute what one rank does on all of it.
#include "common/any_device.h"
#include "common/fixture.h"
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"

#include "base/base.h"
#include "nn/nn_impl.h"
#include "tensor/tensor_impl.h"

#include <isotherm/sync_batchnorm.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_sync_norm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sync_norm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sync_norm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_sync_norm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sync_life, .init = test_mpi_setup_bare, .timeout = 60);

static iso_device *device;

// ---- Layers and parts of a batch ----------------------------------------------------------------

typedef struct layout {
    bool two;
    int ndim;
    int64_t shape[4]; // of the whole batch
    bool blocked;
    int64_t first, rows; // this rank's part
} layout;

enum { CHANNELS = 19 };

// even: as equal as can be; otherwise one sample for each rank, and what is left for the last.
static layout layout_of(int ndim, int64_t rows, bool even) {
    layout l = {ndim == 4, ndim, {rows, CHANNELS, 3, 5}, false, test_rank, 1};
    if (even) {
        l.first = rows * test_rank / test_size;
        l.rows = rows * (test_rank + 1) / test_size - l.first;
    } else if (test_rank == test_size - 1)
        l.rows = rows - l.first;
    return l;
}

static int64_t row_size(const layout *l) {
    int64_t size = 1;
    for (int i = 1; i < l->ndim; i++) size *= l->shape[i];
    return size;
}

// Rows of a batch, or of the gradient of an output. Channel c has the mean `far` * c.
static iso_tensor *batch(const layout *l, iso_dtype dtype, bool whole, uint64_t seed, double far) {
    int64_t shape[4], size = row_size(l), plane = size / CHANNELS;
    int64_t first = whole ? 0 : l->first;
    iso_tensor *t, *to;
    void *data;
    memcpy(shape, l->shape, sizeof(shape));
    if (!whole) shape[0] = l->rows;
    cr_ok(iso_tensor_create(device, dtype, l->ndim, shape, &t));
    cr_ok(iso_tensor_map(t, ISO_WRITE, &data));
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_TEST, 0);
    for (int64_t i = 0; i < t->count; i++) {
        uint32_t counter[4] = {(uint32_t)(i + first * size), 0, 0, 0}, bits[4];
        iso__philox(key, counter, bits);
        double v = (double)(iso__uniform(bits[0]) - 0.5f) + far * (double)(i / plane % CHANNELS);
        if (dtype == ISO_F64)
            ((double *)data)[i] = v + 1e-9;
        else
            ((float *)data)[i] = (float)v;
    }
    cr_ok(iso_tensor_unmap(t));
    if (!l->blocked) return t;
    cr_ok(iso_tensor_create(device, dtype, l->ndim, shape, &to));
    cr_ok(iso_tensor_resize(to, l->ndim, shape, ISO_LAYOUT_BLOCKED));
    cr_ok(iso_tensor_copy(t, to));
    iso_tensor_destroy(&t);
    return to;
}

// A batch norm, with weights and biases that are not 1 and 0, and a relu that is fused into it.
static iso_module *create(const layout *l, iso_dtype dtype, iso_batch_norm_config config) {
    iso_module *net, *m;
    config.num_features = CHANNELS;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok((l->two ? iso_batch_norm2d_create : iso_batch_norm1d_create)(device, &config, &m));
    for (int i = 0; i < m->parameter_count; i++)
        for (int64_t c = 0; c < CHANNELS; c++)
            ((float *)m->parameter[i]->value->data)[c] = 0.3f + 0.05f * (float)(c - 7 * i);
    cr_ok(iso_sequential_add_take(net, "bn", m));
    cr_ok(iso_relu_create(device, &m));
    cr_ok(iso_sequential_add_take(net, "relu", m));
    cr_ok(iso_module_to(net, dtype));
    return net;
}

static double number(const iso_tensor *t, int64_t i) {
    return t->dtype == ISO_I64   ? (double)((int64_t *)t->data)[i]
           : t->dtype == ISO_F64 ? ((double *)t->data)[i]
                                 : (double)((float *)t->data)[i];
}

// ---- Comparisons --------------------------------------------------------------------------------

// Largest difference between this rank's rows and those of the whole, relative to 1 or more.
static double rows_differ(const layout *l, iso_tensor *part, iso_tensor *whole) {
    double *a = tensor_doubles(part), *b = tensor_doubles(whole), worst = 0;
    const double *rows = b + l->first * row_size(l);
    for (int64_t i = 0; i < l->rows * row_size(l); i++)
        worst = fmax(worst, fabs(a[i] - rows[i]) / (1 + fabs(rows[i])));
    free(a);
    free(b);
    return worst;
}

// Gradients are sums over samples: those of all ranks make that of the whole batch.
static double gradients_differ(iso_module *part, iso_module *whole) {
    double worst = 0;
    for (int i = 0; i < part->child[0]->parameter_count; i++) {
        double sum[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) sum[c] = number(part->child[0]->parameter[i]->grad, c);
        iso_assert_ok(iso_comm_allreduce_f64(test_comm, sum, CHANNELS, ISO_SUM));
        for (int c = 0; c < CHANNELS; c++) {
            double want = number(whole->child[0]->parameter[i]->grad, c);
            worst = fmax(worst, fabs(sum[c] - want) / (1 + fabs(want)));
        }
    }
    return worst;
}

static double buffers_differ(iso_module *part, iso_module *whole) {
    double worst = 0;
    for (int i = 0; i < part->child[0]->buffer_count; i++) {
        const iso_tensor *a = part->child[0]->buffer[i]->value;
        const iso_tensor *b = whole->child[0]->buffer[i]->value;
        for (int64_t k = 0; k < a->count; k++)
            worst = fmax(worst, fabs(number(a, k) - number(b, k)) / (1 + fabs(number(b, k))));
    }
    return worst;
}

static bool same_on_all_ranks(iso_module *module) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < module->child[0]->buffer_count; i++) {
        const iso_tensor *t = module->child[0]->buffer[i]->value;
        hash = iso__hash(hash, t->data, (size_t)t->count * iso_dtype_size(t->dtype));
    }
    int64_t extremes[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, extremes, 2, ISO_MAX));
    return extremes[0] == -extremes[1];
}

typedef struct differences {
    double output, input, parameters, buffers;
} differences;

static void train(iso_module *net, iso_tensor *x, iso_tensor *dy, iso_tensor **y, iso_tensor **dx) {
    cr_ok(iso_module_forward(net, x, y));
    iso_module_zero_grad(net);
    cr_ok(iso_module_backward(net, dy, dx));
}

static void step(const layout *l, iso_module *part, iso_module *whole, int number_of,
                 differences *out, double far) {
    uint64_t seed = 10 + 2 * (uint64_t)number_of;
    iso_dtype dtype = part->child[0]->dtype;
    iso_tensor *x[2], *dy[2], *y[2], *dx[2];
    for (int i = 0; i < 2; i++) {
        x[i] = batch(l, dtype, i == 1, seed, far);
        dy[i] = batch(l, dtype, i == 1, seed + 1, 0.1);
        train(i ? whole : part, x[i], dy[i], &y[i], &dx[i]);
    }
    out->output = fmax(out->output, rows_differ(l, y[0], y[1]));
    out->input = fmax(out->input, rows_differ(l, dx[0], dx[1]));
    out->parameters = fmax(out->parameters, gradients_differ(part, whole));
    out->buffers = fmax(out->buffers, buffers_differ(part, whole));
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&x[i]);
        iso_tensor_destroy(&dy[i]);
    }
}

static differences compare(const layout *l, iso_dtype dtype, iso_batch_norm_config config,
                           double far) {
    differences worst = {0};
    int count = 0;
    iso_module *part = create(l, dtype, config), *whole = create(l, dtype, config);
    iso_assert_ok(iso_sync_batchnorm_convert(part, test_comm, &count));
    iso_assert_all(count == 1);
    for (int i = 0; i < 3; i++) step(l, part, whole, i, &worst, far);
    iso_assert_all(same_on_all_ranks(part));
    iso_module_destroy(&part);
    iso_module_destroy(&whole);
    return worst;
}

static void expect(const char *what, differences d, double limit) {
    bool well =
        d.output <= limit && d.input <= limit && d.parameters <= limit && d.buffers <= limit;
    if (!well)
        fprintf(stderr, "%s: y %g dx %g dw %g buffers %g\n", what, d.output, d.input, d.parameters,
                d.buffers);
    iso_assert_all(well);
}

// ---- Equivalence --------------------------------------------------------------------------------

static void ranks_equal_one(void) {
    const iso_batch_norm_config plain = {0}, other = {.eps = 1e-3, .cumulative_average = true},
                                bare = {.no_affine = true, .no_running_stats = true};
    iso_assert_ok(iso_device_create(test_device(), &device));
    for (int ndim = 2; ndim <= 4; ndim++)
        for (int even = 0; even < 2; even++) {
            layout l = layout_of(ndim, 9, even);
            expect("f64", compare(&l, ISO_F64, plain, 0.1), 1e-12);
            expect("f64, cumulative", compare(&l, ISO_F64, other, 0.1), 1e-12);
            expect("f64, bare", compare(&l, ISO_F64, bare, 0.1), 1e-12);
            expect("f32", compare(&l, ISO_F32, plain, 0.1), 3e-6);
            l.blocked = ndim == 4;
            expect("f32, blocked", compare(&l, ISO_F32, plain, 0.1), 3e-6);
        }
    iso_device_destroy(&device);
}
Test(np1_sync_norm, ranks_equal_one_on_the_whole_batch) { ranks_equal_one(); }
Test(np2_sync_norm, ranks_equal_one_on_the_whole_batch) { ranks_equal_one(); }
Test(np3_sync_norm, ranks_equal_one_on_the_whole_batch) { ranks_equal_one(); }
Test(np4_sync_norm, ranks_equal_one_on_the_whole_batch) { ranks_equal_one(); }

// Means of up to 18 000 deviations, of which sums about zero would leave 7 digits of a variance:
// the second exchange keeps them all. Outputs take x - mean, of which f64 leaves 12 here.
static void far_means(void) {
    layout l = layout_of(4, 9, false);
    iso_assert_ok(iso_device_create(test_device(), &device));
    differences d = compare(&l, ISO_F64, (iso_batch_norm_config){0}, 300);
    expect("far", d, 5e-10);
    iso_assert_all(d.buffers < 1e-13);
    iso_device_destroy(&device);
}
Test(np2_sync_norm, means_far_from_zero_cost_no_digits) { far_means(); }
Test(np4_sync_norm, means_far_from_zero_cost_no_digits) { far_means(); }

static void one_sample_each(void) {
    layout l = layout_of(2, test_size, true);
    iso_assert_ok(iso_device_create(test_device(), &device));
    expect("single samples", compare(&l, ISO_F64, (iso_batch_norm_config){0}, 0.1), 1e-11);
    iso_device_destroy(&device);
}
Test(np2_sync_norm, one_sample_on_each_rank_is_enough) { one_sample_each(); }
Test(np4_sync_norm, one_sample_on_each_rank_is_enough) { one_sample_each(); }

// The same bits, not just nearly the same values.
Test(np1_sync_norm, one_rank_computes_the_bits_of_the_plain_layer) {
    layout l = layout_of(4, 9, true);
    iso_assert_ok(iso_device_create(test_device(), &device));
    for (int dtype = 0; dtype < 2; dtype++)
        expect("one rank", compare(&l, dtype ? ISO_F64 : ISO_F32, (iso_batch_norm_config){0}, 3),
               0);
    l = layout_of(2, 1, true);
    iso_tensor *x = batch(&l, ISO_F32, true, 1, 0), *y;
    iso_module *net = create(&l, ISO_F32, (iso_batch_norm_config){0});
    iso_assert_ok(iso_sync_batchnorm_convert(net, test_comm, NULL));
    cr_fails(iso_module_forward(net, x, &y), ISO_ERR_SHAPE, "more than one value per channel");
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

// ---- PyTorch ------------------------------------------------------------------------------------

static iso_tensor *rows_of(fixture *f, const char *name, const char *key, layout *l) {
    iso_tensor *whole = fixture_tensor_of(f, device, ISO_F64, name, key), *part;
    l->ndim = whole->ndim;
    memcpy(l->shape, whole->shape, sizeof(l->shape));
    l->first = whole->shape[0] * test_rank / test_size;
    l->rows = whole->shape[0] * (test_rank + 1) / test_size - l->first;
    int64_t shape[4], size = row_size(l);
    memcpy(shape, l->shape, sizeof(shape));
    shape[0] = l->rows;
    cr_ok(iso_tensor_create(device, ISO_F64, l->ndim, shape, &part));
    memcpy(part->data, (double *)whole->data + l->first * size,
           (size_t)(l->rows * size) * sizeof(double));
    iso_tensor_destroy(&whole);
    return part;
}

// Largest difference between rows of an array of the fixture and the tensor.
static double from_golden(fixture *f, const char *name, const char *key, const layout *l,
                          const iso_tensor *t) {
    const double *want = fixture_get(f, name, key, NULL) + (l ? l->first * row_size(l) : 0);
    double worst = 0;
    for (int64_t i = 0; i < t->count; i++)
        worst = fmax(worst, fabs(number(t, i) - want[i]) / (1 + fabs(want[i])));
    return worst;
}

static double golden_gradients(fixture *f, const char *name, iso_module *m) {
    double worst = 0;
    for (int i = 0; i < m->parameter_count; i++) {
        iso_tensor *g = m->parameter[i]->grad;
        char key[32];
        snprintf(key, sizeof(key), "grad.%s", m->parameter[i]->name);
        cr_ok(iso_comm_allreduce_f64(test_comm, g->data, (size_t)g->count, ISO_SUM));
        worst = fmax(worst, from_golden(f, name, key, NULL, g));
    }
    return worst;
}

static void golden_step(fixture *f, const char *prefix, int t, iso_module *m) {
    char name[48];
    layout l;
    iso_tensor *y, *dx;
    snprintf(name, sizeof(name), "%s.%d", prefix, t);
    iso_tensor *x = rows_of(f, name, "x", &l), *dy = rows_of(f, name, "dy", &l);
    iso_assert_ok(iso_module_forward(m, x, &y));
    iso_module_zero_grad(m);
    iso_assert_ok(iso_module_backward(m, dy, &dx));
    iso_assert_all(from_golden(f, name, "y", &l, y) < 1e-6);
    iso_assert_all(from_golden(f, name, "dx", &l, dx) < 1e-6);
    iso_assert_all(golden_gradients(f, name, m) < 1e-6);
    snprintf(name, sizeof(name), "%s.after%d", prefix, t);
    for (int i = 0; i < m->buffer_count; i++)
        iso_assert_all(from_golden(f, name, m->buffer[i]->name, NULL, m->buffer[i]->value) < 1e-6);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
}

// torch.nn.BatchNorm's values for a batch whose rows are spread over the ranks. They were computed
// in f64 and rounded to f32.
static void golden(const char *name, bool two, iso_batch_norm_config config) {
    iso_module *m;
    iso_assert_ok(iso_device_create(test_device(), &device));
    fixture *f = fixture_open("norm.txt");
    cr_ok((two ? iso_batch_norm2d_create : iso_batch_norm1d_create)(device, &config, &m));
    cr_ok(iso_module_to(m, ISO_F64));
    for (int i = 0; i < m->parameter_count; i++)
        fixture_load(f, name, m->parameter[i]->name, m->parameter[i]->value);
    iso_assert_ok(iso_sync_batchnorm_convert(m, test_comm, NULL));
    for (int t = 0; t < 3; t++) golden_step(f, name, t, m);
    iso_module_destroy(&m);
    fixture_close(&f);
    iso_device_destroy(&device);
}
static void golden_all(void) {
    golden("bn1d", false, (iso_batch_norm_config){.num_features = 5});
    if (test_size <= 4)
        golden("bn1d_length", false,
               (iso_batch_norm_config){.num_features = 3, .eps = 1e-3, .momentum = 0.3});
    if (test_size > 2) return; // of two rows
    golden("bn2d", true, (iso_batch_norm_config){.num_features = 9});
    golden("bn2d_cumulative", true,
           (iso_batch_norm_config){.num_features = 2, .cumulative_average = true});
    golden("bn2d_no_statistics", true,
           (iso_batch_norm_config){.num_features = 2, .no_running_stats = true});
}
Test(np2_sync_norm, is_torch_batch_norm_on_the_concatenated_batch) { golden_all(); }
Test(np3_sync_norm, is_torch_batch_norm_on_the_concatenated_batch) { golden_all(); }
Test(np4_sync_norm, is_torch_batch_norm_on_the_concatenated_batch) { golden_all(); }

// ---- Who communicates ---------------------------------------------------------------------------

// Otherwise a rank would wait for ever here.
Test(np3_sync_norm, ranks_evaluate_on_their_own) {
    iso_assert_ok(iso_device_create(test_device(), &device));
    layout l = layout_of(4, 9, true);
    iso_module *net = create(&l, ISO_F32, (iso_batch_norm_config){0});
    iso_module *bare = create(&l, ISO_F32, (iso_batch_norm_config){.no_running_stats = true});
    iso_assert_ok(iso_sync_batchnorm_convert(net, test_comm, NULL));
    iso_assert_ok(iso_sync_batchnorm_convert(bare, test_comm, NULL));
    iso_tensor *x = batch(&l, ISO_F32, false, 1, 0), *y;
    cr_ok(iso_module_train(net, false));
    cr_ok(iso_module_train(bare, false));
    for (int i = 0; i < test_rank; i++) {
        cr_ok(iso_module_forward(net, x, &y));
        cr_ok(iso_module_forward(bare, x, &y));
    }
    iso_assert_ok(iso_comm_barrier(test_comm));
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    iso_module_destroy(&bare);
    iso_device_destroy(&device);
}

// A layer that is used twice is one layer, and its two statistics do not mix.
Test(np2_sync_norm, a_layer_may_be_used_twice) {
    iso_assert_ok(iso_device_create(test_device(), &device));
    layout l = layout_of(4, 9, false);
    iso_module *net[2];
    differences worst = {0};
    int count = 0;
    for (int i = 0; i < 2; i++) {
        net[i] = create(&l, ISO_F64, (iso_batch_norm_config){0});
        cr_ok(iso_sequential_add_take(net[i], "again", iso_module_retain(net[i]->child[0])));
    }
    iso_assert_ok(iso_sync_batchnorm_convert(net[0], test_comm, &count));
    iso_assert_all(count == 1);
    for (int i = 0; i < 3; i++) step(&l, net[0], net[1], i, &worst, 0.1);
    expect("used twice", worst, 1e-11);
    for (int i = 0; i < 2; i++) iso_module_destroy(&net[i]);
    iso_device_destroy(&device);
}

Test(np2_sync_norm, ranks_of_different_models_are_refused) {
    iso_assert_ok(iso_device_create(test_device(), &device));
    layout l = layout_of(4, 9, true);
    iso_module *net = create(&l, ISO_F32, (iso_batch_norm_config){0});
    if (test_rank == 1)
        cr_ok(iso_sequential_add_take(net, "again", iso_module_retain(net->child[0])));
    iso_status status = iso_sync_batchnorm_convert(net, test_comm, NULL);
    iso_assert_all(status == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message, "batch norm \"again\""));
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

// As many features altogether, but not in each layer.
Test(np3_sync_norm, ranks_of_other_features_are_refused) {
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_module *net, *norm;
    cr_ok(iso_sequential_create(device, &net));
    for (int i = 0; i < 2; i++) {
        iso_batch_norm_config config = {.num_features = (i == 0) == (test_rank == 2) ? 16 : 8};
        cr_ok(iso_batch_norm2d_create(device, &config, &norm));
        cr_ok(iso_sequential_add_take(net, i == 0 ? "first" : "second", norm));
    }
    iso_status status = iso_sync_batchnorm_convert(net, test_comm, NULL);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == ISO_ERR_MISMATCH && strstr(said, "rank 2") &&
                   strstr(said, "batch norm \"first\" of 16 features"));
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

Test(np2_sync_life, a_time_out_names_the_layer) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    iso_assert_ok(iso_device_create(test_device(), &device));
    layout l = layout_of(4, 9, true);
    iso_module *net = create(&l, ISO_F32, (iso_batch_norm_config){0});
    iso_assert_ok(iso_sync_batchnorm_convert(net, comm, NULL));
    iso_tensor *x = batch(&l, ISO_F32, false, 1, 0), *y;
    if (test_rank == 0) usleep(SLOW); // the slow one
    iso_status status = iso_module_forward(net, x, &y);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == (test_rank == 1 ? ISO_ERR_TIMEOUT : ISO_OK));
    iso_assert_all(test_rank == 0 ||
                   (strstr(said, "BatchNorm2d \"bn\"") && strstr(said, "rank 1 of 2 waited 1 s")));
    MPI_Finalize(); // completes what rank 1 gave up; freeing the communicator would wait for it
}
