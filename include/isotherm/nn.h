// Modules: layers with parameters, containers, losses, and the table through which a user adds a
// layer. nn is local: nothing in this header communicates.
#ifndef ISOTHERM_NN_H
#define ISOTHERM_NN_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_module iso_module;

// ---- Random streams -------------------------------------------------------------------------------

// Source of initial values and dropout masks. Each parameter of a layer and each dropout takes the
// next stream at creation, so a model built by the same calls from the same seed is the same
// everywhere. Start with
// {.seed = s}.
typedef struct iso_rng {
    uint64_t seed;
    uint64_t next_stream;
} iso_rng;

// ---- Parameters -----------------------------------------------------------------------------------

typedef struct iso_parameter {
    const char *name;   // local, e.g. "weight"; owned by the module
    iso_tensor *value;  // logical layout; read by layers; others go through iso_parameter_value
    iso_tensor *grad;   // same shape and type; may be a view of a communication buffer
    bool requires_grad; // false: frozen, its gradient is neither computed nor exchanged
    bool grad_valid;    // false: the gradient is zero and the next backward overwrites its memory
    // Set by a wrapper that updates lazily: completes what is pending for this parameter.
    iso_status (*complete)(void *user, struct iso_parameter *parameter);
    void *complete_user;
    int optimizers; // that keep state for it, which has its element type
    int references; // modules that use it: more than one where it is tied, see iso_module_tie
    // Set by a wrapper that wants the gradient in pieces, each as early as may be, and updates the
    // value in pieces; else NULL.
    const struct iso_pieces *pieces;
} iso_parameter;

// Local, but collective when the module is wrapped by data_parallel: completes a pending update
// first. The tensor is borrowed from the parameter.
iso_status iso_parameter_value(iso_parameter *parameter, iso_tensor **out);
// The same for the gradient; a gradient that is logically zero is written as zeros first.
iso_status iso_parameter_grad(iso_parameter *parameter, iso_tensor **out);

// Makes both modules use one parameter (PyTorch: module.weight = other.weight): parameter `name` of
// module becomes `other_name` of other, with its value, gradient and requires_grad; what module had
// is dropped. Names may go below ("encoder.weight"). Gradients of all uses add up. Before wrapping
// and before any optimizer (ISO_ERR_STATE); of one shape and type (ISO_ERR_SHAPE, ISO_ERR_TYPE).
// ISO_ERR_UNSUPPORTED if module's table has no `tied`. A wrapper, and iso_module_to, take all
// modules that share a parameter or none (ISO_ERR_STATE).
iso_status iso_module_tie(iso_module *module, const char *name, iso_module *other,
                          const char *other_name);

// Parameters of a module and everything below it, in registration order, each once (shared and tied
// ones appear under their first name), with PyTorch-style names ("conv1.weight"); wrappers add no
// prefix.
typedef struct iso_parameter_list {
    int count;
    iso_parameter **item;
    char **name;
    iso_module **owner; // the module that holds item[i]: one owner = one layer
} iso_parameter_list;

iso_status iso_module_parameters(iso_module *module, iso_parameter_list *out);
void iso_parameter_list_destroy(iso_parameter_list *list);
// Sets grad_valid = false on all: costs nothing, touches no buffer (an exchange may be in flight).
void iso_module_zero_grad(iso_module *module);
// Sum of element counts, shared parameters once; -1 when out of memory.
int64_t iso_module_parameter_count(iso_module *module);

// ---- Buffers --------------------------------------------------------------------------------------

// What a layer keeps and saves besides its parameters, and what no optimizer changes: running
// statistics, a count. PyTorch's register_buffer.
typedef struct iso_buffer {
    const char *name;  // local, e.g. "running_mean"; owned by the module
    iso_tensor *value; // logical; changed by training forwards
} iso_buffer;

// Buffers of a module and everything below it, in registration order, each once, named like
// parameters.
typedef struct iso_buffer_list {
    int count;
    iso_buffer **item;
    char **name;
} iso_buffer_list;

iso_status iso_module_buffers(iso_module *module, iso_buffer_list *out);
void iso_buffer_list_destroy(iso_buffer_list *list);

// ---- Modules --------------------------------------------------------------------------------------

// Activation that a container fuses into the layer before it.
typedef enum iso_activation { ISO_ACT_NONE, ISO_ACT_RELU } iso_activation;

// What one forward call leaves for its backward. Buffers belong to the module and are reused.
typedef struct iso_call {
    iso_tensor *in; // borrowed: the caller's input, valid until backward
    iso_tensor *out,
        *grad_in;         // owned by the call, NULL until first used; resize with iso_call_tensor
    iso_tensor *aux[2];   // the same, for whatever the layer needs (workspace, a view)
    iso_tensor *result;   // borrowed: what forward returned; set by the dispatcher
    iso_tensor *grad_out; // owned, the dispatcher's: a gradient brought into the layout of result
    iso_activation activation; // fused after this layer, ISO_ACT_NONE otherwise
    uint64_t number; // counts the training forwards of this module from 1; 0 in evaluation
} iso_call;

// The table of a layer. Only `type`, `forward` and, for training, `backward_input` are required.
// What fails says why by iso_error_set. Outputs and gradients have the type of the call's input
// (the gradient of the input, its), as iso_call_tensor gives it, and lie on the module's device,
// else ISO_ERR_TYPE names this layer; so do ISO_ERR_STATE where nothing is given, and ISO_ERR_SHAPE
// for a gradient that is not of the input's shape.
typedef struct iso_module_ops {
    const char *type; // as PyTorch spells it, "Linear"
    // Reads `in`, sets *out to a tensor the call owns (or a view). training is self->training.
    iso_status (*forward)(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out);
    // Writes parameter gradients: overwrites where !grad_valid, else accumulates, for each
    // parameter that requires_grad; the dispatcher sets grad_valid. May modify grad_out in place
    // (e.g. to apply the fused activation's derivative); backward_input is called right after it
    // with the same grad_out. NULL where there are no parameters. It is called even if all
    // parameters are frozen and input gradients are wanted.
    iso_status (*backward_params)(iso_module *self, iso_call *call, iso_tensor *grad_out);
    // Gradient with respect to the input, in the layout of the input. May be grad_out itself,
    // changed in place.
    iso_status (*backward_input)(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in);
    // Containers, and layers that compute both at once, do their whole backward here instead of in
    // the two above; grad_in NULL: not wanted.
    iso_status (*backward)(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in);
    // After self->training has changed and before children are told (wrappers complete pending
    // work).
    iso_status (*train)(iso_module *self, bool training);
    // parameter[] holds another one (iso_module_tie): to be taken over into pointers of its own.
    // NULL: the layer's parameters cannot be replaced.
    void (*tied)(iso_module *self);
    // Frees what the concrete type added; parameters, calls and children are freed by the base.
    void (*destroy)(iso_module *self);
    // forward applies call->activation; backward_params, or backward, or without parameters
    // backward_input its derivative
    bool fuses_relu;
    bool awaits_pieces; // forward waits itself for parameters that are updated in pieces
    bool relu_commutes; // a relu before it may be applied behind it: to a maximum, for less work
    // Forward and backward handle activations of bf16 (iso_autocast_create_take) beside parameters
    // of f32, a container by handing them on. Others are refused such input.
    bool takes_bf16;
    // Forward changes no parameter, here or elsewhere. Where that holds for all modules below an
    // Autocast, it rounds their parameters in one launch before its forward begins.
    bool keeps_parameters;
} iso_module_ops;

// Hooks that a wrapper puts on a module. Any may be NULL.
typedef struct iso_module_hooks {
    iso_status (*before_forward)(iso_module *module,
                                 void *user); // its parameters are about to be read
    // All parameter gradients of this module are final for this backward (after the last use of a
    // module that was used twice); called before the input gradient is computed, but after it in
    // modules that have `backward` in their table.
    iso_status (*gradient_ready)(iso_module *module, void *user);
    // Whether before_forward would leave the parameters of this module as they are now, so that
    // they may be read earlier; where it would not, it leaves those alone for which this is true.
    // NULL: not known.
    bool (*is_current)(const iso_module *module, void *user);
    void *user;
} iso_module_hooks;

struct iso_module {
    const iso_module_ops *ops;
    iso_device *device;
    const char *name;      // last part of its name in its first container; "" for a root
    iso_dtype dtype;       // of its parameters and buffers; without any, of its latest input
    iso_dtype activations; // type of the input of the call that runs: dtype, or bf16 beside f32
    bool training;         // true at creation
    int references;
    int parameter_count, buffer_count, child_count;
    iso_parameter **parameter;
    const char **parameter_name; // local; a tied one may have another name where it comes from
    iso_buffer **buffer;
    iso_module **child;
    const char **child_name;
    iso_module_hooks hooks;
    iso_call **call; // stack of calls since the last root forward; [depth) await their backward
    int call_depth, call_capacity;
    uint64_t forward_number;
    int64_t first_row;        // global row of row 0 of the batch (random layers), set by
                              // iso_module_set_first_row
    const iso_module *source; // set by a container for the call that comes: who gave its input, as
                              // messages name it; NULL: not known
};

// For authors of layers: allocate a struct whose first member is iso_module (zeroed, e.g. by
// calloc), then init it. iso_module_destroy frees it with free() after ops->destroy.
iso_status iso_module_init(iso_module *module, const iso_module_ops *ops, iso_device *device);
// Adds a zero-filled parameter of the module's type, which is f32 until iso_module_to. A layer may
// put tensors of the other type in place of its value and grad, before anyone has seen them.
iso_status iso_module_add_parameter(iso_module *module, const char *name, int ndim,
                                    const int64_t *shape, iso_parameter **out);
// Adds a zero-filled buffer of f32, f64 or i64. ndim 0 (shape NULL): one number.
iso_status iso_module_add_buffer(iso_module *module, const char *name, iso_dtype dtype, int ndim,
                                 const int64_t *shape, iso_buffer **out);
// Takes one reference of child, on failure too. ISO_ERR_ARG for an empty name, a '.', a name used
// already, a child on another device, or one that contains module.
iso_status iso_module_add_child_take(iso_module *module, const char *name, iso_module *child);
// Creates *slot on first use (on the module's device, of the type of the call's input), then gives
// it this shape and layout.
iso_status iso_call_tensor(iso_module *module, iso_tensor **slot, int ndim, const int64_t *shape,
                           iso_layout layout);

iso_module *iso_module_retain(iso_module *module);
void iso_module_destroy(iso_module **module);

// Root forward: drops what earlier forwards saved below `module`, then calls it. *out is borrowed
// and valid until the next forward of the same root. `in` must stay valid and unchanged until
// backward.
iso_status iso_module_forward(iso_module *module, iso_tensor *in, iso_tensor **out);
// Root backward of the last forward (ISO_ERR_STATE without one, or when the module was in
// evaluation mode). grad_out is consumed: its contents are undefined afterwards. grad_in NULL: not
// wanted (skips the work).
iso_status iso_module_backward(iso_module *module, iso_tensor *grad_out, iso_tensor **grad_in);
// For containers and wrappers: the same for a child, without dropping what is saved. `activation`
// is fused into the child (only if child->ops->fuses_relu).
iso_status iso_module_call(iso_module *child, iso_activation activation, iso_tensor *in,
                           iso_tensor **out);
iso_status iso_module_call_backward(iso_module *child, iso_tensor *grad_out, iso_tensor **grad_in);

// Training (true) or evaluation (false) for the module and everything below it. Evaluation
// completes pending updates of a data_parallel wrapper (then collective).
iso_status iso_module_train(iso_module *module, bool training);
// Makes parameters, gradients and buffers (but counts) of the module and everything below it f32 or
// f64, in which it then computes; values are kept, gradients are not. Layers are f32 at creation.
// Before the module is wrapped or given to an optimizer: ISO_ERR_STATE afterwards. What forwards
// saved for their backward is dropped. Layers of different types are joined by iso_cast_create.
iso_status iso_module_to(iso_module *module, iso_dtype dtype);
// Replaces the hooks of this module only (not of its children); NULL removes them.
void iso_module_set_hooks(iso_module *module, const iso_module_hooks *hooks);
// Tells random layers below which row of the global batch row 0 of the local batch is, so that N
// ranks draw what one rank would on the whole batch. data_parallel does this itself.
void iso_module_set_first_row(iso_module *module, int64_t first_row);

// ---- Layers ---------------------------------------------------------------------------------------
// Weights are initialised as PyTorch does: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weight and bias
// (torch.nn.Linear, torch.nn.Conv2d: kaiming_uniform with a = sqrt(5)).

// torch.nn.init.kaiming_normal_(mode, nonlinearity="relu"): N(0, 2 / fan) from the next stream of
// rng; fan is shape[1] (in) or shape[0] (out) times the elements behind these dimensions.
// ISO_ERR_SHAPE below 2 dimensions. Before the module is wrapped, as every rank must do the same.
typedef enum iso_fan { ISO_FAN_IN, ISO_FAN_OUT } iso_fan;
iso_status iso_init_kaiming_normal(iso_parameter *parameter, iso_fan fan, iso_rng *rng);

// y[N, out] = x[N, in] weight[out, in]^T + bias[out]
iso_status iso_linear_create(iso_device *device, int64_t in_features, int64_t out_features,
                             bool bias, iso_rng *rng, iso_module **out);

typedef struct iso_conv2d_config {
    int64_t in_channels, out_channels;
    int64_t kernel_size[2];        // height, width
    int64_t stride[2], padding[2]; // 0 in stride means 1
    bool no_bias;
    int64_t dilation[2]; // distance of the kernel's taps; 0 means 1
    int64_t groups;      // output channels see the input channels of their group; 0 means 1
} iso_conv2d_config;
// x[N, C, H, W] -> y[N, out, (H + 2p - d(k - 1) - 1)/s + 1, ...]; weight[out, in / groups, kh, kw],
// cross-correlation.
iso_status iso_conv2d_create(iso_device *device, const iso_conv2d_config *config, iso_rng *rng,
                             iso_module **out);

typedef enum iso_pool_kind {
    ISO_POOL_MAX, // the first maximum of a window wins; padding never does
    ISO_POOL_AVG  // sum over the window, in which padding counts as zeros, divided by its size
} iso_pool_kind;
typedef struct iso_pool2d_config {
    int64_t kernel_size[2];        // height, width of the window
    int64_t stride[2], padding[2]; // 0 in stride means kernel_size; padding at most half of it
} iso_pool2d_config;
// x[N, C, H, W] -> y[N, C, (H + 2p - k)/s + 1, ...]
iso_status iso_pool2d_create(iso_device *device, iso_pool_kind kind,
                             const iso_pool2d_config *config, iso_module **out);
// The same with one window and stride for both directions and no padding.
iso_status iso_max_pool2d_create(iso_device *device, int64_t window, int64_t stride,
                                 iso_module **out);
// -> y[N, C, out_height, out_width]: row i is the mean of the rows from floor(i H / out_height) to
// before ceil((i + 1) H / out_height), columns alike. 1 x 1 is the mean of each channel.
iso_status iso_adaptive_avg_pool2d_create(iso_device *device, int64_t out_height, int64_t out_width,
                                          iso_module **out);
iso_status iso_relu_create(iso_device *device, iso_module **out);
iso_status iso_tanh_create(iso_device *device, iso_module **out);
iso_status iso_sigmoid_create(iso_device *device, iso_module **out);
// x Phi(x), Phi the normal distribution function; approximate: PyTorch's approximate = "tanh".
iso_status iso_gelu_create(iso_device *device, bool approximate, iso_module **out);
// [N, ...] -> [N, product]
iso_status iso_flatten_create(iso_device *device, iso_module **out);
// Training: each element (dropout) or each channel of a sample (dropout2d) is 0 with probability p,
// else scaled by 1/(1-p). Masks depend on (seed, stream, forward number, global row, logical index)
// only. 0 <= p < 1.
iso_status iso_dropout_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
iso_status iso_dropout2d_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
// Gives its input in another element type, and gradients back in the input's: between a layer of
// f32 and one of f64.
// To bf16: the layers behind it then take and give bf16, see iso_autocast_create_take.
iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out);
// Over the last dimension of [N, K].
iso_status iso_log_softmax_create(iso_device *device, iso_module **out);
// Over the last dimension of any shape.
iso_status iso_softmax_create(iso_device *device, iso_module **out);

typedef struct iso_batch_norm_config {
    int64_t num_features;    // C
    double eps;              // 0 means 1e-5
    double momentum;         // weight of the new batch in running statistics; 0 means 0.1
    bool cumulative_average; // equal weight for all batches instead (PyTorch's momentum = None)
    bool no_affine;          // no weight and bias
    bool no_running_stats;   // no buffers: evaluation takes the statistics of its batch too
} iso_batch_norm_config;
// y = (x - mean) / sqrt(var + eps) * weight + bias with the mean and biased variance of each
// channel over the batch of this rank (over all ranks': sync_batchnorm.h) in training, with
// running_mean and running_var (which average the unbiased variance) in evaluation. 1d takes [N, C]
// and [N, C, L], 2d [N, C, H, W]; ISO_ERR_SHAPE for one value per channel in training. weight
// starts as 1, bias as 0; buffers running_mean, running_var, num_batches_tracked (i64).
iso_status iso_batch_norm1d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out);
iso_status iso_batch_norm2d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out);

typedef struct iso_layer_norm_config {
    int ndim; // of what is normalised: the last dimensions
    int64_t normalized_shape[ISO_MAX_DIMS];
    double eps;     // 0 means 1e-5
    bool no_affine; // no weight and bias
} iso_layer_norm_config;
// y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions of each sample, biased
// variance; weight (1 at first) and bias (0) have the shape of what is normalised.
iso_status iso_layer_norm_create(iso_device *device, const iso_layer_norm_config *config,
                                 iso_module **out);

// Children run one after the other; a relu after a linear, conv2d or batch norm is fused into it.
// Names default to "0", "1", ... when name is NULL. The same module may be added again (retain it
// first).
iso_status iso_sequential_create(iso_device *device, iso_module **out);
iso_status iso_sequential_add_take(iso_module *sequential, const char *name, iso_module *module);

// y = body(x) + shortcut(x), through a relu if asked for. shortcut NULL: x itself. Children as in
// torchvision's blocks: those of body have no prefix ("conv1.weight"), shortcut is "downsample"
// ("downsample.0.weight"). Takes one reference of both, on failure too; *out is NULL then.
// ISO_ERR_SHAPE in forward when the two do not have the same shape.
iso_status iso_residual_create_take(iso_device *device, iso_module *body, iso_module *shortcut,
                                    bool relu, iso_module **out);

// Mixed precision (torch.autocast): hands its input on to module in bf16, the only dtype, and gives
// what module makes of it in the input's type, so that losses stay f32; gradients likewise. In
// between, activations and their gradients are bf16: layers round what they give, and linear layers
// and convolutions round their weights and biases, for each forward. Parameters, their gradients,
// what optimizers keep, statistics and sums stay f32. module is of f32 (ISO_ERR_TYPE), and its
// parameters keep their names; one may be tied to a parameter outside. data_parallel and its
// relatives go around it (ISO_ERR_STATE). Takes one reference of module, on failure too.
// ISO_ERR_UNSUPPORTED where the device has no kernels for bf16 (the CPU).
iso_status iso_autocast_create_take(iso_module *module, iso_dtype dtype, iso_module **out);
// keep: in training an Autocast gives what its module gave as it is, in bf16, and takes a gradient
// of that type, for where a loss comes next: two kernels less in a step, and the same bits. Such a
// gradient cannot be scaled. What it gives in evaluation mode is of the input's type as ever.
// ISO_ERR_ARG for any other module.
iso_status iso_autocast_keep_output(iso_module *autocast, bool keep);

typedef enum iso_layer_kind {
    ISO_LINEAR,
    ISO_CONV2D,
    ISO_MAX_POOL2D,
    ISO_AVG_POOL2D,
    ISO_ADAPTIVE_AVG_POOL2D,
    ISO_FLATTEN,
    ISO_DROPOUT,
    ISO_BATCH_NORM, // 1d behind a flatten, else 2d
    ISO_LAYER_NORM, // over all of a sample
    ISO_TANH,
    ISO_SIGMOID,
    ISO_GELU
} iso_layer_kind;
// A layer of a list; how much it takes in follows from the layers before it.
typedef struct iso_layer {
    iso_layer_kind kind;
    int64_t out;      // features of a linear, channels of a conv2d; biases are always there
    int64_t size;     // of the square kernel or window; of the output of an adaptive pool
    int64_t stride;   // 0: 1 for a conv2d, the window's size for a pool
    int64_t padding;  // of a conv2d or pool
    double p;         // dropout
    bool relu;        // a relu follows, a child of its own
    const char *name; // NULL: its number, as in iso_sequential_add_take
} iso_layer;
// A sequential of these layers for samples of [channels, height, width]. ISO_ERR_SHAPE names the
// layer that cannot take what the one before it gives, and what that is.
iso_status iso_sequential_build(iso_device *device, const int64_t sample[3],
                                const iso_layer *layers, int count, iso_rng *rng, iso_module **out);

// ---- Losses ---------------------------------------------------------------------------------------

typedef enum iso_loss_kind {
    ISO_CROSS_ENTROPY, // logits[N, K]: mean over N of -log_softmax(logits)[label]
    ISO_NLL,           // log-probabilities[N, K]: mean over N of -x[label]
    ISO_MSE            // mean over all elements of (x - target)^2
} iso_loss_kind;
typedef struct iso_loss iso_loss;

typedef struct iso_loss_config {
    iso_loss_kind kind;
    // Of ISO_CROSS_ENTROPY, 0 to 1, torch.nn.CrossEntropyLoss's: the target distribution is 1 - s
    // at the label, plus s / K everywhere. 0 for other kinds.
    double label_smoothing;
} iso_loss_config;

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out);
iso_status iso_loss_create_with(iso_device *device, const iso_loss_config *config, iso_loss **out);
// output: [N, K], f32 or f64, on a GPU also bf16, from which everything is computed as from f32 and
// the gradient rounded. The targets of ISO_MSE are 1 at the label and 0 elsewhere.
// labels: N host integers in [0, K), else ISO_ERR_ARG naming the row. *value is the mean over the
// batch, *correct the rows whose largest entry (first one on a tie) is the label. Either may be
// NULL; where both are, the call does not wait for a device that computes beside the host: ask with
// iso_loss_value later. *grad (NULL: not wanted) is the gradient of the mean, owned by the loss,
// valid until its next call.
iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad);
// The same for ISO_MSE and targets of the output's shape and type (f32 for bf16 too), whatever they
// are.
iso_status iso_loss_compute_tensor(iso_loss *loss, iso_tensor *output, iso_tensor *target,
                                   double *value, iso_tensor **grad);
// Of the last computation; waits for it. correct: of labels only (ISO_ERR_STATE). Either may be
// NULL.
iso_status iso_loss_value(iso_loss *loss, double *value, int64_t *correct);
void iso_loss_destroy(iso_loss **loss);

#ifdef __cplusplus
}
#endif
#endif
