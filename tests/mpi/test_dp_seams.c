// SPDX-License-Identifier: MIT
// The seams of DataParallel: hooks before synchronisation and before forwards, a backward that the
// caller drives, a reduce function, parameters that are ignored, modes of averaging, explicit mode,
// and who may say that gradients are zero.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_dp_seams, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_dp_seams, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_dp_seams, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_dp_seams, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

static long long exchanges(trainer *t) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t->model), &stats);
    return stats.exchanges;
}

// ---- Hooks before synchronisation ---------------------------------------------------------------------

typedef struct caller {
    char letter;
    float factor;        // for all gradients
    long long exchanged; // when it was called
} caller;
static char called[64];
static trainer *hooked;

static iso_status hook(iso_module *data_parallel, void *user) {
    caller *c = user;
    iso_parameter_list list;
    strncat(called, &c->letter, 1);
    if (data_parallel != hooked->model) return ISO_ERR_ARG;
    c->exchanged = exchanges(hooked);
    iso_status status = iso_module_parameters(data_parallel, &list);
    for (int i = 0; status == ISO_OK && i < list.count; i++)
        for (int64_t k = 0; k < list.item[i]->grad->count; k++)
            ((float *)list.item[i]->grad->data)[k] *= c->factor;
    if (status == ISO_OK) iso_parameter_list_destroy(&list);
    return status;
}

static void hooks_in_order(iso_sync sync) {
    trainer_config config = trainer_default();
    trainer t;
    caller a = {.letter = 'a', .factor = 2}, b = {.letter = 'b', .factor = 0.5f},
           c = {.letter = 'c', .factor = 1};
    int ha, hb, hc;
    uint64_t hash = 0;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    hooked = &t;
    called[0] = 0;
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, hook, &b, &hb));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, hook, &a, &ha));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, hook, &c, &hc));
    iso_assert_all(ha != hb && hb != hc && ha != hc);
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_assert_all(strcmp(called, "bac") == 0);
    iso_assert_all(a.exchanged == 0 && b.exchanged == 0 && c.exchanged == 0);
    iso_assert_ok(iso_data_parallel_remove_pre_sync_hook(t.model, hc));
    iso_assert_ok(trainer_step(&t, 1, NULL));
    iso_assert_ok(iso_data_parallel_remove_pre_sync_hook(t.model, ha));
    iso_assert_all(iso_data_parallel_remove_pre_sync_hook(t.model, ha) == ISO_ERR_ARG);
    b.factor = 1;
    iso_assert_ok(trainer_step(&t, 2, NULL));
    iso_assert_ok(iso_data_parallel_remove_pre_sync_hook(t.model, hb));
    iso_assert_ok(trainer_step(&t, 3, NULL)); // from here on gradients leave early again
    iso_assert_all(strcmp(called, "bacbab") == 0);
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == hash_after(&config, 4)); // 2 * 0.5 changes no bits
    called[0] = 0;
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, hook, &c, NULL)); // stays for good
    iso_assert_ok(trainer_step(&t, 4, NULL));
    iso_assert_all(strcmp(called, "c") == 0);
    trainer_destroy(&t);
}

Test(np1_dp_seams, hooks_in_order) { hooks_in_order(ISO_SYNC_LAZY); }
Test(np2_dp_seams, hooks_in_order) { hooks_in_order(ISO_SYNC_LAZY); }
Test(np3_dp_seams, hooks_in_order) { hooks_in_order(ISO_SYNC_BLOCKING); }

// Gradients are this rank's own, with what was accumulated before.
static double first_gradient;
static iso_status read_gradient(iso_module *data_parallel, void *user) {
    (void)user;
    iso_parameter_list list;
    iso_status status = iso_module_parameters(data_parallel, &list);
    if (status < 0) return status;
    first_gradient = ((float *)list.item[list.count - 1]->grad->data)[0]; // a bias
    iso_parameter_list_destroy(&list);
    strcat(called, "r");
    return ISO_OK;
}

Test(np2_dp_seams, hooks_see_sums_of_this_rank_and_rest_in_no_sync) {
    trainer_config config = trainer_default();
    trainer t, alone;
    iso_comm *self;
    int handle;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    config.rows /= 2;
    config.first_row = config.rows * test_rank;
    iso_assert_ok(trainer_create(&alone, self, &config));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, read_gradient, NULL, &handle));
    called[0] = 0;
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_all(called[0] == 0);
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_all(strcmp(called, "r") == 0);
    iso_assert_ok(trainer_backward(&alone, 0));
    iso_assert_ok(trainer_backward(&alone, 1));
    double seen = first_gradient;
    iso_assert_ok(read_gradient(alone.model, NULL));
    iso_assert_all(fabs(seen - first_gradient) < 1e-7 && seen != 0);
    trainer_destroy(&alone);
    trainer_destroy(&t);
    iso_comm_destroy(&self);
}

// ---- Before a forward -----------------------------------------------------------------------------------

static iso_tensor *other_batch;
static int forwards;
static iso_status replace_batch(iso_module *data_parallel, iso_tensor **in, void *user) {
    forwards += data_parallel == user;
    *in = other_batch;
    return ISO_OK;
}

static iso_status see_batch(iso_module *data_parallel, iso_tensor **in, void *user) {
    (void)data_parallel;
    *(iso_tensor **)user = *in;
    return ISO_OK;
}

Test(np2_dp_seams, before_forward_may_replace_the_batch) {
    iso_tensor *seen = NULL;
    trainer_config config = trainer_default();
    trainer t, plain;
    uint64_t hash[2] = {0, 1};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_create(&plain, test_comm, &config));
    int handle[2];
    iso_assert_ok(
        iso_data_parallel_add_before_forward(t.model, replace_batch, t.model, &handle[0]));
    iso_assert_ok(iso_data_parallel_add_before_forward(t.model, see_batch, &seen, &handle[1]));
    size_t bytes = (size_t)t.batch->count * sizeof(float);
    iso_assert_ok(iso_tensor_create(t.device, ISO_F32, 4, t.batch->shape, &other_batch));
    forwards = 0;
    t.first_row += 100; // pictures of which the model sees nothing; their labels are the same
    for (int step = 0; step < 3; step++) {
        iso_assert_ok(trainer_step(&plain, step, NULL));
        memcpy(other_batch->data, plain.batch->data, bytes);
        iso_assert_ok(trainer_step(&t, step, NULL));
    }
    iso_assert_all(forwards == 3 && seen == other_batch); // by the second hook
    iso_assert_ok(trainer_hash(&t, &hash[0]));
    iso_assert_ok(trainer_hash(&plain, &hash[1]));
    iso_assert_all(hash[0] == hash[1]);
    // The batch of step 3 is not the one the model is given.
    iso_assert_ok(trainer_step(&t, 3, NULL));
    iso_assert_ok(trainer_hash(&t, &hash[0]));
    iso_assert_ok(iso_data_parallel_remove_before_forward(t.model, handle[0]));
    iso_assert_all(iso_data_parallel_remove_before_forward(t.model, handle[0]) == ISO_ERR_ARG);
    iso_assert_ok(trainer_step(&plain, 3, NULL));
    iso_assert_ok(trainer_hash(&plain, &hash[1]));
    iso_assert_all(hash[0] != hash[1] && forwards == 4);
    iso_assert_ok(trainer_step(&t, 4, NULL));
    iso_assert_all(forwards == 4 && seen != other_batch);
    iso_tensor_destroy(&other_batch);
    trainer_destroy(&plain);
    trainer_destroy(&t);
}

// ---- A backward by hand ---------------------------------------------------------------------------------

static iso_status begin_by_hand(trainer *t, int step) {
    iso_tensor *out, *grad;
    double loss;
    iso_status status = trainer_forward(t, step, &out);
    if (status == ISO_OK) status = iso_loss_compute(t->loss, out, t->labels, &loss, NULL, &grad);
    if (status == ISO_OK) status = iso_data_parallel_begin_backward(t->model);
    if (status == ISO_OK)
        status = iso_module_call_backward(iso_data_parallel_module(t->model), grad, NULL);
    return status;
}

static iso_status backward_by_hand(trainer *t, int step) {
    iso_status status = begin_by_hand(t, step);
    return status == ISO_OK ? iso_data_parallel_end_backward(t->model) : status;
}

static void by_hand(iso_sync sync) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(iso_data_parallel_end_backward(t.model) == ISO_ERR_STATE);
    for (int step = 0; step < 4; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(backward_by_hand(&t, step));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == hash_after(&config, 4));
    trainer_destroy(&t);
}

Test(np2_dp_seams, a_backward_by_hand) { by_hand(ISO_SYNC_LAZY); }
Test(np3_dp_seams, a_backward_by_hand) { by_hand(ISO_SYNC_BLOCKING); }

// Values would be those from before the step, for good: it must not seem to have been made.
static void end_forgotten(iso_sync sync) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(begin_by_hand(&t, 1));
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "call iso_data_parallel_end_backward first"));
    iso_assert_all(iso_module_train(t.model, false) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "call iso_data_parallel_end_backward first"));
    iso_assert_all(t.model->training);
    iso_assert_ok(iso_data_parallel_end_backward(t.model)); // nothing is lost
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == hash_after(&config, 2));
    iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_ok(begin_by_hand(&t, 2)); // destroyed in the middle of it
    trainer_destroy(&t);
}

Test(np2_dp_seams, a_step_inside_a_backward_is_refused) { end_forgotten(ISO_SYNC_LAZY); }
Test(np3_dp_seams, a_step_inside_a_backward_is_refused) { end_forgotten(ISO_SYNC_BLOCKING); }

// ---- A reduce function -------------------------------------------------------------------------------------

static int reduced;
static iso_status mean(const iso_gradient *g, int count, iso_comm *comm, void *user) {
    reduced += user == &reduced;
    for (int i = 0; i < count; i++) {
        float *x = g[i].data;
        iso_request *request;
        iso_status status =
            iso_comm_iallreduce(comm, x, g[i].count, g[i].dtype, g[i].name, &request);
        if (status == ISO_OK) status = iso_request_wait(&request);
        if (status < 0) return status;
        for (size_t k = 0; k < g[i].count; k++) x[k] *= 1 / (float)iso_comm_size(comm);
    }
    return ISO_OK;
}
static void with_mean(iso_data_parallel_config *dp) {
    dp->reduce = mean;
    dp->reduce_user = &reduced;
}

static double compare(const trainer_config *a, const trainer_config *b, int steps) {
    trainer ta, tb;
    double difference = 1;
    uint64_t hash;
    iso_assert_ok(trainer_create(&ta, test_comm, a));
    iso_assert_ok(trainer_create(&tb, test_comm, b));
    iso_assert_ok(trainer_train(&ta, steps));
    iso_assert_ok(trainer_train(&tb, steps));
    iso_assert_ok(trainer_hash(&ta, &hash)); // fails if ranks differ
    iso_assert_ok(trainer_hash(&tb, &hash));
    iso_assert_ok(trainer_difference(&ta, &tb, &difference));
    trainer_destroy(&ta);
    trainer_destroy(&tb);
    return difference;
}

static void reduce_function(const iso_comm_hook *hook) {
    trainer_config config = trainer_default(), ours = config;
    trainer t;
    config.hook = hook;
    config.adjust = with_mean;
    reduced = 0;
    iso_assert_all(compare(&config, &ours, 6) < 2e-6);
    iso_assert_all(reduced == 6);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_all(reduced == 6 && exchanges(&t) == 0);
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_all(reduced == 7 && exchanges(&t) == 0);
    trainer_destroy(&t);
}

Test(np2_dp_seams, reduce_function_once_for_each_backward) { reduce_function(NULL); }
Test(np3_dp_seams, reduce_function_once_for_each_backward) { reduce_function(NULL); }
// Gradients are what the function left: a hook, which is for our reduction, touches them no more.
Test(np2_dp_seams, reduce_function_makes_hooks_needless) {
    reduce_function(&iso_hook_bf16);
    reduce_function(&iso_hook_f16);
    reduce_function(&iso_hook_bf16_feedback);
}

// ---- Ignored parameters --------------------------------------------------------------------------------------

static void ignore_fc1(iso_data_parallel_config *dp) {
    static const char *const name[] = {"fc1.weight"};
    dp->ignore = name;
    dp->ignore_count = 1;
}
static void ignore_nothing_there(iso_data_parallel_config *dp) {
    static const char *const name[] = {"fc9.weight"};
    dp->ignore = name;
    dp->ignore_count = 1;
}

static bool same_on_all_ranks(iso_tensor *t) {
    double low = 0, high;
    for (int64_t k = 0; k < t->count; k++) low += (double)(k + 1) * (double)((float *)t->data)[k];
    high = low;
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, &low, 1, ISO_MIN));
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, &high, 1, ISO_MAX));
    return low == high;
}

// With plain SGD x = x0 - lr g, from which one step tells the gradient it was made with: this
// rank's own, that of a model of one rank on the same rows.
static void ignored(iso_sync sync) {
    trainer_config config = trainer_default();
    trainer t, own;
    iso_comm *self;
    iso_parameter_list list, mine;
    config.sync = sync;
    config.hyper.momentum = 0;
    config.adjust = ignore_fc1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    config.adjust = NULL;
    config.rows /= test_size;
    config.first_row = config.rows * test_rank;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    iso_assert_ok(trainer_create(&own, self, &config));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_assert_ok(trainer_step(&own, 0, NULL));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_assert_ok(iso_module_parameters(own.model, &mine));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *a, *b;
        bool is_ignored = strcmp(list.name[i], "fc1.weight") == 0;
        iso_assert_ok(iso_parameter_value(list.item[i], &a));
        iso_assert_ok(iso_parameter_value(mine.item[i], &b));
        bool as_own = memcmp(a->data, b->data, (size_t)a->count * sizeof(float)) == 0;
        iso_assert_all(same_on_all_ranks(a) != is_ignored);
        iso_assert_all(as_own == is_ignored);
    }
    iso_parameter_list_destroy(&list);
    iso_parameter_list_destroy(&mine);
    trainer_destroy(&own);
    trainer_destroy(&t);
    iso_comm_destroy(&self);
}

Test(np2_dp_seams, an_ignored_parameter_goes_its_own_way) { ignored(ISO_SYNC_LAZY); }
Test(np3_dp_seams, an_ignored_parameter_goes_its_own_way) { ignored(ISO_SYNC_BLOCKING); }

Test(np2_dp_seams, ignoring_what_is_not_there_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    config.adjust = ignore_nothing_there;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_ARG);
    iso_assert_all(strstr(iso_last_error()->message, "fc9.weight") != NULL);
    trainer_destroy(&t);
}

// ---- When the sum is divided ----------------------------------------------------------------------------------

static void pre(iso_data_parallel_config *dp) { dp->average = ISO_AVERAGE_PRE; }
static void split(iso_data_parallel_config *dp) {
    dp->average = ISO_AVERAGE_SPLIT;
    dp->split_factor = 1.7;
}
static void sum(iso_data_parallel_config *dp) { dp->average = ISO_AVERAGE_SUM; }

// Plain SGD with the learning rate divided by P makes of sums what it makes of means.
static void modes_of_averaging(void) {
    trainer_config post = trainer_default(), other = post;
    post.hyper.momentum = other.hyper.momentum = 0;
    other.adjust = pre;
    iso_assert_all(compare(&post, &other, 8) < 2e-6);
    other.adjust = split;
    iso_assert_all(compare(&post, &other, 8) < 2e-6);
    other.adjust = sum;
    iso_assert_all(test_size == 1 || compare(&post, &other, 8) > 1e-3);
    other.hyper.lr /= test_size;
    iso_assert_all(compare(&post, &other, 8) < 2e-6);
}

Test(np1_dp_seams, modes_of_averaging) { modes_of_averaging(); }
Test(np2_dp_seams, modes_of_averaging) { modes_of_averaging(); }
Test(np3_dp_seams, modes_of_averaging) { modes_of_averaging(); }
Test(np4_dp_seams, modes_of_averaging) { modes_of_averaging(); }

// ---- Explicit mode ---------------------------------------------------------------------------------------------

static void explicit_mode(void) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0, lazy = hash_after(&config, 20);
    config.sync = ISO_SYNC_EXPLICIT;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 20; step++) {
        long long before = exchanges(&t);
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(trainer_backward(&t, step));
        iso_assert_all(exchanges(&t) == before);
        iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == lazy);
    iso_assert_ok(trainer_backward(&t, 20));
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "all_reduce_gradients") != NULL);
    iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model));
    iso_assert_ok(trainer_backward(&t, 21)); // adds to averages what no other rank has
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model)); // does nothing
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    trainer_destroy(&t);
    config.sync = ISO_SYNC_LAZY;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(iso_data_parallel_all_reduce_gradients(t.model) == ISO_ERR_STATE);
    trainer_destroy(&t);
}

Test(np1_dp_seams, explicit_mode) { explicit_mode(); }
Test(np2_dp_seams, explicit_mode) { explicit_mode(); }
Test(np4_dp_seams, explicit_mode) { explicit_mode(); }

// ---- zero_grad -------------------------------------------------------------------------------------------------

// The module's is as good as the optimizer's, before the backward, after the step and in between.
static void zero_grad(iso_sync sync, bool find_unused) {
    for (int place = 0; place < 3; place++) {
        trainer_config config = trainer_default();
        trainer t;
        uint64_t hash = 0;
        config.sync = sync;
        config.find_unused = find_unused;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        for (int step = 0; step < 6; step++) {
            iso_tensor *out;
            if (place == 0) iso_module_zero_grad(t.model);
            if (place == 1) iso_assert_ok(trainer_forward(&t, step, &out));
            if (place == 1) iso_module_zero_grad(t.model);
            iso_assert_ok(trainer_backward(&t, step));
            iso_assert_ok(iso_optimizer_step(t.optimizer));
            if (place == 2) iso_module_zero_grad(iso_data_parallel_module(t.model));
        }
        iso_assert_ok(trainer_hash(&t, &hash));
        config.find_unused = false;
        iso_assert_all(hash == hash_after(&config, 6));
        trainer_destroy(&t);
    }
}

Test(np2_dp_seams, zero_grad_of_the_module) {
    zero_grad(ISO_SYNC_LAZY, false);
    zero_grad(ISO_SYNC_BLOCKING, false);
}
Test(np2_dp_seams, zero_grad_of_the_module_with_unused_parameters) {
    zero_grad(ISO_SYNC_LAZY, true);
    zero_grad(ISO_SYNC_BLOCKING, true);
}
