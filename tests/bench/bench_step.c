// Time of a whole training step of an example network on random input, with and without its
// exchange.
#include "bench_breakdown.h"
#include "bench_util.h"

#include <getopt.h>
#include <isotherm.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/models.h"

static const char usage[] =
    "usage: mpirun -n RANKS bench_step [OPTIONS]\n"
    "  --model NAME     mlp or cnn on 1x28x28, lenet or resnet18 on 3x32x32, without dropout "
    "(cnn)\n"
    "  --batch N        per rank (64)\n"
    "  --steps N        timed steps (50), after --warmup N others (10)\n"
    "  --sync MODE      lazy, blocking or none: no exchange at all (lazy)\n"
    "  --report-hidden  alternates blocks of all three, and tells how much of the exchange is "
    "hidden\n"
    "  --breakdown      tells for each kernel of a step its time and how near it comes to the\n"
    "                   machine's peak, on one rank or on the first of several\n"
    "  --progress MODE  auto, off, poll or thread (auto)\n"
    "  --bucket-mb X    layers are fused until a buffer holds this much (0.25)\n"
    "  --piece-mb X     larger parameters leave in pieces of so much, 0: as a whole (1)\n"
    "  --threads N      of each rank (1)\n"
    "  --tuned          kernels that are the fastest in a first step, not the rule's\n";

typedef struct options {
    const char *model, *progress;
    int batch, steps, warmup, threads;
    iso_sync sync;
    bool report_hidden, breakdown, tuned;
    double bucket_mb, piece_mb;
} options;

// One replica with its own parameters, communication buffer and optimizer.
typedef struct replica {
    iso_module *model;
    iso_optimizer *optimizer;
    double *ms; // of each timed step
    int timed;
} replica;

typedef struct bench {
    const options *o;
    iso_comm *comm;
    iso_device *device;
    iso_tensor *images;
    int32_t *labels;
    iso_loss *loss;
    replica by_sync[3]; // index: iso_sync
    double exchange_ms;
    long long allocations, primitives; // during timed steps
} bench;

static const char *const sync_name[] = {"lazy", "blocking", "none"};

// ---- Options --------------------------------------------------------------------------------------

static iso_sync parse_sync(const char *text) {
    for (int i = 0; i < 3; i++)
        if (strcmp(text, sync_name[i]) == 0) return (iso_sync)i;
    bench_usage(usage, "--sync takes lazy, blocking or none");
    return ISO_SYNC_LAZY;
}

static options parse(int argc, char **argv) {
    options o = {.model = "cnn",
                 .progress = "auto",
                 .batch = 64,
                 .steps = 50,
                 .warmup = 10,
                 .threads = 1,
                 .bucket_mb = ISO_DATA_PARALLEL_DEFAULT.bucket_mb,
                 .piece_mb = ISO_DATA_PARALLEL_DEFAULT.piece_mb};
    static const struct option known[] = {{"model", required_argument, NULL, 'm'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"sync", required_argument, NULL, 's'},
                                          {"report-hidden", no_argument, NULL, 'h'},
                                          {"progress", required_argument, NULL, 'p'},
                                          {"bucket-mb", required_argument, NULL, 'k'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"breakdown", no_argument, NULL, 'd'},
                                          {"tuned", no_argument, NULL, 'u'},
                                          {"piece-mb", required_argument, NULL, 'i'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'm')
            o.model = optarg;
        else if (c == 'b')
            o.batch = (int)bench_number(usage, "--batch", optarg, 1, 1e6);
        else if (c == 'n')
            o.steps = (int)bench_number(usage, "--steps", optarg, 1, 1e6);
        else if (c == 'w')
            o.warmup = (int)bench_number(usage, "--warmup", optarg, 1, 1e6);
        else if (c == 's')
            o.sync = parse_sync(optarg);
        else if (c == 'h')
            o.report_hidden = true;
        else if (c == 'd')
            o.breakdown = true;
        else if (c == 'u')
            o.tuned = true;
        else if (c == 'p')
            o.progress = optarg;
        else if (c == 'k')
            o.bucket_mb = bench_number(usage, "--bucket-mb", optarg, 0, 1e5);
        else if (c == 'i')
            o.piece_mb = bench_number(usage, "--piece-mb", optarg, 0, 1e5);
        else if (c == 't')
            o.threads = (int)bench_number(usage, "--threads", optarg, 1, 1024);
        else
            bench_usage(usage, "unknown option");
    }
    if (optind < argc) bench_usage(usage, "too many arguments");
    return o;
}

static iso_dataset_info input_of(const char *model) {
    bool gray = strcmp(model, "mlp") == 0 || strcmp(model, "cnn") == 0;
    int64_t side = gray ? 28 : 32;
    return (iso_dataset_info){
        .channels = gray ? 1 : 3, .height = side, .width = side, .classes = 10};
}

// ---- Set-up ---------------------------------------------------------------------------------------

static void make_input(bench *b) {
    const iso_dataset_info input = input_of(b->o->model);
    int64_t shape[] = {b->o->batch, input.channels, input.height, input.width};
    float *x;
    bench_require(iso_tensor_create(b->device, ISO_F32, 4, shape, &b->images));
    bench_require(iso_tensor_map(b->images, ISO_WRITE, (void **)&x));
    srand(1);
    for (int64_t i = 0; i < iso_tensor_count(b->images); i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    bench_require(iso_tensor_unmap(b->images));
    b->labels = calloc((size_t)b->o->batch, sizeof(*b->labels));
    for (int i = 0; i < b->o->batch; i++) b->labels[i] = rand() % 10;
}

static void make_replica(bench *b, iso_sync sync) {
    replica *r = &b->by_sync[sync];
    const iso_dataset_info shape = input_of(b->o->model);
    const iso_data_parallel_config config = {
        .sync = sync, .bucket_mb = b->o->bucket_mb, .piece_mb = b->o->piece_mb};
    iso_rng rng = {.seed = 1};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.001, hyper.momentum = 0.9;
    iso_module *model;
    iso_optimizer *sgd;
    bench_require(model_create(b->o->model, b->device, &shape, false, &rng, &model));
    bench_require(iso_optimizer_create(ISO_SGD, model, &hyper, &sgd));
    bench_require(iso_data_parallel_create_take(model, b->comm, &config, &r->model));
    bench_require(iso_dp_optimizer_create_take(sgd, r->model, &r->optimizer));
    r->ms = calloc((size_t)b->o->steps, sizeof(*r->ms));
}

static bool wanted(const options *o, int sync) { return o->report_hidden || (int)o->sync == sync; }

static void set_up(bench *b, const options *o, iso_comm *comm) {
    *b = (bench){.o = o, .comm = comm};
    bench_require(iso_device_create("cpu", &b->device));
    bench_require(iso_device_set_threads(b->device, o->threads));
    bench_require(iso_loss_create(b->device, ISO_CROSS_ENTROPY, &b->loss));
    make_input(b);
    for (int s = 0; s < 3; s++)
        if (wanted(o, s)) make_replica(b, (iso_sync)s);
}

static void tear_down(bench *b) {
    for (int s = 0; s < 3; s++) {
        iso_optimizer_destroy(&b->by_sync[s].optimizer);
        iso_module_destroy(&b->by_sync[s].model);
        free(b->by_sync[s].ms);
    }
    iso_loss_destroy(&b->loss);
    iso_tensor_destroy(&b->images);
    free(b->labels);
    iso_device_destroy(&b->device);
}

// ---- Timing ---------------------------------------------------------------------------------------

static void step(bench *b, replica *r) {
    iso_tensor *out, *grad;
    double value;
    iso_optimizer_zero_grad(r->optimizer);
    bench_require(iso_module_forward(r->model, b->images, &out));
    bench_require(iso_loss_compute(b->loss, out, b->labels, &value, NULL, &grad));
    bench_require(iso_module_backward(r->model, grad, NULL));
    bench_require(iso_optimizer_step(r->optimizer));
}

// `count` timed steps after a few others, in which the pipeline fills.
static void run_block(bench *b, replica *r, int warmup, int count) {
    long long before, after;
    for (int i = 0; i < warmup; i++) step(b, r);
    iso_memory_balance(NULL, NULL, &before);
    long long primitives = iso_device_primitives_created(b->device);
    for (int i = 0; i < count; i++) {
        int64_t start = iso_now();
        step(b, r);
        r->ms[r->timed++] = bench_ms_since(start);
    }
    iso_memory_balance(NULL, NULL, &after);
    b->allocations += after - before;
    b->primitives += iso_device_primitives_created(b->device) - primitives;
    bench_require(iso_data_parallel_finish(r->model));
    bench_require(iso_comm_barrier(b->comm));
}

// Blocks alternate, so that what else the machine does meets all of them.
static void run(bench *b) {
    const options *o = b->o;
    const int block = o->report_hidden && o->steps > 10 ? 10 : o->steps;
    for (int done = 0; done < o->steps; done += block) {
        int count = o->steps - done < block ? o->steps - done : block;
        for (int s = 0; s < 3; s++)
            if (wanted(o, s)) run_block(b, &b->by_sync[s], done == 0 ? o->warmup : 2, count);
    }
    for (int s = 0; s < 3; s++) {
        if (!wanted(o, s)) continue;
        if (s != ISO_SYNC_NONE && iso_comm_size(b->comm) > 1)
            bench_require(iso_reducer_measure_exchange(
                iso_data_parallel_reducer(b->by_sync[s].model), 11, &b->exchange_ms));
    }
}

// ---- Report ---------------------------------------------------------------------------------------

// Quantile of a mode's steps on its slowest rank.
static double step_ms(bench *b, int sync, double q) {
    return bench_worst_quantile(b->comm, b->by_sync[sync].ms, b->o->steps, q);
}

static void report_hidden(bench *b) {
    double lazy = step_ms(b, ISO_SYNC_LAZY, 0.5), blocking = step_ms(b, ISO_SYNC_BLOCKING, 0.5);
    double none = step_ms(b, ISO_SYNC_NONE, 0.5), exposed = lazy - none;
    // Of what is exposed, the part that a rank stands waiting; the rest is computing slowed down by
    // what the network costs its core.
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(b->by_sync[ISO_SYNC_LAZY].model), &stats);
    double wait = stats.wait_ms / (double)stats.steps;
    bench_require(iso_comm_allreduce_f64(b->comm, &wait, 1, ISO_MAX));
    if (iso_comm_rank(b->comm) == 0)
        printf(
            ", \"lazy_ms\": %.3f, \"blocking_ms\": %.3f, \"none_ms\": %.3f, \"exposed_ms\": %.3f, "
            "\"lazy_wait_ms\": %.3f, \"hidden\": %.3f}\n",
            lazy, blocking, none, exposed, wait, 1 - exposed / b->exchange_ms);
}

static void report_one(bench *b) {
    double p50 = step_ms(b, b->o->sync, 0.5), p95 = step_ms(b, b->o->sync, 0.95);
    double least = step_ms(b, b->o->sync, 0);
    if (iso_comm_rank(b->comm) == 0)
        printf(", \"sync\": \"%s\", \"step_ms_p50\": %.3f, \"step_ms_p95\": %.3f, "
               "\"step_ms_min\": %.3f}\n",
               sync_name[b->o->sync], p50, p95, least);
}

static void report(bench *b) {
    const options *o = b->o;
    double worst[3] = {(double)b->allocations, (double)b->primitives, iso_peak_rss_mb()};
    bench_require(iso_comm_allreduce_f64(b->comm, worst, 3, ISO_MAX));
    if (iso_comm_rank(b->comm) == 0)
        printf("{\"bench\": \"step\", \"model\": \"%s\", \"batch\": %d, \"ranks\": %d, "
               "\"threads\": %d, "
               "\"progress\": \"%s\", \"exchange_alone_ms\": %.3f, \"allocations\": %.0f, "
               "\"primitives\": %.0f, "
               "\"peak_rss_mb\": %.1f",
               o->model, o->batch, iso_comm_size(b->comm), o->threads,
               iso_progress_name(iso_comm_progress(b->comm)), b->exchange_ms, worst[0], worst[1],
               worst[2]);
    if (o->report_hidden)
        report_hidden(b);
    else
        report_one(b);
}

// Of one rank: others may choose other kernels.
static void tune(bench *b) {
    bench_require(iso_device_tune(b->device, true));
    step(b, &b->by_sync[b->o->sync]);
    bench_require(iso_device_tune(b->device, false));
}

static void break_down(bench *b) {
    replica *r = &b->by_sync[b->o->sync];
    bench_subject subject = {.device = b->device,
                             .model = r->model,
                             .optimizer = r->optimizer,
                             .loss = b->loss,
                             .images = b->images,
                             .labels = b->labels,
                             .threads = b->o->threads};
    bench_breakdown(&subject, b->o->warmup, b->o->steps, iso_comm_rank(b->comm) != 0);
    bench_require(iso_data_parallel_finish(r->model));
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    bench b;
    set_up(&b, &o, comm);
    if (o.tuned) tune(&b);
    if (o.breakdown) {
        break_down(&b);
    } else {
        run(&b);
        report(&b);
    }
    tear_down(&b);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
