// SPDX-License-Identifier: MIT
// Private to cuDNN's files (cuda_dnn*.c): the library, and the cached plan of each shape.
#ifndef ISO_CUDA_DNN_PLAN_H
#define ISO_CUDA_DNN_PLAN_H

#include "device/cuda/runtime/cuda_cache.h"
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/runtime/cuda_library.h"

#include <cudnn.h>

#define ISO_DNN_FUNCTIONS(X)                                                                       \
    X(cudnnConvolutionBackwardData)                                                                \
    X(cudnnConvolutionBackwardFilter)                                                              \
    X(cudnnConvolutionBiasActivationForward)                                                       \
    X(cudnnConvolutionForward)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnCreateActivationDescriptor)                                                             \
    X(cudnnCreateConvolutionDescriptor)                                                            \
    X(cudnnCreateFilterDescriptor)                                                                 \
    X(cudnnCreateTensorDescriptor)                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnDestroyActivationDescriptor)                                                            \
    X(cudnnDestroyConvolutionDescriptor)                                                           \
    X(cudnnDestroyFilterDescriptor)                                                                \
    X(cudnnDestroyTensorDescriptor)                                                                \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)                                                 \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)                                               \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                                                \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                                              \
    X(cudnnGetConvolutionForwardAlgorithm_v7)                                                      \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                     \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetVersion)                                                                             \
    X(cudnnSetActivationDescriptor)                                                                \
    X(cudnnSetConvolution2dDescriptor)                                                             \
    X(cudnnSetConvolutionGroupCount)                                                               \
    X(cudnnSetConvolutionMathType)                                                                 \
    X(cudnnSetFilter4dDescriptor)                                                                  \
    X(cudnnSetStream)                                                                              \
    X(cudnnSetTensor4dDescriptor)
typedef struct iso__dnn_functions {
    ISO_DNN_FUNCTIONS(ISO_CUDA_FIELD)
} iso__dnn_functions;

typedef struct iso__cuda_dnn {
    iso__dnn_functions call;
    cudnnHandle_t handle;
    cudnnActivationDescriptor_t relu;
    iso__cuda_cache plans;
    bool tuning; // the first call for a shape times its candidates
    struct iso__dnn_choice *choice;
    int choices, room;
} iso__cuda_dnn;

// Writes the record of a failed call of cuDNN.
iso_status iso__dnn_error(const iso__cuda_dnn *dnn, cudnnStatus_t error, const char *call,
                          const char *function, const char *file, int line);
#define ISO_TRY_DNN_AS(dnn, name, expr)                                                            \
    do {                                                                                           \
        cudnnStatus_t try_error_ = (expr);                                                         \
        if (try_error_ != CUDNN_STATUS_SUCCESS)                                                    \
            return iso__dnn_error(dnn, try_error_, name, __func__, __FILE__, __LINE__);            \
    } while (0)
#define ISO_TRY_DNN(dnn, expr) ISO_TRY_DNN_AS(dnn, #expr, expr)

// Codes with the same thousands are of one kind (cudnn_graph.h).
static inline bool iso__dnn_unsupported(cudnnStatus_t status) {
    return (int)status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
}

typedef enum iso__dnn_direction {
    ISO__DNN_FORWARD,
    ISO__DNN_FILTER,
    ISO__DNN_INPUT
} iso__dnn_direction;

// A convolution as cuDNN sees it. last: tensors and weights have their channels last. All members
// are 8 bytes long, so keys have no padding and can be compared byte by byte.
typedef struct iso__dnn_key {
    int64_t direction, dtype, math, last, rows, channels, height, width, out_channels, out_height,
        out_width, kernel[2], stride[2], padding[2], dilation[2], groups;
} iso__dnn_key;

enum { ISO__DNN_ALGORITHMS = 16 };
typedef struct iso__dnn_plan {
    iso__cuda_entry base;
    iso__dnn_key key;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    // Candidates in the order of the heuristics. Candidate `at` is in use; if at is count, none is
    // left. An algorithm is listed once for each math type that it supports.
    int algorithm[ISO__DNN_ALGORITHMS], count, at;
    int chosen; // chosen by time, and preferred; -1: none
    cudnnMathType_t math[ISO__DNN_ALGORITHMS];
    size_t workspace[ISO__DNN_ALGORITHMS];
    bool refused[ISO__DNN_ALGORITHMS]; // permanently
    bool fuses_relu;                   // until cuDNN refuses
    bool no_room;                      // a workspace could not be allocated
    bool told;                         // the log has reported that cuBLAS is used instead
} iso__dnn_plan;

// Returns the plan of a shape and direction; the first call creates it. The plan has no candidates
// if cuDNN does not support the shape.
iso_status iso__dnn_find_plan(iso__cuda *cuda, const iso__dnn_key *key, iso__dnn_plan **out);
void iso__dnn_plan_destroy(const iso__cuda_dnn *dnn, iso__dnn_plan *p);
// The candidate to run: the chosen one, else the first that was not refused.
int iso__dnn_candidate(const iso__dnn_plan *p);
// Logs a message about a shape.
void iso__dnn_say(iso_log_level level, const iso__dnn_plan *p, const char *what);

// ---- Candidates by time (cuda_dnn_tune.c) ---------------------------------------------------------

// Runs candidate p->at once; *done false: it is refused.
typedef iso_status (*iso__dnn_trial)(iso__cuda *cuda, const void *context, iso__dnn_plan *p,
                                     bool *done);
// While tuning: times every candidate of a plan that has no choice yet, and keeps the fastest.
iso_status iso__dnn_tune(iso__cuda *cuda, iso__dnn_plan *p, iso__dnn_trial trial,
                         const void *context);
// Makes the plan prefer the choice for its shape that was made in another plan or by another rank.
void iso__dnn_apply_choice(const iso__cuda_dnn *dnn, iso__dnn_plan *p);
void iso__dnn_forget_choices(iso__cuda_dnn *dnn);

#endif
