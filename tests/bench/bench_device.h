// SPDX-License-Identifier: MIT
// The device of a benchmark, and what timing one takes that computes beside the host.
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <isotherm/comm.h>
#include <isotherm/tensor.h>

typedef struct bench_device {
    iso_device *device;
    bool beside;       // it computes beside the host
    iso_tensor *small; // one number on it
} bench_device;

// "cuda": ranks of a host take its GPUs in turn. math as
// iso_device_set_math takes it; graphs: "on", "off"
// or NULL. Ends all ranks if there is no such device.
void bench_device_open(bench_device *d, const char *name, const char *math, const char *graphs,
                       iso_comm *comm);
void bench_device_close(bench_device *d);
// Waits until all that was asked of the device is done.
void bench_device_drain(bench_device *d);

#endif
