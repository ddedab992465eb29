// SPDX-License-Identifier: MIT
// What the parts of the emulator's own test share: checks, and children that may die.
#ifndef EMULATOR_TEST_H
#define EMULATOR_TEST_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "emulator.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

typedef void (*test_body)(void);

// Each runs in a process of its own, with ISO_EMULATED_ORDER set to `order`.
void run_test(const char *name, test_body body, const char *order);
void run_everywhere(const char *name, test_body body); // in all orders, with several seeds
// The process must die by the signal with `message` on stderr.
void expect_death(const char *name, test_body body, int signal, const char *message);

void runtime_tests(void); // emulator_test.cc
void kernel_tests(void);  // emulator_test_kernels.cc
void graph_tests(void);   // emulator_test_graphs.cc
void blas_tests(void);    // emulator_test_blas.cc
void lt_tests(void);      // emulator_test_lt.cc
void dnn_tests(void);     // emulator_test_dnn.cc
void last_tests(void);    // emulator_test_last.cc
void nccl_tests(void);    // emulator_test_nccl.cc

template <class A>
cudaError_t launch(void (*kernel)(A), dim3 grid, dim3 block, A args, cudaStream_t stream) {
    emulated_register(kernel);
    void *list[] = {&args};
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, list, 0, stream);
}

inline cudaStream_t make_stream() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

inline cudaEvent_t make_event() {
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

template <class T> T *device_array(size_t count) {
    T *p;
    OK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

template <class T> T *pinned_array(size_t count) {
    T *p;
    OK(cudaHostAlloc(&p, count * sizeof(T), cudaHostAllocDefault));
    return p;
}

// By cudaMemcpy, so for a device that is idle.
template <class T> T read_one(const T *device) {
    T value;
    OK(cudaMemcpy(&value, device, sizeof(T), cudaMemcpyDeviceToHost));
    return value;
}

struct SetArgs {
    int *to;
    int value;
};
void set_kernel(SetArgs a); // *to = value

struct ScaleArgs {
    int *x;
    int factor, addend;
};
void scale_kernel(ScaleArgs a); // *x = *x * factor + addend

#endif
