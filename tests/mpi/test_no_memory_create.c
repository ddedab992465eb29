// SPDX-License-Identifier: MIT
// One rank runs out of memory in a collective call that creates something, at each of its
// allocations in turn: every rank gets the error, nobody waits, and nothing is lost.
#include "common/dp_fixture.h"
#include "common/no_memory.h"

#include <isotherm/daso.h>
#include <isotherm/join.h>
#include <isotherm/sync_batchnorm.h>

TestSuite(np2_no_memory_create, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_no_memory_create, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

static iso_device *device;
static iso_data_parallel_config how;
static iso_daso_config periodic;

static iso_status add_layer(iso_module *net, iso_status made, const char *name,
                            iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

// With buffers, and a frozen layer.
static iso_status build_normed(iso_module **out) {
    iso_rng rng = {.seed = 7};
    iso_batch_norm_config norm = {.num_features = 5};
    iso_parameter_list list;
    iso_module *net, *m = NULL;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add_layer(net, iso_linear_create(device, 4, 5, true, &rng, &m), "fc1", &m));
    ISO_TRY(add_layer(net, iso_batch_norm1d_create(device, &norm, &m), "norm", &m));
    ISO_TRY(add_layer(net, iso_linear_create(device, 5, 5, true, &rng, &m), "fc2", &m));
    ISO_TRY(add_layer(net, iso_linear_create(device, 5, 3, true, &rng, &m), "fc3", &m));
    ISO_TRY(iso_module_parameters(net, &list));
    list.item[0]->requires_grad = list.item[1]->requires_grad = false;
    iso_parameter_list_destroy(&list);
    *out = net;
    return ISO_OK;
}

static iso_status wrap_module(iso_module **model) {
    iso_module *net = NULL;
    TRY_WITH_MEMORY(build_normed(&net));
    return iso_data_parallel_create_take(net, test_comm, &how, model);
}

static iso_status create_model(void) {
    iso_module *model;
    ISO_TRY(wrap_module(&model));
    iso_module_destroy(&model);
    return ISO_OK;
}

static iso_status create_comm(void) {
    iso_comm *comm;
    ISO_TRY(iso_comm_create(iso_comm_mpi(test_comm), NULL, &comm));
    iso_comm_destroy(&comm);
    return ISO_OK;
}

static iso_status convert_norms(void) {
    iso_module *net = NULL;
    TRY_WITH_MEMORY(build_normed(&net));
    iso_status status = iso_sync_batchnorm_convert(net, test_comm, NULL);
    iso_module_destroy(&net);
    return status;
}

static iso_status begin_join(void) {
    iso_module *model = NULL;
    iso_join *join = NULL;
    TRY_WITH_MEMORY(wrap_module(&model));
    iso_status status = iso_join_begin(model, NULL, &join);
    iso_join_end(&join);
    iso_module_destroy(&model);
    return status;
}

static iso_status make_parts(iso_module **model, iso_optimizer **tied) {
    iso_optimizer *inner;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.momentum = 0.9;
    ISO_TRY(wrap_module(model));
    ISO_TRY(iso_optimizer_create(ISO_SGD, *model, &hyper, &inner));
    return iso_dp_optimizer_create_take(inner, *model, tied);
}

static iso_status create_periodic(void) {
    iso_module *model;
    iso_optimizer *tied, *optimizer = NULL;
    TRY_WITH_MEMORY(make_parts(&model, &tied));
    iso_status status = iso_daso_create_take(tied, model, &periodic, &optimizer);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    return status;
}

// Several tests, so that none takes long on a busy machine.
static void try_models(const iso_data_parallel_config *configs, size_t count) {
    iso_assert_ok(iso_device_create("cpu", &device));
    for (size_t i = 0; i < count; i++) {
        char what[64];
        how = configs[i];
        snprintf(what, sizeof(what), "create_model %zu", i);
        try_each_allocation(what, create_model);
    }
    iso_device_destroy(&device);
}

static void try_lists(void) {
    static const double sizes[] = {0.00005, 0.0001};
    const iso_data_parallel_config configs[] = {
        {.sync = ISO_SYNC_LAZY},
        {.sync = ISO_SYNC_BLOCKING},
        {.by_name = true},
        {.bucket_list_mb = sizes, .bucket_list_count = 2},
    };
    try_models(configs, sizeof(configs) / sizeof(configs[0]));
}

static void try_unused(void) {
    const iso_data_parallel_config configs[] = {
        {.find_unused_parameters = true}, {.static_unused = true}, {.piece_mb = 0.00005}};
    try_models(configs, sizeof(configs) / sizeof(configs[0]));
}

static void try_zero(void) {
    const iso_data_parallel_config configs[] = {{.zero = 1}, {.zero = 2}, {.zero = 3}};
    try_models(configs, sizeof(configs) / sizeof(configs[0]));
}

static void try_hooks(void) {
    const iso_comm_hook topk = iso_hook_topk(NULL);
    const iso_comm_hook powersgd =
        iso_hook_powersgd(&(iso_powersgd_config){.rank = 1, .least_saving = 0.1});
    const iso_data_parallel_config configs[] = {
        {.hook = &powersgd}, {.hook = &topk}, {.hook = &iso_hook_int8}};
    try_models(configs, sizeof(configs) / sizeof(configs[0]));
}

Test(np2_no_memory_create, data_parallel) { try_lists(); }
Test(np3_no_memory_create, data_parallel) { try_lists(); }
// Sums in two levels: nodes of two ranks, and of one.
Test(np3_no_memory_create, data_parallel_between_nodes) {
    const iso_data_parallel_config config = {.sync = ISO_SYNC_LAZY};
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    try_models(&config, 1);
}
Test(np2_no_memory_create, data_parallel_unused) { try_unused(); }
Test(np3_no_memory_create, data_parallel_unused) { try_unused(); }
Test(np2_no_memory_create, data_parallel_zero) { try_zero(); }
Test(np3_no_memory_create, data_parallel_zero) { try_zero(); }
Test(np2_no_memory_create, data_parallel_hooks) { try_hooks(); }
Test(np3_no_memory_create, data_parallel_hooks) { try_hooks(); }

static iso_status score_nothing(iso_module *model, iso_evaluation *out, void *user) {
    (void)model, (void)user;
    *out = (iso_evaluation){.samples = 1};
    return ISO_OK;
}

static void try_others(void) {
    how = ISO_DATA_PARALLEL_DEFAULT;
    iso_assert_ok(iso_device_create("cpu", &device));
    try_each_allocation("create_comm", create_comm);
    try_each_allocation("convert_norms", convert_norms);
    try_each_allocation("begin_join", begin_join);
    iso_device_destroy(&device);
}

Test(np2_no_memory_create, others) { try_others(); }
Test(np3_no_memory_create, others) { try_others(); }

static void try_modes(const iso_daso_config *configs, size_t count) {
    how = ISO_DATA_PARALLEL_DEFAULT;
    iso_assert_ok(iso_device_create("cpu", &device));
    for (size_t i = 0; i < count; i++) {
        char what[64];
        periodic = configs[i];
        periodic.unit = ISO_SCOPE_RANK;
        snprintf(what, sizeof(what), "create_periodic %zu", i);
        try_each_allocation(what, create_periodic);
    }
    iso_device_destroy(&device);
}

static void try_averages(void) {
    const iso_outer outer = iso_outer_nesterov;
    const iso_tournament tournament = {.score = score_nothing};
    iso_daso_config configs[] = {
        iso_post_local_sgd_config(100, 8, 4),
        iso_gossip_config(100, 4),
        iso_tournament_config(100, 4, &tournament),
    };
    configs[0].outer = &outer;
    configs[0].fragments = 2;
    try_modes(configs, sizeof(configs) / sizeof(configs[0]));
}

static void try_asynchronous(void) {
    const iso_daso_config configs[] = {iso_async_config(100, 0), iso_server_config(100, 4)};
    try_modes(configs, sizeof(configs) / sizeof(configs[0]));
}

Test(np2_no_memory_create, periodic) { try_averages(); }
Test(np3_no_memory_create, periodic) { try_averages(); }
Test(np2_no_memory_create, asynchronous) { try_asynchronous(); }
Test(np3_no_memory_create, asynchronous) { try_asynchronous(); }
