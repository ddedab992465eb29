// SPDX-License-Identifier: MIT
// Evaluates a model on a data set that the ranks share.
#include "base/base.h"

#include <isotherm/parallel.h>

typedef struct sums {
    double loss;
    int64_t correct, samples;
} sums;

// Of the batch before, while the device computes the next one.
static iso_status add_batch(iso_loss *loss, int64_t samples, sums *sum) {
    double value;
    int64_t correct;
    if (samples == 0) return ISO_OK;
    ISO_TRY(iso_loss_value(loss, &value, &correct));
    sum->loss += value * (double)samples;
    sum->correct += correct;
    sum->samples += samples;
    return ISO_OK;
}

static iso_status own_share(iso_module *model, iso_loss *loss, iso_loader *data,
                            iso_evaluate_watch watch, void *user, sums *sum) {
    iso_batch batch;
    iso_tensor *output;
    int64_t before = 0;
    ISO_TRY(iso_loader_start(data, 0, 0));
    for (;;) {
        iso_status more = iso_loader_next(data, &batch);
        ISO_TRY(more);
        if (more == ISO_PENDING) return add_batch(loss, before, sum);
        ISO_TRY(iso_module_forward(model, batch.images, &output));
        ISO_TRY(add_batch(loss, before, sum));
        ISO_TRY(iso_loss_compute(loss, output, batch.labels, NULL, NULL, NULL));
        before = batch.n;
        if (watch) watch(batch.index + 1, user);
    }
}

iso_status iso_evaluate_watched(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                                iso_evaluate_watch watch, void *user, iso_evaluation *out) {
    sums sum = {0};
    bool training = model->training;
    ISO_TRY(iso_module_train(model, false));
    // Nothing is exchanged in between, so a rank that fails can say so.
    iso_status status = iso_comm_agree(comm, own_share(model, loss, data, watch, user, &sum));
    ISO_TRY(iso_module_train(model, training));
    ISO_TRY(status);
    double loss_sum = sum.loss;
    int64_t counts[2] = {sum.correct, sum.samples};
    ISO_TRY(iso_comm_allreduce_f64(comm, &loss_sum, 1, ISO_SUM));
    ISO_TRY(iso_comm_allreduce_i64(comm, counts, 2, ISO_SUM));
    ISO_CHECK(counts[1] > 0, ISO_ERR_ARG, "there is nothing to evaluate: no rank has a sample");
    double all = (double)counts[1];
    *out = (iso_evaluation){loss_sum / all, (double)counts[0] / all, counts[1]};
    return ISO_OK;
}

iso_status iso_evaluate(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                        iso_evaluation *out) {
    return iso_evaluate_watched(model, loss, data, comm, NULL, NULL, out);
}
