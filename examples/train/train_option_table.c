// SPDX-License-Identifier: MIT
// The table of the train program's options, by which they are read and their help is printed.
#include "train_options.h"

#include "support/models.h"

#include <stddef.h>

#define OPTION(k, name, field)                                                                     \
    .key = (name), .kind = ISO_SETTING_##k, .offset = offsetof(train_options, field)
#define SWITCH(name, field)  OPTION(SWITCH, name, field)
#define INTEGER(name, field) OPTION(INTEGER, name, field)
#define NUMBER(name, field)  OPTION(NUMBER, name, field)
#define CHOICE(name, field)  OPTION(CHOICE, name, field)
#define TEXT(name, field)    OPTION(TEXT, name, field)
#define COUNT_FROM(least)    .low = (least), .high = 1e12

enum { HEADING, RUN = 0, SHARED = TRAIN_SHARED, OUTSIDE = TRAIN_OUTSIDE };
#define OF(whose, ...)                                                                             \
    {                                                                                              \
        .scope = (whose), .setting = { __VA_ARGS__ }                                               \
    }

const train_option train_option_table[] = {
    OF(HEADING, .meaning = "Data and network"),
    OF(SHARED | OUTSIDE, TEXT("data", data), .choices = "DIR|FILE.h5|digits", .initial = "digits",
       .meaning = "folder with MNIST's four files, folder with pictures in train/CLASS and "
                  "val/CLASS, or in CLASS; HDF5 file with x_train, y_train, x_test and y_test; or "
                  "generated digits"),
    OF(SHARED, INTEGER("image-size", image_size), .low = 1, .high = 8192,
       .meaning = "pixels of an image in each direction, for a folder of pictures (default: 224)"),
    OF(SHARED, INTEGER("classes", classes), .low = 1, .high = 1e6,
       .meaning = "number of classes (default: from the labels of both sets)"),
    OF(SHARED, INTEGER("test-limit", test_limit), COUNT_FROM(1),
       .meaning = "evaluate on the first N test images only"),
    OF(SHARED, NUMBER("validation", validation), .low = 1e-9, .high = 0.9,
       .meaning = "fraction of the training set to hold out, drawn with --seed, for an evaluation "
                  "after each epoch"),
    OF(RUN, CHOICE("sampler", sampler), .choices = "pad|drop|overlap", .initial = "pad",
       .meaning = "what to do if samples do not divide evenly among ranks; pad: repeat some; drop: "
                  "leave out the rest; overlap: equal shards that may share a sample"),
    OF(SHARED, TEXT("mean", mean), .choices = "X,X,...|auto", .initial = "auto",
       .meaning = "pixel mean (0 to 1), one value or one per channel; auto: computed from the "
                  "training set; of a folder of pictures, ImageNet's"),
    OF(SHARED, TEXT("std", std), .choices = "X,X,...|auto", .initial = "auto",
       .meaning = "pixel standard deviation, likewise"),
    OF(RUN, INTEGER("shift", shift), .low = 0, .high = 1e6, .initial = "0",
       .meaning = "maximum random shift of training images, in pixels"),
    OF(RUN, NUMBER("flip", flip), .low = 0, .high = 1, .initial = "0",
       .meaning = "probability of mirroring a training image"),
    OF(RUN, NUMBER("crop", crop), .low = 0.001, .high = 1,
       .meaning = "train on random parts of pictures, of at least this fraction of the area "
                  "(usual: 0.08)"),
    OF(SHARED, CHOICE("model", model), .choices = MODEL_NAMES, .initial = "cnn",
       .meaning = "network to train"),
    OF(SHARED, SWITCH("dropout", dropout), .meaning = "add dropout layers (0.25 and 0.5)",
       .of = "model", .among = "cnn"),
    OF(SHARED, TEXT("activations", activations), .choices = "NAME,...",
       .meaning = "functions of hidden layers, instead of relu: " MODEL_ACTIVATIONS
                  "; of several, each layer begins with the first one, and --tournament-mutate "
                  "changes it",
       .of = "model", .among = MODELS_OF_A_LIST),

    OF(HEADING, .meaning = "Training"),
    OF(RUN, INTEGER("epochs", epochs), .low = 1, .high = 1e6, .initial = "3",
       .meaning = "passes over the training set"),
    OF(RUN, INTEGER("steps", steps), COUNT_FROM(1),
       .meaning = "number of updates, instead of --epochs", .instead = "epochs"),
    OF(RUN, INTEGER("batch", batch), .low = 1, .high = 1e6, .initial = "64",
       .meaning = "batch size per rank"),
    OF(RUN, INTEGER("accumulate", accumulate), .low = 1, .high = 1e6, .initial = "1",
       .meaning = "batches accumulated per update (fewer at the end of an epoch)"),
    OF(RUN, CHOICE("optimizer", optimizer),
       .choices = "sgd|adam|adamw|adadelta|adagrad|rmsprop|lamb|nadam", .initial = "adam",
       .meaning = "optimizer"),
    OF(RUN, NUMBER("lr", lr), .low = 1e-12, .high = 1e6,
       .meaning = "learning rate; the maximum for one-cycle (default: depends on --optimizer)"),
    OF(RUN, NUMBER("momentum", momentum), .low = 0, .high = 0.999999,
       .meaning = "momentum; if given, one-cycle does not cycle it", .of = "optimizer",
       .among = "sgd|rmsprop"),
    OF(RUN, SWITCH("amsgrad", amsgrad),
       .meaning = "divide by the largest average of squared gradients so far", .of = "optimizer",
       .among = "adam|adamw"),
    OF(RUN, NUMBER("weight-decay", weight_decay), .low = 0, .high = 1e6,
       .meaning = "weight decay (default: depends on --optimizer)"),
    OF(RUN, NUMBER("clip-grad-norm", clip_grad_norm), .low = 1e-12, .high = 1e12,
       .meaning = "maximum gradient norm; each step then waits for all exchanges"),
    OF(RUN, INTEGER("early-stopping", early_stopping), COUNT_FROM(1),
       .meaning = "stop after N epochs without a better accuracy on the --validation set"),
    OF(RUN, CHOICE("finite", finite), .choices = "stop|skip",
       .meaning =
           "what to do if a gradient is NaN or infinite: stop the run, or skip the update; each "
           "step then waits for all exchanges"),
    OF(RUN, NUMBER("skip-loss", skip_loss), .low = 1e-9, .high = 1e6,
       .meaning =
           "skip the update of a step whose loss is more than X deviations above the mean of the "
           "last steps; each step then waits for all exchanges"),
    OF(RUN, NUMBER("skip-norm", skip_norm), .low = 1e-9, .high = 1e6,
       .meaning = "the same for the gradient norm"),
    OF(RUN, INTEGER("skip-window", skip_window), .low = 2, .high = 1e6, .initial = "128",
       .meaning = "number of last steps that --skip-loss and --skip-norm compare with"),
    OF(RUN, SWITCH("grad-scaler", grad_scaler),
       .meaning =
           "scale the loss dynamically, against underflow of gradients in 16-bit types; each "
           "step then waits for all exchanges"),
    OF(RUN, NUMBER("init-scale", init_scale), .low = 1e-30, .high = 1e38,
       .meaning = "initial scale of --grad-scaler (default 65536)"),
    OF(RUN, INTEGER("growth-interval", growth_interval), COUNT_FROM(1),
       .meaning = "updates without overflow after which --grad-scaler doubles the scale (default "
                  "2000)"),
    OF(RUN, NUMBER("label-smoothing", label_smoothing), .low = 0, .high = 1, .initial = "0",
       .meaning = "fraction of the target spread over all classes"),
    OF(RUN, CHOICE("schedule", schedule),
       .choices = "constant|step|multi-step|exponential|cosine|cosine-restarts|one-cycle|"
                  "linear|plateau",
       .initial = "one-cycle", .meaning = "learning-rate schedule; plateau follows the test loss"),
    OF(RUN, NUMBER("gamma", gamma), .low = 0, .high = 1,
       .meaning = "learning-rate decay factor (default 0.1)", .of = "schedule",
       .among = "step|multi-step|exponential|plateau"),
    OF(RUN, INTEGER("step-size", step_size), COUNT_FROM(1),
       .meaning = "epochs between decays or restarts (default: a third of the run)",
       .of = "schedule", .among = "step|cosine-restarts"),
    OF(RUN, TEXT("milestones", milestones), .choices = "N,N,...",
       .meaning = "epochs after which to decay (default: half and 3/4 of the run)",
       .of = "schedule", .among = "multi-step"),
    OF(RUN, INTEGER("patience", patience), COUNT_FROM(0), .initial = "10",
       .meaning = "epochs without improvement before the learning rate decays", .of = "schedule",
       .among = "plateau"),
    OF(RUN, INTEGER("warmup-lr-steps", warmup_lr_steps), COUNT_FROM(0), .initial = "0",
       .meaning = "steps of linear learning-rate warm-up"),
    OF(SHARED, INTEGER("seed", seed), .low = 0, .high = 9e15, .initial = "1",
       .meaning = "random seed of initialisation, shuffling and dropout"),

    OF(HEADING, .meaning = "Synchronisation"),
    OF(RUN, CHOICE("sync", sync), .initial = "lazy",
       .meaning = "what ranks exchange, and when they wait for it"),
    OF(SHARED | OUTSIDE, TEXT("plugin", plugin), .choices = "FILE.so",
       .meaning = "shared object with more --sync modes (isotherm/strategy.h)"),
    OF(RUN, TEXT("sync-option", sync_option), .choices = "KEY=VALUE,...",
       .meaning = "settings of a custom --sync (isotherm/strategy.h)"),
    OF(OUTSIDE, TEXT("replay", replay), .choices = "LOG",
       .meaning =
           "repeat what depends on times in an earlier run (changes of period and wait; steps of "
           "async and server), from its --log; give the same options"),
    OF(SHARED | OUTSIDE, CHOICE("progress", progress), .choices = "auto|off|poll|thread",
       .initial = "auto", .meaning = "who drives communication during computation"),
    OF(RUN, NUMBER("bucket-mb", bucket_mb), .low = 0, .high = 1e6,
       .meaning = "bucket size in MiB; 0: one bucket per layer (default 0.25)"),
    OF(OUTSIDE, CHOICE("rebuild", rebuild), .choices = "no|ready|tuned", .initial = "no",
       .meaning = "ready: after the first step, build buckets in the order in which gradients are "
                  "ready; tuned: also of the size that is fastest in the first steps"),
    OF(RUN, CHOICE("average", average), .choices = "post|pre|split|sum", .initial = "post",
       .meaning = "when to divide gradients by the number of ranks: after the exchange, before it, "
                  "partly before and partly after, or never"),
    OF(RUN, NUMBER("split-factor", split_factor), .low = 1e-12, .high = 1e12,
       .meaning = "divide by X before the exchange, and by ranks / X after it", .of = "average",
       .among = "split"),
    OF(RUN, SWITCH("find-unused", find_unused),
       .meaning = "allow parameters without a gradient; adds a small exchange per step"),
    OF(RUN, SWITCH("static-unused", static_unused),
       .meaning = "the same if every step uses the same parameters; adds a small exchange to the "
                  "first step only"),
    OF(RUN, INTEGER("noise-scale", noise_scale), COUNT_FROM(1),
       .meaning = "estimate the gradient noise scale in every Nth step, which then hides no "
                  "exchange"),
    OF(OUTSIDE, INTEGER("check-equal", check_equal), COUNT_FROM(1),
       .meaning = "compare the parameters of all ranks every N steps"),
    OF(OUTSIDE, CHOICE("on-difference", on_difference), .choices = "warn|stop|resync",
       .initial = "stop",
       .meaning =
           "what to do if --check-equal finds a difference; resync: all ranks take parameters, "
           "buffers and optimizer state of rank 0"),
    OF(RUN, SWITCH("sync-batchnorm", sync_batchnorm),
       .meaning = "synchronise batch norms over all ranks", .of = "model",
       .among = MODELS_WITH_NORMS),

    OF(RUN, CHOICE("buffers", buffers), .choices = "average|broadcast|keep", .initial = "average",
       .meaning = "what ranks do with running statistics; broadcast: take rank 0's; "
                  "keep: keep their own",
       .of = "model", .among = MODELS_WITH_NORMS),
    OF(RUN, CHOICE("buffers-when", buffers_when), .choices = "evaluation|forward|backward",
       .initial = "evaluation",
       .meaning =
           "when ranks synchronise running statistics: before evaluations only, or also before "
           "each forward or after each backward",
       .of = "model", .among = MODELS_WITH_NORMS),

    OF(TRAIN_STRATEGIES,
       .meaning =
           "Options of the --sync modes (in parentheses: modes that accept the option; default)"),

    OF(HEADING, .meaning = "Machine"),
    OF(SHARED | OUTSIDE, TEXT("device", device), .choices = "cpu|cuda|cuda:N", .initial = "cpu",
       .meaning = "device; cuda: the GPUs of a node are assigned to its ranks round-robin"),
    OF(SHARED, CHOICE("math", math), .choices = "f32|tf32|bf16", .initial = "f32",
       .meaning = "precision of matrix products; bf16 on a GPU: also of activations; tf32: GPUs only"),
    OF(SHARED, CHOICE("autocast", autocast), .choices = "none|bf16|f16", .initial = "none",
       .meaning = "type of activations (PyTorch: torch.autocast); use f16 with "
                  "--grad-scaler; on a GPU --math bf16 is --autocast bf16"),
    OF(SHARED, CHOICE("dtype", dtype), .choices = "f32|f64|bf16|f16", .initial = "f32",
       .meaning = "type of parameters and arithmetic; bf16 and f16: also of activations, with "
                  "f32 gradients and master weights"),
    OF(RUN, CHOICE("kernels", kernels), .choices = "fixed|tuned", .initial = "fixed",
       .meaning = "fixed: choose kernels by a rule; tuned: by timing, so the last bits of results "
                  "vary between runs"),
    OF(SHARED, INTEGER("threads", threads), .low = 1, .high = 1024, .initial = "1",
       .meaning = "threads per rank"),
    OF(SHARED | OUTSIDE, INTEGER("loader-threads", loader_threads), .low = 1, .high = 1024,
       .initial = "1", .meaning = "threads per rank that prepare batches"),

    OF(HEADING, .meaning = "Files"),
    OF(SHARED | OUTSIDE, TEXT("load", load), .choices = "FILE",
       .meaning = "checkpoint with the initial parameters"),
    OF(OUTSIDE, TEXT("checkpoint", checkpoint), .choices = "FILE",
       .meaning = "write parameters to this safetensors file after each epoch"),
    OF(OUTSIDE, TEXT("checkpoint-best", checkpoint_best), .choices = "FILE",
       .meaning = "write parameters to this file whenever an epoch reaches the best accuracy on "
                  "the --validation set so far"),
    OF(OUTSIDE, INTEGER("checkpoint-every", checkpoint_every), COUNT_FROM(1),
       .meaning = "also save what --resume needs, every N steps"),
    OF(OUTSIDE, TEXT("resume", resume), .choices = "FILE|auto",
       .meaning =
           "continue the run that wrote this --checkpoint; give the same options, or other ranks "
           "with the same global batch; auto: that of --checkpoint, or a new run if nothing is "
           "saved yet"),
    OF(OUTSIDE, SWITCH("extend", extend),
       .meaning =
           "let --resume go on to a later --epochs or --steps, also after the end of the run, "
           "and with another --lr, --schedule (and its options) or --early-stopping"),
    OF(SHARED | OUTSIDE, INTEGER("eval-every", eval_every), COUNT_FROM(1),
       .meaning = "also evaluate every N steps"),
    OF(OUTSIDE, TEXT("log", log), .choices = "FILE",
       .meaning = "write epochs, exchanges and a summary as JSON lines"),
    OF(OUTSIDE, TEXT("tensorboard", tensorboard), .choices = "DIR",
       .meaning =
           "write the numbers of the log for TensorBoard, to a new event file in this folder"),
    OF(OUTSIDE, SWITCH("overwrite", overwrite),
       .meaning = "overwrite an existing log, event files, trace, checkpoint and saved states"),
    OF(OUTSIDE, TEXT("trace", trace), .choices = "FILE",
       .meaning = "write a Chrome trace of the first steps (ui.perfetto.dev)"),

    OF(HEADING, .meaning = "Output"),
    OF(OUTSIDE, SWITCH("buckets", buckets), .meaning = "print which gradients travel together"),
    OF(OUTSIDE, SWITCH("stats", stats),
       .meaning = "print when each bucket is ready, sent, received and needed, and which rank the "
                  "others wait for"),
    OF(OUTSIDE, SWITCH("quiet", quiet), .meaning = "print only errors and the library's warnings"),
    OF(OUTSIDE, SWITCH("help", help), .meaning = "print this text"),
    OF(OUTSIDE, SWITCH("help-env", help_env),
       .meaning = "print the environment variables of the library"),
    OF(OUTSIDE, SWITCH("version", version), .meaning = "print the version"),
};

const int train_option_count = sizeof(train_option_table) / sizeof(train_option_table[0]);
