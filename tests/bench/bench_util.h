// SPDX-License-Identifier: MIT
// Shared by the benchmarks of several ranks: failing, quantiles, work of a known duration.
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <isotherm/comm.h>

// Prints the error record and ends all ranks, unless status says that all is well.
void bench_require(iso_status status);
// Initialises MPI with threads and creates the communicator of all ranks; `progress` as
// iso_progress_parse takes it.
iso_comm *bench_start(int *argc, char ***argv, const char *progress);
// Before MPI is initialised: ends the program with one sentence and the usage text.
void bench_usage(const char *text, const char *wrong);
// Parses a number in [low, high]; anything else is an error of usage.
double bench_number(const char *usage, const char *option, const char *text, double low,
                    double high);

// Values between commas, which become ends of text.
enum { BENCH_MOST_VALUES = 16 };
typedef struct bench_list {
    const char *value[BENCH_MOST_VALUES];
    int count;
} bench_list;
bench_list bench_split(char *text);

double bench_ms_since(int64_t start_ns);
// Sorts `values`; q from 0 to 1.
double bench_quantile(double *values, int count, double q);
// Collective: the quantile on the rank where it is largest. Sorts `values`.
double bench_worst_quantile(iso_comm *comm, double *values, int count, double q);

// An amount of arithmetic that takes `ms` on this core when nothing disturbs it.
typedef struct bench_work {
    long long rounds;
} bench_work;
bench_work bench_calibrate(double ms);
void bench_burn(bench_work work);

#endif
