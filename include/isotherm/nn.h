// SPDX-License-Identifier: MIT
// Modules: layers with parameters, containers, losses, and the table of functions that defines a
// new layer. Every call in this header is local unless a data_parallel wrapper makes it collective.
#ifndef ISOTHERM_NN_H
#define ISOTHERM_NN_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_module iso_module;

// ---- Random streams -------------------------------------------------------------------------------

// Source of initial values and dropout masks. Initialise it as {.seed = s}. Each parameter that is
// drawn at random and each dropout layer takes the next stream at creation. The same calls with the
// same seed therefore build the same model on every machine.
typedef struct iso_rng {
    uint64_t seed;
    uint64_t next_stream;
} iso_rng;

// ---- Parameters -----------------------------------------------------------------------------------

typedef struct iso_parameter {
    const char *name;   // local name, e.g. "weight"; owned by the module
    iso_tensor *value;  // logical layout; only layers read it directly, see iso_parameter_value
    iso_tensor *grad;   // shape and type of value; may be a view of a communication buffer
    bool requires_grad; // false: frozen, its gradient is neither computed nor exchanged
    bool grad_valid;    // false: the gradient is zero, and the next backward overwrites its memory
    // Set by a wrapper that updates lazily: completes the pending work on this parameter.
    iso_status (*complete)(void *user, struct iso_parameter *parameter);
    void *complete_user;
    int optimizers; // number of optimizers with state for it; that state has its element type
    int references; // number of modules that use it; above 1 for a tied one, see iso_module_tie
    // Set by a wrapper that exchanges and updates this parameter in pieces; else NULL.
    const struct iso_pieces *pieces;
} iso_parameter;

// Completes a pending update and returns the value. Local, but collective if data_parallel wraps
// the module. The tensor is borrowed from the parameter.
iso_status iso_parameter_value(iso_parameter *parameter, iso_tensor **out);
// Likewise for the gradient. If grad_valid is false, fills the gradient with zeros first.
iso_status iso_parameter_grad(iso_parameter *parameter, iso_tensor **out);

// Ties two parameters (PyTorch: module.weight = other.weight). Parameter `name` of module becomes
// `other_name` of other, with its value, gradient and requires_grad. The previous parameter of
// module is released. A name may be a path ("encoder.weight"). The gradients of all uses are
// summed. ISO_ERR_STATE once a parameter is wrapped or has an optimizer; ISO_ERR_SHAPE or
// ISO_ERR_TYPE if shapes, types or devices differ; ISO_ERR_UNSUPPORTED if the table of module has
// no `tied`. ISO_ERR_ARG for an unknown name or two parameters of one module. Pass wrappers and
// iso_module_to a module that contains all modules sharing the parameter; otherwise they return
// ISO_ERR_STATE.
iso_status iso_module_tie(iso_module *module, const char *name, iso_module *other,
                          const char *other_name);

// The parameters of a module and of all modules below it, in registration order, with PyTorch's
// names ("conv1.weight"). A shared or tied parameter is listed once, under its first name. Wrappers
// add no prefix.
typedef struct iso_parameter_list {
    int count;
    iso_parameter **item;
    char **name;
    iso_module **owner; // the module that holds item[i]; all parameters of a layer have one owner
} iso_parameter_list;

// The caller frees *out with iso_parameter_list_destroy. Parameters remain owned by their modules.
iso_status iso_module_parameters(iso_module *module, iso_parameter_list *out);
void iso_parameter_list_destroy(iso_parameter_list *list);
// Sets grad_valid = false on all parameters. It writes no gradient memory, so an exchange may be in
// flight.
void iso_module_zero_grad(iso_module *module);
// The number of elements of all parameters. Shared ones count once. -1 if out of memory.
int64_t iso_module_parameter_count(iso_module *module);

// ---- Buffers --------------------------------------------------------------------------------------

// State of a layer that is saved but not trained, such as running statistics (PyTorch:
// register_buffer).
typedef struct iso_buffer {
    const char *name;  // local name, e.g. "running_mean"; owned by the module
    iso_tensor *value; // logical layout; training forwards change it
} iso_buffer;

// The buffers of a module and of all modules below it, in registration order, each once. Names are
// formed as for parameters.
typedef struct iso_buffer_list {
    int count;
    iso_buffer **item;
    char **name;
} iso_buffer_list;

// The caller frees *out with iso_buffer_list_destroy.
iso_status iso_module_buffers(iso_module *module, iso_buffer_list *out);
void iso_buffer_list_destroy(iso_buffer_list *list);

// ---- Modules --------------------------------------------------------------------------------------

// Activation that a container fuses into an adjacent layer.
typedef enum iso_activation { ISO_ACT_NONE, ISO_ACT_RELU } iso_activation;

// What one forward call saves for its backward. The module owns and reuses calls and their tensors.
typedef struct iso_call {
    iso_tensor *in; // borrowed from the caller; valid until backward
    iso_tensor *out,
        *grad_in;         // owned by the call; NULL until iso_call_tensor creates them
    iso_tensor *aux[2];   // likewise, for the layer's own use, e.g. a workspace or a view
    iso_tensor *result;   // borrowed: the output of forward; set by iso_module_call
    iso_tensor *grad_out; // owned: copy of a gradient in the layout of result, made if they differ
    iso_activation activation; // fused into this layer; ISO_ACT_NONE: none
    uint64_t number; // number of this training forward of the module, from 1; 0 in evaluation
} iso_call;

// The table of functions of a layer. `type` and `forward` are required; training also needs
// `backward_input` or `backward`. A function that fails describes the error with iso_error_set.
//
// Outputs lie on the module's device and have the type of the call's input. The gradient of the
// input lies there too and has the type and shape of the input. iso_call_tensor creates such
// tensors. The library checks every result and names the layer: ISO_ERR_TYPE for a wrong type or
// device, ISO_ERR_STATE for a missing result, ISO_ERR_SHAPE for a gradient of another shape.
typedef struct iso_module_ops {
    const char *type; // PyTorch's name of the layer, e.g. "Linear"
    // Reads `in` and sets *out to a tensor owned by the call, or to a view. self->training tells
    // training from evaluation.
    iso_status (*forward)(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out);
    // Writes the gradient of each parameter that requires one: overwrites it if !grad_valid, else
    // accumulates. The library sets grad_valid afterwards. May modify grad_out in place, e.g. to
    // apply the derivative of a fused activation; backward_input then receives the modified tensor.
    // Also called if all parameters are frozen but the gradient of the input is wanted. NULL: the
    // layer has no parameters.
    iso_status (*backward_params)(iso_module *self, iso_call *call, iso_tensor *grad_out);
    // Computes the gradient of the input, in the layout of the input. *grad_in may be grad_out
    // itself, modified in place.
    iso_status (*backward_input)(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in);
    // Replaces the two functions above in containers and in layers that compute both gradients
    // together. grad_in NULL: the gradient of the input is not wanted.
    iso_status (*backward)(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in);
    // Called after self->training was set and before the children are. Wrappers complete pending
    // work here.
    iso_status (*train)(iso_module *self, bool training);
    // Called after iso_module_tie replaced an entry of parameter[]: updates the layer's own
    // pointers. NULL: the parameters of this layer cannot be replaced.
    void (*tied)(iso_module *self);
    // Frees what the concrete type allocated. The library frees parameters, calls and children.
    void (*destroy)(iso_module *self);
    // forward applies call->activation. Its derivative is left to one other function: to backward
    // if the table has it, else to backward_params if the table has that, else to backward_input.
    bool fuses_relu;
    bool awaits_pieces; // forward itself waits for parameters that are updated in pieces
    bool relu_commutes; // a preceding relu may be applied to the output instead, as for a maximum
    // Forward and backward accept bf16 activations (iso_autocast_create_take) with f32 parameters.
    // A container passes them on. Without it, bf16 input is ISO_ERR_TYPE.
    bool takes_bf16;
    // Forward changes no parameter of any module. If this holds for all modules below an Autocast,
    // the Autocast rounds all their parameters in one launch before its forward.
    bool keeps_parameters;
} iso_module_ops;

// Hooks that a wrapper installs on a module. Each may be NULL.
typedef struct iso_module_hooks {
    iso_status (*before_forward)(iso_module *module,
                                 void *user); // forward is about to read the parameters
    // The gradients of this module's own parameters are final for this backward. If forward used
    // the module several times, called once, in the last of these backwards. Called before the
    // gradient of the input is computed; in modules with `backward`, after it.
    iso_status (*gradient_ready)(iso_module *module, void *user);
    // Returns true if the parameters of this module are current: no pending before_forward, of this
    // or another module, will change them. They may then be read before forward. NULL: not known.
    bool (*is_current)(const iso_module *module, void *user);
    void *user;
} iso_module_hooks;

struct iso_module {
    const iso_module_ops *ops;
    iso_device *device;
    const char *name;      // last component of its name in its first container; "" for a root
    iso_dtype dtype;       // of parameters and buffers; without any, of the latest input
    iso_dtype activations; // type of the input of the current call: dtype, or bf16 if dtype is f32
    bool training;         // true at creation
    int references;
    int parameter_count, buffer_count, child_count;
    iso_parameter **parameter;
    const char **parameter_name; // local names; the other owner of a tied one may use another name
    iso_buffer **buffer;
    iso_module **child;
    const char **child_name;
    iso_module_hooks hooks;
    iso_call **call;               // stack of calls since the last root forward
    int call_depth, call_capacity; // calls that await their backward; room of the stack
    uint64_t forward_number;
    // Row of the global batch that is row 0 of the local one, see iso_module_set_first_row.
    int64_t first_row;
    // Set by a container for the next call: the module that produced its input, for error messages.
    // NULL: not known.
    const iso_module *source;
};

// For authors of layers. Allocate a zeroed struct (calloc) whose first member is an iso_module,
// then initialise it. iso_module_destroy calls ops->destroy and then frees the struct with free().
iso_status iso_module_init(iso_module *module, const iso_module_ops *ops, iso_device *device);
// Adds a parameter of zeros with the module's type, which is f32 until iso_module_to. Right after
// this call a layer may replace value and grad by tensors of the other type. ISO_ERR_ARG for an
// empty name, a '.' in it, or a name in use.
iso_status iso_module_add_parameter(iso_module *module, const char *name, int ndim,
                                    const int64_t *shape, iso_parameter **out);
// Adds a buffer of zeros of type f32, f64 or i64. ndim 0 (shape NULL): a scalar. Same errors.
iso_status iso_module_add_buffer(iso_module *module, const char *name, iso_dtype dtype, int ndim,
                                 const int64_t *shape, iso_buffer **out);
// Adds a child. Takes one reference of child, also on failure. ISO_ERR_ARG for an empty name, a '.'
// in it, a name in use, a child on another device, or a child that contains module.
iso_status iso_module_add_child_take(iso_module *module, const char *name, iso_module *child);
// Creates *slot on first use, on the module's device and with the type of the call's input. Then
// resizes it to this shape and layout.
iso_status iso_call_tensor(iso_module *module, iso_tensor **slot, int ndim, const int64_t *shape,
                           iso_layout layout);

iso_module *iso_module_retain(iso_module *module);
void iso_module_destroy(iso_module **module);

// Root forward: discards what earlier forwards saved below `module`, then runs it. *out is borrowed
// and valid until the next forward of the same root. `in` must stay valid and unchanged until
// backward.
iso_status iso_module_forward(iso_module *module, iso_tensor *in, iso_tensor **out);
// Root backward of the last forward. grad_out is consumed: its contents are undefined afterwards.
// *grad_in is borrowed; grad_in NULL: not wanted, and not computed. ISO_ERR_STATE if there was no
// forward or it ran in evaluation mode.
iso_status iso_module_backward(iso_module *module, iso_tensor *grad_out, iso_tensor **grad_in);
// For containers and wrappers: forward and backward of a child. They discard nothing that is saved.
// `activation` is fused into the child, which needs ops->fuses_relu (else ISO_ERR_ARG).
iso_status iso_module_call(iso_module *child, iso_activation activation, iso_tensor *in,
                           iso_tensor **out);
iso_status iso_module_call_backward(iso_module *child, iso_tensor *grad_out, iso_tensor **grad_in);

// Sets training (true) or evaluation mode (false) for the module and all modules below it. A
// data_parallel wrapper completes pending updates when it enters evaluation mode; the call is then
// collective.
iso_status iso_module_train(iso_module *module, bool training);
// Converts the parameters and buffers of the module and all modules below it to f32 or f64, in
// which the module then computes. Values are kept. Gradients become zero, and what forwards saved
// for their backward is discarded. i64 buffers are unchanged. Layers are f32 at creation; connect
// layers of different types with iso_cast_create. ISO_ERR_STATE once the module is wrapped or given
// to an optimizer.
iso_status iso_module_to(iso_module *module, iso_dtype dtype);
// Replaces the hooks of this module, but not those of its children. NULL removes them.
void iso_module_set_hooks(iso_module *module, const iso_module_hooks *hooks);
// Tells dropout layers below which row of the global batch is row 0 of the local batch, so that N
// ranks draw the masks that one rank would draw for the whole batch. data_parallel calls this.
void iso_module_set_first_row(iso_module *module, int64_t first_row);

// ---- Layers ---------------------------------------------------------------------------------------
// Linear and convolution layers are initialised as PyTorch's: weight and bias from
// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (torch.nn.Linear, torch.nn.Conv2d: kaiming_uniform_ with a =
// sqrt(5)).

typedef enum iso_fan { ISO_FAN_IN, ISO_FAN_OUT } iso_fan;
// Draws the value from N(0, 2 / fan), with the next stream of rng. This is
// torch.nn.init.kaiming_normal_(mode, nonlinearity="relu"). fan is shape[1] (ISO_FAN_IN) or
// shape[0] (ISO_FAN_OUT), times the product of the dimensions after these two. Call it on every
// rank before the module is wrapped. ISO_ERR_SHAPE below 2 dimensions.
iso_status iso_init_kaiming_normal(iso_parameter *parameter, iso_fan fan, iso_rng *rng);

// y[N, out] = x[N, in] weight[out, in]^T + bias[out]
iso_status iso_linear_create(iso_device *device, int64_t in_features, int64_t out_features,
                             bool bias, iso_rng *rng, iso_module **out);

typedef struct iso_conv2d_config {
    int64_t in_channels, out_channels;
    int64_t kernel_size[2];        // height, width
    int64_t stride[2], padding[2]; // stride 0 means 1
    bool no_bias;
    int64_t dilation[2]; // spacing between kernel elements; 0 means 1
    int64_t groups;      // each output channel sees the input channels of its group; 0 means 1
} iso_conv2d_config;
// Cross-correlation (torch.nn.Conv2d): x[N, C, H, W] -> y[N, out, (H + 2p - d(k - 1) - 1)/s + 1,
// ...], with weight[out, in / groups, kh, kw].
iso_status iso_conv2d_create(iso_device *device, const iso_conv2d_config *config, iso_rng *rng,
                             iso_module **out);

typedef enum iso_pool_kind {
    ISO_POOL_MAX, // maximum of the window, on a tie its first element; never the padding
    ISO_POOL_AVG  // sum of the window divided by its size; padding counts as zeros
} iso_pool_kind;
typedef struct iso_pool2d_config {
    int64_t kernel_size[2];        // height, width of the window
    int64_t stride[2], padding[2]; // stride 0 means kernel_size; padding: at most half of it
} iso_pool2d_config;
// x[N, C, H, W] -> y[N, C, (H + 2p - k)/s + 1, ...]
iso_status iso_pool2d_create(iso_device *device, iso_pool_kind kind,
                             const iso_pool2d_config *config, iso_module **out);
// Max pooling with a square window, the same stride in both directions (at least 1), and no
// padding.
iso_status iso_max_pool2d_create(iso_device *device, int64_t window, int64_t stride,
                                 iso_module **out);
// torch.nn.AdaptiveAvgPool2d: x[N, C, H, W] -> y[N, C, out_height, out_width]. Output row i is the
// mean of input rows floor(i H / out_height) to ceil((i + 1) H / out_height) - 1; columns likewise.
// 1 x 1 is the mean of each channel.
iso_status iso_adaptive_avg_pool2d_create(iso_device *device, int64_t out_height, int64_t out_width,
                                          iso_module **out);
iso_status iso_relu_create(iso_device *device, iso_module **out);
iso_status iso_tanh_create(iso_device *device, iso_module **out);
iso_status iso_sigmoid_create(iso_device *device, iso_module **out);
// x Phi(x), with Phi the standard normal distribution function. approximate: PyTorch's approximate
// = "tanh".
iso_status iso_gelu_create(iso_device *device, bool approximate, iso_module **out);
// [N, ...] -> [N, product of the other dimensions]
iso_status iso_flatten_create(iso_device *device, iso_module **out);
// In training, sets each element (dropout) or each channel of a sample (dropout2d, [N, C, H, W]) to
// 0 with probability p and multiplies the others by 1/(1-p). Takes one stream of rng. A mask
// depends only on seed, stream, forward number, global row and logical index. 0 <= p < 1.
iso_status iso_dropout_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
iso_status iso_dropout2d_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
// Converts its input to another element type, and gradients back to the type of the input. Put it
// between an f32 layer and an f64 one. With dtype ISO_BF16 (GPUs only) the layers after it have
// bf16 activations, see iso_autocast_create_take.
iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out);
// Log-softmax over the last dimension of [N, K].
iso_status iso_log_softmax_create(iso_device *device, iso_module **out);
// Softmax over the last dimension of any shape.
iso_status iso_softmax_create(iso_device *device, iso_module **out);

typedef struct iso_batch_norm_config {
    int64_t num_features;    // C
    double eps;              // 0 means 1e-5
    double momentum;         // weight of the current batch in running statistics; 0 means 0.1
    bool cumulative_average; // weight all batches equally instead (PyTorch: momentum = None)
    bool no_affine;          // no weight and bias (PyTorch: affine = False)
    bool no_running_stats;   // no buffers: evaluation uses the statistics of its own batch
} iso_batch_norm_config;
// y = (x - mean) / sqrt(var + eps) * weight + bias, per channel. Training uses the mean and the
// biased variance of this rank's batch (sync_batchnorm.h: of the batches of all ranks). Evaluation
// uses running_mean and running_var; running_var averages the unbiased variance. 1d takes [N, C]
// and [N, C, L], 2d takes [N, C, H, W]. weight starts as 1, bias as 0. Buffers: running_mean (0 at
// first), running_var (1), num_batches_tracked (i64). ISO_ERR_SHAPE for another shape, or if this
// rank's batch has one value per channel and its statistics are used.
iso_status iso_batch_norm1d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out);
iso_status iso_batch_norm2d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out);

typedef struct iso_layer_norm_config {
    int ndim; // number of trailing dimensions that are normalised
    int64_t normalized_shape[ISO_MAX_DIMS];
    double eps;     // 0 means 1e-5
    bool no_affine; // no weight and bias
} iso_layer_norm_config;
// y = (x - mean) / sqrt(var + eps) * weight + bias, with the mean and the biased variance over the
// last ndim dimensions. weight (1 at first) and bias (0) have normalized_shape.
iso_status iso_layer_norm_create(iso_device *device, const iso_layer_norm_config *config,
                                 iso_module **out);

// Runs its children one after the other. A relu is fused into the linear, conv2d or batch norm
// before it, or into the max pooling next to it.
iso_status iso_sequential_create(iso_device *device, iso_module **out);
// Appends a child; name NULL: its index ("0", "1", ...). Takes one reference of module, also on
// failure. To add a module twice, retain it first.
iso_status iso_sequential_add_take(iso_module *sequential, const char *name, iso_module *module);

// y = body(x) + shortcut(x), followed by a relu if `relu` is true. shortcut NULL: the identity.
// Names are those of torchvision's blocks: children of body have no prefix ("conv1.weight"), the
// shortcut is "downsample" ("downsample.0.weight"). Takes one reference of each, also on failure;
// *out is then NULL. Forward returns ISO_ERR_SHAPE if the two results have different shapes.
iso_status iso_residual_create_take(iso_device *device, iso_module *body, iso_module *shortcut,
                                    bool relu, iso_module **out);

// Mixed precision (torch.autocast). Converts its input to bf16 (the only dtype allowed), runs
// module, and converts the output back to the type of the input, so losses stay f32. Gradients are
// converted in the reverse direction. Inside, activations and their gradients are bf16: layers
// round their outputs, and linear and convolution layers round weight and bias for each forward.
// Parameters, their gradients, optimizer state, statistics and sums stay f32.
//
// module must be f32 (ISO_ERR_TYPE). Its parameters keep their names, and may be tied to parameters
// outside. Create the Autocast first and wrap it in data_parallel afterwards (else ISO_ERR_STATE).
// Takes one reference of module, also on failure. ISO_ERR_UNSUPPORTED if the device has no bf16
// kernels (the CPU).
iso_status iso_autocast_create_take(iso_module *module, iso_dtype dtype, iso_module **out);
// With keep, an Autocast in training returns the output of its module unconverted, in bf16, and
// takes a bf16 gradient. Use it if a loss follows: it saves two kernels per step, and results are
// bitwise identical. A bf16 gradient cannot be scaled (iso_tensor_scale). In evaluation mode the
// output still has the type of the input. ISO_ERR_ARG for any other module.
iso_status iso_autocast_keep_output(iso_module *autocast, bool keep);

typedef enum iso_layer_kind {
    ISO_LINEAR,
    ISO_CONV2D,
    ISO_MAX_POOL2D,
    ISO_AVG_POOL2D,
    ISO_ADAPTIVE_AVG_POOL2D,
    ISO_FLATTEN,
    ISO_DROPOUT,
    ISO_BATCH_NORM, // 1d after a flatten, else 2d
    ISO_LAYER_NORM, // over all dimensions of a sample
    ISO_TANH,
    ISO_SIGMOID,
    ISO_GELU
} iso_layer_kind;
// One layer of iso_sequential_build. Its input size follows from the layers before it.
typedef struct iso_layer {
    iso_layer_kind kind;
    int64_t out;      // linear: output features; conv2d: output channels; both have a bias
    int64_t size;     // of the square kernel or window; adaptive pooling: of the output
    int64_t stride;   // conv2d and pooling; 0 means 1 (conv2d) or the window size (pooling)
    int64_t padding;  // conv2d and pooling
    double p;         // dropout
    bool relu;        // add a relu after the layer, as a child of its own
    const char *name; // NULL: the index of the child, as in iso_sequential_add_take
} iso_layer;
// Builds a sequential from a list of layers, for samples of shape [channels, height, width].
// ISO_ERR_SHAPE if a layer does not fit the output of the previous one; the message names the layer
// and that shape.
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
    // s of torch.nn.CrossEntropyLoss(label_smoothing = s), 0 to 1: the target distribution is 1 - s
    // at the label, plus s / K everywhere. Must be 0 for other kinds.
    double label_smoothing;
} iso_loss_config;

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out);
iso_status iso_loss_create_with(iso_device *device, const iso_loss_config *config, iso_loss **out);
// Computes the loss of output[N, K] for labels, N integers in host memory. *value is the mean over
// the batch. *correct is the number of rows whose maximum (the first one on a tie) is at the label.
// Either may be NULL; with both NULL the call does not wait for a GPU, and iso_loss_value returns
// them later. *grad (NULL: not wanted) is the gradient of the mean; the loss owns it, and it is
// valid until the next call.
//
// output is f32 or f64. On a GPU it may be bf16: the computation is then in f32, and the gradient
// is rounded to bf16. For ISO_MSE the target is 1 at the label and 0 elsewhere. ISO_ERR_ARG for a
// label outside [0, K); the message names the row.
iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad);
// For ISO_MSE only: computes the loss for a target tensor of the shape and type of output. For bf16
// output the target may be f32.
iso_status iso_loss_compute_tensor(iso_loss *loss, iso_tensor *output, iso_tensor *target,
                                   double *value, iso_tensor **grad);
// Waits for the last computation and returns its results. Either pointer may be NULL. ISO_ERR_STATE
// before the first computation, or for correct if that computation had no labels.
iso_status iso_loss_value(iso_loss *loss, double *value, int64_t *correct);
void iso_loss_destroy(iso_loss **loss);

#ifdef __cplusplus
}
#endif
#endif
