// SPDX-License-Identifier: MIT
// Modules: parameters, buffers, hooks, and the table of functions that defines a new layer. It
// includes layers.h, with the layers and containers of the library, and loss.h. Every call in this
// header is local unless a data_parallel wrapper makes it collective.
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
    const char *name;  // local name, e.g. "weight"; owned by the module
    iso_tensor *value; // logical layout; only layers read it directly, see iso_parameter_value
    // Shape of value, and its type; f32 if value is bf16 or f16. May be a view of a communication
    // buffer.
    iso_tensor *grad;
    bool requires_grad; // false: frozen, its gradient is neither computed nor exchanged
    bool grad_valid;    // false: the gradient is zero, and the next backward overwrites its memory
    // Set by a wrapper that updates lazily: completes the pending work on this parameter.
    iso_status (*complete)(void *user, struct iso_parameter *parameter);
    void *complete_user;
    // Set along with it: its number among the parameters that the wrapper updates.
    int complete_index;
    int optimizers; // number of optimizers with state for it; that state has the type of grad
    int references; // number of modules that use it; above 1 for a tied one, see iso_module_tie
    // Set by a wrapper that exchanges and updates this parameter in pieces; else NULL.
    const struct iso_pieces *pieces;
    // 0 at creation. > 0: data_parallel exchanges only the rows of the gradient that are not zero,
    // see iso_reducer_param.sparse_rows. Set it on every rank before the module is wrapped.
    int64_t sparse_rows;
    // Set by data_parallel with by_name: lists are in ascending order of it. 0: there is none.
    int64_t place;
    // Set by data_parallel with ZeRO stage 3, where a rank may hold only some elements of the
    // value: brings all of them. Called with complete_user.
    iso_status (*gather)(void *user, struct iso_parameter *parameter);
} iso_parameter;

// Completes a pending update and returns the value, all of it. Local, but collective if
// data_parallel wraps the module. The tensor is borrowed from the parameter.
iso_status iso_parameter_value(iso_parameter *parameter, iso_tensor **out);
// Likewise for the gradient. If grad_valid is false, fills the gradient with zeros first.
iso_status iso_parameter_grad(iso_parameter *parameter, iso_tensor **out);

// Ties two parameters (PyTorch: module.weight = other.weight). Parameter `name` of module becomes
// `other_name` of other, with its value, gradient and requires_grad. The previous parameter of
// module is released. A name may be a path ("encoder.weight"). The gradients of all uses are
// summed. ISO_ERR_STATE once a parameter is wrapped or has an optimizer; ISO_ERR_SHAPE or
// ISO_ERR_TYPE if shapes, types or devices differ; ISO_ERR_UNSUPPORTED if the table of module has
// no `tied`. ISO_ERR_ARG for an unknown name or two parameters of one module. A module given
// to a wrapper, to iso_module_to or to iso_module_to_device must contain all modules that share the
// parameter (else ISO_ERR_STATE).
iso_status iso_module_tie(iso_module *module, const char *name, iso_module *other,
                          const char *other_name);

// The parameters of a module and of all modules below it, in registration order (below a
// data_parallel with by_name: in that of rank 0), with PyTorch's names ("conv1.weight"). A shared
// or tied parameter is listed once, under its first name. Wrappers add no prefix.
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
// The parameter with this full name, below module (PyTorch: get_parameter). A shared or tied
// parameter is found under each of its names. It remains owned by its module. ISO_ERR_ARG if there
// is none.
iso_status iso_module_get_parameter(iso_module *module, const char *name, iso_parameter **out);

// ---- Buffers --------------------------------------------------------------------------------------

// State of a layer that is saved but not trained, such as running statistics (PyTorch:
// register_buffer).
typedef struct iso_buffer {
    const char *name;  // local name, e.g. "running_mean"; owned by the module
    iso_tensor *value; // logical layout; training forwards change it
    // true at creation. false: not saved, in no state_dict and in no saved state (PyTorch:
    // register_buffer(persistent=False)). Set it on every rank.
    bool persistent;
    int64_t place; // as in iso_parameter
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
// The buffer with this full name (PyTorch: get_buffer). ISO_ERR_ARG if there is none.
iso_status iso_module_get_buffer(iso_module *module, const char *name, iso_buffer **out);

// ---- Modules --------------------------------------------------------------------------------------

// Activation that a container fuses into an adjacent layer.
typedef enum iso_activation { ISO_ACT_NONE, ISO_ACT_RELU } iso_activation;

// A tuple of 1 to ISO_MODULE_TENSORS tensors: what a module takes in or gives. They are borrowed.
enum { ISO_MODULE_TENSORS = 8 };
typedef struct iso_tensors {
    int count;
    iso_tensor *item[ISO_MODULE_TENSORS];
} iso_tensors;
// Which gradients of inputs a backward computes: bit i asks for that of input i. ISO_WANT_ALL: of
// all inputs that are not indices. 0: none.
#define ISO_WANT_ALL (~0u)

// What a call of a module with `forward_many` saves for each input and output, in addition to
// iso_call below.
typedef struct iso_call_many {
    iso_tensors in;     // borrowed from the caller; valid until backward
    iso_tensors result; // borrowed: the outputs of forward
    // Owned by the call; NULL until iso_call_tensor creates them. aux is for the layer's own use.
    iso_tensor *out[ISO_MODULE_TENSORS], *grad_in[ISO_MODULE_TENSORS];
    iso_tensor *aux[2][ISO_MODULE_TENSORS];
    iso_tensor *grad_out[ISO_MODULE_TENSORS]; // owned: copies of gradients, or zeros
} iso_call_many;

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
    // Among the calls of all modules: of this call, and of the last one that was made inside it.
    uint64_t first, last;
    // All inputs and outputs of a module with `forward_many`; `in` and `result` are the first ones.
    // NULL for other modules.
    iso_call_many *many;
} iso_call;

// The table of functions of a layer. `type` and `forward` are required; training also needs
// `backward_input` or `backward`. A function that fails describes the error with iso_error_set.
// A module with several inputs or outputs has `forward_many` and `backward_many` instead.
//
// Outputs are on the module's device and have the type of the call's input. The gradient of the
// input is on the same device and has the type and shape of the input. iso_call_tensor creates such
// tensors. The library checks every result and names the layer: ISO_ERR_TYPE for a wrong type or
// device, ISO_ERR_STATE for a missing result, ISO_ERR_SHAPE for a gradient of another shape.
typedef struct iso_module_ops {
    const char *type; // PyTorch's name of the layer, e.g. "Linear"
    // Reads `in` and sets *out to a tensor owned by the call, or to a view. self->training
    // distinguishes training from evaluation.
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
    // forward applies call->activation. One other function applies its derivative: backward if the
    // table has it, else backward_params if the table has that, else backward_input.
    bool fuses_relu;
    bool awaits_pieces; // forward itself waits for parameters that are updated in pieces
    bool relu_commutes; // a preceding relu may be applied to the output instead, as for a maximum
    // Forward and backward accept activations of bf16 and f16 (iso_autocast_create_take) with f32
    // parameters. In a container: it passes such activations on. false: such input is ISO_ERR_TYPE.
    bool takes_half;
    // They also accept parameters of the type of such activations; gradients of parameters are f32.
    // false: iso_module_to leaves this layer's parameters f32 when it makes a module bf16 or f16.
    bool half_parameters;
    // The output may be of another real type than the input.
    bool changes_type;
    // The input holds indices: i32 or i64. The output has the type of the parameters. Gradients end
    // here, because the input has none. With forward_many, any of the inputs may hold indices.
    bool takes_indices;
    // Forward changes no parameter of any module. If this holds for all modules below an Autocast,
    // the Autocast rounds all their parameters in one launch before its forward.
    bool keeps_parameters;
    // For a module with several inputs or outputs, in place of the functions above (PyTorch: a
    // forward that takes or returns several tensors). *out gets 1 to ISO_MODULE_TENSORS tensors. An
    // output may be one of the inputs.
    iso_status (*forward_many)(iso_module *self, iso_call *call, const iso_tensors *in,
                               iso_tensors *out);
    // Writes the gradients of parameters as backward_params does, and computes those of the inputs
    // that are wanted, each in the layout of the input and in a tensor of its own. grad_out has a
    // gradient for each output, zeros if the caller gave none, but NULL for indices. grad_in
    // arrives with as many NULL items as there are inputs. Items of grad_out may be modified, and
    // may become items of grad_in.
    iso_status (*backward_many)(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                unsigned wanted, iso_tensors *grad_in);
    int inputs; // the number of inputs of forward_many; 0: any
    // Called by iso_module_to_device before it changes anything: ISO_ERR_UNSUPPORTED if the layer
    // cannot run on this device. NULL: it can run on any.
    iso_status (*runs_on)(const iso_module *self, const iso_device *device);
    // Called by iso_module_to_device once self->device, parameters and buffers are the new ones.
    // Frees or replaces what the layer itself keeps on the old device. iso_parameter and iso_buffer
    // structs stay where they are. NULL: the layer keeps nothing there.
    void (*moved)(iso_module *self);
    // Inputs may be on other devices: forward_many replaces them in call->many->in by tensors on
    // self->device. false: such an input is ISO_ERR_ARG.
    bool moves_inputs;
} iso_module_ops;

// Functions that a program or a wrapper adds to a module. Each may be NULL. An error that one
// returns ends the forward or backward. A hook must not add hooks to its module, nor remove them.
// The input of forward and its output may be read, but not changed, because backward needs them. A
// relu that a Sequential fuses into another layer does not run itself, and its hooks are not
// called. Of several inputs, outputs or gradients, hooks get the first one, which may be NULL.
typedef struct iso_module_hooks {
    // forward is about to read the parameters (PyTorch: register_forward_pre_hook).
    iso_status (*before_forward)(iso_module *module, iso_tensor *in, void *user);
    // forward is complete (PyTorch: register_forward_hook).
    iso_status (*after_forward)(iso_module *module, iso_tensor *in, iso_tensor *out, void *user);
    // backward begins (PyTorch: register_full_backward_pre_hook). May change grad_out in place.
    iso_status (*before_backward)(iso_module *module, iso_tensor *grad_out, void *user);
    // The gradients of this module's own parameters are final for this backward. If forward used
    // the module several times, called once, in the last of these backwards. Called before the
    // gradient of the input is computed; in modules with `backward`, after it. With data_parallel
    // the gradients are then sent: only hooks that were added before the module was wrapped may
    // change them.
    iso_status (*gradient_ready)(iso_module *module, void *user);
    // backward is complete (PyTorch: register_full_backward_hook). grad_in, the gradient of the
    // input, is NULL if it was not wanted. May change grad_in in place.
    iso_status (*after_backward)(iso_module *module, iso_tensor *grad_in, void *user);
    // Returns true if the parameters of this module are current: no pending before_forward, of this
    // or another module, will change them. They may then be read before forward. NULL: not known.
    bool (*is_current)(const iso_module *module, void *user);
    void *user;
} iso_module_hooks;
// Hooks as a module keeps them.
typedef struct iso_added_hooks {
    iso_module_hooks call;
    int handle;
} iso_added_hooks;

struct iso_module {
    const iso_module_ops *ops;
    iso_device *device;
    const char *name;      // last component of its name in its first container; "" for a root
    iso_dtype dtype;       // of parameters and buffers; without any, of the latest input
    iso_dtype activations; // type of the input of the current call
    bool training;         // true at creation
    bool backward_failed;  // the last backward failed, and no forward has followed it
    int references;
    int parameter_count, buffer_count, child_count;
    iso_parameter **parameter;
    const char **parameter_name; // local names; the other owner of a tied one may use another name
    iso_buffer **buffer;
    iso_module **child;
    const char **child_name;
    struct iso__index *child_index; // finds children by their names
    iso_added_hooks *hooks;         // [hooks_count], in the order in which they were added
    int hooks_count, hooks_handle;  // number of hooks; the last handle that was given out
    iso_call **call;                // stack of calls since the last root forward
    int call_depth, call_capacity;  // calls that await their backward; room of the stack
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
// this call a layer may replace value and grad by tensors of another type, f32 or f64 (on CPUs also
// bf16 or f16, with a grad of f32). ISO_ERR_ARG for an empty name, a '.' in it, or a name in use.
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

// Calls visit for root and all modules below it, parents first (PyTorch: named_modules without
// removal of duplicates). name: the full name, "" for root. A wrapper has the name of the module it
// wraps. A module that is used in several places is visited in each. An error of visit ends the
// walk.
typedef iso_status (*iso_module_visit)(iso_module *module, const char *name, void *user);
iso_status iso_module_walk(iso_module *root, iso_module_visit visit, void *user);
// The first module with this name on that walk; "" is root (PyTorch: get_submodule). Borrowed.
// ISO_ERR_ARG if there is none.
iso_status iso_module_get_submodule(iso_module *root, const char *name, iso_module **out);

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
// The same for several inputs or outputs. Any module can be run in this way, with a tuple of one
// for a single tensor. In turn iso_module_forward runs every module that has one input and one
// output, and iso_module_backward every one that has one output and, if grad_in is not NULL, one
// input. The tuples are copied; *out may be *in. ISO_ERR_ARG for another number of tensors than the
// module takes or gives; the message names the module and both numbers.
iso_status iso_module_forward_many(iso_module *module, const iso_tensors *in, iso_tensors *out);
// grad_out: a gradient for each output, each a tensor of its own; NULL stands for zero, but one
// must be given. Gradients of outputs that hold indices are ignored. wanted: see ISO_WANT_ALL.
// *grad_in gets an item for each input, NULL where it is not wanted; grad_in may be NULL.
// ISO_ERR_UNSUPPORTED for the bit of an input that holds indices.
iso_status iso_module_backward_many(iso_module *module, const iso_tensors *grad_out,
                                    unsigned wanted, iso_tensors *grad_in);
// For containers and wrappers: forward and backward of a child. They discard nothing that is saved.
// `activation` is fused into the child, which needs ops->fuses_relu (else ISO_ERR_ARG).
iso_status iso_module_call(iso_module *child, iso_activation activation, iso_tensor *in,
                           iso_tensor **out);
iso_status iso_module_call_backward(iso_module *child, iso_tensor *grad_out, iso_tensor **grad_in);
iso_status iso_module_call_many(iso_module *child, iso_activation activation, const iso_tensors *in,
                                iso_tensors *out);
iso_status iso_module_call_backward_many(iso_module *child, const iso_tensors *grad_out,
                                         unsigned wanted, iso_tensors *grad_in);

// Sets training (true) or evaluation mode (false) for the module and all modules below it. A
// data_parallel wrapper completes pending updates when it enters evaluation mode; the call is then
// collective.
iso_status iso_module_train(iso_module *module, bool training);
// Converts the parameters and buffers of the module and all modules below it to f32, f64, bf16 or
// f16. The module then computes in this type. Values are rounded to it. Gradients become zero, and
// what forwards saved for their backward is discarded. i64 buffers are unchanged. Layers are f32 at
// creation; connect layers of different types with iso_cast_create, or, for f32 around 16 bits,
// with iso_autocast_create_take. ISO_ERR_STATE once the module is wrapped or given to an optimizer.
//
// bf16 and f16: these are the types of parameters, inputs, activations and outputs.
// Gradients of parameters are f32, and so are all buffers, and the parameters of norms and of other
// layers without half_parameters. An optimizer keeps f32 master weights: it updates these and
// rounds them to the parameters (optim.h). ISO_ERR_TYPE for a layer without takes_half.
iso_status iso_module_to(iso_module *module, iso_dtype dtype);
// Moves the module and all modules below it to another device (PyTorch: module.to(device), cuda(),
// cpu()). Does nothing if they are there already. Values, buffers and valid gradients keep their
// bits, and the call waits until all have arrived. Tied parameters stay tied; hooks, modes and
// random streams stay. What forwards saved for their backward is discarded. Pointers to modules,
// iso_parameter and iso_buffer remain valid, those to their tensors do not. The module holds a
// reference to its new device, and none to the old one. ISO_ERR_STATE once the module is wrapped or
// given to an optimizer: move it before. ISO_ERR_UNSUPPORTED if the device lacks one of the layers
// or element types. After any error, such as ISO_ERR_NOMEM, the module is as it was before.
iso_status iso_module_to_device(iso_module *module, iso_device *device);
// Adds hooks to this module, but not to its children. Any number may be added; they are called in
// the order in which they were added. *handle identifies them for removal; NULL: they stay.
iso_status iso_module_add_hooks(iso_module *module, const iso_module_hooks *hooks, int *handle);
// ISO_ERR_ARG if the module has no hooks with this handle.
iso_status iso_module_remove_hooks(iso_module *module, int handle);
// Sets, for the dropout layers of this module, the row of the global batch that is row 0 of the
// local batch, so that N ranks draw the masks that one rank would draw for the whole batch.
// data_parallel calls this.
void iso_module_set_first_row(iso_module *module, int64_t first_row);

#ifdef __cplusplus
}
#endif

#include <isotherm/layers.h>
#include <isotherm/loss.h>

#endif
