// SPDX-License-Identifier: MIT
// Modules of several inputs and outputs: numbers of tensors, gradients that are missing or not
// wanted, indices, shared modules, hooks, and steps without allocations.
#include "common/nn_fixture.h"
#include "tensor/tensor_impl.h"

#include <string.h>

TestSuite(tuples, .timeout = 60);

static iso_device *device;
static iso_rng rng;

// ---- Models -------------------------------------------------------------------------------------

static iso_module *made;
static iso_module *take_made(iso_status status) {
    cr_ok(status);
    return made;
}
#define MADE(create) take_made(create)

static iso_module *new_linear(int64_t in, int64_t out) {
    return MADE(iso_linear_create(device, in, out, true, &rng, &made));
}
static iso_module *new_split(int64_t a, int64_t b) {
    return MADE(iso_split_create(device, 1, 2, (int64_t[]){a, b}, &made));
}

// Branches "left" and "right", which it takes.
static iso_module *new_branches(iso_module *left, iso_module *right) {
    iso_module *branches = MADE(iso_branches_create(device, &made));
    cr_ok(iso_branches_add_take(branches, "left", left));
    cr_ok(iso_branches_add_take(branches, "right", right));
    return branches;
}

// Linear 3-4 and linear 5-4 of two inputs, and bilinear 4 x 4 - 2.
static iso_module *two_towers(void) {
    iso_module *net = MADE(iso_sequential_create(device, &made));
    cr_ok(iso_sequential_add_take(net, "towers", new_branches(new_linear(3, 4), new_linear(5, 4))));
    cr_ok(iso_sequential_add_take(net, "join",
                                  MADE(iso_bilinear_create(device, 4, 4, 2, true, &rng, &made))));
    return net;
}

static iso_tensor *rows(int64_t n, int64_t width, uint64_t seed) {
    return random_tensor(device, 2, (int64_t[]){n, width}, seed);
}
static iso_tensors pair(iso_tensor *a, iso_tensor *b) {
    return (iso_tensors){.count = 2, .item = {a, b}};
}
static iso_tensors one(iso_tensor *a) { return (iso_tensors){.count = 1, .item = {a}}; }
static void drop(iso_tensors *tuple) {
    for (int i = 0; i < tuple->count; i++) iso_tensor_destroy(&tuple->item[i]);
}

static void start(void) {
    device = open_cpu();
    rng = (iso_rng){.seed = 3};
}

// A copy, to be kept.
static iso_tensor *copy_of(iso_tensor *x) {
    iso_tensor *copy = random_tensor_of(device, x->dtype, x->ndim, x->shape, 0);
    cr_ok(iso_tensor_copy(x, copy));
    return copy;
}

// ---- Numbers of tensors -------------------------------------------------------------------------

#define FORWARD_FAILS(module, in, text)                                                            \
    cr_fails(iso_module_forward_many(module, &(in), &(iso_tensors){.count = 0}), ISO_ERR_ARG, text)

Test(tuples, another_number_names_the_module_and_both_numbers) {
    start();
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 5, 2)), nine = {.count = 9}, none = {.count = 0};
    iso_module *net = two_towers(), *linear = new_linear(3, 4), *split = new_split(1, 2);
    FORWARD_FAILS(linear, in, "Linear takes 1 tensor but got 2");
    FORWARD_FAILS(net->child[1], none, "Bilinear \"join\" takes 2 tensors but got 0");
    iso_tensors single = one(in.item[0]);
    FORWARD_FAILS(net, single,
                  "Branches \"towers\" takes 2 tensors, one for each branch, but got 1");
    FORWARD_FAILS(net, nine, "Sequential takes 1 to 8 tensors but got 9");
    FORWARD_FAILS(split, in, "Split takes 1 tensor but got 2");
    iso_tensor *out;
    cr_fails(iso_module_forward(split, in.item[0], &out), ISO_ERR_ARG,
             "Split gave 2 tensors where 1 is expected: see iso_module_forward_many");
    cr_fails(iso_module_backward(split, in.item[0], NULL), ISO_ERR_STATE, "without a forward");
    drop(&in);
    iso_module_destroy(&net);
    iso_module_destroy(&linear);
    iso_module_destroy(&split);
    close_cpu(&device);
}

Test(tuples, a_child_that_gets_too_many_is_named_with_who_gave_them) {
    start();
    iso_module *net = MADE(iso_sequential_create(device, &made));
    iso_tensor *x = rows(4, 3, 1), *out;
    cr_ok(iso_sequential_add_take(net, "cut", new_split(1, 2)));
    cr_ok(iso_sequential_add_take(net, "fc", new_linear(3, 4)));
    cr_fails(iso_module_forward(net, x, &out), ISO_ERR_ARG,
             "Linear \"fc\" takes 1 tensor but got 2 from Split \"cut\"");
    iso_module_destroy(&net);
    net = new_branches(new_split(1, 2), new_linear(3, 4));
    iso_tensors in = pair(x, x);
    FORWARD_FAILS(net, in, "Split \"left\" gave 2 tensors where 1 is expected");
    iso_module_destroy(&net);
    iso_module *body = new_split(1, 2);
    cr_ok(iso_residual_create_take(device, body, NULL, false, &net));
    FORWARD_FAILS(net, in, "Residual takes 1 tensor but got 2");
    cr_fails(iso_module_forward(net, x, &out), ISO_ERR_ARG, "Split gave 2 tensors");
    iso_module_destroy(&net);
    iso_tensor_destroy(&x);
    close_cpu(&device);
}

Test(tuples, gradients_are_counted) {
    start();
    iso_module *net = two_towers(), *split = new_split(1, 2);
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 5, 2)), out, dx;
    iso_tensor *g = rows(4, 2, 3), *alone;
    iso_tensors two = pair(g, g);
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_fails(iso_module_backward(net, g, &alone), ISO_ERR_ARG,
             "Sequential got 2 tensors where the gradient of 1 is wanted");
    cr_ok(iso_module_backward(net, g, NULL)); // none is wanted
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_fails(iso_module_backward_many(net, &two, 0, &dx), ISO_ERR_ARG,
             "Sequential gave 1 tensor but got 2 gradients");
    iso_tensors single = one(in.item[0]);
    iso_module *linear = new_linear(3, 4);
    for (int count = 0; count <= 9; count += 9) {
        two.count = count;
        cr_ok(iso_module_forward_many(linear, &single, &out));
        cr_fails(iso_module_backward_many(linear, &two, 0, &dx), ISO_ERR_ARG,
                 count ? "Linear gave 1 tensor but got 9 gradients"
                       : "Linear gave 1 tensor but got 0 gradients");
    }
    iso_module_destroy(&linear);
    cr_ok(iso_module_forward_many(split, &single, &out));
    cr_fails(iso_module_backward(split, g, NULL), ISO_ERR_ARG,
             "Split gave 2 tensors but got 1 gradient");
    cr_ok(iso_module_forward_many(split, &single, &out));
    two.count = 2; // a layer may change each of them in place
    cr_fails(iso_module_backward_many(split, &two, 0, &dx), ISO_ERR_ARG,
             "Split got one tensor as the gradients of its outputs 0 and 1");
    iso_tensor_destroy(&g);
    drop(&in);
    iso_module_destroy(&net);
    iso_module_destroy(&split);
    close_cpu(&device);
}

Test(tuples, calls_of_one_tensor_and_of_tuples_of_one_agree) {
    start();
    iso_module *net = MADE(iso_sequential_create(device, &made));
    cr_ok(iso_sequential_add_take(net, NULL, new_linear(3, 4)));
    cr_ok(iso_sequential_add_take(net, NULL, MADE(iso_relu_create(device, &made))));
    iso_module *linear = iso_module_retain(net->child[0]);
    iso_tensor *x = rows(4, 3, 1), *g = rows(4, 4, 2), *y, *dx;
    iso_tensors in = one(x), out, dxs;
    for (int i = 0; i < 2; i++) {
        iso_module *m = i ? linear : net;
        iso_tensor *again = copy_of(g);
        cr_ok(iso_module_forward(m, x, &y));
        iso_tensor *kept = copy_of(y);
        cr_ok(iso_module_backward(m, again, &dx));
        iso_tensor *kept_dx = copy_of(dx);
        cr_ok(iso_tensor_copy(g, again));
        cr_ok(iso_module_forward_many(m, &in, &out));
        cr_assert(out.count == 1 && same_values(out.item[0], kept));
        iso_tensors gs = one(again);
        cr_ok(iso_module_backward_many(m, &gs, 1, &dxs));
        cr_assert(dxs.count == 1 && same_values(dxs.item[0], kept_dx));
        iso_tensor_destroy(&again);
        iso_tensor_destroy(&kept);
        iso_tensor_destroy(&kept_dx);
    }
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&g);
    iso_module_destroy(&linear);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- Gradients that are missing or not wanted -----------------------------------------------------

Test(tuples, a_missing_gradient_is_zero) {
    start();
    iso_module *split = new_split(1, 2);
    iso_tensors in = one(rows(4, 3, 1)), out, dx;
    iso_tensor *ones = filled_tensor(device, 2, (int64_t[]){4, 1}, 1);
    iso_tensors g = pair(ones, NULL), none = pair(NULL, NULL);
    for (int round = 0; round < 2; round++) { // the second time its memory holds something else
        cr_ok(iso_module_forward_many(split, &in, &out));
        cr_ok(iso_module_backward_many(split, &g, ISO_WANT_ALL, &dx));
        float *values = tensor_values(dx.item[0]);
        for (int i = 0; i < 12; i++) cr_assert_eq(values[i], i % 3 == 0 ? 1 : 0);
        free(values);
        if (split->call[0]->many->grad_out[1])
            cr_ok(iso_tensor_fill(split->call[0]->many->grad_out[1], 7));
    }
    cr_ok(iso_module_forward_many(split, &in, &out));
    cr_fails(iso_module_backward_many(split, &none, ISO_WANT_ALL, &dx), ISO_ERR_ARG,
             "Split got no gradient");
    iso_tensor_destroy(&ones);
    drop(&in);
    iso_module_destroy(&split);
    close_cpu(&device);
}

Test(tuples, a_wrong_gradient_names_its_output) {
    start();
    iso_module *split = new_split(1, 2), *linear = new_linear(3, 4);
    iso_tensors in = one(rows(4, 3, 1)), out, dx;
    iso_tensors shape = pair(rows(4, 1, 2), rows(4, 3, 3)), type = pair(rows(4, 1, 2), NULL);
    iso_tensor *single;
    type.item[1] = random_tensor_of(device, ISO_F64, 2, (int64_t[]){4, 2}, 3);
    cr_ok(iso_module_forward_many(split, &in, &out));
    cr_fails(iso_module_backward_many(split, &shape, ISO_WANT_ALL, &dx), ISO_ERR_SHAPE,
             "the output 1 of Split has shape [4, 2] but got a gradient of shape [4, 3]");
    cr_ok(iso_module_forward_many(split, &in, &out));
    cr_fails(iso_module_backward_many(split, &type, ISO_WANT_ALL, &dx), ISO_ERR_TYPE,
             "Split expects a gradient of its output 1 of type f32");
    cr_ok(iso_module_forward(linear, in.item[0], &single)); // there is only one to name
    cr_fails(iso_module_backward(linear, in.item[0], NULL), ISO_ERR_SHAPE,
             "the output of Linear has shape [4, 4] but got a gradient of shape [4, 3]");
    drop(&in);
    drop(&shape);
    drop(&type);
    iso_module_destroy(&split);
    iso_module_destroy(&linear);
    close_cpu(&device);
}

Test(tuples, only_wanted_gradients_are_given) {
    start();
    iso_module *net = two_towers();
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 5, 2)), out, all, dx;
    iso_tensor *g = rows(4, 2, 3), *kept[2];
    for (unsigned wanted = 0; wanted < 4; wanted++) {
        iso_tensors given = one(copy_of(g));
        cr_ok(iso_module_forward_many(net, &in, &out));
        cr_ok(iso_module_backward_many(net, &given, ISO_WANT_ALL, &all));
        for (int i = 0; i < 2; i++) kept[i] = copy_of(all.item[i]);
        cr_ok(iso_tensor_copy(g, given.item[0]));
        cr_ok(iso_module_forward_many(net, &in, &out));
        cr_ok(iso_module_backward_many(net, &given, wanted, &dx));
        cr_assert_eq(dx.count, 2);
        for (int i = 0; i < 2; i++) {
            if (wanted >> i & 1)
                cr_assert(same_values(dx.item[i], kept[i]));
            else
                cr_assert_null(dx.item[i]);
            iso_tensor_destroy(&kept[i]);
        }
        drop(&given);
    }
    iso_tensor_destroy(&g);
    drop(&in);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(tuples, indices_pass_and_have_no_gradient) {
    start();
    iso_module *net = MADE(iso_sequential_create(device, &made)), *embedding;
    iso_embedding_config config = {.num_embeddings = 5, .embedding_dim = 3};
    cr_ok(iso_embedding_create(device, &config, &rng, &embedding));
    cr_ok(iso_sequential_add_take(net, "b", new_branches(embedding, new_linear(3, 2))));
    cr_ok(iso_sequential_add_take(net, "c", MADE(iso_concat_create(device, 1, &made))));
    iso_tensors in = pair(NULL, rows(4, 3, 2)), out, dx;
    cr_ok(iso_tensor_create(device, ISO_I64, 1, (int64_t[]){4}, &in.item[0]));
    for (int i = 0; i < 4; i++) ((int64_t *)in.item[0]->data)[i] = i;
    iso_tensors g = one(rows(4, 5, 3));
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_ok(iso_module_backward_many(net, &g, ISO_WANT_ALL, &dx));
    cr_assert(dx.count == 2 && !dx.item[0] && dx.item[1]);
    cr_assert(embedding->parameter[0]->grad_valid);
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_fails(iso_module_backward_many(net, &g, 1, &dx), ISO_ERR_UNSUPPORTED,
             "Embedding \"left\" has no gradient with respect to its input");
    cr_fails(iso_module_forward_many(net->child[1], &in, &out), ISO_ERR_TYPE,
             "Concat \"c\" does not take indices");
    drop(&in);
    drop(&g);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(tuples, types_must_agree_and_modules_change_theirs) {
    start();
    iso_module *concat = MADE(iso_concat_create(device, 1, &made)), *net = two_towers();
    iso_tensors in = pair(rows(4, 3, 1), NULL), out;
    in.item[1] = random_tensor_of(device, ISO_F64, 2, (int64_t[]){4, 5}, 1);
    cr_fails(iso_module_forward_many(concat, &in, &out), ISO_ERR_TYPE,
             "Concat got inputs of f32 and f64");
    cr_fails(iso_module_forward_many(net, &in, &out), ISO_ERR_TYPE,
             "Linear \"right\" is f32 but got f64");
    iso_tensor_destroy(&in.item[0]);
    in.item[0] = random_tensor_of(device, ISO_F64, 2, (int64_t[]){4, 3}, 1);
    cr_ok(iso_module_to(net, ISO_F64));
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_assert_eq(out.item[0]->dtype, ISO_F64);
    drop(&in);
    iso_module_destroy(&net);
    iso_module_destroy(&concat);
    close_cpu(&device);
}

// ---- Calls ----------------------------------------------------------------------------------------

static int ready, before;
static iso_tensor *seen;
static iso_status on_ready(iso_module *module, void *user) {
    (void)module, (void)user;
    ready++;
    return ISO_OK;
}
static iso_status on_forward(iso_module *module, iso_tensor *in, void *user) {
    (void)module, (void)user;
    seen = in;
    before++;
    return ISO_OK;
}

// Siamese towers: the gradients of both calls are summed, and complete once.
Test(tuples, a_module_may_be_in_several_branches) {
    start();
    iso_module *tower = new_linear(3, 4);
    iso_module *net = new_branches(iso_module_retain(tower), tower);
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 3, 2)), out, dx;
    iso_tensors g = pair(rows(4, 4, 3), rows(4, 4, 4));
    iso_module_hooks hooks = {.gradient_ready = on_ready, .before_forward = on_forward};
    cr_ok(iso_module_add_hooks(tower, &hooks, NULL));
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_ok(iso_module_backward_many(net, &g, 0, &dx));
    cr_assert(ready == 1 && before == 2 && seen == in.item[1]);
    float *sum = tensor_values(tower->parameter[1]->grad), *a = NULL, *b = NULL;
    for (int i = 0; i < 2; i++) {
        iso_tensor *alone;
        iso_module_zero_grad(net);
        cr_ok(iso_module_forward(tower, in.item[i], &alone));
        cr_ok(iso_module_backward(tower, g.item[i], NULL));
        *(i ? &b : &a) = tensor_values(tower->parameter[1]->grad);
    }
    for (int k = 0; k < 4; k++) cr_assert_float_eq(sum[k], a[k] + b[k], 1e-6);
    free(sum), free(a), free(b);
    // Frozen, each call still gets its own input's gradient.
    tower->parameter[0]->requires_grad = tower->parameter[1]->requires_grad = false;
    cr_ok(iso_module_forward_many(net, &in, &out));
    cr_ok(iso_module_backward_many(net, &g, 1, &dx));
    cr_assert(dx.item[0] == tower->call[0]->grad_in && tower->call_depth == 0);
    drop(&in);
    drop(&g);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// Two forwards of one module in one pass, as a container makes them, and their backwards.
Test(tuples, calls_are_a_stack) {
    start();
    iso_module *net = two_towers();
    iso_tensors first = pair(rows(4, 3, 1), rows(4, 5, 2)), dx;
    iso_tensors second = pair(rows(2, 3, 3), rows(2, 5, 4)), out[2];
    iso_tensors g[2] = {one(rows(4, 2, 5)), one(rows(2, 2, 6))};
    cr_ok(iso_module_forward_many(net, &first, &out[0]));
    cr_ok(iso_module_call_many(net, ISO_ACT_NONE, &second, &out[1]));
    cr_assert_eq(out[0].item[0]->shape[0], 4); // still there
    cr_ok(iso_module_call_backward_many(net, &g[1], ISO_WANT_ALL, &dx));
    cr_assert_eq(dx.item[1]->shape[0], 2);
    cr_ok(iso_module_call_backward_many(net, &g[0], ISO_WANT_ALL, &dx));
    cr_assert_eq(dx.item[1]->shape[0], 4);
    cr_fails(iso_module_call_backward_many(net, &g[0], ISO_WANT_ALL, &dx), ISO_ERR_STATE,
             "without a forward");
    cr_ok(iso_module_train(net, false));
    cr_ok(iso_module_forward_many(net, &first, &out[0]));
    cr_fails(iso_module_backward_many(net, &g[0], 0, NULL), ISO_ERR_STATE, "evaluation mode");
    drop(&first);
    drop(&second);
    drop(&g[0]);
    drop(&g[1]);
    iso_module_destroy(&net);
    close_cpu(&device);
}

static void run_steps(iso_module *net, const iso_tensors *in, iso_tensor *g, iso_tensor *work) {
    iso_tensors out, dx, given = one(work);
    for (int i = 0; i < 3; i++) {
        if (i != 1) iso_module_zero_grad(net); // and accumulates
        cr_ok(iso_tensor_copy(g, work));
        cr_ok(iso_module_forward_many(net, in, &out));
        cr_ok(iso_module_backward_many(net, &given, ISO_WANT_ALL, &dx));
    }
}

Test(tuples, steps_allocate_nothing_and_repeat_their_bits) {
    start();
    iso_module *net = two_towers();
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 5, 2));
    iso_tensor *g = rows(4, 2, 3), *work = rows(4, 2, 3);
    run_steps(net, &in, g, work);
    iso_tensor *kept = copy_of(net->child[1]->parameter[0]->grad);
    long long allocations[2];
    iso_memory_balance(NULL, NULL, &allocations[0]);
    for (int round = 0; round < 3; round++) run_steps(net, &in, g, work);
    iso_memory_balance(NULL, NULL, &allocations[1]);
    cr_assert_eq(allocations[1], allocations[0]);
    cr_assert(same_values(net->child[1]->parameter[0]->grad, kept));
    iso_tensor_destroy(&kept);
    iso_tensor_destroy(&g);
    iso_tensor_destroy(&work);
    drop(&in);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(tuples, names_are_those_of_the_path) {
    start();
    static const char *const wanted[] = {"towers.left.weight",  "towers.left.bias",
                                         "towers.right.weight", "towers.right.bias",
                                         "join.weight",         "join.bias"};
    iso_module *net = two_towers();
    iso_parameter_list list;
    cr_ok(iso_module_parameters(net, &list));
    cr_assert_eq(list.count, 6);
    for (int i = 0; i < 6; i++) cr_assert_str_eq(list.name[i], wanted[i]);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- Layers of one's own --------------------------------------------------------------------------

typedef enum fault { SAME_GRADIENT, NO_GRADIENT, NO_OUTPUT, WRONG_TYPE } fault;
typedef struct faulty {
    iso_module base;
    fault wrong;
    iso_tensor *other;
} faulty;

// The inputs themselves are the outputs.
static iso_status faulty_forward(iso_module *self, iso_call *call, const iso_tensors *in,
                                 iso_tensors *out) {
    (void)call;
    faulty *f = (faulty *)self;
    *out = *in;
    if (f->wrong == NO_OUTPUT) out->count = 0;
    if (f->wrong == WRONG_TYPE) out->item[1] = f->other;
    return ISO_OK;
}

static iso_status faulty_backward(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                  unsigned wanted, iso_tensors *grad_in) {
    (void)call, (void)wanted;
    grad_in->item[0] = grad_out->item[0];
    if (((faulty *)self)->wrong == SAME_GRADIENT) grad_in->item[1] = grad_out->item[0];
    return ISO_OK;
}

static const iso_module_ops faulty_ops = {.type = "Faulty",
                                          .forward_many = faulty_forward,
                                          .backward_many = faulty_backward,
                                          .inputs = 2};

Test(tuples, what_a_layer_must_not_give_is_refused) {
    static const char *const text[] = {
        "backward of Faulty gave one tensor as the gradient of its inputs 0 and 1",
        "backward of Faulty gave no gradient of its input", "forward of Faulty gave 0 outputs",
        "forward of Faulty gave an output of f64 for an input of f32"};
    start();
    iso_tensors in = pair(rows(4, 3, 1), rows(4, 3, 2)), out, dx;
    for (int wrong = SAME_GRADIENT; wrong <= WRONG_TYPE; wrong++) {
        faulty *f = calloc(1, sizeof(*f));
        iso_module *m = &f->base;
        cr_ok(iso_module_init(m, &faulty_ops, device));
        f->wrong = wrong;
        f->other = random_tensor_of(device, ISO_F64, 1, (int64_t[]){1}, 1);
        iso_tensor *other = f->other;
        iso_status status = iso_module_forward_many(m, &in, &out);
        iso_tensors g = pair(in.item[1], in.item[0]);
        if (wrong <= NO_GRADIENT) {
            cr_ok(status);
            status = iso_module_backward_many(m, &g, ISO_WANT_ALL, &dx);
        }
        cr_assert(status < 0 && strstr(iso_last_error()->message, text[wrong]), "%s",
                  iso_last_error()->message);
        iso_module_destroy(&m);
        iso_tensor_destroy(&other);
    }
    drop(&in);
    close_cpu(&device);
}
