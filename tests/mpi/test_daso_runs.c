// SPDX-License-Identifier: MIT
// DASO runs as a whole: evaluation shows the mean, the bits do not depend on speed or progress,
// what 16-bit wires lose comes later, policies change skip and wait, and the counters count.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(np1_daso_runs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_daso_runs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_daso_runs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_daso_runs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_daso_modes, .init = test_mpi_setup_bare, .fini = test_mpi_teardown, .timeout = 60);

// Runs that between them use every path of the engine.
enum { VARIANTS = 5 };
static daso_case variant(int i) {
    daso_case c = daso_case_default(30);
    c.ranks_per_node = 2;
    c.daso.warmup_steps = 3;
    c.daso.cooldown_steps = 3;
    c.daso.batches_to_wait = 3;
    c.daso.wire = i == 2 ? ISO_WIRE_F32 : i == 1 ? ISO_WIRE_F16 : ISO_WIRE_BF16;
    c.daso.merge = i == 1 ? ISO_MERGE_HEAT : ISO_MERGE_PROGRESS;
    c.daso.state = i == 1 ? ISO_STATE_SYNC_AVERAGE : ISO_STATE_SYNC_KEEP;
    if (i == 2) c.daso.local_skip = 3;
    if (i == 3) c.daso.unit = ISO_SCOPE_RANK;
    if (i == 4) c.daso.batches_to_wait = 0;
    return c;
}

static uint64_t hash_of(MPI_Comm comm, const daso_case *c, int look) {
    uint64_t hash = 0;
    iso_assert_ok(daso_hash(comm, c, look, &hash));
    return hash;
}

// ---- Determinism ----------------------------------------------------------------------------------

static void same_bits(int from, int to) {
    uint64_t earlier = 0;
    for (int i = from; i < to; i++) {
        daso_case c = variant(i);
        uint64_t first = hash_of(MPI_COMM_WORLD, &c, 0);
        iso_assert_all(hash_of(MPI_COMM_WORLD, &c, 0) == first);
        iso_assert_all(hash_of(MPI_COMM_WORLD, &c, 1) == first); // someone looks at parameters
        c.delay_us = 3000;
        iso_assert_all(hash_of(MPI_COMM_WORLD, &c, 0) == first);
        c.delay_us = 0;
        c.train.sync = ISO_SYNC_BLOCKING;
        iso_assert_all(hash_of(MPI_COMM_WORLD, &c, 0) == first);
        c.train.sync = ISO_SYNC_LAZY;
        c.train.scope = ISO_SCOPE_NODE; // daso steers it anyway
        iso_assert_all(hash_of(MPI_COMM_WORLD, &c, 0) == first);
        iso_assert_all(first != earlier);
        earlier = first;
    }
}

Test(np2_daso_runs, same_bits_at_any_speed) { same_bits(0, VARIANTS); }
Test(np3_daso_runs, same_bits_at_any_speed) { same_bits(0, 3); }
Test(np4_daso_runs, same_bits_at_any_speed) { same_bits(0, 2); }
Test(np4_daso_runs, same_bits_at_any_speed_of_lone_ranks) { same_bits(2, 4); }

// A process has one progress engine, so three pairs of ranks run side by side, each in a mode of
// its own, and must end with the same bits.
Test(np6_daso_modes, same_bits_in_every_progress_mode) {
    static const iso_progress mode[] = {ISO_PROGRESS_OFF, ISO_PROGRESS_POLL, ISO_PROGRESS_THREAD};
    iso_comm_config config = {.progress = mode[test_rank / 2]};
    MPI_Comm pair;
    uint64_t hash[6];
    iso_comm *first;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &pair);
    iso_assert_ok(iso_comm_create(pair, &config, &first));
    iso_assert_all(iso_comm_progress(first) == mode[test_rank / 2]);
    for (int i = 0; i < VARIANTS; i++) {
        daso_case c = variant(i);
        c.ranks_per_node = 1;
        uint64_t mine = hash_of(pair, &c, 0);
        MPI_Allgather(&mine, 1, MPI_UINT64_T, hash, 1, MPI_UINT64_T, MPI_COMM_WORLD);
        for (int r = 1; r < 6; r++) iso_assert_all(hash[r] == hash[0]);
    }
    iso_comm_destroy(&first);
    MPI_Comm_free(&pair);
}

// ---- Evaluation -----------------------------------------------------------------------------------

static void evaluate(trainer *t, const daso_model *m, int step) {
    uint64_t before, after;
    double difference = INFINITY;
    iso_tensor *out;
    iso_assert_ok(daso_own_hash(t, &before));
    iso_assert_ok(iso_module_train(t->model, false));
    iso_assert_ok(model_difference(m, -1, t->model, &difference));
    iso_assert_all(daso_equal(t) && difference < DASO_ROUNDING);
    iso_assert_ok(trainer_forward(t, step, &out));
    iso_assert_ok(iso_module_train(t->model, true));
    iso_assert_ok(daso_own_hash(t, &after));
    iso_assert_all(after == before);
}

// At every step, also while an exchange is under way, and without any effect on what follows.
static void evaluation_shows_the_mean(daso_case c) {
    trainer t;
    daso_model m;
    uint64_t hash = 0, undisturbed = hash_of(MPI_COMM_WORLD, &c, 0);
    bool pending = false;
    iso_daso_stats stats;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < (int)c.daso.total_steps; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        evaluate(&t, &m, step);
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        pending = pending || stats.pending;
    }
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == undisturbed && pending == (c.daso.batches_to_wait > 0));
    model_destroy(&m);
    daso_close(&t);
}

static void evaluation_in_f32(int ranks_per_node) {
    for (int i = 2; i < VARIANTS; i++) {
        daso_case c = variant(i);
        c.ranks_per_node = ranks_per_node;
        c.daso.wire = ISO_WIRE_F32;
        evaluation_shows_the_mean(c);
    }
}

Test(np2_daso_runs, evaluation_shows_the_mean) { evaluation_in_f32(1); }
Test(np3_daso_runs, evaluation_shows_the_mean) { evaluation_in_f32(2); }
Test(np4_daso_runs, evaluation_shows_the_mean) { evaluation_in_f32(2); }

// What 16-bit wires remember from one exchange to the next is not touched either.
Test(np4_daso_runs, evaluation_changes_nothing) {
    for (int i = 0; i < 2; i++) {
        trainer t;
        uint64_t hash = 0;
        daso_case c = variant(i);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        for (int step = 0; step < (int)c.daso.total_steps; step++) {
            iso_assert_ok(trainer_step(&t, step, NULL));
            iso_assert_ok(iso_module_train(t.model, false));
            iso_assert_ok(iso_module_train(t.model, true));
        }
        iso_assert_ok(iso_daso_finish(t.optimizer));
        iso_assert_ok(trainer_hash(&t, &hash));
        daso_close(&t);
        iso_assert_all(hash == hash_of(MPI_COMM_WORLD, &c, 0));
    }
}

// Finishing and destroying a run that stands in evaluation mode, with an exchange under way.
Test(np2_daso_runs, ends_in_evaluation_mode) {
    for (int i = 0; i < 2; i++) {
        trainer t;
        uint64_t hash;
        daso_case c = variant(0);
        c.ranks_per_node = 1;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(trainer_train(&t, 8)); // sent after 7
        iso_assert_ok(iso_module_train(t.model, false));
        if (i) iso_assert_ok(iso_daso_finish(t.optimizer));
        iso_assert_ok(trainer_hash(&t, &hash));
        daso_close(&t);
    }
}

// Finishing drops what is under way: every rank has the mean of what the ranks have now.
Test(np4_daso_runs, finishing_gives_the_mean) {
    for (int i = 2; i < VARIANTS; i++) {
        trainer t;
        daso_model m;
        iso_daso_stats stats;
        double difference = INFINITY;
        uint64_t hash;
        daso_case c = variant(i);
        c.daso.wire = ISO_WIRE_F32;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(daso_model_open(&m, &t, &c));
        for (int step = 0; step < 9; step++) {
            iso_assert_ok(trainer_step(&t, step, NULL));
            iso_assert_ok(model_daso_step(&m, &c.daso, step));
        }
        iso_assert_ok(iso_daso_finish(t.optimizer));
        iso_assert_ok(trainer_hash(&t, &hash));
        iso_assert_ok(model_difference(&m, -1, t.model, &difference));
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        iso_assert_all(difference < DASO_ROUNDING && !stats.pending);
        model_destroy(&m);
        daso_close(&t);
    }
}

// The run is over: ranks that each have their own momentum would part again.
Test(np2_daso_runs, ends_with_the_last_step) {
    for (int64_t cooldown = 0; cooldown < 3; cooldown += 2) {
        trainer t;
        uint64_t before, after;
        daso_case c = daso_case_default(10);
        c.daso.cooldown_steps = cooldown;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(trainer_train(&t, 10));
        iso_assert_ok(daso_own_hash(&t, &before));
        iso_assert_all(trainer_step(&t, 10, NULL) == ISO_ERR_STATE);
        iso_assert_ok(iso_daso_finish(t.optimizer));
        iso_assert_ok(daso_own_hash(&t, &after));
        iso_assert_all(daso_equal(&t) && after == before);
        iso_assert_ok(iso_daso_reset(t.optimizer));
        iso_assert_ok(trainer_train(&t, 10));
        iso_assert_all(daso_equal(&t));
        daso_close(&t);
    }
}

// ---- Wires that round -----------------------------------------------------------------------------

// Nothing trains (lr 0), every rank has another offset from the common start, and a full average
// without wait is made again and again. The first mean is rounded, by at most u of the largest
// offset on the way out and u on the way back; later ones add what was cut off, so that the true
// mean is reached as exactly as floats allow.
static void rounding_is_made_up_for(iso_wire wire, double u) {
    enum { EXCHANGES = 8, ROUGH = 24 }; // until it is; ROUGH with int4
    trainer t;
    int64_t count;
    daso_case c = daso_case_default(100);
    int exchanges = wire == ISO_WIRE_INT4 ? ROUGH : EXCHANGES;
    double error[ROUGH], offset = 0.0123 * (test_size - 1) / 2.0;
    c.train.hyper.lr = 0;
    c.daso.global_skip = 1;
    c.daso.batches_to_wait = 0;
    c.daso.wire = wire;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    float *start = daso_values(&t, &count);
    iso_assert_ok(daso_drift(&t, 0.0123f * (float)test_rank));
    for (int step = 0; step < exchanges; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        float *now = daso_values(&t, &count);
        error[step] = 0;
        for (int64_t k = 0; k < count; k++)
            error[step] = fmax(error[step],
                               fabs((double)now[k] - (double)start[k] - offset * (double)(k % 7)));
        free(now);
    }
    free(start);
    // Values are below 1, offsets below 6 * 0.0123 * ranks.
    double largest = 1 + 6 * 0.0123 * test_size;
    iso_assert_all(error[0] > 1e-6 && error[0] < 2.5 * u * largest);
    iso_assert_all(error[exchanges - 1] < 1e-6);
    daso_close(&t);
}

Test(np2_daso_runs, bf16_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_BF16, 0x1p-8);
}
Test(np4_daso_runs, bf16_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_BF16, 0x1p-8);
}
Test(np4_daso_runs, f16_rounding_is_made_up_for) { rounding_is_made_up_for(ISO_WIRE_F16, 0x1p-11); }
// By half of a scale, which is 1/127 of the largest offset among 256.
Test(np2_daso_runs, int8_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_INT8, 1 / 254.0);
}
Test(np4_daso_runs, int8_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_INT8, 1 / 254.0);
}
// By a sixteenth of an offset.
Test(np3_daso_runs, fp8_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_FP8, 1 / 16.0);
}
// By a third of an offset, or all of one below 1/64 of the largest among 128.
Test(np2_daso_runs, int4_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_INT4, 1 / 3.0);
}
Test(np3_daso_runs, int4_rounding_is_made_up_for) {
    rounding_is_made_up_for(ISO_WIRE_INT4, 1 / 3.0);
}

// Wires that round train like f32: what travels are differences to the last mean, so that a merge
// is off by no more than u on the way out and u back of what the ranks did since, which is small
// against the parameters: a tenth. In int8, small differences are off by as much as the largest of
// their group.
static void trains_like_f32(iso_wire wire, double most) {
    trainer t;
    daso_model m;
    double difference, worst = 0;
    daso_case c = variant(2);
    c.daso.local_skip = 1;
    c.daso.wire = wire;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < (int)c.daso.total_steps; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_ok(daso_difference(&t, &m, &difference));
        worst = fmax(worst, difference);
    }
    iso_assert_all(worst < most && worst > 1e-6);
    model_destroy(&m);
    daso_close(&t);
}

Test(np4_daso_runs, bf16_trains_like_f32) { trains_like_f32(ISO_WIRE_BF16, 0.1 * 0x1p-8); }
Test(np4_daso_runs, f16_trains_like_f32) { trains_like_f32(ISO_WIRE_F16, 0.1 * 0x1p-11); }
Test(np4_daso_runs, int8_trains_like_f32) { trains_like_f32(ISO_WIRE_INT8, 0.2 / 254); }
Test(np4_daso_runs, fp8_trains_like_f32) { trains_like_f32(ISO_WIRE_FP8, 0.1 / 16); }
Test(np4_daso_runs, int4_trains_like_f32) { trains_like_f32(ISO_WIRE_INT4, 0.1 / 3); }

// Everything is allocated by the time the first exchange was merged, but for the pool of requests,
// which grows when more of them happen to be in flight than ever before: never once per exchange.
Test(np4_daso_runs, steps_allocate_nothing) {
    for (int i = 0; i < VARIANTS; i++) {
        trainer t;
        long long before, after;
        iso_daso_stats stats;
        daso_case c = variant(i);
        c.daso.cooldown_steps = 0;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(trainer_train(&t, 12));
        iso_memory_balance(NULL, NULL, &before);
        for (int step = 12; step < 29; step++) iso_assert_ok(trainer_step(&t, step, NULL));
        iso_memory_balance(NULL, NULL, &after);
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        iso_assert_all(after - before <= 2 && stats.syncs >= 4);
        daso_close(&t);
    }
}

// ---- Completing -----------------------------------------------------------------------------------

static iso_daso_stats stats_of(trainer *t) {
    iso_daso_stats stats = {0};
    iso_assert_ok(iso_daso_get_stats(t->optimizer, &stats));
    return stats;
}

// After every step: what is under way arrives earlier, and is merged when it would have been.
static void completing_changes_no_bit(int ranks_per_node) {
    for (int i = 0; i < VARIANTS; i++) {
        trainer t;
        uint64_t hash = 0;
        daso_case c = variant(i);
        c.ranks_per_node = ranks_per_node;
        uint64_t undisturbed = hash_of(MPI_COMM_WORLD, &c, 0);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        for (int step = 0; step < (int)c.daso.total_steps; step++) {
            iso_assert_ok(trainer_step(&t, step, NULL));
            bool pending = stats_of(&t).pending;
            iso_assert_ok(iso_daso_complete(t.optimizer));
            iso_assert_all(stats_of(&t).pending == pending);
        }
        iso_assert_ok(iso_daso_finish(t.optimizer));
        iso_assert_ok(trainer_hash(&t, &hash));
        iso_assert_all(hash == undisturbed);
        daso_close(&t);
    }
}

Test(np2_daso_runs, completing_changes_no_bit) { completing_changes_no_bit(1); }
Test(np4_daso_runs, completing_changes_no_bit) { completing_changes_no_bit(2); }

// Rank 1 comes late to the send after step 4; rank 0 stands there, and not again when it merges.
Test(np2_daso_runs, completing_waits_for_what_is_under_way) {
    trainer t;
    iso_daso_stats before, after = {0}; // asserting makes ranks wait for each other
    daso_case c = daso_case_default(20);
    c.ranks_per_node = 1;
    c.daso.batches_to_wait = 3;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 3));
    before = stats_of(&t);
    if (test_rank == 1) nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    iso_status status = trainer_step(&t, 3, NULL);
    if (status >= 0) status = iso_daso_complete(t.optimizer);
    if (status >= 0) status = iso_daso_get_stats(t.optimizer, &after);
    iso_assert_ok(status);
    double waited = after.wait_ms - before.wait_ms;
    iso_assert_all(test_rank == 1 || waited > 100);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    for (int step = 4; step < 7; step++) iso_assert_ok(trainer_step(&t, step, NULL));
    iso_daso_stats merged = stats_of(&t);
    iso_assert_all(merged.syncs == 1 && merged.wait_ms == after.wait_ms);
    iso_assert_all(fabs(merged.last_wait_ms - waited) < 1e-6 && merged.work_ms >= 0);
    daso_close(&t);
}

// ---- Counters -------------------------------------------------------------------------------------

// Over the ranks of the world, an exchange of n elements takes 2 (P - 1) n of them between nodes,
// whichever way nodes divide the work: each node's contribution to each other node's share, and
// each share back to the other nodes.
static void counts_bytes(int ranks_per_node, iso_wire wire) {
    trainer t;
    iso_daso_stats stats;
    int64_t count, nodes = (test_size + ranks_per_node - 1) / ranks_per_node;
    daso_case c = daso_case_default(17);
    c.ranks_per_node = ranks_per_node;
    c.daso.wire = wire;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    free(daso_values(&t, &count));
    iso_assert_ok(trainer_train(&t, 16)); // sent after 4, 8, 12, 16, merged after 5, 9, 13
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.steps == 16 && stats.syncs == 3 && stats.pending && stats.last_age == 1);
    iso_assert_all(strcmp(stats.phase, "cycling") == 0);
    iso_assert_ok(trainer_step(&t, 16, NULL)); // merges, and then all get the mean
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.syncs == 5 && !stats.pending && strcmp(stats.phase, "done") == 0);
    int64_t bytes[2] = {stats.bytes_between_nodes, stats.bytes_sent};
    iso_assert_ok(iso_comm_allreduce_i64(t.comm, bytes, 2, ISO_SUM));
    int64_t halves = wire == ISO_WIRE_F32                            ? 8
                     : wire == ISO_WIRE_INT8 || wire == ISO_WIRE_FP8 ? 2
                                                                     : 4;
    if (wire == ISO_WIRE_INT4) halves = 1;
    int64_t most = 5 * 2 * (nodes - 1) * count * 4;
    // The last mean may travel in f32 where the others are rounded; shares are padded to 16
    // elements.
    int64_t least = 5 * halves * (nodes - 1) * count;
    most += 5 * 2 * (nodes - 1) * test_size * 16 * 4;
    iso_assert_all(bytes[0] >= least && bytes[0] <= most && bytes[1] >= bytes[0]);
    iso_assert_all(wire == ISO_WIRE_F32 || bytes[0] < most * 2 / 3);
    iso_assert_all(ranks_per_node > 1 || bytes[1] == bytes[0]);
    daso_close(&t);
}

Test(np2_daso_runs, counts_bytes) { counts_bytes(1, ISO_WIRE_F32); }
Test(np4_daso_runs, counts_bytes) { counts_bytes(2, ISO_WIRE_F32); }
Test(np4_daso_runs, counts_bytes_of_one_node) { counts_bytes(4, ISO_WIRE_F32); }
Test(np3_daso_runs, counts_bytes_of_unequal_nodes) { counts_bytes(2, ISO_WIRE_F32); }
Test(np4_daso_runs, counts_bytes_of_bf16) { counts_bytes(1, ISO_WIRE_BF16); }
Test(np3_daso_runs, counts_bytes_of_int8) { counts_bytes(1, ISO_WIRE_INT8); }
Test(np3_daso_runs, counts_bytes_of_fp8) { counts_bytes(1, ISO_WIRE_FP8); }
Test(np3_daso_runs, counts_bytes_of_int4) { counts_bytes(1, ISO_WIRE_INT4); }

// |x - mean| / |mean| at the send that was merged last, of the rank where it is largest.
static double divergence_of(const daso_model *m) {
    const model_exchange *e = &m->exchange[1]; // where model_merge leaves it
    double worst = 0;
    for (int r = 0; r < m->config.ranks; r++) {
        double apart = 0, size = 0;
        for (int64_t k = 0; k < m->count; k++) {
            apart += pow((double)e->then[r][k] - e->mean[k], 2);
            size += pow(e->mean[k], 2);
        }
        worst = fmax(worst, sqrt(apart / size));
    }
    return worst;
}

// Known on all ranks one sync later, because it travels with the next send.
static void measures_divergence(int ranks_per_node, int64_t wait) {
    trainer t;
    daso_model m;
    iso_daso_stats stats;
    double at_send[16] = {0};
    daso_case c = daso_case_default(40);
    c.ranks_per_node = ranks_per_node;
    c.daso.batches_to_wait = wait;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 14; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        if (m.syncs == 0) continue;
        at_send[m.syncs] = divergence_of(&m);
        double expected = at_send[m.syncs - 1];
        iso_assert_all(at_send[m.syncs] > 1e-3);
        iso_assert_all(fabs(stats.divergence - expected) <= 1e-3 * expected);
    }
    iso_assert_all(m.syncs == 3);
    model_destroy(&m);
    daso_close(&t);
}

Test(np2_daso_runs, measures_divergence) { measures_divergence(1, 1); }
Test(np4_daso_runs, measures_divergence) { measures_divergence(2, 1); }
Test(np3_daso_runs, measures_divergence) { measures_divergence(2, 1); }
Test(np4_daso_runs, measures_divergence_without_wait) { measures_divergence(1, 0); }
