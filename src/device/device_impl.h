// SPDX-License-Identifier: MIT
// Private: the structure of a device. It has one table for its memory, and one table of kernels for
// each element type in which it computes. A slot is required unless its comment allows NULL.
//
// Tensors passed to a slot are on its device, and those of a kernel have the table's element type.
// In the tables of bf16 and f16 this holds for activations, their gradients, and the weights and
// biases of linear layers and convolutions. Gradients of parameters (dw, db), and the parameters,
// running values and statistics of norms are f32 there. Sums and all values between load and store
// are f32 or wider. Updates take f32 and f64 only. A 4-dimensional activation may be in either
// layout; gradients have the layout of the activation they belong to; parameters and everything
// else are logical, except the weight of a convolution in 16 bits on a device with memory of its
// own, which has the layout of y. Slots do not check shapes, because modules have done so. For
// shapes that a slot has seen before it allocates nothing and creates no primitive.
#ifndef ISO_DEVICE_IMPL_H
#define ISO_DEVICE_IMPL_H

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <isotherm/nn.h>

typedef struct iso__dropout_draw {
    iso__philox_key key;
    uint64_t number;   // forward number: counter words 2 and 3
    int64_t first_row; // global row of row 0: counter word 1 is first_row + n
    double p;
    bool channels; // one draw per (row, channel) instead of per element
} iso__dropout_draw;

// A parameter of 16 bits whose master weights an update changes: the update first takes them anew
// where the value is not the rounded master weight (iso_device_ops.take_master), and rounds them to
// the value at the end. value NULL: there is none. Only for devices with rounds_updates.
typedef struct iso__rounded_to {
    void *value;
    iso_dtype dtype; // bf16 or f16
} iso__rounded_to;

// One element-wise update over `count` elements of the gradient g * scale (see optim.h for the
// meaning).
typedef struct iso__sgd_args {
    double lr, momentum, dampening, weight_decay, scale;
    bool nesterov, first; // first: momentum buffer = gradient (torch.optim.SGD)
    iso__rounded_to to;
} iso__sgd_args;
typedef struct iso__adam_args {
    double lr, beta1, beta2, eps, weight_decay, scale;
    double rest1, rest2; // 1 - beta1, 1 - beta2, rounded last: 1 - 0.999f has a relative error of
                         // 1.3e-5
    double correction1, correction2_sqrt; // 1 - beta1^t, sqrt(1 - beta2^t)
    bool decoupled;                       // AdamW
    iso__rounded_to to;
} iso__adam_args;
typedef struct iso__adadelta_args {
    double lr, rho, eps, weight_decay, scale;
    iso__rounded_to to;
} iso__adadelta_args;
typedef struct iso__adagrad_args {
    double lr, eps, weight_decay, scale; // lr: after its decay
    iso__rounded_to to;
} iso__adagrad_args;
typedef struct iso__rmsprop_args {
    double lr, alpha, eps, momentum, weight_decay, scale;
    double rest; // 1 - alpha, rounded last
    iso__rounded_to to;
} iso__rmsprop_args;
typedef struct iso__nadam_args {
    double of_gradient, of_moment; // factors of the gradient and of the first moment in the update
    double beta1, beta2, rest1, rest2, eps, weight_decay, scale;
    double correction2; // 1 - beta2^t
    iso__rounded_to to;
} iso__nadam_args;
typedef struct iso__lamb_args {
    double lr, beta1, beta2, eps, weight_decay, scale;
    double rest1, rest2, correction1, correction2_sqrt; // as adam's
    iso__rounded_to to;
} iso__lamb_args;

// Each of N sequences has L queries, and S = `keys` keys and values, with the heads side by side in
// rows of E numbers. Rows of q are q_stride numbers apart, rows of k and v kv_stride.
typedef struct iso__attention_args {
    int64_t heads, keys, q_stride, kv_stride;
    bool causal; // row i sees rows 0 .. i only
    void *q, *k, *v;
} iso__attention_args;

// Element-wise functions; backward uses the saved tensor named beside each: its input x or its
// output y.
typedef enum iso__unary {
    ISO__TANH,       // y
    ISO__SIGMOID,    // y
    ISO__GELU,       // x
    ISO__GELU_TANH,  // x
    ISO__SILU,       // x
    ISO__LEAKY_RELU, // x; alpha: the slope below 0
    ISO__ELU         // x; alpha: the negative of the limit below 0
} iso__unary;

typedef struct iso__batch_norm_args {
    double eps, factor;                     // running = running + factor * (batch - running)
    bool batch;                             // statistics of the batch; false: the running ones
    iso_activation act;                     // fused
    const iso_tensor *weight, *bias;        // [C]; NULL: 1 and 0
    iso_tensor *running_mean, *running_var; // [C]; updated if batch, where not NULL
    iso_tensor *tracked;                    // i64, one number: goes up by 1 if batch; may be NULL
    // Statistics over more values than those of x, combined from results of batch_norm_moments and
    // batch_norm_sums; in host memory. NULL: forward uses the moments of x, backward the sums of
    // dy.
    const double *moments, *sums;
    double count; // the number of values of a channel in these
} iso__batch_norm_args;

// ---- Devices whose memory is not the host's ----------------------------------------------------
// Work goes through queues. Each runs its work in order, concurrently with the other queues and the
// host. Kernels and fills use ISO__QUEUE_COMPUTE. No call below waits unless its comment says so.
typedef enum iso__queue {
    ISO__QUEUE_COMPUTE,
    ISO__QUEUE_IN,  // copies from the host
    ISO__QUEUE_OUT, // copies to the host
    ISO__QUEUES
} iso__queue;

// A place in a queue, once record() has put it there; may be recorded again and again.
typedef struct iso__device_event iso__device_event; // the device's own

typedef struct iso__remote_ops {
    bool (*owns)(iso_device *self, const void *memory); // in this device's memory
    // Page-locks host memory of any kind, so that copy() may use it until unpin. Copies must be
    // complete before unpin.
    iso_status (*pin)(iso_device *self, void *memory, size_t bytes);
    void (*unpin)(iso_device *self, void *memory);
    iso_status (*event_create)(iso_device *self, iso__device_event **out);
    void (*event_destroy)(iso_device *self, iso__device_event **event); // accepts a NULL event
    iso_status (*record)(iso_device *self, iso__queue queue, iso__device_event *event);
    // Work that enters the queue from now on runs after the last record of the event. No effect if
    // it was never recorded.
    iso_status (*follow)(iso_device *self, iso__queue queue, iso__device_event *event);
    // Device to host, host to device or inside the device; the host's side is pinned.
    iso_status (*copy)(iso_device *self, iso__queue queue, const void *from, void *to,
                       size_t bytes);
    iso_status (*fill_zero)(iso_device *self, iso__queue queue, void *memory, size_t bytes);
    // Launches the work that the device holds back, for programs with kernels of their own.
    iso_status (*flush)(iso_device *self);
    // ISO_PENDING: not reached yet. Also reports errors of the device.
    iso_status (*test)(iso_device *self, iso__device_event *event);
    iso_status (*wait)(iso_device *self, iso__device_event *event); // waits
    iso_status (*finish)(iso_device *self); // waits for everything in all queues
    // For clip.h. The norm of type p of tensors of any real types, taken as one vector. Unless
    // max_norm is NULL, multiplies them by *max_norm / (norm + 1e-6) if that is below 1. Waits only
    // if norm is not NULL.
    iso_status (*clip_norm)(iso_device *self, int count, iso_tensor *const *x, double p,
                            const double *max_norm, double *norm);
    // Waits for the numbers that kernels have promised to the host (lamb_measure), and delivers
    // them. On an error, delivers nothing, and forgets them.
    iso_status (*collect)(iso_device *self);
    // Rounds f32 values to bf16 or f16, in place.
    iso_status (*round_values)(iso_device *self, iso_dtype dtype, int64_t count, float *x);
    // Clamps every element to [-most, most]; NaN stays NaN.
    iso_status (*clip_value)(iso_device *self, int count, iso_tensor *const *x, double most);
} iso__remote_ops;

typedef struct iso_device_ops {
    const char *name;
    bool rounds_updates; // updates take iso__rounded_to, except lamb_measure and lamb_step
    bool host_memory;    // the host may read and write data of logical tensors in place
    const iso__remote_ops *remote; // NULL if host_memory
    void (*destroy)(iso_device *self);

    iso_status (*alloc)(iso_device *self, size_t bytes, void **out); // contents undefined
    void (*free)(iso_device *self, void *data);
    iso_status (*fill)(iso_device *self, iso_tensor *x,
                       double value); // padding of a layout stays zero
    // Bytes that a tensor of this shape and layout occupies.
    size_t (*storage_bytes)(iso_device *self, iso_dtype dtype, int ndim, const int64_t *shape,
                            iso_layout layout);
    // The layout in which this device wants an activation of this shape produced by a convolution.
    iso_layout (*preferred_layout)(iso_device *self, iso_dtype dtype, int ndim,
                                   const int64_t *shape);
    // Whether its elements are in the order of a logical tensor, whatever its layout is.
    bool (*is_in_order)(iso_device *self, const iso_tensor *x);
    // Copies the logical contents between any layouts. Shapes may differ if the counts agree
    // (flatten) and not both are blocked. Element types may differ, too, between tensors of one
    // shape (rounded to nearest; in host memory f64 is rounded to f32 first).
    iso_status (*copy)(iso_device *self, const iso_tensor *from, iso_tensor *to);
    // Master weights, the f32 values of a bf16 or f16 parameter. Where a value is not its master
    // weight rounded, the program has changed the value, and it becomes the master weight.
    iso_status (*take_master)(iso_device *self, iso_dtype dtype, int64_t count, const void *value,
                              float *master);
    // Host order <-> device, logical, whole tensor.
    iso_status (*to_host)(iso_device *self, const iso_tensor *from, void *host);
    iso_status (*from_host)(iso_device *self, const void *host, iso_tensor *to);
    iso_status (*set_threads)(iso_device *self, int n);
    // As in device.h; name is one of those there.
    iso_status (*set_math)(iso_device *self, const char *name);
    // As in device.h; all NULL if the kernels have no candidates to choose from.
    iso_status (*tune)(iso_device *self, bool on);
    const void *(*choices)(iso_device *self, size_t *bytes);
    iso_status (*set_choices)(iso_device *self, const void *choices, size_t bytes);
} iso_device_ops;

// Rows of a weight that may not have arrived yet. wait returns when the first `rows` of them have
// arrived. A kernel waits for rows before it reads them; results have the same bits as if all rows
// had arrived.
typedef struct iso__arrival {
    iso_status (*wait)(struct iso__arrival *self, int64_t rows);
    int64_t unit; // rows arrive in multiples of this
} iso__arrival;

// For kernels that need all of w [rows, ...].
static inline iso_status iso__arrival_wait(iso__arrival *arrival, const iso_tensor *w) {
    return arrival ? arrival->wait(arrival, w->shape[0]) : ISO_OK;
}

static inline bool iso__is_half(iso_dtype type) { return type == ISO_BF16 || type == ISO_F16; }
static inline bool iso__is_real(iso_dtype type) {
    return type == ISO_F32 || type == ISO_F64 || iso__is_half(type);
}
// The type of the gradient of a parameter of this type, in which it is summed: sums of many numbers
// need more than 16 bits.
static inline iso_dtype iso__gradient_type(iso_dtype value) {
    return iso__is_half(value) ? ISO_F32 : value;
}

// A copy of f32 in bf16 or f16.
typedef struct iso__rounding {
    const iso_tensor *from;
    iso_tensor *to;
} iso__rounding;

typedef struct iso_kernel_ops {
    // In the tables of bf16 and f16 only: the same as `count` calls of copy(). No tensor that is
    // written overlaps any of the others.
    iso_status (*round_many)(iso_device *self, int count, const iso__rounding *of);
    // ---- Layers. b may be NULL; accumulate: += instead of =. ----
    // arrival: of w; NULL: w has arrived. b has always arrived.
    iso_status (*linear_forward)(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                                 iso__arrival *arrival, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y);
    iso_status (*linear_backward_params)(iso_device *self, const iso_tensor *x,
                                         const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                         iso_tensor *db, bool accumulate_b); // dw, db may be NULL
    iso_status (*linear_backward_input)(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                        iso_tensor *dx);
    // dw [R, K] = rows first .. first + R of the weight's gradient. NULL if the device's matrix
    // product cannot read a range of columns of dy; callers then copy them by take_columns.
    iso_status (*linear_backward_rows)(iso_device *self, const iso_tensor *x, const iso_tensor *dy,
                                       int64_t first, iso_tensor *dw, bool accumulate);
    // columns [N, C] = columns first .. first + C of x [N, K]. NULL unless linear_backward_rows is
    // NULL; then also NULL if the bits of a row may depend on the rows that are computed with it.
    // Callers then compute the whole gradient.
    iso_status (*take_columns)(iso_device *self, const iso_tensor *x, int64_t first,
                               iso_tensor *columns);
    iso_status (*conv2d_forward)(iso_device *self, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y);
    iso_status (*conv2d_backward_params)(iso_device *self, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate_w, iso_tensor *db, bool accumulate_b);
    iso_status (*conv2d_backward_input)(iso_device *self, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx);
    // Pooling: y and dx have the layout of x; strides are filled in.
    // workspace: device-private bytes of max_pool2d_workspace(), from forward to backward; may be
    // NULL in evaluation (no backward follows).
    size_t (*max_pool2d_workspace)(iso_device *self, const iso_tensor *x, const iso_tensor *y);
    iso_status (*max_pool2d_forward)(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y, void *workspace);
    // The same with a relu, for windows of fewer than 65536 pixels. Where the relu cuts, the
    // workspace records no winner, so one backward covers both. NULL: no faster than two calls.
    iso_status (*max_pool2d_relu_forward)(iso_device *self, const iso_pool2d_config *c,
                                          const iso_tensor *x, iso_tensor *y, void *workspace);
    iso_status (*max_pool2d_backward)(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, const void *workspace, iso_tensor *dx);
    iso_status (*avg_pool2d_forward)(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y);
    iso_status (*avg_pool2d_backward)(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, iso_tensor *dx);
    iso_status (*adaptive_avg_pool2d_forward)(iso_device *self, const iso_tensor *x, iso_tensor *y);
    iso_status (*adaptive_avg_pool2d_backward)(iso_device *self, const iso_tensor *dy,
                                               iso_tensor *dx);
    iso_status (*relu_forward)(iso_device *self, const iso_tensor *x, iso_tensor *y); // y may be x
    // From the output: dx = y > 0 ? dy : 0. dx may be dy.
    iso_status (*relu_backward)(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                iso_tensor *dx);
    // dy = y > 0 ? dy : 0, and db [C] = its sums over all other dimensions (accumulate: +=). NULL:
    // no faster than two calls.
    iso_status (*relu_backward_bias)(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *db, bool accumulate);
    // y = x * mask / (1 - p), mask drawn by logical index; forward and backward alike. y may be x.
    iso_status (*dropout)(iso_device *self, const iso__dropout_draw *draw, const iso_tensor *x,
                          iso_tensor *y);
    iso_status (*log_softmax_forward)(iso_device *self, const iso_tensor *x, iso_tensor *y);
    iso_status (*log_softmax_backward)(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                       iso_tensor *dx);
    // Over the last dimension.
    iso_status (*softmax_forward)(iso_device *self, const iso_tensor *x, iso_tensor *y);
    iso_status (*softmax_backward)(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                   iso_tensor *dx);
    // dx may be dy; saved and alpha: see iso__unary.
    iso_status (*unary_forward)(iso_device *self, iso__unary function, double alpha,
                                const iso_tensor *x, iso_tensor *y);
    iso_status (*unary_backward)(iso_device *self, iso__unary function, double alpha,
                                 const iso_tensor *saved, const iso_tensor *dy, iso_tensor *dx);
    // y = act(a + b), all of one layout; y may be a or b.
    iso_status (*add)(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                      iso_activation act, iso_tensor *y);
    // dy and copy = y > 0 ? dy : 0.
    iso_status (*relu_backward_copy)(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *copy);
    // x is [N, C], [N, C, L] or [N, C, H, W]; y and dx have its layout; dx may be dy or NULL.
    // workspace: device-private bytes of batch_norm_workspace(), from forward to backward.
    size_t (*batch_norm_workspace)(iso_device *self, const iso_tensor *x);
    iso_status (*batch_norm_forward)(iso_device *self, const iso__batch_norm_args *args,
                                     const iso_tensor *x, iso_tensor *y, void *workspace);
    iso_status (*batch_norm_backward)(iso_device *self, const iso__batch_norm_args *args,
                                      const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                      iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                      bool accumulate_b, iso_tensor *dx); // dw, db may be NULL
    // Forward and backward in steps, for statistics over several batches. Moments of x: C means,
    // then C sums of squares of the distances from them. Sums: C sums of dy before the activation,
    // then C sums of that times the distance of x from the mean; dw and db follow from them. A
    // backward with args->sums computes dx only.
    iso_status (*batch_norm_moments)(iso_device *self, const iso_tensor *x, double *moments);
    iso_status (*batch_norm_sums)(iso_device *self, const iso__batch_norm_args *args,
                                  const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                  iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                  bool accumulate_b, double *sums);
    // Rows of as many elements as w; all logical. statistics: [rows, 3], from forward to backward.
    // w and b may be NULL: 1 and 0, then `size` counts the elements of a row.
    iso_status (*layer_norm_forward)(iso_device *self, double eps, int64_t size,
                                     const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                     iso_tensor *statistics, iso_tensor *y);
    iso_status (*layer_norm_backward_params)(iso_device *self, int64_t size, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b);
    // dx may be dy.
    iso_status (*layer_norm_backward_input)(iso_device *self, int64_t size, const iso_tensor *x,
                                            const iso_tensor *w, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx);
    // result: mean loss of the batch, and number of correct rows; valid once the launched work is
    // done, and pinned if the device has remote_ops. grad may be NULL. labels: in host memory, in
    // range; the caller may reuse them when the call returns.
    iso_status (*loss)(iso_device *self, const iso_loss_config *config, const iso_tensor *output,
                       const int32_t *labels, double result[2], iso_tensor *grad);
    // result[0]: mean over all elements of a loss from ISO_MSE on, as above. All tensors are
    // logical and of one shape. grad may be NULL. With an output of 16 bits the target may be f32.
    iso_status (*target_loss)(iso_device *self, const iso_loss_config *config,
                              const iso_tensor *output, const iso_tensor *target, double result[2],
                              iso_tensor *grad);

    // ---- Slots that are NULL if the device lacks the layer: see iso__check_kernel ----
    // y = the rows of w [V, E] at indices, which are i32 or i64. ISO_ERR_ARG for an index outside
    // [0, V). All tensors are logical.
    iso_status (*embedding_forward)(iso_device *self, const iso_tensor *indices,
                                    const iso_tensor *w, iso_tensor *y);
    // Adds rows of dy to the rows of dw at indices. Leaves out index `skipped` (-1: none).
    iso_status (*embedding_backward)(iso_device *self, const iso_tensor *indices, int64_t skipped,
                                     const iso_tensor *dy, iso_tensor *dw, bool accumulate);
    // softmax(q k^T / sqrt(E / heads)) v of each head. weights [N, heads, L, S]: from forward to
    // backward. y [N, L, E].
    iso_status (*attention_forward)(iso_device *self, const iso__attention_args *args,
                                    iso_tensor *weights, iso_tensor *y);
    // q, k and v become their gradients.
    iso_status (*attention_backward)(iso_device *self, const iso__attention_args *args,
                                     const iso_tensor *dy, const iso_tensor *weights);
    // x [N, C, ...] is logical; a group has C / groups channels. statistics: [N * groups, 3], from
    // forward to backward. w and b [C] may be NULL: 1 and 0. dw and db may be NULL. dx may be dy.
    iso_status (*group_norm_forward)(iso_device *self, int64_t groups, double eps,
                                     const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                     iso_tensor *statistics, iso_tensor *y);
    iso_status (*group_norm_backward_params)(iso_device *self, int64_t groups, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b);
    iso_status (*group_norm_backward_input)(iso_device *self, int64_t groups, const iso_tensor *x,
                                            const iso_tensor *w, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx);
    // Columns to_first .. to_first + width of to [N, K] = those of from [N, L] from from_first on.
    iso_status (*copy_columns)(iso_device *self, int64_t width, const iso_tensor *from,
                               int64_t from_first, iso_tensor *to, int64_t to_first);
    // z [N, I J] = the outer products of the rows of a [N, ..., I] and b [N, ..., J]; all logical.
    iso_status (*outer_forward)(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                                iso_tensor *z);
    // da and db may be NULL.
    iso_status (*outer_backward)(iso_device *self, const iso_tensor *dz, const iso_tensor *a,
                                 const iso_tensor *b, iso_tensor *da, iso_tensor *db);
    // y [N, C, H, W] += b [C]; y is logical.
    iso_status (*add_bias)(iso_device *self, const iso_tensor *b, iso_tensor *y);
    // db [C] = the sums of dy over all other dimensions (accumulate: +=).
    iso_status (*bias_gradient)(iso_device *self, const iso_tensor *dy, iso_tensor *db,
                                bool accumulate);

    // ---- Updates over logical memory of the device ----
    // For memory of its own a device has it in the tables of bf16 and f16, too.
    iso_status (*scale)(iso_device *self, int64_t count, double factor, void *x);
    iso_status (*sgd)(iso_device *self, int64_t count, const iso__sgd_args *args, const void *g,
                      void *p,
                      void *momentum); // momentum NULL when args->momentum == 0
    iso_status (*adam)(iso_device *self, int64_t count, const iso__adam_args *args, const void *g,
                       void *p, void *m, void *v,
                       void *most); // most: the maximum of v so far (amsgrad); NULL: none
    iso_status (*adadelta)(iso_device *self, int64_t count, const iso__adadelta_args *args,
                           const void *g, void *p, void *square_avg, void *acc_delta);
    iso_status (*adagrad)(iso_device *self, int64_t count, const iso__adagrad_args *args,
                          const void *g, void *p, void *sum);
    // grad_avg NULL: not centered; momentum NULL when args->momentum == 0.
    iso_status (*rmsprop)(iso_device *self, int64_t count, const iso__rmsprop_args *args,
                          const void *g, void *p, void *square_avg, void *grad_avg, void *momentum);
    iso_status (*nadam)(iso_device *self, int64_t count, const iso__nadam_args *args, const void *g,
                        void *p, void *m, void *v);
    // The memory is one layer in the sense of the formula: the norms are over all of it.
    iso_status (*lamb)(iso_device *self, int64_t count, const iso__lamb_args *args, const void *g,
                       void *p, void *m, void *v);
    // The same in two halves, for a layer with elements on other ranks (ZeRO). lamb_measure updates
    // the moments, and gives the squared norms of these elements of the parameter and of the
    // direction. A device with memory of its own writes them in remote->collect; `square` must
    // exist until then. lamb_step makes the step, with the squared norms of the whole layer.
    iso_status (*lamb_measure)(iso_device *self, int64_t count, const iso__lamb_args *args,
                               const void *g, const void *p, void *m, void *v, double square[2]);
    iso_status (*lamb_step)(iso_device *self, int64_t count, const iso__lamb_args *args,
                            const double square[2], void *p, const void *m, const void *v);
} iso_kernel_ops;

struct iso_device {
    const iso_device_ops *ops;
    const iso_kernel_ops *kernels[ISO_DTYPE_COUNT]; // NULL: does not compute in that type
    int references;
    int threads;
    long long primitives_created, launches, graph_launches;
    const char *kernel; // the implementation that ran last, unless plain C; for bench_step
    char description[128];
};

// The kernels for x; modules have made sure that they exist.
static inline const iso_kernel_ops *iso__kernels(const iso_tensor *x) {
    return x->device->kernels[x->dtype];
}
// ISO_ERR_UNSUPPORTED unless the device computes in this type.
iso_status iso__device_check_dtype(const iso_device *device, iso_dtype dtype);
// Copies `count` contiguous elements in the device's memory to another type, rounded to nearest.
iso_status iso__device_convert(iso_device *device, int64_t count, iso_dtype from_dtype,
                               const void *from, iso_dtype to_dtype, void *to);

// Host memory with undefined contents, pinned if the device has remote_ops. Copies from and to it
// must be complete before it is freed. Use pin() itself only for existing memory of whole pages, as
// no page may be pinned twice.
iso_status iso__pinned_alloc(iso_device *device, size_t bytes, void **out);
void iso__pinned_free(iso_device *device, void *memory); // accepts NULL
// Pins the pages of a mapping that nothing else pins. The device has remote_ops.
iso_status iso__pin_pages(iso_device *device, void *memory, size_t bytes);
void iso__unpin_pages(iso_device *device, void *memory);

// Backends, listed once in device.c. text: what followed the name and a colon; "" if there was
// nothing.
iso_status iso__device_create_cpu(const char *text, iso_device **out);
iso_status iso__device_create_cuda(const char *text, iso_device **out);
// The number of devices; 0 on any error.
int iso__device_count_cpu(void);
int iso__device_count_cuda(void);

#endif
