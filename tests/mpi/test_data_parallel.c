// DataParallel with DataParallelOptimizer on 1 to 4 ranks: lazy = blocking = one rank on the whole batch.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

TestSuite(np1_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static iso_status train(trainer *t, int steps) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < steps; step++) status = trainer_step(t, step, NULL);
    return status;
}

static uint64_t hash_after(const trainer_config *config, int steps) {
    trainer t;
    uint64_t hash = 0;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(train(&t, steps));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

// ---- Lazy = blocking, bit for bit -------------------------------------------------------------------

static trainer_config with_optimizer(int variant) {
    static const iso_optimizer_kind kind[] = {ISO_SGD, ISO_SGD, ISO_ADAM, ISO_ADAMW, ISO_ADADELTA};
    trainer_config config = trainer_default();
    config.optimizer = kind[variant];
    config.hyper = iso_hyper_default(kind[variant]);
    config.hyper.lr = variant < 2 ? 0.05 : variant == 4 ? 1 : 0.003;
    config.hyper.weight_decay = 0.001;
    if (variant == 1) {
        config.hyper.momentum = 0.9;
        config.hyper.nesterov = true;
    }
    return config;
}

static void lazy_equals_blocking(void) {
    for (int variant = 0; variant < 5; variant++) {
        trainer_config config = with_optimizer(variant);
        config.dropout = variant % 2 == 0;
        uint64_t start = hash_after(&config, 0), lazy = hash_after(&config, 50);
        config.sync = ISO_SYNC_BLOCKING;
        uint64_t blocking = hash_after(&config, 50);
        iso_assert_all(lazy == blocking && lazy != start);
    }
}

Test(np1_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np2_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np3_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np4_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }

// The bucket size changes which sums travel together; Rabenseifner's algorithm gives the same bits whole or in parts.
Test(np2_data_parallel, bucket_size_does_not_change_the_bits) {
    trainer_config config = trainer_default();
    uint64_t per_layer = hash_after(&config, 20);
    config.bucket_mb = 100;
    iso_assert_all(hash_after(&config, 20) == per_layer);
}

// ---- N ranks = one rank on the whole batch ----------------------------------------------------------

// The same numbers are summed in another order, so they agree to rounding: 12 rows, 20 steps, float.
static void equals_one_rank(bool dropout) {
    trainer_config config = trainer_default();
    config.dropout = dropout;
    trainer many, one;
    iso_comm *alone;
    double difference = 1, step_0 = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(trainer_difference(&many, &one, &step_0));
    iso_assert_ok(train(&many, 20));
    iso_assert_ok(train(&one, 20));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(step_0 == 0 && difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np3_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np4_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np3_data_parallel, equals_one_rank_with_dropout) { equals_one_rank(true); }
Test(np4_data_parallel, equals_one_rank_with_dropout) { equals_one_rank(true); }

Test(np2_data_parallel, learns) {
    trainer_config config = trainer_default();
    trainer t;
    double first, last = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, &first));
    for (int step = 1; step < 60; step++) iso_assert_ok(trainer_step(&t, step, &last));
    iso_assert_all(last < first / 2);
    trainer_destroy(&t);
}

// ---- Nothing pending is ever lost or seen -----------------------------------------------------------

// What is expected after `steps` steps, from a blocking run.
static uint64_t expected_hash(int steps) {
    trainer_config config = trainer_default();
    config.sync = ISO_SYNC_BLOCKING;
    return hash_after(&config, steps);
}

Test(np2_data_parallel, evaluation_mode_completes_pending_updates) {
    trainer_config config = trainer_default();
    trainer lazy, blocking;
    iso_tensor *out;
    void *data;
    float a[60] = {0}, b[60] = {1};
    iso_assert_ok(trainer_create(&lazy, test_comm, &config));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_create(&blocking, test_comm, &config));
    trainer *t[2] = {&lazy, &blocking};
    float *copy[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        iso_assert_ok(train(t[i], 3));
        iso_assert_ok(iso_module_train(t[i]->model, false));
        iso_assert_ok(trainer_forward(t[i], 9, &out));
        iso_assert_ok(iso_tensor_map(out, ISO_READ, &data));
        memcpy(copy[i], data, (size_t)iso_tensor_count(out) * sizeof(float));
        iso_assert_ok(iso_tensor_unmap(out));
    }
    iso_assert_all(memcmp(a, b, 30 * sizeof(float)) == 0);
    trainer_destroy(&lazy);
    trainer_destroy(&blocking);
}

Test(np2_data_parallel, parameter_access_completes_pending_updates) {
    uint64_t expected = expected_hash(3), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_parameter_list list;
    iso_tensor *value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(train(&t, 2));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_assert_ok(iso_parameter_value(list.item[3], &value)); // in mid-run: the next step must not be disturbed
    iso_parameter_list_destroy(&list);
    iso_assert_ok(trainer_step(&t, 2, NULL));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

Test(np2_data_parallel, destroying_the_optimizer_completes_pending_updates) {
    uint64_t expected = expected_hash(3), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(train(&t, 3));
    iso_optimizer_destroy(&t.optimizer);
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

Test(np2_data_parallel, hyperparameters_are_frozen_at_step) {
    uint64_t expected = expected_hash(4), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_hyper *hyper = iso_optimizer_hyper(t.optimizer);
    for (int step = 0; step < 4; step++) {
        hyper->lr = config.hyper.lr;
        iso_assert_ok(trainer_step(&t, step, NULL));
        hyper->lr = 1e6; // a schedule stepped before the lazy update ran
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

// ---- zero_grad and accumulation ---------------------------------------------------------------------

static iso_status backward_only(trainer *t, int step) {
    iso_tensor *out, *grad;
    double value;
    iso_status status = trainer_forward(t, step, &out);
    if (status == ISO_OK) status = iso_loss_compute(t->loss, out, t->labels, &value, NULL, &grad);
    if (status == ISO_OK) status = iso_module_backward(t->model, grad, NULL);
    return status;
}

// zero_grad after the forward instead of before it: the same training.
Test(np2_data_parallel, zero_grad_may_stand_after_forward) {
    uint64_t expected = expected_hash(5), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out, *grad;
    double value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 5; step++) {
        iso_assert_ok(trainer_forward(&t, step, &out));
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(iso_loss_compute(t.loss, out, t.labels, &value, NULL, &grad));
        iso_assert_ok(iso_module_backward(t.model, grad, NULL));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

// Two backwards before one step: gradients add up, and equal those of one rank that does the same.
static void accumulation_equals_one_rank(iso_sync sync) {
    trainer_config config = trainer_default();
    config.sync = sync;
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    trainer *t[2] = {&many, &one};
    for (int i = 0; i < 2; i++)
        for (int step = 0; step < 6; step++) {
            if (step % 2 == 0) iso_optimizer_zero_grad(t[i]->optimizer);
            iso_status status = backward_only(t[i], step);
            if (status == ISO_OK && step % 2 == 1) status = iso_optimizer_step(t[i]->optimizer);
            iso_assert_ok(status);
        }
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 1e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_data_parallel, accumulation_equals_one_rank) { accumulation_equals_one_rank(ISO_SYNC_LAZY); }
Test(np3_data_parallel, blocking_accumulation_equals_one_rank) { accumulation_equals_one_rank(ISO_SYNC_BLOCKING); }

Test(np2_data_parallel, gradients_read_from_outside_are_averages) {
    trainer_config config = trainer_default();
    trainer many, one;
    iso_comm *alone;
    iso_parameter_list pm, po;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(backward_only(&many, 0));
    iso_assert_ok(backward_only(&one, 0));
    iso_assert_ok(iso_module_parameters(many.model, &pm));
    iso_assert_ok(iso_module_parameters(one.model, &po));
    double worst = 0;
    for (int i = 0; i < pm.count; i++) {
        iso_tensor *gm, *go;
        iso_assert_ok(iso_parameter_grad(pm.item[i], &gm));
        iso_assert_ok(iso_parameter_grad(po.item[i], &go));
        const float *x = iso_tensor_data(gm), *y = iso_tensor_data(go);
        for (int64_t k = 0; k < iso_tensor_count(gm); k++) worst = fmax(worst, fabs((double)x[k] - (double)y[k]));
    }
    iso_assert_all(worst < 1e-6);
    iso_parameter_list_destroy(&pm);
    iso_parameter_list_destroy(&po);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

// ---- Layers used twice, not at all, or frozen --------------------------------------------------------

// flatten, fc (200-200) twice, out; "fc" is one module in two places.
static iso_status build_shared(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m, *shared;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 200, true, &rng, &shared);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "fc", iso_module_retain(shared));
    if (status == ISO_OK) status = iso_relu_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "again", shared);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "out", m);
    *out = net;
    return status;
}

static void compare_with_one_rank(trainer_config config) {
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    uint64_t lazy, blocking;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(train(&many, 10));
    iso_assert_ok(train(&one, 10));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
    lazy = hash_after(&config, 10);
    config.sync = ISO_SYNC_BLOCKING;
    blocking = hash_after(&config, 10);
    iso_assert_all(lazy == blocking);
}

Test(np2_data_parallel, layer_used_twice) {
    trainer_config config = trainer_default();
    config.build = build_shared;
    compare_with_one_rank(config);
}

static iso_status build_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    iso_status status = build_small_cnn(device, dropout, out);
    if (status == ISO_OK) status = iso_module_parameters(*out, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count; i++)
        if (i < 2 || i == 5) list.item[i]->requires_grad = false; // conv1 whole, fc1 in part
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_data_parallel, frozen_parameters) {
    trainer_config config = trainer_default();
    config.build = build_frozen;
    compare_with_one_rank(config);
}

static iso_status build_all_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    iso_status status = build_small_cnn(device, dropout, out);
    if (status == ISO_OK) status = iso_module_parameters(*out, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count; i++) list.item[i]->requires_grad = false;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_data_parallel, nothing_to_train_is_refused) {
    trainer_config config = trainer_default();
    config.build = build_all_frozen;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_ARG);
    trainer_destroy(&t);
}

// A container of two branches that runs only the one that is switched on.
static int branch_on;

static iso_status branch_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    return iso_module_call(self->child[branch_on], ISO_ACT_NONE, in, out);
}

static iso_status branch_backward(iso_module *self, iso_call *call, iso_tensor *grad_out, iso_tensor **grad_in) {
    (void)call;
    return iso_module_call_backward(self->child[branch_on], grad_out, grad_in);
}

static const iso_module_ops branch_ops = {.type = "Branch", .forward = branch_forward, .backward = branch_backward};

static iso_status build_branches(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_module *branch = calloc(1, sizeof(*branch)), *a, *b;
    iso_status status = iso_module_init(branch, &branch_ops, device);
    if (status == ISO_OK) status = build_small_cnn(device, false, &a);
    if (status == ISO_OK) status = build_small_cnn(device, false, &b);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "a", a);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "b", b);
    *out = branch;
    return status;
}

static iso_status train_branches(trainer *t, int steps) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < steps; step++) {
        branch_on = step / 2 % 2; // each unused for two steps, so that leftovers and zeros both occur
        status = trainer_step(t, step, NULL);
    }
    return status;
}

Test(np2_data_parallel, unused_layers) {
    trainer_config config = trainer_default();
    config.build = build_branches;
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        config.sync = i ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        trainer t;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(train_branches(&t, 12));
        iso_assert_ok(trainer_hash(&t, &hash[i]));
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// ---- Other settings ---------------------------------------------------------------------------------

Test(np3_data_parallel, communicator_smaller_than_the_world) {
    MPI_Comm part;
    iso_comm *comm;
    trainer t;
    uint64_t hash;
    trainer_config config = trainer_default();
    MPI_Comm_split(MPI_COMM_WORLD, test_rank == 0, 0, &part); // {0}, {1, 2}
    iso_assert_ok(iso_comm_create(part, NULL, &comm));
    MPI_Comm_free(&part);
    iso_assert_ok(trainer_create(&t, comm, &config));
    iso_assert_ok(train(&t, 5));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
}

static iso_status build_odd(iso_device *device, bool dropout, iso_module **out) {
    if (test_rank != 1) return build_small_cnn(device, dropout, out);
    iso_rng rng = {.seed = 7};
    iso_status status = iso_sequential_create(device, out);
    iso_module *m;
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    return status == ISO_OK ? iso_sequential_add_take(*out, "conv1", m) : status;
}

Test(np3_data_parallel, another_model_on_one_rank_is_named) {
    trainer_config config = trainer_default();
    config.build = build_odd;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_MISMATCH);
    const char *said = iso_last_error()->message;
    cr_expect(strstr(said, "rank 1 has parameter \"conv1.weight\" [5, 200]") && strstr(said, "[4, 2, 3, 3]"), "%s", said);
    trainer_destroy(&t);
}

Test(np2_data_parallel, steps_allocate_nothing) {
    trainer_config config = trainer_default();
    config.dropout = true;
    trainer t;
    long long before, after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    long long primitives = iso_device_primitives_created(t.device);
    iso_assert_ok(train(&t, 10));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before && iso_device_primitives_created(t.device) == primitives);
    trainer_destroy(&t);
}

// Start of the first span of this name that began after the trace did, in microseconds; -1: none.
static double span_start(const char *text, const char *category, const char *name) {
    char pattern[128];
    snprintf(pattern, sizeof(pattern), "\"cat\":\"%s\",\"name\":\"%s\",\"ts\":", category, name);
    for (const char *at = strstr(text, pattern); at; at = strstr(at + 1, pattern))
        if (atof(at + strlen(pattern)) >= 0) return atof(at + strlen(pattern));
    return -1;
}

// The order of events that hides the exchange: a layer's gradient leaves while the layers below it compute, and
// is waited for in the next forward. Spans of a step's exchange are written in the next step.
Test(np2_data_parallel, gradients_leave_during_backward) {
    trainer_config config = trainer_default();
    trainer t;
    char *text;
    size_t size;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(train(&t, 3));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_trace_start(1000));
    iso_assert_ok(trainer_step(&t, 3, NULL));
    iso_assert_ok(trainer_step(&t, 4, NULL));
    iso_assert_ok(iso_trace_text(test_rank, &text, &size));
    double fc1 = span_start(text, "exchange", "fc1"), conv1 = span_start(text, "exchange", "conv1");
    double backward = span_start(text, "compute", "conv1 backward"), wait = span_start(text, "wait", "fc1");
    iso_assert_all(fc1 >= 0 && fc1 < backward);
    iso_assert_all(backward < conv1);
    iso_assert_all(wait > conv1 && span_start(text, "update", "fc1.weight") > wait);
    iso_trace_free_text(text);
    iso_trace_stop();
    trainer_destroy(&t);
}
