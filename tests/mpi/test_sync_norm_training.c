// SPDX-License-Identifier: MIT
// A network with SyncBatchNorm under DataParallel trains like one rank on the whole batch.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <isotherm/sync_batchnorm.h>

#include <math.h>

TestSuite(np1_sync_training, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sync_training, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sync_training, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_sync_training, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Among which the batch norms are converted while the network is built; NULL: they are not.
static iso_comm *convert_early;

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

static iso_status add_norm(iso_module *net, const char *name, bool two, int64_t features) {
    iso_batch_norm_config config = {.num_features = features};
    iso_module *m = NULL;
    return add(net,
               (two ? iso_batch_norm2d_create : iso_batch_norm1d_create)(net->device, &config, &m),
               name, &m);
}

// conv1 2-6 3x3, bn1, relu, max-pool 2, conv2 6-8 3x3, bn2, relu, flatten, fc1 32-12, bn3 (1d),
// relu, fc2 12-5.
static iso_status build_net(iso_device *device, iso_module **out) {
    iso_rng rng = {.seed = 17};
    iso_module *net, *m = NULL;
    iso_conv2d_config c1 = {.in_channels = TRAINER_CHANNELS, .out_channels = 6};
    iso_conv2d_config c2 = {.in_channels = 6, .out_channels = 8};
    c1.kernel_size[0] = c1.kernel_size[1] = c2.kernel_size[0] = c2.kernel_size[1] = 3;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_conv2d_create(device, &c1, &rng, &m), "conv1", &m));
    ISO_TRY(add_norm(net, "bn1", true, 6));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu1", &m));
    ISO_TRY(add(net, iso_max_pool2d_create(device, 2, 2, &m), "pool", &m));
    ISO_TRY(add(net, iso_conv2d_create(device, &c2, &rng, &m), "conv2", &m));
    ISO_TRY(add_norm(net, "bn2", true, 8));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu2", &m));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, 32, 12, true, &rng, &m), "fc1", &m));
    ISO_TRY(add_norm(net, "bn3", false, 12));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu3", &m));
    ISO_TRY(add(net, iso_linear_create(device, 12, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return convert_early ? iso_sync_batchnorm_convert(net, convert_early, NULL) : ISO_OK;
}

static iso_status build_f32(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    return build_net(device, out);
}

static iso_status build_f64(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_module *net, *m;
    ISO_TRY(build_net(device, &net));
    ISO_TRY(iso_module_to(net, ISO_F64));
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(add(*out, iso_cast_create(device, ISO_F64, &m), "cast", &m));
    return iso_sequential_add_take(*out, "net", net);
}

static double buffer_difference(iso_module *a, iso_module *b) {
    iso_buffer_list x, y;
    double worst = 0;
    cr_ok(iso_module_buffers(a, &x));
    cr_ok(iso_module_buffers(b, &y));
    cr_assert(x.count == 9 && y.count == 9);
    for (int i = 0; i < x.count; i++) {
        const iso_tensor *s = x.item[i]->value, *t = y.item[i]->value;
        for (int64_t k = 0; k < s->count; k++)
            worst = fmax(worst,
                         s->dtype == ISO_I64
                             ? (double)llabs(((int64_t *)s->data)[k] - ((int64_t *)t->data)[k])
                         : s->dtype == ISO_F64
                             ? fabs(((double *)s->data)[k] - ((double *)t->data)[k])
                             : fabs((double)((float *)s->data)[k] - (double)((float *)t->data)[k]));
    }
    iso_buffer_list_destroy(&x);
    iso_buffer_list_destroy(&y);
    return worst;
}

// Largest difference in parameters and buffers after 20 steps from one rank on the whole batch.
static double distance(iso_status (*build)(iso_device *, bool, iso_module **), bool convert) {
    trainer_config config = trainer_default();
    trainer ranks, alone;
    iso_comm *self;
    double parameters;
    int count = 0;
    config.build = build;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    iso_assert_ok(trainer_create(&ranks, test_comm, &config));
    iso_assert_ok(trainer_create(&alone, self, &config));
    if (convert) iso_assert_ok(iso_sync_batchnorm_convert(ranks.model, test_comm, &count));
    iso_assert_all(count == (convert ? 3 : 0));
    iso_assert_ok(trainer_train(&ranks, 20));
    iso_assert_ok(trainer_train(&alone, 20));
    iso_assert_ok(trainer_difference(&ranks, &alone, &parameters));
    double worst = fmax(parameters, buffer_difference(ranks.model, alone.model));
    trainer_destroy(&ranks);
    trainer_destroy(&alone);
    iso_comm_destroy(&self);
    return worst;
}

static void trains_as_one(void) {
    double f64 = distance(build_f64, true), f32 = distance(build_f32, true);
    iso_assert_all(f64 < 1e-11);
    iso_assert_all(f32 < 1e-5);
    iso_assert_all(distance(build_f64, false) > 1e-2);
}
Test(np2_sync_training, is_that_of_one_rank_on_the_whole_batch) { trains_as_one(); }
Test(np3_sync_training, is_that_of_one_rank_on_the_whole_batch) { trains_as_one(); }
Test(np4_sync_training, is_that_of_one_rank_on_the_whole_batch) { trains_as_one(); }

static uint64_t run(iso_sync sync, iso_comm *early, iso_comm *late) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    config.build = build_f32;
    config.sync = sync;
    convert_early = early;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    if (late) iso_assert_ok(iso_sync_batchnorm_convert(t.model, late, NULL));
    iso_assert_ok(trainer_train(&t, 12));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    convert_early = NULL;
    return hash;
}

// Converted before or after it is wrapped, waited for late or at once: the same bits.
static void lazy_equals_blocking(void) {
    uint64_t lazy = run(ISO_SYNC_LAZY, NULL, test_comm);
    iso_assert_all(lazy == run(ISO_SYNC_BLOCKING, NULL, test_comm));
    iso_assert_all(lazy == run(ISO_SYNC_LAZY, test_comm, NULL));
    iso_assert_all(lazy != run(ISO_SYNC_LAZY, NULL, NULL));
}
Test(np2_sync_training, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np3_sync_training, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np4_sync_training, lazy_equals_blocking) { lazy_equals_blocking(); }

Test(np1_sync_training, one_rank_trains_to_the_bits_of_plain_batch_norms) {
    iso_assert_all(run(ISO_SYNC_LAZY, NULL, test_comm) == run(ISO_SYNC_LAZY, NULL, NULL));
}

Test(np2_sync_training, steps_allocate_nothing) {
    trainer_config config = trainer_default();
    trainer t;
    long long before, after;
    config.build = build_f32;
    config.sync = ISO_SYNC_BLOCKING; // requests of gradients are then as many every step
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_sync_batchnorm_convert(t.model, test_comm, NULL));
    iso_assert_ok(trainer_train(&t, 5));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(trainer_train(&t, 5));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    trainer_destroy(&t);
}

Test(np2_sync_training, converting_again_moves_batch_norms_to_another_communicator) {
    trainer_config config = trainer_default();
    trainer t;
    iso_comm *self;
    int count = 0;
    config.build = build_f32;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_sync_batchnorm_convert(t.model, test_comm, &count));
    iso_assert_ok(iso_sync_batchnorm_convert(t.model, self, &count)); // so that each is alone again
    iso_assert_all(count == 3);
    uint64_t hash = 0;
    iso_assert_ok(trainer_train(&t, 12));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == run(ISO_SYNC_LAZY, NULL, NULL));
    trainer_destroy(&t);
    iso_comm_destroy(&self);
}
