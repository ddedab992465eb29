// SPDX-License-Identifier: MIT
// Communication hooks in training, 1 to 4 ranks: what they may change and what not.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_comm_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_comm_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_comm_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_comm_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 20 };

// ---- A hook of the user's ---------------------------------------------------------------------------

// Sends only what has grown to a threshold, in f32, and keeps the rest for later.
typedef struct threshold {
    float least;
    int compressed, decompressed;
} threshold;

static iso_status threshold_compress(const iso_comm_hook_bucket *b, double factor, void *user) {
    threshold *t = user;
    const float *g = b->gradient;
    float *wire = b->wire;
    for (size_t i = 0; i < b->count; i++) {
        float v = g[i] * (float)factor + b->state[i];
        bool send = fabsf(v) >= t->least;
        wire[i] = send ? v : 0;
        b->state[i] = send ? 0 : v;
    }
    t->compressed++;
    return ISO_OK;
}

static iso_status threshold_decompress(const iso_comm_hook_bucket *b, double factor, void *user) {
    float *g = b->gradient;
    const float *wire = b->wire;
    for (size_t i = 0; i < b->count; i++) g[i] = wire[i] * (float)factor;
    ((threshold *)user)->decompressed++;
    return ISO_OK;
}

static iso_comm_hook threshold_hook(threshold *t, float least) {
    *t = (threshold){.least = least};
    return (iso_comm_hook){.name = "threshold",
                           .wire = ISO_F32,
                           .state_floats = 1,
                           .compress = threshold_compress,
                           .decompress = threshold_decompress,
                           .user = t};
}

// ---- A small network --------------------------------------------------------------------------------

static iso_reducer_stats stats_of(trainer *t) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t->model), &stats);
    return stats;
}

// The local hash; *equal: whether all ranks have it.
static uint64_t hash_of(trainer *t, bool *equal) {
    uint64_t hash = 0;
    iso_assert_ok(iso_parameter_hash(t->model, test_comm, &hash, equal));
    return hash;
}

static trainer_config with_hook(const iso_comm_hook *hook, iso_sync sync) {
    trainer_config config = trainer_default();
    config.hook = hook;
    config.sync = sync;
    return config;
}

static uint64_t train(const iso_comm_hook *hook, iso_sync sync, bool *equal) {
    trainer t;
    trainer_config config = with_hook(hook, sync);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, STEPS));
    uint64_t hash = hash_of(&t, equal);
    trainer_destroy(&t);
    return hash;
}

static void plain_is_no_hook(void) {
    bool equal;
    iso_assert_all(train(&iso_hook_plain, ISO_SYNC_LAZY, &equal) ==
                   train(NULL, ISO_SYNC_LAZY, &equal));
    iso_assert_all(equal);
}

Test(np1_comm_hooks, plain_is_no_hook) { plain_is_no_hook(); }
Test(np2_comm_hooks, plain_is_no_hook) { plain_is_no_hook(); }
Test(np3_comm_hooks, plain_is_no_hook) { plain_is_no_hook(); }
Test(np4_comm_hooks, plain_is_no_hook) { plain_is_no_hook(); }

// When something is waited for must not show, whatever travels.
static void lazy_is_blocking(void) {
    threshold t;
    iso_comm_hook own = threshold_hook(&t, 1e-3f);
    const iso_comm_hook *const hooks[] = {&iso_hook_plain,         &iso_hook_f16,  &iso_hook_bf16,
                                          &iso_hook_bf16_feedback, &iso_hook_noop, &own};
    for (int h = 0; h < 6; h++) {
        bool lazy_equal, blocking_equal;
        uint64_t lazy = train(hooks[h], ISO_SYNC_LAZY, &lazy_equal);
        uint64_t blocking = train(hooks[h], ISO_SYNC_BLOCKING, &blocking_equal);
        bool drift = hooks[h]->silent && test_size > 1;
        iso_assert_all(lazy == blocking);
        iso_assert_all(lazy_equal == !drift && blocking_equal == !drift);
    }
}

Test(np1_comm_hooks, lazy_is_blocking) { lazy_is_blocking(); }
Test(np2_comm_hooks, lazy_is_blocking) { lazy_is_blocking(); }
Test(np3_comm_hooks, lazy_is_blocking) { lazy_is_blocking(); }
Test(np4_comm_hooks, lazy_is_blocking) { lazy_is_blocking(); }

// The largest difference of a parameter after STEPS steps to those without a hook.
static double distance_to_plain(const iso_comm_hook *hook) {
    trainer a, b;
    double difference = -1;
    trainer_config plain = with_hook(NULL, ISO_SYNC_LAZY), other = with_hook(hook, ISO_SYNC_LAZY);
    iso_assert_ok(trainer_create(&a, test_comm, &plain));
    iso_assert_ok(trainer_create(&b, test_comm, &other));
    iso_assert_ok(trainer_train(&a, STEPS));
    iso_assert_ok(trainer_train(&b, STEPS));
    iso_assert_ok(trainer_difference(&a, &b, &difference));
    trainer_destroy(&a);
    trainer_destroy(&b);
    return difference;
}

// Relative errors of 2^-11 and 2^-8 in gradients; parameters have moved by up to 0.5.
static void rounding_stays_close(void) {
    double f16 = distance_to_plain(&iso_hook_f16), bf16 = distance_to_plain(&iso_hook_bf16);
    double feedback = distance_to_plain(&iso_hook_bf16_feedback);
    iso_assert_all(f16 > 0 && f16 < 3e-4);
    iso_assert_all(bf16 > 0 && bf16 < 8e-3);
    iso_assert_all(feedback > 0 && feedback < bf16);
}

Test(np2_comm_hooks, rounding_stays_close) { rounding_stays_close(); }
Test(np3_comm_hooks, rounding_stays_close) { rounding_stays_close(); }
Test(np4_comm_hooks, rounding_stays_close) { rounding_stays_close(); }

// With nobody to send to there is nothing to round.
Test(np1_comm_hooks, one_rank_does_not_round) {
    iso_assert_all(distance_to_plain(&iso_hook_bf16) == 0);
    iso_assert_all(distance_to_plain(&iso_hook_bf16_feedback) == 0);
}

Test(np2_comm_hooks, sixteen_bits_halve_the_bytes) {
    const iso_comm_hook *const hooks[] = {NULL, &iso_hook_bf16, &iso_hook_noop, NULL};
    const iso_sync sync[] = {ISO_SYNC_LAZY, ISO_SYNC_LAZY, ISO_SYNC_LAZY, ISO_SYNC_NONE};
    iso_reducer_stats stats[4];
    for (int h = 0; h < 4; h++) {
        trainer t;
        trainer_config config = with_hook(hooks[h], sync[h]);
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(trainer_train(&t, 3));
        iso_assert_ok(iso_data_parallel_finish(t.model));
        stats[h] = stats_of(&t);
        trainer_destroy(&t);
    }
    iso_assert_all(stats[1].bytes_per_step * 2 == stats[0].bytes_per_step);
    iso_assert_all(stats[1].bytes_world * 2 == stats[0].bytes_world);
    iso_assert_all(stats[0].bytes_world == 3 * (long long)stats[0].bytes_per_step);
    for (int h = 2; h < 4; h++) // nothing travels, in either way
        iso_assert_all(stats[h].bytes_world == 0 && stats[h].exchanges == 0 &&
                       stats[h].bytes_per_step == 0);
}

// ---- Together with others ---------------------------------------------------------------------------

// A hook is asked once per exchange, not once per micro-step.
static int calls_with_no_sync(iso_sync sync, double *difference) {
    enum { MICRO = 3 };
    threshold t;
    iso_comm_hook own = threshold_hook(&t, 0); // sends everything: only counts
    trainer hooked, plain;
    trainer_config a = with_hook(&own, sync), b = with_hook(NULL, sync);
    iso_assert_ok(trainer_create(&hooked, test_comm, &a));
    iso_assert_ok(trainer_create(&plain, test_comm, &b));
    trainer *const both[] = {&hooked, &plain};
    for (int step = 0; step < STEPS * 2; step++) {
        trainer *now = both[step % 2];
        iso_optimizer_zero_grad(now->optimizer);
        iso_assert_ok(iso_data_parallel_begin_no_sync(now->model));
        for (int k = 0; k < MICRO; k++) {
            if (k == MICRO - 1) iso_assert_ok(iso_data_parallel_end_no_sync(now->model));
            iso_assert_ok(trainer_backward(now, step / 2 * MICRO + k));
        }
        iso_assert_ok(iso_optimizer_step(now->optimizer));
    }
    iso_assert_ok(trainer_difference(&hooked, &plain, difference));
    int expected = STEPS * stats_of(&hooked).bucket_count;
    iso_assert_all(t.compressed == expected && t.decompressed == expected);
    trainer_destroy(&hooked);
    trainer_destroy(&plain);
    return t.compressed;
}

static void no_sync_compresses_the_sum(void) {
    double difference;
    calls_with_no_sync(ISO_SYNC_LAZY, &difference);
    iso_assert_all(difference < 1e-5);
    calls_with_no_sync(ISO_SYNC_BLOCKING, &difference);
    iso_assert_all(difference < 1e-5);
}

Test(np2_comm_hooks, no_sync_compresses_the_sum) { no_sync_compresses_the_sum(); }
Test(np3_comm_hooks, no_sync_compresses_the_sum) { no_sync_compresses_the_sum(); }

// Each node of two ranks is what the two are alone, on the same rows.
Test(np4_comm_hooks, a_node_is_its_ranks_alone) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    trainer_config config = with_hook(&iso_hook_bf16, ISO_SYNC_LAZY);
    trainer node, alone;
    bool equal;
    double difference = -1;
    config.scope = ISO_SCOPE_NODE;
    iso_assert_ok(trainer_create(&node, test_comm, &config));
    iso_assert_ok(trainer_train(&node, STEPS));
    MPI_Comm pair;
    iso_comm *comm;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &pair);
    iso_assert_ok(iso_comm_create(pair, NULL, &comm));
    config.scope = ISO_SCOPE_WORLD;
    config.rows = 6;
    config.first_row = test_rank / 2 * 6;
    iso_assert_ok(trainer_create(&alone, comm, &config));
    iso_assert_ok(trainer_train(&alone, STEPS));
    iso_assert_ok(trainer_difference(&node, &alone, &difference));
    iso_assert_all(difference == 0);
    hash_of(&node, &equal);
    iso_assert_all(!equal);
    iso_assert_all(stats_of(&node).bytes_node == STEPS * (long long)stats_of(&node).bytes_per_step);
    trainer_destroy(&node);
    trainer_destroy(&alone);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&pair);
}

// ---- Plain arrays -----------------------------------------------------------------------------------

enum { PARAMS = 3, MOST = 40000 };
static const size_t counts[PARAMS] = {5, 700, MOST};
static float value[PARAMS][MOST];

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)user;
    float rate = (float)(*(const double *)hyper * scale);
    for (size_t k = 0; k < counts[i]; k++) value[i][k] -= rate * ((const float *)gradient)[k];
    return ISO_OK;
}

static iso_reducer *make_reducer(const iso_comm_hook *hook) {
    static const char *const names[PARAMS] = {"a", "b", "c"};
    iso_reducer_param params[PARAMS];
    iso_reducer *r = NULL;
    for (int i = 0; i < PARAMS; i++)
        params[i] = (iso_reducer_param){
            .name = names[i], .value = value[i], .count = counts[i], .dtype = ISO_F32, .layer = i};
    iso_reducer_config config = {.hook = hook};
    memset(value, 0, sizeof(value));
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, &config, &r));
    iso_assert_ok(iso_reducer_set_apply(r, descend, sizeof(double), NULL));
    return r;
}

// gradient_of(rank, step, i, k)
typedef float (*gradient_of)(int rank, int step, int i, size_t k);

static iso_status backward(iso_reducer *r, int step, gradient_of gradient) {
    iso_status status = ISO_OK;
    for (int i = 0; i < PARAMS && status == ISO_OK; i++) status = iso_reducer_param_needed(r, i);
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) {
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[i]; k++) g[k] = gradient(test_rank, step, i, k);
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static iso_status train_step(iso_reducer *r, int step, gradient_of gradient, double lr) {
    iso_reducer_zero_grad(r);
    iso_status status = backward(r, step, gradient);
    return status == ISO_OK ? iso_reducer_step(r, &lr) : status;
}

static float whole_number(int rank, int step, int i, size_t k) {
    return (float)((rank * 5 + step * 3 + i + (int)(k % 11)) % 7 - 2);
}

static void noop_leaves_local_gradients(void) {
    iso_reducer *r = make_reducer(&iso_hook_noop);
    iso_assert_ok(backward(r, 1, whole_number));
    iso_assert_ok(iso_reducer_finish(r));
    size_t wrong = 0;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++)
            wrong += ((float *)iso_reducer_grad(r, i))[k] != whole_number(test_rank, 1, i, k);
    iso_assert_all(wrong == 0);
    iso_reducer_destroy(&r);
}

Test(np2_comm_hooks, noop_leaves_local_gradients) { noop_leaves_local_gradients(); }
Test(np3_comm_hooks, noop_leaves_local_gradients) { noop_leaves_local_gradients(); }

// Average and rounding: exactly the mean of small whole numbers where the ranks are a power of two.
static void averages_are_exact(void) {
    const iso_comm_hook *const hooks[] = {&iso_hook_f16, &iso_hook_bf16, &iso_hook_bf16_feedback};
    for (int h = 0; h < 3; h++) {
        iso_reducer *r = make_reducer(hooks[h]);
        size_t wrong = 0;
        iso_assert_ok(backward(r, 2, whole_number));
        iso_assert_ok(iso_reducer_finish(r));
        for (int i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++) {
                float sum = 0;
                for (int rank = 0; rank < test_size; rank++) sum += whole_number(rank, 2, i, k);
                wrong += ((float *)iso_reducer_grad(r, i))[k] != sum / (float)test_size;
            }
        iso_assert_all(wrong == 0);
        iso_reducer_destroy(&r);
    }
}

Test(np2_comm_hooks, averages_are_exact) { averages_are_exact(); }
Test(np4_comm_hooks, averages_are_exact) { averages_are_exact(); }

// Hooks are for f32: beside it, f64 travels as it is.
Test(np2_comm_hooks, f64_is_not_rounded) {
    static float a[40];
    static double b[40];
    iso_reducer_param params[] = {
        {.name = "a", .value = a, .count = 40, .dtype = ISO_F32, .layer = 0},
        {.name = "b", .value = b, .count = 40, .dtype = ISO_F64, .layer = 0}};
    iso_reducer_config config = {.hook = &iso_hook_bf16};
    iso_reducer *r = NULL;
    iso_assert_ok(iso_reducer_create(test_comm, params, 2, &config, &r));
    float *f32 = iso_reducer_grad(r, 0);
    double *f64 = iso_reducer_grad(r, 1);
    for (int k = 0; k < 40; k++) f64[k] = f32[k] = test_rank == 0 ? 1 : 1.001f;
    for (int i = 1; i >= 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
    iso_assert_ok(iso_reducer_finish(r));
    size_t wrong = 0;
    for (int k = 0; k < 40; k++) wrong += f32[k] != 1 || f64[k] != (1 + (double)1.001f) / 2;
    iso_assert_all(wrong == 0);
    iso_reducer_destroy(&r);
}

static float too_large_on_rank_0(int rank, int step, int i, size_t k) {
    (void)step;
    return rank == 0 && i == 1 && k == 3 ? 1e6f : 1;
}

// What is too large for f16 on one rank is not finite on all, so that all can skip the step.
Test(np3_comm_hooks, overflow_of_f16_is_seen_by_all) {
    iso_reducer *r = make_reducer(&iso_hook_f16);
    iso_assert_ok(backward(r, 0, too_large_on_rank_0));
    iso_assert_ok(iso_reducer_finish(r));
    const float *g = iso_reducer_grad(r, 1);
    iso_assert_all(isinf(g[3]) && fabsf(g[4] - 1) < 1e-2f);
    iso_reducer_destroy(&r);
}

// ---- State ------------------------------------------------------------------------------------------

// In how many elements what was applied is not the sum of all gradients of so many steps.
static size_t missing(int steps) {
    size_t count = 0;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            double sum = 0;
            for (int step = 0; step < steps; step++)
                for (int rank = 0; rank < test_size; rank++) sum += whole_number(rank, step, i, k);
            count += fabs(value[i][k] + sum) > 1e-3;
        }
    return count;
}

// What stays below the threshold is kept until there is none any more: then nothing has been lost,
// and nothing was sent twice.
static void users_state_is_kept(void) {
    threshold t;
    iso_comm_hook own = threshold_hook(&t, 9);
    iso_reducer *r = make_reducer(&own);
    for (int step = 0; step < STEPS; step++) {
        t.least = step == STEPS - 1 ? 0 : 9;
        iso_assert_ok(train_step(r, step, whole_number, test_size)); // lr * mean = sum
        if (step != STEPS / 2) continue;
        iso_assert_ok(iso_reducer_finish(r));
        iso_assert_all(missing(step + 1) > MOST / 2);
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(missing(STEPS) == 0);
    iso_reducer_destroy(&r);
}

Test(np2_comm_hooks, users_state_is_kept) { users_state_is_kept(); }
Test(np3_comm_hooks, users_state_is_kept) { users_state_is_kept(); }

// Least squares: 1/2 |x - t|^2 on each rank, another t each; the solution is the mean of all t.
static float target(int rank, int i, size_t k) {
    return sinf((float)(rank * 37 + i * 11) + 0.7f * (float)k);
}

static float residual(int rank, int step, int i, size_t k) {
    (void)step;
    return value[i][k] - target(rank, i, k);
}

// Root of the mean square of the distance to the solution.
static double solve(const iso_comm_hook *hook) {
    iso_reducer *r = make_reducer(hook);
    iso_status status = ISO_OK;
    for (int step = 0; step < 300 && status == ISO_OK; step++)
        status = train_step(r, step, residual, 0.05);
    iso_assert_ok(status);
    iso_assert_ok(iso_reducer_finish(r));
    double squares = 0;
    for (size_t k = 0; k < counts[1]; k++) {
        double mean = 0;
        for (int rank = 0; rank < test_size; rank++) mean += target(rank, 1, k) / test_size;
        squares += (value[1][k] - mean) * (value[1][k] - mean);
    }
    iso_reducer_destroy(&r);
    return sqrt(squares / (double)counts[1]);
}

// Each rank's gradients stay large where their mean vanishes: what rounding cuts off them moves the
// solution, unless it goes along later. What sums of more than two ranks lose is not fed back.
static void feedback_comes_closer(double times) {
    double plain = solve(NULL), bf16 = solve(&iso_hook_bf16);
    double feedback = solve(&iso_hook_bf16_feedback);
    fprintf(stderr, "plain %g bf16 %g feedback %g\n", plain, bf16, feedback);
    iso_assert_all(plain < feedback && feedback * times < bf16);
}

Test(np2_comm_hooks, feedback_comes_closer) { feedback_comes_closer(5); }
Test(np4_comm_hooks, feedback_comes_closer) { feedback_comes_closer(1.5); }
