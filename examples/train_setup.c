// Sets up a training run: device, data, model, and what ties the ranks together.
#include "train.h"

#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_TRAIN 60000
#define DIGITS_TEST  10000
#define PREFETCH     2
#define TRACE_SPANS  16384

// ---- Data ---------------------------------------------------------------------------------------

static iso_status open_set(const char *data, bool train, iso_dataset **out) {
    if (strcmp(data, "digits") == 0)
        return iso_dataset_create_digits(train, train ? DIGITS_TRAIN : DIGITS_TEST, out);
    return iso_dataset_read_mnist(data, train, out);
}

static iso_status open_data(train_run *run) {
    const char *data = run->options.data;
    TRY(open_set(data, true, &run->train_set));
    TRY(open_set(data, false, &run->test_set));
    iso_dataset_info test, *train = &run->info;
    iso_dataset_get_info(run->train_set, train);
    iso_dataset_get_info(run->test_set, &test);
    if (test.channels != train->channels || test.height != train->height ||
        test.width != train->width)
        return train_error(ISO_ERR_FORMAT,
                           "the images of %s are %lld x %lld x %lld for training but "
                           "%lld x %lld x %lld for the test: they do not belong together",
                           data, (long long)train->channels, (long long)train->height,
                           (long long)train->width, (long long)test.channels,
                           (long long)test.height, (long long)test.width);
    if (test.classes > train->classes) train->classes = test.classes;
    return ISO_OK;
}

// Every rank goes through all test batches in order and computes those whose turn it is: each image
// is looked at once.
static iso_status open_loaders(train_run *run) {
    iso_sampler_config sampler = {.count = run->info.count,
                                  .batch = run->options.batch,
                                  .rank = run->rank,
                                  .ranks = run->ranks,
                                  .seed = (uint64_t)run->options.seed,
                                  .shuffle = true};
    TRY(iso_sampler_create(&sampler, &run->train_sampler));
    iso_dataset_info test;
    iso_dataset_get_info(run->test_set, &test);
    sampler = (iso_sampler_config){.count = test.count, .batch = run->options.batch, .ranks = 1};
    TRY(iso_sampler_create(&sampler, &run->test_sampler));
    iso_loader_config loader = {
        .device = run->device, .mean = run->info.mean, .std = run->info.std, .prefetch = PREFETCH};
    TRY(iso_loader_create(run->train_set, run->train_sampler, &loader, &run->train_loader));
    TRY(iso_loader_create(run->test_set, run->test_sampler, &loader, &run->test_loader));
    return ISO_OK;
}

// ---- Model and optimizer ------------------------------------------------------------------------

static iso_status build_model(train_run *run) {
    const train_options *options = &run->options;
    iso_rng rng = {.seed = (uint64_t)options->seed};
    if (!model_fits(options->model, &run->info))
        return train_error(ISO_ERR_SHAPE,
                           "the images of %s are %lld x %lld, too small for --model %s: "
                           "use --model mlp",
                           options->data, (long long)run->info.height, (long long)run->info.width,
                           options->model);
    TRY(model_create(options->model, run->device, &run->info, options->dropout, &rng, &run->model));
    TRY(iso_loss_create(run->device, ISO_CROSS_ENTROPY, &run->loss));
    // The others get rank 0's parameters later.
    if (options->load && run->rank == 0) TRY(train_checkpoint_load(run));
    return ISO_OK;
}

// Suits a schedule that comes down in the end; found by trying on MNIST.
static double default_lr(iso_optimizer_kind kind) {
    switch (kind) {
    case ISO_SGD: return 0.05;
    case ISO_ADADELTA: return 1.0;
    default: return 2e-3;
    }
}

static iso_status create_optimizer(train_run *run) {
    const train_options *options = &run->options;
    iso_optimizer_kind kind;
    iso_schedule_kind schedule;
    TRY(iso_optimizer_kind_parse(options->optimizer, &kind));
    TRY(iso_schedule_kind_parse(options->schedule, &schedule));
    iso_hyper hyper = iso_hyper_default(kind);
    hyper.lr = isnan(options->lr) ? default_lr(kind) : options->lr;
    if (!isnan(options->momentum)) hyper.momentum = options->momentum;
    if (!isnan(options->weight_decay)) hyper.weight_decay = options->weight_decay;
    run->schedule = iso_schedule_default(schedule, hyper.lr, run->steps);
    run->schedule.cycle_momentum = isnan(options->momentum); // a given one is meant
    iso_optimizer *inner;
    TRY(iso_optimizer_create(kind, run->model, &hyper, &inner));
    return iso_dp_optimizer_create_take(inner, run->model, &run->optimizer);
}

static iso_status check_outputs_differ(const train_options *options) {
    const char *path[] = {options->log, options->trace, options->checkpoint};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (path[i] && path[k] && strcmp(path[i], path[k]) == 0)
                return train_error(ISO_ERR_ARG, "%s is to hold two outputs: give each its own file",
                                   path[i]);
    return ISO_OK;
}

// ---- The whole ----------------------------------------------------------------------------------

iso_status train_setup_local(train_run *run) {
    const train_options *options = &run->options;
    TRY(iso_device_create(options->device, &run->device));
    TRY(iso_device_set_threads(run->device, (int)options->threads));
    TRY(open_data(run));
    TRY(open_loaders(run));
    run->steps =
        options->steps ? options->steps : options->epochs * iso_sampler_batches(run->train_sampler);
    TRY(build_model(run));
    run->step_ms = calloc(TRAIN_STEP_TIMES, sizeof(*run->step_ms));
    if (!run->step_ms) return train_error(ISO_ERR_NOMEM, "out of memory for the times of steps");
    if (run->rank != 0) return ISO_OK;
    TRY(check_outputs_differ(options));
    if (options->trace) TRY(train_output_check(options->trace, "trace"));
    if (options->checkpoint) TRY(train_output_check(options->checkpoint, "checkpoint"));
    return ISO_OK;
}

iso_status train_setup_shared(train_run *run) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    if (strcmp(run->options.sync, "blocking") == 0) config.sync = ISO_SYNC_BLOCKING;
    if (!isnan(run->options.bucket_mb)) config.bucket_mb = run->options.bucket_mb;
    iso_module *model = run->model;
    run->model = NULL; // taken
    TRY(iso_data_parallel_create_take(model, run->comm, &config, &run->model));
    TRY(create_optimizer(run));
    TRY(iso_comm_barrier(run->comm)); // a trace begins at the same time on all ranks
    if (run->options.trace) TRY(iso_trace_start(TRACE_SPANS));
    // Last, so that no empty log is left when anything else is wrong.
    if (run->options.log && run->rank == 0) TRY(iso_json_log_create(run->options.log, &run->log));
    return ISO_OK;
}

void train_teardown(train_run *run) {
    iso_json_log_close(&run->log);
    free(run->step_ms);
    iso_optimizer_destroy(&run->optimizer);
    iso_module_destroy(&run->model);
    iso_loss_destroy(&run->loss);
    iso_loader_destroy(&run->train_loader);
    iso_loader_destroy(&run->test_loader);
    iso_trace_stop();
    iso_sampler_destroy(&run->train_sampler);
    iso_sampler_destroy(&run->test_sampler);
    iso_dataset_destroy(&run->train_set);
    iso_dataset_destroy(&run->test_set);
    iso_device_destroy(&run->device);
    iso_comm_destroy(&run->comm);
}
