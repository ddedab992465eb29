// SPDX-License-Identifier: MIT
// Evaluates a model on a data set that the ranks share.
#include "base/base.h"
#include "nn/nn_impl.h"
#include "tensor/tensor_impl.h"

#include <isotherm/parallel.h>
#include <math.h>

typedef struct sums {
    double loss;
    int64_t correct, labels, samples;
    bool labelled;
} sums;

// What is left to add of a batch.
typedef struct pending {
    int64_t samples, labels;
} pending;

static pending count_batch(const iso_batch *batch) {
    const iso_tensor_spec *spec = &batch->specs[batch->input_count];
    pending out = {batch->n, batch->labels ? batch->rows[batch->input_count] : 0};
    for (int d = 0; d < spec->ndim; d++) out.labels *= spec->shape[d];
    return out;
}

// Adds the results of the previous batch, while the device computes the next one.
static iso_status add_batch(iso_loss *loss, pending batch, sums *sum) {
    double value;
    int64_t correct = 0;
    if (batch.samples == 0) return ISO_OK;
    ISO_TRY(iso_loss_value(loss, &value, sum->labelled ? &correct : NULL));
    sum->loss += value * (double)batch.samples;
    sum->correct += correct;
    sum->labels += batch.labels;
    sum->samples += batch.samples;
    return ISO_OK;
}

// The model gets all inputs, and gives one output.
static iso_status forward_batch(iso_module *model, const iso_batch *batch, iso_tensor **output) {
    iso_tensors in = {.count = batch->input_count}, out;
    for (int i = 0; i < in.count; i++) in.item[i] = batch->inputs[i];
    ISO_TRY(iso_module_forward_many(model, &in, &out));
    ISO_CHECK(out.count == 1, ISO_ERR_ARG,
              "a model to evaluate gives 1 tensor, but this one gave %d", out.count);
    *output = out.item[0];
    return ISO_OK;
}

// A loss needs a label for each row of the output. `make` and the collate function determine how
// many labels there are.
static iso_status check_labels(const iso_tensor *output, const iso_batch *batch) {
    int64_t classes = output->ndim > 0 ? output->shape[output->ndim - 1] : 0;
    int64_t rows = classes > 0 ? output->count / classes : 0;
    int64_t labels = count_batch(batch).labels;
    ISO_CHECK(rows == labels, ISO_ERR_SHAPE,
              "the model gave %lld rows for a batch of %lld labels: give each row of its output a "
              "label",
              (long long)rows, (long long)labels);
    return ISO_OK;
}

static iso_status launch_loss(iso_loss *loss, iso_tensor *output, const iso_batch *batch) {
    if (batch->labels) {
        ISO_TRY(check_labels(output, batch));
        return iso_loss_compute(loss, output, batch->labels, NULL, NULL, NULL);
    }
    return iso_loss_compute_tensor(loss, output, batch->targets[0], NULL, NULL);
}

static iso_status check_batch(const iso_batch *batch) {
    ISO_CHECK(batch->target_count > 0, ISO_ERR_ARG,
              "there is nothing to evaluate: the samples have no targets");
    ISO_CHECK(batch->input_count <= ISO_MODULE_TENSORS, ISO_ERR_UNSUPPORTED,
              "the samples to evaluate have %d inputs: a module takes at most %d",
              batch->input_count, ISO_MODULE_TENSORS);
    return ISO_OK;
}

static iso_status own_share(iso_module *model, iso_loss *loss, iso_loader *data,
                            iso_evaluate_watch watch, void *user, sums *sum) {
    iso_batch batch;
    iso_tensor *output = NULL;
    pending before = {0};
    ISO_TRY(iso_loader_start(data, 0, 0));
    for (;;) {
        iso_status more = iso_loader_next(data, &batch);
        ISO_TRY(more);
        if (more == ISO_PENDING) return add_batch(loss, before, sum);
        ISO_TRY(check_batch(&batch));
        ISO_TRY(forward_batch(model, &batch, &output));
        ISO_TRY(add_batch(loss, before, sum));
        sum->labelled = batch.labels;
        ISO_TRY(launch_loss(loss, output, &batch));
        before = count_batch(&batch);
        if (watch) watch(batch.index + 1, user);
    }
}

// Modules may be in different modes: a layer that does not train stays in evaluation mode.
static iso_status begin_evaluation(iso_module *model, bool **modes) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)iso__module_count(model) * sizeof(bool), &memory));
    *modes = memory;
    iso__module_get_modes(model, *modes);
    return iso_module_train(model, false);
}

static iso_status end_evaluation(iso_module *model, bool *modes) {
    const bool *at = modes;
    iso_status status = modes ? iso__module_set_modes(model, &at) : ISO_OK;
    iso__free(modes);
    return status;
}

iso_status iso_evaluate_watched(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                                iso_evaluate_watch watch, void *user, iso_evaluation *out) {
    sums sum = {0};
    bool *modes = NULL;
    iso_status status = begin_evaluation(model, &modes);
    if (status == ISO_OK) status = own_share(model, loss, data, watch, user, &sum);
    // Ranks exchange nothing during their shares, so a failed rank can report its error here.
    status = iso_comm_agree(comm, status);
    ISO_TRY(end_evaluation(model, modes));
    ISO_TRY(status);
    double loss_sum = sum.loss;
    int64_t counts[3] = {sum.correct, sum.samples, sum.labels};
    ISO_TRY(iso_comm_allreduce_f64(comm, &loss_sum, 1, ISO_SUM));
    ISO_TRY(iso_comm_allreduce_i64(comm, counts, 3, ISO_SUM));
    ISO_CHECK(counts[1] > 0, ISO_ERR_ARG, "there is nothing to evaluate: no rank has a sample");
    double accuracy = counts[2] > 0 ? (double)counts[0] / (double)counts[2] : NAN;
    *out = (iso_evaluation){loss_sum / (double)counts[1], accuracy, counts[1]};
    return ISO_OK;
}

iso_status iso_evaluate(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                        iso_evaluation *out) {
    return iso_evaluate_watched(model, loss, data, comm, NULL, NULL, out);
}
