// SPDX-License-Identifier: MIT
// Time of one all-reduce with nothing to do meanwhile and, with --overlap-ms, with work to hide it
// behind.
#include "bench_util.h"
#include "comm/comm_calls.h"

#include <getopt.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: mpirun -n RANKS bench_exchange [OPTIONS]\n"
    "  --bytes N        size of the buffer (4000000)\n"
    "  --repeats N      timed exchanges (50), after --warmup N others (5)\n"
    "  --rate GBIT      also tells what the wire needs: 2 (N - 1) / N of the bytes leave each of N "
    "hosts\n"
    "  --overlap-ms X   also times X ms of work with and without an exchange behind it\n"
    "  --progress MODE  auto, off, poll or thread (auto)\n"
    "  --node           among the ranks of a node: in shared memory and by messages, in turn\n";

typedef struct options {
    size_t bytes;
    int repeats, warmup;
    double rate, overlap_ms;
    const char *progress;
    bool node;
} options;

static options parse(int argc, char **argv) {
    options o = {.bytes = 4000000, .repeats = 50, .warmup = 5, .progress = "auto"};
    static const struct option known[] = {{"bytes", required_argument, NULL, 'b'},
                                          {"repeats", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"rate", required_argument, NULL, 'r'},
                                          {"overlap-ms", required_argument, NULL, 'o'},
                                          {"progress", required_argument, NULL, 'p'},
                                          {"node", no_argument, NULL, 'g'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'b')
            o.bytes = (size_t)bench_number(usage, "--bytes", optarg, 4, 1e12);
        else if (c == 'n')
            o.repeats = (int)bench_number(usage, "--repeats", optarg, 1, 1e6);
        else if (c == 'w')
            o.warmup = (int)bench_number(usage, "--warmup", optarg, 0, 1e6);
        else if (c == 'r')
            o.rate = bench_number(usage, "--rate", optarg, 1e-3, 1e4);
        else if (c == 'o')
            o.overlap_ms = bench_number(usage, "--overlap-ms", optarg, 0, 1e6);
        else if (c == 'p')
            o.progress = optarg;
        else if (c == 'g')
            o.node = true;
        else
            bench_usage(usage, "unknown option");
    }
    if (optind < argc) bench_usage(usage, "too many arguments");
    return o;
}

// One exchange (unless buffer is NULL) with work between issue and wait, in ms.
static double run_once(iso_comm *comm, float *buffer, size_t bytes, bench_work work) {
    iso_request *request = NULL;
    bench_require(iso_comm_barrier(comm));
    int64_t start = iso_now();
    if (buffer)
        bench_require(iso_comm_iallreduce(comm, buffer, bytes / sizeof(float), ISO_F32, "exchange",
                                          &request));
    bench_burn(work);
    if (buffer) bench_require(iso_request_wait(&request));
    return bench_ms_since(start);
}

// A buffer that is exchanged, and how long that took.
typedef struct target {
    const char *by;
    void *buffer;
    double *alone, *work, *both;
} target;

// Alternates everything, so that what else the machine does meets all of it.
static void run(iso_comm *comm, const options *o, target *targets, int count) {
    const bench_work none = {0}, work = bench_calibrate(o->overlap_ms);
    for (int i = -o->warmup; i < o->repeats; i++) {
        int k = i < 0 ? 0 : i;
        for (target *t = targets; t < targets + count; t++) {
            t->alone[k] = run_once(comm, t->buffer, o->bytes, none);
            if (o->overlap_ms <= 0) continue;
            t->work[k] = run_once(comm, NULL, 0, work);
            t->both[k] = run_once(comm, t->buffer, o->bytes, work);
        }
    }
}

static void report(iso_comm *comm, const options *o, const target *t, int nodes) {
    int n = o->repeats, ranks = iso_comm_size(comm);
    double alone = bench_worst_quantile(comm, t->alone, n, 0.5),
           best = bench_worst_quantile(comm, t->alone, n, 0);
    double p95 = bench_worst_quantile(comm, t->alone, n, 0.95);
    double work = bench_worst_quantile(comm, t->work, n, 0.5),
           both = bench_worst_quantile(comm, t->both, n, 0.5);
    if (iso_comm_rank(comm) != 0) return;
    printf("{\"bench\": \"exchange\", \"by\": \"%s\", \"ranks\": %d, \"nodes\": %d, \"bytes\": "
           "%zu, \"median_ms\": %.3f, \"min_ms\": %.3f, \"p95_ms\": %.3f",
           t->by, ranks, nodes, o->bytes, alone, best, p95);
    if (o->rate > 0 && nodes > 1)
        printf(", \"wire_ms\": %.3f",
               (double)o->bytes * 2 * (nodes - 1) / nodes * 8 / (o->rate * 1e6));
    if (o->overlap_ms > 0)
        printf(", \"work_ms\": %.3f, \"both_ms\": %.3f, \"exposed_ms\": %.3f, \"hidden\": %.3f",
               work, both, both - work, 1 - (both - work) / alone);
    printf(", \"progress\": \"%s\", \"algorithm\": \"%s\"}\n", iso_comm_progress_text(comm),
           iso_comm_algorithm_text(comm));
}

static target make_target(const options *o, const char *by, void *buffer) {
    size_t room = (size_t)o->repeats * sizeof(double);
    return (target){by, buffer, calloc(room, 1), calloc(room, 1), calloc(room, 1)};
}

static void measure(iso_comm *comm, const options *o, int nodes) {
    void *plain = calloc(o->bytes, 1), *shared = NULL;
    target targets[2] = {make_target(o, "messages", plain)};
    int count = 1;
    if (o->node) {
        bench_require(iso__shareable_alloc(o->bytes, &shared));
        bench_require(iso__comm_share(comm, shared));
        bool is_shared = iso__comm_is_shared(comm, shared, o->bytes);
        targets[count++] = make_target(o, is_shared ? "shared memory" : "no shared memory", shared);
    }
    run(comm, o, targets, count);
    for (int i = 0; i < count; i++) {
        report(comm, o, &targets[i], nodes);
        free(targets[i].alone), free(targets[i].work), free(targets[i].both);
    }
    iso__comm_unshare(comm, shared);
    iso__shareable_free(&shared);
    free(plain);
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    iso_topology *topology;
    bench_require(iso_topology_create(comm, NULL, &topology));
    measure(o.node ? topology->node : comm, &o, o.node ? 1 : topology->nodes);
    iso_topology_destroy(&topology);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
