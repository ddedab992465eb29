// SPDX-License-Identifier: MIT
// Segments of the compute queue, and CUDA graphs of those that are repeated.
#include "device/cuda/runtime/cuda_graph.h"

#include <string.h>

// Fewer commands are launched as fast one by one. As long as a segment has not come so often,
// shapes may still be new.
#define LEAST_COMMANDS 3
#define TIMES_BEFORE   2
#define MOST_SEGMENTS  128

// Commands keep where their arguments begin instead of a pointer.
typedef struct entry {
    iso__cuda_command command;
    size_t at;
    uint64_t hash; // of what is fixed of the commands up to this one
} entry;

typedef struct segment {
    entry *entry;
    int count, capacity;
    char *args;
    size_t args_bytes, args_capacity;
    int times;      // that it has come
    int next;       // what came after it the last time, or NONE
    long long used; // when it came last: the value of `clock` then
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    cudaGraphNode_t *node; // [count]
} segment;
enum { NONE = -1 };

struct iso__cuda_graphs {
    segment now; // what came since the last end of a segment
    segment known[MOST_SEGMENTS];
    int count;
    long long clock;
    bool told;     // that a segment could not be made a graph
    int previous;  // the segment that came before this one
    int following; // what `now` is as far as it goes and held back for; NONE: it is launched at
                   // once
};

// ---- Commands ---------------------------------------------------------------------------------------

static iso__cuda_command command_of(const segment *s, int k) {
    iso__cuda_command c = s->entry[k].command;
    c.kernel.args = s->args + s->entry[k].at;
    return c;
}

static iso_status make_room(segment *s, size_t bytes) {
    if (s->count == s->capacity) {
        int capacity = s->capacity > 0 ? 2 * s->capacity : 64;
        ISO_TRY(iso__realloc((void **)&s->entry, (size_t)s->count * sizeof(entry),
                             (size_t)capacity * sizeof(entry)));
        s->capacity = capacity;
    }
    if (s->args_bytes + bytes > s->args_capacity) {
        size_t capacity = 2 * (s->args_bytes + bytes) + 4096;
        ISO_TRY(iso__realloc((void **)&s->args, s->args_bytes, capacity));
        s->args_capacity = capacity;
    }
    return ISO_OK;
}

static uint64_t mix_hash(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of_bytes(uint64_t hash, const void *bytes, size_t count) {
    uint64_t word;
    for (size_t at = 0; at < count; at += sizeof(word)) {
        size_t left = count - at;
        word = 0;
        memcpy(&word, (const char *)bytes + at, left < sizeof(word) ? left : sizeof(word));
        hash = mix_hash(hash, word);
    }
    return hash;
}

// Of what `fits` compares.
static uint64_t hash_after(const segment *s, const iso__cuda_command *c) {
    const iso__cuda_kernel *k = &c->kernel;
    uint64_t hash = mix_hash(s->count > 0 ? s->entry[s->count - 1].hash : 0, k->bytes);
    if (!k->function)
        return hash_of_bytes(mix_hash(hash, (uint64_t)(uintptr_t)c->call), k->args, k->bytes);
    hash = mix_hash(hash, (uint64_t)(uintptr_t)k->function);
    hash = mix_hash(hash, (uint64_t)k->grid[0] << 32 | k->block);
    return mix_hash(hash, (uint64_t)k->grid[1] << 32 | k->grid[2]);
}

static iso_status append_command(segment *s, const iso__cuda_command *c) {
    size_t bytes = (c->kernel.bytes + 15) / 16 * 16;
    ISO_TRY(make_room(s, bytes));
    uint64_t hash = hash_after(s, c);
    s->entry[s->count++] = (entry){.command = *c, .at = s->args_bytes, .hash = hash};
    memcpy(s->args + s->args_bytes, c->kernel.args, c->kernel.bytes);
    s->args_bytes += bytes;
    return ISO_OK;
}

// Whether the command is the same, or a kernel of a graph can be made the same.
static bool fits_entry(const segment *s, int k, const iso__cuda_command *c) {
    const iso__cuda_kernel *a = &s->entry[k].command.kernel, *b = &c->kernel;
    if (a->function != b->function || s->entry[k].command.call != c->call || a->bytes != b->bytes)
        return false;
    if (!a->function) return memcmp(s->args + s->entry[k].at, b->args, b->bytes) == 0;
    return a->block == b->block && memcmp(a->grid, b->grid, sizeof(a->grid)) == 0;
}

// Whether the known one begins with what came. Only where hashes agree is there much to compare.
static bool begins_like(const segment *known, const segment *now) {
    int last = now->count - 1;
    if (known->count < now->count || known->entry[last].hash != now->entry[last].hash) return false;
    for (int k = last; k >= 0; k--) {
        iso__cuda_command c = command_of(now, k);
        if (!fits_entry(known, k, &c)) return false;
    }
    return true;
}

// Launches the first `count` commands of what was held back. Whoever entered them was told that
// they are done, so what a library refuses now, as it did not before, cannot be done otherwise.
static iso_status execute_held(iso__cuda *cuda, int count) {
    for (int k = 0; k < count; k++) {
        iso__cuda_command c = command_of(&cuda->graphs->now, k);
        iso_status status = iso__cuda_execute(cuda, &c);
        ISO_CHECK(status != ISO_ERR_UNSUPPORTED, ISO_ERR_DEVICE,
                  "cuBLAS or cuDNN refused a call that was held back for a CUDA graph and that it "
                  "had accepted before: set ISO_CUDA_GRAPHS=0");
        ISO_TRY(status);
    }
    return ISO_OK;
}

// ---- Graphs -----------------------------------------------------------------------------------------

static struct cudaKernelNodeParams node_params(const iso__cuda_kernel *k, void **args) {
    args[0] = (void *)k->args;
    return (struct cudaKernelNodeParams){.func = (void *)k->function,
                                         .gridDim = {k->grid[0], k->grid[1], k->grid[2]},
                                         .blockDim = {k->block, 1, 1},
                                         .kernelParams = args};
}

// What a library enters into the queue, as a graph of its own.
static iso_status capture_command(iso__cuda *cuda, const iso__cuda_command *c, cudaGraph_t *out) {
    cudaStream_t stream = cuda->stream[ISO__QUEUE_COMPUTE];
    size_t nodes = 0;
    ISO_TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    iso_status status = c->call(cuda, c->kernel.args);
    cudaError_t error = cudaStreamEndCapture(stream, out);
    if (error == cudaSuccess) error = cudaGraphGetNodes(*out, NULL, &nodes);
    if ((status < 0 || nodes == 0) && *out) cudaGraphDestroy(*out);
    ISO_TRY(status);
    ISO_TRY_CUDA(error);
    ISO_CHECK(nodes > 0, ISO_ERR_DEVICE, "a library launched nothing while it was captured");
    return ISO_OK;
}

static iso_status add_node(iso__cuda *cuda, segment *s, int k) {
    iso__cuda_command c = command_of(s, k);
    const cudaGraphNode_t *before = k > 0 ? &s->node[k - 1] : NULL;
    size_t count = k > 0;
    void *args[1];
    if (c.kernel.function) {
        struct cudaKernelNodeParams params = node_params(&c.kernel, args);
        ISO_TRY_CUDA(cudaGraphAddKernelNode(&s->node[k], s->graph, before, count, &params));
        return ISO_OK;
    }
    cudaGraph_t child = NULL;
    ISO_TRY(capture_command(cuda, &c, &child));
    cudaError_t error = cudaGraphAddChildGraphNode(&s->node[k], s->graph, before, count, child);
    cudaGraphDestroy(child); // it was copied
    ISO_TRY_CUDA(error);
    return ISO_OK;
}

static iso_status build_graph(iso__cuda *cuda, segment *s) {
    ISO_TRY(iso__alloc_zero((size_t)s->count * sizeof(*s->node), (void **)&s->node));
    ISO_TRY_CUDA(cudaGraphCreate(&s->graph, 0));
    for (int k = 0; k < s->count; k++) ISO_TRY(add_node(cuda, s, k));
    ISO_TRY_CUDA(cudaGraphInstantiate(&s->exec, s->graph, 0));
    cuda->base.primitives_created++;
    return ISO_OK;
}

static void free_graph(segment *s) {
    if (s->exec) cudaGraphExecDestroy(s->exec);
    if (s->graph) cudaGraphDestroy(s->graph);
    iso__free(s->node);
    s->exec = NULL;
    s->graph = NULL;
    s->node = NULL;
}

static void free_segment(segment *s) {
    free_graph(s);
    iso__free(s->entry);
    iso__free(s->args);
    *s = (segment){0};
}

// Kernels whose arguments are others than last time: learning rates, labels.
static iso_status change_arguments(segment *s, const segment *now) {
    for (int k = 0; k < s->count; k++) {
        iso__cuda_command c = command_of(now, k);
        char *old = s->args + s->entry[k].at;
        void *args[1];
        if (memcmp(old, c.kernel.args, c.kernel.bytes) == 0) continue;
        struct cudaKernelNodeParams params = node_params(&c.kernel, args);
        ISO_TRY_CUDA(cudaGraphExecKernelNodeSetParams(s->exec, s->node[k], &params));
        memcpy(old, c.kernel.args, c.kernel.bytes);
    }
    return ISO_OK;
}

static iso_status launch_graph(iso__cuda *cuda, segment *s) {
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(change_arguments(s, &cuda->graphs->now));
    ISO_TRY_CUDA(cudaGraphLaunch(s->exec, cuda->stream[ISO__QUEUE_COMPUTE]));
    cuda->base.graph_launches++;
    return ISO_OK;
}

// ---- Segments ---------------------------------------------------------------------------------------

static void forget_all(struct iso__cuda_graphs *g) {
    for (int i = 0; i < g->count; i++) free_segment(&g->known[i]);
    g->count = 0;
    g->previous = NONE;
}

// NONE: it has not come before.
static int find_segment(const struct iso__cuda_graphs *g) {
    for (int i = 0; i < g->count; i++)
        if (g->known[i].count == g->now.count && begins_like(&g->known[i], &g->now)) return i;
    return NONE;
}

static int least_recently_used(const struct iso__cuda_graphs *g) {
    int found = 0;
    for (int i = 1; i < g->count; i++)
        if (g->known[i].used < g->known[found].used) found = i;
    return found;
}

// Keeps what came as a new segment; `now` gets other memory.
static int keep_segment(struct iso__cuda_graphs *g) {
    int i = g->count < MOST_SEGMENTS ? g->count++ : least_recently_used(g);
    free_segment(&g->known[i]);
    g->known[i] = g->now;
    g->known[i].next = NONE;
    g->now = (segment){0};
    return i;
}

static void say_refused(struct iso__cuda_graphs *g, const segment *s) {
    if (!g->told)
        iso__log(
            ISO_LOG_WARN,
            "%d launches could not be captured as a CUDA graph: these and others like them are "
            "launched one by one: %s",
            s->count, iso_last_error()->message);
    g->told = true;
}

// After it was launched command by command.
static int learn_segment(iso__cuda *cuda) {
    struct iso__cuda_graphs *g = cuda->graphs;
    int i = find_segment(g);
    if (i == NONE) return keep_segment(g);
    segment *s = &g->known[i];
    // The same layout. Where there is a graph, they stay those that its kernels were last given.
    if (!s->exec) memcpy(s->args, g->now.args, s->args_bytes);
    if (++s->times != TIMES_BEFORE || s->count < LEAST_COMMANDS) return i;
    if (build_graph(cuda, s) < 0) { // it will be launched as before
        say_refused(g, s);
        free_graph(s);
    }
    return i;
}

static void finish_segment(struct iso__cuda_graphs *g, int i) {
    if (g->previous != NONE) g->known[g->previous].next = i;
    g->known[i].used = ++g->clock;
    g->previous = i;
    g->following = NONE;
    g->now.count = 0;
    g->now.args_bytes = 0;
}

iso_status iso__cuda_flush(iso__cuda *cuda) {
    struct iso__cuda_graphs *g = cuda->graphs;
    ISO_TRY(iso__cuda_multi_tensor_launch(cuda));
    if (!g || g->now.count == 0) return ISO_OK;
    int i = g->following;
    iso_status status;
    if (i != NONE && g->known[i].count != g->now.count) i = find_segment(g); // one that ends here
    if (i != NONE && g->known[i].exec) {
        status = launch_graph(cuda, &g->known[i]);
    } else {
        status = g->following != NONE ? execute_held(cuda, g->now.count) : ISO_OK;
        i = learn_segment(cuda);
    }
    finish_segment(g, i);
    ISO_TRY(status);
    return ISO_OK;
}

static bool has_begun(const segment *known, const segment *now) {
    return known->exec && begins_like(known, now);
}

// A segment that begins with what came so far, preferably the one that came after the previous one
// before. Where steps take turns with two losses or batches, it shows on the way which one it is.
static int guess_segment(const struct iso__cuda_graphs *g) {
    int next = g->previous != NONE ? g->known[g->previous].next : NONE;
    if (next != NONE && next < g->count && has_begun(&g->known[next], &g->now)) return next;
    for (int i = 0; i < g->count; i++)
        if (has_begun(&g->known[i], &g->now)) return i;
    return NONE;
}

iso_status iso__cuda_submit_command(iso__cuda *cuda, const iso__cuda_command *c) {
    struct iso__cuda_graphs *g = cuda->graphs;
    cuda->base.launches++;
    if (!g) return iso__cuda_execute(cuda, c);
    int k = g->now.count;
    ISO_TRY(append_command(&g->now, c));
    if (k > 0 && g->following == NONE) return iso__cuda_execute(cuda, c);
    const segment *s = k > 0 ? &g->known[g->following] : NULL;
    if (s && k < s->count && fits_entry(s, k, c)) return ISO_OK; // held back
    g->following = guess_segment(g);
    if (g->following != NONE) return ISO_OK;
    ISO_TRY(execute_held(cuda, k));
    return iso__cuda_execute(cuda, c);
}

// ---- Life -------------------------------------------------------------------------------------------

iso_status iso__cuda_graphs_create(iso__cuda *cuda) {
    ISO_TRY(iso__alloc_zero(sizeof(*cuda->graphs), (void **)&cuda->graphs));
    cuda->graphs->previous = cuda->graphs->following = NONE;
    return ISO_OK;
}

void iso__cuda_graphs_destroy(iso__cuda *cuda) {
    if (!cuda->graphs) return;
    forget_all(cuda->graphs);
    free_segment(&cuda->graphs->now);
    iso__free(cuda->graphs);
    cuda->graphs = NULL;
}
