// SPDX-License-Identifier: MIT
// For tests of parameters that have no gradient in some steps: a model whose gradients are those of
// unused.txt, under data_parallel.
#include "common/unused_fixture.h"

#include "base/base.h"
#include "common/any_device.h"
#include "common/fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <stdlib.h>

static fixture *golden;

void unused_setup(void) {
    resume_setup();
    golden = fixture_open("unused.txt");
}

void unused_teardown(void) {
    fixture_close(&golden);
    resume_teardown();
}

// ---- A model whose gradients are the fixture's ------------------------------------------------------

struct unused_now unused_now;

// A layer for each parameter of the fixture. One that a step does not use on this rank does not
// run.
typedef struct layer {
    iso_module base;
    int index;
    int64_t offset; // in the fixture
} layer;

bool unused_has_gradient(int i) {
    return fixture_get(golden, NULL, "used", NULL)[unused_now.step * BAG_PARAMETERS + i] != 0;
}

// The mean is the fixture's gradient: all ranks have it, or one has it alone.
double unused_fair_share(int i) {
    if (!unused_has_gradient(i)) return 0;
    if ((i + unused_now.step) % 2 == 0) return 1;
    return unused_now.rank == (i + unused_now.step / 2) % unused_now.ranks ? unused_now.ranks : 0;
}

static iso_status write_gradient(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    (void)call, (void)grad_out;
    const layer *l = iso_container_of(self, const layer, base);
    iso_tensor *grad = self->parameter[0]->grad;
    double f64[64], share = unused_now.share(l->index);
    float f32[64];
    char number[12];
    snprintf(number, sizeof(number), "%d", unused_now.step);
    const double *from = fixture_get(golden, "gradient", number, NULL) + l->offset;
    for (int64_t k = 0; k < grad->count; k++) {
        f64[k] = share * (double)(float)from[k];
        f32[k] = (float)f64[k];
    }
    return tensor_set(grad, grad->dtype == ISO_F64 ? (void *)f64 : (void *)f32);
}

static iso_status pass_on(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}

static const iso_module_ops layer_ops = {
    .type = "Given", .forward = pass_on, .backward_params = write_gradient};

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    *out = in;
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        if (unused_now.share(i) == 0) continue;
        iso_status status = iso_module_call(self->child[i], ISO_ACT_NONE, in, out);
        if (status < 0) return status;
    }
    return ISO_OK;
}

static iso_status backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in) {
    (void)call, (void)grad_in;
    for (int i = BAG_PARAMETERS - 1; i >= 0; i--) {
        if (unused_now.share(i) == 0) continue;
        iso_status status = iso_module_call_backward(self->child[i], grad_out, NULL);
        if (status < 0) return status;
    }
    return ISO_OK;
}

static const iso_module_ops net_ops = {.type = "Layers", .forward = forward, .backward = backward};

// The last two have rows, so that they can be cut.
static iso_module *create_net(iso_device *device, iso_dtype dtype) {
    static const int64_t shape[BAG_PARAMETERS][4] = {{1},          {3},     {17},   {4, 5},
                                                     {2, 3, 2, 2}, {33, 1}, {64, 1}};
    static const int ndim[BAG_PARAMETERS] = {1, 1, 1, 2, 4, 2, 2};
    iso_module *net = calloc(1, sizeof(*net));
    const double *start = fixture_get(golden, NULL, "start", NULL);
    int64_t offset = 0;
    iso_assert_ok(iso_module_init(net, &net_ops, device));
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        layer *l = calloc(1, sizeof(*l));
        char name[3] = {'p', (char)('0' + i), 0};
        iso_parameter *p;
        iso_assert_ok(iso_module_init(&l->base, &layer_ops, device));
        iso_assert_ok(iso_module_add_parameter(&l->base, "w", ndim[i], shape[i], &p));
        float f32[64];
        l->index = i;
        l->offset = offset;
        for (int64_t k = 0; k < p->value->count; k++) f32[k] = (float)start[offset + k];
        offset += p->value->count;
        iso_assert_ok(tensor_set(p->value, f32));
        iso_assert_ok(iso_module_add_child_take(net, name, &l->base));
    }
    iso_assert_ok(iso_module_to(net, dtype));
    return net;
}

// ---- A run ------------------------------------------------------------------------------------------

const unused_case unused_cases[UNUSED_CASES] = {
    {"sgd", ISO_SGD, false, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05}},
    {"adam",
     ISO_ADAM,
     false,
     {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}},
    {"adamw",
     ISO_ADAMW,
     true,
     {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.2}},
    {"adagrad",
     ISO_ADAGRAD,
     false,
     {.lr = 0.2, .lr_decay = 0.1, .weight_decay = 0.1, .eps = 1e-10}},
    {"lamb",
     ISO_LAMB,
     true,
     {.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.2}},
};

static bool is_second(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strchr("025", name[1]) != NULL;
}

unused_run unused_create(const unused_case *c, iso_comm *comm, iso_sync sync, bool cut,
                         iso_dtype dtype) {
    unused_run r = {.comm = comm, .sync = sync};
    iso_optimizer *inner;
    iso_data_parallel_config config = {.sync = sync,
                                       .bucket_mb = sync == ISO_SYNC_EXPLICIT ? 1 : 0,
                                       .piece_mb = cut ? 64.0 / 1048576 : 0,
                                       .find_unused_parameters = true};
    iso_assert_ok(iso_device_create(test_device(), &r.device));
    iso_assert_ok(
        iso_data_parallel_create_take(create_net(r.device, dtype), comm, &config, &r.model));
    iso_assert_ok(iso_optimizer_create(c->kind, r.model, &c->hyper, &inner));
    iso_hyper slow = c->hyper;
    slow.lr /= 10;
    if (c->groups) iso_assert_ok(iso_optimizer_add_group(inner, &slow, is_second, NULL, NULL));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, r.model, &r.optimizer));
    iso_assert_ok(iso_tensor_create(r.device, dtype, 2, (int64_t[]){1, 1}, &r.one));
    iso_assert_ok(iso_tensor_fill(r.one, 1));
    const iso_reducer *reducer = iso_data_parallel_reducer(r.model);
    // One rank cuts nothing. Where NCCL shares buckets out, they end on larger units: there are
    // fewer pieces.
    bool pieced = cut && iso_comm_size(comm) > 1;
    bool on_host = strcmp(test_device(), "cpu") == 0;
    int pieces = iso_reducer_pieces(reducer, BAG_PARAMETERS - 1);
    iso_assert_all(pieces == (pieced ? 4 : 1) || (!on_host && pieced && pieces < 4));
    return r;
}

void unused_destroy(unused_run *r) {
    iso_tensor_destroy(&r->one);
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_device_destroy(&r->device);
}

iso_status unused_backward(unused_run *r, int step) {
    iso_tensor *out;
    unused_now.step = step;
    unused_now.rank = iso_comm_rank(r->comm);
    unused_now.ranks = iso_comm_size(r->comm);
    iso_optimizer_zero_grad(r->optimizer);
    iso_status status = iso_module_forward(r->model, r->one, &out);
    if (status >= 0) status = iso_module_backward(r->model, r->one, NULL);
    if (status >= 0 && r->sync == ISO_SYNC_EXPLICIT)
        status = iso_data_parallel_all_reduce_gradients(r->model);
    return status;
}

void unused_train(unused_run *r, int from, int to) {
    unused_now.share = unused_fair_share;
    for (int step = from; step < to; step++) {
        iso_assert_ok(unused_backward(r, step));
        iso_assert_ok(iso_optimizer_step(r->optimizer));
    }
}

void unused_values(unused_run *r, double *out) {
    iso_module *net = iso_data_parallel_module(r->model);
    iso_assert_ok(iso_data_parallel_finish(r->model));
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        iso_tensor *value = net->child[i]->parameter[0]->value;
        iso_assert_ok(tensor_get(value, out));
        out += value->count;
    }
}

void unused_check(const double *got, const char *name) {
    const double *after = fixture_get(golden, name, "after", NULL);
    int wrong = 0;
    for (int i = 0; i < BAG_ELEMENTS; i++) {
        if (fabs(got[i] - after[i]) <= 1e-12 * fmax(1, fabs(after[i]))) continue;
        if (wrong++ == 0)
            fprintf(stderr, "%s: element %d is %.17g, not %.17g\n", name, i, got[i], after[i]);
    }
    iso_assert_all(wrong == 0);
}
