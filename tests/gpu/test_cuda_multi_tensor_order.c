// SPDX-License-Identifier: MIT
// Updates that a GPU takes together: in the right order with everything else, and none is lost.
#include "common/balance.h"
#include "gpu/multi_tensor_fixture.h"

#include <string.h>

TestSuite(cuda_multi_tensor_order, .timeout = 120, .fini = balance_check);

__attribute__((weak)) void emulated_fail_next(const char *function, int error);

// ---- What ends it -------------------------------------------------------------------------------

typedef struct scene {
    target on;
    const iso__remote_ops *remote;
    memory m;
    iso_tensor *other;
    iso__device_event *event;
    float *pinned;
} scene;

static void by_kernel(scene *s) { OK(iso_tensor_fill(s->other, 1)); }
static void by_copy(scene *s) { OK(iso_tensor_copy(s->m.x[P], s->other)); }
static void by_library(scene *s) {
    iso__cuda_gemm_args args = {.dtype = ISO_F32,
                                .m = 2,
                                .n = 2,
                                .k = 2,
                                .a = s->m.x[P]->data,
                                .b = s->m.x[P]->data,
                                .lda = 2,
                                .ldb = 2,
                                .ldc = 2,
                                .c = s->other->data,
                                .batch = 1};
    OK(iso__cuda_gemm(iso__cuda_of(s->on.device), &args));
}
static void by_record(scene *s) {
    OK(s->remote->record(s->on.device, ISO__QUEUE_COMPUTE, s->event));
}
static void by_follow(scene *s) {
    OK(s->remote->follow(s->on.device, ISO__QUEUE_COMPUTE, s->event));
}
static void by_copy_to_host(scene *s) {
    OK(s->remote->copy(s->on.device, ISO__QUEUE_COMPUTE, s->m.x[P]->data, s->pinned, 16));
}
static void by_zeros(scene *s) {
    OK(s->remote->fill_zero(s->on.device, ISO__QUEUE_COMPUTE, s->other->data, 16));
}
static void by_wait(scene *s) { OK(s->remote->wait(s->on.device, s->event)); }
static void by_finish(scene *s) { finish(&s->on); }
static void by_mapping(scene *s) {
    void *data;
    OK(iso_tensor_map(s->m.x[P], ISO_READ, &data));
    OK(iso_tensor_unmap(s->m.x[P]));
}
static void by_values_of_the_host(scene *s) {
    void *data;
    OK(iso_tensor_map(s->other, ISO_WRITE, &data));
    memset(data, 0, ELEMENTS * sizeof(float));
    OK(iso_tensor_unmap(s->other));
}
static void by_another_rule(scene *s) {
    void *x[ROLES];
    locate(&s->m, 1000, 1000, x);
    OK(adagrad(&s->on, 10, 0.1, x));
    cr_assert(multi_tensor_of(&s->on)->table.segments == 1);
    finish(&s->on);
}
static void by_lamb(scene *s) {
    iso__lamb_args a = {.lr = 0.1, .correction1 = 1, .correction2_sqrt = 1, .eps = 1};
    void *x[ROLES];
    locate(&s->m, 1000, 1000, x);
    OK(s->on.kernels->lamb(s->on.device, 10, &a, x[G], x[P], x[S0], x[S1]));
}
static void by_labels(scene *s) {
    iso_loss_config config = {.kind = ISO_CROSS_ENTROPY};
    iso_tensor *output;
    const int64_t shape[] = {2, 3};
    const int32_t labels[] = {0, 2};
    OK(iso_tensor_borrow(s->on.device, ISO_F32, 2, shape, s->other->data, &output));
    OK(s->on.kernels->loss(s->on.device, &config, output, labels, (double *)(void *)s->pinned,
                           NULL));
    finish(&s->on);
    iso_tensor_destroy(&output);
}

static void open_scene(scene *s, const char *graphs) {
    s->on = open_with(ISO_F32, graphs);
    s->remote = s->on.device->ops->remote;
    s->m = memory_create(&s->on);
    OK(iso_tensor_create(s->on.device, ISO_F32, 1, &(int64_t){ELEMENTS}, &s->other));
    OK(iso_tensor_fill(s->other, 0));
    OK(s->remote->event_create(s->on.device, &s->event));
    OK(s->remote->record(s->on.device, ISO__QUEUE_COMPUTE, s->event));
    OK(iso__pinned_alloc(s->on.device, 64, (void **)&s->pinned));
    finish(&s->on);
}

static void close_scene(scene *s) {
    finish(&s->on);
    iso__pinned_free(s->on.device, s->pinned);
    s->remote->event_destroy(s->on.device, &s->event);
    iso_tensor_destroy(&s->other);
    memory_destroy(&s->m);
    iso_device_destroy(&s->on.device);
}

// Two updates that wait: element 0 of P becomes half of what it was.
static void two_wait(scene *s) {
    void *x[ROLES];
    long long before = launches(&s->on);
    for (int k = 0; k < 2; k++) {
        locate(&s->m, 100 * k, 0, x);
        OK(scale(&s->on, 50, 0.5, x));
    }
    cr_assert(multi_tensor_of(&s->on)->kernel && multi_tensor_of(&s->on)->table.segments == 2);
    cr_assert(launches(&s->on) == before);
}

static float first_of(iso_tensor *t) {
    void *data;
    OK(iso_tensor_map(t, ISO_READ, &data));
    float value = *(float *)data;
    OK(iso_tensor_unmap(t));
    return value;
}

static void (*const commands[])(scene *s) = {by_kernel,
                                             by_copy,
                                             by_library,
                                             by_record,
                                             by_follow,
                                             by_copy_to_host,
                                             by_zeros,
                                             by_wait,
                                             by_finish,
                                             by_mapping,
                                             by_values_of_the_host,
                                             by_another_rule,
                                             by_lamb,
                                             by_labels};

static void every_command(const char *graphs) {
    scene s;
    open_scene(&s, graphs);
    for (int i = 0; i < COUNT(commands); i++) {
        float before = first_of(s.m.x[P]);
        two_wait(&s);
        commands[i](&s);
        cr_assert(!multi_tensor_of(&s.on)->kernel, "command %d goes before updates that wait", i);
        finish(&s.on);
        if (commands[i] == by_copy) cr_assert(first_of(s.other) == before / 2);
        if (commands[i] == by_library) cr_assert(first_of(s.other) != 0);
        if (commands[i] == by_copy_to_host) cr_assert(s.pinned[0] == before / 2);
        cr_assert(first_of(s.m.x[P]) == before / 2, "command %d", i);
    }
    close_scene(&s);
}
Test(cuda_multi_tensor_order, everything_else_comes_after) { every_command("0"); }
Test(cuda_multi_tensor_order, everything_else_comes_after_with_graphs) { every_command("1"); }

// What other queues do, and what has happened, does not end it.
Test(cuda_multi_tensor_order, other_queues_do_not_matter) {
    scene s;
    open_scene(&s, "0");
    two_wait(&s);
    OK(s.remote->copy(s.on.device, ISO__QUEUE_IN, s.pinned, s.other->data, 16));
    OK(s.remote->record(s.on.device, ISO__QUEUE_IN, s.event));
    while (s.remote->test(s.on.device, s.event) == ISO_PENDING) {
    }
    cr_assert(multi_tensor_of(&s.on)->kernel);
    close_scene(&s);
}

// Memory of its own may be gone by then, and that of others not.
static void goes_and_launches_what_waits(const char *graphs) {
    setenv("ISO_CUDA_GRAPHS", graphs, 1);
    target on = open_cuda(ISO_F32), again = open_cuda(ISO_F32);
    memory m = memory_create(&again);
    void *x[ROLES];
    float expected = first_of(m.x[P]);
    locate(&m, 0, 0, x);
    for (int i = 0; i < 6; i++) { // the last one is like those before, which are held back
        if (i > 0) OK(on.device->ops->remote->finish(on.device));
        OK(scale(&on, 10, 0.5, x));
        expected /= 2;
    }
    iso_device_destroy(&on.device);
    cr_assert(first_of(m.x[P]) == expected);
    memory_destroy(&m);
    iso_device_destroy(&again.device);
}

Test(cuda_multi_tensor_order, a_device_that_goes_launches_what_waits) {
    goes_and_launches_what_waits("0");
    goes_and_launches_what_waits("1");
}

// ---- Faults -------------------------------------------------------------------------------------

Test(cuda_multi_tensor_order, a_launch_that_fails_is_told_and_loses_nothing) {
    scene s;
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to fail");
    open_scene(&s, "0");
    float before = first_of(s.m.x[P]);
    two_wait(&s);
    emulated_fail_next("cudaLaunchKernel", cudaErrorLaunchOutOfResources);
    cr_assert(iso_tensor_fill(s.other, 3) == ISO_ERR_DEVICE);
    cr_assert(strstr(iso_last_error()->message, "cudaErrorLaunchOutOfResources"));
    cr_assert(multi_tensor_of(&s.on)->kernel && multi_tensor_of(&s.on)->table.segments == 2);
    OK(iso_tensor_fill(s.other, 3));
    cr_assert(first_of(s.m.x[P]) == before / 2, "updates were lost, or done twice");
    close_scene(&s);
}

// ---- Graphs -------------------------------------------------------------------------------------

// Steps whose numbers change; ended as a step of a training is.
static void steps(const target *on, const memory *m, iso_tensor *other) {
    iso__device_event *event;
    const iso__remote_ops *remote = on->device->ops->remote;
    series s = {.count = 20, .length = 77, .stride = 80, .rates = 1};
    OK(remote->event_create(on->device, &event));
    for (int step = 0; step < 12; step++) {
        OK(iso_tensor_fill(other, step));
        OK(iso_tensor_fill(other, step + 1));
        s.rates = 1 + step % 3;
        run_series(on, m, &s, false);
        OK(remote->record(on->device, ISO__QUEUE_COMPUTE, event));
    }
    finish(on);
    remote->event_destroy(on->device, &event);
}

Test(cuda_multi_tensor_order, one_node_of_a_graph_whose_numbers_change) {
    memory m[2];
    target on[2] = {open_with(ISO_F32, "0"), open_with(ISO_F32, "1")};
    for (int i = 0; i < 2; i++) {
        iso_tensor *other;
        long long count, graphs;
        m[i] = memory_create(&on[i]);
        OK(iso_tensor_create(on[i].device, ISO_F32, 1, &(int64_t){10}, &other));
        long long before = launches(&on[i]);
        steps(&on[i], &m[i], other);
        iso_device_launches(on[i].device, &count, &graphs);
        cr_assert(count - before == 12 * 3, "%lld launches", count - before);
        cr_assert(i == 0 ? graphs == 0 : graphs >= 8, "%lld graphs", graphs);
        cr_assert(i == 0 || iso_device_primitives_created(on[i].device) == 1, "one graph for all");
        iso_tensor_destroy(&other);
    }
    check_same(&m[0], &m[1], 0, 0);
    for (int i = 0; i < 2; i++) {
        memory_destroy(&m[i]);
        iso_device_destroy(&on[i].device);
    }
}
