// SPDX-License-Identifier: MIT
// Shared by the benchmarks of several ranks: failing, quantiles, work of a known duration.
#include "bench_util.h"

#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>

void bench_require(iso_status status) {
    if (status >= 0) return;
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

iso_comm *bench_start(int *argc, char ***argv, const char *progress) {
    int level;
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level);
    iso_comm_config config = {.progress = ISO_PROGRESS_AUTO};
    bench_require(iso_progress_parse(progress, &config.progress));
    iso_comm *comm;
    bench_require(iso_comm_create(MPI_COMM_WORLD, &config, &comm));
    return comm;
}

void bench_usage(const char *text, const char *wrong) {
    fprintf(stderr, "error: %s\n%s", wrong, text);
    exit(2);
}

double bench_number(const char *usage, const char *option, const char *text, double low,
                    double high) {
    char *end, wrong[256];
    double value = strtod(text, &end);
    snprintf(wrong, sizeof(wrong), "%s takes a number from %g to %g, not \"%s\"", option, low, high,
             text);
    if (end == text || *end || !(value >= low && value <= high)) bench_usage(usage, wrong);
    return value;
}

bench_list bench_split(char *text) {
    bench_list list = {.count = 0};
    for (char *rest = text; rest && list.count < BENCH_MOST_VALUES;) {
        list.value[list.count++] = rest;
        rest = strchr(rest, ',');
        if (rest) *rest++ = 0;
    }
    return list;
}

double bench_ms_since(int64_t start_ns) { return (double)(iso_now() - start_ns) * 1e-6; }

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, int count, double q) {
    qsort(values, (size_t)count, sizeof(*values), ascending);
    return values[(int)(q * (count - 1) + 0.5)];
}

double bench_worst_quantile(iso_comm *comm, double *values, int count, double q) {
    double worst = bench_quantile(values, count, q);
    bench_require(iso_comm_allreduce_f64(comm, &worst, 1, ISO_MAX));
    return worst;
}

static volatile double sink;

void bench_burn(bench_work work) {
    double x = 1, y = 1.0000001;
    for (long long i = 0; i < work.rounds; i++) x *= y; // one multiplication waits for the other
    sink = x;
}

bench_work bench_calibrate(double ms) {
    const bench_work probe = {.rounds = 1000000};
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        int64_t start = iso_now();
        bench_burn(probe);
        double took = bench_ms_since(start);
        if (took < best) best = took;
    }
    return (bench_work){.rounds = (long long)(ms / best * (double)probe.rounds)};
}
