// SPDX-License-Identifier: MIT
// What loading adds to a training step: steps on batches of a loader, in turn with steps on one
// batch in memory.
#include "bench_util.h"

#include <getopt.h>
#include <isotherm.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../examples/support/models.h"

static const char usage[] = "usage: mpirun -n RANKS bench_loader [OPTIONS]\n"
                            "  --data DIR       MNIST folder, or digits (digits)\n"
                            "  --model NAME     mlp or cnn, without dropout (cnn)\n"
                            "  --batch N        per rank (64)\n"
                            "  --pairs N        blocks of each kind (20)\n"
                            "  --steps N        timed steps of a block (20), after a few others\n"
                            "  --prefetch N     batches prepared ahead (2)\n"
                            "  --shift N        images are moved by up to N pixels (0)\n"
                            "  --flip X         part of the images that is mirrored (0)\n"
                            "  --progress MODE  auto, off, poll or thread (auto)\n"
                            "  --threads N      of each rank (1)\n";

typedef struct options {
    const char *data, *model, *progress;
    int batch, pairs, steps, prefetch, shift, threads;
    double flip;
} options;

typedef struct bench {
    const options *o;
    iso_comm *comm;
    iso_device *device;
    iso_loader *loader, *alone; // alone: without its thread, to see what a batch costs
    int64_t epoch;
    iso_batch memory; // a batch that always stays
    int32_t *labels;
    iso_module *model;
    iso_loss *loss;
    iso_optimizer *optimizer;
    double *loader_ms, *memory_ms, *ratio; // of each pair of blocks: medians, and their quotient
    double *cpu_ratio; // the same of processor time, the loader's thread included
    double *block;     // of each step
} bench;

enum { PREPARED = 200 }; // batches made to see what one costs

// ---- Options --------------------------------------------------------------------------------------

static options parse(int argc, char **argv) {
    options o = {.data = "digits",
                 .model = "cnn",
                 .progress = "auto",
                 .batch = 64,
                 .pairs = 20,
                 .steps = 20,
                 .prefetch = ISO_LOADER_DEFAULT.prefetch,
                 .threads = 1};
    static const struct option known[] = {{"data", required_argument, NULL, 'd'},
                                          {"model", required_argument, NULL, 'm'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"pairs", required_argument, NULL, 'r'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"prefetch", required_argument, NULL, 'a'},
                                          {"shift", required_argument, NULL, 's'},
                                          {"flip", required_argument, NULL, 'f'},
                                          {"progress", required_argument, NULL, 'p'},
                                          {"threads", required_argument, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'd': o.data = optarg; break;
        case 'm': o.model = optarg; break;
        case 'b': o.batch = (int)bench_number(usage, "--batch", optarg, 1, 1e6); break;
        case 'r': o.pairs = (int)bench_number(usage, "--pairs", optarg, 1, 1e5); break;
        case 'n': o.steps = (int)bench_number(usage, "--steps", optarg, 1, 1e5); break;
        case 'a': o.prefetch = (int)bench_number(usage, "--prefetch", optarg, 0, 1024); break;
        case 's': o.shift = (int)bench_number(usage, "--shift", optarg, 0, 1000); break;
        case 'f': o.flip = bench_number(usage, "--flip", optarg, 0, 1); break;
        case 'p': o.progress = optarg; break;
        case 't': o.threads = (int)bench_number(usage, "--threads", optarg, 1, 1024); break;
        default: bench_usage(usage, "unknown option");
        }
    }
    if (optind < argc) bench_usage(usage, "too many arguments");
    return o;
}

// ---- Set-up ---------------------------------------------------------------------------------------

static iso_loader *create_loader(const bench *b, iso_dataset *images, int prefetch) {
    const iso_loader_config config = {
        .prefetch = prefetch, .shift = b->o->shift, .flip = b->o->flip};
    const iso_sampler_config order = {.batch = b->o->batch,
                                      .rank = iso_comm_rank(b->comm),
                                      .ranks = iso_comm_size(b->comm),
                                      .seed = 1,
                                      .shuffle = true,
                                      .end = ISO_SAMPLER_DROP};
    iso_loader *out;
    bench_require(
        iso_loader_create_take(b->device, iso_dataset_retain(images), &order, &config, &out));
    return out;
}

// The next batch, of the next epoch where one has ended.
static iso_batch take(bench *b) {
    iso_batch out;
    iso_status status = iso_loader_next(b->loader, &out);
    bench_require(status);
    if (status == ISO_OK) return out;
    bench_require(iso_loader_start(b->loader, ++b->epoch, 0));
    bench_require(iso_loader_next(b->loader, &out));
    return out;
}

static void keep_first_batch(bench *b) {
    bench_require(iso_loader_start(b->loader, 0, 0));
    iso_batch batch = take(b);
    size_t bytes = (size_t)batch.n * sizeof(int32_t);
    b->memory = batch;
    bench_require(iso_tensor_create(b->device, ISO_F32, 4, iso_tensor_shape(batch.images),
                                    &b->memory.images));
    bench_require(iso_tensor_copy(batch.images, b->memory.images));
    b->labels = malloc(bytes);
    memcpy(b->labels, batch.labels, bytes);
    b->memory.labels = b->labels;
}

static void create_model(bench *b) {
    iso_rng rng = {.seed = 1};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.001, hyper.momentum = 0.9;
    iso_module *model;
    iso_optimizer *sgd;
    bench_require(
        model_create(b->o->model, b->device, iso_loader_info(b->loader), false, &rng, &model));
    bench_require(iso_optimizer_create(ISO_SGD, model, &hyper, &sgd));
    bench_require(iso_data_parallel_create_take(model, b->comm, NULL, &b->model));
    bench_require(iso_dp_optimizer_create_take(sgd, b->model, &b->optimizer));
    bench_require(iso_loss_create(b->device, ISO_CROSS_ENTROPY, &b->loss));
}

static void set_up(bench *b, const options *o, iso_comm *comm) {
    iso_dataset *images;
    *b = (bench){.o = o, .comm = comm};
    bench_require(iso_device_create("cpu", &b->device));
    bench_require(iso_device_set_threads(b->device, o->threads));
    bench_require(iso_dataset_open(o->data, true, &images));
    b->loader = create_loader(b, images, o->prefetch);
    b->alone = create_loader(b, images, 0);
    iso_dataset_destroy(&images);
    keep_first_batch(b);
    create_model(b);
    b->loader_ms = calloc((size_t)o->pairs, sizeof(double));
    b->memory_ms = calloc((size_t)o->pairs, sizeof(double));
    b->ratio = calloc((size_t)o->pairs, sizeof(double));
    b->cpu_ratio = calloc((size_t)o->pairs, sizeof(double));
    b->block = calloc((size_t)(o->steps > PREPARED ? o->steps : PREPARED), sizeof(double));
}

static void tear_down(bench *b) {
    iso_optimizer_destroy(&b->optimizer);
    iso_module_destroy(&b->model);
    iso_loss_destroy(&b->loss);
    iso_tensor_destroy(&b->memory.images);
    iso_loader_destroy(&b->loader);
    iso_loader_destroy(&b->alone);
    iso_device_destroy(&b->device);
    free(b->labels);
    free(b->loader_ms);
    free(b->memory_ms);
    free(b->ratio);
    free(b->cpu_ratio);
    free(b->block);
}

// ---- Timing ---------------------------------------------------------------------------------------

static void step(bench *b, bool loaded) {
    iso_tensor *out, *grad;
    double value;
    iso_batch batch = loaded ? take(b) : b->memory;
    iso_optimizer_zero_grad(b->optimizer);
    bench_require(iso_module_forward(b->model, batch.images, &out));
    bench_require(iso_loss_compute(b->loss, out, batch.labels, &value, NULL, &grad));
    bench_require(iso_module_backward(b->model, grad, NULL));
    bench_require(iso_optimizer_step(b->optimizer));
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// The median step, on the slowest rank. Before it is timed, batches that were prepared during the
// block before are used up, or the thread comes to rest.
static double run_block(bench *b, bool loaded, double *cpu) {
    for (int i = 0; i < b->o->prefetch + 2; i++) step(b, loaded);
    *cpu = -cpu_seconds();
    for (int i = 0; i < b->o->steps; i++) {
        int64_t start = iso_now();
        step(b, loaded);
        b->block[i] = bench_ms_since(start);
    }
    *cpu += cpu_seconds();
    bench_require(iso_data_parallel_finish(b->model));
    return bench_worst_quantile(b->comm, b->block, b->o->steps, 0.5);
}

// What comes first in a pair changes, so that neither gains by its place.
static void run(bench *b) {
    for (int i = 0; i < b->o->pairs; i++) {
        double cpu[2];
        for (int turn = 0; turn < 2; turn++) {
            bool loaded = (i + turn) % 2;
            *(loaded ? &b->loader_ms[i] : &b->memory_ms[i]) = run_block(b, loaded, &cpu[loaded]);
        }
        b->ratio[i] = b->loader_ms[i] / b->memory_ms[i];
        b->cpu_ratio[i] = cpu[1] / cpu[0];
    }
}

// Time of one batch without a thread, and of starting an epoch.
static void prepare_alone(bench *b, double *batch_us, double *start_ms) {
    int made = 0;
    int64_t start = iso_now();
    bench_require(iso_loader_start(b->alone, 1, 0));
    *start_ms = bench_ms_since(start);
    while (made < PREPARED) {
        iso_batch batch;
        start = iso_now();
        iso_status status = iso_loader_next(b->alone, &batch);
        bench_require(status);
        if (status != ISO_OK) break;
        b->block[made++] = 1e3 * bench_ms_since(start);
    }
    *batch_us = bench_worst_quantile(b->comm, b->block, made, 0.5);
}

static void report(bench *b) {
    const options *o = b->o;
    double batch_us, start_ms;
    prepare_alone(b, &batch_us, &start_ms);
    if (iso_comm_rank(b->comm) != 0) return;
    printf(
        "{\"bench\": \"loader\", \"data\": \"%s\", \"model\": \"%s\", \"batch\": %d, "
        "\"ranks\": %d, \"threads\": %d, \"prefetch\": %d, \"shift\": %d, \"flip\": %g, "
        "\"memory_ms\": %.3f, \"loader_ms\": %.3f, \"ratio\": %.4f, \"ratio_p25\": %.4f, "
        "\"ratio_p75\": %.4f, \"cpu_ratio\": %.4f, \"batch_us\": %.1f, \"epoch_start_ms\": %.2f}\n",
        o->data, o->model, o->batch, iso_comm_size(b->comm), o->threads, o->prefetch, o->shift,
        o->flip, bench_quantile(b->memory_ms, o->pairs, 0.5),
        bench_quantile(b->loader_ms, o->pairs, 0.5), bench_quantile(b->ratio, o->pairs, 0.5),
        bench_quantile(b->ratio, o->pairs, 0.25), bench_quantile(b->ratio, o->pairs, 0.75),
        bench_quantile(b->cpu_ratio, o->pairs, 0.5), batch_us, start_ms);
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    bench b;
    set_up(&b, &o, comm);
    run(&b);
    report(&b);
    tear_down(&b);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
