// SPDX-License-Identifier: MIT
// Stream capture and CUDA graphs of the emulated GPU. The work of a graph runs in any order that
// its dependences permit.
#include "emulated_internal.h"

#include <algorithm>
#include <thread>

static const uint32_t graph_magic = 0x67a94000;

struct CUgraphNode_st {
    emulated::Work work;
    std::vector<size_t> needs; // the nodes that come before
    CUgraph_st *graph = nullptr;
    size_t index = 0;
    void *params[1] = {nullptr};
};

struct CUgraph_st {
    uint32_t magic = graph_magic;
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
    uint32_t magic = graph_magic;
    CUgraph_st *graph = nullptr; // only to tell whose nodes may be changed
    std::vector<emulated::Work> works;
    std::vector<std::vector<size_t>> needs;
    emulated::RecordingPtr last; // of the latest launch
};

namespace emulated {

struct Capture {
    CUstream_st *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool valid, active;
    CUgraph_st *graph;
    std::map<CUstream_st *, std::vector<size_t>> tails; // what the stream's next work follows
};

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Graphs stay for ever, so that late uses are noticed.
static CUgraph_st *new_graph() {
    static std::vector<CUgraph_st *> *all = new std::vector<CUgraph_st *>;
    all->push_back(new CUgraph_st);
    ++state().live_graphs;
    return all->back();
}

static void check_graph(cudaGraph_t graph, const char *function) {
    if (graph == nullptr || graph->magic != graph_magic) die("%s: no such graph", function);
}

static void check_exec(cudaGraphExec_t exec, const char *function) {
    if (exec == nullptr || exec->magic != graph_magic)
        die("%s: no such executable graph", function);
}

static void check_node(cudaGraphNode_t node, const char *function) {
    if (node == nullptr || node->graph->magic != graph_magic)
        die("%s: a node of a graph that has been destroyed", function);
}

// ---- Capture ----

cudaError_t capture_work(CUstream_st *stream, Work &&work) {
    Capture &c = *stream->capture;
    if (!c.valid) return cudaErrorStreamCaptureInvalidated;
    std::unique_ptr<CUgraphNode_st> node(new CUgraphNode_st);
    node->work = std::move(work);
    node->graph = c.graph;
    node->index = c.graph->nodes.size();
    std::vector<size_t> &tails = c.tails[stream];
    node->needs = tails;
    tails.assign(1, node->index);
    c.graph->nodes.push_back(std::move(node));
    return cudaSuccess;
}

cudaError_t capture_record(CUstream_st *stream, CUevent_st *event) {
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    event->captured.capture = stream->capture;
    event->captured.nodes = stream->capture->tails[stream];
    return cudaSuccess;
}

static cudaError_t invalidate(Capture &capture, cudaError_t error) {
    capture.valid = false;
    return error;
}

cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event) {
    CapturePtr c = event->captured.capture;
    if (!c) return invalidate(*stream->capture, cudaErrorStreamCaptureIsolation);
    if (!c->active) return cudaErrorCapturedEvent;
    if (!c->valid) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != c) {
        invalidate(*c, cudaErrorStreamCaptureMerge);
        return invalidate(*stream->capture, cudaErrorStreamCaptureMerge);
    }
    stream->capture = c; // a stream that waits for captured work is captured from then on
    std::vector<size_t> &tails = c->tails[stream];
    for (size_t node : event->captured.nodes)
        if (std::find(tails.begin(), tails.end(), node) == tails.end()) tails.push_back(node);
    return cudaSuccess;
}

cudaError_t capture_forbids(CUstream_st *stream) {
    return invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t capture_forbids_event(CUevent_st *event) {
    return invalidate(*event->captured.capture, cudaErrorCapturedEvent);
}

cudaError_t unsafe_in_capture() {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    Lock lock(state().mutex);
    cudaError_t error = cudaSuccess;
    for (CapturePtr &c : state().captures) {
        bool own =
            c->thread == std::this_thread::get_id() && c->mode != cudaStreamCaptureModeRelaxed;
        bool foreign =
            thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
        if (own || foreign) error = invalidate(*c, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

static void close_capture(CapturePtr c) {
    c->active = false;
    for (auto &t : c->tails) t.first->capture.reset();
    c->origin->capture.reset();
    std::vector<CapturePtr> &all = state().captures;
    all.erase(std::find(all.begin(), all.end(), c));
}

// Has all that was captured come back to the stream that the capture began in?
static bool joined(const Capture &c) {
    std::vector<char> followed(c.graph->nodes.size(), 0);
    for (auto &node : c.graph->nodes)
        for (size_t i : node->needs) followed[i] = 1;
    auto it = c.tails.find(c.origin);
    if (it != c.tails.end())
        for (size_t i : it->second) followed[i] = 1;
    return std::count(followed.begin(), followed.end(), 0) == 0;
}

static void destroy_graph(CUgraph_st *graph) {
    graph->magic = 0;
    for (auto &node : graph->nodes) node->work = Work();
    --state().live_graphs;
}

// ---- Execution ----

struct GraphRun {
    std::vector<Run> runs;
    std::vector<std::vector<size_t>> followers;
    std::vector<size_t> missing; // how many of a node's needs have not run
    std::vector<size_t> ready;
    size_t left;
};

static Outcome run_nodes(GraphRun &g) {
    std::vector<size_t> later;
    while (!g.ready.empty()) {
        std::swap(g.ready[executor_random() % g.ready.size()], g.ready.back());
        size_t i = g.ready.back();
        g.ready.pop_back();
        if (g.runs[i]() == Outcome::later) {
            later.push_back(i);
            continue;
        }
        --g.left;
        for (size_t f : g.followers[i])
            if (--g.missing[f] == 0) g.ready.push_back(f);
    }
    g.ready = later;
    return g.left == 0 ? Outcome::done : Outcome::later;
}

static std::shared_ptr<GraphRun> begin_run(const CUgraphExec_st &exec, CUstream_st *stream) {
    auto g = std::make_shared<GraphRun>();
    size_t n = g->left = exec.works.size();
    g->followers.resize(n);
    for (size_t i = 0; i < n; ++i) {
        g->runs.push_back(make_run(exec.works[i], stream));
        g->missing.push_back(exec.needs[i].size());
        if (exec.needs[i].empty()) g->ready.push_back(i);
        for (size_t before : exec.needs[i]) g->followers[before].push_back(i);
    }
    return g;
}

static void note_host(Task &task, const void *host, size_t size) {
    if (host == nullptr) return;
    if (!is_pinned(host, size)) die("cudaGraphLaunch: %p is no longer page-locked", host);
    task.host.emplace_back(host, size);
}

static Task launch_task(CUgraphExec_st &exec, CUstream_st *stream) {
    Task task;
    for (const Work &work : exec.works) {
        if (work.device >= 0 && work.device != stream->device)
            die("cudaGraphLaunch: a kernel of device %d in a stream of device %d", work.device,
                stream->device);
        task.prompt = task.prompt || work.prompt;
        note_host(task, work.host, work.host_size);
        note_host(task, work.host2, work.host_size);
    }
    std::shared_ptr<GraphRun> g = begin_run(exec, stream);
    task.run = [g] { return run_nodes(*g); };
    if (exec.last && !exec.last->done) task.wait = exec.last; // one graph, one launch at a time
    task.record = exec.last = std::make_shared<Recording>();
    task.record->stream = stream;
    task.record->number = stream->submitted + 1;
    return task;
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    Lock lock(state().mutex);
    if (stream->capture) return result(cudaErrorIllegalState);
    stream->capture.reset(
        new Capture{stream, mode, std::this_thread::get_id(), true, true, new_graph(), {}});
    state().captures.push_back(stream->capture);
    return cudaSuccess;
}

static cudaError_t end_capture(const Capture &c) {
    if (!c.valid) return cudaErrorStreamCaptureInvalidated;
    return joined(c) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    Lock lock(state().mutex);
    CapturePtr c = stream->capture;
    if (!c) return result(cudaErrorIllegalState);
    if (c->origin != stream) return result(invalidate(*c, cudaErrorStreamCaptureUnmatched));
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return result(invalidate(*c, cudaErrorStreamCaptureWrongThread));
    close_capture(c);
    cudaError_t error = end_capture(*c);
    if (error != cudaSuccess) destroy_graph(c->graph);
    *pGraph = error == cudaSuccess ? c->graph : nullptr;
    return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pStatus) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    Lock lock(state().mutex);
    *pStatus = !stream->capture         ? cudaStreamCaptureStatusNone
               : stream->capture->valid ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    EMULATED_ENTER();
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long) {
    EMULATED_ENTER();
    check_graph(graph, __func__);
    Lock lock(state().mutex);
    CUgraphExec_st *exec = new CUgraphExec_st;
    exec->graph = graph;
    for (auto &node : graph->nodes) {
        exec->works.push_back(node->work);
        exec->needs.push_back(node->needs);
    }
    ++state().live_graphs;
    *pGraphExec = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
    EMULATED_ENTER();
    check_exec(graphExec, __func__);
    check_stream(stream, __func__);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
    EMULATED_ENTER();
    check_exec(graphExec, __func__);
    check_stream(stream, __func__);
    Lock lock(state().mutex);
    if (stream->capture) return result(capture_forbids(stream)); // child graphs: not emulated
    enqueue(lock, stream, launch_task(*graphExec, stream));
    return cudaSuccess;
}

// Launches that have not run yet keep what they need.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    check_exec(graphExec, __func__);
    Lock lock(state().mutex);
    graphExec->magic = 0;
    delete graphExec;
    --state().live_graphs;
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    check_graph(graph, __func__);
    Lock lock(state().mutex);
    destroy_graph(graph);
    return error;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes) {
    EMULATED_ENTER();
    check_graph(graph, __func__);
    size_t count = graph->nodes.size();
    for (size_t i = 0; nodes != nullptr && i < *numNodes; ++i)
        nodes[i] = i < count ? graph->nodes[i].get() : nullptr;
    *numNodes = nodes == nullptr ? count : std::min(count, *numNodes);
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *pType) {
    EMULATED_ENTER();
    check_node(node, __func__);
    *pType = node->work.type;
    return cudaSuccess;
}

// Kernels of cuBLAS and NCCL do not belong to the runtime's own, as on a GPU.
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                         struct cudaKernelNodeParams *pNodeParams) {
    EMULATED_ENTER();
    check_node(node, __func__);
    KernelCall &call = node->work.kernel;
    if (node->work.type != cudaGraphNodeTypeKernel) return result(cudaErrorInvalidValue);
    if (call.func == nullptr) return result(cudaErrorInvalidDeviceFunction);
    node->params[0] = call.args.data();
    *pNodeParams =
        cudaKernelNodeParams{const_cast<void *>(call.func),      call.grid,    call.block,
                             static_cast<unsigned>(call.shared), node->params, nullptr};
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *pNodeParams) {
    EMULATED_ENTER();
    check_exec(hGraphExec, __func__);
    check_node(node, __func__);
    size_t size;
    if (hGraphExec->graph != node->graph || node->work.kernel.func == nullptr)
        return result(cudaErrorInvalidValue);
    if (!kernel_args_size(pNodeParams->func, &size)) return result(cudaErrorInvalidDeviceFunction);
    Lock lock(state().mutex);
    KernelCall &call = hGraphExec->works[node->index].kernel;
    const unsigned char *bytes = static_cast<const unsigned char *>(pNodeParams->kernelParams[0]);
    call.func = pNodeParams->func;
    call.grid = pNodeParams->gridDim;
    call.block = pNodeParams->blockDim;
    call.shared = pNodeParams->sharedMemBytes;
    call.args.assign(bytes, bytes + size);
    return cudaSuccess;
}

// ---- Graphs that are put together ----

cudaError_t cudaGraphCreate(cudaGraph_t *pGraph, unsigned int) {
    EMULATED_ENTER();
    Lock lock(state().mutex);
    *pGraph = new_graph();
    return cudaSuccess;
}

static CUgraphNode_st *add_node(cudaGraph_t graph, Work &&work, std::vector<size_t> needs) {
    std::unique_ptr<CUgraphNode_st> node(new CUgraphNode_st);
    node->work = std::move(work);
    node->needs = std::move(needs);
    node->graph = graph;
    node->index = graph->nodes.size();
    graph->nodes.push_back(std::move(node));
    return graph->nodes.back().get();
}

static std::vector<size_t> indices(const cudaGraphNode_t *nodes, size_t count) {
    std::vector<size_t> result;
    for (size_t i = 0; i < count; ++i) result.push_back(nodes[i]->index);
    return result;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                   const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                   const struct cudaKernelNodeParams *pNodeParams) {
    EMULATED_ENTER();
    check_graph(graph, __func__);
    size_t size;
    if (!kernel_args_size(pNodeParams->func, &size)) return result(cudaErrorInvalidDeviceFunction);
    const unsigned char *bytes = static_cast<const unsigned char *>(pNodeParams->kernelParams[0]);
    Work work;
    work.kernel.func = pNodeParams->func;
    work.kernel.grid = pNodeParams->gridDim;
    work.kernel.block = pNodeParams->blockDim;
    work.kernel.shared = pNodeParams->sharedMemBytes;
    work.kernel.args.assign(bytes, bytes + size);
    work.device = current_device();
    Lock lock(state().mutex);
    *pGraphNode = add_node(graph, std::move(work), indices(pDependencies, numDependencies));
    return cudaSuccess;
}

// The child's nodes are copied into the graph, between its dependences and a node that does
// nothing.
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                       const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                       cudaGraph_t childGraph) {
    EMULATED_ENTER();
    check_graph(graph, __func__);
    check_graph(childGraph, __func__);
    Lock lock(state().mutex);
    size_t first = graph->nodes.size();
    std::vector<size_t> all = indices(pDependencies, numDependencies);
    for (auto &node : childGraph->nodes) {
        std::vector<size_t> needs = all;
        for (size_t i : node->needs) needs.push_back(first + i);
        add_node(graph, Work(node->work), needs);
    }
    for (size_t i = first; i < graph->nodes.size(); ++i) all.push_back(i);
    Work nothing;
    nothing.type = cudaGraphNodeTypeGraph;
    nothing.make = [](CUstream_st *) -> Run { return [] { return Outcome::done; }; };
    *pGraphNode = add_node(graph, std::move(nothing), all);
    return cudaSuccess;
}
