// SPDX-License-Identifier: MIT
// Gossip: ranks average parameters with one other rank at a time, by Stochastic Gradient Push or in
// pairs.
#include "common/daso_fixture.h"
#include "common/gossip_fixture.h"
#include "common/gossip_model.h"
#include "common/mpi_fixture.h"
#include "common/outer_model.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np5_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 12 }; // the last one leaves the mean

static daso_case case_of(int64_t period, int64_t wait) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_gossip_config(STEPS, period);
    c.daso.batches_to_wait = wait;
    return c;
}

// ---- Exchanges without updates between them -------------------------------------------------------

// Exchange k as the papers have it.
static void mix_serially(iso_peers peers, float *all, int64_t count, int k) {
    size_t bytes = (size_t)test_size * (size_t)count * sizeof(float);
    float *before = malloc(bytes);
    memcpy(before, all, bytes);
    for (int to = 0; to < test_size; to++) {
        const float *mine = before + to * count;
        const float *peer = before + gossip_peer(peers, to, test_size, k) * count;
        for (int64_t i = 0; i < count; i++) all[to * count + i] = (mine[i] + peer[i]) / 2;
    }
    free(before);
}

// Every exchange changes the parameters to the bits of a serial model, after the wait. The sum over
// ranks stays the same.
static void exchanges_equal_the_model(iso_peers peers, int64_t period, int64_t wait) {
    trainer t;
    int64_t count;
    daso_case c = case_of(period, wait);
    c.daso.peers = peers;
    gossip_open_apart(&t, &c);
    float *start = gossip_gather(&t, &count), *model = gossip_gather(&t, &count);
    for (int step = 1, merged = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        for (; (step - wait) / period > merged; merged++) mix_serially(peers, model, count, merged);
        float *now = gossip_gather(&t, &count);
        size_t bytes = (size_t)test_size * (size_t)count * sizeof(float);
        iso_assert_all(memcmp(now, model, bytes) == 0);
        gossip_figures f = gossip_compare(start, now, count);
        iso_assert_all(f.moved_sum <= 1e-6 * f.largest_sum);
        free(now);
    }
    free(start);
    free(model);
    daso_close(&t);
}

static void equals_model(iso_peers peers) {
    exchanges_equal_the_model(peers, 1, 0);
    exchanges_equal_the_model(peers, 2, 0);
    exchanges_equal_the_model(peers, 2, 1);
    exchanges_equal_the_model(peers, 3, 3);
}
Test(np1_gossip, exchanges_equal_the_model) { equals_model(ISO_PEERS_PUSH); }
Test(np3_gossip, exchanges_equal_the_model) { equals_model(ISO_PEERS_PUSH); }
Test(np4_gossip, exchanges_equal_the_model) { equals_model(ISO_PEERS_PUSH); }
Test(np5_gossip, exchanges_equal_the_model) { equals_model(ISO_PEERS_PUSH); }
Test(np1_gossip, pairs_equal_the_model) { equals_model(ISO_PEERS_PAIR); }
Test(np2_gossip, pairs_equal_the_model) { equals_model(ISO_PEERS_PAIR); }
Test(np3_gossip, pairs_equal_the_model) { equals_model(ISO_PEERS_PAIR); }
Test(np4_gossip, pairs_equal_the_model) { equals_model(ISO_PEERS_PAIR); }
Test(np5_gossip, pairs_equal_the_model) { equals_model(ISO_PEERS_PAIR); }
Test(np1_gossip, rings_equal_the_model) { equals_model(ISO_PEERS_RING); }
Test(np2_gossip, rings_equal_the_model) { equals_model(ISO_PEERS_RING); }
Test(np5_gossip, rings_equal_the_model) { equals_model(ISO_PEERS_RING); }

static void two_exchanges_leave_the_mean(iso_status (*build)(iso_device *, bool, iso_module **)) {
    double left[3];
    daso_case c = case_of(1, 0);
    c.train.build = build;
    gossip_distances(&c, 3, left);
    iso_assert_all(left[0] > 0.1 && left[1] < 1e-6 && left[2] < 1e-6);
}
Test(np4_gossip, log2_of_the_ranks_exchanges_leave_the_mean) {
    two_exchanges_leave_the_mean(build_smooth);
    two_exchanges_leave_the_mean(build_smooth_mixed); // f32 and f64
}

// The eigenvalues are (1 + w) / 2 with the third roots of unity w, so each exchange halves it.
Test(np3_gossip, every_exchange_of_three_ranks_halves_the_distance) {
    double left[8];
    daso_case c = case_of(1, 0);
    gossip_distances(&c, 8, left);
    for (int k = 0; k < 8; k++) iso_assert_all(fabs(left[k] * (2 << k) - 1) < 1e-3);
}

// Two exchanges in a ring of four multiply by (2 I + S + S^-1) / 4, whose largest eigenvalue below
// 1 is cos^2(pi / 4) = 1/2. The other one is 0, so from the second exchange on only that one is
// left.
Test(np4_gossip, two_exchanges_of_a_ring_of_four_halve_the_distance) {
    double left[8];
    daso_case c = case_of(1, 0);
    c.daso.peers = ISO_PEERS_RING;
    gossip_distances(&c, 8, left);
    for (int k = 3; k < 8; k++) iso_assert_all(fabs(left[k] / left[k - 2] - 0.5) < 1e-3);
}

// ---- Training -------------------------------------------------------------------------------------

static void has_the_bits_of_local_sgd(void) {
    for (int i = 0; i < 4; i++) {
        trainer t, other;
        daso_case c = case_of(3, i % 2 ? 2 : 0), local = c;
        if (i / 2) c.train.build = local.train.build = build_smooth_mixed;
        local.daso.gossip = false;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(daso_open(&other, MPI_COMM_WORLD, &local));
        for (int step = 0; step < STEPS; step++) {
            uint64_t mine, its;
            iso_assert_ok(trainer_go_on(&t, step, step + 1));
            iso_assert_ok(trainer_go_on(&other, step, step + 1));
            iso_assert_ok(daso_own_hash(&t, &mine));
            iso_assert_ok(daso_own_hash(&other, &its));
            iso_assert_all(mine == its);
        }
        daso_close(&other);
        daso_close(&t);
    }
}
Test(np1_gossip, has_the_bits_of_local_sgd) { has_the_bits_of_local_sgd(); }
Test(np2_gossip, has_the_bits_of_local_sgd) { has_the_bits_of_local_sgd(); }

static void evaluates_the_mean(int64_t wait) {
    trainer t;
    uint64_t before, after;
    daso_case c = case_of(2, wait);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 6));
    iso_assert_all(!daso_equal(&t));
    iso_assert_ok(daso_own_hash(&t, &before));
    int64_t count;
    float *all = gossip_gather(&t, &count);
    iso_module_train(t.model, false);
    iso_assert_all(daso_equal(&t));
    float *now = daso_values(&t, &count);
    bool near = true;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < test_size; r++) sum += (double)all[r * count + i];
        near = near && fabs((double)now[i] - sum / test_size) <= 1e-6;
    }
    iso_assert_all(near);
    iso_module_train(t.model, true);
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(before == after);
    iso_assert_ok(trainer_go_on(&t, 6, STEPS));
    iso_assert_all(daso_equal(&t)); // the end is the mean
    free(now);
    free(all);
    daso_close(&t);
}
Test(np3_gossip, evaluation_and_the_end_are_the_mean_of_all) {
    evaluates_the_mean(0);
    evaluates_the_mean(1);
}

// Nothing but the array travels, to one rank.
Test(np4_gossip, an_exchange_sends_the_parameters_once) {
    trainer t;
    iso_daso_stats stats;
    int64_t count;
    daso_case c = case_of(2, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 6));
    float *own = daso_values(&t, &count);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    int64_t padded = (count + 31) / 32 * 32 * (int64_t)sizeof(float);
    iso_assert_all(stats.syncs == 3 && stats.bytes_sent == 3 * padded);
    free(own);
    daso_close(&t);
}

// ---- With an outer optimizer ----------------------------------------------------------------------

// SGP under SlowMo (Wang et al., algorithm 1) on the serial model.
typedef struct slow_model {
    daso_model m;
    outer_model outer;
    const iso_daso_config *config;
    double *sent[MODEL_RANKS]; // by gossip
    int64_t sent_at;           // -1: not under way
    int exchanges;
} slow_model;

static void open_slow(slow_model *s, const trainer *t, const daso_case *c) {
    *s = (slow_model){.config = &c->daso, .sent_at = -1};
    iso_assert_ok(daso_model_open(&s->m, t, c));
    for (int r = 0; r < test_size; r++) s->sent[r] = calloc((size_t)s->m.count, sizeof(double));
}

static void close_slow(slow_model *s) {
    for (int r = 0; r < test_size; r++) free(s->sent[r]);
    outer_model_destroy(&s->outer);
    model_destroy(&s->m);
}

static void send_gossip(slow_model *s, int64_t step) {
    for (int r = 0; r < test_size; r++)
        memcpy(s->sent[r], s->m.rank[r].now, (size_t)s->m.count * sizeof(double));
    s->sent_at = step;
}

// Exchange k: what a rank has learned since the send stays.
static void merge_gossip(slow_model *s) {
    int k = s->exchanges++;
    for (int to = 0; to < test_size; to++) {
        const double *mine = s->sent[to],
                     *peer = s->sent[gossip_peer(s->config->peers, to, test_size, k)];
        double *x = s->m.rank[to].now;
        for (int64_t i = 0; i < s->m.count; i++) x[i] += (peer[i] - mine[i]) / 2;
    }
    model_push(&s->m);
    s->sent_at = -1;
}

// What comes after step number `finished`, from 1.
static void synchronise(slow_model *s, int64_t finished) {
    const iso_daso_config *c = s->config;
    int64_t since =
        (finished - c->warmup_steps) % c->outer_skip; // 0: a step of the outer optimizer
    bool sends = since % c->global_skip == 0, end = finished == c->total_steps;
    bool ripe = finished - s->sent_at == c->batches_to_wait;
    if (s->sent_at >= 0 && (sends || ripe || end)) merge_gossip(s);
    if (since == 0) {
        outer_model_send(&s->outer, 0, finished);
        outer_model_merge(&s->outer, 0);
    } else if (sends && !end) {
        send_gossip(s, finished);
        if (c->batches_to_wait == 0) merge_gossip(s);
    }
    if (end) outer_model_mean(&s->outer);
}

static void follows_slow_model(const daso_case *c) {
    trainer t;
    slow_model s;
    double apart = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    open_slow(&s, &t, c);
    for (int step = 0; step < c->daso.total_steps; step++) {
        bool warm = step < c->daso.warmup_steps;
        if (step == c->daso.warmup_steps)
            outer_model_create(&s.outer, &s.m, c->daso.outer, c->train.hyper.lr);
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_batch(&s.m, step, warm ? ISO_SCOPE_WORLD : ISO_SCOPE_RANK));
        if (!warm) synchronise(&s, step + 1);
        iso_assert_all(daso_follows(&t, &s.m, c->daso.outer->name));
        apart = fmax(apart, model_spread(&s.m));
    }
    iso_assert_all(daso_equal(&t) && (test_size < 3 || apart > 1e-4)); // two are equal at once
    close_slow(&s);
    daso_close(&t);
}

static daso_case slow_case(const iso_outer *rule, int64_t period, int64_t wait, int64_t skip) {
    daso_case c = case_of(period, wait);
    c.daso.total_steps = 20;
    c.daso.outer = rule;
    c.daso.outer_skip = skip;
    return c;
}

static void follow_slow_models(void) {
    daso_case c = slow_case(&iso_outer_slowmo, 1, 0, 5);
    follows_slow_model(&c); // ends with a step of the outer optimizer
    c = slow_case(&iso_outer_slowmo, 2, 0, 7);
    c.daso.warmup_steps = 3;
    follows_slow_model(&c); // which cuts a period short
    c = slow_case(&iso_outer_nesterov, 2, 2, 6);
    follows_slow_model(&c); // what is under way is merged before
    c = slow_case(&iso_outer_pull, 1, 1, 4);
    follows_slow_model(&c); // leaves ranks apart
    c = slow_case(&iso_outer_slowmo, 1, 0, 4);
    c.daso.peers = ISO_PEERS_PAIR;
    follows_slow_model(&c); // in pairs
}
Test(np1_gossip, slow_momentum_follows_the_paper) { follow_slow_models(); }
Test(np2_gossip, slow_momentum_follows_the_paper) { follow_slow_models(); }
Test(np3_gossip, slow_momentum_follows_the_paper) { follow_slow_models(); }

// If it replaces every exchange, there is no gossip.
Test(np3_gossip, with_outer_steps_only_it_is_local_sgd) {
    uint64_t gossip, local;
    daso_case c = slow_case(&iso_outer_slowmo, 3, 0, 3);
    c.train.build = build_smooth_mixed;
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &gossip));
    c.daso.gossip = false;
    c.daso.outer_skip = 0;
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &local));
    iso_assert_all(gossip == local);
}

// ---- Saved state ----------------------------------------------------------------------------------

static bool goes_on(const daso_case *c, uint64_t expected) {
    bool same = true;
    for (int stop = 4; stop < 7; stop++) same = daso_end_of(c, stop, STEPS - 1) == expected && same;
    return same;
}

// With an exchange under way and without, after even and odd numbers of exchanges; and with ranks
// that are late.
static void gossip_goes_on(iso_peers peers) {
    for (int wait = 0; wait < 3; wait += 2) {
        daso_case c = case_of(2, wait);
        c.daso.peers = peers;
        uint64_t expected = daso_end_of(&c, 0, STEPS - 1);
        c.delay_us = 3000;
        iso_assert_all(daso_end_of(&c, 0, STEPS - 1) == expected);
        iso_assert_all(goes_on(&c, expected));
    }
}
Test(np3_gossip, goes_on_from_a_saved_state) { gossip_goes_on(ISO_PEERS_PUSH); }
Test(np4_gossip, goes_on_from_a_saved_state) { gossip_goes_on(ISO_PEERS_PUSH); }
Test(np3_gossip, pairs_go_on_from_a_saved_state) { gossip_goes_on(ISO_PEERS_PAIR); }
Test(np4_gossip, pairs_go_on_from_a_saved_state) { gossip_goes_on(ISO_PEERS_PAIR); }

// Before, at and after a step of the outer optimizer, the last with gossip under way.
static void slow_momentum_goes_on(void) {
    daso_case c = case_of(1, 1);
    c.daso.outer = &iso_outer_slowmo;
    c.daso.outer_skip = 5;
    iso_assert_all(goes_on(&c, daso_end_of(&c, 0, STEPS - 1)));
}
Test(np2_gossip, goes_on_with_slow_momentum) { slow_momentum_goes_on(); }
Test(np3_gossip, goes_on_with_slow_momentum) { slow_momentum_goes_on(); }

Test(np2_gossip, another_rhythm_of_outer_steps_is_told) {
    trainer t;
    daso_case c = slow_case(&iso_outer_slowmo, 2, 0, 5);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(daso_exchange_state(&t, 3, true));
    daso_close(&t);
    c.daso.outer_skip = 6;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_status status = daso_exchange_state(&t, 3, false);
    iso_assert_all(status == ISO_ERR_MISMATCH && strstr(iso_last_error()->message, "every 5"));
    daso_close(&t);
}

// ---- Failures and wrong use -----------------------------------------------------------------------

// Opens a run, makes two steps, and spoils a parameter of the last rank.
static void open_spoilt(trainer *t, const daso_case *c) {
    iso_parameter_list list;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    iso_assert_ok(trainer_go_on(t, 0, 2));
    iso_assert_ok(iso_data_parallel_finish(t->model));
    iso_assert_ok(iso_module_parameters(t->model, &list));
    if (test_rank == test_size - 1) tensor_swap(list.item[0]->value, 0, NAN);
    iso_parameter_list_destroy(&list);
}

static bool names_last_rank(iso_status status) {
    return status == ISO_ERR_STATE && strstr(iso_last_error()->message, "rank 3: parameters are");
}

static void tells_the_receiver(iso_peers peers) {
    trainer t;
    daso_case c = case_of(1, 0);
    c.daso.peers = peers;
    open_spoilt(&t, &c);
    iso_status status = trainer_step(&t, 2, NULL);
    bool takes_part = test_rank == 3 || gossip_peer(peers, test_rank, test_size, 2) == 3;
    iso_assert_all(takes_part ? names_last_rank(status) : status == ISO_OK);
    daso_close(&t);
}
Test(np4_gossip, the_receiver_is_told_of_a_failure) { tells_the_receiver(ISO_PEERS_PUSH); }
Test(np4_gossip, the_partner_is_told_of_a_failure) { tells_the_receiver(ISO_PEERS_PAIR); }

Test(np4_gossip, all_are_told_of_a_failure_where_they_meet) {
    trainer t;
    for (int i = 0; i < 2; i++) {
        daso_case c = case_of(1, 1);
        open_spoilt(&t, &c);
        iso_assert_ok(trainer_step(&t, 2, NULL)); // sends it
        iso_assert_all(names_last_rank((i ? iso_daso_finish : iso_daso_complete)(t.optimizer)));
        daso_close(&t);
    }
}

// The last rank makes no step before another one has made its first, which would wait for ever if
// it needed all ranks.
static void delays_its_neighbours_only(iso_peers peers, int other) {
    trainer t;
    daso_case c = case_of(1, 0);
    c.daso.peers = peers;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    if (test_rank == 3) MPI_Recv(NULL, 0, MPI_INT, other, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status = trainer_step(&t, 0, NULL);
    if (test_rank == other) MPI_Send(NULL, 0, MPI_INT, 3, 77, MPI_COMM_WORLD);
    iso_assert_ok(status);
    iso_assert_ok(trainer_go_on(&t, 1, STEPS));
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}
Test(np4_gossip, a_late_rank_delays_its_receiver_only) {
    delays_its_neighbours_only(ISO_PEERS_PUSH, 1);
}
Test(np4_gossip, a_late_rank_delays_its_partner_only) {
    delays_its_neighbours_only(ISO_PEERS_PAIR, 0);
}
Test(np4_gossip, the_comparison_of_collectives_delays_nobody) {
    setenv("ISO_DEBUG", "detail", 1);
    delays_its_neighbours_only(ISO_PEERS_PUSH, 1);
    unsetenv("ISO_DEBUG");
}

Test(np2_gossip, what_does_not_go_with_it_is_refused) {
    for (int i = 0; i < 6; i++) {
        daso_case c = case_of(4, 1);
        if (i == 0) c.daso.unit = ISO_SCOPE_NODE;
        if (i == 1) c.daso.merge = ISO_MERGE_HEAT;
        if (i == 2) c.daso.state = ISO_STATE_SYNC_AVERAGE;
        if (i == 3) c.daso.policy = ISO_POLICY_QSR, c.daso.max_global_skip = 64;
        if (i == 4) iso_assert_ok(iso_daso_levels_parse("4:1,8:2", &c.daso));
        if (i == 5) c.daso.fragments = 2;
        iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "gossip needs unit ISO_SCOPE_RANK"));
    }
}

Test(np2_gossip, outer_steps_that_do_not_fit_are_refused) {
    daso_case c = slow_case(&iso_outer_slowmo, 4, 1, 0);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "needs an outer_skip of 1 or more, and it is 0"));
    c.daso.outer_skip = 8;
    c.daso.global_skip = -1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "a given global_skip and batches_to_wait"));
    c = slow_case(NULL, 4, 1, 8);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "outer_skip is 8 without gossip and outer"));
    c = slow_case(&iso_outer_slowmo, 4, 0, 8);
    c.daso.gossip = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "outer_skip is 8 without gossip and outer"));
    c = slow_case(&iso_outer_slowmo, 2, 0, 5 + test_rank);
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "outer_skip"));
}

Test(np3_gossip, ranks_of_which_one_has_local_sgd_are_named) {
    daso_case c = case_of(2, 0);
    c.daso.gossip = test_rank != 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "rank 1"));
}
