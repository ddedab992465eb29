// SPDX-License-Identifier: MIT
// Device memory of a CUDA device. Freed blocks are kept, so that the runtime allocates memory only
// for new shapes.
#include "device/cuda/runtime/cuda_graph.h"

#define UNIT ((size_t)512) // blocks are multiples of it

// The smallest free block that holds it, unless more than half of that would be idle; -1: none.
static int find_free(const iso__cuda_pool *pool, size_t bytes) {
    int best = -1;
    for (int i = 0; i < pool->count; i++) {
        const iso__cuda_block *b = &pool->block[i];
        if (b->used || b->bytes < bytes || b->bytes / 2 > bytes) continue;
        if (best < 0 || b->bytes < pool->block[best].bytes) best = i;
    }
    return best;
}

// Gives free blocks back to the runtime.
static void free_idle(iso__cuda_pool *pool) {
    int kept = 0;
    for (int i = 0; i < pool->count; i++) {
        if (pool->block[i].used)
            pool->block[kept++] = pool->block[i];
        else
            cudaFree(pool->block[i].data);
    }
    pool->count = kept;
}

static iso_status take_block(iso__cuda *cuda, size_t bytes, void **out) {
    iso__cuda_pool *pool = &cuda->pool;
    int i = find_free(pool, bytes);
    if (i < 0) {
        void *data = NULL;
        ISO_TRY(iso__cuda_enter(cuda));
        ISO_TRY(
            iso__grow((void **)&pool->block, pool->count, &pool->capacity, sizeof(*pool->block)));
        cudaError_t error = cudaMalloc(&data, bytes);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();             // it is dealt with
            ISO_TRY(iso__cuda_flush(cuda)); // what is held back may use free blocks
            free_idle(pool);
            error = cudaMalloc(&data, bytes);
        }
        ISO_CHECK(error != cudaErrorMemoryAllocation, ISO_ERR_NOMEM,
                  "GPU %d has no %.1f MiB left: use a smaller batch or model", cuda->ordinal,
                  (double)bytes / 1048576);
        ISO_TRY_CUDA(error);
        i = pool->count++;
        pool->block[i] = (iso__cuda_block){.data = data, .bytes = bytes};
    }
    pool->block[i].used = true;
    *out = pool->block[i].data;
    return ISO_OK;
}

iso_status iso__cuda_pool_alloc(iso__cuda *cuda, size_t bytes, void **out) {
    size_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&cuda->pool.lock);
    iso_status status = take_block(cuda, rounded > 0 ? rounded : UNIT, out);
    pthread_mutex_unlock(&cuda->pool.lock);
    return status;
}

// What was launched before may still use it: whoever gets it next uses it in the compute queue.
void iso__cuda_pool_free(iso__cuda *cuda, void *data) {
    iso__cuda_pool *pool = &cuda->pool;
    pthread_mutex_lock(&pool->lock);
    for (int i = 0; i < pool->count; i++)
        if (pool->block[i].data == data) pool->block[i].used = false;
    pthread_mutex_unlock(&pool->lock);
}

void iso__cuda_pool_destroy(iso__cuda *cuda) {
    for (int i = 0; i < cuda->pool.count; i++) cudaFree(cuda->pool.block[i].data);
    iso__free(cuda->pool.block);
    pthread_mutex_destroy(&cuda->pool.lock);
}
