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
} iso_parameter;

// Local, but collective when the module is wrapped by data_parallel: completes a pending update
// first. The tensor is borrowed from the parameter.
iso_status iso_parameter_value(iso_parameter *parameter, iso_tensor **out);
// The same for the gradient; a gradient that is logically zero is written as zeros first.
iso_status iso_parameter_grad(iso_parameter *parameter, iso_tensor **out);

// Parameters of a module and everything below it, in registration order, each once (shared modules
// appear under their first name), with PyTorch-style names ("conv1.weight"); wrappers add no
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
    // Containers do their whole backward here instead of the two above; grad_in NULL: not wanted.
    iso_status (*backward)(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in);
    // After self->training has changed and before children are told (wrappers complete pending
    // work).
    iso_status (*train)(iso_module *self, bool training);
    // Frees what the concrete type added; parameters, calls and children are freed by the base.
    void (*destroy)(iso_module *self);
    bool fuses_relu; // forward applies call->activation; backward_params its derivative
} iso_module_ops;

// Hooks that a wrapper puts on a module. Any may be NULL.
typedef struct iso_module_hooks {
    iso_status (*before_forward)(iso_module *module,
                                 void *user); // its parameters are about to be read
    // All parameter gradients of this module are final for this backward (after the last use of a
    // module that was used twice); called before the input gradient is computed.
    iso_status (*gradient_ready)(iso_module *module, void *user);
    void *user;
} iso_module_hooks;

struct iso_module {
    const iso_module_ops *ops;
    iso_device *device;
    const char *name; // last part of its name in its first container; "" for a root
    iso_dtype dtype;  // of its parameters; without any, of its latest input
    bool training;    // true at creation
    int references;
    int parameter_count, buffer_count, child_count;
    iso_parameter **parameter;
    iso_buffer **buffer;
    iso_module **child;
    const char **child_name;
    iso_module_hooks hooks;
    iso_call **call; // stack of calls since the last root forward; [depth) await their backward
    int call_depth, call_capacity;
    uint64_t forward_number;
    int64_t first_row; // global row of row 0 of the batch (random layers), set by
                       // iso_module_set_first_row
};

// For authors of layers: allocate a struct whose first member is iso_module (zeroed, e.g. by
// calloc), then init it. iso_module_destroy frees it with free() after ops->destroy.
iso_status iso_module_init(iso_module *module, const iso_module_ops *ops, iso_device *device);
// Adds a zero-filled parameter (f32, requires_grad).
iso_status iso_module_add_parameter(iso_module *module, const char *name, int ndim,
                                    const int64_t *shape, iso_parameter **out);
// Adds a zero-filled buffer of f32, f64 or i64. ndim 0 (shape NULL): one number.
iso_status iso_module_add_buffer(iso_module *module, const char *name, iso_dtype dtype, int ndim,
                                 const int64_t *shape, iso_buffer **out);
// Takes one reference of child, on failure too. ISO_ERR_ARG for an empty name, a '.', a name used
// already, a child on another device, or one that contains module.
iso_status iso_module_add_child_take(iso_module *module, const char *name, iso_module *child);
// Creates *slot on first use (on the module's device, of the module's type), then gives it this
// shape and layout.
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
// Before the module is wrapped or given to an optimizer: ISO_ERR_STATE afterwards. Layers of
// different types are joined by iso_cast_create.
iso_status iso_module_to(iso_module *module, iso_dtype dtype);
// Replaces the hooks of this module only (not of its children); NULL removes them.
void iso_module_set_hooks(iso_module *module, const iso_module_hooks *hooks);
// Tells random layers below which row of the global batch row 0 of the local batch is, so that N
// ranks draw what one rank would on the whole batch. data_parallel does this itself.
void iso_module_set_first_row(iso_module *module, int64_t first_row);

// ---- Layers ---------------------------------------------------------------------------------------
// Weights are initialised as PyTorch does: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weight and bias
// (torch.nn.Linear, torch.nn.Conv2d: kaiming_uniform with a = sqrt(5)).

// y[N, out] = x[N, in] weight[out, in]^T + bias[out]
iso_status iso_linear_create(iso_device *device, int64_t in_features, int64_t out_features,
                             bool bias, iso_rng *rng, iso_module **out);

typedef struct iso_conv2d_config {
    int64_t in_channels, out_channels;
    int64_t kernel_size[2];        // height, width
    int64_t stride[2], padding[2]; // 0 in stride means 1
    bool no_bias;
} iso_conv2d_config;
// x[N, C, H, W] -> y[N, out, (H + 2p - k)/s + 1, ...]; weight[out, in, kh, kw], cross-correlation.
iso_status iso_conv2d_create(iso_device *device, const iso_conv2d_config *config, iso_rng *rng,
                             iso_module **out);
// Window and stride in both directions, no padding; the first maximum of a window wins.
iso_status iso_max_pool2d_create(iso_device *device, int64_t window, int64_t stride,
                                 iso_module **out);
iso_status iso_relu_create(iso_device *device, iso_module **out);
// [N, ...] -> [N, product]
iso_status iso_flatten_create(iso_device *device, iso_module **out);
// Training: each element (dropout) or each channel of a sample (dropout2d) is 0 with probability p,
// else scaled by 1/(1-p). Masks depend on (seed, stream, forward number, global row, logical index)
// only. 0 <= p < 1.
iso_status iso_dropout_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
iso_status iso_dropout2d_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
// Gives its input in another element type, and gradients back in the input's: between a layer of
// f32 and one of f64.
iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out);
// Over the last dimension of [N, K].
iso_status iso_log_softmax_create(iso_device *device, iso_module **out);

// Children run one after the other; a relu after a linear or conv2d is fused into it. Names default
// to "0", "1", ... when name is NULL. The same module may be added again (retain it first).
iso_status iso_sequential_create(iso_device *device, iso_module **out);
iso_status iso_sequential_add_take(iso_module *sequential, const char *name, iso_module *module);

typedef enum iso_layer_kind {
    ISO_LINEAR,
    ISO_CONV2D,
    ISO_MAX_POOL2D,
    ISO_FLATTEN,
    ISO_DROPOUT
} iso_layer_kind;
// A layer of a list; how much it takes in follows from the layers before it.
typedef struct iso_layer {
    iso_layer_kind kind;
    int64_t out;      // features of a linear, channels of a conv2d; biases are always there
    int64_t size;     // of the square kernel of a conv2d; window and stride of a max_pool2d
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
    ISO_NLL            // log-probabilities[N, K]: mean over N of -x[label]
} iso_loss_kind;
typedef struct iso_loss iso_loss;

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out);
// labels: N host integers in [0, K), else ISO_ERR_ARG naming the row. *value is the mean over the
// batch, *correct (may be NULL) the rows whose largest entry (first one on a tie) is the label.
// *grad (NULL: not wanted) is the gradient of the mean, owned by the loss, valid until its next
// call.
iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad);
void iso_loss_destroy(iso_loss **loss);

#ifdef __cplusplus
}
#endif
#endif
