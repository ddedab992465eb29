// SPDX-License-Identifier: MIT
// Weights that an Autocast rounds for all layers at once: that it is one launch, and that no layer
// computes from what a parameter was before.
#include "common/autocast_fixture.h"
#include "common/balance.h"
#include "nn/nn_impl.h"

#include <string.h>

TestSuite(autocast_rounding, .timeout = 120, .fini = balance_check);

enum { ROWS = 8, WIDTH = 16 };

// ---- What layers compute --------------------------------------------------------------------------

static iso_tensor *new_batch(iso_device *device, iso_dtype dtype) {
    iso_tensor *x;
    OK(iso_tensor_create(device, dtype, 2, (int64_t[]){ROWS, WIDTH}, &x));
    OK(iso_tensor_fill(x, 0.375));
    return x;
}

// Of a layer that has never been called before, with the parameters of this one.
static iso_tensor *output_of_new(iso_module *layer, iso_tensor *x) {
    iso_module *same = new_linear(layer->device, WIDTH, WIDTH, 99);
    iso_tensor *out, *copy;
    for (int i = 0; i < 2; i++)
        OK(iso_tensor_copy(layer->parameter[i]->value, same->parameter[i]->value));
    OK(iso_module_forward(same, x, &out));
    OK(iso_tensor_create(out->device, out->dtype, out->ndim, out->shape, &copy));
    OK(iso_tensor_copy(out, copy));
    iso_module_destroy(&same);
    return copy;
}

// That the layer's latest call was of the parameters that it has now.
static void check_current(iso_module *layer, const char *when) {
    const iso_call *call = layer->call[layer->call_depth - 1];
    iso_tensor *want = output_of_new(layer, call->in);
    cr_assert(same_bits(call->result, want), "the output is of other parameters %s", when);
    iso_tensor_destroy(&want);
}

static void change_weight(iso_module *layer, double value) {
    iso_tensor *weight;
    void *host;
    OK(iso_parameter_value(layer->parameter[0], &weight));
    OK(iso_tensor_map(weight, ISO_READ_WRITE, &host));
    ((float *)host)[3] = (float)value;
    OK(iso_tensor_unmap(weight));
}

// ---- A layer between two others -------------------------------------------------------------------

typedef struct between {
    iso_module base;
    iso_module *other; // whose weight its forward changes; NULL: no one's
    double value;
} between;

static iso_status pass(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    between *b = iso_container_of(self, between, base);
    (void)call;
    if (b->other) change_weight(b->other, b->value += 1);
    *out = in;
    return ISO_OK;
}

static const iso_module_ops keeping_ops = {
    .type = "Keeping", .forward = pass, .takes_half = true, .keeps_parameters = true};
static const iso_module_ops changing_ops = {
    .type = "Changing", .forward = pass, .takes_half = true};

// a, own, c, c again.
typedef struct stack {
    iso_device *device;
    iso_module *a, *c, *own, *net;
    iso_tensor *x;
} stack;

static stack new_stack(const iso_module_ops *ops) {
    iso_module *net;
    stack s = {.device = open_any()};
    void *memory = calloc(1, sizeof(between));
    OK(iso_module_init(memory, ops, s.device));
    s.own = memory;
    s.a = new_linear(s.device, WIDTH, WIDTH, 1);
    s.c = new_linear(s.device, WIDTH, WIDTH, 2);
    OK(iso_sequential_create(s.device, &net));
    append_layer(net, "a", s.a);
    append_layer(net, "own", s.own);
    append_layer(net, "c", s.c);
    append_layer(net, "again", iso_module_retain(s.c));
    s.net = with_autocast(net, ISO_BF16);
    s.x = new_batch(s.device, ISO_F32);
    return s;
}

static void destroy_stack(stack *s) {
    iso_tensor_destroy(&s->x);
    iso_module_destroy(&s->net);
    iso_device_destroy(&s->device);
}

static void run_forward(stack *s) {
    iso_tensor *out;
    OK(iso_module_forward(s->net, s->x, &out));
}

static long long launches_of_forward(stack *s) {
    long long before, after, graphs;
    iso_device_launches(s->device, &before, &graphs);
    run_forward(s);
    iso_device_launches(s->device, &after, &graphs);
    return after - before;
}

// ---- Tests ----------------------------------------------------------------------------------------

// The input and both layers; the second use of a layer rounds for itself.
Test(autocast_rounding, all_is_rounded_in_one_launch) {
    stack keeps = new_stack(&keeping_ops), changes = new_stack(&changing_ops);
    run_forward(&keeps), run_forward(&changes); // the first forward makes the copies
    long long fewer = launches_of_forward(&changes) - launches_of_forward(&keeps);
    cr_assert_eq(fewer, keeps.device->ops->host_memory ? 0 : 2); // the CPU launches nothing
    destroy_stack(&keeps), destroy_stack(&changes);
}

Test(autocast_rounding, parameters_may_change_between_forwards) {
    stack s = new_stack(&keeping_ops);
    for (int i = 0; i < 4; i++) {
        change_weight(s.a, i), change_weight(s.c, -i);
        run_forward(&s);
        check_current(s.a, "between forwards");
        check_current(s.c, "between forwards");
    }
    destroy_stack(&s);
}

Test(autocast_rounding, a_layer_may_change_parameters_of_another) {
    stack s = new_stack(&changing_ops);
    iso_container_of(s.own, between, base)->other = s.c;
    for (int i = 0; i < 3; i++) {
        run_forward(&s);
        check_current(s.c, "in a forward");
    }
    destroy_stack(&s);
}

// ---- Hooks ----------------------------------------------------------------------------------------

typedef struct watch {
    bool current;
    int calls;
} watch;

static iso_status change_before(iso_module *module, iso_tensor *in, void *user) {
    watch *w = user;
    (void)in;
    if (!w->current) change_weight(module, 10 + w->calls++);
    return ISO_OK;
}

static bool is_current(const iso_module *module, void *user) {
    (void)module;
    return ((watch *)user)->current;
}

// With an answer, and without.
Test(autocast_rounding, a_hook_may_change_parameters) {
    stack s = new_stack(&keeping_ops);
    for (int i = 0; i < 8; i++) {
        watch w = {.current = i % 4 == 3, .calls = 4 * i};
        iso_module_hooks hooks = {
            .before_forward = change_before, .is_current = i < 4 ? NULL : is_current, .user = &w};
        int handle;
        OK(iso_module_add_hooks(s.c, &hooks, &handle));
        run_forward(&s);
        check_current(s.a, "beside a hook");
        check_current(s.c, "by a hook");
        OK(iso_module_remove_hooks(s.c, handle));
    }
    destroy_stack(&s);
}

// ---- A container that leaves a layer out ----------------------------------------------------------

static bool calls_second;

static iso_status call_some(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    ISO_TRY(iso_module_call(self->child[0], ISO_ACT_NONE, in, out));
    return calls_second ? iso_module_call(self->child[1], ISO_ACT_NONE, *out, out) : ISO_OK;
}

static const iso_module_ops some_ops = {
    .type = "Some", .forward = call_some, .takes_half = true, .keeps_parameters = true};

Test(autocast_rounding, what_no_layer_took_is_dropped) {
    iso_device *device = open_any();
    iso_module *layer[2], *some = calloc(1, sizeof(*some)), *net;
    iso_tensor *out, *x = new_batch(device, ISO_F32), *low = new_batch(device, ISO_BF16);
    OK(iso_module_init(some, &some_ops, device));
    for (int i = 0; i < 2; i++) {
        layer[i] = new_linear(device, WIDTH, WIDTH, 1 + (uint64_t)i);
        OK(iso_module_add_child_take(some, i == 0 ? "a" : "b", layer[i]));
    }
    net = with_autocast(some, ISO_BF16);
    calls_second = true;
    OK(iso_module_forward(net, x, &out));
    calls_second = false;
    OK(iso_module_forward(net, x, &out));
    change_weight(layer[1], 7);
    OK(iso_module_forward(layer[1], low, &out));
    check_current(layer[1], "behind a forward that left it out");
    iso_tensor_destroy(&x), iso_tensor_destroy(&low);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}
