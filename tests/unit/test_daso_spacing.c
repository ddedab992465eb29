// SPDX-License-Identifier: MIT
// An automatic period of DASO leaves steps between a merge and the next send.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>

TestSuite(daso_spacing, .timeout = 60);

static iso_daso_config config_of(iso_policy policy, int64_t skip, int64_t wait) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.policy = policy;
    config.total_steps = 1000;
    config.warmup_steps = config.cooldown_steps = 0;
    config.global_skip = skip;
    config.batches_to_wait = wait;
    return config;
}

Test(daso_spacing, is_half_of_the_wait) {
    cr_assert_eq(iso__daso_skip_for(-1), 0);
    cr_assert_eq(iso__daso_skip_for(0), 0);
    cr_assert_eq(iso__daso_skip_for(1), 2);
    cr_assert_eq(iso__daso_skip_for(12), 18);
    cr_assert_eq(iso__daso_skip_for(13), 20);
    cr_assert_eq(iso__daso_skip_for(INT64_MAX), INT64_MAX);
}

Test(daso_spacing, ends_at_the_largest_period) {
    iso__daso_schedule s;
    iso_daso_config config = config_of(ISO_POLICY_FIXED, -1, -1);
    iso__daso_schedule_init(&s, &config);
    iso__daso_schedule_measured(&s, 50);
    cr_assert(s.global_skip == 64 && s.batches_to_wait == 50);
}

Test(daso_spacing, is_kept_by_all_policies) {
    const iso_policy policy[] = {ISO_POLICY_PLATEAU, ISO_POLICY_QSR, ISO_POLICY_ADACOMM};
    for (int i = 0; i < 3; i++) {
        iso_daso_config config = config_of(policy[i], -1, 12);
        iso_daso_decision d = {.global_skip = 18, .local_skip = 1, .batches_to_wait = 12};
        iso_daso_observation o = {.kind = ISO_OBSERVED_EPOCH, .loss = 1, .lr = 10};
        iso__policy_state s;
        iso__policy_init(&s, &config);
        if (policy[i] == ISO_POLICY_QSR) o.kind = ISO_OBSERVED_SYNC;
        for (int k = 0; k < 5; k++) {
            iso__policy_decide(&s, &config, &o, &d);
            cr_assert_geq(d.global_skip, iso__daso_skip_for(d.batches_to_wait));
        }
    }
}

// The wait fits already.
Test(daso_spacing, raises_a_period_as_short_as_the_wait) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 12, 12);
    iso_daso_decision d = {.global_skip = 12, .local_skip = 1, .batches_to_wait = 12};
    iso_daso_observation o = {.kind = ISO_OBSERVED_SYNC, .exchange_ms = 252, .step_ms = 28};
    iso__policy_state s;
    iso__policy_init(&s, &config);
    cr_assert(iso__policy_decide(&s, &config, &o, &d));
    cr_assert_str_eq(d.reason, "skip below 1.5 times the wait: wait 12, skip 18");
}
