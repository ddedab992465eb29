// SPDX-License-Identifier: MIT
// Sets up what training runs share, and each run: loaders, model, optimizer, and the
// synchronisation of the ranks.
#include "train_files.h"
#include "train_server.h"

#include "support/models.h"
#include "train_lock.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_SPANS 16384

// ---- The world ----------------------------------------------------------------------------------

static iso_status open_sets(train_world *world, const train_options *options) {
    bool pictures;
    TRY(train_images_open(world, options, &pictures));
    if (pictures) return ISO_OK;
    TRY(iso_dataset_open(options->data, true, &world->train_set));
    return iso_dataset_open(options->data, false, &world->test_set);
}

static iso_status open_data(train_world *world, const train_options *options) {
    const char *data = options->data;
    TRY(open_sets(world, options));
    iso_dataset_info test, *train = &world->info;
    iso_dataset_get_info(world->train_set, train);
    iso_dataset_get_info(world->test_set, &test);
    train_images_describe(world);
    if (test.channels != train->channels || test.height != train->height ||
        test.width != train->width)
        return train_error(ISO_ERR_FORMAT,
                           "the images of %s are %lld x %lld x %lld for training but "
                           "%lld x %lld x %lld for the test: they do not belong together",
                           data, (long long)train->channels, (long long)train->height,
                           (long long)train->width, (long long)test.channels,
                           (long long)test.height, (long long)test.width);
    return ISO_OK;
}

// With "cuda", ranks of a node take its GPUs in turn, by their local rank.
static iso_status open_device(train_world *world, const char *device) {
    char text[32];
    int gpus = strcmp(device, "cuda") == 0 ? iso_device_count(device) : 0;
    snprintf(text, sizeof(text), "cuda:%d", gpus > 0 ? world->local_rank % gpus : 0);
    return iso_device_create(gpus > 0 ? text : device, &world->device);
}

static iso_status open_local(train_world *world, const train_options *options) {
    TRY(open_device(world, options->device));
    TRY(iso_device_set_threads(world->device, (int)options->threads));
    TRY(iso_device_set_math(world->device, options->math));
    return open_data(world, options);
}

static iso_status look_at_nodes(train_world *world) {
    iso_topology *topology;
    TRY(iso_topology_create(world->comm, NULL, &topology));
    world->nodes = topology->nodes;
    world->local_rank = topology->local_rank;
    iso_topology_destroy(&topology);
    return ISO_OK;
}

bool train_world_open(train_world *world, const train_options *options) {
    iso_comm_config config = {0};
    *world = (train_world){0};
    if (!train_all_well(iso_progress_parse(options->progress, &config.progress))) return false;
    if (!train_all_well(iso_comm_create(MPI_COMM_WORLD, &config, &world->comm))) return false;
    train_error_comm(world->comm);
    world->rank = iso_comm_rank(world->comm);
    world->ranks = iso_comm_size(world->comm);
    return train_all_well(train_threads_setup(world, options)) &&
           train_all_well(look_at_nodes(world)) && train_all_well(open_local(world, options)) &&
           train_all_well(train_agree_data(world, options)) &&
           train_all_well(train_classes_find(world, options)) &&
           train_all_well(train_validation_split(world, options));
}

void train_world_close(train_world *world) {
    iso_dataset_destroy(&world->train_set);
    iso_dataset_destroy(&world->test_set);
    iso_dataset_destroy(&world->validation_set);
    iso_device_destroy(&world->device);
    train_error_comm(NULL);
    iso_comm_destroy(&world->comm);
}

// ---- Local --------------------------------------------------------------------------------------

static iso_status create_losses(train_run *run) {
    iso_loss_config config = {.kind = ISO_CROSS_ENTROPY};
    TRY(iso_loss_create_with(run->world->device, &config, &run->test_loss));
    config.label_smoothing = run->options->label_smoothing;
    return iso_loss_create_with(run->world->device, &config, &run->loss);
}

// --autocast, or --math bf16 on a GPU, or parameters of 16 bits.
static iso_status round_activations(const train_run *run, iso_module **model) {
    const train_options *o = run->options;
    bool on_gpu = strcmp(iso_device_name(run->world->device), "cpu") != 0;
    bool by_math = on_gpu && strcmp(o->math, "bf16") == 0;
    const char *type = by_math ? "bf16" : train_activations(o);
    iso_dtype half;
    if (!type) return ISO_OK;
    TRY(iso_dtype_parse(type, &half));
    TRY(iso_autocast_create_take(*model, half, model)); // on failure *model is NULL
    // A loss comes next. Its gradient must be f32 to be scaled.
    return iso_autocast_keep_output(*model, o->accumulate == 1 && !o->grad_scaler);
}

iso_status train_model_create(const train_run *run, iso_rng *rng, iso_module **out) {
    const train_options *o = run->options;
    const model_options model = {o->model, o->dropout, o->activations};
    iso_dtype dtype;
    *out = NULL;
    iso_status status = model_create_with(&model, run->world->device, &run->world->info, rng, out);
    if (status >= 0) status = iso_dtype_parse(o->dtype, &dtype);
    if (status >= 0) status = iso_module_to(*out, dtype);
    if (status >= 0) status = round_activations(run, out);
    if (status < 0) iso_module_destroy(out);
    return status;
}

static iso_status build_model(train_run *run) {
    const train_options *options = run->options;
    const iso_dataset_info *info = &run->world->info;
    iso_rng rng = {.seed = (uint64_t)options->seed};
    if (!model_fits(options->model, info))
        return train_error(ISO_ERR_SHAPE,
                           "the images of %s are %lld x %lld, too small for --model %s: "
                           "use --model mlp",
                           options->data, (long long)info->height, (long long)info->width,
                           options->model);
    TRY(train_model_create(run, &rng, &run->model));
    TRY(create_losses(run));
    // The others get rank 0's parameters later.
    if (options->load && run->world->rank == 0) TRY(train_checkpoint_load(run));
    return ISO_OK;
}

// Rank 0 looks at the files, for all ranks, which may see them later.
static void decide_saves(train_run *run) {
    const train_options *o = run->options;
    run->continues = train_files_continue(o);
    train_bcast(&run->continues, sizeof(run->continues), 0,
                "the broadcast of whether the run goes on with its files");
    run->saves = run->continues || o->resume_auto || o->checkpoint_every > 0;
}

iso_status train_setup_local(train_run *run) {
    const train_options *options = run->options;
    TRY(train_server_setup(run));
    TRY(train_loaders_open(run));
    run->epoch_steps = train_steps_of(options, iso_loader_batches(run->train_loader));
    run->steps = options->steps > 0 ? options->steps : options->epochs * run->epoch_steps;
    run->test_step = -1;
    run->best.accuracy = -1;
    TRY(build_model(run));
    run->step_ms = calloc(TRAIN_STEP_TIMES, sizeof(*run->step_ms));
    run->step_wait_ms = calloc(TRAIN_STEP_TIMES, sizeof(*run->step_wait_ms));
    if (!run->step_ms || !run->step_wait_ms)
        return train_error(ISO_ERR_NOMEM, "out of memory for the times of steps");
    TRY(train_replay_read(run));
    return run->world->rank == 0 ? train_files_check(run) : ISO_OK;
}

// ---- Shared -------------------------------------------------------------------------------------

// Suits a schedule that comes down in the end; found by trying on MNIST.
double train_default_lr(iso_optimizer_kind kind) {
    switch (kind) {
    case ISO_SGD: return 0.05;
    case ISO_ADADELTA: return 1.0;
    case ISO_ADAGRAD: return 0.03;
    case ISO_RMSPROP: return 1e-3;
    case ISO_LAMB: return 0.01;
    default: return 2e-3;
    }
}

iso_status train_optimizer_create(train_run *run, iso_optimizer **out) {
    const train_options *options = run->options;
    iso_optimizer_kind kind;
    TRY(iso_optimizer_kind_parse(options->optimizer, &kind));
    iso_hyper hyper = iso_hyper_default(kind);
    hyper.lr = isnan(options->lr) ? train_default_lr(kind) : options->lr;
    if (!isnan(options->momentum)) hyper.momentum = options->momentum;
    if (!isnan(options->weight_decay)) hyper.weight_decay = options->weight_decay;
    hyper.amsgrad = options->amsgrad;
    TRY(train_schedule_setup(run, kind, hyper.lr));
    return iso_optimizer_create(kind, run->model, &hyper, out);
}

// Opens logs and removes old states last: if anything else is wrong, nothing is lost, and no empty
// log is left.
static iso_status open_outputs(train_run *run) {
    const train_options *o = run->options;
    if (o->resume) TRY(train_files_check_resumed(run));
    iso_status status = train_log_open(run);
    if (!o->overwrite || !o->checkpoint || run->continues) return status;
    TRY(iso_comm_agree(run->world->comm, status)); // no rank removes what another one needs
    return iso_resume_remove(o->checkpoint);
}

iso_status train_setup_shared(train_run *run) {
    decide_saves(run);
    if (run->options->load) TRY(train_agree_load(run));
    if (run->options->resume) TRY(train_state_check(run));
    TRY(train_kernels_setup(run));
    TRY(train_sync_setup(run));
    if (run->options->resume) TRY(train_state_load(run));
    if (run->options->checkpoint) TRY(iso_stop_create(run->world->comm, &run->stop));
    TRY(iso_comm_barrier(run->world->comm)); // a trace begins at the same time on all ranks
    if (run->options->trace) TRY(iso_trace_start(TRACE_SPANS));
    return run->at.finished ? ISO_OK : open_outputs(run);
}

void train_teardown(train_run *run) {
    iso_progress_bar_clear(&run->bar); // of an epoch that another rank ended
    iso_json_log_close(&run->log);
    iso_stop_destroy(&run->stop);
    iso_event_log_close(&run->board.log);
    free(run->step_ms);
    free(run->step_wait_ms);
    free(run->milestones);
    free(run->normalisation);
    free(run->replay);
    iso_noise_scale_destroy(&run->noise);
    iso_grad_scaler_destroy(&run->scaler);
    iso_outlier_destroy(&run->losses);
    iso_outlier_destroy(&run->norms);
    iso_optimizer_destroy(&run->optimizer);
    iso_module_destroy(&run->model);
    iso_loss_destroy(&run->loss);
    iso_loss_destroy(&run->test_loss);
    iso_loader_destroy(&run->train_loader);
    iso_loader_destroy(&run->test_loader);
    iso_loader_destroy(&run->validation_loader);
    iso_loader_destroy(&run->match_loader);
    iso_comm_destroy(&run->self);
    iso_trace_stop();
    train_lock_release_beyond(run->locks);
}
