// SPDX-License-Identifier: MIT
// How cost grows: what a step takes besides its kernels, set-up, memory, saving and loading, as a
// line of CSV. growth.sh makes series of them. With callgrind, --toggle-collect=measured_part
// counts the instructions of what is measured.
#include "bench_breakdown.h"
#include "bench_util.h"

#include <getopt.h>
#include <inttypes.h>
#include <isotherm.h>
#include <isotherm/clip.h>
#include <isotherm/resume.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: mpirun -n RANKS bench_growth [OPTIONS]\n"
    "  --what NAME       step, setup, memory, save, or load (step)\n"
    "  --layers N        linear layers of equal width (10)\n"
    "  --width N         their inputs and outputs (8)\n"
    "  --sync NAME       a strategy (lazy), with --set KEY=VALUE,...\n"
    "  --optimizer NAME  as iso-train's (sgd, without momentum)\n"
    "  --bucket-kb X     size at which a bucket is full (256)\n"
    "  --clip            clips gradients in each step\n"
    "  --kernels         step: kernels compute; otherwise they do nothing\n"
    "  --steps N         measured steps (20), after --warmup N others (12)\n"
    "  --samples N       load: of the data set (1000)\n"
    "  --file PATH       save: where (growth.state)\n"
    "  --progress MODE   auto, off, poll or thread (auto)\n"
    "  --header          prints the names of the columns first\n";

enum { BATCH = 1, FEATURES = 4, LOADED = 16 };

typedef struct growth_options {
    const char *what, *sync, *optimizer, *progress, *file;
    char *settings;
    int layers, width, steps, warmup;
    int64_t samples;
    double bucket_kb;
    bool clip, kernels, header;
} growth_options;

typedef struct growth_run {
    const growth_options *o;
    iso_comm *comm;
    iso_device *device;
    iso_tensor *input;
    int32_t *labels;
    iso_settings *settings;
    iso_strategy_context context;
    const iso_strategy *strategy;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_loader *loader;
    int64_t parameters;
    int buckets;
    double *us, cpu_us, setup_ms, init_ms;
    double base_rss_kb;
} growth_run;

// ---- Options --------------------------------------------------------------------------------------

static int whole(const char *option, const char *text) {
    return (int)bench_number(usage, option, text, 0, 1e9);
}

static void set_option(growth_options *o, int letter, char *text) {
    switch (letter) {
    case 't': o->what = text; break;
    case 'l': o->layers = whole("--layers", text); break;
    case 'w': o->width = whole("--width", text); break;
    case 's': o->sync = text; break;
    case 'e': o->settings = text; break;
    case 'o': o->optimizer = text; break;
    case 'b': o->bucket_kb = bench_number(usage, "--bucket-kb", text, 0, 1e9); break;
    case 'c': o->clip = true; break;
    case 'k': o->kernels = true; break;
    case 'n': o->steps = whole("--steps", text); break;
    case 'm': o->warmup = whole("--warmup", text); break;
    case 'a': o->samples = whole("--samples", text); break;
    case 'f': o->file = text; break;
    case 'p': o->progress = text; break;
    case 'h': o->header = true; break;
    default: bench_usage(usage, "unknown option");
    }
}

static growth_options parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"what", required_argument, NULL, 't'},      {"layers", required_argument, NULL, 'l'},
        {"width", required_argument, NULL, 'w'},     {"sync", required_argument, NULL, 's'},
        {"set", required_argument, NULL, 'e'},       {"optimizer", required_argument, NULL, 'o'},
        {"bucket-kb", required_argument, NULL, 'b'}, {"clip", no_argument, NULL, 'c'},
        {"kernels", no_argument, NULL, 'k'},         {"steps", required_argument, NULL, 'n'},
        {"warmup", required_argument, NULL, 'm'},    {"samples", required_argument, NULL, 'a'},
        {"file", required_argument, NULL, 'f'},      {"progress", required_argument, NULL, 'p'},
        {"header", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    growth_options o = {.what = "step",
                        .sync = "lazy",
                        .optimizer = "sgd",
                        .progress = "auto",
                        .file = "growth.state",
                        .layers = 10,
                        .width = 8,
                        .steps = 20,
                        .warmup = 12,
                        .samples = 1000,
                        .bucket_kb = 256};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) set_option(&o, c, optarg);
    if (optind < argc) bench_usage(usage, "too many arguments");
    if (o.layers < 1 || o.width < 1 || o.steps < 1 || o.samples < LOADED)
        bench_usage(usage, "layers, width and steps are at least 1, samples at least 16");
    return o;
}

// ---- The network ----------------------------------------------------------------------------------

static void make_input(growth_run *r) {
    int64_t shape[2] = {BATCH, r->o->width};
    bench_require(iso_tensor_create(r->device, ISO_F32, 2, shape, &r->input));
    bench_require(iso_tensor_fill(r->input, 0.5));
    r->labels = calloc(BATCH, sizeof(*r->labels));
}

static void make_model(growth_run *r) {
    iso_rng rng = {.seed = 1};
    bench_require(iso_sequential_create(r->device, &r->model));
    for (int i = 0; i < r->o->layers; i++) {
        iso_module *layer;
        bench_require(iso_linear_create(r->device, r->o->width, r->o->width, true, &rng, &layer));
        bench_require(iso_sequential_add_take(r->model, NULL, layer));
    }
    r->parameters = iso_module_parameter_count(r->model);
}

static void make_optimizer(growth_run *r) {
    iso_optimizer_kind kind;
    bench_require(iso_optimizer_kind_parse(r->o->optimizer, &kind));
    iso_hyper hyper = iso_hyper_default(kind);
    iso_optimizer *plain;
    hyper.lr = 1e-6;
    bench_require(iso_optimizer_create(kind, r->model, &hyper, &plain));
    bench_require(
        iso_strategy_wrap_optimizer_take(r->strategy, &r->context, plain, r->model, &r->optimizer));
}

static void wrap_up(growth_run *r) {
    char warning[ISO_STRATEGY_WARNING] = "";
    if (r->o->settings) {
        bench_require(iso_settings_create(&r->settings));
        bench_require(iso_settings_parse(r->settings, r->o->settings));
    }
    int64_t steps = 1000000;
    r->context = (iso_strategy_context){.comm = r->comm,
                                        .data_parallel = ISO_DATA_PARALLEL_DEFAULT,
                                        .total_steps = steps,
                                        .steps_per_epoch = steps,
                                        .settings = r->settings};
    r->context.data_parallel.bucket_mb = r->o->bucket_kb / 1024;
    bench_require(iso_strategy_find(r->o->sync, &r->strategy));
    bench_require(iso_strategy_check(r->strategy, &r->context, warning));
    bench_require(iso_strategy_wrap_module_take(r->strategy, &r->context, r->model, &r->model));
    make_optimizer(r);
    bench_require(iso_loss_create(r->device, ISO_CROSS_ENTROPY, &r->loss));
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(r->model), &stats);
    r->buckets = stats.bucket_count;
}

static void make_network(growth_run *r) {
    make_input(r);
    make_model(r);
    wrap_up(r);
}

static void make_step(growth_run *r) {
    iso_tensor *out, *grad;
    double value;
    iso_optimizer_zero_grad(r->optimizer);
    bench_require(iso_module_forward(r->model, r->input, &out));
    bench_require(iso_loss_compute(r->loss, out, r->labels, &value, NULL, &grad));
    bench_require(iso_module_backward(r->model, grad, NULL));
    bench_require(iso_strategy_reduce_gradients(r->strategy, r->model));
    if (r->o->clip) bench_require(iso_clip_grad_norm(r->model, 1.0, 2.0, &value));
    bench_require(iso_optimizer_step(r->optimizer));
}

static void settle(growth_run *r) {
    bench_require(iso_strategy_complete(r->strategy, r->optimizer));
    bench_require(iso_comm_barrier(r->comm));
}

// ---- Saving and loading -----------------------------------------------------------------------------

static void save_state(growth_run *r) {
    iso_state *state;
    bench_require(iso_state_create(&state));
    bench_require(iso_training_state(r->model, r->optimizer, state));
    bench_require(iso_resume_save(r->comm, r->o->file, 1, state));
    iso_state_destroy(&state);
}

static void load_state(growth_run *r) {
    iso_state *state;
    int64_t step;
    bench_require(iso_state_create(&state));
    bench_require(iso_training_state(r->model, r->optimizer, state));
    bench_require(iso_resume_load(r->comm, r->o->file, state, &step));
    bench_require(iso_training_loaded(r->model, r->optimizer));
    iso_state_destroy(&state);
}

// Samples of four numbers and a label.
static iso_dataset *make_samples(int64_t count) {
    static const iso_tensor_spec tensors[2] = {{.dtype = ISO_F32, .ndim = 1, .shape = {FEATURES}},
                                               {.dtype = ISO_I32}};
    const iso_dataset_config config = {
        .count = count, .inputs = 1, .targets = 1, .tensors = tensors, .classes = 10};
    float *x = calloc((size_t)count * FEATURES, sizeof(*x));
    int32_t *labels = calloc((size_t)count, sizeof(*labels));
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)(i % 10);
    iso_dataset *out;
    bench_require(iso_dataset_create_arrays(&config, (const void *const[]){x, labels}, true, &out));
    free(x);
    free(labels);
    return out;
}

static void read_epoch(growth_run *r) {
    iso_batch batch;
    const iso_loader_config config = {.prefetch = 0};
    const iso_sampler_config order = {.batch = LOADED,
                                      .rank = iso_comm_rank(r->comm),
                                      .ranks = iso_comm_size(r->comm),
                                      .seed = 1,
                                      .shuffle = true,
                                      .end = ISO_SAMPLER_PAD};
    bench_require(iso_loader_create_take(r->device, make_samples(r->o->samples), &order, &config,
                                         &r->loader));
    bench_require(iso_loader_start(r->loader, 0, 0));
    do {
        bench_require(iso_loader_next(r->loader, &batch));
    } while (batch.n > 0);
}

// ---- What is measured -------------------------------------------------------------------------------

static bool is_what(const growth_run *r, const char *name) { return strcmp(r->o->what, name) == 0; }

static void skip_kernel(const char *operation, double flops, double bytes, double share) {
    (void)operation, (void)flops, (void)bytes, (void)share;
}

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

// One of the repetitions that are measured. A function of its own, so that tools can count it.
__attribute__((noinline, noclone)) void measured_part(growth_run *r);
void measured_part(growth_run *r) {
    if (is_what(r, "setup"))
        make_network(r);
    else if (is_what(r, "save")) {
        save_state(r);
        load_state(r);
    } else if (is_what(r, "load"))
        read_epoch(r);
    else
        make_step(r);
}

static void repeat_part(growth_run *r, int count) {
    r->us = calloc((size_t)count, sizeof(*r->us));
    r->cpu_us = -cpu_us();
    for (int i = 0; i < count; i++) {
        int64_t start = iso_now();
        measured_part(r);
        r->us[i] = 1e3 * bench_ms_since(start);
    }
    if (is_what(r, "step")) settle(r);
    r->cpu_us = (r->cpu_us + cpu_us()) / count;
}

static double status_kb(const char *key) {
    char line[256];
    double kb = 0;
    FILE *from = fopen("/proc/self/status", "r");
    while (from && fgets(line, sizeof(line), from))
        if (strncmp(line, key, strlen(key)) == 0) kb = atof(line + strlen(key));
    if (from) fclose(from);
    return kb;
}

// Warm-up steps compute also where kernels are left out later: they touch all memory.
static void measure(growth_run *r) {
    r->base_rss_kb = status_kb("VmRSS:");
    bool network = !is_what(r, "load") && !is_what(r, "setup");
    bool steps = is_what(r, "step") || is_what(r, "memory");
    int64_t start = iso_now();
    if (network) make_network(r);
    r->setup_ms = bench_ms_since(start);
    if (is_what(r, "step") && !r->o->kernels) bench_breakdown_replace(r->device, skip_kernel);
    for (int i = 0; network && i < r->o->warmup; i++) make_step(r);
    if (network) settle(r);
    repeat_part(r, steps ? r->o->steps : 1);
}

static void report(growth_run *r) {
    const growth_options *o = r->o;
    int count = is_what(r, "step") || is_what(r, "memory") ? o->steps : 1;
    long long live;
    iso_memory_balance(NULL, &live, NULL);
    double least = bench_worst_quantile(r->comm, r->us, count, 0);
    double median = bench_worst_quantile(r->comm, r->us, count, 0.5);
    double most[4] = {r->init_ms, r->setup_ms, status_kb("VmRSS:") - r->base_rss_kb,
                      status_kb("VmHWM:")};
    double sums[2] = {r->cpu_us, (double)live};
    bench_require(iso_comm_allreduce_f64(r->comm, most, 4, ISO_MAX));
    bench_require(iso_comm_allreduce_f64(r->comm, sums, 2, ISO_SUM));
    int ranks = iso_comm_size(r->comm);
    if (iso_comm_rank(r->comm) != 0) return;
    if (o->header)
        printf("what,ranks,sync,optimizer,layers,parameters,buckets,samples,min_us,median_us,"
               "cpu_us,init_ms,setup_ms,live_mb,rss_mb,peak_mb\n");
    printf("%s,%d,%s,%s,%d,%" PRId64 ",%d,%" PRId64 ",%.2f,%.2f,%.2f,%.2f,%.2f,%.3f,%.3f,%.3f\n",
           o->what, ranks, o->sync, o->optimizer, o->layers, r->parameters, r->buckets, o->samples,
           least, median, sums[0] / ranks, most[0], most[1], sums[1] / ranks * 1e-6,
           most[2] * 1024e-6, most[3] * 1024e-6);
    fflush(stdout);
}

static void tear_down(growth_run *r) {
    if (r->optimizer) bench_require(iso_strategy_finish(r->strategy, r->optimizer));
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_loss_destroy(&r->loss);
    iso_loader_destroy(&r->loader);
    iso_tensor_destroy(&r->input);
    iso_settings_destroy(&r->settings);
    iso_device_destroy(&r->device);
    if (is_what(r, "save")) bench_require(iso_resume_remove(r->o->file));
    free(r->labels);
    free(r->us);
}

int main(int argc, char **argv) {
    growth_options o = parse_options(argc, argv);
    growth_run r = {.o = &o};
    int64_t start = iso_now();
    r.comm = bench_start(&argc, &argv, o.progress);
    r.init_ms = bench_ms_since(start);
    bench_require(iso_device_create("cpu", &r.device));
    measure(&r);
    report(&r);
    tear_down(&r);
    iso_comm_destroy(&r.comm);
    MPI_Finalize();
    return 0;
}
