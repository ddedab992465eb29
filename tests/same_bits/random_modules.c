// SPDX-License-Identifier: MIT
// Trains a random network under DataParallel: SEED decides everything. Prints hashes of the result.
//
// usage: random_modules SEED [DEVICE]; what it chose goes to standard error (rank 0)
// Compiled with -DZERO=0, 1, 2 or 3 it trains without ZeRO, or with that stage of it, and leaves
// out what ZeRO cannot do, or does with other bits.
#include "random_case.h"

enum { ROWS = 8, CLASSES = 5, CHANNELS = 2, SIZE = 8, STEPS = 10 };

typedef enum exchange { EVERY_STEP, DASO, DASO_HEAT, LOCAL_SGD } exchange;

// Equal on all ranks.
typedef struct plan {
    iso_data_parallel_config dp;
    iso_layer layer[16];
    int layers;
    iso_optimizer_kind optimizer;
    exchange exchange;
    iso_join_config join;
    iso_daso_config daso;
    iso_dtype dtype;
    bool joins, sync_batchnorm, clips, two_optimizers, manual, looks, pre_sync;
    int accumulate, evaluate_every;
    double list_mb[2];
    const char *ignored[1];
} plan;

static plan p;
static uint64_t seed, shared; // shared: the state of choices that all ranks make
static int rank, ranks;
static iso_comm *comm;
static iso_device *device;

// ---- Choices --------------------------------------------------------------------------------------

static void choose_layers(void) {
    iso_layer *l = p.layer;
    int convolutions = choose(&shared, 3), linears = choose(&shared, 3);
    for (int i = 0; i < convolutions; i++) {
        *l++ = (iso_layer){ISO_CONV2D, .out = 3 + choose(&shared, 4), .size = 3, .padding = 1,
                           .relu = true};
        if (one_in(&shared, 2)) *l++ = (iso_layer){.kind = ISO_BATCH_NORM};
    }
    *l++ = (iso_layer){.kind = ISO_FLATTEN};
    for (int i = 0; i < linears; i++)
        *l++ = (iso_layer){ISO_LINEAR, .out = 8 + choose(&shared, 60), .relu = true};
    if (linears > 0 && one_in(&shared, 3)) *l++ = (iso_layer){ISO_DROPOUT, .p = 0.25};
    *l++ = (iso_layer){ISO_LINEAR, .out = CLASSES, .name = "last"};
    p.layers = (int)(l - p.layer);
}

static void choose_buckets(void) {
    static const double sizes[] = {0, 0.001, 0.01, 0.1, 1};
    p.dp.bucket_mb = sizes[choose(&shared, 5)];
    p.dp.piece_mb = one_in(&shared, 2) ? 0.0005 : 0;
    if (one_in(&shared, 3)) p.dp.first_bucket_mb = sizes[1 + choose(&shared, 4)];
    if (one_in(&shared, 3)) p.dp.last_bucket_mb = sizes[1 + choose(&shared, 4)];
    if (one_in(&shared, 6)) {
        p.dp.bucket_mb = p.dp.first_bucket_mb = p.dp.last_bucket_mb = 0;
        p.list_mb[0] = sizes[1 + choose(&shared, 4)];
        p.list_mb[1] = sizes[1 + choose(&shared, 4)];
        p.dp.bucket_list_mb = p.list_mb;
        p.dp.bucket_list_count = 2;
    }
}

static void choose_data_parallel(void) {
    static const iso_comm_hook *const hooks[] = {&iso_hook_f16, &iso_hook_bf16,
                                                 &iso_hook_bf16_feedback, &iso_hook_noop};
    iso_data_parallel_config *c = &p.dp;
    *c = ISO_DATA_PARALLEL_DEFAULT;
    c->sync = one_in(&shared, 2) ? ISO_SYNC_LAZY
                                 : (iso_sync[]){ISO_SYNC_LAZY, ISO_SYNC_BLOCKING,
                                                ISO_SYNC_EXPLICIT}[choose(&shared, 3)];
    c->order = one_in(&shared, 3) ? ISO_ORDER_REVERSE : ISO_ORDER_NEED;
    c->average = (iso_average_mode)choose(&shared, 3);
    c->split_factor = 2;
    c->find_unused_parameters = one_in(&shared, 4);
    if (one_in(&shared, 3)) c->hook = hooks[choose(&shared, 4)];
    if (one_in(&shared, 6)) c->scope = ISO_SCOPE_NODE;
    c->buffers.mode = (iso_buffer_mode)choose(&shared, 3);
    c->buffers.when = (iso_buffer_when)choose(&shared, 4);
    if (one_in(&shared, 5)) {
        p.ignored[0] = "last.bias";
        c->ignore = p.ignored;
        c->ignore_count = 1;
    }
    choose_buckets();
}

static void choose_periodic(void) {
    p.exchange = (exchange)(1 + choose(&shared, 3));
    p.dp.sync = ISO_SYNC_LAZY;
    p.dp.scope = ISO_SCOPE_WORLD;
    p.dp.hook = NULL;
    p.dp.ignore_count = 0;
    p.dp.average = ISO_AVERAGE_POST;
    p.dtype = ISO_F32;
    p.daso = ISO_DASO_DEFAULT;
    p.daso.total_steps = STEPS;
    p.daso.warmup_steps = choose(&shared, 3);
    p.daso.cooldown_steps = choose(&shared, 3);
    p.daso.global_skip = 1 + choose(&shared, 3);
    p.daso.batches_to_wait = choose(&shared, (int)p.daso.global_skip + 1);
    p.daso.local_skip = 1 + choose(&shared, 2);
    p.daso.unit = one_in(&shared, 2) ? ISO_SCOPE_NODE : ISO_SCOPE_RANK;
    p.daso.merge = one_in(&shared, 2) ? ISO_MERGE_PROGRESS : ISO_MERGE_HEAT;
    p.daso.wire = (iso_wire[]){ISO_WIRE_F32, ISO_WIRE_BF16, ISO_WIRE_F16}[choose(&shared, 3)];
    p.daso.state = (iso_state_sync)choose(&shared, 3);
}

// What ranks do with uneven data, for which gradients are averaged over all of them.
static void choose_join(void) {
    p.joins = p.exchange == EVERY_STEP && p.dp.scope == ISO_SCOPE_WORLD &&
              p.dp.sync != ISO_SYNC_EXPLICIT && one_in(&shared, 4);
    p.join.mode = one_in(&shared, 3) ? ISO_JOIN_EQUALISE : ISO_JOIN_SHADOW;
    p.join.divisor = (iso_join_divisor)choose(&shared, 3);
    if (!p.joins) return;
    p.sync_batchnorm = p.pre_sync = p.manual = p.dp.find_unused_parameters = false;
    p.evaluate_every = STEPS + 1;
    p.dp.buffers = (iso_buffer_config){0};
}

static void choose_all(void) {
    choose_layers();
    choose_data_parallel();
    p.optimizer = (iso_optimizer_kind)choose(&shared, 7);
    p.dtype = one_in(&shared, 5) ? ISO_F64 : ISO_F32;
    p.accumulate = one_in(&shared, 3) ? 2 : 1;
    p.evaluate_every = one_in(&shared, 2) ? 3 : STEPS + 1;
    p.sync_batchnorm = one_in(&shared, 4);
    p.clips = one_in(&shared, 5);
    p.two_optimizers = one_in(&shared, 4);
    p.looks = one_in(&shared, 4);
    p.pre_sync = one_in(&shared, 5);
    p.manual = one_in(&shared, 5);
    if (one_in(&shared, 3)) choose_periodic();
    p.two_optimizers = p.two_optimizers && p.exchange == EVERY_STEP;
    choose_join();
}

#ifdef ZERO
// ZeRO adds ranks in another order for f64 and for the norm of clipping. It may cut other pieces,
// and a library's product of some rows may have other bits than its product of all rows. The
// reference kernels give the same bits, unless Linear adds to gradients row by row.
static void restrict_plan(void) {
    const char *kernels = getenv("ISO_CPU_KERNELS");
    bool by_rows = kernels && strcmp(kernels, "reference") == 0 && p.accumulate == 1;
    p.dp.hook = NULL;
    p.dp.scope = ISO_SCOPE_WORLD;
    p.dp.zero = ZERO;
    p.exchange = EVERY_STEP;
    p.dtype = ISO_F32;
    p.clips = p.two_optimizers = false;
    if (p.joins) p.looks = false; // with stage 3 one rank alone cannot, see parallel.h
    if (!by_rows) p.dp.piece_mb = 0;
    if (p.optimizer == ISO_LAMB) p.optimizer = ISO_ADAMW;
}
#else
static void restrict_plan(void) {}
#endif

static void tell_plan(void) {
    const iso_data_parallel_config *c = &p.dp;
    if (rank > 0) return;
    fprintf(stderr,
            "seed %llu: %d layers %s, exchange %d, sync %d, scope %d, order %d, average %d, "
            "hook %s, buffers %d/%d, optimizer %d, accumulate %d%s%s%s%s%s%s%s%s%s\n",
            (unsigned long long)seed, p.layers, iso_dtype_name(p.dtype), (int)p.exchange,
            (int)c->sync, (int)c->scope, (int)c->order, (int)c->average,
            c->hook ? c->hook->name : "plain", (int)c->buffers.mode, (int)c->buffers.when,
            (int)p.optimizer, p.accumulate, c->find_unused_parameters ? ", find unused" : "",
            c->ignore_count ? ", ignore" : "", p.joins ? ", join" : "",
            p.sync_batchnorm ? ", sync batch norm" : "", p.clips ? ", clip" : "",
            p.two_optimizers ? ", two optimizers" : "", p.manual ? ", manual backward" : "",
            p.looks ? ", looks" : "", p.pre_sync ? ", pre-sync hook" : "");
}

// ---- Model ----------------------------------------------------------------------------------------

typedef struct trainer {
    iso_module *model;
    iso_optimizer *optimizer[2];
    int optimizers;
    iso_loss *loss;
    iso_tensor *images;
    iso_join *join;
    int hook;
    uint64_t seen; // hash of what was looked at on the way
} trainer;

// Looks at a gradient that is still this rank's own.
static iso_status before_exchange(iso_module *model, void *user) {
    trainer *t = user;
    iso_parameter_list list;
    void *data;
    check(iso_module_parameters(model, &list));
    iso_tensor *gradient = list.item[0]->grad;
    check(iso_tensor_map(gradient, ISO_READ, &data));
    size_t bytes = (size_t)iso_tensor_count(gradient) * iso_dtype_size(iso_tensor_dtype(gradient));
    t->seen = hash_bytes(t->seen, data, bytes);
    check(iso_tensor_unmap(gradient));
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

static bool is_first_layer(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return name[0] == '0' || name[0] == '1';
}

static void tie_optimizer(trainer *t, iso_module *part) {
    iso_hyper h = iso_hyper_default(p.optimizer);
    if (p.optimizer == ISO_SGD || p.optimizer == ISO_RMSPROP) h.momentum = 0.9;
    iso_optimizer **out = &t->optimizer[t->optimizers++];
    check(iso_optimizer_create(p.optimizer, part, &h, out));
    if (one_in(&shared, 4)) {
        h.lr *= 0.5; // there may be no such parameters
        if (iso_optimizer_add_group(*out, &h, is_first_layer, NULL, NULL) == ISO_ERR_ARG) h.lr *= 2;
    }
    check(iso_dp_optimizer_create_take(*out, t->model, out));
}

static void tie_periodic(trainer *t) {
    iso_optimizer **o = &t->optimizer[0];
    if (p.exchange == DASO) check(iso_daso_create_take(*o, t->model, &p.daso, o));
    if (p.exchange == LOCAL_SGD) {
        iso_daso_config local = iso_local_sgd_config(STEPS, 1 + choose(&shared, 4));
        check(iso_daso_create_take(*o, t->model, &local, o));
    }
    if (p.exchange == DASO_HEAT) {
        iso_daso_heat_config heat = ISO_DASO_HEAT_DEFAULT;
        heat.total_epochs = 5;
        heat.warmup_epochs = heat.cooldown_epochs = 1;
        heat.max_global_skips = 1 + choose(&shared, 4);
        heat.sending_chunk_size = one_in(&shared, 2) ? 100 : 100000;
        heat.last_batch = 1;
        heat.downcast_type = (iso_dtype)p.daso.wire;
        check(iso_daso_heat_create_take(*o, t->model, &heat, o));
    }
}

static void make_trainer(trainer *t) {
    iso_rng rng = {.seed = seed};
    int64_t sample[3] = {CHANNELS, SIZE, SIZE}, shape[4] = {ROWS, CHANNELS, SIZE, SIZE};
    iso_module *net;
    *t = (trainer){.seen = HASH_START};
    check(iso_sequential_build(device, sample, p.layer, p.layers, &rng, &net));
    check(iso_module_to(net, p.dtype));
    if (p.sync_batchnorm) check(iso_sync_batchnorm_convert(net, comm, NULL));
    check(iso_data_parallel_create_take(net, comm, &p.dp, &t->model));
    if (p.pre_sync)
        check(iso_data_parallel_add_pre_sync_hook(t->model, before_exchange, t, &t->hook));
    if (p.two_optimizers && net->child_count > 2) {
        for (int i = 0; i < net->child_count; i++)
            if (iso_module_parameter_count(net->child[i]) > 0 && t->optimizers < 2 &&
                (t->optimizers == 0 || i == net->child_count - 1))
                tie_optimizer(t, net->child[i]);
    } else {
        tie_optimizer(t, t->model);
    }
    tie_periodic(t);
    check(iso_loss_create(device, ISO_CROSS_ENTROPY, &t->loss));
    check(iso_tensor_create(device, p.dtype, 4, shape, &t->images));
    if (p.joins) check(iso_join_begin(t->model, &p.join, &t->join));
}

static void free_trainer(trainer *t) {
    iso_join_end(&t->join);
    iso_tensor_destroy(&t->images);
    iso_loss_destroy(&t->loss);
    while (t->optimizers > 0) iso_optimizer_destroy(&t->optimizer[--t->optimizers]);
    iso_module_destroy(&t->model);
}

// ---- Steps ----------------------------------------------------------------------------------------

static void write_batch(trainer *t, int batch, int32_t *labels) {
    void *data;
    check(iso_tensor_map(t->images, ISO_WRITE, &data));
    for (int64_t k = 0; k < iso_tensor_count(t->images); k++) {
        double x = value_at(seed, (uint64_t)(100 * batch + rank), (uint64_t)k);
        if (p.dtype == ISO_F64)
            ((double *)data)[k] = x;
        else
            ((float *)data)[k] = (float)x;
    }
    check(iso_tensor_unmap(t->images));
    for (int n = 0; n < ROWS; n++) labels[n] = (n * 7 + batch + rank) % CLASSES;
}

static void make_gradient(trainer *t, int batch) {
    int32_t labels[ROWS];
    iso_tensor *output, *gradient;
    write_batch(t, batch, labels);
    check(iso_module_forward(t->model, t->images, &output));
    check(iso_loss_compute(t->loss, output, labels, NULL, NULL, &gradient));
    if (!p.manual) {
        check(iso_module_backward(t->model, gradient, NULL));
        return;
    }
    check(iso_data_parallel_begin_backward(t->model));
    check(iso_module_call_backward(iso_data_parallel_module(t->model), gradient, NULL));
    check(iso_data_parallel_end_backward(t->model));
}

static iso_status finish_step(void *user) {
    trainer *t = user;
    if (p.clips) check(iso_clip_grad_norm(t->model, 0.5, 2, NULL));
    for (int i = 0; i < t->optimizers; i++) {
        iso_optimizer_hyper(t->optimizer[i])->lr *= 0.97;
        check(iso_optimizer_step(t->optimizer[i]));
    }
    return ISO_OK;
}

// False: all ranks are through.
static bool has_next(trainer *t, int step, bool sync) {
    if (!p.joins) return step < STEPS;
    iso_status status = iso_join_next(t->join, step < STEPS - 2 * rank ? ROWS : 0, sync);
    check(status);
    return status == ISO_OK;
}

static bool make_step(trainer *t, int step) {
    for (int i = 0; i < t->optimizers; i++) iso_optimizer_zero_grad(t->optimizer[i]);
    if (p.accumulate > 1 && !p.joins) {
        check(iso_data_parallel_begin_no_sync(t->model));
        make_gradient(t, 50 + step);
        check(iso_data_parallel_end_no_sync(t->model));
    }
    if (!has_next(t, step, true)) return false;
    make_gradient(t, step);
    if (p.dp.sync == ISO_SYNC_EXPLICIT) check(iso_data_parallel_all_reduce_gradients(t->model));
    check(finish_step(t));
    return true;
}

static uint64_t hash_tensor(uint64_t hash, iso_tensor *tensor) {
    void *data;
    check(iso_tensor_map(tensor, ISO_READ, &data));
    size_t bytes = (size_t)iso_tensor_count(tensor) * iso_dtype_size(iso_tensor_dtype(tensor));
    hash = hash_bytes(hash, data, bytes);
    check(iso_tensor_unmap(tensor));
    return hash;
}

static uint64_t hash_model(trainer *t, uint64_t hash) {
    iso_parameter_list parameters;
    iso_buffer_list buffers;
    check(iso_module_parameters(t->model, &parameters));
    check(iso_module_buffers(t->model, &buffers));
    for (int i = 0; i < parameters.count; i++) {
        iso_tensor *value;
        check(iso_parameter_value(parameters.item[i], &value));
        hash = hash_tensor(hash, value);
    }
    for (int i = 0; i < buffers.count; i++) hash = hash_tensor(hash, buffers.item[i]->value);
    iso_parameter_list_destroy(&parameters);
    iso_buffer_list_destroy(&buffers);
    return hash;
}

static void look_at_evaluation(trainer *t, int batch) {
    int32_t labels[ROWS];
    iso_tensor *output;
    check(iso_module_train(t->model, false));
    write_batch(t, batch, labels);
    check(iso_module_forward(t->model, t->images, &output));
    t->seen = hash_tensor(t->seen, output);
    check(iso_module_train(t->model, true));
}

static void train(trainer *t) {
    p.join.step = finish_step;
    p.join.user = t;
    make_trainer(t);
    for (int step = 0; p.joins || step < STEPS; step++) {
        if (!make_step(t, step)) break;
        if ((step + 1) % p.evaluate_every == 0) look_at_evaluation(t, 90 + step);
        if (p.looks && step % 4 == 1) t->seen = hash_model(t, t->seen);
    }
    check(iso_data_parallel_finish(t->model));
    if (p.exchange != EVERY_STEP) check(iso_daso_finish(t->optimizer[0]));
}

// "cuda" without a number is a GPU for each rank.
static void open_device(const char *name) {
    char own[32];
    snprintf(own, sizeof(own), "cuda:%d", rank);
    check(iso_device_create(strcmp(name, "cuda") == 0 ? own : name, &device));
}

int main(int argc, char **argv) {
    int provided;
    trainer t;
    if (argc < 2) return 2;
    seed = strtoull(argv[1], NULL, 10);
    shared = seed;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    rank = iso_comm_rank(comm);
    ranks = iso_comm_size(comm);
    open_device(argc > 2 ? argv[2] : "cpu");
    choose_all();
    restrict_plan();
    tell_plan();
    train(&t);
    print_hash(comm, "on the way", t.seen);
    print_hash(comm, "model", hash_model(&t, HASH_START));
    free_trainer(&t);
    iso_device_destroy(&device);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
