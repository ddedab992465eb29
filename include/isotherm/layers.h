// SPDX-License-Identifier: MIT
// The layers and containers of the library. The calls are local.
#ifndef ISOTHERM_LAYERS_H
#define ISOTHERM_LAYERS_H

#include <isotherm/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

// Linear and convolution layers are initialised as PyTorch's: weight and bias from
// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (torch.nn.Linear, torch.nn.Conv2d: kaiming_uniform_ with a =
// sqrt(5)).

typedef enum iso_fan { ISO_FAN_IN, ISO_FAN_OUT } iso_fan;
// Draws the value from N(0, 2 / fan), with the next stream of rng. This is
// torch.nn.init.kaiming_normal_(mode, nonlinearity="relu"). fan is shape[1] (ISO_FAN_IN) or
// shape[0] (ISO_FAN_OUT), times the product of the dimensions after these two. Call it on every
// rank before the module is wrapped. ISO_ERR_SHAPE below 2 dimensions.
iso_status iso_init_kaiming_normal(iso_parameter *parameter, iso_fan fan, iso_rng *rng);

// Draws the value from N(0, std^2), with the next stream of rng (torch.nn.init.normal_). std is at
// least 0. Call it on every rank before the module is wrapped.
iso_status iso_init_normal(iso_parameter *parameter, double std, iso_rng *rng);

// y[N, out] = x[N, in] weight[out, in]^T + bias[out]; likewise for each row of x[N, L, in]
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

typedef struct iso_conv_transpose2d_config {
    iso_conv2d_config conv;    // channels, kernel, stride, padding, groups and dilation
    int64_t output_padding[2]; // smaller than the stride
} iso_conv_transpose2d_config;
// Transposed convolution (torch.nn.ConvTranspose2d): x[N, C, H, W] -> y[N, out, (H - 1)s - 2p +
// d(k - 1) + output_padding + 1, ...], with weight[in, out / groups, kh, kw] and bias[out]. Its
// forward is the gradient of a Conv2d with respect to the input. ISO_ERR_UNSUPPORTED on GPUs.
iso_status iso_conv_transpose2d_create(iso_device *device,
                                       const iso_conv_transpose2d_config *config, iso_rng *rng,
                                       iso_module **out);

typedef enum iso_pool_kind {
    ISO_POOL_MAX, // maximum of the window, on a tie its first element; never the padding
    ISO_POOL_AVG  // sum of the window divided by its size; padding counts as zeros
} iso_pool_kind;
typedef struct iso_pool2d_config {
    int64_t kernel_size[2];        // height, width of the window; MAX on CPUs: up to 65536 elements
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
// x sigmoid(x), torch.nn.SiLU.
iso_status iso_silu_create(iso_device *device, iso_module **out);
// x, below 0 negative_slope x (torch.nn.LeakyReLU: 0.01). ISO_ERR_ARG if it is NaN or infinite.
iso_status iso_leaky_relu_create(iso_device *device, double negative_slope, iso_module **out);
// x, below 0 alpha (exp(x) - 1) (torch.nn.ELU: 1). ISO_ERR_ARG if alpha is NaN or infinite.
iso_status iso_elu_create(iso_device *device, double alpha, iso_module **out);
// [N, ...] -> [N, product of the other dimensions]
iso_status iso_flatten_create(iso_device *device, iso_module **out);
// In training, sets each element (dropout) or each channel of a sample (dropout2d, [N, C, H, W]) to
// 0 with probability p and multiplies the others by 1/(1-p). Takes one stream of rng. A mask
// depends only on seed, stream, forward number, global row and logical index. 0 <= p < 1.
iso_status iso_dropout_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
iso_status iso_dropout2d_create(iso_device *device, double p, iso_rng *rng, iso_module **out);
// Converts its input to another element type, and gradients back to the type of the input. Put it
// between an f32 layer and an f64 one. With dtype ISO_BF16 or, on CPUs, ISO_F16 the layers after it
// have activations of that type, see iso_autocast_create_take and iso_module_to.
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

typedef struct iso_group_norm_config {
    int64_t num_groups, num_channels; // C is a multiple of num_groups
    double eps;                       // 0 means 1e-5
    bool no_affine;                   // no weight and bias
} iso_group_norm_config;
// torch.nn.GroupNorm: x[N, C, ...] -> y = (x - mean) / sqrt(var + eps) * weight + bias, with the
// mean and the biased variance of a sample over the C / num_groups channels of a group. weight[C]
// (1 at first) and bias[C] (0) are per channel. ISO_ERR_UNSUPPORTED on GPUs.
iso_status iso_group_norm_create(iso_device *device, const iso_group_norm_config *config,
                                 iso_module **out);

// ---- Sequences ----
// Layers for a transformer. They take [N, L, E]: L positions of E features. So do linear, layer
// norm, dropout, activations and containers.

typedef struct iso_embedding_config {
    int64_t num_embeddings, embedding_dim; // V rows of E features
    bool has_padding;                      // row padding_idx is 0 at first and gets no gradient
    int64_t padding_idx;
    // > 0: data_parallel exchanges only the rows of the gradient that a batch uses (PyTorch:
    // sparse=True). The largest number of them on a rank in one exchange, e.g. the indices of its
    // batch, times the number of accumulated batches; see iso_reducer_param.sparse_rows. Use 0 if a
    // Linear is tied to weight: its gradient has all rows.
    int64_t sparse_rows;
} iso_embedding_config;
// torch.nn.Embedding: x[...] -> y[..., E] = weight[x], for indices x of type i32 or i64 in [0, V).
// weight[V, E] is drawn from N(0, 1). The input has no gradient. ISO_ERR_UNSUPPORTED on GPUs.
// forward returns ISO_ERR_ARG for an index outside [0, V); the message names its position.
iso_status iso_embedding_create(iso_device *device, const iso_embedding_config *config,
                                iso_rng *rng, iso_module **out);
// y[n, l] = x[n, l] + weight[l], for sequences of at most `length` positions. weight[length, E] is
// drawn from N(0, 0.02^2), as in GPT-2.
iso_status iso_position_embedding_create(iso_device *device, int64_t length, int64_t embedding_dim,
                                         iso_rng *rng, iso_module **out);

typedef struct iso_attention_config {
    int64_t embed_dim, num_heads; // E is a multiple of num_heads
    bool causal;                  // position l attends to positions 0 to l only
    bool no_bias;
} iso_attention_config;
// Attention with several heads, as torch.nn.MultiheadAttention(batch_first=True). One input x[N, L,
// E] is query, key and value (self-attention). Of two inputs the second is key and value
// (cross-attention). Three are query[N, L, E], key[N, S, E] and value[N, S, E]. The output is y[N,
// L, E]. Each head has E / num_heads features and computes softmax(q k^T / sqrt(E / num_heads)) v.
// Parameters: in_proj_weight[3E, E] (queries, keys, values), drawn by xavier_uniform_,
// in_proj_bias[3E] (0), out_proj.weight[E, E], initialised as in a linear layer, and
// out_proj.bias[E] (0). ISO_ERR_UNSUPPORTED on GPUs.
iso_status iso_multihead_attention_create(iso_device *device, const iso_attention_config *config,
                                          iso_rng *rng, iso_module **out);

// ---- Containers ----

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

// Runs one of its children, the alternatives, on its input. Its buffer "choice", of shape [1],
// holds the number of that child, 0 at creation. So the choice is part of the model: it is saved,
// and moves wherever buffers do, also in tournaments (isotherm/tournament.h). Ranks that train one
// model together need the same choice. Alternatives that do not run get no gradient, and their
// parameters stay unchanged. So set find_unused_parameters if alternatives have parameters. If
// ranks have different choices, buffers must not be synchronised in training: set
// iso_buffer_config.mode to ISO_BUFFERS_NONE, or `when` to ISO_BUFFERS_AT_EVALUATION. On a GPU,
// each forward waits for the device to read the number. Forward returns ISO_ERR_STATE if the buffer
// does not hold the number of a child.
iso_status iso_choice_create(iso_device *device, iso_module **out);
// Appends an alternative of one input and one output; otherwise as iso_sequential_add_take.
// ISO_ERR_ARG if `choice` is another module.
iso_status iso_choice_add_take(iso_module *choice, const char *name, iso_module *module);
// Local. The number of the child that the next forward runs. ISO_ERR_ARG for a module that is no
// Choice, or a number that no child has; iso_choice_get returns ISO_ERR_STATE as forward does.
iso_status iso_choice_get(iso_module *choice, int *index);
iso_status iso_choice_set(iso_module *choice, int index);
// Local. Draws one of the Choices below `model` that have several alternatives, and gives it one of
// those that it does not use, each with equal chances; `random` holds 64 random bits. For
// `mutate_model` of iso_tournament; `user` is not used. ISO_ERR_ARG if there is no such Choice.
iso_status iso_choice_mutate(iso_module *model, uint64_t random, void *user);

// Mixed precision (torch.autocast). Converts its input to dtype, which is ISO_BF16 or, on CPUs,
// ISO_F16, runs module, and converts the output back to the type of the input, so losses stay f32.
// Of several inputs, those that hold indices pass unchanged, and outputs get the type of the first
// of the others. Gradients are converted in the reverse direction. Inside, activations and their
// gradients have type dtype: layers round their outputs, and layers with matrix products
// (convolutions, linear, bilinear and attention) round weight and bias for each forward.
// Parameters, their gradients, optimizer state, statistics and sums stay f32. It takes no
// indices alone (ISO_ERR_TYPE): embeddings belong in front of it. f16 has few bits of exponent:
// scale the loss (isotherm/grad_scaler.h), so that small gradients do not become 0.
//
// module must be f32, or of type dtype (ISO_ERR_TYPE): see iso_module_to. Layers round no
// parameters that have type dtype. Parameters keep their names, and may be tied to parameters
// outside. Create the Autocast first and wrap it in data_parallel afterwards (else ISO_ERR_STATE).
// Takes one reference of module, also on failure. ISO_ERR_ARG for another dtype,
// ISO_ERR_UNSUPPORTED if the device has no kernels for it.
iso_status iso_autocast_create_take(iso_module *module, iso_dtype dtype, iso_module **out);
// With keep, an Autocast in training returns the output of its module unconverted, in 16 bits, and
// takes a gradient of that type. Use it if a loss follows: it saves two conversions per step, and
// results are bitwise identical. Such a gradient cannot be scaled (iso_tensor_scale). In evaluation
// mode the output still has the type of the input. ISO_ERR_ARG for any other module.
iso_status iso_autocast_keep_output(iso_module *autocast, bool keep);

// ---- Several inputs and outputs ----
// They are run by iso_module_forward_many, or inside a Sequential, which passes all outputs of a
// child to the next one. A Residual has one tensor as input and as output.

// Runs its children side by side: child i takes input i and gives output i (as Torch7's
// nn.ParallelTable). It has at most ISO_MODULE_TENSORS children, and as many inputs and outputs.
iso_status iso_branches_create(iso_device *device, iso_module **out);
// Appends a child of one input and one output; otherwise as iso_sequential_add_take.
iso_status iso_branches_add_take(iso_module *branches, const char *name, iso_module *module);
// torch.cat: joins its inputs, in their order, along dimension dim (negative: counts from behind).
// The other dimensions must be equal (ISO_ERR_SHAPE). ISO_ERR_UNSUPPORTED on GPUs.
iso_status iso_concat_create(iso_device *device, int dim, iso_module **out);
// torch.split: cuts its input along dimension dim into `parts` outputs of these sizes, whose sum
// must be the size of the input (ISO_ERR_SHAPE). ISO_ERR_UNSUPPORTED on GPUs.
iso_status iso_split_create(iso_device *device, int dim, int parts, const int64_t *sizes,
                            iso_module **out);
// torch.nn.Bilinear: y[n, o] = sum over i and j of x1[n, i] weight[o, i, j] x2[n, j] + bias[o], for
// inputs x1[N, ..., in1] and x2[N, ..., in2] with the same rows. weight and bias are drawn from
// U(-1/sqrt(in1), 1/sqrt(in1)). Forward keeps the products x1[n, i] x2[n, j]. ISO_ERR_UNSUPPORTED
// on GPUs.
iso_status iso_bilinear_create(iso_device *device, int64_t in1_features, int64_t in2_features,
                               int64_t out_features, bool bias, iso_rng *rng, iso_module **out);

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
    ISO_GELU, // not approximate
    ISO_SILU,
    ISO_LEAKY_RELU, // negative_slope 0.01
    ISO_ELU,        // alpha 1
    ISO_RELU,
    ISO_CHOICE // a Choice among `alternatives`
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
    // Choice: layers that give the same shape (ISO_ERR_SHAPE). Borrowed for the call.
    const struct iso_layer *alternatives;
    int alternative_count; // at least 1
} iso_layer;
// Builds a sequential from a list of layers, for samples of shape [channels, height, width].
// ISO_ERR_SHAPE if a layer does not fit the output of the previous one; the message names the layer
// and that shape.
iso_status iso_sequential_build(iso_device *device, const int64_t sample[3],
                                const iso_layer *layers, int count, iso_rng *rng, iso_module **out);

#ifdef __cplusplus
}
#endif
#endif
