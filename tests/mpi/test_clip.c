// SPDX-License-Identifier: MIT
// Norms of gradients, clipping, and what ranks find out from them together.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/clip.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_clip, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_clip, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_clip, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 8 };

// All gradients in one array, to be freed.
static double *gradients(iso_module *model, int64_t *count) {
    iso_parameter_list list;
    double *all = malloc((size_t)iso_module_parameter_count(model) * sizeof(double));
    *count = 0;
    iso_assert_ok(iso_module_parameters(model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *g;
        iso_assert_ok(iso_parameter_grad(list.item[i], &g));
        for (int64_t k = 0; k < iso_tensor_count(g); k++)
            all[(*count)++] = (double)((float *)iso_tensor_data(g))[k];
    }
    iso_parameter_list_destroy(&list);
    return all;
}

static double norm_of(const double *x, int64_t count, double p) {
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += pow(fabs(x[i]), p);
        largest = fmax(largest, fabs(x[i]));
    }
    return isinf(p) ? largest : pow(sum, 1 / p);
}

static void backward(trainer *t, int step) {
    iso_optimizer_zero_grad(t->optimizer);
    iso_assert_ok(trainer_backward(t, step));
}

// ---- One process ----------------------------------------------------------------------------------

Test(np1_clip, norms_are_those_of_one_long_vector) {
    trainer_config config = trainer_default();
    trainer t;
    const double types[] = {1, 2, 3.5, INFINITY};
    int64_t count;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    backward(&t, 0);
    double *g = gradients(t.model, &count);
    for (int i = 0; i < 4; i++) {
        double norm = -1, expected = norm_of(g, count, types[i]);
        iso_assert_ok(iso_grad_norm(t.model, types[i], &norm));
        cr_assert_float_eq(norm, expected, 1e-12 * expected);
    }
    free(g);
    trainer_destroy(&t);
}

// torch.nn.utils.clip_grad_norm_: g * min(1, max_norm / (norm + 1e-6)).
static void clips_to(double max_norm, double p) {
    trainer_config config = trainer_default();
    trainer t;
    int64_t count;
    double seen;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    backward(&t, 0);
    double *before = gradients(t.model, &count), norm = norm_of(before, count, p);
    iso_assert_ok(iso_clip_grad_norm(t.model, max_norm * norm, p, &seen));
    cr_assert_float_eq(seen, norm, 1e-12 * norm);
    double *after = gradients(t.model, &count);
    double factor = fmin(1, max_norm * norm / (norm + 1e-6));
    for (int64_t i = 0; i < count; i++)
        cr_assert_float_eq(after[i], before[i] * factor, 1e-6 * fabs(before[i]));
    cr_assert(max_norm < 1 || memcmp(before, after, (size_t)count * sizeof(double)) == 0);
    free(before);
    free(after);
    trainer_destroy(&t);
}

Test(np1_clip, long_gradients_are_shortened) { clips_to(0.25, 2); }
Test(np1_clip, long_gradients_are_shortened_by_the_largest) { clips_to(0.5, INFINITY); }
Test(np1_clip, short_gradients_keep_their_bits) { clips_to(1.5, 2); }

Test(np1_clip, values_are_brought_into_bounds) {
    trainer_config config = trainer_default();
    trainer t;
    int64_t count, changed = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    backward(&t, 0);
    double *before = gradients(t.model, &count);
    double limit = 0.1 * norm_of(before, count, INFINITY), rounded = (double)(float)limit;
    iso_assert_ok(iso_clip_grad_value(t.model, limit));
    double *after = gradients(t.model, &count);
    for (int64_t i = 0; i < count; i++) {
        cr_assert(after[i] == fmax(-rounded, fmin(rounded, before[i])));
        changed += after[i] != before[i];
    }
    cr_assert(changed > 0 && changed < count);
    free(before);
    free(after);
    trainer_destroy(&t);
}

Test(np1_clip, bad_arguments_are_refused) {
    trainer_config config = trainer_default();
    trainer t;
    double norm;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    backward(&t, 0);
    cr_assert(iso_grad_norm(t.model, 0, &norm) == ISO_ERR_ARG);
    cr_assert(iso_grad_norm(t.model, NAN, &norm) == ISO_ERR_ARG);
    cr_assert(iso_clip_grad_norm(t.model, -1, 2, NULL) == ISO_ERR_ARG);
    cr_assert(iso_clip_grad_norm(t.model, NAN, 2, NULL) == ISO_ERR_ARG);
    cr_assert(iso_clip_grad_value(t.model, -1) == ISO_ERR_ARG);
    trainer_destroy(&t);
}

// ---- Several ranks --------------------------------------------------------------------------------

static void clipped_step(trainer *t, int step, double *norm) {
    backward(t, step);
    iso_assert_ok(iso_clip_grad_norm(t->model, 0.1, 2, norm));
    iso_assert_ok(iso_optimizer_step(t->optimizer));
}

// The norm is that of the averaged gradients: N ranks do what one rank does on the whole batch.
static void clipped_training_equals_one_rank(void) {
    trainer_config config = trainer_default(), other = trainer_default();
    trainer lazy, blocking, one;
    iso_comm *alone;
    uint64_t a = 0, b = 1;
    double difference = 1, first, second, third;
    other.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&lazy, test_comm, &config));
    iso_assert_ok(trainer_create(&blocking, test_comm, &other));
    iso_assert_ok(trainer_create(&one, alone, &config));
    for (int step = 0; step < STEPS; step++) {
        clipped_step(&lazy, step, &first);
        clipped_step(&blocking, step, &second);
        clipped_step(&one, step, &third);
        iso_assert_all(first == second && fabs(first - third) < 1e-4 * third && first > 0.1);
    }
    iso_assert_ok(trainer_hash(&lazy, &a));
    iso_assert_ok(trainer_hash(&blocking, &b));
    iso_assert_all(a == b);
    iso_assert_ok(iso_data_parallel_finish(one.model));
    iso_assert_ok(trainer_difference(&lazy, &one, &difference));
    iso_assert_all(difference < 1e-5);
    trainer_destroy(&lazy);
    trainer_destroy(&blocking);
    trainer_destroy(&one);
    iso_comm_destroy(&alone);
}

Test(np2_clip, clipped_training_equals_one_rank) { clipped_training_equals_one_rank(); }
Test(np3_clip, clipped_training_equals_one_rank) { clipped_training_equals_one_rank(); }

static void set_first(trainer *t, int rank, float value) {
    iso_parameter_list list;
    iso_tensor *g;
    iso_assert_ok(iso_module_parameters(t->model, &list));
    iso_assert_ok(iso_parameter_grad(list.item[0], &g));
    if (test_rank == rank) ((float *)iso_tensor_data(g))[0] = value;
    iso_parameter_list_destroy(&list);
}

// What one rank alone holds is known to all.
static void ranks_agree(void) {
    trainer_config config = trainer_default();
    trainer t;
    bool finite = false;
    int odd = test_size - 1;
    char name[32];
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    backward(&t, 0);
    iso_assert_ok(iso_grads_finite(t.model, test_comm, &finite));
    iso_assert_all(finite);
    iso_assert_ok(iso_grad_norm_check(t.model, test_comm));
    set_first(&t, odd, 3);
    iso_assert_ok(iso_grads_finite(t.model, test_comm, &finite));
    iso_assert_all(finite);
    snprintf(name, sizeof(name), "rank %d", odd);
    iso_assert_all(iso_grad_norm_check(t.model, test_comm) == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(iso_last_error()->message, name) != NULL);
    set_first(&t, odd, NAN);
    iso_assert_ok(iso_grads_finite(t.model, test_comm, &finite));
    iso_assert_all(!finite);
    iso_assert_all(iso_grad_norm_check(t.model, test_comm) == ISO_ERR_MISMATCH);
    trainer_destroy(&t);
}

Test(np2_clip, ranks_agree) { ranks_agree(); }
Test(np3_clip, ranks_agree) { ranks_agree(); }

// ---- The layer with a NaN ---------------------------------------------------------------------------

static const char *spoilt[3]; // parameters
static int spoiling_rank;

static iso_status spoil(iso_module *model, void *user) {
    (void)user;
    iso_parameter_list list;
    iso_status status = iso_module_parameters(model, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count; i++)
        for (int k = 0; k < 3; k++)
            if (spoilt[k] && strcmp(list.name[i], spoilt[k]) == 0 && test_rank == spoiling_rank)
                ((float *)iso_tensor_data(list.item[i]->grad))[0] = k == 0 ? NAN : -INFINITY;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

static bool finds(trainer *t, const char *first, const char *second, const char *expected) {
    char *name = (char *)"unchanged";
    spoilt[0] = first;
    spoilt[1] = second;
    backward(t, 0);
    iso_assert_ok(iso_grads_find_nonfinite(t->model, test_comm, &name));
    bool right = expected ? name && strcmp(name, expected) == 0 : !name;
    if (!right) fprintf(stderr, "%s, not %s\n", name ? name : "nothing", expected);
    iso_comm_free(name);
    return right;
}

static void names_the_layer(iso_scope scope, void (*adjust)(iso_data_parallel_config *)) {
    trainer_config config = trainer_default();
    trainer t;
    config.scope = scope;
    config.adjust = adjust;
    spoiling_rank = test_size - 1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, spoil, NULL, NULL));
    iso_assert_all(finds(&t, NULL, NULL, NULL));
    iso_assert_all(finds(&t, "fc1.weight", "conv2.bias", "fc1.weight"));
    iso_assert_all(finds(&t, "conv1.weight", NULL, "conv1.weight"));
    iso_assert_all(finds(&t, "conv1.bias", "fc2.bias", "fc2.bias"));
    iso_assert_all(finds(&t, NULL, NULL, NULL));
    trainer_destroy(&t);
}

static void divide_updates(iso_data_parallel_config *dp) { dp->zero = true; }

Test(np1_clip, the_first_layer_with_a_nan_is_named) { names_the_layer(ISO_SCOPE_WORLD, NULL); }
Test(np3_clip, the_first_layer_with_a_nan_is_named) {
    names_the_layer(ISO_SCOPE_WORLD, NULL);
    names_the_layer(ISO_SCOPE_RANK, NULL); // one rank has it
    names_the_layer(ISO_SCOPE_WORLD, divide_updates);
}
