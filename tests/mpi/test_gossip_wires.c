// SPDX-License-Identifier: MIT
// Gossip in few bits: differences from copies travel, as in CHOCO-SGD (Koloskova, Stich, Jaggi,
// ICML 2019).
#include "common/codec_model.h"
#include "common/gossip_fixture.h"
#include "common/gossip_model.h"
#include "common/mpi_fixture.h"
#include "common/ranks_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_gossip_wires, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_gossip_wires, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_gossip_wires, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_gossip_wires, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np5_gossip_wires, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 13 }; // the last one leaves the mean

static daso_case case_of(iso_wire wire, iso_peers peers) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_gossip_config(STEPS, 1);
    c.daso.wire = wire;
    c.daso.peers = peers;
    return c;
}

// ---- The formula ----------------------------------------------------------------------------------

// One copy for each rank and turn of the peers: both ends have the same one.
typedef struct choco {
    const iso__codec *codec;
    iso_peers peers;
    int turns;
    float half_step;
    int64_t count;
    float *copy, *before;
} choco;

static const iso__codec *codec_of(iso_wire wire) {
    switch (wire) {
    case ISO_WIRE_BF16: return &iso__codec_bf16;
    case ISO_WIRE_F16: return &iso__codec_f16;
    case ISO_WIRE_INT8: return &iso__codec_int8;
    case ISO_WIRE_FP8: return &iso__codec_fp8;
    case ISO_WIRE_INT4: return &iso__codec_int4;
    default: return &iso__codec_topk;
    }
}

// values: of rank 0, the same on all ranks.
static choco choco_of(const iso_daso_config *c, const float *values, int64_t count) {
    int rounds = 1, half = (test_size + 1) / 2, ring = test_size > 2 ? 2 : 1;
    while (1 << rounds < test_size) rounds++;
    choco m = {.codec = codec_of(c->wire), .peers = c->peers, .count = count};
    double step = c->wire == ISO_WIRE_TOPK ? 2 * 8.0 / 256 : 1;
    m.half_step = (float)((c->consensus_step > 0 ? c->consensus_step : step) / 2);
    m.turns = c->peers == ISO_PEERS_PAIR ? half : c->peers == ISO_PEERS_RING ? ring : rounds;
    size_t floats = (size_t)test_size * (size_t)count;
    m.before = malloc(floats * sizeof(float));
    m.copy = malloc((size_t)m.turns * floats * sizeof(float));
    for (int k = 0; k < m.turns * test_size; k++)
        memcpy(m.copy + k * count, values, (size_t)count * sizeof(float));
    return m;
}

static void choco_free(choco *m) {
    free(m->before);
    free(m->copy);
}

// copy = copy + Q(x - copy)
static void choco_send(const choco *m, const float *x, float *copy) {
    for (int64_t at = 0; at < m->count; at += MOST_GROUP) {
        float difference[MOST_GROUP], sent[MOST_GROUP];
        int group = m->codec->group > 1 ? (int)m->codec->group : MOST_GROUP;
        for (int64_t from = at; from < at + MOST_GROUP && from < m->count; from += group) {
            int n = m->count - from < group ? (int)(m->count - from) : group;
            for (int i = 0; i < n; i++) difference[i] = x[from + i] - copy[from + i];
            codec_model_round(m->codec, (size_t)n, difference, sent);
            for (int i = 0; i < n; i++) copy[from + i] += sent[i];
        }
    }
}

// Exchange k of what all ranks have. The steps are powers of 2, so products with them are exact.
// failed: the rank that sends nothing good; -1: none.
static void choco_exchange(choco *m, float *all, int k, int failed) {
    float *copies = m->copy + (int64_t)(k % m->turns) * test_size * m->count;
    for (int r = 0; r < test_size; r++)
        if (r != failed) choco_send(m, all + r * m->count, copies + r * m->count);
    for (int r = 0; r < test_size; r++) {
        int peer = gossip_peer(m->peers, r, test_size, k);
        const float *mine = copies + r * m->count, *its = copies + peer * m->count;
        if (r == failed || peer == failed) continue;
        for (int64_t i = 0; i < m->count; i++)
            all[r * m->count + i] += m->half_step * (its[i] - mine[i]);
    }
}

// The next exchange of all ranks, after a change of their parameters, has the bits of the model,
// and leaves the sum over ranks.
static bool exchange_follows(trainer *t, choco *m, int step, int k) {
    int64_t count;
    iso_assert_ok(daso_drift(t, 0.01f * (float)((test_rank * 5 + step) % 7 - 3)));
    float *before = gossip_gather(t, &count), *model = gossip_gather(t, &count);
    choco_exchange(m, model, k, -1);
    iso_assert_ok(trainer_step(t, step, NULL));
    float *now = gossip_gather(t, &count);
    gossip_figures f = gossip_compare(before, now, count);
    bool same = memcmp(now, model, (size_t)(test_size * count) * sizeof(float)) == 0;
    free(before);
    free(model);
    free(now);
    return same && f.moved_sum <= 1e-6 * fmax(f.largest_sum, 1);
}

static choco open_with_model(trainer *t, daso_case *c) {
    int64_t count;
    c->train.hyper.lr = 0;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    float *values = daso_values(t, &count);
    choco m = choco_of(&c->daso, values, count);
    free(values);
    return m;
}

static void follows(daso_case c) {
    trainer t;
    choco m = open_with_model(&t, &c);
    for (int step = 0; step + 1 < STEPS; step++)
        iso_assert_all(exchange_follows(&t, &m, step, step));
    choco_free(&m);
    daso_close(&t);
}

static const iso_wire wires[] = {ISO_WIRE_BF16, ISO_WIRE_F16,  ISO_WIRE_INT8,
                                 ISO_WIRE_FP8,  ISO_WIRE_INT4, ISO_WIRE_TOPK};
enum { WIRES = sizeof(wires) / sizeof(wires[0]) };

static void all_wires_follow(iso_peers peers) {
    for (int i = 0; i < WIRES; i++) follows(case_of(wires[i], peers));
}
Test(np1_gossip_wires, exchanges_equal_the_model) { all_wires_follow(ISO_PEERS_PUSH); }
Test(np2_gossip_wires, exchanges_equal_the_model) { all_wires_follow(ISO_PEERS_PUSH); }
Test(np3_gossip_wires, exchanges_equal_the_model) { all_wires_follow(ISO_PEERS_PUSH); }
Test(np4_gossip_wires, exchanges_equal_the_model) { all_wires_follow(ISO_PEERS_PUSH); }
Test(np1_gossip_wires, pairs_equal_the_model) { all_wires_follow(ISO_PEERS_PAIR); }
Test(np2_gossip_wires, pairs_equal_the_model) { all_wires_follow(ISO_PEERS_PAIR); }
Test(np3_gossip_wires, pairs_equal_the_model) { all_wires_follow(ISO_PEERS_PAIR); }
Test(np4_gossip_wires, pairs_equal_the_model) { all_wires_follow(ISO_PEERS_PAIR); }
Test(np5_gossip_wires, pairs_equal_the_model) { all_wires_follow(ISO_PEERS_PAIR); }
Test(np2_gossip_wires, rings_equal_the_model) { all_wires_follow(ISO_PEERS_RING); }
Test(np5_gossip_wires, rings_equal_the_model) { all_wires_follow(ISO_PEERS_RING); }

Test(np3_gossip_wires, another_consensus_step_equals_the_model) {
    daso_case c = case_of(ISO_WIRE_INT4, ISO_PEERS_PUSH);
    c.daso.consensus_step = 0.25;
    follows(c);
}

// What an exchange merges later is what it would merge at once, if there are no updates.
static void merges_later(void) {
    uint64_t hash[2];
    for (int wait = 0; wait < 2; wait++) {
        trainer t;
        daso_case c = case_of(ISO_WIRE_INT8, ISO_PEERS_PUSH);
        c.daso.global_skip = 2;
        c.daso.batches_to_wait = wait;
        gossip_open_apart(&t, &c);
        iso_assert_ok(trainer_go_on(&t, 0, STEPS - 2 + wait)); // 5 exchanges
        iso_assert_ok(daso_own_hash(&t, &hash[wait]));
        daso_close(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}
Test(np3_gossip_wires, an_exchange_may_be_merged_later) { merges_later(); }

// ---- Consensus ------------------------------------------------------------------------------------

// Without updates ranks come as close as in f32, but later; most: after the last exchange, relative
// to the start.
static void reaches_consensus(iso_wire wire, double ratio, int exchanges, double most) {
    for (int pairs = 0; pairs < 2; pairs++) {
        double left[200];
        daso_case c = case_of(wire, pairs ? ISO_PEERS_PAIR : ISO_PEERS_PUSH);
        c.daso.total_steps = exchanges + 1;
        c.daso.topk_ratio = ratio;
        gossip_distances(&c, exchanges, left);
        if (test_rank == 0 && left[exchanges - 1] > most)
            fprintf(stderr, "%s: %g left\n", codec_of(wire)->name, left[exchanges - 1]);
        iso_assert_all(left[exchanges - 1] <= most);
    }
}
static void reach_consensus(void) {
    reaches_consensus(ISO_WIRE_BF16, 0, 24, 1e-6);
    reaches_consensus(ISO_WIRE_F16, 0, 24, 1e-6);
    reaches_consensus(ISO_WIRE_INT8, 0, 24, 1e-6);
    reaches_consensus(ISO_WIRE_FP8, 0, 24, 1e-6);
    reaches_consensus(ISO_WIRE_INT4, 0, 60, 1e-5);
    reaches_consensus(ISO_WIRE_TOPK, 0.25, 120, 1e-3);
    reaches_consensus(ISO_WIRE_TOPK, 0.125, 200, 1e-2);
}
Test(np2_gossip_wires, ranks_reach_consensus) { reach_consensus(); }
Test(np3_gossip_wires, ranks_reach_consensus) { reach_consensus(); }
Test(np4_gossip_wires, ranks_reach_consensus) { reach_consensus(); }

// ---- Bytes, types ---------------------------------------------------------------------------------

static int64_t bytes_of(iso_wire wire, iso_peers peers, int64_t *count) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = case_of(wire, peers);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 6));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.syncs == 6);
    free(daso_values(&t, count));
    daso_close(&t);
    return stats.bytes_sent / 6;
}

// Groups of elements; messages are multiples of 64 bytes.
static int64_t message_of(int64_t count, int group, int bytes) {
    return ((count + group - 1) / group * bytes + 63) / 64 * 64;
}

static void sends_the_bytes_of(iso_peers peers) {
    int64_t count, f32 = bytes_of(ISO_WIRE_F32, peers, &count);
    iso_assert_all(bytes_of(ISO_WIRE_BF16, peers, &count) == f32 / 2);
    iso_assert_all(bytes_of(ISO_WIRE_F16, peers, &count) == f32 / 2);
    iso_assert_all(bytes_of(ISO_WIRE_INT8, peers, &count) == message_of(count, 256, 260));
    iso_assert_all(bytes_of(ISO_WIRE_FP8, peers, &count) == message_of(count, 128, 132));
    iso_assert_all(bytes_of(ISO_WIRE_INT4, peers, &count) == message_of(count, 128, 68));
    iso_assert_all(bytes_of(ISO_WIRE_TOPK, peers, &count) == message_of(count, 256, 24));
}
Test(np4_gossip_wires, an_exchange_sends_the_bytes_of_the_codec) {
    sends_the_bytes_of(ISO_PEERS_PUSH);
    sends_the_bytes_of(ISO_PEERS_PAIR);
}

// Parameters of f64 have the bits of the wire f32.
Test(np3_gossip_wires, f64_travels_as_it_is) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        trainer t;
        daso_case c = case_of(i ? ISO_WIRE_TOPK : ISO_WIRE_F32, ISO_PEERS_PUSH);
        c.train.build = build_smooth_wide;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(trainer_go_on(&t, 0, STEPS - 1));
        iso_assert_ok(daso_own_hash(&t, &hash[i]));
        daso_close(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// Both types: the f32 elements come as close as they can, and the f64 elements, too.
Test(np4_gossip_wires, models_of_both_types_reach_consensus) {
    double left[24];
    daso_case c = case_of(ISO_WIRE_BF16, ISO_PEERS_PUSH);
    c.daso.total_steps = 25;
    c.train.build = build_smooth_mixed;
    gossip_distances(&c, 24, left);
    iso_assert_all(left[0] > 0.1 && left[23] <= 1e-6);
}

// ---- Saved state ----------------------------------------------------------------------------------

// Between and during exchanges, in different turns of the peers.
static void goes_on(iso_wire wire, iso_peers peers) {
    for (int wait = 0; wait < 2; wait++) {
        daso_case c = case_of(wire, peers);
        c.daso.batches_to_wait = wait;
        uint64_t expected = daso_end_of(&c, 0, STEPS - 1);
        for (int stop = 4; stop < 7; stop++)
            iso_assert_all(daso_end_of(&c, stop, STEPS - 1) == expected);
    }
}
Test(np3_gossip_wires, goes_on_from_a_saved_state) { goes_on(ISO_WIRE_TOPK, ISO_PEERS_PUSH); }
Test(np4_gossip_wires, goes_on_from_a_saved_state) { goes_on(ISO_WIRE_BF16, ISO_PEERS_PUSH); }
Test(np4_gossip_wires, pairs_go_on_from_a_saved_state) { goes_on(ISO_WIRE_INT8, ISO_PEERS_PAIR); }
Test(np3_gossip_wires, rings_go_on_from_a_saved_state) { goes_on(ISO_WIRE_INT4, ISO_PEERS_RING); }

// The mean of all ranks and its outer step travel in the same wire.
static void outer_steps_go_on(void) {
    trainer t;
    daso_case c = case_of(ISO_WIRE_INT8, ISO_PEERS_PUSH);
    c.daso.outer = &iso_outer_slowmo;
    c.daso.outer_skip = 5;
    uint64_t expected = daso_end_of(&c, 0, STEPS - 1);
    for (int stop = 4; stop < 7; stop++)
        iso_assert_all(daso_end_of(&c, stop, STEPS - 1) == expected);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 4));
    iso_assert_all(!daso_equal(&t));
    iso_assert_ok(trainer_go_on(&t, 4, 5));
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}
Test(np3_gossip_wires, goes_on_with_outer_steps) { outer_steps_go_on(); }

static iso_status save_on(MPI_Comm comm, const daso_case *c, int stop) {
    trainer t;
    ISO_TRY(daso_open(&t, comm, c));
    ISO_TRY(daso_drift(&t, 0.1f * (float)(test_rank + 1)));
    ISO_TRY(trainer_go_on(&t, 0, stop));
    ISO_TRY(ranks_save(&t, stop));
    daso_close(&t);
    return ISO_OK;
}

// Another number of ranks has other peers. What they know of each other is then the mean that all
// have loaded.
static void goes_on_with_more_ranks(iso_peers peers) {
    enum { STOP = 5 };
    trainer t;
    int64_t saved, count;
    daso_case c = case_of(ISO_WIRE_TOPK, peers);
    MPI_Comm two = ranks_split(2);
    c.train.hyper.lr = 0;
    iso_assert_ok(two == MPI_COMM_NULL ? ISO_OK : save_on(two, &c, STOP));
    if (two != MPI_COMM_NULL) MPI_Comm_free(&two);
    choco m = open_with_model(&t, &c);
    choco_free(&m);
    iso_assert_ok(trainer_go_on(&t, 0, 3)); // a past of its own
    iso_assert_ok(ranks_load(&t, &saved));
    iso_assert_all(saved == 2);
    float *values = daso_values(&t, &count);
    m = choco_of(&c.daso, values, count);
    free(values);
    for (int step = STOP; step + 1 < STEPS; step++)
        iso_assert_all(exchange_follows(&t, &m, step, step));
    choco_free(&m);
    daso_close(&t);
}
Test(np3_gossip_wires, goes_on_with_more_ranks) { goes_on_with_more_ranks(ISO_PEERS_PUSH); }
Test(np4_gossip_wires, goes_on_with_more_ranks) { goes_on_with_more_ranks(ISO_PEERS_PUSH); }
Test(np4_gossip_wires, pairs_go_on_with_more_ranks) { goes_on_with_more_ranks(ISO_PEERS_PAIR); }

// ---- Failures and wrong use -----------------------------------------------------------------------

// An exchange that fails on one rank changes nothing there and on the rank that receives from it.
// The copies of both ends stay alike: the next one follows the model.
Test(np4_gossip_wires, a_failure_changes_nothing) {
    trainer t;
    int64_t count;
    iso_parameter_list list;
    daso_case c = case_of(ISO_WIRE_F16, ISO_PEERS_PUSH);
    choco m = open_with_model(&t, &c);
    for (int step = 0; step < 3; step++) iso_assert_all(exchange_follows(&t, &m, step, step));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    float kept = NAN;
    if (test_rank == 2) kept = tensor_swap(list.item[0]->value, 0, 1e5f); // no f16
    float *model = gossip_gather(&t, &count);
    choco_exchange(&m, model, 3, 2);
    iso_status status = trainer_step(&t, 3, NULL);
    bool takes_part = test_rank == 2 || gossip_peer(ISO_PEERS_PUSH, test_rank, test_size, 3) == 2;
    iso_assert_all(takes_part
                       ? status == ISO_ERR_STATE && strstr(iso_last_error()->message, "rank 2")
                       : status == ISO_OK);
    float *now = gossip_gather(&t, &count);
    iso_assert_all(memcmp(now, model, (size_t)(test_size * count) * sizeof(float)) == 0);
    free(now);
    free(model);
    if (test_rank == 2) tensor_swap(list.item[0]->value, 0, kept);
    iso_parameter_list_destroy(&list);
    for (int step = 4; step < 8; step++) iso_assert_all(exchange_follows(&t, &m, step, step));
    choco_free(&m);
    daso_close(&t);
}

Test(np2_gossip_wires, a_consensus_step_that_does_not_fit_is_refused) {
    daso_case c = case_of(ISO_WIRE_F32, ISO_PEERS_PUSH);
    c.daso.consensus_step = 0.5;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "consensus_step is 0.5, but only gossip"));
    c.daso.wire = ISO_WIRE_BF16;
    c.daso.gossip = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "consensus_step is 0.5, but only gossip"));
    c.daso.gossip = true;
    c.daso.consensus_step = 1.5;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "consensus_step is 1.5, it must be from 0"));
    c.daso.consensus_step = NAN;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "consensus_step is nan, it must be from 0"));
    c.daso.consensus_step = test_rank == 1 ? 0.5 : 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "consensus_step"));
}

Test(np2_gossip_wires, a_state_of_another_wire_is_told) {
    trainer t;
    daso_case c = case_of(ISO_WIRE_F32, ISO_PEERS_PUSH);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(daso_exchange_state(&t, 3, true));
    daso_close(&t);
    c.daso.wire = ISO_WIRE_BF16;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_status status = daso_exchange_state(&t, 3, false);
    iso_assert_all(status == ISO_ERR_MISMATCH && strstr(iso_last_error()->message, "daso/copies"));
    daso_close(&t);
}

// Copies of one kind of peers are not those of the other, though there are as many.
static void other_peers(void) {
    trainer t;
    daso_case c = case_of(ISO_WIRE_BF16, ISO_PEERS_PUSH);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(daso_exchange_state(&t, 3, true));
    daso_close(&t);
    for (int peers = ISO_PEERS_PAIR; peers <= ISO_PEERS_RING; peers++) {
        c.daso.peers = (iso_peers)peers;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_all(daso_exchange_state(&t, 3, false) < 0);
        iso_assert_all(strstr(iso_last_error()->message, "copies"));
        daso_close(&t);
    }
}
Test(np3_gossip_wires, copies_of_other_peers_are_refused) { other_peers(); }
Test(np4_gossip_wires, copies_of_other_peers_are_refused) { other_peers(); }
