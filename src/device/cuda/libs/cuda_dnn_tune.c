// SPDX-License-Identifier: MIT
// Convolutions by cuDNN: chooses candidates by time, and exchanges choices with other ranks.
//
// A choice applies to a shape with any number of rows. Candidates differ in rounding, so a rank
// takes a choice of another rank only for the shape that it was made for.
#include "device/cuda/libs/cuda_dnn.h"

#include "device/cuda/libs/cuda_dnn_plan.h"
#include "device/cuda/runtime/cuda_graph.h"

#include <float.h>
#include <string.h>

typedef struct iso__dnn_choice {
    iso__dnn_key key; // rows: 0
    int64_t algorithm, math;
} iso__dnn_choice;

static iso__dnn_key shape_of(const iso__dnn_plan *p) {
    iso__dnn_key key = p->key;
    key.rows = 0;
    return key;
}

// ---- Choices --------------------------------------------------------------------------------------

void iso__dnn_apply_choice(const iso__cuda_dnn *dnn, iso__dnn_plan *p) {
    iso__dnn_key key = shape_of(p);
    p->chosen = -1;
    for (int i = 0; i < dnn->choices; i++) {
        const iso__dnn_choice *c = &dnn->choice[i];
        if (memcmp(&c->key, &key, sizeof(key)) != 0) continue;
        for (int k = 0; k < p->count; k++)
            if (p->algorithm[k] == c->algorithm && p->math[k] == c->math) p->chosen = k;
    }
    p->at = iso__dnn_candidate(p);
}

void iso__dnn_forget_choices(iso__cuda_dnn *dnn) {
    iso__free(dnn->choice);
    dnn->choice = NULL;
    dnn->choices = dnn->room = 0;
}

static iso_status keep_choice(iso__cuda_dnn *dnn, const iso__dnn_choice *choice) {
    if (dnn->choices == dnn->room) {
        int room = dnn->room ? 2 * dnn->room : 32;
        ISO_TRY(iso__realloc((void **)&dnn->choice, (size_t)dnn->room * sizeof(*choice),
                             (size_t)room * sizeof(*choice)));
        dnn->room = room;
    }
    dnn->choice[dnn->choices++] = *choice;
    return ISO_OK;
}

// ---- Timing ---------------------------------------------------------------------------------------

enum { WARM_UPS = 2, TRIALS = 5 };

static iso_status repeat_trial(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                               const void *context, int times, bool *done) {
    *done = true;
    for (int i = 0; i < times && *done; i++) ISO_TRY(trial(cuda, context, p, done));
    return ISO_OK;
}

// Trials as a graph: launched one by one, they would take the time that the host needs.
static iso_status record_trials(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                                const void *context, cudaGraphExec_t *out, bool *done) {
    cudaStream_t stream = cuda->stream[ISO__QUEUE_COMPUTE];
    cudaGraph_t graph = NULL;
    ISO_TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    iso_status status = repeat_trial(cuda, p, trial, context, TRIALS, done);
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (status == ISO_OK && error == cudaSuccess) error = cudaGraphInstantiate(out, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    ISO_TRY(status);
    ISO_TRY_CUDA(error);
    return ISO_OK;
}

static iso_status run_timed(iso__cuda *cuda, cudaGraphExec_t trials, const cudaEvent_t *mark,
                            float *ms) {
    cudaStream_t stream = cuda->stream[ISO__QUEUE_COMPUTE];
    for (int i = 0; i < WARM_UPS; i++) ISO_TRY_CUDA(cudaGraphLaunch(trials, stream));
    ISO_TRY_CUDA(cudaEventRecord(mark[0], stream));
    ISO_TRY_CUDA(cudaGraphLaunch(trials, stream));
    ISO_TRY_CUDA(cudaEventRecord(mark[1], stream));
    ISO_TRY_CUDA(cudaEventSynchronize(mark[1]));
    ISO_TRY_CUDA(cudaEventElapsedTime(ms, mark[0], mark[1]));
    *ms /= TRIALS;
    return ISO_OK;
}

// Milliseconds of a trial; FLT_MAX: the candidate is refused.
static iso_status time_candidate(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                                 const void *context, const cudaEvent_t *mark, float *ms) {
    cudaGraphExec_t trials = NULL;
    bool done;
    *ms = FLT_MAX;
    ISO_TRY(trial(cuda, context, p, &done)); // makes room for its workspace
    if (!done) return ISO_OK;
    iso_status status = record_trials(cuda, p, trial, context, &trials, &done);
    if (status == ISO_OK && done) status = run_timed(cuda, trials, mark, ms);
    if (trials) cudaGraphExecDestroy(trials);
    return status;
}

// What is refused with bias and relu fused may be taken without: only a plain run rules a candidate
// out.
static iso_status time_all(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                           const void *context, const cudaEvent_t *mark, float *best) {
    char text[64];
    *best = FLT_MAX;
    int fastest = -1;
    for (p->at = 0; p->at < p->count; p->at++) {
        float ms;
        if (p->refused[p->at]) continue;
        ISO_TRY(time_candidate(cuda, p, trial, context, mark, &ms));
        snprintf(text, sizeof(text), "%.4f ms, %zu bytes", (double)ms, p->workspace[p->at]);
        iso__dnn_say(ISO_LOG_DEBUG, p, text);
        if (ms < *best) fastest = p->at;
        if (ms < *best) *best = ms;
    }
    p->chosen = fastest;
    p->at = iso__dnn_candidate(p);
    return ISO_OK;
}

static iso_status choose_fastest(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                                 const void *context) {
    cudaEvent_t mark[2] = {NULL, NULL};
    char text[64];
    float best = FLT_MAX;
    iso_status status;
    for (int i = 0; i < 2; i++)
        if (cudaEventCreate(&mark[i]) != cudaSuccess) mark[i] = NULL;
    status = mark[0] && mark[1] ? time_all(cuda, p, trial, context, mark, &best)
                                : ISO_FAIL(ISO_ERR_DEVICE, "no events to take times with");
    for (int i = 0; i < 2; i++)
        if (mark[i]) cudaEventDestroy(mark[i]);
    ISO_TRY(status);
    if (p->chosen < 0) return ISO_OK;
    snprintf(text, sizeof(text), "the fastest, %.4f ms", (double)best);
    iso__dnn_say(ISO_LOG_INFO, p, text);
    return keep_choice(cuda->dnn, &(iso__dnn_choice){shape_of(p), p->algorithm[p->chosen],
                                                     (int64_t)p->math[p->chosen]});
}

iso_status iso__dnn_tune(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                         const void *context) {
    if (p->chosen >= 0 || p->count < 2) return ISO_OK;
    ISO_TRY(iso__cuda_enter(cuda)); // also for a graph that the flush makes
    ISO_TRY(iso__cuda_flush(cuda));
    struct iso__cuda_graphs *graphs = cuda->graphs;
    cuda->graphs = NULL; // what is timed is launched at once
    iso_status status = choose_fastest(cuda, p, trial, context);
    cuda->graphs = graphs;
    return status;
}

// ---- The device's slots ---------------------------------------------------------------------------

// A device whose convolutions go by cuBLAS has nothing to choose.
static iso_status tune_slot(iso_device *self, bool on) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_TRY(iso__cuda_conv_choose(cuda));
    if (cuda->dnn) cuda->dnn->tuning = on;
    return ISO_OK;
}

static const void *get_choices(iso_device *self, size_t *bytes) {
    const iso__cuda_dnn *dnn = iso__cuda_of(self)->dnn;
    *bytes = dnn ? (size_t)dnn->choices * sizeof(iso__dnn_choice) : 0;
    return dnn ? dnn->choice : NULL;
}

static iso_status set_choices(iso_device *self, const void *data, size_t bytes) {
    iso__cuda *cuda = iso__cuda_of(self);
    ISO_CHECK(bytes % sizeof(iso__dnn_choice) == 0, ISO_ERR_FORMAT,
              "%zu bytes are no choices of kernels: ranks must run the same build", bytes);
    if (bytes > 0) ISO_TRY(iso__cuda_conv_choose(cuda));
    iso__cuda_dnn *dnn = cuda->dnn;
    ISO_CHECK(dnn || bytes == 0, ISO_ERR_UNSUPPORTED,
              "the choices are of cuDNN's kernels, which this rank does not use: ranks must have "
              "the same libraries and the same ISO_CUDA_CONV");
    if (!dnn) return ISO_OK;
    void *copy = NULL;
    if (bytes > 0) ISO_TRY(iso__alloc(bytes, &copy));
    if (bytes > 0) memcpy(copy, data, bytes);
    iso__dnn_forget_choices(dnn);
    dnn->choice = copy;
    dnn->choices = dnn->room = (int)(bytes / sizeof(*dnn->choice));
    for (int i = 0; i < ISO_CUDA_CACHE_HEADS; i++)
        for (iso__cuda_entry *e = dnn->plans.head[i]; e; e = e->next)
            iso__dnn_apply_choice(dnn, iso_container_of(e, iso__dnn_plan, base));
    return ISO_OK;
}

void iso__cuda_dnn_fill_tune(iso_device_ops *ops) {
    ops->tune = tune_slot;
    ops->choices = get_choices;
    ops->set_choices = set_choices;
}
