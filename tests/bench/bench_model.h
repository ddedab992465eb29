// SPDX-License-Identifier: MIT
// A device that computes nothing: its kernels take the times of a table.
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include <isotherm.h>

// "model:FILE": a CPU whose kernels take the times of FILE, which `bench_step --breakdown --table
// FILE` has written. A kernel that the table has with other sizes takes time in proportion to its
// floating-point operations, or bytes if it has none; one that the table does not have takes none.
// Other names open that device. The kernels of only one model device of a process can be modelled.
// Unless a thread drives progress, comm is polled as often as a thread would. Ends the program on
// errors.
void bench_model_open(const char *name, iso_comm *comm, iso_device **out);
// The time of a step outside kernels, on a model device; else does nothing.
void bench_model_rest(void);
// Lets time pass as a kernel of a model device does.
void bench_model_spend(double ms);

#endif
