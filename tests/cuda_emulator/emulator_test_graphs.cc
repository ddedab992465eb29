// SPDX-License-Identifier: MIT
// The emulated GPU's own test: stream capture and graphs.
#include "emulator_test.h"

#include <string.h>

#include <thread>
#include <vector>

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static cudaGraphNode_t node_of_type(cudaGraph_t graph, cudaGraphNodeType type) {
    size_t count = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    OK(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (cudaGraphNode_t n : nodes) {
        cudaGraphNodeType of;
        OK(cudaGraphNodeGetType(n, &of));
        if (of == type) return n;
    }
    return nullptr;
}

// x = x * 2 + 1, then to the host
static cudaGraph_t capture_scale(int *x, int *host, cudaStream_t s) {
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(s, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(launch(scale_kernel, 1, 1, ScaleArgs{x, 2, 1}, s));
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamEndCapture(s, &graph));
    return graph;
}

static void captured_work_runs_when_launched(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s));
    cudaGraph_t graph = capture_scale(x, host, s);
    OK(cudaStreamSynchronize(s));
    CHECK(read_one(x) == 1);
    cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*host == 15);
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphExecDestroy(exec)); // the launch above still runs
    OK(cudaStreamSynchronize(s));
    CHECK(*host == 31 && emulated_live_graphs() == 0);
}

static void arguments_change(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s));
    cudaGraph_t graph = capture_scale(x, host, s);
    cudaGraphExec_t exec = instantiate(graph);
    cudaGraphNode_t node = node_of_type(graph, cudaGraphNodeTypeKernel);
    cudaKernelNodeParams params;
    OK(cudaGraphKernelNodeGetParams(node, &params));
    CHECK(params.func == reinterpret_cast<void *>(scale_kernel) && params.blockDim.x == 1);
    ScaleArgs args;
    memcpy(&args, params.kernelParams[0], sizeof(args));
    CHECK(args.x == x && args.factor == 2);
    args.factor = 10;
    void *list[] = {&args};
    params.kernelParams = list;
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphExecKernelNodeSetParams(exec, node, &params));
    args.factor = 77; // copied: nobody sees this
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*host == (1 * 2 + 1) * 10 + 1); // the first launch keeps what it had
}

// Two streams in one capture: their work may change places, except where an event orders it.
static void forked_capture(void) {
    int *x = device_array<int>(2), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream(), t = make_stream();
    cudaEvent_t fork = make_event(), join = make_event();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, s));
    OK(cudaEventRecord(fork, s));
    OK(cudaStreamWaitEvent(t, fork, 0));
    OK(launch(scale_kernel, 1, 1, ScaleArgs{x, 2, 0}, t));
    OK(launch(set_kernel, 1, 1, SetArgs{x + 1, 3}, s));
    OK(cudaEventRecord(join, t));
    OK(cudaStreamWaitEvent(s, join, 0));
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaEventQuery(join) == cudaErrorCapturedEvent);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, s));
    OK(cudaEventRecord(fork, s));
    OK(cudaStreamWaitEvent(t, fork, 0));
    OK(launch(scale_kernel, 1, 1, ScaleArgs{x, 2, 0}, t));
    OK(cudaEventRecord(join, t));
    OK(cudaStreamWaitEvent(s, join, 0));
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamEndCapture(s, &graph));
    cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 5; ++i) {
        *host = 0;
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        CHECK(*host == 10);
    }
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, t)); // t is an ordinary stream again
    OK(cudaStreamSynchronize(t));
}

static void unjoined_capture(void) {
    int *x = device_array<int>(2);
    cudaStream_t s = make_stream(), t = make_stream();
    cudaEvent_t fork = make_event();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(fork, s));
    OK(cudaStreamWaitEvent(t, fork, 0));
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, t));
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined && graph == nullptr);
}

static void forbidden_in_capture(void) {
    cudaStream_t s = make_stream(), t = make_stream();
    cudaEvent_t event = make_event();
    cudaGraph_t graph;
    void *p;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMalloc(&p, 8) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&p, 8));
    OK(cudaStreamSynchronize(t));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaEventRecord(event, t));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamWaitEvent(s, event, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorIllegalState);
}

static void query_elsewhere(cudaEvent_t event, cudaError_t *error) {
    *error = cudaEventQuery(event);
}

// A global capture forbids to other threads what a thread's own does not.
static void other_threads(void) {
    cudaStream_t s = make_stream();
    cudaEvent_t event = make_event();
    cudaGraph_t graph;
    cudaError_t error;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    std::thread(query_elsewhere, event, &error).join();
    OK(error);
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    std::thread(query_elsewhere, event, &error).join();
    CHECK(error == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
}

// Events outside of the graph that its nodes wait for and record.
static void external_events(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream(), t = make_stream();
    cudaEvent_t before = make_event(), after = make_event();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamWaitEvent(s, before, cudaEventWaitExternal));
    OK(launch(scale_kernel, 1, 1, ScaleArgs{x, 3, 0}, s));
    OK(cudaEventRecordWithFlags(after, s, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(s, &graph));
    CHECK(node_of_type(graph, cudaGraphNodeTypeWaitEvent) != nullptr);
    cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 10; ++i) {
        OK(launch(set_kernel, 1, 1, SetArgs{x, i}, t));
        OK(cudaEventRecord(before, t));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamWaitEvent(t, after, 0));
        OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, t));
        OK(cudaStreamSynchronize(t));
        CHECK(*host == 3 * i);
    }
}

void graph_tests(void) {
    run_everywhere("captured work runs when launched", captured_work_runs_when_launched);
    run_everywhere("arguments of a graph change", arguments_change);
    run_everywhere("forked capture", forked_capture);
    run_everywhere("unjoined capture", unjoined_capture);
    run_everywhere("forbidden in a capture", forbidden_in_capture);
    run_everywhere("captures and other threads", other_threads);
    run_everywhere("external events", external_events);
}
