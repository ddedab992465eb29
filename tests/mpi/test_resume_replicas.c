// SPDX-License-Identifier: MIT
// Replicas that one number of ranks has saved in a periodic mode go on with another number as their
// mean.
#include "base/base.h"
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/ranks_fixture.h"
#include "common/resume_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

TestSuite(np3_resume_replicas, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_resume_replicas, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { ROOM = 20000, STOP = 10, STEPS = 24 };

typedef struct replica {
    double value[ROOM]; // parameters, then state of the optimizer
    int count;
} replica;

static iso_status add_values(replica *r, const iso_state_dict *dict) {
    for (int i = 0; i < dict->count; i++) {
        iso_tensor *t = dict->item[i].tensor;
        void *data;
        if (iso_tensor_dtype(t) != ISO_F32) continue;
        ISO_TRY(iso_tensor_map(t, ISO_READ, &data));
        for (int64_t k = 0; k < iso_tensor_count(t) && r->count < ROOM; k++)
            r->value[r->count++] = (double)((float *)data)[k];
        ISO_TRY(iso_tensor_unmap(t));
    }
    return ISO_OK;
}

static iso_status read_replica(trainer *t, replica *r) {
    iso_state_dict model, optimizer;
    r->count = 0;
    ISO_TRY(iso_module_state_dict(t->model, &model));
    ISO_TRY(iso_optimizer_state_dict(t->optimizer, &optimizer));
    ISO_TRY(add_values(r, &model));
    ISO_TRY(add_values(r, &optimizer));
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&optimizer);
    return r->count > 0 && r->count < ROOM ? ISO_OK : ISO_ERR_STATE;
}

// With the first PENDING ones, an exchange is under way after STOP steps. With the last one the
// ranks are equal then.
// ALONE: every rank is a node.
enum { PENDING = 4, ALONE = 1 };
static daso_case case_of(int i) {
    daso_case c = i == 4 ? heat_case_default(STEPS / 4) : daso_case_default(STEPS);
    c.ranks_per_node = 2;
    c.train.rows = 12;
    c.daso.warmup_steps = c.daso.cooldown_steps = i == 5 ? STEPS / 2 : 3;
    c.daso.global_skip = 5;
    c.daso.batches_to_wait = 3;
    if (i == ALONE) c.daso.wire = ISO_WIRE_INT8;
    if (i == ALONE) c.daso.unit = ISO_SCOPE_RANK;
    if (i == 2) c.daso.outer = &iso_outer_adam;
    if (i == 3) {
        c.daso.outer = &iso_outer_nesterov;
        c.daso.fragments = 3;
        c.daso.wire = ISO_WIRE_INT8;
    }
    return c;
}

static iso_status train_replicas(trainer *t, const daso_case *c, int from, int to) {
    for (int step = from; step < to; step++) {
        ISO_TRY(trainer_step(t, step, NULL));
        if (c->heat && step % 4 == 3) ISO_TRY(iso_daso_epoch_loss(t->optimizer, 1, true));
    }
    return ISO_OK;
}

static iso_status open_replicas(trainer *t, MPI_Comm comm, const daso_case *c) {
    ISO_TRY(daso_open(t, comm, c));
    return c->heat ? iso_daso_heat_set_last_batch(t->optimizer, 3) : ISO_OK;
}

// *mean: of all replicas, in f64.
static iso_status save_replicas(MPI_Comm comm, const daso_case *c, replica *mean, bool *pending) {
    trainer t;
    iso_daso_stats stats;
    int ranks;
    ISO_TRY(open_replicas(&t, comm, c));
    ISO_TRY(train_replicas(&t, c, 0, STOP));
    ISO_TRY(ranks_save(&t, STOP));
    ISO_TRY(read_replica(&t, mean));
    ISO_TRY(iso_daso_get_stats(t.optimizer, &stats));
    *pending = stats.pending;
    MPI_Comm_size(comm, &ranks);
    MPI_Allreduce(MPI_IN_PLACE, mean->value, mean->count, MPI_DOUBLE, MPI_SUM, comm);
    for (int i = 0; i < mean->count; i++) mean->value[i] /= ranks;
    daso_close(&t);
    return ISO_OK;
}

static double distance_of(const replica *a, const replica *b) {
    double most = a->count == b->count ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++)
        most = fmax(most, fabs(a->value[i] - b->value[i]));
    return most;
}

static iso_status go_on_as_mean(MPI_Comm comm, const daso_case *c, const replica *mean,
                                double *from_mean, bool *good) {
    static replica r;
    trainer t;
    iso_daso_stats stats;
    int64_t saved = 0;
    ISO_TRY(open_replicas(&t, comm, c));
    ISO_TRY(train_replicas(&t, c, 0, 3)); // a past of its own
    ISO_TRY(ranks_load(&t, &saved));
    ISO_TRY(read_replica(&t, &r));
    *from_mean = distance_of(&r, mean);
    ISO_TRY(iso_daso_get_stats(t.optimizer, &stats));
    *good = !stats.pending && stats.steps == STOP;
    ISO_TRY(train_replicas(&t, c, STOP, STEPS));
    ISO_TRY(iso_daso_finish(t.optimizer));
    uint64_t hash;
    ISO_TRY(trainer_hash(&t, &hash)); // fails if ranks differ
    daso_close(&t);
    return ISO_OK;
}

// On the first ranks, and then on the second ones, with so many on a node. The mean is rounded to
// f32 once.
static void replicas_go_on(int first, int second, const int each[2], int i) {
    static replica mean;
    daso_case c = case_of(i);
    c.ranks_per_node = each[0];
    MPI_Comm a = ranks_split(first), b = ranks_split(second);
    double from_mean = 0;
    bool pending = true, good = true;
    iso_assert_ok(a == MPI_COMM_NULL ? ISO_OK : save_replicas(a, &c, &mean, &pending));
    MPI_Bcast(&mean, sizeof(mean), MPI_BYTE, 0, MPI_COMM_WORLD);
    iso_assert_all(pending || i >= PENDING || test_rank > 0);
    c.ranks_per_node = each[1];
    iso_status status =
        b == MPI_COMM_NULL ? ISO_OK : go_on_as_mean(b, &c, &mean, &from_mean, &good);
    iso_assert_ok(status);
    if (from_mean > 1e-6) fprintf(stderr, "case %d: %g from the mean\n", i, from_mean);
    iso_assert_all(good && from_mean <= 1e-6);
    iso_assert_all(b == MPI_COMM_NULL || ranks_moved == (first == second));
    if (a != MPI_COMM_NULL) MPI_Comm_free(&a);
    if (b != MPI_COMM_NULL) MPI_Comm_free(&b);
}

static void all_replicas_go_on(int first, int second) {
    for (int i = 0; i < 6; i++) replicas_go_on(first, second, (const int[]){2, 2}, i);
}

Test(np3_resume_replicas, replicas_go_on_as_their_mean_3_2) { all_replicas_go_on(3, 2); }
Test(np3_resume_replicas, replicas_go_on_as_their_mean_2_3) { all_replicas_go_on(2, 3); }
Test(np4_resume_replicas, replicas_go_on_as_their_mean_4_2) { all_replicas_go_on(4, 2); }
Test(np4_resume_replicas, replicas_go_on_as_their_mean_3_4) { all_replicas_go_on(3, 4); }

// ---- As many ranks, on nodes in another way -------------------------------------------------------

Test(np4_resume_replicas, replicas_go_on_as_their_mean_on_other_nodes) {
    static const int each[][2] = {{2, 1}, {2, 3}, {2, 4}, {1, 2}, {4, 2}};
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 6; i++)
            if (i != ALONE) replicas_go_on(4, 4, each[k], i);
}

// Without iso_state_accept_nodes.
Test(np4_resume_replicas, other_nodes_are_refused) {
    static replica mean;
    daso_case c = case_of(0);
    bool pending;
    trainer t;
    iso_assert_ok(save_replicas(MPI_COMM_WORLD, &c, &mean, &pending));
    c.ranks_per_node = 1;
    iso_assert_ok(open_replicas(&t, MPI_COMM_WORLD, &c));
    iso_status status = ranks_load(&t, NULL);
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(iso_last_error()->message, "distributed over nodes in another way"));
    daso_close(&t);
}

// Replicas of single ranks stay what they are.
static void goes_on_alone(iso_wire wire) {
    static replica r;
    daso_case c = case_of(ALONE);
    int64_t saved = 0;
    uint64_t hash[2];
    trainer t;
    c.daso.wire = wire;
    for (int k = 0; k < 2; k++) {
        c.ranks_per_node = 2 - k;
        iso_assert_ok(open_replicas(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(k == 0 ? train_replicas(&t, &c, 0, STOP) : ranks_load(&t, &saved));
        if (k == 0) iso_assert_ok(ranks_save(&t, STOP));
        iso_assert_ok(read_replica(&t, &r));
        hash[k] = iso__hash(ISO_HASH_START, r.value, (size_t)r.count * sizeof(double));
        daso_close(&t);
    }
    iso_assert_all(!ranks_moved && hash[0] == hash[1]);
}

Test(np4_resume_replicas, replicas_of_ranks_go_on_on_other_nodes) {
    goes_on_alone(ISO_WIRE_F32);
    goes_on_alone(ISO_WIRE_INT8);
}
