// SPDX-License-Identifier: MIT
// The table of environment variables: what each may be, what ranks compare, and unknown names.
#include "common/balance.h"
#include "base/base.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(env, .timeout = 60, .fini = balance_check);

// What `write` puts into a stream, in a buffer for one test.
static char captured[16384];
static const char *capture(void (*write)(FILE *to)) {
    memset(captured, 0, sizeof(captured));
    FILE *to = fmemopen(captured, sizeof(captured) - 1, "w");
    write(to);
    fclose(to);
    return captured;
}

Test(env, the_table_names_every_variable_and_its_value) {
    setenv("ISO_TIMEOUT", "17", 1);
    const char *text = capture(iso_env_print);
    static const char *const names[ISO_ENV_COUNT] = {
        "ISO_LOG",           "ISO_DEBUG",       "ISO_PROGRESS",       "ISO_PROGRESS_US",
        "ISO_PROGRESS_CORE", "ISO_TIMEOUT",     "ISO_RECORDER",       "ISO_STALL_WARN",
        "ISO_STEP_TIMEOUT",  "ISO_WATCHDOG",    "ISO_RANKS_PER_NODE", "ISO_NODE_COLLECTIVE",
        "ISO_IALLREDUCE",    "ISO_CPU_KERNELS", "ISO_DIGITS",         "ISO_CUDA_CONV",
        "ISO_CUDA_GRAPHS"};
    for (int i = 0; i < ISO_ENV_COUNT; i++) {
        cr_assert_not_null(names[i], "a new variable is missing here");
        cr_assert(strstr(text, names[i]), "%s is missing", names[i]);
    }
    cr_assert(strstr(text, "now 17"));
}

Test(env, environment_numbers_are_checked) {
    double value = -1;
    unsetenv("ISO_TIMEOUT");
    cr_assert(iso__env_number(ISO_ENV_TIMEOUT, 42, &value) == ISO_OK && value == 42);
    setenv("ISO_TIMEOUT", "2.5", 1);
    cr_assert(iso__env_number(ISO_ENV_TIMEOUT, 42, &value) == ISO_OK && value == 2.5);
    static const char *const wrong[] = {"soon", "3s", "1e10", "-1", "nan"};
    for (int i = 0; i < 5; i++) {
        setenv("ISO_TIMEOUT", wrong[i], 1);
        cr_assert(iso__env_number(ISO_ENV_TIMEOUT, 42, &value) == ISO_ERR_ARG, "%s passed",
                  wrong[i]);
        cr_assert(strstr(iso_last_error()->message, "ISO_TIMEOUT"));
    }
    cr_assert(value == 2.5, "out parameters are written only on success");
}

// Of every variable, with its name, the value, and what is accepted.
Test(env, bad_values_of_the_environment_are_refused) {
    static const char *const cases[ISO_ENV_COUNT][4] = {
        {"ISO_LOG", "loud", "give error, warn, info or debug", "info"},
        {"ISO_DEBUG", "all", "give off, info or detail", "info"},
        {"ISO_PROGRESS", "threads", "give auto, off, poll or thread", "poll"},
        {"ISO_PROGRESS_US", "adaptive", "give a number from 0 to 999999", "50.5"},
        {"ISO_PROGRESS_CORE", "first", "give shared or own", "own"},
        {"ISO_TIMEOUT", "-3", "give a number from 0 to 1000000000", "0.25"},
        {"ISO_RECORDER", NULL, NULL, "anything"},
        {"ISO_STALL_WARN", "late", "give a number from 0 to 1000000000", "60"},
        {"ISO_STEP_TIMEOUT", "-1", "give a number from 0 to 1000000000", "600"},
        {"ISO_WATCHDOG", "no", "give a number from 0 to 1000000000", "10"},
        {"ISO_RANKS_PER_NODE", "1.5", "give a whole number from 1 to 1000000", "4"},
        {"ISO_NODE_COLLECTIVE", "shm nccl", "give auto, nccl, nccl-all, shm or mpi", "shm"},
        {"ISO_IALLREDUCE", "7", "give a whole number from 0 to 6", "0"},
        {"ISO_CPU_KERNELS", "one", "give onednn, cblas or reference", "reference"},
        {"ISO_DIGITS", "599", "give a whole number from 600 to 100000000", "600"},
        {"ISO_CUDA_CONV", "CUDNN", "give cudnn or gemm", "gemm"},
        {"ISO_CUDA_GRAPHS", "yes", "give a whole number from 0 to 1", "1"}};
    for (int i = 0; i < ISO_ENV_COUNT; i++) {
        char said[200];
        cr_assert_str_eq(iso__env_name((iso__env)i), cases[i][0]);
        if (cases[i][1]) {
            setenv(cases[i][0], cases[i][1], 1);
            cr_assert_eq(iso__env_check_all(), ISO_ERR_ARG, "%s passed", cases[i][0]);
            snprintf(said, sizeof(said), "environment variable %s is \"%s\": %s", cases[i][0],
                     cases[i][1], cases[i][2]);
            cr_assert_str_eq(iso_last_error()->message, said);
        }
        setenv(cases[i][0], "", 1); // as if it were not set
        cr_assert_eq(iso__env_check_all(), ISO_OK);
        setenv(cases[i][0], cases[i][3], 1);
        cr_assert_eq(iso__env_check_all(), ISO_OK, "%s refused", cases[i][0]);
    }
}

// A new variable needs a decision, too.
Test(env, variables_that_decide_exchanges_or_bits_are_compared_between_ranks) {
    static const bool alike[ISO_ENV_COUNT] = {
        [ISO_ENV_RANKS_PER_NODE] = true, [ISO_ENV_NODE_COLLECTIVE] = true,
        [ISO_ENV_IALLREDUCE] = true,     [ISO_ENV_CPU_KERNELS] = true,
        [ISO_ENV_CUDA_CONV] = true,      [ISO_ENV_DEBUG] = true,
        [ISO_ENV_DIGITS] = true,
    };
    for (int i = 0; i < ISO_ENV_COUNT; i++)
        cr_expect_eq(iso__env_is_alike((iso__env)i), alike[i], "%s", iso__env_name((iso__env)i));
    unsetenv("ISO_IALLREDUCE");
    unsetenv("ISO_CPU_KERNELS");
    unsetenv("ISO_RANKS_PER_NODE");
    cr_expect_str_eq(iso__env_effective(ISO_ENV_IALLREDUCE),
                     "5"); // whether it is set to that or not
    cr_expect_null(iso__env_effective(ISO_ENV_CPU_KERNELS));
    cr_expect_null(iso__env_effective(ISO_ENV_RANKS_PER_NODE));
    setenv("ISO_CPU_KERNELS", "reference", 1);
    cr_expect_str_eq(iso__env_effective(ISO_ENV_CPU_KERNELS), "reference");
}

static void say_unknown(FILE *to) {
    iso_log_set_stream(to);
    (void)iso__env_unknown(true);
}

Test(env, unknown_variables_are_told_with_the_nearest_name) {
    setenv("ISO_TEST_ANYTHING", "1", 1);
    setenv("ISO_EMULATED_ORDER", "1", 1);
    setenv("ISOTHERM", "1", 1);
    cr_assert_eq(iso__env_unknown(false), 0);
    cr_assert_str_eq(capture(say_unknown), "");
    setenv("ISO_TIMOUT", "3", 1);
    uint64_t one = iso__env_unknown(false);
    setenv("ISO_IALL_REDUCE", "2", 1);
    cr_assert(one != 0 && iso__env_unknown(false) != one);
    const char *text = capture(say_unknown);
    cr_assert(strstr(text, "ISO_TIMOUT is unknown and has no effect: did you mean ISO_TIMEOUT?"));
    cr_assert(
        strstr(text, "ISO_IALL_REDUCE is unknown and has no effect: did you mean ISO_IALLREDUCE?"));
}
