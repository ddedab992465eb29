// SPDX-License-Identifier: MIT
// Time of a step of a periodic mode, DiLoCo: ranks train an example network alone on random input,
// and exchange parameters at the end of each period. A step is the mean of a period.
#include "bench_util.h"

#include <getopt.h>
#include <isotherm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/support/models.h"

static const char usage[] =
    "usage: mpirun -n RANKS bench_period [OPTIONS]\n"
    "  --model NAME     mlp or cnn on 1x28x28, resnet18 on 3x32x32, without dropout (cnn)\n"
    "  --batch N        per rank (64)\n"
    "  --period N       local steps between exchanges of parameters (8)\n"
    "  --steps N        timed steps (50), in whole periods, at least 2; another period comes "
    "first\n"
    "  --warmup N       is taken and ignored, as the first period is long enough\n"
    "  --threads N      of each rank (1)\n";

typedef struct options {
    const char *model;
    int batch, period, steps, threads;
} options;

typedef struct bench {
    iso_device *device;
    iso_tensor *images;
    int32_t *labels;
    iso_loss *loss;
    iso_module *model;
    iso_optimizer *optimizer;
} bench;

static options parse(int argc, char **argv) {
    options o = {.model = "cnn", .batch = 64, .period = 8, .steps = 50, .threads = 1};
    static const struct option known[] = {{"model", required_argument, NULL, 'm'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"period", required_argument, NULL, 'p'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"threads", required_argument, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'm')
            o.model = optarg;
        else if (c == 'b')
            o.batch = (int)bench_number(usage, "--batch", optarg, 1, 1e6);
        else if (c == 'p')
            o.period = (int)bench_number(usage, "--period", optarg, 1, 1e6);
        else if (c == 'n')
            o.steps = (int)bench_number(usage, "--steps", optarg, 1, 1e6);
        else if (c == 't')
            o.threads = (int)bench_number(usage, "--threads", optarg, 1, 1024);
        else if (c != 'w')
            bench_usage(usage, "unknown option");
    }
    return o;
}

// ---- Set-up ---------------------------------------------------------------------------------------

static void make_input(bench *b, const options *o, const iso_dataset_info *info) {
    int64_t shape[] = {o->batch, info->channels, info->height, info->width};
    float *x;
    bench_require(iso_tensor_create(b->device, ISO_F32, 4, shape, &b->images));
    bench_require(iso_tensor_map(b->images, ISO_WRITE, (void **)&x));
    srand(1);
    for (int64_t i = 0; i < iso_tensor_count(b->images); i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    bench_require(iso_tensor_unmap(b->images));
    b->labels = calloc((size_t)o->batch, sizeof(*b->labels));
    for (int i = 0; i < o->batch; i++) b->labels[i] = rand() % 10;
}

static void make_training(bench *b, const options *o, const iso_dataset_info *info, int64_t steps,
                          iso_comm *comm) {
    iso_rng rng = {.seed = 1};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    iso_daso_config diloco = iso_local_sgd_config(steps, o->period);
    iso_module *net;
    iso_optimizer *sgd;
    hyper.lr = 0.001, hyper.momentum = 0.9;
    diloco.outer = &iso_outer_nesterov;
    bench_require(model_create(o->model, b->device, info, false, &rng, &net));
    bench_require(iso_optimizer_create(ISO_SGD, net, &hyper, &sgd));
    bench_require(iso_data_parallel_create_take(net, comm, &config, &b->model));
    bench_require(iso_dp_optimizer_create_take(sgd, b->model, &sgd));
    bench_require(iso_daso_create_take(sgd, b->model, &diloco, &b->optimizer));
    bench_require(iso_loss_create(b->device, ISO_CROSS_ENTROPY, &b->loss));
}

static void set_up(bench *b, const options *o, int64_t steps, iso_comm *comm) {
    bool gray = strcmp(o->model, "resnet18") != 0;
    int64_t side = gray ? 28 : 32;
    iso_dataset_info info = {
        .channels = gray ? 1 : 3, .height = side, .width = side, .classes = 10};
    bench_require(iso_device_create("cpu", &b->device));
    bench_require(iso_device_set_threads(b->device, o->threads));
    make_input(b, o, &info);
    make_training(b, o, &info, steps, comm);
}

static void tear_down(bench *b) {
    iso_optimizer_destroy(&b->optimizer);
    iso_module_destroy(&b->model);
    iso_loss_destroy(&b->loss);
    iso_tensor_destroy(&b->images);
    free(b->labels);
    iso_device_destroy(&b->device);
}

// ---- Timing ---------------------------------------------------------------------------------------

static void run_step(bench *b) {
    iso_tensor *out, *grad;
    double value;
    iso_optimizer_zero_grad(b->optimizer);
    bench_require(iso_module_forward(b->model, b->images, &out));
    bench_require(iso_loss_compute(b->loss, out, b->labels, &value, NULL, &grad));
    bench_require(iso_module_backward(b->model, grad, NULL));
    bench_require(iso_optimizer_step(b->optimizer));
}

// Mean ms of the steps of a period.
static double time_period(bench *b, int period) {
    int64_t start = iso_now();
    for (int i = 0; i < period; i++) run_step(b);
    return bench_ms_since(start) / period;
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, "auto");
    int periods = o.steps / o.period < 2 ? 2 : o.steps / o.period;
    double *ms = calloc((size_t)periods, sizeof(*ms));
    bench b = {0};
    iso_daso_stats stats;
    set_up(&b, &o, (int64_t)(periods + 1) * o.period, comm);
    time_period(&b, o.period);
    for (int i = 0; i < periods; i++) ms[i] = time_period(&b, o.period);
    bench_require(iso_daso_complete(b.optimizer));
    bench_require(iso_daso_get_stats(b.optimizer, &stats));
    double middle = bench_worst_quantile(comm, ms, periods, 0.5);
    if (iso_comm_rank(comm) == 0)
        printf(
            "{\"bench\": \"period\", \"model\": \"%s\", \"batch\": %d, \"ranks\": %d, \"threads\": "
            "%d, \"period\": %d, \"exchanges\": %lld, \"step_ms_p50\": %.3f}\n",
            o.model, o.batch, iso_comm_size(comm), o.threads, o.period, (long long)stats.syncs,
            middle);
    tear_down(&b);
    free(ms);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
