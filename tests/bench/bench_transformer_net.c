// SPDX-License-Identifier: MIT
// A small decoder-only transformer on plain arrays: forward, backward and AdamW in loops.
#include "bench_transformer_net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN, POSITION, FIRST_BLOCK };
// The tensors of a block, in the order in which the forward needs them.
enum { LN1_G, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_G, LN2_B, FC_W, FC_B, OUT_W, OUT_B, EACH };

typedef struct normed {
    float *y, *mean, *scale; // scale: 1 / standard deviation
} normed;

typedef struct block {
    float *x; // its input
    normed ln1, ln2;
    float *qkv, *weights, *mixed; // weights: batch x heads x length x length, after softmax
    float *middle, *fc, *gelu;    // middle: the input of ln2
} block;

struct net {
    net_shape s;
    int rows, tensors; // rows: batch x length
    net_tensor tensor[NET_MOST_TENSORS];
    block *block;
    float *top, *logits; // top: what the last block gives; logits become their gradient
    normed last;
    float *d, *d_wide, *d_part; // gradients of activations
};

// ---- Matrices: x is rows x in, w is in x out --------------------------------------------------------

static void multiply(const float *x, const float *w, const float *bias, float *y, int rows, int in,
                     int out) {
    for (int r = 0; r < rows; r++) {
        float *line = y + (size_t)r * out;
        for (int o = 0; o < out; o++) line[o] = bias ? bias[o] : 0;
        for (int i = 0; i < in; i++) {
            float a = x[(size_t)r * in + i];
            const float *from = w + (size_t)i * out;
#pragma omp simd
            for (int o = 0; o < out; o++) line[o] += a * from[o];
        }
    }
}

// dx = dy times w transposed.
static void multiply_back(const float *dy, const float *w, float *dx, int rows, int in, int out) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < in; i++) {
            const float *a = dy + (size_t)r * out, *b = w + (size_t)i * out;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int o = 0; o < out; o++) sum += a[o] * b[o];
            dx[(size_t)r * in + i] = sum;
        }
}

// dw = x transposed times dy, and the sums of dy.
static void multiply_weights(const float *x, const float *dy, float *dw, float *db, int rows,
                             int in, int out) {
    memset(dw, 0, (size_t)in * out * sizeof(float));
    if (db) memset(db, 0, (size_t)out * sizeof(float));
    for (int r = 0; r < rows; r++) {
        const float *from = dy + (size_t)r * out;
        for (int o = 0; db && o < out; o++) db[o] += from[o];
        for (int i = 0; i < in; i++) {
            float a = x[(size_t)r * in + i], *to = dw + (size_t)i * out;
#pragma omp simd
            for (int o = 0; o < out; o++) to[o] += a * from[o];
        }
    }
}

// Logits are products with the rows of a matrix of vocabulary x width.
static void multiply_rows(const float *x, const float *w, float *y, int rows, int in, int out) {
    multiply_back(x, w, y, rows, out, in);
}

// ---- Layer norm, GELU -------------------------------------------------------------------------------

static void norm_forward(const normed *m, const float *x, const float *g, const float *b, int rows,
                         int width) {
    for (int r = 0; r < rows; r++) {
        const float *from = x + (size_t)r * width;
        float mean = 0, square = 0, *to = m->y + (size_t)r * width;
        for (int i = 0; i < width; i++) mean += from[i] / (float)width;
        for (int i = 0; i < width; i++) square += (from[i] - mean) * (from[i] - mean);
        m->mean[r] = mean;
        m->scale[r] = 1 / sqrtf(square / (float)width + 1e-5f);
        for (int i = 0; i < width; i++) to[i] = (from[i] - mean) * m->scale[r] * g[i] + b[i];
    }
}

// Adds to dx.
static void norm_backward(const normed *m, const float *x, const float *g, const float *dy,
                          float *dx, float *dg, float *db, int rows, int width) {
    memset(dg, 0, (size_t)width * sizeof(float));
    memset(db, 0, (size_t)width * sizeof(float));
    for (int r = 0; r < rows; r++) {
        const float *from = x + (size_t)r * width, *d = dy + (size_t)r * width;
        float sum = 0, dot = 0;
        for (int i = 0; i < width; i++) {
            float hat = (from[i] - m->mean[r]) * m->scale[r];
            dg[i] += d[i] * hat;
            db[i] += d[i];
            sum += d[i] * g[i];
            dot += d[i] * g[i] * hat;
        }
        for (int i = 0; i < width; i++) {
            float hat = (from[i] - m->mean[r]) * m->scale[r];
            dx[(size_t)r * width + i] +=
                (d[i] * g[i] - (sum + hat * dot) / (float)width) * m->scale[r];
        }
    }
}

static const float gelu_scale = 0.7978845608f; // sqrt(2 / pi)

static void gelu_forward(const float *x, float *y, size_t count) {
    for (size_t k = 0; k < count; k++)
        y[k] = 0.5f * x[k] * (1 + tanhf(gelu_scale * (x[k] + 0.044715f * x[k] * x[k] * x[k])));
}

static void gelu_backward(const float *x, float *d, size_t count) {
    for (size_t k = 0; k < count; k++) {
        float t = tanhf(gelu_scale * (x[k] + 0.044715f * x[k] * x[k] * x[k]));
        float inner = gelu_scale * (1 + 3 * 0.044715f * x[k] * x[k]);
        d[k] *= 0.5f * (1 + t) + 0.5f * x[k] * (1 - t * t) * inner;
    }
}

// ---- Attention: one head of one sequence at a time ------------------------------------------------------

typedef struct head {
    const float *q, *k, *v; // rows are 3 * width apart
    float *weights, *out;   // rows are length, width apart
    int length, width, stride;
} head;

static head head_of(const net *n, const block *b, int sequence, int h) {
    int width = n->s.width / n->s.heads, t = n->s.length;
    const float *row = b->qkv + (size_t)sequence * t * 3 * n->s.width + h * width;
    return (head){.q = row,
                  .k = row + n->s.width,
                  .v = row + 2 * n->s.width,
                  .weights = b->weights + (size_t)(sequence * n->s.heads + h) * t * t,
                  .out = b->mixed + (size_t)sequence * t * n->s.width + h * width,
                  .length = t,
                  .width = width,
                  .stride = 3 * n->s.width};
}

static float dot_product(const float *a, const float *b, int count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < count; k++) sum += a[k] * b[k];
    return sum;
}

static void weigh_row(const head *h, int r) {
    float *w = h->weights + (size_t)r * h->length, most = -INFINITY, sum = 0;
    for (int c = 0; c <= r; c++) {
        w[c] = dot_product(h->q + (size_t)r * h->stride, h->k + (size_t)c * h->stride, h->width) /
               sqrtf((float)h->width);
        most = fmaxf(most, w[c]);
    }
    for (int c = 0; c <= r; c++) sum += w[c] = expf(w[c] - most);
    for (int c = 0; c <= r; c++) w[c] /= sum;
}

static void attend(const net *n, const block *b) {
    for (int k = 0; k < n->s.batch * n->s.heads; k++) {
        head h = head_of(n, b, k / n->s.heads, k % n->s.heads);
        for (int r = 0; r < h.length; r++) {
            float *out = h.out + (size_t)r * n->s.width;
            weigh_row(&h, r);
            memset(out, 0, (size_t)h.width * sizeof(float));
            for (int c = 0; c <= r; c++)
                for (int i = 0; i < h.width; i++)
                    out[i] += h.weights[(size_t)r * h.length + c] * h.v[(size_t)c * h.stride + i];
        }
    }
}

// d_out: the gradient of row r of what the head gave; dq: of h->q, with those of k and v behind it.
static void attend_row_back(const head *h, int r, const float *d_out, float *dq, int apart) {
    const float *w = h->weights + (size_t)r * h->length;
    float dw[1024], sum = 0;
    for (int c = 0; c <= r; c++) {
        dw[c] = dot_product(d_out, h->v + (size_t)c * h->stride, h->width);
        sum += dw[c] * w[c];
    }
    for (int c = 0; c <= r; c++) {
        float d = w[c] * (dw[c] - sum) / sqrtf((float)h->width);
        size_t at_r = (size_t)r * h->stride, at_c = (size_t)c * h->stride;
        for (int i = 0; i < h->width; i++) {
            dq[at_r + i] += d * h->k[at_c + i];
            dq[at_c + apart + i] += d * h->q[at_r + i];
            dq[at_c + 2 * apart + i] += w[c] * d_out[i];
        }
    }
}

static void attend_back(const net *n, const block *b, const float *d_mixed, float *d_qkv) {
    int width = n->s.width;
    memset(d_qkv, 0, (size_t)n->rows * 3 * width * sizeof(float));
    for (int k = 0; k < n->s.batch * n->s.heads; k++) {
        head h = head_of(n, b, k / n->s.heads, k % n->s.heads);
        float *dq = d_qkv + (h.q - b->qkv);
        for (int r = 0; r < h.length; r++)
            attend_row_back(&h, r, d_mixed + (h.out - b->mixed) + (size_t)r * width, dq, width);
    }
}

// ---- Blocks -----------------------------------------------------------------------------------------

typedef struct teller { // to the owner
    net_call call;
    void *user;
} teller;

static const float *value(const net *n, const teller *tell, int i) {
    if (tell) tell->call(tell->user, i);
    return n->tensor[i].value;
}
static float *gradient(const net *n, int i) { return n->tensor[i].gradient; }
static void tell_two(const teller *tell, int i) { // weights and bias, the later one first
    tell->call(tell->user, i + 1);
    tell->call(tell->user, i);
}

static void add_to(float *x, const float *y, size_t count) {
    for (size_t k = 0; k < count; k++) x[k] += y[k];
}

static float *above(const net *n, int l) {
    return l + 1 < n->s.layers ? n->block[l + 1].x : n->top;
}

static void block_forward(net *n, int l, const teller *tell) {
    block *b = &n->block[l];
    int c = n->s.width, rows = n->rows, t = FIRST_BLOCK + l * EACH;
    size_t all = (size_t)rows * c;
    const float *gain = value(n, tell, t + LN1_G);
    norm_forward(&b->ln1, b->x, gain, value(n, tell, t + LN1_B), rows, c);
    const float *w = value(n, tell, t + QKV_W);
    multiply(b->ln1.y, w, value(n, tell, t + QKV_B), b->qkv, rows, c, 3 * c);
    attend(n, b);
    w = value(n, tell, t + PROJ_W);
    multiply(b->mixed, w, value(n, tell, t + PROJ_B), b->middle, rows, c, c);
    add_to(b->middle, b->x, all);
    gain = value(n, tell, t + LN2_G);
    norm_forward(&b->ln2, b->middle, gain, value(n, tell, t + LN2_B), rows, c);
    w = value(n, tell, t + FC_W);
    multiply(b->ln2.y, w, value(n, tell, t + FC_B), b->fc, rows, c, 4 * c);
    gelu_forward(b->fc, b->gelu, 4 * all);
    w = value(n, tell, t + OUT_W);
    multiply(b->gelu, w, value(n, tell, t + OUT_B), above(n, l), rows, 4 * c, c);
    add_to(above(n, l), b->middle, all);
}

// n->d: the gradient of what the block gave becomes that of its input.
static void block_backward(net *n, int l, const teller *tell) {
    block *b = &n->block[l];
    int c = n->s.width, rows = n->rows, t = FIRST_BLOCK + l * EACH;
    const net_tensor *p = &n->tensor[t];
    multiply_weights(b->gelu, n->d, p[OUT_W].gradient, p[OUT_B].gradient, rows, 4 * c, c);
    tell_two(tell, t + OUT_W);
    multiply_back(n->d, p[OUT_W].value, n->d_wide, rows, 4 * c, c);
    gelu_backward(b->fc, n->d_wide, (size_t)rows * 4 * c);
    multiply_weights(b->ln2.y, n->d_wide, p[FC_W].gradient, p[FC_B].gradient, rows, c, 4 * c);
    tell_two(tell, t + FC_W);
    multiply_back(n->d_wide, p[FC_W].value, n->d_part, rows, c, 4 * c);
    norm_backward(&b->ln2, b->middle, p[LN2_G].value, n->d_part, n->d, p[LN2_G].gradient,
                  p[LN2_B].gradient, rows, c);
    tell_two(tell, t + LN2_G);
    multiply_weights(b->mixed, n->d, p[PROJ_W].gradient, p[PROJ_B].gradient, rows, c, c);
    tell_two(tell, t + PROJ_W);
    multiply_back(n->d, p[PROJ_W].value, n->d_part, rows, c, c);
    attend_back(n, b, n->d_part, n->d_wide);
    multiply_weights(b->ln1.y, n->d_wide, p[QKV_W].gradient, p[QKV_B].gradient, rows, c, 3 * c);
    tell_two(tell, t + QKV_W);
    multiply_back(n->d_wide, p[QKV_W].value, n->d_part, rows, c, 3 * c);
    norm_backward(&b->ln1, b->x, p[LN1_G].value, n->d_part, n->d, p[LN1_G].gradient,
                  p[LN1_B].gradient, rows, c);
    tell_two(tell, t + LN1_G);
}

// ---- The whole --------------------------------------------------------------------------------------

static const int *sequence_of(const net *n, const int *tokens, int row) { // at the row's token
    return tokens + row / n->s.length * (n->s.length + 1) + row % n->s.length;
}

static void embed(net *n, const int *tokens, const teller *tell) {
    int c = n->s.width;
    const float *token = value(n, tell, TOKEN), *position = value(n, tell, POSITION);
    for (int r = 0; r < n->rows; r++)
        for (int i = 0; i < c; i++)
            n->block[0].x[(size_t)r * c + i] = token[(size_t)*sequence_of(n, tokens, r) * c + i] +
                                               position[(size_t)(r % n->s.length) * c + i];
}

static void embed_back(net *n, const int *tokens, const teller *tell) {
    int c = n->s.width;
    float *token = gradient(n, TOKEN), *position = gradient(n, POSITION);
    memset(position, 0, n->tensor[POSITION].count * sizeof(float));
    if (!n->s.tied) memset(token, 0, n->tensor[TOKEN].count * sizeof(float));
    for (int r = 0; r < n->rows; r++) {
        add_to(token + (size_t)*sequence_of(n, tokens, r) * c, n->d + (size_t)r * c, (size_t)c);
        add_to(position + (size_t)(r % n->s.length) * c, n->d + (size_t)r * c, (size_t)c);
    }
    tell_two(tell, TOKEN);
}

static int head_tensor(const net *n) { return n->s.tied ? TOKEN : n->tensors - 1; }
static int last_norm(const net *n) { return FIRST_BLOCK + n->s.layers * EACH; }

double net_forward(net *n, const int *tokens, net_call needed, void *user) {
    teller tell = {needed, user};
    int c = n->s.width, v = n->s.vocabulary, last = last_norm(n);
    double loss = 0;
    embed(n, tokens, &tell);
    for (int l = 0; l < n->s.layers; l++) block_forward(n, l, &tell);
    const float *gain = value(n, &tell, last);
    norm_forward(&n->last, n->top, gain, value(n, &tell, last + 1), n->rows, c);
    const float *w = value(n, n->s.tied ? NULL : &tell, head_tensor(n));
    multiply_rows(n->last.y, w, n->logits, n->rows, c, v);
    for (int r = 0; r < n->rows; r++) {
        float *x = n->logits + (size_t)r * v, most = x[0], sum = 0;
        int next = sequence_of(n, tokens, r)[1];
        for (int k = 1; k < v; k++) most = fmaxf(most, x[k]);
        for (int k = 0; k < v; k++) sum += x[k] = expf(x[k] - most);
        for (int k = 0; k < v; k++) x[k] /= sum;
        loss -= log(1e-30 + (double)x[next]) / n->rows;
        x[next] -= 1;
        for (int k = 0; k < v; k++) x[k] /= (float)n->rows;
    }
    return loss;
}

void net_backward(net *n, const int *tokens, net_call ready, void *user) {
    teller tell = {ready, user};
    int c = n->s.width, v = n->s.vocabulary, last = last_norm(n), top = head_tensor(n);
    multiply_weights(n->logits, n->last.y, gradient(n, top), NULL, n->rows, v, c);
    if (!n->s.tied) ready(user, top); // otherwise the embedding adds to it
    multiply(n->logits, n->tensor[top].value, NULL, n->d_part, n->rows, v, c);
    memset(n->d, 0, (size_t)n->rows * c * sizeof(float));
    norm_backward(&n->last, n->top, n->tensor[last].value, n->d_part, n->d, gradient(n, last),
                  gradient(n, last + 1), n->rows, c);
    tell_two(&tell, last);
    for (int l = n->s.layers - 1; l >= 0; l--) block_backward(n, l, &tell);
    embed_back(n, tokens, &tell);
}

void net_adamw(net *n, int i, const float *g, double scale, double rate, int step) {
    net_tensor *t = &n->tensor[i];
    float a = (float)scale, lr = (float)rate;
    float first = 1 - powf(0.9f, (float)step), second = 1 - powf(0.999f, (float)step);
    for (size_t k = 0; k < t->count; k++) {
        float d = a * g[k];
        t->moment[k] += 0.1f * (d - t->moment[k]);
        t->square[k] += 0.001f * (d * d - t->square[k]);
        t->value[k] -= lr * (t->moment[k] / first / (sqrtf(t->square[k] / second) + 1e-8f) +
                             0.01f * t->value[k]);
    }
}

// ---- Life -------------------------------------------------------------------------------------------

static float *new_floats(size_t count) {
    float *x = calloc(count, sizeof(float));
    if (!x) abort();
    return x;
}

static float draw(unsigned *seed) { // in [-1, 1)
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

// spread 0: the constant.
static void add_tensor(net *n, int layer, const char *name, size_t count, float spread,
                       float constant, unsigned *seed) {
    net_tensor *t = &n->tensor[n->tensors++];
    *t = (net_tensor){.count = count, .layer = layer};
    if (layer > 0 && layer <= n->s.layers)
        snprintf(t->name, sizeof(t->name), "h%d.%s", layer - 1, name);
    else
        snprintf(t->name, sizeof(t->name), "%s", name);
    t->value = new_floats(count);
    t->moment = new_floats(count);
    t->square = new_floats(count);
    for (size_t k = 0; k < count; k++) t->value[k] = constant + spread * draw(seed);
}

static void add_tensors(net *n, unsigned seed) {
    static const char *const name[EACH] = {"ln1.gain",    "ln1.bias",  "qkv.weight", "qkv.bias",
                                           "proj.weight", "proj.bias", "ln2.gain",   "ln2.bias",
                                           "fc.weight",   "fc.bias",   "out.weight", "out.bias"};
    size_t c = (size_t)n->s.width;
    const size_t count[EACH] = {c, c, 3 * c * c, 3 * c, c * c,     c,
                                c, c, 4 * c * c, 4 * c, 4 * c * c, c};
    int top = n->s.layers + 1;
    add_tensor(n, 0, "token", (size_t)n->s.vocabulary * c, 0.05f, 0, &seed);
    add_tensor(n, 0, "position", (size_t)n->s.length * c, 0.05f, 0, &seed);
    for (int l = 1; l <= n->s.layers; l++)
        for (int k = 0; k < EACH; k++)
            add_tensor(n, l, name[k], count[k], count[k] >= c * c ? 0.05f : 0,
                       k == LN1_G || k == LN2_G ? 1 : 0, &seed);
    add_tensor(n, top, "last.gain", c, 0, 1, &seed);
    add_tensor(n, top, "last.bias", c, 0, 0, &seed);
    if (!n->s.tied) add_tensor(n, top, "head", (size_t)n->s.vocabulary * c, 0.05f, 0, &seed);
}

static normed new_norm(size_t rows, size_t c) {
    return (normed){new_floats(rows * c), new_floats(rows), new_floats(rows)};
}

static void add_block(block *b, const net_shape *s) {
    size_t rows = (size_t)s->batch * (size_t)s->length, c = (size_t)s->width;
    *b = (block){.x = new_floats(rows * c),
                 .ln1 = new_norm(rows, c),
                 .ln2 = new_norm(rows, c),
                 .qkv = new_floats(rows * 3 * c),
                 .weights = new_floats(rows * (size_t)(s->heads * s->length)),
                 .mixed = new_floats(rows * c),
                 .middle = new_floats(rows * c),
                 .fc = new_floats(rows * 4 * c),
                 .gelu = new_floats(rows * 4 * c)};
}

net *net_create(const net_shape *shape, unsigned seed) {
    net *n = calloc(1, sizeof(*n));
    if (!n) abort();
    n->s = *shape;
    n->rows = shape->batch * shape->length;
    size_t rows = (size_t)n->rows, c = (size_t)shape->width;
    add_tensors(n, seed);
    n->block = calloc((size_t)shape->layers, sizeof(*n->block));
    for (int l = 0; l < shape->layers; l++) add_block(&n->block[l], shape);
    n->top = new_floats(rows * c);
    n->logits = new_floats(rows * (size_t)shape->vocabulary);
    n->last = new_norm(rows, c);
    n->d = new_floats(rows * c);
    n->d_part = new_floats(rows * c);
    n->d_wide = new_floats(rows * 4 * c);
    return n;
}

static void free_norm(normed *m) {
    free(m->y);
    free(m->mean);
    free(m->scale);
}

static void free_block(block *b) {
    float *all[] = {b->x, b->qkv, b->weights, b->mixed, b->middle, b->fc, b->gelu};
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) free(all[k]);
    free_norm(&b->ln1);
    free_norm(&b->ln2);
}

void net_destroy(net *n) {
    float *all[] = {n->top, n->logits, n->d, n->d_part, n->d_wide};
    for (int i = 0; i < n->tensors; i++) {
        free(n->tensor[i].value);
        free(n->tensor[i].moment);
        free(n->tensor[i].square);
    }
    for (int l = 0; l < n->s.layers; l++) free_block(&n->block[l]);
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) free(all[k]);
    free_norm(&n->last);
    free(n->block);
    free(n);
}

int net_tensors(const net *n) { return n->tensors; }
net_tensor *net_tensor_of(net *n, int i) { return &n->tensor[i]; }
