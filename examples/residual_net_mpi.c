// SPDX-License-Identifier: MIT
// Trains a small residual network on its own arrays with its own AdamW. Each array holds one tensor
// of all layers, as in many such codes. residual_net.c is the serial program and needs no library;
// residual_net_mpi.c is the same with lazy data parallelism (docs/gradient-engine.md), on a number
// of ranks that divides BATCH.
// Compile them, once Isotherm is installed:
//   cc residual_net.c -lm
//   mpicc residual_net_mpi.c -lm $(pkg-config --cflags --libs isotherm)
#include <isotherm/reducer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 4, WIDTH = 32, INPUTS = 2, BATCH = 60, STEPS = 200 };
enum { INPUT = 0, HEAD = DEPTH + 1 }; // the layers before and behind layers 1 to DEPTH

typedef struct net {
    float input[WIDTH][INPUTS];
    float inner[DEPTH][WIDTH][WIDTH], bias[DEPTH][WIDTH];
    float head[WIDTH];
} net;

static net param, grad, moment, square; // values, gradients, AdamW's averages of g and g * g

typedef struct row {
    float x[INPUTS], label;        // a point, and to which of two spirals it belongs
    float h[DEPTH + 1][WIDTH];     // the input of each layer and of the head
    float branch[DEPTH][WIDTH], y; // tanh of each layer; the logit
    float dh[WIDTH], dy;           // the gradients of h and y
} row;

static row batch[BATCH];
static int first = 0, rows = BATCH; // the rows of each batch that this program computes
static iso_reducer *reducer;
#define CHECK(call) ((call) < 0 ? iso_error_print(stderr), MPI_Abort(MPI_COMM_WORLD, 1) : 0)

// ---- Data -----------------------------------------------------------------------------------------

static float draw(unsigned *seed) { // in [0, 1)
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-24f;
}

static void read_batch(int step) {
    for (int n = 0; n < rows; n++) {
        unsigned seed = 2654435761u * (unsigned)(step * BATCH + first + n + 1);
        batch[n].label = draw(&seed) < 0.5f;
        float t = draw(&seed), turn = 9 * t + (batch[n].label > 0 ? 3.14159265f : 0);
        batch[n].x[0] = t * cosf(turn);
        batch[n].x[1] = t * sinf(turn);
    }
}

static void start(void) {
    unsigned seed = 1;
    float *w = (float *)param.inner;
    for (int k = 0; k < DEPTH * WIDTH * WIDTH; k++) w[k] = 0.4f * draw(&seed) - 0.2f;
    for (int o = 0; o < WIDTH; o++) param.head[o] = 0.4f * draw(&seed) - 0.2f;
    for (int o = 0; o < WIDTH; o++)
        for (int i = 0; i < INPUTS; i++) param.input[o][i] = 4 * draw(&seed) - 2;
}

static void print(const char *what, int step, double x) {
    if (first > 0) return; // rank 0 prints
    printf("step %d: %s %.17g\n", step, what, x);
}

// ---- Forward: h = input x, then h = h + tanh(inner h + bias) in each layer, then y = head h -------

static void forward_input(row *r) {
    for (int o = 0; o < WIDTH; o++)
        r->h[0][o] = param.input[o][0] * r->x[0] + param.input[o][1] * r->x[1];
}

static void forward_layer(row *r, int l) {
    for (int o = 0; o < WIDTH; o++) {
        float sum = param.bias[l][o];
        for (int i = 0; i < WIDTH; i++) sum += param.inner[l][o][i] * r->h[l][i];
        r->branch[l][o] = tanhf(sum);
        r->h[l + 1][o] = r->h[l][o] + r->branch[l][o];
    }
}

static void forward_head(row *r) {
    r->y = 0;
    for (int i = 0; i < WIDTH; i++) r->y += param.head[i] * r->h[DEPTH][i];
    r->dy = (1 / (1 + expf(-r->y)) - r->label) / BATCH;
}

static double forward(void) { // the loss
    double loss = 0;
    for (int l = INPUT; l <= HEAD; l++) {
        CHECK(iso_reducer_layer_needed(reducer, l));
        for (int n = 0; n < rows; n++) {
            if (l == INPUT) forward_input(&batch[n]);
            if (l != INPUT && l != HEAD) forward_layer(&batch[n], l - 1);
            if (l == HEAD) forward_head(&batch[n]);
        }
    }
    for (int n = 0; n < rows; n++)
        loss += log1p(exp((double)(batch[n].label > 0 ? -batch[n].y : batch[n].y)));
    return loss / BATCH;
}

// ---- Backward: adds to the gradients, the last layer first ------------------------------------------

static void backward_head(row *r) {
    for (int i = 0; i < WIDTH; i++) {
        grad.head[i] += r->dy * r->h[DEPTH][i];
        r->dh[i] = r->dy * param.head[i];
    }
}

static void backward_layer(row *r, int l) {
    float d[WIDTH];
    for (int o = 0; o < WIDTH; o++) d[o] = r->dh[o] * (1 - r->branch[l][o] * r->branch[l][o]);
    for (int o = 0; o < WIDTH; o++) {
        grad.bias[l][o] += d[o];
        for (int i = 0; i < WIDTH; i++) {
            grad.inner[l][o][i] += d[o] * r->h[l][i];
            r->dh[i] += d[o] * param.inner[l][o][i];
        }
    }
}

static void backward_input(row *r) {
    for (int o = 0; o < WIDTH; o++)
        for (int i = 0; i < INPUTS; i++) grad.input[o][i] += r->dh[o] * r->x[i];
}

static void backward(void) {
    memset(&grad, 0, sizeof(grad));
    for (int l = HEAD; l >= INPUT; l--) {
        for (int n = 0; n < rows; n++) {
            if (l == HEAD) backward_head(&batch[n]);
            if (l != INPUT && l != HEAD) backward_layer(&batch[n], l - 1);
            if (l == INPUT) backward_input(&batch[n]);
        }
        CHECK(iso_reducer_layer_ready(reducer, l));
    }
}

// ---- AdamW ----------------------------------------------------------------------------------------

// Updates `count` parameters from number `at` on, in step t = 1, 2, ...
static void update(size_t at, size_t count, const float *g, int t) {
    float *w = (float *)&param + at, *m = (float *)&moment + at, *v = (float *)&square + at;
    const float lr = 3e-3f, decay = 1e-2f, beta1 = 0.9f, beta2 = 0.999f;
    float correct1 = 1 - powf(beta1, (float)t), correct2 = 1 - powf(beta2, (float)t);
    for (size_t k = 0; k < count; k++) {
        m[k] = beta1 * m[k] + (1 - beta1) * g[k];
        v[k] = beta2 * v[k] + (1 - beta2) * g[k] * g[k];
        float moved = m[k] / correct1 / (sqrtf(v[k] / correct2) + 1e-8f);
        w[k] -= lr * (moved + decay * w[k]);
    }
}

static iso_status update_some(const iso_reducer_update *u) {
    update((size_t)((float *)u->value - (float *)&param), u->count, u->gradient, *(int *)u->hyper);
    return ISO_OK;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : STEPS;
    double loss = 0, sum = 0;
    start();
    const iso_reducer_param list[] = {
        {"input", param.input, WIDTH * INPUTS, .gradient = grad.input, .layer = INPUT},
        {"inner", param.inner, WIDTH * WIDTH, .gradient = grad.inner, .layer = 1, .layers = DEPTH},
        {"bias", param.bias, WIDTH, .gradient = grad.bias, .layer = 1, .layers = DEPTH},
        {"head", param.head, WIDTH, .gradient = grad.head, .layer = HEAD}};
    iso_reducer_config config = {.average = ISO_AVERAGE_SUM};
    if (argc > 2) config.sync = ISO_SYNC_BLOCKING;
    iso_comm *comm;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){0});
    CHECK(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    if (BATCH % iso_comm_size(comm)) CHECK(iso_error_set(ISO_ERR_ARG, "ranks must divide 60"));
    rows = BATCH / iso_comm_size(comm), first = rows * iso_comm_rank(comm);
    CHECK(iso_reducer_create(comm, list, 4, &config, &reducer));
    CHECK(iso_reducer_set_update(reducer, update_some, sizeof(int), NULL));
    for (int t = 1; t <= steps; t++) {
        read_batch(t);
        loss += forward();
        backward();
        CHECK(iso_reducer_step(reducer, &t));
        if (t % 20 > 0) continue;
        CHECK(iso_comm_allreduce_f64(comm, &loss, 1, ISO_SUM));
        print("loss", t, loss / 20);
        loss = 0;
    }
    iso_reducer_destroy(&reducer); // makes the last update
    for (size_t k = 0; k < sizeof(net) / sizeof(float); k++)
        sum += (double)((float *)&param)[k] * (double)((float *)&param)[k] / (double)(k + 1);
    print("checksum", steps, sum);
    iso_comm_destroy(&comm), MPI_Finalize();
    return EXIT_SUCCESS;
}
