// SPDX-License-Identifier: MIT
// Steps of any --sync on random input, on a device or on the model of one; of several ranks, real
// or simulated (tests/scale).
#include "bench_model.h"
#include "bench_util.h"

#include <getopt.h>
#include <inttypes.h>
#include <isotherm.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/support/models.h"

static const char usage[] =
    "usage: mpirun -n RANKS bench_scale [OPTIONS]\n"
    "  --model NAME     mlp, cnn, resnet18, or wide: 100 million parameters in 6 equal layers "
    "(mlp)\n"
    "  --batch N        per rank (64)\n"
    "  --steps N        timed steps (48), after --warmup N others (16)\n"
    "  --sync NAME      a strategy (lazy), with --set KEY=VALUE,...\n"
    "  --progress MODE  auto, off, poll or thread (auto)\n"
    "  --device NAME    cpu, or model:FILE: nothing is computed, kernels take the times of FILE,\n"
    "                   which bench_step --breakdown --table FILE writes (cpu)\n"
    "  --slow-ms X      the last rank computes X ms longer in each step (0)\n"
    "  --work-ns X      on a model device: what an exchange of parameters costs a rank, in ns per\n"
    "                   parameter, to convert, sum and merge (0)\n"
    "  --equal          ranks begin with equal parameters: rank 0 sends none\n";

typedef struct scale_options {
    const char *model, *sync, *progress, *device;
    char *settings;
    int batch, steps, warmup;
    double slow_ms, work_ns;
    bool equal;
} scale_options;

typedef struct scale_run {
    const scale_options *o;
    iso_comm *comm;
    iso_device *device;
    iso_tensor *images;
    int32_t *labels;
    iso_settings *settings;
    iso_strategy_context context;
    const iso_strategy *strategy;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    int64_t parameters, syncs; // syncs: exchanges that have been charged
    double start_ms;           // of everything before the first step
} scale_run;

// ---- Options --------------------------------------------------------------------------------------

static int whole(const char *option, const char *text, int least) {
    return (int)bench_number(usage, option, text, least, 1e6);
}

static const char *checked_model(const char *text) {
    static const char *const names[] = {"mlp", "cnn", "resnet18", "wide"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(text, names[i]) == 0) return names[i];
    bench_usage(usage, "--model: give mlp, cnn, resnet18 or wide");
    return NULL;
}

static void set_option(scale_options *o, int letter, char *text) {
    switch (letter) {
    case 'm': o->model = checked_model(text); break;
    case 's': o->sync = text; break;
    case 'e': o->settings = text; break;
    case 'p': o->progress = text; break;
    case 'v': o->device = text; break;
    case 'b': o->batch = whole("--batch", text, 1); break;
    case 'n': o->steps = whole("--steps", text, 1); break;
    case 'w': o->warmup = whole("--warmup", text, 0); break;
    case 'l': o->slow_ms = bench_number(usage, "--slow-ms", text, 0, 1e6); break;
    case 'k': o->work_ns = bench_number(usage, "--work-ns", text, 0, 1e6); break;
    case 'q': o->equal = true; break;
    default: bench_usage(usage, "unknown option");
    }
}

static scale_options parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"model", required_argument, NULL, 'm'},   {"sync", required_argument, NULL, 's'},
        {"set", required_argument, NULL, 'e'},     {"progress", required_argument, NULL, 'p'},
        {"device", required_argument, NULL, 'v'},  {"batch", required_argument, NULL, 'b'},
        {"steps", required_argument, NULL, 'n'},   {"warmup", required_argument, NULL, 'w'},
        {"slow-ms", required_argument, NULL, 'l'}, {"work-ns", required_argument, NULL, 'k'},
        {"equal", no_argument, NULL, 'q'},         {NULL, 0, NULL, 0}};
    scale_options o = {.model = "mlp",
                       .sync = "lazy",
                       .progress = "auto",
                       .device = "cpu",
                       .batch = 64,
                       .steps = 48,
                       .warmup = 16};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) set_option(&o, c, optarg);
    if (optind < argc) bench_usage(usage, "too many arguments");
    return o;
}

// ---- Set-up ---------------------------------------------------------------------------------------

static iso_dataset_info input_of(const char *model) {
    bool gray = strcmp(model, "resnet18") != 0;
    int64_t side = gray ? 28 : 32;
    return (iso_dataset_info){
        .channels = gray ? 1 : 3, .height = side, .width = side, .classes = 10};
}

// Random, and others on each rank.
static void make_input(scale_run *r) {
    const iso_dataset_info input = input_of(r->o->model);
    int64_t shape[] = {r->o->batch, input.channels, input.height, input.width};
    float *x;
    bench_require(iso_tensor_create(r->device, ISO_F32, 4, shape, &r->images));
    bench_require(iso_tensor_map(r->images, ISO_WRITE, (void **)&x));
    uint32_t state = 1u + (uint32_t)iso_comm_rank(r->comm);
    for (int64_t i = 0; i < iso_tensor_count(r->images); i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 16777216.0f - 0.5f;
    }
    bench_require(iso_tensor_unmap(r->images));
    r->labels = calloc((size_t)r->o->batch, sizeof(*r->labels));
    for (int i = 0; i < r->o->batch; i++) r->labels[i] = (i * 7 + iso_comm_rank(r->comm)) % 10;
}

enum { WIDE_LAYERS = 6, WIDE = 4100 };

static iso_status make_wide(scale_run *r, const iso_dataset_info *input, iso_rng *rng) {
    int64_t sample[3] = {input->channels, input->height, input->width};
    char name[WIDE_LAYERS + 2][8];
    iso_layer layer[WIDE_LAYERS + 3] = {{.kind = ISO_FLATTEN, .name = "flatten"}};
    for (int i = 0; i < WIDE_LAYERS + 2; i++) {
        bool last = i == WIDE_LAYERS + 1;
        snprintf(name[i], sizeof(name[i]), "fc%d", i + 1);
        layer[1 + i] = (iso_layer){
            .kind = ISO_LINEAR, .out = last ? 10 : WIDE, .relu = !last, .name = name[i]};
    }
    return iso_sequential_build(r->device, sample, layer, WIDE_LAYERS + 3, rng, &r->model);
}

static void make_model(scale_run *r) {
    const iso_dataset_info input = input_of(r->o->model);
    iso_rng rng = {.seed = 1};
    if (strcmp(r->o->model, "wide") == 0)
        bench_require(make_wide(r, &input, &rng));
    else
        bench_require(model_create(r->o->model, r->device, &input, false, &rng, &r->model));
}

static bool is_modelled(const scale_options *o) { return strncmp(o->device, "model:", 6) == 0; }

// By the host: the kernels of a modelled device do nothing.
static void clear_values(iso_tensor *tensor) {
    void *value;
    bench_require(iso_tensor_map(tensor, ISO_WRITE, &value));
    memset(value, 0, (size_t)iso_tensor_count(tensor) * iso_dtype_size(iso_tensor_dtype(tensor)));
    bench_require(iso_tensor_unmap(tensor));
}

// Parameters that mean nothing are zeros: so are the sums of all ranks then, also in memory that
// simulated ranks share, and no mode finds infinite values.
static void count_parameters(scale_run *r) {
    iso_parameter_list list;
    bench_require(iso_module_parameters(r->model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value;
        bench_require(iso_parameter_value(list.item[i], &value));
        r->parameters += iso_tensor_count(value);
        if (is_modelled(r->o)) clear_values(value);
    }
    iso_parameter_list_destroy(&list);
}

static void wrap_up(scale_run *r) {
    char warning[ISO_STRATEGY_WARNING] = "";
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.001, hyper.momentum = 0.9;
    iso_optimizer *sgd;
    if (r->o->settings) {
        bench_require(iso_settings_create(&r->settings));
        bench_require(iso_settings_parse(r->settings, r->o->settings));
    }
    int64_t steps = r->o->steps + r->o->warmup;
    r->context = (iso_strategy_context){.comm = r->comm,
                                        .data_parallel = ISO_DATA_PARALLEL_DEFAULT,
                                        .total_steps = steps,
                                        .steps_per_epoch = steps,
                                        .settings = r->settings};
    r->context.data_parallel.keep_values = r->o->equal;
    bench_require(iso_strategy_find(r->o->sync, &r->strategy));
    bench_require(iso_strategy_check(r->strategy, &r->context, warning));
    bench_require(iso_strategy_wrap_module_take(r->strategy, &r->context, r->model, &r->model));
    bench_require(iso_optimizer_create(ISO_SGD, r->model, &hyper, &sgd));
    bench_require(
        iso_strategy_wrap_optimizer_take(r->strategy, &r->context, sgd, r->model, &r->optimizer));
}

static void set_up(scale_run *r, const scale_options *o, iso_comm *comm) {
    int64_t start = iso_now();
    *r = (scale_run){.o = o, .comm = comm};
    bench_model_open(o->device, comm, &r->device);
    bench_require(iso_loss_create(r->device, ISO_CROSS_ENTROPY, &r->loss));
    make_input(r);
    make_model(r);
    count_parameters(r);
    wrap_up(r);
    r->start_ms = bench_ms_since(start);
}

static void tear_down(scale_run *r) {
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_loss_destroy(&r->loss);
    iso_tensor_destroy(&r->images);
    iso_settings_destroy(&r->settings);
    iso_device_destroy(&r->device);
    free(r->labels);
}

// ---- Steps ----------------------------------------------------------------------------------------

static void charge_exchanges(scale_run *r) {
    iso_strategy_stats stats;
    if (r->o->work_ns == 0) return;
    bench_require(iso_strategy_get_stats(r->strategy, r->optimizer, &stats));
    for (; r->syncs < stats.syncs; r->syncs++)
        bench_model_spend(r->o->work_ns * (double)r->parameters * 1e-6);
}

static void make_step(scale_run *r) {
    iso_tensor *out, *grad;
    double value;
    iso_optimizer_zero_grad(r->optimizer);
    bench_require(iso_module_forward(r->model, r->images, &out));
    bench_require(iso_loss_compute(r->loss, out, r->labels, &value, NULL, &grad));
    if (r->o->slow_ms > 0 && iso_comm_rank(r->comm) == iso_comm_size(r->comm) - 1)
        bench_model_spend(r->o->slow_ms);
    bench_require(iso_module_backward(r->model, grad, NULL));
    bench_require(iso_strategy_reduce_gradients(r->strategy, r->model));
    bench_require(iso_optimizer_step(r->optimizer));
    charge_exchanges(r);
    bench_model_rest();
}

// Bytes of this rank so far, and of them those between nodes; ms of work on exchanged parameters.
static void read_traffic(scale_run *r, double out[3]) {
    iso_traffic gradients = {0};
    iso_strategy_stats stats;
    bench_require(iso_data_parallel_get_traffic(r->model, &gradients));
    bench_require(iso_strategy_get_stats(r->strategy, r->optimizer, &stats));
    out[0] = (double)gradients.bytes_sent + (double)stats.bytes_sent;
    out[1] = (double)gradients.bytes_between_nodes + (double)stats.bytes_between_nodes;
    out[2] = stats.work_ms;
}

static void settle(scale_run *r) {
    bench_require(iso_strategy_complete(r->strategy, r->optimizer));
    bench_require(iso_comm_barrier(r->comm));
}

static void report(scale_run *r, double step_ms, double bytes[3]) {
    uint64_t hash;
    iso_strategy_stats stats;
    double most[2] = {step_ms, r->start_ms};
    bool modelled = is_modelled(r->o);
    bench_require(iso_comm_allreduce_f64(r->comm, most, 2, ISO_MAX));
    bench_require(iso_comm_allreduce_f64(r->comm, bytes, 3, ISO_SUM));
    if (!modelled) bench_require(iso_parameter_hash(r->model, r->comm, &hash, NULL));
    bench_require(iso_strategy_get_stats(r->strategy, r->optimizer, &stats));
    if (iso_comm_rank(r->comm) != 0) return;
    int ranks = iso_comm_size(r->comm), steps = r->o->steps;
    printf("{\"bench\": \"scale\", \"model\": \"%s\", \"parameters\": %" PRId64
           ", \"sync\": \"%s\", \"settings\": \"%s\", \"batch\": %d, \"ranks\": %d, \"steps\": %d, "
           "\"step_ms\": %.4f, \"start_ms\": %.1f, \"sent_bytes_per_step\": %.0f, "
           "\"between_nodes_bytes_per_step\": %.0f, \"work_ms_per_step\": %.4f",
           r->o->model, r->parameters, r->o->sync, r->o->settings ? r->o->settings : "",
           r->o->batch, ranks, steps, most[0], most[1], bytes[0] / steps, bytes[1] / steps,
           bytes[2] / steps / ranks);
    if (stats.syncs >= 0)
        printf(", \"period\": %" PRId64 ", \"wait\": %" PRId64 ", \"exchange_ms\": %.3f",
               stats.period, stats.wait, stats.exchange_ms);
    if (!modelled) printf(", \"hash\": \"%016" PRIx64 "\"", hash);
    printf("}\n");
    fflush(stdout);
}

static void measure(scale_run *r) {
    double before[3], bytes[3];
    for (int i = 0; i < r->o->warmup; i++) make_step(r);
    settle(r);
    read_traffic(r, before);
    int64_t start = iso_now();
    for (int i = 0; i < r->o->steps; i++) make_step(r);
    double step_ms = bench_ms_since(start) / r->o->steps;
    settle(r);
    read_traffic(r, bytes);
    for (int i = 0; i < 3; i++) bytes[i] -= before[i];
    report(r, step_ms, bytes);
    bench_require(iso_strategy_finish(r->strategy, r->optimizer));
}

int main(int argc, char **argv) {
    scale_options o = parse_options(argc, argv);
    scale_run r;
    iso_comm *comm = bench_start(&argc, &argv, o.progress);
    set_up(&r, &o, comm);
    measure(&r);
    tear_down(&r);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
