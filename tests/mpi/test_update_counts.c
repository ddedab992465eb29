// Parameters that have no gradient in some steps, under data_parallel: optimizers count the updates
// of each, as torch.optim does, however and whenever these are made.
#include "common/any_device.h"
#include "common/bag_fixture.h"
#include "common/fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "optim/optim_impl.h"
#include "optim/resume_impl.h"

#include <criterion/criterion.h>
#include <isotherm/daso.h>
#include <isotherm/parallel.h>
#include <math.h>
#include <stdlib.h>

static fixture *golden;

static void setup(void) {
    resume_setup();
    golden = fixture_open("unused.txt");
}

static void teardown(void) {
    fixture_close(&golden);
    resume_teardown();
}

TestSuite(np1_update_counts, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(np2_update_counts, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(np3_update_counts, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(np4_update_counts, .init = setup, .fini = teardown, .timeout = 60);

enum { STEPS = 12 };

// ---- A model whose gradients are the fixture's ------------------------------------------------------

// The backward that comes, and the part of this process in it.
static struct {
    int step, rank, ranks;
    // Which layers this rank uses, and its gradient as a multiple of the fixture's.
    double (*share)(int layer);
} now;

// A layer for each parameter of the fixture. One that a step does not use on this rank does not
// run.
typedef struct layer {
    iso_module base;
    int index;
    int64_t offset; // in the fixture
} layer;

static bool is_used(int i) {
    return fixture_get(golden, NULL, "used", NULL)[now.step * BAG_PARAMETERS + i] != 0;
}

// The mean is the fixture's gradient: all ranks have it, or one has it alone.
static double fair_share(int i) {
    if (!is_used(i)) return 0;
    if ((i + now.step) % 2 == 0) return 1;
    return now.rank == (i + now.step / 2) % now.ranks ? now.ranks : 0;
}

static iso_status write_gradient(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    (void)call, (void)grad_out;
    const layer *l = iso_container_of(self, const layer, base);
    iso_tensor *grad = self->parameter[0]->grad;
    double f64[64], share = now.share(l->index);
    float f32[64];
    char number[12];
    snprintf(number, sizeof(number), "%d", now.step);
    const double *from = fixture_get(golden, "gradient", number, NULL) + l->offset;
    for (int64_t k = 0; k < grad->count; k++) {
        f64[k] = share * (double)(float)from[k];
        f32[k] = (float)f64[k];
    }
    return tensor_set(grad, grad->dtype == ISO_F64 ? (void *)f64 : (void *)f32);
}

static iso_status pass_on(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}

static const iso_module_ops layer_ops = {
    .type = "Given", .forward = pass_on, .backward_params = write_gradient};

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    *out = in;
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        if (now.share(i) == 0) continue;
        iso_status status = iso_module_call(self->child[i], ISO_ACT_NONE, in, out);
        if (status < 0) return status;
    }
    return ISO_OK;
}

static iso_status backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in) {
    (void)call, (void)grad_in;
    for (int i = BAG_PARAMETERS - 1; i >= 0; i--) {
        if (now.share(i) == 0) continue;
        iso_status status = iso_module_call_backward(self->child[i], grad_out, NULL);
        if (status < 0) return status;
    }
    return ISO_OK;
}

static const iso_module_ops net_ops = {.type = "Layers", .forward = forward, .backward = backward};

// The last two have rows, so that they can be cut.
static iso_module *create_net(iso_device *device, iso_dtype dtype) {
    static const int64_t shape[BAG_PARAMETERS][4] = {{1},          {3},     {17},   {4, 5},
                                                     {2, 3, 2, 2}, {33, 1}, {64, 1}};
    static const int ndim[BAG_PARAMETERS] = {1, 1, 1, 2, 4, 2, 2};
    iso_module *net = calloc(1, sizeof(*net));
    const double *start = fixture_get(golden, NULL, "start", NULL);
    int64_t offset = 0;
    iso_assert_ok(iso_module_init(net, &net_ops, device));
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        layer *l = calloc(1, sizeof(*l));
        char name[3] = {'p', (char)('0' + i), 0};
        iso_parameter *p;
        iso_assert_ok(iso_module_init(&l->base, &layer_ops, device));
        iso_assert_ok(iso_module_add_parameter(&l->base, "w", ndim[i], shape[i], &p));
        float f32[64];
        l->index = i;
        l->offset = offset;
        for (int64_t k = 0; k < p->value->count; k++) f32[k] = (float)start[offset + k];
        offset += p->value->count;
        iso_assert_ok(tensor_set(p->value, f32));
        iso_assert_ok(iso_module_add_child_take(net, name, &l->base));
    }
    iso_assert_ok(iso_module_to(net, dtype));
    return net;
}

// ---- A run ------------------------------------------------------------------------------------------

typedef struct run {
    iso_device *device;
    iso_comm *comm;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_tensor *one;
    iso_sync sync;
} run;

typedef struct run_case {
    const char *name;
    iso_optimizer_kind kind;
    bool groups; // as the fixture has them
    iso_hyper hyper;
} run_case;

static const run_case cases[] = {
    {"sgd", ISO_SGD, false, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05}},
    {"adam",
     ISO_ADAM,
     false,
     {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}},
    {"adamw",
     ISO_ADAMW,
     true,
     {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.2}},
    {"adagrad",
     ISO_ADAGRAD,
     false,
     {.lr = 0.2, .lr_decay = 0.1, .weight_decay = 0.1, .eps = 1e-10}},
    {"lamb",
     ISO_LAMB,
     true,
     {.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.2}},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]), ADAM = 1, ADAMW = 2 };

static bool is_second(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strchr("025", name[1]) != NULL;
}

static run create(const run_case *c, iso_comm *comm, iso_sync sync, bool cut, iso_dtype dtype) {
    run r = {.comm = comm, .sync = sync};
    iso_optimizer *inner;
    iso_data_parallel_config config = {.sync = sync,
                                       .bucket_mb = cut ? 1 : 0,
                                       .piece_mb = cut ? 64.0 / 1048576 : 0,
                                       .find_unused_parameters = true};
    iso_assert_ok(iso_device_create(test_device(), &r.device));
    iso_assert_ok(
        iso_data_parallel_create_take(create_net(r.device, dtype), comm, &config, &r.model));
    iso_assert_ok(iso_optimizer_create(c->kind, r.model, &c->hyper, &inner));
    iso_hyper slow = c->hyper;
    slow.lr /= 10;
    if (c->groups) iso_assert_ok(iso_optimizer_add_group(inner, &slow, is_second, NULL, NULL));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, r.model, &r.optimizer));
    iso_assert_ok(iso_tensor_create(r.device, dtype, 2, (int64_t[]){1, 1}, &r.one));
    iso_assert_ok(iso_tensor_fill(r.one, 1));
    const iso_reducer *reducer = iso_data_parallel_reducer(r.model);
    iso_assert_all(iso_reducer_pieces(reducer, BAG_PARAMETERS - 1) == (cut ? 4 : 1));
    return r;
}

static void destroy(run *r) {
    iso_tensor_destroy(&r->one);
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_device_destroy(&r->device);
}

static iso_status one_backward(run *r, int step) {
    iso_tensor *out;
    now.step = step;
    now.rank = iso_comm_rank(r->comm);
    now.ranks = iso_comm_size(r->comm);
    iso_optimizer_zero_grad(r->optimizer);
    iso_status status = iso_module_forward(r->model, r->one, &out);
    if (status >= 0) status = iso_module_backward(r->model, r->one, NULL);
    if (status >= 0 && r->sync == ISO_SYNC_EXPLICIT)
        status = iso_data_parallel_all_reduce_gradients(r->model);
    return status;
}

static void train(run *r, int from, int to) {
    now.share = fair_share;
    for (int step = from; step < to; step++) {
        iso_assert_ok(one_backward(r, step));
        iso_assert_ok(iso_optimizer_step(r->optimizer));
    }
}

static void get_values(run *r, double *out) {
    iso_module *net = iso_data_parallel_module(r->model);
    iso_assert_ok(iso_data_parallel_finish(r->model));
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        iso_tensor *value = net->child[i]->parameter[0]->value;
        iso_assert_ok(tensor_get(value, out));
        out += value->count;
    }
}

static void check_after(const double *got, const char *name) {
    const double *after = fixture_get(golden, name, "after", NULL);
    int wrong = 0;
    for (int i = 0; i < BAG_ELEMENTS; i++) {
        if (fabs(got[i] - after[i]) <= 1e-12 * fmax(1, fabs(after[i]))) continue;
        if (wrong++ == 0)
            fprintf(stderr, "%s: element %d is %.17g, not %.17g\n", name, i, got[i], after[i]);
    }
    iso_assert_all(wrong == 0);
}

// ---- As torch.optim, in every way of exchanging -----------------------------------------------------

static void run_through(const run_case *c, iso_comm *comm, iso_sync sync, bool cut, double *out) {
    run r = create(c, comm, sync, cut, ISO_F64);
    train(&r, 0, STEPS);
    get_values(&r, out);
    destroy(&r);
}

static void is_torchs(void) {
    static const iso_sync sync[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    iso_comm *alone;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    for (int c = 0; c < CASES; c++) {
        double first[BAG_ELEMENTS], got[BAG_ELEMENTS];
        run_through(&cases[c], test_comm, ISO_SYNC_LAZY, false, first);
        check_after(first, cases[c].name);
        for (int way = 0; way < 6; way++) {
            run_through(&cases[c], test_comm, sync[way % 3], way >= 3, got);
            iso_assert_all(memcmp(first, got, sizeof(got)) == 0);
        }
        if (test_size == 3) continue; // a third of three times a number may be another
        run_through(&cases[c], alone, ISO_SYNC_LAZY, false, got);
        iso_assert_all(memcmp(first, got, sizeof(got)) == 0);
    }
    iso_comm_destroy(&alone);
}

Test(np1_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np2_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np3_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np4_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }

// ---- Steps that are none ----------------------------------------------------------------------------

// A step that is skipped because gradients are not finite (zero_grad instead of step), and one that
// is refused.
static void others_count_nothing(iso_sync sync) {
    run r = create(&cases[ADAM], test_comm, sync, true, ISO_F64);
    double got[BAG_ELEMENTS];
    train(&r, 0, 6);
    iso_assert_ok(one_backward(&r, 0));
    iso_optimizer_zero_grad(r.optimizer);
    train(&r, 6, 8);
    iso_status again = iso_optimizer_step(r.optimizer);
    iso_assert_all(again == ISO_ERR_STATE);
    train(&r, 8, STEPS);
    get_values(&r, got);
    check_after(got, "adam");
    iso__base_optimizer *core = iso__optimizer_innermost(r.optimizer);
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        int64_t expected = 0;
        for (now.step = 0; now.step < STEPS; now.step++) expected += is_used(i);
        iso_assert_all(core->slot[i].step == expected);
    }
    iso_assert_all(iso_optimizer_hyper(r.optimizer)->step == STEPS);
    destroy(&r);
}

Test(np1_update_counts, a_step_that_is_skipped_or_refused_counts_nothing) {
    others_count_nothing(ISO_SYNC_LAZY);
}
Test(np2_update_counts, a_step_that_is_skipped_or_refused_counts_nothing) {
    others_count_nothing(ISO_SYNC_LAZY);
    others_count_nothing(ISO_SYNC_BLOCKING);
}

// What step() saw is what its update uses, whatever is changed before the next forward makes it.
Test(np2_update_counts, a_pending_update_goes_by_its_own_step) {
    run r = create(&cases[ADAM], test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    double got[BAG_ELEMENTS];
    iso_hyper *hyper = iso_optimizer_hyper(r.optimizer);
    for (int step = 0; step < STEPS; step++) {
        hyper->lr = cases[ADAM].hyper.lr;
        hyper->beta1 = cases[ADAM].hyper.beta1;
        train(&r, step, step + 1);
        hyper->lr = 77;
        hyper->beta1 = 0.1;
        hyper->step += 3; // as a schedule may be put forward
    }
    get_values(&r, got);
    check_after(got, "adam");
    destroy(&r);
}

Test(np2_update_counts, steps_allocate_nothing) {
    run r = create(&cases[ADAMW], test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    long long before, after;
    train(&r, 0, 6);
    iso_memory_balance(NULL, NULL, &before);
    train(&r, 6, STEPS);
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    destroy(&r);
}

// ---- Saved state ------------------------------------------------------------------------------------

static iso_state *state_of(run *r) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(r->model, r->optimizer, state));
    return state;
}

// Takes from the list what earlier versions did not have.
static void make_old(iso_state *state) {
    int kept = 0;
    iso__array *array = state->array[ISO_STATE_SHARED];
    for (int i = 0; i < state->count[ISO_STATE_SHARED]; i++) {
        if (strstr(array[i].name, "/step/"))
            iso__free((void *)array[i].shape);
        else
            array[kept++] = array[i];
    }
    iso_assert_all(kept == state->count[ISO_STATE_SHARED] - BAG_PARAMETERS);
    state->count[ISO_STATE_SHARED] = kept;
}

static void save(run *r, bool old) {
    iso_state *state = state_of(r);
    if (old) make_old(state);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), 6, state));
    iso_state_destroy(&state);
}

static void load(run *r) {
    int64_t step = 0;
    iso_state *state = state_of(r);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_assert_ok(iso_training_loaded(r->model, r->optimizer));
    iso_assert_all(step == 6);
    iso_state_destroy(&state);
}

// Into a run with another past, in the middle of which updates are pending.
static void goes_on(const run_case *c) {
    double got[BAG_ELEMENTS];
    run first = create(c, test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    train(&first, 0, 6);
    save(&first, false);
    destroy(&first);
    run second = create(c, test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    train(&second, 8, STEPS);
    load(&second);
    train(&second, 6, STEPS);
    get_values(&second, got);
    check_after(got, c->name);
    destroy(&second);
}

static void all_go_on(void) {
    for (int c = 0; c < CASES; c++) goes_on(&cases[c]);
}

Test(np1_update_counts, resumed_runs_go_on_with_the_counts) { all_go_on(); }
Test(np3_update_counts, resumed_runs_go_on_with_the_counts) { all_go_on(); }

// Files without counts are of versions in which all parameters had the count of their group.
Test(np2_update_counts, files_without_counts_mean_those_of_the_groups) {
    run first = create(&cases[ADAMW], test_comm, ISO_SYNC_LAZY, false, ISO_F64);
    train(&first, 0, 6);
    iso_optimizer_group_hyper(first.optimizer, 1)->step = 9; // to tell the groups apart
    save(&first, true);
    destroy(&first);
    run second = create(&cases[ADAMW], test_comm, ISO_SYNC_LAZY, false, ISO_F64);
    train(&second, 0, 2);
    load(&second);
    iso__base_optimizer *core = iso__optimizer_innermost(second.optimizer);
    for (int i = 0; i < BAG_PARAMETERS; i++)
        iso_assert_all(core->slot[i].step == (strchr("025", '0' + i) ? 9 : 6));
    destroy(&second);
}

// ---- Periodic synchronisation -----------------------------------------------------------------------

// Each rank uses other parameters.
static double odd_share(int i) { return (i + now.step + now.rank) % 3 == 0 ? 1 : 0; }

static void open_daso(run *r, iso_daso_config config, iso_state_sync state, int ranks_per_node) {
    char nodes[12];
    snprintf(nodes, sizeof(nodes), "%d", ranks_per_node);
    setenv("ISO_RANKS_PER_NODE", nodes, 1);
    run_case c = cases[ADAM];
    c.hyper.eps = 1e-3;
    *r = create(&c, test_comm, ISO_SYNC_LAZY, false, ISO_F32);
    config.total_steps = STEPS;
    config.warmup_steps = 1;
    config.batches_to_wait = 1;
    config.wire = ISO_F32;
    config.state = state;
    iso_assert_ok(iso_daso_create_take(r->optimizer, r->model, &config, &r->optimizer));
}

static void daso_step(run *r, int step, double (*share)(int)) {
    now.share = share;
    iso_assert_ok(one_backward(r, step));
    iso_assert_ok(iso_optimizer_step(r->optimizer));
    iso_assert_ok(iso_data_parallel_finish(r->model));
}

static bool are_equal(run *r, iso_comm *comm) {
    uint64_t hash;
    bool equal = false;
    iso_assert_ok(iso_parameter_hash(r->model, comm, &hash, &equal));
    return equal;
}

// Whether ranks have made different numbers of updates.
static bool counts_differ(run *r) {
    int64_t step = iso__optimizer_innermost(r->optimizer)->slot[1].step, range[2] = {step, -step};
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, range, 2, ISO_MAX));
    return range[0] != -range[1];
}

// While nodes go their own ways they pass over different parameters; once they come together, equal
// gradients keep them equal.
static void nodes_come_together(iso_state_sync state, int ranks_per_node, int64_t local_skip) {
    enum { COOLDOWN = 4 };
    run r;
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.cooldown_steps = COOLDOWN;
    config.global_skip = 3;
    config.local_skip = local_skip;
    open_daso(&r, config, state, ranks_per_node);
    bool apart = false;
    for (int step = 0; step < STEPS; step++) {
        bool cycling = step >= 1 && step < STEPS - COOLDOWN;
        daso_step(&r, step, cycling ? odd_share : fair_share);
        apart = counts_differ(&r) || apart;
        if (step + 1 >= STEPS - COOLDOWN) iso_assert_all(are_equal(&r, test_comm));
    }
    iso_assert_all(apart); // or nothing was tested
    destroy(&r);
}

static void every_state(int ranks_per_node, int64_t local_skip) {
    nodes_come_together(ISO_STATE_KEEP, ranks_per_node, local_skip);
    nodes_come_together(ISO_STATE_AVERAGE, ranks_per_node, local_skip);
    nodes_come_together(ISO_STATE_RESET, ranks_per_node, local_skip);
}

Test(np2_update_counts, nodes_that_passed_over_different_parameters_come_together) {
    every_state(1, 1);
}
Test(np4_update_counts, nodes_that_passed_over_different_parameters_come_together) {
    every_state(2, 1);
    every_state(2, 2);
}

static void send_always(const iso_daso_observation *observed, iso_daso_decision *decision,
                        void *user) {
    (void)observed, (void)user;
    decision->global_skip = 1;
}

// Cycling begins after step 0. In step 1 each rank of a node is alone, from then on they share
// gradients; they are made equal at the end of steps 2, 4, and every one after that. A mean of
// their states keeps them equal in between.
static void ranks_of_a_node_come_together(iso_state_sync state) {
    run r;
    iso_comm *node;
    iso_daso_config config = ISO_DASO_DEFAULT;
    MPI_Comm mpi_node;
    config.cooldown_steps = 0;
    config.global_skip = 2;
    config.local_skip = 3;
    config.policy = ISO_POLICY_CALLBACK;
    config.callback = send_always;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &mpi_node);
    iso_assert_ok(iso_comm_create(mpi_node, NULL, &node));
    open_daso(&r, config, state, 2);
    for (int step = 0; step < STEPS; step++) {
        daso_step(&r, step, step == 0 ? fair_share : odd_share);
        if (step == 1) iso_assert_all(counts_differ(&r) && !are_equal(&r, node));
        bool made = step == 2 || step >= 4;
        if (made || (step == 3 && state == ISO_STATE_AVERAGE)) iso_assert_all(are_equal(&r, node));
    }
    destroy(&r);
    iso_comm_destroy(&node);
    MPI_Comm_free(&mpi_node);
}

Test(np4_update_counts, ranks_that_passed_over_different_parameters_come_together) {
    ranks_of_a_node_come_together(ISO_STATE_KEEP);
    ranks_of_a_node_come_together(ISO_STATE_AVERAGE);
    ranks_of_a_node_come_together(ISO_STATE_RESET);
}
