// SPDX-License-Identifier: MIT
// The compute queue of a CUDA device: kernels and library calls enter here.
#include "device/cuda/runtime/cuda_graph.h"

iso_status iso__cuda_execute(iso__cuda *cuda, const iso__cuda_command *c) {
    const iso__cuda_kernel *k = &c->kernel;
    void *args[] = {(void *)k->args};
    ISO_TRY(iso__cuda_enter(cuda));
    if (!k->function) return c->call(cuda, k->args);
    ISO_TRY_CUDA(cudaLaunchKernel(k->function, (dim3){k->grid[0], k->grid[1], k->grid[2]},
                                  (dim3){k->block, 1, 1}, args, 0,
                                  cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

iso_status iso__cuda_launch(iso__cuda *cuda, const iso__cuda_kernel *kernel) {
    ISO_TRY(iso__cuda_multi_tensor_launch(cuda));
    return iso__cuda_submit_command(cuda, &(iso__cuda_command){.kernel = *kernel});
}

iso_status iso__cuda_run(iso__cuda *cuda, iso__cuda_call call, const void *args, size_t bytes) {
    ISO_TRY(iso__cuda_multi_tensor_launch(cuda));
    return iso__cuda_submit_command(
        cuda, &(iso__cuda_command){.kernel = {.args = args, .bytes = bytes}, .call = call});
}

iso_status iso__cuda_wait(iso__cuda *cuda) {
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaStreamSynchronize(cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

// Eight blocks of a processor hide most of what memory takes.
#define BLOCKS_OF_A_PROCESSOR 8

unsigned iso__cuda_blocks(const iso__cuda *cuda, int64_t count) {
    int64_t wanted = (count + ISO_CUDA_BLOCK - 1) / ISO_CUDA_BLOCK;
    int64_t most = (int64_t)cuda->processors * BLOCKS_OF_A_PROCESSOR;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}
