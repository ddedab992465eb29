// SPDX-License-Identifier: MIT
// Communication hooks that own their exchange, in training on 1 to 4 ranks.
#include "common/dp_fixture.h"
#include "common/hook_fixture.h"
#include "common/mpi_fixture.h"
#include "common/transport_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_own_exchange, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np2_own_exchange, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_own_exchange, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_own_exchange, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

enum { STEPS = 12 };

// ---- The transport ------------------------------------------------------------------------------------

static void every_way_conforms(void) {
    hook_user user;
    for (int way = 0; way < HOOK_WAYS; way++) {
        iso_comm_hook hook = hook_of_way(&user, (hook_way)way);
        transport_conforms(&(transport_case){"phases", ISO_SCOPE_WORLD, &hook, NULL, false, false});
    }
}

Test(np2_own_exchange, every_way_conforms) { every_way_conforms(); }
Test(np3_own_exchange, every_way_conforms) { every_way_conforms(); }
Test(np4_own_exchange, every_way_conforms) { every_way_conforms(); }

static void keeps_times(hook_way way) {
    hook_user user;
    iso_comm_hook hook = hook_of_way(&user, way);
    transport_case c = {"phases", ISO_SCOPE_WORLD, &hook, NULL, false, false};
    transport_keeps_times(&c, TRANSPORT_F32, NULL);
}

Test(np2_own_exchange, a_wait_that_timed_out_goes_on) { keeps_times(HOOK_EXCHANGE); }
Test(np3_own_exchange, a_wait_that_timed_out_goes_on) { keeps_times(HOOK_MIXED); }

// ---- Training -----------------------------------------------------------------------------------------

static uint64_t train(const iso_comm_hook *hook, iso_sync sync, double piece_mb) {
    trainer_config config = trainer_default();
    uint64_t hash = 0;
    config.hook = hook;
    config.sync = sync;
    config.piece_mb = piece_mb;
    iso_assert_ok(trainer_run(test_comm, &config, STEPS, &hash)); // fails where ranks differ
    return hash;
}

static const iso_topk_config topk_config = {.ratio = .1};
static const iso_powersgd_config powersgd_config = {.rank = 2, .start = 4, .least_saving = 1};
static const iso_randomk_config randomk_config = {.ratio = .2, .seed = 3};
static const iso_powersgd_config batched_config = {
    .rank = 1, .start = 2, .least_saving = 1, .batched = true};

// The hooks that are shipped, and those of every way.
enum { SHIPPED = 10, HOOKS = SHIPPED + HOOK_WAYS };
static iso_comm_hook hook_number(int i, hook_user *user) {
    iso_comm_hook shipped[SHIPPED] = {iso_hook_int8,
                                      iso_hook_topk(&topk_config),
                                      iso_hook_powersgd(&powersgd_config),
                                      iso_hook_powersgd(&powersgd_config),
                                      iso_hook_powersgd(&batched_config),
                                      iso_hook_onebit,
                                      iso_hook_dithering,
                                      iso_hook_randomk(&randomk_config),
                                      iso_hook_adasum,
                                      iso_hook_fp8};
    shipped[3].wire = ISO_BF16;
    return i < SHIPPED ? shipped[i] : hook_of_way(user, (hook_way)(i - SHIPPED));
}

// When something is waited for must not show, whatever travels.
// ---- The last bucket --------------------------------------------------------------------------------

enum { SEEN = 16 };
typedef struct last_seen {
    int calls[SEEN], last[SEEN]; // of each bucket
} last_seen;

static iso_status note_last(const iso_comm_hook_bucket *b, double factor, void *user) {
    last_seen *seen = user;
    if (b->index >= SEEN) return ISO_ERR_STATE;
    seen->calls[b->index]++;
    seen->last[b->index] += b->is_last;
    return iso_hook_bf16.compress(b, factor, iso_hook_bf16.user);
}

// Backward completes the bucket of the first layer last.
static void the_last_bucket_is_marked(iso_sync sync) {
    last_seen seen = {0};
    iso_comm_hook hook = iso_hook_bf16;
    int last = 0;
    hook.compress = note_last;
    hook.user = &seen;
    train(&hook, sync, 0);
    while (last + 1 < SEEN && seen.calls[last + 1] > 0) last++;
    iso_assert_all(last == 3); // one bucket for each layer of the small CNN
    for (int i = 0; i <= last; i++) {
        iso_assert_all(seen.calls[i] == STEPS);
        iso_assert_all(seen.last[i] == (i == last ? STEPS : 0));
    }
}
Test(np2_own_exchange, the_last_bucket_is_marked) {
    the_last_bucket_is_marked(ISO_SYNC_LAZY);
    the_last_bucket_is_marked(ISO_SYNC_BLOCKING);
}

static void lazy_is_blocking(void) {
    hook_user user;
    for (int i = 0; i < HOOKS; i++) {
        iso_comm_hook hook = hook_number(i, &user);
        uint64_t blocking = train(&hook, ISO_SYNC_BLOCKING, 0);
        iso_assert_all(train(&hook, ISO_SYNC_LAZY, 0) == blocking);
    }
}

Test(np1_own_exchange, lazy_is_blocking) { lazy_is_blocking(); }
Test(np2_own_exchange, lazy_is_blocking) { lazy_is_blocking(); }
Test(np3_own_exchange, lazy_is_blocking) { lazy_is_blocking(); }
Test(np4_own_exchange, lazy_is_blocking) { lazy_is_blocking(); }

// Two ranks have one sum, however it is made: the order of additions does not count.
static void own_sums_are_sums(void) {
    hook_user user;
    uint64_t plain = train(NULL, ISO_SYNC_LAZY, 0), pieces = train(NULL, ISO_SYNC_LAZY, 1e-4);
    for (int way = 0; way < HOOK_WAYS; way++) {
        iso_comm_hook hook = hook_of_way(&user, (hook_way)way);
        iso_assert_all(train(&hook, ISO_SYNC_LAZY, 0) == plain);
        iso_assert_all(train(&hook, ISO_SYNC_LAZY, 1e-4) == pieces);
    }
}

Test(np1_own_exchange, own_sums_are_sums) { own_sums_are_sums(); }
Test(np2_own_exchange, own_sums_are_sums) { own_sums_are_sums(); }

// Before it starts, a hook changes nothing.
static void starts_later(void) {
    iso_powersgd_config config = powersgd_config;
    config.start = STEPS;
    iso_comm_hook never = iso_hook_powersgd(&config);
    iso_assert_all(train(&never, ISO_SYNC_LAZY, 0) == train(NULL, ISO_SYNC_LAZY, 0));
    config.start = STEPS - 1;
    iso_comm_hook last = iso_hook_powersgd(&config);
    iso_assert_all(train(&last, ISO_SYNC_LAZY, 0) != train(NULL, ISO_SYNC_LAZY, 0));
}

Test(np2_own_exchange, starts_later) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1); // as the sums before it
    starts_later();
}

// ---- A collective of the hook's own -------------------------------------------------------------------

static iso_status declare_nothing(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                  void *user) {
    (void)b;
    (void)user;
    plan->phase_count = 0;
    return ISO_OK;
}

static iso_status reduce_alone(const iso_comm_hook_bucket *b, int phase, double factor,
                               void *user) {
    float *g = b->gradient;
    (void)phase;
    ++*(int *)user;
    if (!b->comm) return iso_error_set(ISO_ERR_STATE, "there is no communicator");
    iso_request *request = NULL;
    iso_status status = iso_comm_iallreduce(b->comm, g, b->count, ISO_F32, "own", &request);
    if (status == ISO_OK) status = iso_request_wait(&request);
    for (size_t i = 0; i < b->count; i++) g[i] *= (float)factor;
    return status;
}

static void blocking_hooks_may_reduce(void) {
    int calls = 0;
    iso_comm_hook hook = {
        .name = "own", .declare = declare_nothing, .run = reduce_alone, .user = &calls};
    iso_assert_all(train(&hook, ISO_SYNC_BLOCKING, 0) == train(NULL, ISO_SYNC_BLOCKING, 0));
    iso_assert_all(calls == 4 * STEPS);
}

Test(np2_own_exchange, blocking_hooks_may_reduce) { blocking_hooks_may_reduce(); }

Test(np2_own_exchange, lazy_hooks_declare_phases) {
    trainer t;
    trainer_config config = trainer_default();
    int calls = 0;
    iso_comm_hook hook = {
        .name = "own", .declare = declare_nothing, .run = reduce_alone, .user = &calls};
    config.hook = &hook;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "ISO_SYNC_BLOCKING"));
    iso_device_destroy(&t.device);
}

// ---- Errors -------------------------------------------------------------------------------------------

// What never travelled is no average, whoever asks.
static void a_hook_fails(int phase, iso_sync sync) {
    trainer t;
    hook_user user;
    trainer_config config = trainer_default();
    iso_comm_hook hook = hook_of_way(&user, HOOK_EXCHANGE);
    user.fail_phase = phase;
    user.fail_bucket = 0; // then nothing is under way that nobody waits for
    config.hook = &hook;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_status status = trainer_train(&t, 2);
    iso_assert_all(status == ISO_ERR_STATE);
    iso_assert_all(iso_data_parallel_finish(t.model) < 0);
    trainer_destroy(&t);
}

static void hooks_fail(void) {
    for (int phase = 0; phase < 3; phase++) {
        // Between phases it depends on the rank's pace which call fails, and what others wait for.
        if (phase != 1) a_hook_fails(phase, ISO_SYNC_LAZY);
        a_hook_fails(phase, ISO_SYNC_BLOCKING);
    }
}

Test(np2_own_exchange, hooks_fail) { hooks_fail(); }
Test(np3_own_exchange, hooks_fail) { hooks_fail(); }

static void refused(const iso_comm_hook *hook, iso_status code, const char *text) {
    trainer t;
    trainer_config config = trainer_default();
    config.hook = hook;
    iso_status status = trainer_create(&t, test_comm, &config);
    iso_assert_all(status == code);
    cr_assert(strstr(iso_last_error()->message, text), "%s", iso_last_error()->message);
    iso_device_destroy(&t.device);
}

static iso_status declare_wrong(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                void *user) {
    plan->phase_count = 1;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_SUM, b->count, ISO_F32};
    switch (*(const int *)user) {
    case 0: plan->phase_count = 5; break;
    case 1: plan->phase[0].count = 0; break;
    case 2: plan->phase[0].dtype = ISO_I64; break;
    case 3: plan->phase[0].operation = (iso_comm_operation)7; break;
    default: plan->phase[0].count += (size_t)b->rank; // ranks differ
    }
    return ISO_OK;
}

static iso_status run_nothing(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    (void)b, (void)phase, (void)factor, (void)user;
    return ISO_OK;
}

Test(np2_own_exchange, wrong_plans_are_refused) {
    static const struct {
        iso_status code;
        const char *text;
    } want[] = {{ISO_ERR_ARG, "5 phases"},
                {ISO_ERR_ARG, "0 elements"},
                {ISO_ERR_TYPE, "cannot be summed"},
                {ISO_ERR_ARG, "operation 7"},
                {ISO_ERR_MISMATCH, "phases of the hook"}};
    for (int which = 0; which < 5; which++) {
        iso_comm_hook hook = {
            .name = "wrong", .declare = declare_wrong, .run = run_nothing, .user = &which};
        refused(&hook, want[which].code, want[which].text);
    }
}

Test(np2_own_exchange, wrong_hooks_are_refused) {
    iso_comm_hook half = {.name = "half", .run = run_nothing};
    refused(&half, ISO_ERR_ARG, "declare and run");
    iso_comm_hook both = iso_hook_bf16;
    both.declare = declare_wrong;
    both.run = run_nothing;
    refused(&both, ISO_ERR_ARG, "compress and run");
    iso_comm_hook early = {.name = "early", .start = 3};
    refused(&early, ISO_ERR_ARG, "starts after 3");
}
