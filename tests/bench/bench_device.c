// SPDX-License-Identifier: MIT
// Opens the device that a benchmark names and waits for it.
#include "bench_device.h"

#include "bench_util.h"

#include <stdlib.h>
#include <string.h>

// Number of this rank among those of its host.
static int rank_on_host(iso_comm *comm) {
    MPI_Comm host;
    int rank;
    MPI_Comm_split_type(iso_comm_mpi(comm), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    return rank;
}

static void open_in_turn(const char *kind, iso_comm *comm, iso_device **out) {
    char name[32];
    int count = iso_device_count(kind), rank = rank_on_host(comm);
    snprintf(name, sizeof(name), "%s:%d", kind, count > 0 ? rank % count : 0);
    bench_require(iso_device_create(name, out));
}

void bench_device_open(bench_device *d, const char *name, const char *math, const char *graphs,
                       iso_comm *comm) {
    const int64_t one = 1;
    // Read when the device is opened.
    if (graphs) setenv("ISO_CUDA_GRAPHS", strcmp(graphs, "on") == 0 ? "1" : "0", 1);
    if (strcmp(name, "cuda") == 0)
        open_in_turn(name, comm, &d->device);
    else
        bench_require(iso_device_create(name, &d->device));
    d->beside = strcmp(iso_device_name(d->device), "cpu") != 0;
    bench_require(iso_device_set_math(d->device, math));
    bench_require(iso_tensor_create(d->device, ISO_F32, 1, &one, &d->small));
}

void bench_device_close(bench_device *d) {
    iso_tensor_destroy(&d->small);
    iso_device_destroy(&d->device);
}

// What the host reads was written behind all that was asked for before.
void bench_device_drain(bench_device *d) {
    void *host;
    if (!d->beside) return;
    bench_require(iso_tensor_fill(d->small, 1));
    bench_require(iso_tensor_map(d->small, ISO_READ, &host));
    bench_require(iso_tensor_unmap(d->small));
}
