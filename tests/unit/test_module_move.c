// SPDX-License-Identifier: MIT
// Moving modules between devices: the same bits, training as where it was made, what moves along,
// what is refused, and moves that fail midway. Every pair of devices; two CPU devices are two.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <isotherm/optim.h>
#include <stdlib.h>
#include <string.h>

TestSuite(module_move, .timeout = 120);

static long left = -1; // so many allocations succeed before one fails; -1: all do

// The library's, in place of libc's.
void *aligned_alloc(size_t alignment, size_t bytes) {
    void *memory = NULL;
    if (left >= 0 && left-- == 0) return NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

// ---- Devices --------------------------------------------------------------------------------------

static const char *const kinds[] = {"cpu", "cuda"};

static bool has_gpu(void) { return iso_device_count("cuda") > 0; }

static void need_gpu(void) {
    if (!has_gpu()) cr_skip_test("there is no GPU");
}

static void check_pair(const char *from, const char *to,
                       void (*body)(iso_device *home, iso_device *away)) {
    iso_device *home, *away;
    long long blocks;
    cr_ok(iso_device_create(from, &home));
    cr_ok(iso_device_create(to, &away));
    body(home, away);
    iso_device_destroy(&home);
    iso_device_destroy(&away);
    iso_memory_balance(&blocks, NULL, NULL);
    cr_assert_eq(blocks, 0, "%s to %s: %lld blocks were not freed", from, to, blocks);
}

static void check_pairs(void (*body)(iso_device *home, iso_device *away)) {
    int count = has_gpu() ? 2 : 1;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) check_pair(kinds[i], kinds[j], body);
}

static iso_status find_elsewhere(iso_module *module, const char *path, void *device) {
    cr_assert(module->device == device, "\"%s\" is on another device", path);
    return ISO_OK;
}

// All modules below and their tensors.
static void expect_on(iso_module *net, iso_device *device) {
    iso_parameter_list list;
    iso_buffer_list buffers;
    cr_ok(iso_module_walk(net, find_elsewhere, device));
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++)
        cr_assert(list.item[i]->value->device == device && list.item[i]->grad->device == device,
                  "%s is on another device", list.name[i]);
    cr_ok(iso_module_buffers(net, &buffers));
    for (int i = 0; i < buffers.count; i++)
        cr_assert(buffers.item[i]->value->device == device, "%s is on another device",
                  buffers.name[i]);
    iso_parameter_list_destroy(&list);
    iso_buffer_list_destroy(&buffers);
}

// ---- Networks -------------------------------------------------------------------------------------

static const iso_layer before[] = {
    {.kind = ISO_CONV2D, .out = 3, .size = 3, .name = "conv"},
    {.kind = ISO_BATCH_NORM, .relu = true, .name = "bn"},
};
static const iso_layer body[] = {{.kind = ISO_CONV2D, .out = 3, .size = 3, .padding = 1}};
static const iso_layer after[] = {
    {.kind = ISO_MAX_POOL2D, .size = 2, .name = "pool"},
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_DROPOUT, .p = 0.3, .name = "drop"},
    {.kind = ISO_LINEAR, .out = 8, .name = "fc1"},
    {.kind = ISO_LAYER_NORM, .name = "ln"},
    {.kind = ISO_TANH, .name = "act"},
    {.kind = ISO_LINEAR, .out = 5, .name = "fc2"},
};

static void append(iso_module *net, const char *name, iso_module *module) {
    cr_ok(iso_sequential_add_take(net, name, module));
}

// Input [4, 2, 6, 6], output [4, 5].
static iso_module *new_net(iso_device *device) {
    iso_rng rng = {.seed = 9};
    iso_module *net, *part;
    iso_buffer *mean;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_sequential_build(device, (int64_t[]){2, 6, 6}, before, 2, &rng, &part));
    append(net, "before", part);
    cr_ok(iso_sequential_build(device, (int64_t[]){3, 4, 4}, body, 1, &rng, &part));
    cr_ok(iso_residual_create_take(device, part, NULL, true, &part));
    append(net, "block", part);
    cr_ok(iso_sequential_build(device, (int64_t[]){3, 4, 4}, after, 7, &rng, &part));
    append(net, "after", part);
    cr_ok(iso_module_get_buffer(net, "before.bn.running_mean", &mean));
    mean->persistent = false;
    return net;
}

static bool same_bits(iso_tensor *a, iso_tensor *b) {
    void *x, *y;
    cr_ok(iso_tensor_map(a, ISO_READ, &x));
    cr_ok(iso_tensor_map(b, ISO_READ, &y));
    bool same = iso__tensor_same_shape(a, b) && a->dtype == b->dtype &&
                memcmp(x, y, iso__tensor_bytes(a)) == 0;
    cr_ok(iso_tensor_unmap(a));
    cr_ok(iso_tensor_unmap(b));
    return same;
}

// Forward and backward. Compares the outputs of both; they may be on different devices.
static void run_step(iso_module *a, iso_module *b, uint64_t seed) {
    iso_module *net[] = {a, b};
    iso_tensor *x[2], *dy[2], *y[2];
    for (int i = 0; i < 2; i++) {
        x[i] = random_tensor(net[i]->device, 4, (int64_t[]){4, 2, 6, 6}, seed);
        dy[i] = random_tensor(net[i]->device, 2, (int64_t[]){4, 5}, seed + 50);
        cr_ok(iso_module_forward(net[i], x[i], &y[i]));
    }
    cr_assert(same_bits(y[0], y[1]));
    for (int i = 0; i < 2; i++) {
        if (net[i]->training) cr_ok(iso_module_backward(net[i], dy[i], NULL));
        iso_tensor_destroy(&x[i]);
        iso_tensor_destroy(&dy[i]);
    }
}

static void expect_same(iso_module *a, iso_module *b) {
    iso_parameter_list p, q;
    iso_buffer_list s, t;
    cr_ok(iso_module_parameters(a, &p));
    cr_ok(iso_module_parameters(b, &q));
    cr_ok(iso_module_buffers(a, &s));
    cr_ok(iso_module_buffers(b, &t));
    cr_assert(p.count == q.count && s.count == t.count);
    for (int i = 0; i < p.count; i++) {
        cr_assert(same_bits(p.item[i]->value, q.item[i]->value), "%s differs", p.name[i]);
        cr_assert_eq(p.item[i]->grad_valid, q.item[i]->grad_valid, "%s", p.name[i]);
        cr_assert(!p.item[i]->grad_valid || same_bits(p.item[i]->grad, q.item[i]->grad),
                  "the gradient of %s differs", p.name[i]);
    }
    for (int i = 0; i < s.count; i++) {
        cr_assert(same_bits(s.item[i]->value, t.item[i]->value), "%s differs", s.name[i]);
        cr_assert_eq(s.item[i]->persistent, t.item[i]->persistent);
    }
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    iso_buffer_list_destroy(&s), iso_buffer_list_destroy(&t);
}

// ---- Values ---------------------------------------------------------------------------------------

static void go_and_come_back(iso_device *home, iso_device *away) {
    iso_module *net = new_net(home), *stays = new_net(home);
    run_step(net, stays, 1); // statistics and gradients
    net->child[0]->child[0]->parameter[0]->grad_valid = false;
    stays->child[0]->child[0]->parameter[0]->grad_valid = false;
    cr_ok(iso_module_to_device(net, away));
    expect_on(net, away);
    expect_same(net, stays);
    cr_ok(iso_module_to_device(net, home));
    expect_on(net, home);
    expect_same(net, stays);
    run_step(net, stays, 2); // adds to the gradients that moved; the masks go on
    expect_same(net, stays);
    iso_module_destroy(&net);
    iso_module_destroy(&stays);
}
Test(module_move, there_and_back_keeps_every_bit) { check_pairs(go_and_come_back); }

static void train_both(iso_device *home, iso_device *away) {
    iso_module *net[] = {new_net(home), new_net(away)};
    iso_optimizer *optimizer[2];
    iso_tensor *x = random_tensor(home, 4, (int64_t[]){7, 2, 6, 6}, 3), *y;
    cr_ok(iso_module_train(net[0], false)); // leaves tensors of the old device in every layer
    cr_ok(iso_module_forward(net[0], x, &y));
    iso_tensor_destroy(&x);
    cr_ok(iso_module_train(net[0], true));
    cr_ok(iso_module_to_device(net[0], away));
    for (int i = 0; i < 2; i++) cr_ok(iso_optimizer_create(ISO_ADAM, net[i], NULL, &optimizer[i]));
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) iso_optimizer_zero_grad(optimizer[i]);
        run_step(net[0], net[1], (uint64_t)step);
        for (int i = 0; i < 2; i++) cr_ok(iso_optimizer_step(optimizer[i]));
        expect_same(net[0], net[1]);
    }
    for (int i = 0; i < 2; i++) {
        iso_optimizer_destroy(&optimizer[i]);
        iso_module_destroy(&net[i]);
    }
}
Test(module_move, trains_as_one_that_was_made_there) { check_pairs(train_both); }

static void forget_home(iso_device *home, iso_device *away) {
    iso_device *old;
    iso_module *net, *made = new_net(away);
    (void)home;
    cr_ok(iso_device_create("cpu", &old));
    net = new_net(old);
    cr_ok(iso_module_to_device(net, away));
    iso_device_destroy(&old);
    run_step(net, made, 1);
    iso_module_destroy(&net);
    iso_module_destroy(&made);
}
Test(module_move, the_old_device_may_be_closed) { check_pairs(forget_home); }

// ---- What moves along -------------------------------------------------------------------------------

static iso_module *new_linear(iso_device *device, int64_t in, int64_t out) {
    iso_rng rng = {.seed = (uint64_t)(in + 10 * out)};
    iso_module *m;
    cr_ok(iso_linear_create(device, in, out, true, &rng, &m));
    return m;
}

static iso_module *new_tied(iso_device *device) {
    iso_module *net;
    cr_ok(iso_sequential_create(device, &net));
    append(net, "a", new_linear(device, 6, 6));
    append(net, "b", new_linear(device, 6, 6));
    append(net, "a again", iso_module_retain(net->child[0]));
    cr_ok(iso_module_tie(net, "b.weight", net, "a.weight"));
    return net;
}

static void move_tied(iso_device *home, iso_device *away) {
    iso_module *net[] = {new_tied(home), new_tied(away)};
    const iso_parameter *p = net[0]->child[0]->parameter[0];
    cr_fails(iso_module_to_device(net[0]->child[0], away), ISO_ERR_STATE, "tied to a parameter");
    expect_on(net[0], home);
    cr_ok(iso_module_to_device(net[0], away));
    expect_on(net[0], away);
    cr_assert(net[0]->child[0]->parameter[0] == p && net[0]->child[1]->parameter[0] == p);
    cr_assert_eq(p->references, 2);
    for (int i = 0; i < 2; i++) {
        iso_tensor *x = random_tensor(away, 2, (int64_t[]){3, 6}, 1), *y;
        iso_tensor *dy = random_tensor(away, 2, (int64_t[]){3, 6}, 2);
        cr_ok(iso_module_forward(net[i], x, &y));
        cr_ok(iso_module_backward(net[i], dy, NULL));
        iso_tensor_destroy(&x);
        iso_tensor_destroy(&dy);
    }
    expect_same(net[0], net[1]);
    for (int i = 0; i < 2; i++) iso_module_destroy(&net[i]);
}
Test(module_move, tied_parameters_stay_tied) { check_pairs(move_tied); }

static iso_status count_call(iso_module *module, iso_tensor *in, void *user) {
    cr_assert(in->device == module->device);
    ++*(int *)user;
    return ISO_OK;
}

static void move_branches(iso_device *home, iso_device *away) {
    iso_module *net, *inner;
    int calls = 0;
    iso_module_hooks hooks = {.before_forward = count_call, .user = &calls};
    iso_tensors in = {.count = 2}, out;
    cr_ok(iso_branches_create(home, &net));
    cr_ok(iso_branches_add_take(net, NULL, new_linear(home, 6, 6)));
    cr_ok(iso_sequential_create(home, &inner));
    append(inner, NULL, new_linear(home, 4, 2));
    cr_ok(iso_branches_add_take(net, NULL, inner));
    cr_ok(iso_module_add_hooks(inner->child[0], &hooks, NULL));
    cr_ok(iso_module_to_device(net, away));
    expect_on(net, away);
    in.item[0] = random_tensor(away, 2, (int64_t[]){3, 6}, 1);
    in.item[1] = random_tensor(away, 2, (int64_t[]){3, 4}, 1);
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_assert_eq(calls, 1);
    cr_assert(out.count == 2 && out.item[1]->device == away);
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&in.item[i]);
    iso_module_destroy(&net);
}
Test(module_move, hooks_stay_and_branches_move) { check_pairs(move_branches); }

static iso_module *new_rounding(iso_device *device, iso_dtype half) {
    iso_module *net;
    cr_ok(iso_sequential_create(device, &net));
    append(net, "a", new_linear(device, 6, 8));
    append(net, "b", new_linear(device, 8, 5));
    cr_ok(iso_autocast_create_take(net, half, &net));
    return net;
}

static void move_rounding_to(iso_device *home, iso_device *away, iso_dtype half) {
    iso_module *net[] = {new_rounding(home, half), new_rounding(away, half)};
    iso_tensor *x = random_tensor(home, 2, (int64_t[]){3, 6}, 1), *y[2];
    for (int i = 0; i < 2; i++) cr_ok(iso_module_forward(net[0], x, &y[0]));
    iso_module *layer = net[0]->child[0]->child[0];
    cr_assert_not_null(iso__linear_rounded(layer)->copy[iso__rounded_index(half)].values.weight);
    cr_ok(iso_module_to_device(net[0], away));
    cr_assert_null(iso__linear_rounded(layer)->copy[iso__rounded_index(half)].values.weight);
    iso_tensor_destroy(&x);
    x = random_tensor(away, 2, (int64_t[]){3, 6}, 2);
    for (int i = 0; i < 2; i++) cr_ok(iso_module_forward(net[i], x, &y[i]));
    cr_assert(same_bits(y[0], y[1]));
    iso_tensor_destroy(&x);
    for (int i = 0; i < 2; i++) iso_module_destroy(&net[i]);
}
static void move_rounding(iso_device *home, iso_device *away) {
    move_rounding_to(home, away, ISO_BF16);
    move_rounding_to(home, away, ISO_F16);
}
Test(module_move, weights_in_16_bits_are_rounded_anew) {
    need_gpu();
    check_pair("cuda", "cuda", move_rounding);
}

// ---- What is refused --------------------------------------------------------------------------------

static void move_owned(iso_device *home, iso_device *away) {
    iso_module *net = new_net(home);
    iso_optimizer *optimizer;
    cr_ok(iso_optimizer_create(ISO_SGD, net, NULL, &optimizer));
    cr_fails(iso_module_to_device(net, away), ISO_ERR_STATE, "given to an optimizer");
    expect_on(net, home);
    cr_ok(iso_module_to_device(net, home)); // it is there
    iso_optimizer_destroy(&optimizer);
    cr_ok(iso_module_to_device(net, away));
    iso_module_destroy(&net);
}
Test(module_move, an_optimizer_keeps_it_where_it_is) { check_pairs(move_owned); }

static void look_for_saved(iso_device *home, iso_device *away) {
    iso_module *net = new_net(home);
    iso_tensor *x = random_tensor(home, 4, (int64_t[]){4, 2, 6, 6}, 1), *y;
    iso_tensor *dy = random_tensor(away, 2, (int64_t[]){4, 5}, 2);
    cr_ok(iso_module_forward(net, x, &y));
    cr_ok(iso_module_to_device(net, away));
    cr_fails(iso_module_backward(net, dy, NULL), ISO_ERR_STATE, "without a forward");
    cr_fails(iso_module_forward(net, x, &y), ISO_ERR_ARG, "its input is on another");
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&net);
}
Test(module_move, what_forward_saved_is_gone) { check_pairs(look_for_saved); }

static iso_status refuse_cpu(const iso_module *self, const iso_device *device) {
    (void)self;
    return iso__check_kernel(device, false, "Picky");
}

typedef struct picky {
    iso_module base;
    int moves;
} picky;

static void count_move(iso_module *self) {
    cr_assert(self->parameter[0]->value->device == self->device);
    iso_container_of(self, picky, base)->moves++;
}

static iso_status hand_through(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}

static void ask_layers(iso_device *home, iso_device *away) {
    iso_module_ops ops = {.type = "Picky", .forward = hand_through, .moved = count_move};
    picky *own = calloc(1, sizeof(*own));
    iso_module *net;
    cr_ok(iso_sequential_create(home, &net));
    append(net, "first", new_linear(home, 6, 6));
    cr_ok(iso_module_init(&own->base, &ops, home));
    cr_ok(iso_module_add_parameter(&own->base, "factor", 0, NULL, NULL));
    append(net, "own", &own->base);
    append(net, "again", iso_module_retain(&own->base));
    ops.runs_on = refuse_cpu;
    cr_fails(iso_module_to_device(net, away), ISO_ERR_UNSUPPORTED, "device has no Picky");
    expect_on(net, home);
    cr_assert_eq(own->moves, 0);
    ops.runs_on = NULL;
    cr_ok(iso_module_to_device(net->child[0], away)); // a part is there already
    cr_ok(iso_module_to_device(net, away));
    expect_on(net, away);
    cr_assert_eq(own->moves, 1);
    iso_module_destroy(&net);
}
Test(module_move, layers_are_asked_and_told) { check_pairs(ask_layers); }

static void add_layer(iso_module *net, int kind) {
    iso_rng rng = {.seed = 1};
    iso_device *device = net->device;
    const iso_embedding_config embedding = {.num_embeddings = 5, .embedding_dim = 4};
    const iso_group_norm_config norm = {.num_groups = 2, .num_channels = 4};
    const iso_attention_config attention = {.embed_dim = 6, .num_heads = 2};
    const iso_conv_transpose2d_config conv = {
        .conv = {.in_channels = 2, .out_channels = 2, .kernel_size = {2, 2}}};
    iso_module *m = NULL;
    switch (kind) {
    case 0: cr_ok(iso_embedding_create(device, &embedding, &rng, &m)); break;
    case 1: cr_ok(iso_group_norm_create(device, &norm, &m)); break;
    case 2: cr_ok(iso_multihead_attention_create(device, &attention, &rng, &m)); break;
    case 3: cr_ok(iso_conv_transpose2d_create(device, &conv, &rng, &m)); break;
    case 4: cr_ok(iso_bilinear_create(device, 2, 2, 2, true, &rng, &m)); break;
    case 5: cr_ok(iso_concat_create(device, 1, &m)); break;
    default: cr_ok(iso_split_create(device, 1, 2, (int64_t[]){1, 1}, &m)); break;
    }
    append(net, "layer", m);
}

static void ask_device(iso_device *home, iso_device *away) {
    static const char *const lacks[] = {"no Embedding",
                                        "no GroupNorm",
                                        "no MultiheadAttention",
                                        "no ConvTranspose2d",
                                        "no Bilinear",
                                        "no Concat",
                                        "no Split"};
    for (int kind = 0; kind < 7; kind++) {
        iso_module *net;
        cr_ok(iso_sequential_create(home, &net));
        append(net, "first", new_linear(home, 6, 6));
        add_layer(net, kind);
        cr_fails(iso_module_to_device(net, away), ISO_ERR_UNSUPPORTED, lacks[kind]);
        expect_on(net, home);
        iso_module_destroy(&net);
    }
}
Test(module_move, layers_that_a_device_lacks_are_refused) {
    need_gpu();
    check_pair("cpu", "cuda", ask_device);
}

// ---- Without memory ---------------------------------------------------------------------------------

// At each allocation in turn.
static void run_short(iso_device *home, iso_device *away) {
    iso_module *net = new_net(home), *stays = new_net(home);
    int fails = 0;
    run_step(net, stays, 1);
    for (bool reached = true; reached; fails += reached) {
        long long blocks, now;
        iso_memory_balance(&blocks, NULL, NULL);
        left = fails;
        iso_status status = iso_module_to_device(net, away);
        reached = left < 0;
        left = -1;
        if (!reached && status == ISO_OK) break;
        cr_assert_eq(status, ISO_ERR_NOMEM, "allocation %d: status %d", fails, (int)status);
        iso_memory_balance(&now, NULL, NULL);
        cr_assert(now <= blocks + 2, "%lld blocks are left", now - blocks); // of the device's pool
        expect_on(net, home);
        expect_same(net, stays);
    }
    cr_assert_gt(fails, 20);
    expect_on(net, away);
    expect_same(net, stays);
    cr_ok(iso_module_to_device(net, home));
    run_step(net, stays, 2);
    iso_module_destroy(&net);
    iso_module_destroy(&stays);
}
Test(module_move, without_memory_it_stays_whole) { check_pairs(run_short); }

__attribute__((weak)) void emulated_fail_next(const char *function, int error);

// Some of the tensors are there when the GPU is full.
Test(module_move, of_more_than_the_gpu_holds_it_stays_whole) {
    iso_device *home, *away;
    iso_module *net, *small;
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU has little memory");
    setenv("ISO_EMULATED_MEMORY_MB", "1", 1);
    cr_ok(iso_device_create("cpu", &home));
    cr_ok(iso_device_create("cuda", &away));
    cr_ok(iso_sequential_create(home, &net));
    for (int i = 0; i < 4; i++) append(net, NULL, new_linear(home, 300, 300));
    iso_tensor *x = random_tensor(home, 2, (int64_t[]){2, 300}, 1), *y;
    cr_ok(iso_module_forward(net, x, &y));
    iso_tensor *kept = iso_tensor_retain(y), *again;
    cr_fails(iso_module_to_device(net, away), ISO_ERR_NOMEM, "no 0.3 MiB left");
    expect_on(net, home);
    cr_ok(iso_tensor_create(home, ISO_F32, 2, (int64_t[]){2, 300}, &again));
    cr_ok(iso_tensor_copy(kept, again));
    cr_ok(iso_module_forward(net, x, &y));
    cr_assert(same_bits(y, again));
    small = new_linear(home, 300, 300);
    cr_ok(iso_module_to_device(small, away)); // what was taken is free again
    expect_on(small, away);
    iso_tensor_destroy(&x), iso_tensor_destroy(&kept), iso_tensor_destroy(&again);
    iso_module_destroy(&net);
    iso_module_destroy(&small);
    iso_device_destroy(&home);
    iso_device_destroy(&away);
}
