// SPDX-License-Identifier: MIT
// Time of a whole training step of an example network on random input, with and without its
// exchange.
#include "bench_breakdown.h"
#include "bench_device.h"
#include "bench_options.h"
#include "bench_util.h"

#include <isotherm.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/support/models.h"

// One replica with its own parameters, communication buffer and optimizer.
typedef struct replica {
    iso_module *model;
    iso_optimizer *optimizer;
    double *ms; // of each timed step, as the host saw it
    int timed;
    long long launches, graphs; // of the device, in these steps
    double *block_ms; // mean step of each block, from a device without work to the same again
    int blocks;
} replica;

typedef struct bench {
    const bench_options *o;
    iso_comm *comm;
    bench_device on;
    iso_tensor *images;
    int32_t *labels;
    iso_loss *loss[2]; // in turn where the device is beside the host
    int turn;          // which is next
    long long losses;  // computed so far
    double first_loss, last_loss;
    replica by_sync[3]; // index: iso_sync
    double exchange_ms;
    long long allocations, primitives; // during timed steps
} bench;

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
    bench_require(iso_tensor_create(b->on.device, ISO_F32, 4, shape, &b->images));
    bench_require(iso_tensor_map(b->images, ISO_WRITE, (void **)&x));
    srand(1);
    for (int64_t i = 0; i < iso_tensor_count(b->images); i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    bench_require(iso_tensor_unmap(b->images));
    b->labels = calloc((size_t)b->o->batch, sizeof(*b->labels));
    for (int i = 0; i < b->o->batch; i++) b->labels[i] = rand() % 10;
}

static iso_comm_hook hook_of(const char *wire) {
    const iso_comm_hook *hook;
    bench_require(iso_comm_hook_parse(wire, &hook));
    iso_comm_hook at_once = *hook;
    at_once.start = 0;
    return at_once;
}

static void make_replica(bench *b, iso_sync sync) {
    replica *r = &b->by_sync[sync];
    const iso_dataset_info shape = input_of(b->o->model);
    const iso_comm_hook hook = hook_of(b->o->wire);
    const iso_data_parallel_config config = {.sync = sync,
                                             .bucket_mb = b->o->bucket_mb,
                                             .piece_mb = b->o->piece_mb,
                                             .hook = sync == ISO_SYNC_NONE ? NULL : &hook};
    iso_rng rng = {.seed = 1};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.001, hyper.momentum = 0.9;
    iso_module *model;
    iso_optimizer *sgd;
    bench_require(model_create(b->o->model, b->on.device, &shape, false, &rng, &model));
    bool rounds = b->on.beside && strcmp(b->o->math, "bf16") == 0;
    if (rounds || strcmp(b->o->autocast, "none") != 0) {
        iso_dtype half = strcmp(b->o->autocast, "f16") == 0 ? ISO_F16 : ISO_BF16;
        bench_require(iso_autocast_create_take(model, half, &model));
        bench_require(iso_autocast_keep_output(model, true));
    }
    bench_require(iso_optimizer_create(ISO_SGD, model, &hyper, &sgd));
    bench_require(iso_data_parallel_create_take(model, b->comm, &config, &r->model));
    bench_require(iso_dp_optimizer_create_take(sgd, r->model, &r->optimizer));
    r->ms = calloc((size_t)b->o->steps, sizeof(*r->ms));
    r->block_ms = calloc((size_t)b->o->steps, sizeof(*r->block_ms));
}

static bool wanted(const bench_options *o, int sync) {
    return o->report_hidden || (int)o->sync == sync;
}

static void set_up(bench *b, const bench_options *o, iso_comm *comm) {
    *b = (bench){.o = o, .comm = comm};
    bench_device_open(&b->on, o->device, o->math, o->graphs, comm);
    bench_require(iso_device_set_threads(b->on.device, o->threads));
    for (int i = 0; i < 2; i++)
        bench_require(iso_loss_create(b->on.device, ISO_CROSS_ENTROPY, &b->loss[i]));
    make_input(b);
    for (int s = 0; s < 3; s++)
        if (wanted(o, s)) make_replica(b, (iso_sync)s);
}

static void tear_down(bench *b) {
    for (int s = 0; s < 3; s++) {
        iso_optimizer_destroy(&b->by_sync[s].optimizer);
        iso_module_destroy(&b->by_sync[s].model);
        free(b->by_sync[s].ms);
        free(b->by_sync[s].block_ms);
    }
    for (int i = 0; i < 2; i++) iso_loss_destroy(&b->loss[i]);
    iso_tensor_destroy(&b->images);
    free(b->labels);
    bench_device_close(&b->on);
}

// ---- Timing ---------------------------------------------------------------------------------------

// Of a device beside the host the loss of the step before is waited for, when that of this step is
// under way: the device has about a step's work ahead of it then.
static void compute_loss(bench *b, iso_tensor *out, iso_tensor **grad) {
    double value = 0;
    if (b->on.beside) {
        iso_loss *now = b->loss[b->turn], *before = b->loss[!b->turn];
        bench_require(iso_loss_compute(now, out, b->labels, NULL, NULL, grad));
        if (b->losses > 0) bench_require(iso_loss_value(before, &value, NULL));
        b->turn = !b->turn;
    } else {
        bench_require(iso_loss_compute(b->loss[0], out, b->labels, &value, NULL, grad));
    }
    if (b->losses == 1) b->first_loss = value;
    b->losses++;
}

static void step(bench *b, replica *r) {
    iso_tensor *out, *grad;
    iso_optimizer_zero_grad(r->optimizer);
    bench_require(iso_module_forward(r->model, b->images, &out));
    compute_loss(b, out, &grad);
    bench_require(iso_module_backward(r->model, grad, NULL));
    bench_require(iso_optimizer_step(r->optimizer));
}

// Completes what the steps so far have begun, on all ranks and on the device.
static void settle(bench *b, replica *r) {
    bench_require(iso_data_parallel_finish(r->model));
    bench_device_drain(&b->on);
    bench_require(iso_comm_barrier(b->comm));
}

static void timed_steps(bench *b, replica *r, int count) {
    int64_t block = iso_now();
    long long launches, graphs;
    iso_device_launches(b->on.device, &launches, &graphs);
    r->launches -= launches;
    r->graphs -= graphs;
    for (int i = 0; i < count; i++) {
        int64_t start = iso_now();
        step(b, r);
        r->ms[r->timed++] = bench_ms_since(start);
    }
    iso_device_launches(b->on.device, &launches, &graphs);
    r->launches += launches;
    r->graphs += graphs;
    if (!b->on.beside) return;
    bench_require(iso_data_parallel_finish(r->model));
    bench_device_drain(&b->on);
    r->block_ms[r->blocks++] = bench_ms_since(block) / count;
}

// `count` timed steps after a few others, in which the pipeline fills. Some of those settle, too:
// the step behind is other work to a device, and has a graph of its own.
static void run_block(bench *b, replica *r, int warmup, int count) {
    long long before, after;
    for (int i = 0; i < warmup; i++) {
        step(b, r);
        if (b->on.beside && i % 4 == 3) settle(b, r);
    }
    if (b->on.beside) settle(b, r);
    iso_memory_balance(NULL, NULL, &before);
    long long primitives = iso_device_primitives_created(b->on.device);
    timed_steps(b, r, count);
    iso_memory_balance(NULL, NULL, &after);
    b->allocations += after - before;
    b->primitives += iso_device_primitives_created(b->on.device) - primitives;
    settle(b, r);
}

// On a device beside the host the median of five blocks is told.
static int block_length(const bench *b) {
    const bench_options *o = b->o;
    if (o->report_hidden) return o->steps > 10 ? 10 : o->steps;
    return b->on.beside ? (o->steps + 4) / 5 : o->steps;
}

// Blocks alternate, so that what else the machine does meets all of them.
static void run(bench *b) {
    const bench_options *o = b->o;
    const int block = block_length(b);
    for (int done = 0; done < o->steps; done += block) {
        int count = o->steps - done < block ? o->steps - done : block;
        for (int s = 0; s < 3; s++)
            if (wanted(o, s)) run_block(b, &b->by_sync[s], done == 0 ? o->warmup : 2, count);
    }
    if (b->on.beside) bench_require(iso_loss_value(b->loss[!b->turn], &b->last_loss, NULL));
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
               bench_sync_name[b->o->sync], p50, p95, least);
}

// Of a device beside the host: what a step takes of it, and the host's view (step_ms_p50 and so on,
// which are intervals between steps), and what the device was given in a step of rank 0.
static void report_device(bench *b) {
    const bench_options *o = b->o;
    replica *r = &b->by_sync[o->report_hidden ? ISO_SYNC_LAZY : o->sync];
    double mean = bench_worst_quantile(b->comm, r->block_ms, r->blocks, 0.5);
    double p90 = step_ms(b, (int)(r - b->by_sync), 0.9);
    if (iso_comm_rank(b->comm) != 0) return;
    printf(", \"device\": \"%s\", \"on\": \"%s\", \"math\": \"%s\", \"graphs\": \"%s\", "
           "\"step_ms\": %.5f, \"step_ms_p90\": %.3f, \"launches\": %.1f, \"graph_launches\": "
           "%.1f, \"first_loss\": %.5f, \"last_loss\": %.5f",
           iso_device_name(b->on.device), iso_device_describe(b->on.device), o->math,
           o->graphs ? o->graphs : "default", mean, p90, (double)r->launches / r->timed,
           (double)r->graphs / r->timed, b->first_loss, b->last_loss);
    printf(", \"blocks_ms\": [");
    for (int i = 0; i < r->blocks; i++) printf("%s%.5f", i ? ", " : "", r->block_ms[i]);
    printf("]");
}

static void report(bench *b) {
    const bench_options *o = b->o;
    double worst[3] = {(double)b->allocations, (double)b->primitives, iso_peak_rss_mb()};
    bench_require(iso_comm_allreduce_f64(b->comm, worst, 3, ISO_MAX));
    if (iso_comm_rank(b->comm) == 0)
        printf("{\"bench\": \"step\", \"model\": \"%s\", \"wire\": \"%s\", \"batch\": %d, "
               "\"ranks\": %d, \"autocast\": \"%s\", "
               "\"threads\": %d, "
               "\"progress\": \"%s\", \"exchange_alone_ms\": %.3f, \"allocations\": %.0f, "
               "\"primitives\": %.0f, "
               "\"peak_rss_mb\": %.1f",
               o->model, o->wire, o->batch, iso_comm_size(b->comm), o->autocast, o->threads,
               iso_progress_name(iso_comm_progress(b->comm)), b->exchange_ms, worst[0], worst[1],
               worst[2]);
    if (b->on.beside) report_device(b);
    if (o->report_hidden)
        report_hidden(b);
    else
        report_one(b);
}

// Of one rank: others may choose other kernels.
static void tune(bench *b) {
    bench_require(iso_device_tune(b->on.device, true));
    step(b, &b->by_sync[b->o->sync]);
    bench_require(iso_device_tune(b->on.device, false));
}

static void break_down(bench *b) {
    replica *r = &b->by_sync[b->o->sync];
    bench_subject subject = {.device = b->on.device,
                             .model = r->model,
                             .optimizer = r->optimizer,
                             .loss = b->loss[0],
                             .images = b->images,
                             .labels = b->labels,
                             .threads = b->o->threads,
                             .table = b->o->table};
    bench_breakdown(&subject, b->o->warmup, b->o->steps, iso_comm_rank(b->comm) != 0);
    bench_require(iso_data_parallel_finish(r->model));
}

static void measure(const bench_options *o, iso_comm *comm) {
    bench b;
    set_up(&b, o, comm);
    if (o->tuned) tune(&b);
    if (o->breakdown) {
        break_down(&b);
    } else {
        run(&b);
        report(&b);
    }
    tear_down(&b);
    fflush(stdout);
}

int main(int argc, char **argv) {
    bench_plan plan = bench_parse(argc, argv);
    bench_options o;
    iso_comm *comm = bench_start(&argc, &argv, plan.base.progress);
    for (int i = 0; bench_select(&plan, i, &o); i++) measure(&o, comm);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
