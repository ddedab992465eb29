// SPDX-License-Identifier: MIT
// For tests of gossip: the parameters of all ranks, and what exchanges do to them.
#include "common/gossip_fixture.h"

#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

float *gossip_gather(trainer *t, int64_t *count) {
    float *own = daso_values(t, count), *all = NULL;
    if (own) all = malloc((size_t)test_size * (size_t)*count * sizeof(float));
    iso_assert_all(own && all);
    MPI_Allgather(own, (int)*count, MPI_FLOAT, all, (int)*count, MPI_FLOAT, MPI_COMM_WORLD);
    free(own);
    return all;
}

gossip_figures gossip_compare(const float *start, const float *now, int64_t count) {
    gossip_figures f = {0};
    for (int64_t i = 0; i < count; i++) {
        double first = 0, sum = 0;
        for (int r = 0; r < test_size; r++) first += (double)start[r * count + i];
        for (int r = 0; r < test_size; r++) sum += (double)now[r * count + i];
        f.largest_sum = fmax(f.largest_sum, fabs(first));
        f.moved_sum = fmax(f.moved_sum, fabs(sum - first));
        for (int r = 0; r < test_size; r++)
            f.distance += pow((double)now[r * count + i] - sum / test_size, 2);
    }
    f.distance = sqrt(f.distance);
    return f;
}

void gossip_open_apart(trainer *t, daso_case *c) {
    c->train.hyper.lr = 0;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    iso_assert_ok(daso_drift(t, 0.125f * (float)(test_rank * test_rank + 1)));
}

void gossip_distances(daso_case *c, int exchanges, double *out) {
    trainer t;
    int64_t count;
    gossip_open_apart(&t, c);
    float *start = gossip_gather(&t, &count);
    double first = gossip_compare(start, start, count).distance;
    for (int k = 0; k < exchanges; k++) {
        iso_assert_ok(trainer_step(&t, k, NULL));
        float *now = gossip_gather(&t, &count);
        out[k] = gossip_compare(start, now, count).distance / first;
        free(now);
    }
    free(start);
    daso_close(&t);
}
