// SPDX-License-Identifier: MIT
// Queues, events and copies of a CUDA device. Every call that refers to the compute queue ends its
// segment.
#include "device/cuda/runtime/cuda_graph.h"

static bool remote_owns(iso_device *self, const void *memory) {
    struct cudaPointerAttributes found;
    if (iso__cuda_enter(iso__cuda_of(self)) < 0) return false;
    if (cudaPointerGetAttributes(&found, memory) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return found.type == cudaMemoryTypeManaged ||
           (found.type == cudaMemoryTypeDevice && found.device == iso__cuda_of(self)->ordinal);
}

static iso_status remote_pin(iso_device *self, void *memory, size_t bytes) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(self)));
    ISO_TRY_CUDA(
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    return ISO_OK;
}

static void remote_unpin(iso_device *self, void *memory) {
    if (iso__cuda_enter(iso__cuda_of(self)) == ISO_OK) cudaHostUnregister(memory);
}

static iso_status remote_event_create(iso_device *self, iso__device_event **out) {
    void *memory;
    ISO_TRY(iso__cuda_enter(iso__cuda_of(self)));
    ISO_TRY(iso__alloc_zero(sizeof(iso__device_event), &memory));
    iso__device_event *event = memory;
    cudaError_t error = cudaEventCreateWithFlags(&event->cuda, cudaEventDisableTiming);
    if (error != cudaSuccess) iso__free(event);
    ISO_TRY_CUDA(error);
    *out = event;
    return ISO_OK;
}

static void remote_event_destroy(iso_device *self, iso__device_event **event) {
    if (*event && iso__cuda_enter(iso__cuda_of(self)) == ISO_OK) cudaEventDestroy((*event)->cuda);
    iso__free(*event);
    *event = NULL;
}

static iso_status remote_record(iso_device *self, iso__queue queue, iso__device_event *event) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_enter(cuda));
    if (queue == ISO__QUEUE_COMPUTE) ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaEventRecord(event->cuda, cuda->stream[queue]));
    return ISO_OK;
}

static iso_status remote_follow(iso_device *self, iso__queue queue, iso__device_event *event) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_enter(cuda));
    if (queue == ISO__QUEUE_COMPUTE) ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaStreamWaitEvent(cuda->stream[queue], event->cuda, 0));
    return ISO_OK;
}

static iso_status remote_copy(iso_device *self, iso__queue queue, const void *from, void *to,
                              size_t bytes) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_enter(cuda));
    if (queue == ISO__QUEUE_COMPUTE) ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream[queue]));
    return ISO_OK;
}

static iso_status remote_fill_zero(iso_device *self, iso__queue queue, void *memory, size_t bytes) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_enter(cuda));
    if (queue == ISO__QUEUE_COMPUTE) ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaMemsetAsync(memory, 0, bytes, cuda->stream[queue]));
    return ISO_OK;
}

static iso_status remote_flush(iso_device *self) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(self)));
    return iso__cuda_flush(iso__cuda_of(self));
}

static iso_status remote_test(iso_device *self, iso__device_event *event) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(self)));
    cudaError_t error = cudaEventQuery(event->cuda);
    if (error == cudaErrorNotReady) return ISO_PENDING;
    ISO_TRY_CUDA(error);
    return ISO_OK;
}

// What is held back would otherwise come after the wait: the device would be idle.
static iso_status remote_wait(iso_device *self, iso__device_event *event) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(self)));
    ISO_TRY(iso__cuda_flush(iso__cuda_of(self)));
    ISO_TRY_CUDA(cudaEventSynchronize(event->cuda));
    return ISO_OK;
}

static iso_status remote_finish(iso_device *self) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(iso__cuda_flush(cuda));
    for (int q = 0; q < ISO__QUEUES; q++) ISO_TRY_CUDA(cudaStreamSynchronize(cuda->stream[q]));
    return ISO_OK;
}

void iso__cuda_fill_remote(iso__remote_ops *ops) {
    ops->owns = remote_owns;
    ops->pin = remote_pin;
    ops->unpin = remote_unpin;
    ops->event_create = remote_event_create;
    ops->event_destroy = remote_event_destroy;
    ops->record = remote_record;
    ops->follow = remote_follow;
    ops->flush = remote_flush;
    ops->copy = remote_copy;
    ops->fill_zero = remote_fill_zero;
    ops->test = remote_test;
    ops->wait = remote_wait;
    ops->collect = iso__cuda_collect;
    ops->finish = remote_finish;
}
