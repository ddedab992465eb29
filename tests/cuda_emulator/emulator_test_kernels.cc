// SPDX-License-Identifier: MIT
// The emulated GPU's own test: kernels, barriers and warp operations.
#include "emulator_test.h"

#include <signal.h>

__global__ void set_kernel(SetArgs a) { *a.to = a.value; }
__global__ void scale_kernel(ScaleArgs a) { *a.x = (*a.x * a.factor + a.addend) % 1000003; }

struct FillArgs {
    unsigned *to;
};

// Every thread of a three-dimensional grid writes its own number once.
static __global__ void number_kernel(FillArgs a) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    atomicAdd(&a.to[i], i + 1);
}

static void grid_is_covered(void) {
    const unsigned count = 2 * 3 * 2 * 4 * 5 * 3;
    unsigned *x = device_array<unsigned>(count), *host = pinned_array<unsigned>(count);
    cudaStream_t s = make_stream();
    OK(cudaMemsetAsync(x, 0, count * sizeof(unsigned), s));
    OK(launch(number_kernel, dim3(2, 3, 2), dim3(4, 5, 3), FillArgs{x}, s));
    OK(cudaMemcpyAsync(host, x, count * sizeof(unsigned), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (unsigned i = 0; i < count; ++i) CHECK(host[i] == i + 1);
}

struct SumArgs {
    const float *x;
    float *sums;
    int count;
};

// A tree in shared memory; two barriers a step would be too many, none too few.
static __global__ void tree_kernel(SumArgs a) {
    __shared__ float part[256];
    unsigned t = threadIdx.x;
    float sum = 0;
    for (int i = static_cast<int>(t); i < a.count; i += 256) sum += a.x[i];
    part[t] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) a.sums[blockIdx.x] = part[0];
}

// The same without the barrier in the loop, which the order of the threads must bring to light.
static __global__ void racing_kernel(SumArgs a) {
    __shared__ float part[256];
    unsigned t = threadIdx.x;
    float sum = 0;
    for (int i = static_cast<int>(t); i < a.count; i += 256) sum += a.x[i];
    part[t] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2)
        if (t < half) part[t] += part[t + half];
    if (t == 0) a.sums[blockIdx.x] = part[0];
}

// Right where threads run from the first to the last, and nowhere else; notes the blocks' order
// too.
static __global__ void neighbour_kernel(FillArgs a) {
    __shared__ unsigned part[32];
    unsigned t = threadIdx.x;
    part[t] = blockIdx.x + 1;
    if (t == 31) a.to[blockIdx.x] = part[30] == blockIdx.x + 1;
    if (t == 31) a.to[40 + blockIdx.x] = atomicAdd(&a.to[80], 1u);
}

static __global__ void shuffle_kernel(SumArgs a) {
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < a.count; i += 32) sum += a.x[i];
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, static_cast<unsigned>(offset));
    sum = __shfl_sync(0xffffffffu, sum, 0);
    a.sums[blockIdx.x * 32 + threadIdx.x] = sum;
}

static float *ones(int count) {
    float *host = pinned_array<float>(static_cast<size_t>(count));
    float *x = device_array<float>(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) host[i] = static_cast<float>(i % 7);
    OK(cudaMemcpy(x, host, static_cast<size_t>(count) * sizeof(float), cudaMemcpyHostToDevice));
    return x;
}

static float sum_of(int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += static_cast<float>(i % 7);
    return sum;
}

static void barriers(void) {
    const int count = 1000;
    float *sums = device_array<float>(3);
    cudaStream_t s = make_stream();
    OK(launch(tree_kernel, 3, 256, SumArgs{ones(count), sums, count}, s));
    OK(cudaStreamSynchronize(s));
    for (int b = 0; b < 3; ++b) CHECK(read_one(sums + b) == sum_of(count));
}

static void races_show(void) {
    const int count = 1000;
    float *sums = device_array<float>(20);
    cudaStream_t s = make_stream();
    OK(launch(racing_kernel, 20, 256, SumArgs{ones(count), sums, count}, s));
    OK(cudaStreamSynchronize(s));
    int right = 0;
    for (int b = 0; b < 20; ++b) right += read_one(sums + b) == sum_of(count);
    CHECK(right < 20);
}

static void orders_vary(void) {
    unsigned *x = device_array<unsigned>(81), right = 0, ascending = 1;
    cudaStream_t s = make_stream();
    OK(cudaMemsetAsync(x, 0, 81 * sizeof(unsigned), s));
    OK(launch(neighbour_kernel, 40, 32, FillArgs{x}, s));
    OK(cudaStreamSynchronize(s));
    for (unsigned i = 0; i < 40; ++i) {
        right += read_one(x + i);
        ascending = ascending && read_one(x + 40 + i) == i;
    }
    CHECK(right > 0 && right < 40 && !ascending);
}

static void shuffles(void) {
    const int count = 100;
    float *sums = device_array<float>(64);
    cudaStream_t s = make_stream();
    OK(launch(shuffle_kernel, 2, 32, SumArgs{ones(count), sums, count}, s));
    OK(cudaStreamSynchronize(s));
    for (int i = 0; i < 64; ++i) CHECK(read_one(sums + i) == sum_of(count));
}

// 40 threads: a whole warp and a part of one.
static __global__ void warp_kernel(FillArgs a) {
    unsigned t = threadIdx.x, lane = t % 32, mask = t < 32 ? 0xffffffffu : 0xffu;
    unsigned even = __ballot_sync(mask, lane % 2 == 0);
    unsigned next = __shfl_up_sync(mask, t, 1), swapped = __shfl_xor_sync(mask, t, 1);
    unsigned pair = __shfl_sync(mask, t, 1, 4); // the second of each four
    bool all = __all_sync(mask, 1) && !__all_sync(mask, lane != 3);
    bool any = __any_sync(mask, lane == 3) && !__any_sync(mask, 0);
    bool right = even == (0x55555555u & mask) && next == (lane == 0 ? t : t - 1) &&
                 swapped == (t ^ 1u) && pair == (t & ~3u) + 1;
    // Half a warp on its own.
    if (t < 16) right = right && __shfl_down_sync(0xffffu, t, 2, 16) == (t < 14 ? t + 2 : t);
    __syncwarp(mask);
    right = right && __syncthreads_count(t < 5) == 5 && __syncthreads_or(t == 39) &&
            !__syncthreads_and(t != 39);
    a.to[t] = right && all && any;
}

static void warp_operations(void) {
    unsigned *x = device_array<unsigned>(40);
    cudaStream_t s = make_stream();
    OK(launch(warp_kernel, 1, 40, FillArgs{x}, s));
    OK(cudaStreamSynchronize(s));
    for (int i = 0; i < 40; ++i) CHECK(read_one(x + i) == 1);
}

// Threads that have ended are not waited for.
static __global__ void leaving_kernel(FillArgs a) {
    if (threadIdx.x >= 10) return;
    __syncthreads();
    atomicAdd(a.to, 1u);
}

static void ended_threads(void) {
    unsigned *x = device_array<unsigned>(1);
    cudaStream_t s = make_stream();
    OK(cudaMemsetAsync(x, 0, sizeof(unsigned), s));
    OK(launch(leaving_kernel, 2, 64, FillArgs{x}, s));
    OK(cudaStreamSynchronize(s));
    CHECK(read_one(x) == 20);
}

static __global__ void diverging_kernel(FillArgs a) {
    if (threadIdx.x % 2 == 0) {
        a.to[0] = 1;
        __syncthreads();
    } else {
        a.to[1] = 1;
        __syncthreads();
    }
}

static __global__ void stuck_kernel(FillArgs) {
    if (threadIdx.x == 3)
        __syncthreads();
    else
        __syncwarp();
}

static void run_on_scratch(void (*kernel)(FillArgs), unsigned threads) {
    cudaStream_t s = make_stream();
    OK(launch(kernel, 1, threads, FillArgs{device_array<unsigned>(2)}, s));
    OK(cudaStreamSynchronize(s));
}

static void diverging(void) { run_on_scratch(diverging_kernel, 8); }
static void stuck(void) { run_on_scratch(stuck_kernel, 32); }

static void bad_launches(void) {
    unsigned *x = device_array<unsigned>(2);
    cudaStream_t s = make_stream();
    FillArgs args{x};
    void *list[] = {&args};
    const void *unknown = reinterpret_cast<const void *>(bad_launches);
    CHECK(cudaLaunchKernel(unknown, 1, 1, list, 0, s) == cudaErrorInvalidDeviceFunction);
    CHECK(launch(leaving_kernel, 1, 1025, args, s) == cudaErrorInvalidConfiguration);
    CHECK(launch(leaving_kernel, 1, 0, args, s) == cudaErrorInvalidConfiguration);
    CHECK(launch(leaving_kernel, dim3(1, 65536), 1, args, s) == cudaErrorInvalidConfiguration);
}

static void arguments_are_copied(void) {
    int *x = device_array<int>(1);
    cudaStream_t s = make_stream();
    SetArgs args{x, 3};
    void *list[] = {&args};
    emulated_register(set_kernel);
    OK(cudaLaunchKernel(reinterpret_cast<const void *>(set_kernel), 1, 1, list, 0, s));
    args.value = 4;
    OK(cudaStreamSynchronize(s));
    CHECK(read_one(x) == 3);
}

static void arithmetic(void) {
    CHECK(__float_as_int(1.0f) == 0x3f800000 && __uint_as_float(0x40000000u) == 2.0f);
    CHECK(__umulhi(0x80000000u, 6) == 3 && __popc(255) == 8 && __clz(1) == 31 && __ffs(8) == 4);
    CHECK(rsqrtf(4.0f) == 0.5f && max(NAN, 1.0f) == 1.0f && min(3, 2) == 2);
    CHECK(sizeof(float4) == 16 && alignof(float4) == 16 && alignof(float2) == 8);
    unsigned x = 5;
    CHECK(atomicCAS(&x, 5u, 6u) == 5 && atomicMax(&x, 9u) == 6 && x == 9);
}

void kernel_tests(void) {
    run_everywhere("the grid is covered", grid_is_covered);
    run_everywhere("barriers", barriers);
    run_everywhere("races show", races_show);
    run_everywhere("orders vary", orders_vary);
    run_everywhere("shuffles", shuffles);
    run_everywhere("warp operations", warp_operations);
    run_everywhere("ended threads", ended_threads);
    expect_death("different barriers", diverging, SIGABRT, "different barriers");
    expect_death("threads wait for each other", stuck, SIGABRT, "wait for each other");
    run_everywhere("bad launches", bad_launches);
    run_everywhere("arguments are copied", arguments_are_copied);
    run_test("arithmetic", arithmetic, "random");
}
