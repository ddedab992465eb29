// SPDX-License-Identifier: MIT
// For tests of data-parallel training: small models, a deterministic global batch, and a training
// loop.
#ifndef ISO_TEST_DP_FIXTURE_H
#define ISO_TEST_DP_FIXTURE_H

#include <isotherm/optim.h>

// A model under data_parallel with its optimizer, on one communicator.
typedef struct trainer {
    iso_device *device;
    iso_comm *comm;
    iso_module *model; // the wrapper
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *batch;
    int32_t labels[64];
    int64_t batch_rows, first_row;
} trainer;

typedef struct trainer_config {
    iso_sync sync;
    double bucket_mb;
    bool find_unused, static_unused; // parameters
    double piece_mb;
    iso_optimizer_kind optimizer;
    iso_hyper hyper;
    bool dropout;
    // Builds another model; NULL: the small CNN.
    iso_status (*build)(iso_device *device, bool dropout, iso_module **out);
    // Called for the optimizer before it is wrapped; NULL: nothing.
    iso_status (*prepare)(iso_optimizer *inner);
    int64_t rows;      // of the global batch, divisible by the ranks
    int64_t first_row; // of this communicator's rows in a larger batch
    iso_scope scope;
    const iso_comm_hook *hook; // NULL: none
    // Changes the settings of data_parallel; NULL: nothing.
    void (*adjust)(iso_data_parallel_config *dp);
    iso_buffer_config buffers;
} trainer_config;

enum { TRAINER_CHANNELS = 2, TRAINER_SIZE = 10, TRAINER_CLASSES = 5 };

// conv1 2-4 3x3, relu, conv2 4-6 3x3, relu, max-pool 2, [dropout2d], flatten, fc1 54-16, relu,
// [dropout], fc2 16-5.
iso_status build_small_cnn(iso_device *device, bool dropout, iso_module **out);
// flatten, fc1 200-64, relu, fc2 64-5: with a piece_mb of 0.01, fc1 is cut.
iso_status build_wide_mlp(iso_device *device, bool dropout, iso_module **out);
// SGD with momentum, lazy, strictly one bucket per layer, 12 rows.
trainer_config trainer_default(void);
iso_status trainer_create(trainer *t, iso_comm *comm, const trainer_config *config);
void trainer_destroy(trainer *t);
// One step on this rank's share of global batch `step`: zero_grad, forward, loss, backward, step.
iso_status trainer_step(trainer *t, int step, double *loss);
iso_status trainer_forward(trainer *t, int step, iso_tensor **out);
// Row `row` of global batch `step`: TRAINER_CHANNELS x TRAINER_SIZE x TRAINER_SIZE numbers and
// their label.
void trainer_row(float *x, int step, int64_t row, int32_t *label);
iso_status trainer_hash(trainer *t,
                        uint64_t *hash); // completes pending updates; fails if ranks differ
// Steps `from` to `to` - 1, and steps 0 to steps - 1.
iso_status trainer_go_on(trainer *t, int from, int to);
iso_status trainer_train(trainer *t, int steps);
// Forward, loss and backward without zero_grad or step.
iso_status trainer_backward(trainer *t, int step);
// Trains `steps` steps with a new trainer. *hash: that of the final parameters.
iso_status trainer_run(iso_comm *comm, const trainer_config *config, int steps, uint64_t *hash);
// Largest absolute difference over all parameters of two trainers on this rank.
iso_status trainer_difference(trainer *a, trainer *b, double *out);

#endif
