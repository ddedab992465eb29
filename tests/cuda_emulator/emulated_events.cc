// SPDX-License-Identifier: MIT
// Events of the emulated GPU, and waiting for them.
#include "emulated_internal.h"

namespace emulated {

static const uint32_t event_magic = 0xe3e47000;

void check_event(cudaEvent_t event, const char *function) {
    if (event == nullptr) die("%s: the event is null", function);
    if (event->magic != event_magic) die("%s: the event has been destroyed", function);
}

// The event's recording, or the error of asking for an event that stands for captured work.
static cudaError_t last_recording(cudaEvent_t event, RecordingPtr *recording) {
    if (event->captured.capture) return capture_forbids_event(event);
    *recording = event->last;
    return cudaSuccess;
}

} // namespace emulated

using namespace emulated;

// ---- Events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    EMULATED_ENTER();
    CUevent_st *e = new CUevent_st; // kept for ever, so that late uses are noticed
    e->magic = event_magic;
    e->device = current_device();
    e->flags = flags;
    Lock lock(state().mutex);
    ++state().live_events;
    state().events.push_back(e);
    *event = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    check_event(event, __func__);
    Lock lock(state().mutex);
    event->magic = 0;
    event->last.reset();
    --state().live_events;
    return error;
}

static Work event_work(cudaGraphNodeType type, std::function<Run(CUstream_st *)> make) {
    Work work;
    work.type = type;
    work.make = std::move(make);
    return work;
}

// Of the next task that the stream gets.
static RecordingPtr new_recording(cudaEvent_t event, cudaStream_t stream) {
    RecordingPtr recording = std::make_shared<Recording>();
    recording->stream = stream;
    recording->number = stream->submitted + 1;
    event->last = recording;
    event->captured = CaptureEvent();
    return recording;
}

static Work external_record(cudaEvent_t event) {
    return event_work(cudaGraphNodeTypeEventRecord, [event](CUstream_st *stream) -> Run {
        RecordingPtr recording = new_recording(event, stream);
        return [recording] {
            Lock lock(state().mutex);
            recording->done = true;
            recording->time = Clock::now();
            state().done.notify_all();
            return Outcome::done;
        };
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    check_event(event, __func__);
    if (event->device != stream->device) return result(cudaErrorInvalidResourceHandle);
    Lock lock(state().mutex);
    if (stream->capture && flags == cudaEventRecordExternal)
        return result(capture_work(stream, external_record(event)));
    if (stream->capture) return result(capture_record(stream, event));
    Task task;
    task.record = new_recording(event, stream);
    enqueue(lock, stream, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    EMULATED_ENTER();
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    EMULATED_ENTER();
    check_event(event, __func__);
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Lock lock(state().mutex);
    RecordingPtr last;
    error = last_recording(event, &last);
    if (error != cudaSuccess || !last) return result(error);
    demand(last->stream, last->number);
    return result(last->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    EMULATED_ENTER();
    check_event(event, __func__);
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Lock lock(state().mutex);
    RecordingPtr last;
    error = last_recording(event, &last);
    if (error != cudaSuccess || !last) return result(error);
    demand(last->stream, last->number);
    state().done.wait(lock, [&] { return last->done || state().sticky != cudaSuccess; });
    return result(state().sticky);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    EMULATED_ENTER();
    check_event(start, __func__);
    check_event(end, __func__);
    Lock lock(state().mutex);
    if ((start->flags | end->flags) & cudaEventDisableTiming || !start->last || !end->last)
        return result(cudaErrorInvalidResourceHandle);
    if (!start->last->done || !end->last->done) return result(cudaErrorNotReady);
    std::chrono::duration<float, std::milli> between = end->last->time - start->last->time;
    *ms = between.count();
    return cudaSuccess;
}

// ---- Waiting in a stream ----

static Work external_wait(cudaEvent_t event) {
    return event_work(cudaGraphNodeTypeWaitEvent, [event](CUstream_st *) -> Run {
        RecordingPtr wait = event->last;
        return [wait] {
            Lock lock(state().mutex);
            if (!wait || wait->done) return Outcome::done;
            demand(wait->stream, wait->number);
            return Outcome::later;
        };
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    check_event(event, __func__);
    Lock lock(state().mutex);
    if (stream->capture && flags == cudaEventWaitExternal)
        return result(capture_work(stream, external_wait(event)));
    if (stream->capture || event->captured.capture) return result(capture_wait(stream, event));
    if (!event->last || event->last->done) return cudaSuccess;
    Task task;
    task.wait = event->last;
    enqueue(lock, stream, std::move(task));
    return cudaSuccess;
}
