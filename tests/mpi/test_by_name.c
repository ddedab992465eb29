// SPDX-License-Identifier: MIT
// Ranks that list the parameters in different orders, matched by name.
#include "common/mpi_fixture.h"

#include <isotherm/clip.h>
#include <isotherm/optim.h>
#include <isotherm/reducer.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(np1_by_name, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_by_name, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_by_name, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_by_name, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// "c" has two layers; on some ranks it is one entry, on others two.
enum { A, B, C, D, E, TENSORS, ROW = 16, MOST = 64 * ROW, STEPS = 4, LAYERS = 4, PARAMS = 6 };
static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
static const size_t counts[TENSORS] = {MOST, 40, MOST, 33, 7};
static double norm[STEPS];
static double value[TENSORS][2 * MOST], gradient[TENSORS][2 * MOST];

static iso_dtype type_of(int t) { return t == B || t == E ? ISO_F64 : ISO_F32; }
static void put(void *array, int t, size_t k, double x) {
    if (type_of(t) == ISO_F64)
        ((double *)array)[k] = x;
    else
        ((float *)array)[k] = (float)x;
}

static iso_reducer_param describe(int t) {
    static const int layer[TENSORS] = {0, 0, 1, 3, 3};
    return (iso_reducer_param){.name = names[t],
                               .value = value[t],
                               .gradient = t == D ? gradient[t] : NULL,
                               .count = counts[t],
                               .dtype = type_of(t),
                               .layer = layer[t],
                               .row = t == A || t == C ? ROW : 0,
                               .layers = t == C ? 2 : 0};
}

// The list of one rank: the tensors from `first` on, or backwards from it on. split: each layer of
// "c" is an entry.
static int list_params(iso_reducer_param out[PARAMS], int first, bool backwards, bool split) {
    int n = 0;
    for (int k = 0; k < TENSORS; k++) {
        int t = (first + (backwards ? TENSORS - k : k)) % TENSORS;
        out[n] = describe(t);
        if (t == C && split) {
            out[n].layers = 0;
            out[n + 1] = out[n];
            out[n].name = "c[0]";
            out[n + 1].name = "c[1]";
            out[n + 1].value = (float *)out[n].value + MOST;
            out[n++ + 1].layer++;
        }
        n++;
    }
    return n;
}

static iso_reducer *create(const iso_reducer_config *config, bool backwards, bool split) {
    iso_reducer_param param[PARAMS];
    iso_reducer *r = NULL;
    iso_reducer_config chosen = *config;
    // Rank 0's list has the layers in order, forwards or backwards; those of others are mixed.
    int first = backwards ? E : A, order = backwards;
    if (chosen.by_name && test_rank > 0) {
        first = (first + test_rank) % TENSORS;
        order = test_rank % 2 == !backwards;
        split = test_rank % 3 != 2 && test_rank > 0 ? !split : split;
    }
    int count = list_params(param, first, order, split);
    for (int t = 0; t < TENSORS; t++)
        for (size_t k = 0; k < (t == C ? 2 : 1) * counts[t]; k++)
            put(value[t], t, k, test_rank + 1 + 0.1 * t + 0.01 * sin((double)k));
    iso_assert_ok(iso_reducer_create(test_comm, param, count, &chosen, &r));
    return r;
}

static iso_status report(iso_reducer *r, int step, int t, int slice) {
    char name[8];
    snprintf(name, sizeof(name), t == C ? "%s[%d]" : "%s", names[t], slice);
    int i = iso_reducer_find(r, name);
    for (size_t k = 0; k < counts[t]; k++)
        put(iso_reducer_grad(r, i), t, k,
            sin(0.4 * (test_rank + 1) + 1.1 * step + t + slice + 0.37 * (double)k));
    return iso_reducer_grad_ready(r, i);
}

static iso_status backward(iso_reducer *r, int step) {
    iso_status status = ISO_OK;
    for (int t = TENSORS - 1; status == ISO_OK && t >= 0; t--)
        for (int l = t == C; status == ISO_OK && l >= 0; l--) status = report(r, step, t, l);
    return status;
}

// With clipping in odd steps, so that the norm counts.
static iso_status train(iso_reducer *r, iso_optimizer *optimizer) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < STEPS; step++) {
        for (int l = 0; status == ISO_OK && l < LAYERS; l++)
            status = iso_reducer_layer_needed(r, l);
        iso_optimizer_zero_grad(optimizer);
        if (status == ISO_OK) status = backward(r, step);
        if (status == ISO_OK && step % 2)
            status = iso_reducer_clip_grad_norm(r, 700, 1, &norm[step]);
        if (status == ISO_OK) status = iso_optimizer_step(optimizer);
    }
    return status == ISO_OK ? iso_reducer_finish(r) : status;
}

// Trains, and copies the optimizer's state into `state`; returns its length.
static size_t run(const iso_reducer_config *config, bool backwards, bool split, char *state) {
    size_t length = 0;
    iso_reducer *r = create(config, backwards, split);
    iso_optimizer *optimizer = NULL;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    iso_state_dict dict = {0};
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_ADAM, &hyper, NULL, 0, &optimizer));
    iso_assert_ok(train(r, optimizer));
    iso_assert_ok(iso_optimizer_state_dict(optimizer, &dict));
    for (int t = 0; t < PARAMS; t++) {
        static const char *const each[PARAMS] = {"a", "b", "c[0]", "c[1]", "d", "e"};
        char name[48];
        void *data;
        snprintf(name, sizeof(name), "state.%s.exp_avg_sq", each[t]);
        iso_tensor *tensor = iso_state_dict_find(&dict, name);
        iso_assert_all(tensor != NULL);
        iso_assert_ok(iso_tensor_map(tensor, ISO_READ, &data));
        size_t bytes = (size_t)iso_tensor_count(tensor) * iso_dtype_size(iso_tensor_dtype(tensor));
        memcpy(state + length, data, bytes);
        length += bytes;
        iso_assert_ok(iso_tensor_unmap(tensor));
    }
    iso_state_dict_destroy(&dict);
    iso_optimizer_destroy(&optimizer);
    iso_reducer_destroy(&r);
    return length;
}

static void give_rank_0s_bits(const iso_reducer_config *config) {
    static double expected[TENSORS][2 * MOST];
    static char states[2][sizeof(value)];
    double norms[STEPS];
    for (int backwards = 0; backwards < 2; backwards++)
        for (int split = 0; split < 2; split++) {
            iso_reducer_config chosen = *config;
            size_t length = run(&chosen, backwards, split, states[0]);
            memcpy(expected, value, sizeof(value));
            memcpy(norms, norm, sizeof(norm));
            chosen.by_name = true;
            iso_assert_all(run(&chosen, backwards, split, states[1]) == length);
            iso_assert_all(memcmp(expected, value, sizeof(value)) == 0);
            iso_assert_all(norm[1] > 700 && memcmp(norms, norm, sizeof(norm)) == 0);
            iso_assert_all(memcmp(states[0], states[1], length) == 0);
        }
}

Test(np1_by_name, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits(&(iso_reducer_config){.piece_bytes = 1024});
}
Test(np2_by_name, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits(&(iso_reducer_config){.sync = ISO_SYNC_BLOCKING});
    give_rank_0s_bits(&(iso_reducer_config){.hook = &iso_hook_bf16_feedback});
}
Test(np3_by_name, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits(&(iso_reducer_config){.piece_bytes = 1024, .sums = 1});
    give_rank_0s_bits(&(iso_reducer_config){.bucket_bytes = 1 << 20});
}
Test(np3_by_name, any_order_gives_the_bits_of_rank_0s_with_zero) {
    give_rank_0s_bits(&(iso_reducer_config){.zero = true});
    give_rank_0s_bits(&(iso_reducer_config){.zero = true, .piece_bytes = 1024});
}
Test(np4_by_name, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits(&(iso_reducer_config){.unused = ISO_UNUSED_NEGOTIATE});
}

// ---- Lists that do not match ------------------------------------------------------------------------

static void expect_refusal(const iso_reducer_param *param, int count, bool match_names,
                           iso_status expected, const char *who, const char *what) {
    iso_reducer *r = NULL;
    const iso_reducer_config config = {.by_name = match_names};
    iso_status status = iso_reducer_create(test_comm, param, count, &config, &r);
    const char *said = iso_last_error()->message;
    bool told = strstr(said, who) && strstr(said, what);
    if (status != expected || !told) fprintf(stderr, "status %d: %s\n", (int)status, said);
    iso_assert_all(status == expected && r == NULL && told);
}

Test(np3_by_name, a_list_that_differs_is_refused_on_every_rank) {
    iso_reducer_param p[PARAMS];
    const iso_status differ = ISO_ERR_MISMATCH;
    // Entry 0 is "b" on rank 1 and "c" on rank 2.
    int n = list_params(p, test_rank, false, false);
    p[0].name = test_rank == 1 ? "other" : p[0].name;
    expect_refusal(p, n, true, differ, "rank 1 lists no parameter named \"b\"", "rank 0 does");
    n = list_params(p, test_rank, false, false);
    expect_refusal(p + (test_rank == 2), n - (test_rank == 2), true, differ, "rank 2", "\"c[0]\"");
    expect_refusal(p + (test_rank == 0), n - (test_rank == 0), true, differ, "lists", "\"a\"");
    p[0].name = test_rank == 1 ? "a" : p[0].name;
    expect_refusal(p, n, true, ISO_ERR_ARG, "rank 1 lists two parameters named \"a\"", "by_name");
    n = list_params(p, test_rank, false, false);
    p[4].name = test_rank == 0 ? NULL : p[4].name;
    expect_refusal(p, n, true, ISO_ERR_ARG, "rank 0 lists parameter 5", "without a name");
}

Test(np3_by_name, another_parameter_of_that_name_is_refused_on_every_rank) {
    iso_reducer_param p[PARAMS];
    const iso_status differ = ISO_ERR_MISMATCH;
    int n = list_params(p, test_rank, false, false);
    p[0].count = test_rank == 1 ? 5 : p[0].count;
    expect_refusal(p, n, true, differ, "rank 1 has parameter \"b\" 5 elements", "40 elements");
    n = list_params(p, test_rank, false, false);
    p[0].dtype = test_rank == 1 ? ISO_F32 : p[0].dtype;
    expect_refusal(p, n, true, differ, "rank 1 has parameter \"b\" 40 elements f32", "f64");
    n = list_params(p, test_rank, false, false);
    p[0].layer = test_rank == 1 ? 3 : p[0].layer;
    expect_refusal(p, n, true, differ, "rank 1 has parameter \"b\"", "(layer 3)");
}

Test(np3_by_name, ranks_agree_on_whether_names_match) {
    iso_reducer_param p[PARAMS];
    int n = list_params(p, 0, false, false);
    expect_refusal(p, n, test_rank == 2, ISO_ERR_MISMATCH, "by_name", "rank 2");
    n = list_params(p, test_rank, false, false); // the order matters without it
    expect_refusal(p, n, false, ISO_ERR_MISMATCH, "ranks disagree", "parameter");
}

// Without by_name, two parameters may have one name.
Test(np2_by_name, names_may_repeat_without_it) {
    iso_reducer_param p[PARAMS];
    iso_reducer *r = NULL;
    int n = list_params(p, 0, false, true);
    p[1].name = "a";
    iso_assert_ok(iso_reducer_create(test_comm, p, n, NULL, &r));
    iso_assert_all(iso_reducer_find(r, "a") == 0);
    iso_reducer_destroy(&r);
}
