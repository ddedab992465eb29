// Trains a network data-parallel over MPI, with every option of the library.
#include "train.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>

typedef struct sums {
    double loss, samples;              // of training
    double test_loss, correct, tested; // of the test
} sums;

static void record_step(train_run *run, int64_t began) {
    run->step_ms[run->step % TRAIN_STEP_TIMES] = (double)(iso_now() - began) / 1e6;
    run->step++;
}

static iso_status train_step(train_run *run, const iso_batch *batch, double *loss) {
    iso_tensor *output, *gradient;
    iso_schedule_apply(&run->schedule, run->step, iso_optimizer_hyper(run->optimizer));
    iso_optimizer_zero_grad(run->optimizer);
    TRY(iso_module_forward(run->model, batch->images, &output));
    TRY(iso_loss_compute(run->loss, output, batch->labels, loss, NULL, &gradient));
    TRY(iso_module_backward(run->model, gradient, NULL));
    return iso_optimizer_step(run->optimizer);
}

static iso_status train_epoch(train_run *run, int64_t epoch, iso_progress_bar *bar, sums *sum) {
    TRY(iso_module_train(run->model, true));
    TRY(iso_loader_start(run->train_loader, epoch, 0));
    int64_t first = run->step;
    while (run->step < run->steps) {
        int64_t began = iso_now();
        iso_batch batch;
        double loss;
        iso_status more = iso_loader_next(run->train_loader, &batch);
        TRY(more);
        if (more == ISO_PENDING) break;
        TRY(train_step(run, &batch, &loss));
        record_step(run, began);
        sum->loss += loss * (double)batch.n;
        sum->samples += (double)batch.n;
        iso_progress_bar_update(bar, run->step - first, sum->loss / sum->samples);
    }
    return iso_data_parallel_finish(run->model);
}

// The test batches in turn, so that each image counts once, whatever the number of ranks.
static iso_status test(train_run *run, sums *sum) {
    TRY(iso_module_train(run->model, false));
    TRY(iso_loader_start(run->test_loader, 0, 0));
    for (;;) {
        iso_batch batch;
        iso_tensor *output;
        double loss;
        int64_t correct;
        iso_status more = iso_loader_next(run->test_loader, &batch);
        TRY(more);
        if (more == ISO_PENDING) return ISO_OK;
        if (batch.index % run->ranks != run->rank) continue;
        TRY(iso_module_forward(run->model, batch.images, &output));
        TRY(iso_loss_compute(run->loss, output, batch.labels, &loss, &correct, NULL));
        sum->test_loss += loss * (double)batch.n;
        sum->correct += (double)correct;
        sum->tested += (double)batch.n;
    }
}

static iso_status run_epoch(train_run *run, int64_t epoch, train_figures *out) {
    iso_progress_bar *bar;
    sums sum = {0};
    TRY(train_report_bar(run, epoch, &bar));
    int64_t began = iso_now();
    TRY(train_epoch(run, epoch, bar, &sum));
    double seconds = (double)(iso_now() - began) / 1e9;
    TRY(test(run, &sum));
    double total[] = {sum.loss, sum.samples, sum.test_loss, sum.correct, sum.tested};
    TRY(iso_comm_allreduce_f64(run->comm, total, 5, ISO_SUM));
    TRY(iso_comm_allreduce_f64(run->comm, &seconds, 1, ISO_MAX));
    *out = (train_figures){.train_loss = total[0] / total[1],
                           .test_loss = total[2] / total[4],
                           .test_accuracy = total[3] / total[4],
                           .seconds = seconds,
                           .samples = (int64_t)total[1]};
    train_report_epoch(run, epoch, out, &bar);
    return ISO_OK;
}

static iso_status check_finite(double loss, int64_t epoch) {
    if (isfinite(loss)) return ISO_OK;
    return train_error(ISO_ERR_STATE,
                       "the training diverged: the loss of epoch %lld is no number: try a lower "
                       "--lr",
                       (long long)epoch + 1);
}

// Errors inside an epoch strike one rank while others wait in an exchange: only an abort reaches
// them. Whether a checkpoint was written is agreed on.
static bool run_epochs(train_run *run, train_figures *last) {
    double seconds = 0;
    int64_t samples = 0;
    for (int64_t epoch = 0; run->step < run->steps; epoch++) {
        if (run_epoch(run, epoch, last) < 0) train_abort();
        seconds += last->seconds;
        samples += last->samples;
        // Every rank has the same sum, so they all end here; the last good checkpoint stays.
        if (!train_all_well(check_finite(last->train_loss, epoch))) return false;
        bool save = run->options.checkpoint && run->rank == 0;
        if (!train_all_well(save ? train_checkpoint_save(run) : ISO_OK)) return false;
    }
    last->seconds = seconds;
    last->samples = samples;
    return true;
}

static bool train(train_run *run) {
    train_figures last;
    iso_comm_config config = {0};
    if (!train_all_well(iso_progress_parse(run->options.progress, &config.progress))) return false;
    if (!train_all_well(iso_comm_create(MPI_COMM_WORLD, &config, &run->comm))) return false;
    run->rank = iso_comm_rank(run->comm);
    run->ranks = iso_comm_size(run->comm);
    if (!train_all_well(train_setup_local(run))) return false;
    if (!train_all_well(train_setup_shared(run))) return false;
    train_report_start(run);
    if (!run_epochs(run, &last)) return false;
    if (!train_all_well(train_report_summary(run, &last))) return false;
    return !run->options.trace || train_all_well(train_trace_write(run));
}

static bool inform(const train_options *options) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && options->help) train_options_help(stdout);
    if (rank == 0 && options->help_env) iso_env_print(stdout);
    if (rank == 0 && options->version) puts("isotherm " ISO_VERSION);
    return options->help || options->help_env || options->version;
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    train_run run = {0};
    bool good = train_all_well(train_options_parse(argc, argv, &run.options)) &&
                train_all_well(train_options_agree(&run.options));
    if (good && !inform(&run.options)) {
        good = train(&run);
        train_teardown(&run);
    }
    MPI_Finalize();
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
