// Every operation of every device and set of kernels against the double-precision oracle.
#include "common/balance.h"
#include "common/oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(device, .timeout = 120, .fini = balance_check);

#define OK(expr)     cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const iso_layout layouts[] = {ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED};

// Runs body on each kernel set of the CPU, and on a GPU where there is one.
static void on_each_device(void (*body)(iso_device *device)) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    iso_device *device;
    int tried = 0;
    for (int i = 0; i < COUNT(sets); i++) {
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) != ISO_OK) continue;
        tried++;
        body(device);
        iso_device_destroy(&device);
    }
    cr_assert(tried >= 2, "a build has the reference kernels and at least one library's");
    if (iso_device_create("cuda", &device) != ISO_OK) return;
    body(device);
    iso_device_destroy(&device);
}

// ---- A tensor and the same values in double precision -------------------------------------------

typedef struct pair {
    iso_tensor *t;
    double *d;
} pair;

static uint32_t next_value;

// Multiples of 1/levels in [-1, 1]; few levels give ties.
static pair pair_create(iso_device *device, int ndim, const int64_t *shape, iso_layout layout,
                        int levels) {
    pair p;
    void *host;
    OK(iso_tensor_create(device, ISO_F32, ndim, shape, &p.t));
    OK(iso_tensor_resize(p.t, ndim, shape, layout));
    int64_t count = iso_tensor_count(p.t);
    p.d = calloc((size_t)count, sizeof(double));
    OK(iso_tensor_map(p.t, ISO_WRITE, &host));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits[4], counter[4] = {next_value++, 0, 0, 0};
        iso__philox(iso__philox_key_make(1, ISO_RNG_TEST, 0), counter, bits);
        float value = roundf((2 * iso__uniform(bits[0]) - 1) * (float)levels) / (float)levels;
        ((float *)host)[i] = value;
        p.d[i] = (double)value;
    }
    OK(iso_tensor_unmap(p.t));
    return p;
}

static pair pair_4d(iso_device *device, int64_t n, int64_t c, int64_t h, int64_t w,
                    iso_layout layout) {
    return pair_create(device, 4, (int64_t[]){n, c, h, w}, layout, 1000);
}
static pair pair_2d(iso_device *device, int64_t n, int64_t k) {
    return pair_create(device, 2, (int64_t[]){n, k}, ISO_LAYOUT_LOGICAL, 1000);
}
static pair pair_1d(iso_device *device, int64_t k) {
    return pair_create(device, 1, &k, ISO_LAYOUT_LOGICAL, 1000);
}

static void zero(pair *p) { memset(p->d, 0, (size_t)iso_tensor_count(p->t) * sizeof(double)); }

static void pair_destroy(pair *p) {
    iso_tensor_destroy(&p->t);
    free(p->d);
}

// Channels that only fill a block are zero: as many numbers differ from zero as in logical order.
static void check_padding(iso_device *device, iso_tensor *t, const float *logical) {
    if (t->layout == ISO_LAYOUT_LOGICAL || !device->ops->host_memory) return;
    size_t bytes = device->ops->storage_bytes(device, t->dtype, t->ndim, t->shape, t->layout);
    int64_t stored = 0, wanted = 0;
    for (size_t i = 0; i < bytes / sizeof(float); i++) stored += ((float *)t->data)[i] != 0;
    for (int64_t i = 0; i < t->count; i++) wanted += logical[i] != 0;
    cr_assert(stored == wanted, "padding of a blocked tensor is not zero");
}

// The tensor holds the pair's doubles, up to `tolerance` of the largest.
static void check_pair(iso_device *device, pair *p, double tolerance, const char *what) {
    void *host;
    OK(iso_tensor_map(p->t, ISO_READ, &host));
    double largest = 1, worst = 0;
    for (int64_t i = 0; i < p->t->count; i++) {
        largest = fmax(largest, fabs(p->d[i]));
        double error = fabs((double)((float *)host)[i] - p->d[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    char shape[128];
    cr_assert(worst <= tolerance * largest, "%s of shape %s on %s is wrong by %g of %g", what,
              iso__shape_text(p->t->ndim, p->t->shape, shape, sizeof(shape)),
              iso_device_describe(device), worst, largest);
    check_padding(device, p->t, host);
    OK(iso_tensor_unmap(p->t));
}

// ---- Convolutions -------------------------------------------------------------------------------

// Winograd's transforms cost about a digit of float's seven.
#define CONV_TOLERANCE 3e-5

static const oracle_conv convs[] = {
    {1, 1, 5, 5, 1, {3, 3}, {1, 1}, {0, 0}},     // smallest
    {2, 1, 28, 28, 32, {3, 3}, {1, 1}, {0, 0}},  // first layer of a CNN
    {3, 32, 12, 12, 64, {3, 3}, {1, 1}, {0, 0}}, // Winograd's case
    {1, 16, 9, 7, 16, {3, 3}, {1, 1}, {1, 1}},   // the same: one row, padded, not square
    {5, 48, 4, 4, 16, {3, 3}, {1, 1}, {1, 1}},   // smaller than its tiles
    {2, 3, 11, 9, 10, {5, 5}, {2, 2}, {2, 2}},   // colour image, 10 of 16 channels
    {2, 7, 8, 8, 13, {3, 3}, {1, 1}, {1, 1}},    // odd channels
    {1, 20, 6, 6, 33, {1, 1}, {1, 1}, {0, 0}},   // 1 x 1
    {4, 16, 14, 14, 48, {3, 3}, {2, 2}, {1, 1}}, // stride
    {2, 6, 7, 9, 16, {2, 3}, {1, 2}, {0, 1}},    // different in height and width
    {1, 4, 8, 8, 9, {3, 3}, {3, 3}, {0, 0}},     // pixels at the end are never read
    {2, 64, 1, 1, 8, {1, 1}, {1, 1}, {0, 0}},    // planes of one pixel
};

static iso_conv2d_config config_of(const oracle_conv *c) {
    iso_conv2d_config config = {.in_channels = c->in, .out_channels = c->out};
    for (int i = 0; i < 2; i++) {
        config.kernel_size[i] = c->kernel[i];
        config.stride[i] = c->stride[i];
        config.padding[i] = c->padding[i];
    }
    return config;
}

typedef struct conv_pairs {
    iso_conv2d_config config;
    pair x, w, b, y;
} conv_pairs;

// combination: bit 0 layout of x, bit 1 layout of y.
static conv_pairs conv_create(iso_device *device, const oracle_conv *c, int combination) {
    int64_t weights[] = {c->out, c->in, c->kernel[0], c->kernel[1]};
    return (conv_pairs){
        .config = config_of(c),
        .x = pair_4d(device, c->rows, c->in, c->height, c->width, layouts[combination & 1]),
        .w = pair_create(device, 4, weights, ISO_LAYOUT_LOGICAL, 1000),
        .b = pair_1d(device, c->out),
        .y = pair_4d(device, c->rows, c->out, oracle_conv_height(c), oracle_conv_width(c),
                     layouts[combination >> 1])};
}

static void conv_destroy(conv_pairs *p) {
    pair_destroy(&p->x);
    pair_destroy(&p->w);
    pair_destroy(&p->b);
    pair_destroy(&p->y);
}

static void on_each_conv(iso_device *device,
                         void (*body)(iso_device *, const oracle_conv *, conv_pairs *)) {
    for (int i = 0; i < COUNT(convs); i++)
        for (int combination = 0; combination < 4; combination++) {
            conv_pairs p = conv_create(device, &convs[i], combination);
            body(device, &convs[i], &p);
            conv_destroy(&p);
        }
}

static void one_conv_forward(iso_device *device, const oracle_conv *c, conv_pairs *p) {
    for (int flags = 0; flags < 4; flags++) {
        bool bias = flags & 1, relu = flags & 2;
        OK(device->kernels[ISO_F32]->conv2d_forward(device, &p->config, p->x.t, p->w.t,
                                                    bias ? p->b.t : NULL,
                                                    relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t));
        oracle_conv2d(c, p->x.d, p->w.d, bias ? p->b.d : NULL, relu, p->y.d);
        check_pair(device, &p->y, CONV_TOLERANCE, "conv2d output");
    }
}
static void conv_forward(iso_device *device) { on_each_conv(device, one_conv_forward); }
Test(device, conv2d_forward_matches_the_oracle) { on_each_device(conv_forward); }

static void one_conv_params(iso_device *device, const oracle_conv *c, conv_pairs *p) {
    for (int flags = 0; flags < 16; flags++) {
        bool add_w = flags & 1, add_b = flags & 2, want_w = !(flags & 4), want_b = !(flags & 8);
        if (want_w && !add_w) zero(&p->w);
        if (want_b && !add_b) zero(&p->b);
        OK(device->kernels[ISO_F32]->conv2d_backward_params(device, &p->config, p->x.t, p->y.t,
                                                            want_w ? p->w.t : NULL, add_w,
                                                            want_b ? p->b.t : NULL, add_b));
        oracle_conv2d_backward(c, p->x.d, p->w.d, p->y.d, want_w ? p->w.d : NULL,
                               want_b ? p->b.d : NULL, NULL);
        check_pair(device, &p->w, CONV_TOLERANCE, "conv2d weight gradient");
        check_pair(device, &p->b, CONV_TOLERANCE, "conv2d bias gradient");
    }
}
static void conv_params(iso_device *device) { on_each_conv(device, one_conv_params); }
Test(device, conv2d_backward_params_match_the_oracle) { on_each_device(conv_params); }

static void one_conv_input(iso_device *device, const oracle_conv *c, conv_pairs *p) {
    zero(&p->x);
    OK(device->kernels[ISO_F32]->conv2d_backward_input(device, &p->config, p->y.t, p->w.t, p->x.t));
    oracle_conv2d_backward(c, NULL, p->w.d, p->y.d, NULL, NULL, p->x.d);
    check_pair(device, &p->x, CONV_TOLERANCE, "conv2d input gradient");
}
static void conv_input(iso_device *device) { on_each_conv(device, one_conv_input); }
Test(device, conv2d_backward_input_matches_the_oracle) { on_each_device(conv_input); }

// ---- Linear -------------------------------------------------------------------------------------

#define LINEAR_TOLERANCE 1e-5
static const int64_t linears[][3] = {{1, 1, 1},     {3, 17, 5},   {7, 33, 16},
                                     {64, 128, 10}, {1, 784, 50}, {8, 2304, 128}};

static void linear_forward(iso_device *device) {
    for (int i = 0; i < COUNT(linears); i++) {
        int64_t rows = linears[i][0], in = linears[i][1], out = linears[i][2];
        pair x = pair_2d(device, rows, in), w = pair_2d(device, out, in), b = pair_1d(device, out);
        pair y = pair_2d(device, rows, out);
        for (int flags = 0; flags < 4; flags++) {
            bool bias = flags & 1, relu = flags & 2;
            OK(device->kernels[ISO_F32]->linear_forward(device, x.t, w.t, bias ? b.t : NULL,
                                                        relu ? ISO_ACT_RELU : ISO_ACT_NONE, y.t));
            oracle_linear(rows, in, out, x.d, w.d, bias ? b.d : NULL, relu, y.d);
            check_pair(device, &y, LINEAR_TOLERANCE, "linear output");
        }
        pair_destroy(&x), pair_destroy(&w), pair_destroy(&b), pair_destroy(&y);
    }
}
Test(device, linear_forward_matches_the_oracle) { on_each_device(linear_forward); }

static void linear_backward(iso_device *device) {
    for (int i = 0; i < COUNT(linears); i++) {
        int64_t rows = linears[i][0], in = linears[i][1], out = linears[i][2];
        pair x = pair_2d(device, rows, in), w = pair_2d(device, out, in),
             dw = pair_2d(device, out, in);
        pair db = pair_1d(device, out), dy = pair_2d(device, rows, out),
             dx = pair_2d(device, rows, in);
        for (int flags = 0; flags < 16; flags++) {
            bool add_w = flags & 1, add_b = flags & 2, want_w = !(flags & 4), want_b = !(flags & 8);
            if (want_w && !add_w) zero(&dw);
            if (want_b && !add_b) zero(&db);
            OK(device->kernels[ISO_F32]->linear_backward_params(
                device, x.t, dy.t, want_w ? dw.t : NULL, add_w, want_b ? db.t : NULL, add_b));
            oracle_linear_backward(rows, in, out, x.d, w.d, dy.d, want_w ? dw.d : NULL,
                                   want_b ? db.d : NULL, NULL);
            check_pair(device, &dw, LINEAR_TOLERANCE, "linear weight gradient");
            check_pair(device, &db, LINEAR_TOLERANCE, "linear bias gradient");
        }
        zero(&dx);
        OK(device->kernels[ISO_F32]->linear_backward_input(device, dy.t, w.t, dx.t));
        oracle_linear_backward(rows, in, out, x.d, w.d, dy.d, NULL, NULL, dx.d);
        check_pair(device, &dx, LINEAR_TOLERANCE, "linear input gradient");
        pair_destroy(&x), pair_destroy(&w), pair_destroy(&dw);
        pair_destroy(&db), pair_destroy(&dy), pair_destroy(&dx);
    }
}
Test(device, linear_backward_matches_the_oracle) { on_each_device(linear_backward); }

// ---- Pooling, relu, dropout ---------------------------------------------------------------------

static void pool_case(iso_device *device, const int64_t shape[4], int64_t window, int64_t stride,
                      iso_layout layout) {
    int64_t out[4] = {shape[0], shape[1], (shape[2] - window) / stride + 1,
                      (shape[3] - window) / stride + 1};
    int64_t planes = shape[0] * shape[1];
    pair x = pair_create(device, 4, shape, layout, 2); // five values: windows full of ties
    pair dx = pair_create(device, 4, shape, layout, 2);
    pair y = pair_create(device, 4, out, layout, 2), dy = pair_create(device, 4, out, layout, 1000);
    int64_t *winner = calloc((size_t)y.t->count, sizeof(int64_t));
    void *workspace;
    OK(device->ops->alloc(device, device->kernels[ISO_F32]->max_pool2d_workspace(device, x.t, y.t),
                          &workspace));
    oracle_max_pool(planes, shape[2], shape[3], window, stride, x.d, y.d, winner);
    OK(device->kernels[ISO_F32]->max_pool2d_forward(device, window, stride, x.t, y.t, NULL));
    check_pair(device, &y, 0, "max pool without a workspace");
    OK(device->kernels[ISO_F32]->max_pool2d_forward(device, window, stride, x.t, y.t, workspace));
    check_pair(device, &y, 0, "max pool");
    zero(&dx);
    for (int64_t i = 0; i < dy.t->count; i++) dx.d[winner[i]] += dy.d[i];
    OK(device->kernels[ISO_F32]->max_pool2d_backward(device, window, stride, dy.t, workspace,
                                                     dx.t));
    check_pair(device, &dx, 1e-6, "max pool input gradient");
    device->ops->free(device, workspace);
    free(winner);
    pair_destroy(&x), pair_destroy(&dx), pair_destroy(&y), pair_destroy(&dy);
}

static void pools(iso_device *device) {
    static const int64_t shapes[][4] = {{2, 16, 8, 8}, {1, 5, 7, 9}, {3, 33, 6, 5}, {1, 1, 4, 4}};
    static const int64_t windows[][2] = {{2, 2}, {3, 2}, {3, 1}, {2, 3}, {1, 1}, {4, 4}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int j = 0; j < COUNT(windows); j++)
            for (int l = 0; l < 2; l++)
                pool_case(device, shapes[i], windows[j][0], windows[j][1], layouts[l]);
}
Test(device, first_maximum_of_a_window_wins) { on_each_device(pools); }

static void pool_of_nan(iso_device *device) {
    for (int l = 0; l < 2; l++)
        for (int at = 0; at < 4; at++) {
            pair x = pair_4d(device, 1, 3, 2, 2, layouts[l]),
                 y = pair_4d(device, 1, 3, 1, 1, layouts[l]);
            void *host;
            OK(iso_tensor_map(x.t, ISO_READ_WRITE, &host));
            ((float *)host)[4 + at] = NAN;
            OK(iso_tensor_unmap(x.t));
            OK(device->kernels[ISO_F32]->max_pool2d_forward(device, 2, 2, x.t, y.t, NULL));
            OK(iso_tensor_map(y.t, ISO_READ, &host));
            const float *out = host;
            cr_assert(!isnan(out[0]) && isnan(out[1]) && !isnan(out[2]));
            OK(iso_tensor_unmap(y.t));
            pair_destroy(&x), pair_destroy(&y);
        }
}
Test(device, pooling_does_not_hide_a_nan) { on_each_device(pool_of_nan); }

static void relu(iso_device *device) {
    for (int l = 0; l < 2; l++) {
        pair x = pair_create(device, 4, (int64_t[]){2, 10, 5, 3}, layouts[l], 3);
        pair y = pair_4d(device, 2, 10, 5, 3, layouts[l]),
             dy = pair_4d(device, 2, 10, 5, 3, layouts[l]);
        OK(device->kernels[ISO_F32]->relu_forward(device, x.t, y.t));
        for (int64_t i = 0; i < x.t->count; i++) y.d[i] = fmax(x.d[i], 0);
        check_pair(device, &y, 0, "relu");
        OK(device->kernels[ISO_F32]->relu_backward(device, y.t, dy.t, dy.t));
        for (int64_t i = 0; i < x.t->count; i++) dy.d[i] = y.d[i] > 0 ? dy.d[i] : 0;
        check_pair(device, &dy, 0, "relu gradient in place");
        pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy);
    }
}
Test(device, relu_matches_the_oracle) { on_each_device(relu); }

static void dropout_case(iso_device *device, const int64_t shape[4], iso_layout layout, double p,
                         bool channels) {
    iso__dropout_draw draw = {.key = iso__philox_key_make(7, ISO_RNG_DROPOUT, 3),
                              .number = 0x500000002u,
                              .first_row = 11,
                              .p = p,
                              .channels = channels};
    pair x = pair_create(device, 4, shape, layout, 1000);
    double *mask = calloc((size_t)x.t->count, sizeof(double));
    oracle_dropout_mask(&draw, shape[0], shape[1], shape[2] * shape[3], mask);
    OK(device->kernels[ISO_F32]->dropout(device, &draw, x.t, x.t));
    for (int64_t i = 0; i < x.t->count; i++) x.d[i] *= mask[i];
    check_pair(device, &x, 1e-6, "dropout in place");
    free(mask);
    pair_destroy(&x);
}

static void dropouts(iso_device *device) {
    static const int64_t shapes[][4] = {{2, 16, 4, 4}, {3, 10, 5, 7}, {1, 1, 1, 1}, {2, 67, 1, 1}};
    static const double chances[] = {0, 0.25, 0.5, 0.9};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int j = 0; j < 16; j++)
            dropout_case(device, shapes[i], layouts[j & 1], chances[j >> 2], (j & 2) != 0);
}
Test(device, dropout_draws_by_logical_index_in_every_layout) { on_each_device(dropouts); }

// ---- Log-softmax and losses ---------------------------------------------------------------------

static void log_softmax(iso_device *device) {
    pair x = pair_2d(device, 9, 11), y = pair_2d(device, 9, 11), dy = pair_2d(device, 9, 11);
    pair dx = pair_2d(device, 9, 11);
    OK(device->kernels[ISO_F32]->log_softmax_forward(device, x.t, y.t));
    oracle_log_softmax(9, 11, x.d, y.d);
    check_pair(device, &y, 1e-6, "log-softmax");
    OK(device->kernels[ISO_F32]->log_softmax_backward(device, y.t, dy.t, dx.t));
    oracle_log_softmax_backward(9, 11, y.d, dy.d, dx.d);
    check_pair(device, &dx, 1e-6, "log-softmax gradient");
    pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy), pair_destroy(&dx);
}
Test(device, log_softmax_matches_the_oracle) { on_each_device(log_softmax); }

static void losses(iso_device *device) {
    int32_t labels[23];
    for (int i = 0; i < 23; i++) labels[i] = (int32_t)((i * 7) % 5);
    for (int kind = 0; kind < 2; kind++) {
        pair x = pair_create(device, 2, (int64_t[]){23, 5}, ISO_LAYOUT_LOGICAL, 2),
             g = pair_2d(device, 23, 5);
        double value;
        int64_t correct, wanted;
        OK(device->kernels[ISO_F32]->loss(device, (iso_loss_kind)kind, x.t, labels, &value,
                                          &correct, g.t));
        double loss = oracle_loss((iso_loss_kind)kind, 23, 5, x.d, labels, &wanted, g.d);
        cr_assert_float_eq(value, loss, 1e-6);
        cr_assert(correct == wanted);
        check_pair(device, &g, 1e-7, "loss gradient");
        pair_destroy(&x), pair_destroy(&g);
    }
}
Test(device, losses_match_the_oracle) { on_each_device(losses); }

// ---- Updates: three steps, so that state counts -------------------------------------------------

static const int64_t update_counts[] = {1, 17, 64, 1003};

static void sgd(iso_device *device) {
    for (int flags = 0; flags < 16; flags++) {
        int64_t count = update_counts[flags % COUNT(update_counts)];
        pair p = pair_1d(device, count), g = pair_1d(device, count), m = pair_1d(device, count);
        iso__sgd_args a = {.lr = 0.1f, .scale = 0.25f};
        a.momentum = flags & 1 ? 0.9f : 0;
        a.nesterov = (flags & 3) == 3;
        a.weight_decay = flags & 4 ? 0.01f : 0;
        a.dampening = (flags & 9) == 9 && !a.nesterov ? 0.3f : 0;
        for (int step = 0; step < 3; step++) {
            a.first = step == 0;
            OK(device->kernels[ISO_F32]->sgd(device, count, &a, g.t->data, p.t->data,
                                             a.momentum != 0 ? m.t->data : NULL));
            for (int64_t i = 0; i < count; i++) oracle_sgd(&a, g.d[i], &p.d[i], &m.d[i]);
        }
        check_pair(device, &p, 1e-6, "sgd parameter");
        check_pair(device, &m, 1e-6, "sgd momentum");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&m);
    }
}
Test(device, sgd_matches_the_oracle) { on_each_device(sgd); }

static void adam(iso_device *device) {
    for (int flags = 0; flags < 8; flags++) {
        int64_t count = update_counts[flags % COUNT(update_counts)];
        pair p = pair_1d(device, count), g = pair_1d(device, count), m = pair_1d(device, count);
        pair v = pair_1d(device, count);
        zero(&m), zero(&v);
        OK(iso_tensor_fill(m.t, 0));
        OK(iso_tensor_fill(v.t, 0));
        iso__adam_args a = {
            .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .scale = 0.5f};
        a.rest1 = 0.1f;
        a.rest2 = 0.001f;
        a.decoupled = flags & 1;
        a.weight_decay = flags & 2 ? 0.1f : 0;
        for (int step = 1; step <= 3; step++) {
            a.correction1 = (float)(1 - pow(0.9, step));
            a.correction2_sqrt = (float)sqrt(1 - pow(0.999, step));
            OK(device->kernels[ISO_F32]->adam(device, count, &a, g.t->data, p.t->data, m.t->data,
                                              v.t->data));
            for (int64_t i = 0; i < count; i++) oracle_adam(&a, g.d[i], &p.d[i], &m.d[i], &v.d[i]);
        }
        check_pair(device, &p, 1e-6, "adam parameter");
        check_pair(device, &m, 1e-6, "adam first moment");
        check_pair(device, &v, 1e-6, "adam second moment");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&m), pair_destroy(&v);
    }
}
Test(device, adam_and_adamw_match_the_oracle) { on_each_device(adam); }

static void adadelta(iso_device *device) {
    for (int flags = 0; flags < 4; flags++) {
        int64_t count = update_counts[flags];
        pair p = pair_1d(device, count), g = pair_1d(device, count), s = pair_1d(device, count);
        pair d = pair_1d(device, count);
        zero(&s), zero(&d);
        OK(iso_tensor_fill(s.t, 0));
        OK(iso_tensor_fill(d.t, 0));
        iso__adadelta_args a = {.lr = 1, .rho = 0.9f, .eps = 1e-6f, .scale = 0.5f};
        a.weight_decay = flags & 1 ? 0.1f : 0;
        for (int step = 0; step < 3; step++) {
            OK(device->kernels[ISO_F32]->adadelta(device, count, &a, g.t->data, p.t->data,
                                                  s.t->data, d.t->data));
            for (int64_t i = 0; i < count; i++)
                oracle_adadelta(&a, g.d[i], &p.d[i], &s.d[i], &d.d[i]);
        }
        check_pair(device, &p, 1e-6, "adadelta parameter");
        pair_destroy(&p), pair_destroy(&g), pair_destroy(&s), pair_destroy(&d);
    }
}
Test(device, adadelta_matches_the_oracle) { on_each_device(adadelta); }
