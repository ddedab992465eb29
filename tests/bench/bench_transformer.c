// SPDX-License-Identifier: MIT
// What lazy exchange and the order by need are worth to somebody's own training code: a small
// transformer on plain arrays, whose embeddings are needed first and ready last. All modes take
// turns.
#include "bench_transformer_net.h"
#include "bench_util.h"

#include <getopt.h>
#include <isotherm/reducer.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: mpirun -n RANKS bench_transformer [OPTIONS]\n"
    "  --layers N        blocks (4)\n"
    "  --width N         of activations in units of 32 (4), a head for each\n"
    "  --batch N         sequences of a rank (4), of 64 tokens each\n"
    "  --vocabulary N    (256)\n"
    "  --tied            the token embedding is the last matrix, too\n"
    "  --sparse          only the rows of the token embedding that a batch uses travel\n"
    "  --by-block        a block's tensors are one layer; otherwise each tensor is\n"
    "  --bucket-kib N    layers are fused until so much is there (0)\n"
    "  --delay NAME      the gradient of this tensor (token, say) leaves after all others\n"
    "  --pace MS         a step sleeps so long in place of computing\n"
    "  --blocks N        turns of each mode (6), --steps N timed steps in each (20)\n"
    "  --rate MBIT       of a host's link: prints what a step takes of the bytes at that rate\n"
    "  --loss HOW        its sum over ranks in each step: off, call (a blocking reduction), ride "
    "(off)\n"
    "  --modes LIST      of compute, blocking, reverse, need (all)\n"
    "  --samples FILE    writes each time that was taken\n"
    "  --buckets         prints the times of buckets, --trace FILE those of 4 steps (both: need)\n"
    "  --progress MODE   auto, off, poll or thread (auto)\n";

enum { COMPUTE, BLOCKING, REVERSE, NEED, MODES };
enum { LOSS_OFF, LOSS_CALL, LOSS_RIDE, LOSSES };
enum { LENGTH = 64, WARM = 4, FIRST_WARM = 12, TRACED = 4, MOST_TOKENS = 1 << 20 };
static const char *const mode_name[MODES] = {"compute", "blocking", "reverse", "need"};
static const char *const loss_name[LOSSES] = {"off", "call", "ride"};

typedef struct options {
    net_shape shape;
    bool by_block, sparse, buckets, wanted[MODES];
    size_t bucket_bytes;
    double pace, rate;
    int blocks, steps, loss;
    const char *samples, *trace, *progress, *delay; // delay: NULL: none
} options;

typedef struct runner {
    net *n;
    iso_reducer *reducer;
    const options *o;
    double forward_ms, backward_ms; // of a paced step, for each element
    double *ms;
    int timed, step;
    double loss; // the latest sum
} runner;

// ---- Options ----------------------------------------------------------------------------------------

static void choose_modes(options *o, char *text) {
    bench_list list = bench_split(text);
    memset(o->wanted, 0, sizeof(o->wanted));
    for (int i = 0; i < list.count; i++) {
        int m = 0;
        while (m < MODES && strcmp(list.value[i], mode_name[m]) != 0) m++;
        if (m == MODES) bench_usage(usage, "unknown mode");
        o->wanted[m] = true;
    }
}

static void choose_loss(options *o, const char *text) {
    while (o->loss < LOSSES && strcmp(text, loss_name[o->loss]) != 0) o->loss++;
    if (o->loss == LOSSES) bench_usage(usage, "unknown way to sum the loss");
}

enum {
    TIED = 1000,
    BY_BLOCK,
    SPARSE,
    BUCKET,
    PACE,
    BLOCKS,
    STEPS,
    RATE,
    MODES_OF,
    SAMPLES,
    BUCKETS,
    TRACE,
    DELAY,
    LOSS
};

static bool parse_number(options *o, int c, const char *text) {
    if (c == 'l')
        o->shape.layers = (int)bench_number(usage, "--layers", text, 1, 20);
    else if (c == 'w')
        o->shape.width = (int)bench_number(usage, "--width", text, 1, 64) * 32;
    else if (c == 'b')
        o->shape.batch = (int)bench_number(usage, "--batch", text, 1, 4096);
    else if (c == 'v')
        o->shape.vocabulary = (int)bench_number(usage, "--vocabulary", text, 2, 1e5);
    else if (c == BUCKET)
        o->bucket_bytes = (size_t)bench_number(usage, "--bucket-kib", text, 0, 1e6) << 10;
    else if (c == PACE)
        o->pace = bench_number(usage, "--pace", text, 0, 1e4);
    else if (c == BLOCKS)
        o->blocks = (int)bench_number(usage, "--blocks", text, 1, 1e4);
    else if (c == STEPS)
        o->steps = (int)bench_number(usage, "--steps", text, 1, 1e5);
    else if (c == RATE)
        o->rate = bench_number(usage, "--rate", text, 1e-3, 1e6);
    else
        return false;
    return true;
}

static void parse_word(options *o, int c, char *text) {
    if (c == TIED)
        o->shape.tied = true;
    else if (c == BY_BLOCK)
        o->by_block = true;
    else if (c == SPARSE)
        o->sparse = true;
    else if (c == BUCKETS)
        o->buckets = true;
    else if (c == MODES_OF)
        choose_modes(o, text);
    else if (c == LOSS)
        choose_loss(o, text);
    else if (c == SAMPLES)
        o->samples = text;
    else if (c == TRACE)
        o->trace = text;
    else if (c == DELAY)
        o->delay = text;
    else if (c == 'p')
        o->progress = text;
    else
        bench_usage(usage, "unknown option");
}

static options parse(int argc, char **argv) {
    static const struct option known[] = {{"layers", required_argument, NULL, 'l'},
                                          {"width", required_argument, NULL, 'w'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"vocabulary", required_argument, NULL, 'v'},
                                          {"tied", no_argument, NULL, TIED},
                                          {"by-block", no_argument, NULL, BY_BLOCK},
                                          {"sparse", no_argument, NULL, SPARSE},
                                          {"bucket-kib", required_argument, NULL, BUCKET},
                                          {"pace", required_argument, NULL, PACE},
                                          {"blocks", required_argument, NULL, BLOCKS},
                                          {"steps", required_argument, NULL, STEPS},
                                          {"rate", required_argument, NULL, RATE},
                                          {"loss", required_argument, NULL, LOSS},
                                          {"delay", required_argument, NULL, DELAY},
                                          {"modes", required_argument, NULL, MODES_OF},
                                          {"samples", required_argument, NULL, SAMPLES},
                                          {"buckets", no_argument, NULL, BUCKETS},
                                          {"trace", required_argument, NULL, TRACE},
                                          {"progress", required_argument, NULL, 'p'},
                                          {NULL, 0, NULL, 0}};
    options o = {.shape = {.layers = 4, .width = 128, .vocabulary = 256, .batch = 4},
                 .wanted = {true, true, true, true},
                 .blocks = 6,
                 .steps = 20,
                 .progress = "auto"};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        if (!parse_number(&o, c, optarg)) parse_word(&o, c, optarg);
    if (o.sparse && o.shape.tied)
        bench_usage(usage, "--sparse with --tied: the last matrix has a gradient in all rows");
    o.shape.heads = o.shape.width / 32;
    o.shape.length = LENGTH;
    return o;
}

// ---- What such a program does with the engine ---------------------------------------------------------

typedef struct hyper {
    double rate;
    int step;
} hyper;

static iso_status update(int i, void *gradient, double scale, const void *now, void *user) {
    const runner *r = user;
    const hyper *h = now;
    net_adamw(r->n, i, gradient, scale, h->rate, h->step);
    return ISO_OK;
}

static void needed(void *user, int i) {
    bench_require(iso_reducer_param_needed(((runner *)user)->reducer, i));
}
static void ready(void *user, int i) {
    bench_require(iso_reducer_grad_ready(((runner *)user)->reducer, i));
}

static void make_runner(runner *r, const options *o, iso_comm *comm, int mode) {
    static const iso_sync sync[MODES] = {ISO_SYNC_NONE, ISO_SYNC_BLOCKING, ISO_SYNC_LAZY,
                                         ISO_SYNC_LAZY};
    iso_reducer_param param[NET_MOST_TENSORS];
    iso_reducer_config config = {.sync = sync[mode],
                                 .order = mode == REVERSE ? ISO_ORDER_REVERSE : ISO_ORDER_NEED,
                                 .bucket_bytes = o->bucket_bytes,
                                 .sums = o->loss == LOSS_RIDE ? 1 : 0};
    *r = (runner){.n = net_create(&o->shape, 1), .o = o};
    for (int i = 0; i < net_tensors(r->n); i++) {
        const net_tensor *t = net_tensor_of(r->n, i);
        param[i] = (iso_reducer_param){.name = t->name,
                                       .value = t->value,
                                       .count = t->count,
                                       .dtype = ISO_F32,
                                       .layer = o->by_block ? t->layer : i,
                                       .delayed = o->delay && strcmp(o->delay, t->name) == 0};
    }
    if (o->sparse) {
        param[0].row = (size_t)o->shape.width;
        param[0].sparse_rows = (size_t)(o->shape.batch * o->shape.length);
    }
    bench_require(iso_reducer_create(comm, param, net_tensors(r->n), &config, &r->reducer));
    for (int i = 0; i < net_tensors(r->n); i++)
        net_tensor_of(r->n, i)->gradient = iso_reducer_grad(r->reducer, i);
    bench_require(iso_reducer_set_apply(r->reducer, update, sizeof(hyper), r));
    r->ms = calloc((size_t)o->blocks * (size_t)o->steps, sizeof(double));
}

static void destroy_runner(runner *r) {
    iso_reducer_destroy(&r->reducer);
    net_destroy(r->n);
    free(r->ms);
}

// ---- Steps ------------------------------------------------------------------------------------------

static void sleep_until(int64_t at_ns) {
    struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
}

// Asks for that of the step before, which is there.
static void begin_loss(runner *r, double mine) {
    if (r->o->loss != LOSS_RIDE) return;
    bench_require(iso_reducer_get_sum(r->reducer, 0, &r->loss));
    bench_require(iso_reducer_add_sum(r->reducer, 0, mine));
}

// Products take a third of their time forward; embeddings, a table of which some rows are read,
// none.
static int64_t share_of(const runner *r, int i, double of_step) {
    size_t all = 0;
    for (int k = 2; k < net_tensors(r->n); k++) all += net_tensor_of(r->n, k)->count;
    double part = i < 2 ? 0 : (double)net_tensor_of(r->n, i)->count / (double)all;
    return (int64_t)(part * of_step * r->o->pace * 1e6);
}

static void paced_step(runner *r) {
    for (int i = 0; i < net_tensors(r->n); i++) {
        needed(r, i);
        sleep_until(iso_now() + share_of(r, i, 1. / 3));
    }
    begin_loss(r, 1);
    int64_t at = iso_now();
    for (int i = net_tensors(r->n) - 1; i >= 0; i--) {
        sleep_until(at += share_of(r, i, 2. / 3));
        ready(r, i);
    }
}

static void draw_tokens(const options *o, unsigned seed, int *tokens) {
    for (int k = 0; k < o->shape.batch * (LENGTH + 1); k++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[k] = (int)((seed >> 8) % (unsigned)o->shape.vocabulary);
    }
}

static void step(runner *r, iso_comm *comm) {
    static int tokens[MOST_TOKENS];
    hyper now = {.rate = 1e-4, .step = ++r->step};
    double mine;
    if (r->o->pace > 0) {
        paced_step(r);
        mine = 1;
    } else {
        draw_tokens(r->o, (unsigned)(r->step * 1000 + iso_comm_rank(comm)), tokens);
        mine = net_forward(r->n, tokens, needed, r);
        begin_loss(r, mine);
        iso_reducer_zero_grad(r->reducer);
        net_backward(r->n, tokens, ready, r);
    }
    iso_reducer_zero_grad(r->reducer);
    bench_require(iso_reducer_step(r->reducer, &now));
    if (r->o->loss == LOSS_CALL) bench_require(iso_comm_allreduce_f64(comm, &mine, 1, ISO_SUM));
    if (r->o->loss == LOSS_CALL) r->loss = mine;
}

static void run_turn(runner *r, const options *o, iso_comm *comm) {
    for (int i = r->step == 0 ? -FIRST_WARM : -WARM; i < o->steps; i++) {
        int64_t start = iso_now();
        step(r, comm);
        if (i >= 0) r->ms[r->timed++] = bench_ms_since(start);
    }
    bench_require(iso_reducer_finish(r->reducer));
    bench_require(iso_comm_barrier(comm));
}

// ---- What was found -----------------------------------------------------------------------------------

static void write_samples(const runner *r, const options *o, int rank, int mode) {
    char name[256];
    snprintf(name, sizeof(name), "%s.%d", o->samples, rank);
    FILE *file = fopen(name, "a");
    if (!file) return;
    for (int k = 0; k < r->timed; k++)
        fprintf(file, "%s %d %d %.3f\n", mode_name[mode], k / o->steps, k % o->steps, r->ms[k]);
    fclose(file);
}

static void print_buckets(const runner *r, iso_comm *comm) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(r->reducer, &stats);
    for (int b = 0; iso_comm_rank(comm) == 0 && b < stats.bucket_count; b++) {
        iso_bucket_stats s;
        bench_require(iso_reducer_get_bucket_stats(r->reducer, b, &s));
        fprintf(stderr, "%-32s %8zu  ready %7.2f start %7.2f done %7.2f need %7.2f wait %6.2f\n",
                s.name, s.bytes, s.ready_ms, s.start_ms, s.done_ms, s.need_ms, s.wait_ms);
    }
}

static void write_trace(runner *r, iso_comm *comm) {
    char name[256], *text;
    size_t length;
    for (int i = 0; i < WARM; i++) step(r, comm);
    bench_require(iso_trace_start(1 << 16));
    for (int i = 0; i < TRACED; i++) step(r, comm);
    bench_require(iso_reducer_finish(r->reducer));
    bench_require(iso_trace_text(iso_comm_rank(comm), &text, &length));
    snprintf(name, sizeof(name), "%s.%d", r->o->trace, iso_comm_rank(comm));
    FILE *file = fopen(name, "w");
    if (file) fprintf(file, "[%s]\n", text);
    if (file) fclose(file);
    iso_trace_free_text(text);
    iso_trace_stop();
}

// A block's median says more than one of all: others may use the machine during some blocks.
static void print_mode(runner *r, const options *o, iso_comm *comm, int mode, double wire_ms) {
    double *block = calloc((size_t)o->blocks, sizeof(double));
    for (int b = 0; b < o->blocks; b++)
        block[b] = bench_worst_quantile(comm, r->ms + b * o->steps, o->steps, 0.5);
    double middle = bench_quantile(block, o->blocks, 0.5), least = block[0];
    free(block);
    if (iso_comm_rank(comm) != 0) return;
    printf(", \"%s_ms\": %.2f, \"%s_least_ms\": %.2f", mode_name[mode], middle, mode_name[mode],
           least);
    if (wire_ms > 0) printf(", \"%s_of_wire\": %.3f", mode_name[mode], middle / wire_ms);
}

static void print_all(runner *by_mode, const options *o, iso_comm *comm) {
    iso_reducer_stats stats = {0};
    double alone = 0, wire_ms = 0;
    for (int m = 0; m < MODES; m++) {
        if (!o->wanted[m]) continue;
        if (o->samples) write_samples(&by_mode[m], o, iso_comm_rank(comm), m);
        iso_reducer_get_stats(by_mode[m].reducer, &stats);
        if (m != COMPUTE)
            bench_require(iso_reducer_measure_exchange(by_mode[m].reducer, 11, &alone));
    }
    if (o->rate > 0) wire_ms = (double)stats.bytes_per_step * 8e-3 / o->rate;
    if (iso_comm_rank(comm) == 0)
        printf("{\"bench\": \"transformer\", \"bytes\": %zu, \"sent\": %lld, \"buckets\": %d, "
               "\"planned\": %s, \"wire_ms\": %.2f, \"exchange_alone_ms\": %.2f",
               stats.bytes_per_step, stats.bytes_sent / stats.steps, stats.bucket_count,
               stats.planned ? "true" : "false", wire_ms, alone);
    for (int m = 0; m < MODES; m++)
        if (o->wanted[m]) print_mode(&by_mode[m], o, comm, m, wire_ms);
    if (iso_comm_rank(comm) == 0) printf("}\n");
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    runner by_mode[MODES];
    for (int m = 0; m < MODES; m++)
        if (o.wanted[m]) make_runner(&by_mode[m], &o, comm, m);
    for (int block = 0; block < o.blocks; block++)
        for (int m = 0; m < MODES; m++)
            if (o.wanted[m]) run_turn(&by_mode[m], &o, comm);
    if (o.buckets && o.wanted[NEED]) print_buckets(&by_mode[NEED], comm);
    if (o.trace && o.wanted[NEED]) write_trace(&by_mode[NEED], comm);
    print_all(by_mode, &o, comm);
    for (int m = 0; m < MODES; m++)
        if (o.wanted[m]) destroy_runner(&by_mode[m]);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
