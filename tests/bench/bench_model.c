// SPDX-License-Identifier: MIT
// A device that computes nothing: its kernels take the times of a table.
#include "bench_model.h"

#include "bench_breakdown.h"
#include "bench_util.h"

#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ROWS    1024
#define MOST_LACKING 64
#define POLL_US      100.0 // between two tests of a progress thread

typedef struct row {
    char operation[48];
    double flops, bytes, ms;
} row;

static struct {
    row rows[MOST_ROWS];
    int count;
    const char *lacking[MOST_LACKING]; // operations without a row, each of which has been told
    int lacking_count;
    double rest_ms, poll_us;
    iso_comm *comm;
    bool polls, found; // a kernel with a row has run: setting up is over
} model;

static void refuse_table(const char *file, int line, const char *why) {
    char at[32] = "";
    if (line > 0) snprintf(at, sizeof(at), ", line %d", line);
    fprintf(stderr, "error: %s%s: %s: make the table with bench_step --breakdown --table\n", file,
            at, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

// An operation, its floating-point operations, its bytes and its time in ms.
static bool read_row(const char *text, row *r) {
    int end = -1;
    int fields =
        sscanf(text, "%47s %lf %lf %lf %n", r->operation, &r->flops, &r->bytes, &r->ms, &end);
    return fields == 4 && end > 0 && !text[end];
}

static void add_row(const char *file, int line, const char *text) {
    row r;
    if (!read_row(text, &r))
        refuse_table(file, line, "it is no kernel with operations, bytes and ms");
    if (!(r.ms >= 0 && r.ms < 1e9)) refuse_table(file, line, "its time is no number of ms");
    if (strcmp(r.operation, "rest") == 0)
        model.rest_ms = r.ms;
    else if (model.count < MOST_ROWS)
        model.rows[model.count++] = r;
}

static void read_table(const char *file) {
    char text[256];
    int line = 0;
    FILE *from = fopen(file, "r");
    if (!from) fprintf(stderr, "error: there is no table %s\n", file), MPI_Abort(MPI_COMM_WORLD, 1);
    while (fgets(text, sizeof(text), from)) add_row(file, ++line, text);
    fclose(from);
    if (line == 0) refuse_table(file, 0, "the table is empty");
}

static void tell_lacking(const char *operation) {
    for (int i = 0; i < model.lacking_count; i++)
        if (strcmp(model.lacking[i], operation) == 0) return;
    if (model.lacking_count == MOST_LACKING) return;
    model.lacking[model.lacking_count++] = operation;
    if (iso_comm_rank(model.comm) == 0)
        fprintf(stderr,
                "warning: the table has no times of %s: it takes no time; make a table of this "
                "--model\n",
                operation);
}

static double work_of(const row *r) { return r->flops > 0 ? r->flops : r->bytes; }

// The mean of the rows of equal size, else the time of the nearest size in proportion.
static double time_of(const char *operation, double flops, double bytes) {
    const row wanted = {.flops = flops, .bytes = bytes}, *nearest = NULL;
    double sum = 0, work = work_of(&wanted), least = 0;
    int equal = 0;
    for (const row *r = model.rows; r < model.rows + model.count; r++) {
        if (strcmp(r->operation, operation) != 0 || work_of(r) <= 0) continue;
        if (r->flops == flops && r->bytes == bytes) sum += r->ms, equal++;
        double ratio = work > work_of(r) ? work / work_of(r) : work_of(r) / work;
        if (!nearest || ratio < least) nearest = r, least = ratio;
    }
    if (nearest) model.found = true;
    if (equal > 0) return sum / equal;
    if (nearest) return nearest->ms * work / work_of(nearest);
    if (model.found) tell_lacking(operation);
    return 0;
}

static void sleep_ns(int64_t ns) {
    if (ns <= 0) return;
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

// What a poll takes is not time of the kernel: a progress thread takes it from a core, too.
static void spend_polling(double ns) {
    for (double slice = model.poll_us * 1e3; ns > 0; ns -= slice) {
        sleep_ns((int64_t)(ns < slice ? ns : slice));
        iso_comm_poll(model.comm);
    }
}

// Sleeps end late: what is late is taken from the next one.
static void spend_asleep(double ns) {
    static double late;
    int64_t start = iso_now();
    if (ns <= late) {
        late -= ns;
        return;
    }
    sleep_ns((int64_t)(ns - late));
    late += (double)(iso_now() - start) - ns;
    if (late < 0) late = 0;
    if (late > 1e6) late = 1e6;
}

void bench_model_spend(double ms) {
    if (model.polls)
        spend_polling(ms * 1e6);
    else
        spend_asleep(ms * 1e6);
}

static void spend_kernel(const char *operation, double flops, double bytes, double share) {
    bench_model_spend(share * time_of(operation, flops, bytes));
}

void bench_model_rest(void) {
    if (model.rest_ms > 0) bench_model_spend(model.rest_ms);
}

void bench_model_open(const char *name, iso_comm *comm, iso_device **out) {
    const char *poll = getenv("ISO_TEST_SIM_POLL_US");
    bool modelled = strncmp(name, "model:", 6) == 0;
    model.comm = comm;
    model.polls = iso_comm_progress(comm) == ISO_PROGRESS_POLL;
    model.poll_us = poll ? atof(poll) : POLL_US;
    bench_require(iso_device_create(modelled ? "cpu" : name, out));
    if (!modelled) return;
    read_table(name + 6);
    bench_breakdown_replace(*out, spend_kernel);
}
