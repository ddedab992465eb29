// SPDX-License-Identifier: MIT
// What the order by need is worth: equal layers of plain arrays with burnt computing time, bound by
// the wire. Reverse module order and order by need take turns.
#include "bench_util.h"

#include <getopt.h>
#include <isotherm/reducer.h>
#include <isotherm/trace.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] = "usage: mpirun -n RANKS bench_order [OPTIONS]\n"
                            "  --layers N       equal layers (8)\n"
                            "  --kib N          of gradients of each (500)\n"
                            "  --compute MS     of a step, a third of it forward (13.7)\n"
                            "  --steps N        timed steps of each order (60), in turns of 20\n"
                            "  --progress MODE  auto, off, poll or thread (auto)\n";

enum { MOST = 256, TURN = 20, WARM = 12 };

typedef struct options {
    int layers, steps;
    size_t elements;
    double compute;
    const char *progress;
} options;

typedef struct runner {
    iso_reducer *reducer;
    float **value;
    double *ms;
    int timed;
} runner;

static options parse(int argc, char **argv) {
    options o = {.layers = 8, .steps = 60, .elements = 128000, .compute = 13.7, .progress = "auto"};
    static const struct option known[] = {
        {"layers", required_argument, NULL, 'l'},   {"kib", required_argument, NULL, 'k'},
        {"compute", required_argument, NULL, 'c'},  {"steps", required_argument, NULL, 'n'},
        {"progress", required_argument, NULL, 'p'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'l')
            o.layers = (int)bench_number(usage, "--layers", optarg, 1, MOST);
        else if (c == 'k')
            o.elements = (size_t)bench_number(usage, "--kib", optarg, 1, 1e6) * 256;
        else if (c == 'c')
            o.compute = bench_number(usage, "--compute", optarg, 0, 1e4);
        else if (c == 'n')
            o.steps = (int)bench_number(usage, "--steps", optarg, TURN, 1e6) / TURN * TURN;
        else if (c == 'p')
            o.progress = optarg;
        else
            bench_usage(usage, "unknown option");
    }
    return o;
}

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    const runner *r = user;
    float rate = (float)(scale * *(const double *)hyper);
    (void)gradient;
    r->value[i][0] -= rate * ((float *)gradient)[0]; // what computing costs is burnt elsewhere
    return ISO_OK;
}

static void make_runner(runner *r, const options *o, iso_comm *comm, iso_order order) {
    iso_reducer_param param[MOST];
    iso_reducer_config config = {.order = order};
    r->value = calloc((size_t)o->layers, sizeof(*r->value));
    for (int i = 0; i < o->layers; i++) {
        r->value[i] = calloc(o->elements, sizeof(float));
        param[i] = (iso_reducer_param){.name = "layer",
                                       .value = r->value[i],
                                       .count = o->elements,
                                       .dtype = ISO_F32,
                                       .layer = i};
    }
    r->ms = calloc((size_t)o->steps, sizeof(double));
    bench_require(iso_reducer_create(comm, param, o->layers, &config, &r->reducer));
    bench_require(iso_reducer_set_apply(r->reducer, descend, sizeof(double), r));
}

static void step(runner *r, const options *o, bench_work forward, bench_work backward) {
    double rate = 0.01;
    for (int i = 0; i < o->layers; i++) {
        bench_require(iso_reducer_param_needed(r->reducer, i));
        bench_burn(forward);
    }
    iso_reducer_zero_grad(r->reducer);
    for (int i = o->layers - 1; i >= 0; i--) {
        bench_burn(backward);
        *(float *)iso_reducer_grad(r->reducer, i) = 1;
        bench_require(iso_reducer_grad_ready(r->reducer, i));
    }
    bench_require(iso_reducer_step(r->reducer, &rate));
}

static void run_turn(runner *r, const options *o, iso_comm *comm) {
    bench_work forward = bench_calibrate(o->compute / 3 / o->layers);
    bench_work backward = bench_calibrate(o->compute * 2 / 3 / o->layers);
    for (int i = 0; i < WARM; i++) step(r, o, forward, backward);
    for (int i = 0; i < TURN; i++) {
        int64_t start = iso_now();
        step(r, o, forward, backward);
        r->ms[r->timed++] = bench_ms_since(start);
    }
    bench_require(iso_reducer_finish(r->reducer));
    bench_require(iso_comm_barrier(comm));
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    runner by_order[2] = {{0}};
    double alone[2], ms[2];
    iso_reducer_stats stats;
    for (int k = 0; k < 2; k++) make_runner(&by_order[k], &o, comm, (iso_order)k);
    for (int done = 0; done < o.steps; done += TURN)
        for (int k = 0; k < 2; k++) run_turn(&by_order[k], &o, comm);
    for (int k = 0; k < 2; k++) {
        ms[k] = bench_worst_quantile(comm, by_order[k].ms, o.steps, 0.5);
        bench_require(iso_reducer_measure_exchange(by_order[k].reducer, 11, &alone[k]));
    }
    iso_reducer_get_stats(by_order[ISO_ORDER_NEED].reducer, &stats);
    if (iso_comm_rank(comm) == 0)
        printf("{\"bench\": \"order\", \"layers\": %d, \"bytes\": %zu, \"compute_ms\": %.2f, "
               "\"exchange_alone_ms\": %.2f, \"need_ms\": %.2f, \"reverse_ms\": %.2f, "
               "\"need_of_wire\": %.3f, \"reverse_of_wire\": %.3f, \"planned\": %s}\n",
               o.layers, o.elements * sizeof(float) * (size_t)o.layers, o.compute, alone[1],
               ms[ISO_ORDER_NEED], ms[ISO_ORDER_REVERSE], ms[ISO_ORDER_NEED] / alone[1],
               ms[ISO_ORDER_REVERSE] / alone[1], stats.planned ? "true" : "false");
    for (int k = 0; k < 2; k++) {
        iso_reducer_destroy(&by_order[k].reducer);
        for (int i = 0; i < o.layers; i++) free(by_order[k].value[i]);
        free(by_order[k].value);
        free(by_order[k].ms);
    }
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
