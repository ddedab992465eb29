// SPDX-License-Identifier: MIT
// For tests of uneven inputs: loops over batches of which ranks have different numbers, and what
// one rank must make of the same data.
#include "common/join_fixture.h"

#include "base/base.h"

enum { PIXELS = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE };

uneven uneven_default(void) { return (uneven){.train = trainer_default()}; }

int64_t uneven_rows(const uneven *u, int rank, int step) {
    if (step >= u->batches[rank]) return 0;
    return u->ragged ? 1 + (rank + 2 * step) % 4 : 3;
}

int64_t uneven_first_row(const uneven *u, int rank, int step) {
    int64_t row = 0;
    for (int q = 0; q < rank; q++) row += uneven_rows(u, q, step);
    return row;
}

int uneven_longest(const uneven *u, int ranks) {
    int longest = 0;
    for (int q = 0; q < ranks; q++)
        if (u->batches[q] > longest) longest = u->batches[q];
    return longest;
}

iso_status uneven_create(trainer *t, iso_comm *comm, const uneven *u) {
    trainer_config config = u->train;
    config.rows = 4 * iso_comm_size(comm);
    return trainer_create(t, comm, &config);
}

static iso_status scale_gradient(iso_tensor *grad, double scale) {
    void *data;
    ISO_TRY(iso_tensor_map(grad, ISO_READ_WRITE, &data));
    for (int64_t k = 0; k < iso_tensor_count(grad); k++) ((float *)data)[k] *= (float)scale;
    return iso_tensor_unmap(grad);
}

iso_status uneven_batch(trainer *t, int step, int64_t first_row, int64_t rows, double scale) {
    iso_tensor *out, *grad;
    void *data;
    double loss;
    int64_t shape[4] = {rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    ISO_TRY(iso_tensor_resize(t->batch, 4, shape, ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_tensor_map(t->batch, ISO_WRITE, &data));
    for (int64_t r = 0; r < rows; r++)
        trainer_row((float *)data + r * PIXELS, step, first_row + r, &t->labels[r]);
    ISO_TRY(iso_tensor_unmap(t->batch));
    ISO_TRY(iso_module_forward(t->model, t->batch, &out));
    ISO_TRY(iso_loss_compute(t->loss, out, t->labels, &loss, NULL, &grad));
    if (scale != 1) ISO_TRY(scale_gradient(grad, scale));
    return iso_module_backward(t->model, grad, NULL);
}

// ---- With a join ------------------------------------------------------------------------------------

static int micro_steps(const uneven *u) { return u->accumulate ? u->accumulate : 1; }

static iso_status update(void *user) {
    trainer *t = user;
    return iso_optimizer_step(t->optimizer);
}

iso_status uneven_backward(trainer *t, const uneven *u, int step, bool sync) {
    int rank = iso_comm_rank(t->comm);
    if (step % micro_steps(u) == 0) iso_optimizer_zero_grad(t->optimizer);
    if (!sync) ISO_TRY(iso_data_parallel_begin_no_sync(t->model));
    ISO_TRY(uneven_batch(t, step, uneven_first_row(u, rank, step), uneven_rows(u, rank, step), 1));
    if (!sync) return iso_data_parallel_end_no_sync(t->model);
    return u->train.sync == ISO_SYNC_EXPLICIT ? iso_data_parallel_all_reduce_gradients(t->model)
                                              : ISO_OK;
}

static iso_status batch(trainer *t, const uneven *u, int step, bool sync) {
    ISO_TRY(uneven_backward(t, u, step, sync));
    return sync ? update(t) : ISO_OK;
}

iso_status uneven_loop(trainer *t, const uneven *u, iso_status *status, int *steps) {
    iso_join *join;
    iso_join_config config = u->join;
    int rank = iso_comm_rank(t->comm);
    config.step = update;
    config.user = t;
    ISO_TRY(iso_join_begin(t->model, &config, &join));
    for (int step = 0;; step++) {
        bool sync = (step + 1) % micro_steps(u) == 0;
        *steps = step;
        *status = iso_join_next(join, uneven_rows(u, rank, step), sync);
        if (*status != ISO_OK) break;
        *status = batch(t, u, step, sync);
        if (*status != ISO_OK) break;
    }
    iso_join_end(&join);
    return ISO_OK;
}

iso_status uneven_train(trainer *t, const uneven *u) {
    iso_status status;
    int steps;
    ISO_TRY(uneven_loop(t, u, &status, &steps));
    ISO_CHECK(status == ISO_PENDING, ISO_ERR_STATE, "the loop ended with %d", (int)status);
    return ISO_OK;
}

// ---- By definition ----------------------------------------------------------------------------------

// What the gradient of each of a rank's batches counts in the update that begins with step `from`.
static double share(const uneven *u, int ranks, int rank, int from) {
    double samples[4] = {0}, batches[4] = {0}, all = 0;
    int contributors = 0, steps = micro_steps(u);
    for (int q = 0; q < ranks; q++) {
        for (int k = 0; k < steps; k++) {
            samples[q] += (double)uneven_rows(u, q, from + k);
            batches[q] += uneven_rows(u, q, from + k) > 0;
        }
        all += samples[q];
        contributors += batches[q] > 0;
    }
    if (u->join.divisor == ISO_JOIN_INITIAL) return 1.0 / ranks;
    if (u->join.divisor == ISO_JOIN_EFFECTIVE) return 1.0 / contributors;
    return samples[rank] / batches[rank] / (all / steps);
}

static iso_status model_update(trainer *one, const uneven *u, int ranks, int from) {
    iso_optimizer_zero_grad(one->optimizer);
    for (int step = from; step < from + micro_steps(u); step++)
        for (int q = 0; q < ranks; q++) {
            int64_t rows = uneven_rows(u, q, step);
            if (rows == 0) continue;
            ISO_TRY(uneven_batch(one, step, uneven_first_row(u, q, step), rows,
                                 share(u, ranks, q, from)));
        }
    return iso_optimizer_step(one->optimizer);
}

iso_status uneven_model(trainer *one, const uneven *u, int ranks) {
    int longest = uneven_longest(u, ranks);
    for (int step = 0; step < longest; step += micro_steps(u))
        ISO_TRY(model_update(one, u, ranks, step));
    return ISO_OK;
}
