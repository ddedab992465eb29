// SPDX-License-Identifier: MIT
// Which segments keep their CUDA graphs.
#include "common/balance.h"
#include "gpu/multi_tensor_fixture.h"

TestSuite(cuda_graphs, .timeout = 120, .fini = balance_check);

enum { SIZES = 10, ROUNDS = 200, LEARNING = 8 };

typedef struct filled {
    target on;
    iso_tensor *x[SIZES]; // of 1, 2, ... blocks of threads
} filled;

static filled open_filled(void) {
    filled f = {.on = open_with(ISO_F32, "1")};
    for (int i = 0; i < SIZES; i++)
        OK(iso_tensor_create(f.on.device, ISO_F32, 1, &(int64_t){256 * (i + 1)}, &f.x[i]));
    return f;
}

static void close_filled(filled *f) {
    for (int i = 0; i < SIZES; i++) iso_tensor_destroy(&f->x[i]);
    iso_device_destroy(&f->on.device);
}

// A segment for each number of three digits. Returns how many graphs were launched for it.
static long long fill(filled *f, int number) {
    long long before = f->on.device->graph_launches;
    for (int k = 0, left = number; k < 3; k++, left /= SIZES)
        OK(f->on.device->ops->fill(f->on.device, f->x[left % SIZES], number));
    finish(&f->on);
    return f->on.device->graph_launches - before;
}

static void check_filled(filled *f, int size, float value) {
    float *data;
    OK(iso_tensor_map(f->x[size], ISO_READ, (void **)&data));
    for (int64_t i = 0; i < f->x[size]->count; i++) cr_assert(data[i] == value);
    OK(iso_tensor_unmap(f->x[size]));
}

// More segments than are kept come once; two come again and again.
Test(cuda_graphs, what_recurs_keeps_its_graph_beside_what_does_not) {
    filled f = open_filled();
    for (int round = 0; round < ROUNDS; round++) {
        long long graphs = fill(&f, 999) + fill(&f, 888);
        cr_expect(graphs == 2 || round < LEARNING, "%lld graphs in round %d", graphs, round);
        check_filled(&f, 9, 999), check_filled(&f, 8, 888);
        cr_expect(fill(&f, round) == 0, "segment %d came but once", round);
    }
    close_filled(&f);
}
