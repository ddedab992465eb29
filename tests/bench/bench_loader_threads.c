// SPDX-License-Identifier: MIT
// What several threads of a loader buy if a callback is slow: one that waits, as a file or a
// network makes it wait, or one that computes.
#include "bench_util.h"

#include <getopt.h>
#include <isotherm.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "usage: bench_loader_threads [OPTIONS]\n"
                            "  --sample-ms X    what the callback takes for a sample (5)\n"
                            "  --work KIND      sleep or compute (sleep)\n"
                            "  --batch N        (8)\n"
                            "  --batches N      of a run (64)\n"
                            "  --threads N,...  a run for each number (1,2,4,8,16)\n";

typedef struct options {
    double sample_ms;
    bool compute;
    int batch, batches;
    bench_list threads;
    bench_work work;
} options;

static options parse(int argc, char **argv) {
    static char usual[] = "1,2,4,8,16";
    options o = {.sample_ms = 5, .batch = 8, .batches = 64};
    char *threads = usual;
    static const struct option known[] = {
        {"sample-ms", required_argument, NULL, 'm'}, {"work", required_argument, NULL, 'w'},
        {"batch", required_argument, NULL, 'b'},     {"batches", required_argument, NULL, 'n'},
        {"threads", required_argument, NULL, 't'},   {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'm': o.sample_ms = bench_number(usage, "--sample-ms", optarg, 0.001, 1e4); break;
        case 'w': o.compute = strcmp(optarg, "compute") == 0; break;
        case 'b': o.batch = (int)bench_number(usage, "--batch", optarg, 1, 1e6); break;
        case 'n': o.batches = (int)bench_number(usage, "--batches", optarg, 1, 1e6); break;
        case 't': threads = optarg; break;
        default: bench_usage(usage, "unknown option");
        }
    }
    if (optind < argc) bench_usage(usage, "too many arguments");
    o.threads = bench_split(threads);
    if (o.compute) o.work = bench_calibrate(o.sample_ms);
    return o;
}

static iso_status read_slowly(int64_t i, void *const *tensors, void *user) {
    const options *o = user;
    int64_t ns = (int64_t)(o->sample_ms * 1e6);
    struct timespec pause = {ns / 1000000000, ns % 1000000000};
    if (o->compute)
        bench_burn(o->work);
    else
        nanosleep(&pause, NULL);
    *(float *)tensors[0] = (float)i;
    return ISO_OK;
}

// Milliseconds per batch of a whole epoch.
static double run_epoch(options *o, int threads) {
    const iso_tensor_spec number = {.dtype = ISO_F32};
    const iso_dataset_config samples = {
        .count = (int64_t)o->batch * o->batches, .inputs = 1, .tensors = &number};
    const iso_sampler_config order = {.batch = o->batch, .ranks = 1};
    const iso_loader_config config = {.prefetch = 2, .threads = threads};
    iso_device *device;
    iso_dataset *dataset;
    iso_loader *loader;
    iso_batch batch;
    bench_require(iso_device_create("cpu", &device));
    bench_require(iso_dataset_create_callback(&samples, read_slowly, o, &dataset));
    bench_require(iso_loader_create_take(device, dataset, &order, &config, &loader));
    int64_t start = iso_now();
    bench_require(iso_loader_start(loader, 0, 0));
    for (int k = 0; k < o->batches; k++) bench_require(iso_loader_next(loader, &batch));
    double ms = bench_ms_since(start);
    iso_loader_destroy(&loader);
    iso_device_destroy(&device);
    return ms / o->batches;
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    double first = 0;
    for (int i = 0; i < o.threads.count; i++) {
        int threads = (int)bench_number(usage, "--threads", o.threads.value[i], 1, 1024);
        double ms = run_epoch(&o, threads);
        if (i == 0) first = ms;
        printf("{\"bench\": \"loader_threads\", \"work\": \"%s\", \"sample_ms\": %g, "
               "\"batch\": %d, \"batches\": %d, \"threads\": %d, \"batch_ms\": %.3f, "
               "\"speedup\": %.2f}\n",
               o.compute ? "compute" : "sleep", o.sample_ms, o.batch, o.batches, threads, ms,
               first / ms);
    }
    return 0;
}
