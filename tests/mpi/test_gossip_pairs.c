// SPDX-License-Identifier: MIT
// Gossip in pairs: who meets whom, and D-PSGD. tests/mpi/test_gossip.c compares the bits.
#include "common/daso_fixture.h"
#include "common/gossip_model.h"
#include "common/mpi_fixture.h"
#include "common/types_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_gossip_pairs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_gossip_pairs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_gossip_pairs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_gossip_pairs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 12 };

static daso_case case_of(int64_t wait) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_gossip_config(STEPS, 1);
    c.daso.batches_to_wait = wait;
    c.daso.peers = ISO_PEERS_PAIR;
    return c;
}

// The hash of every rank, after an exchange of training with both types. partner[r]: the rank with
// the same one; r itself if there is none.
static void find_partners(trainer *t, int *partner) {
    uint64_t own, all[16];
    iso_assert_ok(daso_own_hash(t, &own));
    MPI_Allgather(&own, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < test_size; r++) {
        int equal = 0;
        partner[r] = r;
        for (int q = 0; q < test_size; q++) {
            if (q == r || all[q] != all[r]) continue;
            partner[r] = q;
            equal++;
        }
        iso_assert_all(equal <= 1);
    }
}

// In as many exchanges as half of the ranks, every rank of one half meets every one of the other.
// At most one rank sits out.
static void all_halves_meet(void) {
    trainer t;
    int half = (test_size + 1) / 2, met[16][16] = {{0}};
    daso_case c = case_of(0);
    c.train.build = build_smooth_mixed;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int k = 0; k < half; k++) {
        int partner[16], alone = 0;
        iso_assert_ok(trainer_step(&t, k, NULL));
        find_partners(&t, partner);
        for (int r = 0; r < test_size; r++) {
            iso_assert_all(partner[partner[r]] == r);
            met[r][partner[r]]++;
            alone += partner[r] == r;
        }
        iso_assert_all(alone == test_size % 2);
    }
    for (int low = 0; low < half; low++)
        for (int high = half; high < test_size; high++) iso_assert_all(met[low][high] == 1);
    daso_close(&t);
}
Test(np4_gossip_pairs, have_the_same_bits_and_all_halves_meet) { all_halves_meet(); }
Test(np5_gossip_pairs, have_the_same_bits_and_all_halves_meet) { all_halves_meet(); }

// D-PSGD (Lian et al., algorithm 1): x_p(k+1) = (x_p(k) + x_q(k)) / 2 plus the update of x_p(k).
static void average_pairs(daso_model *m, double *const *before, int k) {
    for (int to = 0; to < test_size; to++) {
        const double *mine = before[to];
        const double *peer = before[gossip_peer(ISO_PEERS_PAIR, to, test_size, k)];
        for (int64_t i = 0; i < m->count; i++) m->rank[to].now[i] += (peer[i] - mine[i]) / 2;
    }
    model_push(m);
}

// In the first step all parameters are equal, so no mean precedes it.
static void equals_dpsgd(void) {
    trainer t;
    daso_model m;
    double apart = 0, *before[MODEL_RANKS];
    daso_case c = case_of(1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    size_t bytes = (size_t)m.count * sizeof(double);
    for (int r = 0; r < test_size; r++) before[r] = malloc(bytes);
    for (int step = 0; step + 1 < STEPS; step++) { // the last one leaves the mean
        for (int r = 0; r < test_size; r++) memcpy(before[r], m.rank[r].now, bytes);
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_batch(&m, step, ISO_SCOPE_RANK));
        if (step > 0) average_pairs(&m, before, step - 1);
        iso_assert_all(daso_follows(&t, &m, "D-PSGD"));
        apart = fmax(apart, model_spread(&m));
    }
    iso_assert_all(apart > 1e-4);
    for (int r = 0; r < test_size; r++) free(before[r]);
    model_destroy(&m);
    daso_close(&t);
}
Test(np2_gossip_pairs, that_wait_one_step_are_d_psgd) { equals_dpsgd(); }
Test(np3_gossip_pairs, that_wait_one_step_are_d_psgd) { equals_dpsgd(); }
Test(np4_gossip_pairs, that_wait_one_step_are_d_psgd) { equals_dpsgd(); }

Test(np2_gossip_pairs, without_gossip_are_refused) {
    daso_case c = case_of(0);
    c.daso.peers = (iso_peers)7;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "peers is 7: use"));
    c.daso.peers = ISO_PEERS_PAIR;
    c.daso.gossip = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "peers is 1 without gossip"));
    c.daso.gossip = true;
    c.daso.peers = test_rank == 1 ? ISO_PEERS_PAIR : ISO_PEERS_PUSH;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "rank 1"));
}
