// SPDX-License-Identifier: MIT
// Trains a hand-written network on plain arrays with the gradient engine alone: no Isotherm layers.
//
// clang-format off
// What a program with an all-reduce after backward does      what this one does instead
//   for each array: MPI_Allreduce(gradient), divide            iso_reducer_grad_ready, in backward
//   update each array                                          in update(), called by the engine
//                                                              iso_reducer_step, after backward
//                                                              iso_reducer_param_needed, in forward
//
// Compile it, once Isotherm is installed, and run it:
//   mpicc own_arrays.c $(pkg-config --cflags --libs isotherm)
//   mpirun -n 2 ./a.out
// clang-format on
#include <isotherm/reducer.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, WIDTH = 48, ROWS = 64, STEPS = 3000 }; // ROWS: of each rank in a step

typedef struct layer {
    int in, out;
    float weight[WIDTH * WIDTH], bias[WIDTH];
    float *d_weight, *d_bias;                // in the engine's buffer, which is what travels
    float x[ROWS * WIDTH], dx[ROWS * WIDTH]; // input, and the gradient of it
} layer;

static layer net[LAYERS] = {
    {.in = 2, .out = WIDTH}, {.in = WIDTH, .out = WIDTH}, {.in = WIDTH, .out = 1}};
static float output[ROWS], d_output[ROWS];

static void check(iso_status status) {
    if (status >= 0) return;
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

// ---- The network ----------------------------------------------------------------------------------

static float draw(unsigned *seed) { // in [-1, 1)
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

static void forward(layer *l, float *y, bool last) {
    for (int n = 0; n < ROWS; n++)
        for (int o = 0; o < l->out; o++) {
            float sum = l->bias[o];
            for (int i = 0; i < l->in; i++) sum += l->weight[o * l->in + i] * l->x[n * l->in + i];
            y[n * l->out + o] = last ? sum : tanhf(sum);
        }
}

// dy: gradient of the output before tanh. Gradients are written anew in each backward.
static void backward_weights(layer *l, const float *dy) {
    for (int k = 0; k < l->out * l->in; k++) l->d_weight[k] = 0;
    for (int o = 0; o < l->out; o++) l->d_bias[o] = 0;
    for (int n = 0; n < ROWS; n++)
        for (int o = 0; o < l->out; o++) {
            float g = dy[n * l->out + o];
            l->d_bias[o] += g;
            for (int i = 0; i < l->in; i++) l->d_weight[o * l->in + i] += g * l->x[n * l->in + i];
        }
}

// The input is tanh of the layer before, whose derivative is 1 - x^2.
static void backward_input(layer *l, const float *dy) {
    for (int n = 0; n < ROWS; n++)
        for (int i = 0; i < l->in; i++) {
            float sum = 0, x = l->x[n * l->in + i];
            for (int o = 0; o < l->out; o++) sum += dy[n * l->out + o] * l->weight[o * l->in + i];
            l->dx[n * l->in + i] = sum * (1 - x * x);
        }
}

// Points of two spirals, into the first input; logistic loss and its gradient.
static void next_points(unsigned *seed, float *label) {
    for (int n = 0; n < ROWS; n++) {
        float t = fabsf(draw(seed)), turn = 9 * sqrtf(t) + (n % 2 ? 3.14159265f : 0);
        label[n] = (float)(n % 2);
        net[0].x[2 * n] = sqrtf(t) * cosf(turn) + 0.02f * draw(seed);
        net[0].x[2 * n + 1] = sqrtf(t) * sinf(turn) + 0.02f * draw(seed);
    }
}

static double loss(const float *label) {
    double sum = 0;
    for (int n = 0; n < ROWS; n++) {
        float p = 1 / (1 + expf(-output[n]));
        sum -= log(1e-12 + (double)(label[n] > 0 ? p : 1 - p));
        d_output[n] = (p - label[n]) / ROWS;
    }
    return sum / ROWS;
}

// ---- What the engine needs ------------------------------------------------------------------------

// Parameters in the order in which forward needs them: weight and bias of the first layer, ...
static float *value_of(int i) { return i % 2 ? net[i / 2].bias : net[i / 2].weight; }
static size_t count_of(int i) { return (size_t)(net[i / 2].out * (i % 2 ? 1 : net[i / 2].in)); }

static iso_status update(int i, void *gradient, double scale, const void *lr, void *user) {
    (void)user;
    const float *g = gradient;
    float *value = value_of(i), factor = (float)(*(const double *)lr * scale);
    for (size_t k = 0; k < count_of(i); k++) value[k] -= factor * g[k];
    return ISO_OK;
}

static iso_reducer *make_reducer(iso_comm *comm) {
    static const char *const name[] = {"l1.weight", "l1.bias",   "l2.weight",
                                       "l2.bias",   "l3.weight", "l3.bias"};
    iso_reducer_param list[2 * LAYERS];
    iso_reducer *reducer;
    unsigned seed = 1;
    for (int i = 0; i < 2 * LAYERS; i++) {
        list[i] = (iso_reducer_param){name[i], value_of(i), count_of(i), ISO_F32, .layer = i / 2};
        for (size_t k = 0; k < count_of(i); k++)
            value_of(i)[k] = draw(&seed) * sqrtf(3 / (float)net[i / 2].in);
    }
    check(iso_reducer_create(comm, list, 2 * LAYERS, &(iso_reducer_config){0}, &reducer));
    for (int l = 0; l < LAYERS; l++) {
        net[l].d_weight = iso_reducer_grad(reducer, 2 * l);
        net[l].d_bias = iso_reducer_grad(reducer, 2 * l + 1);
    }
    check(iso_reducer_set_apply(reducer, update, sizeof(double), NULL));
    return reducer;
}

static double step(iso_reducer *reducer, unsigned *seed, double lr) {
    float label[ROWS];
    next_points(seed, label);
    for (int l = 0; l < LAYERS; l++) {
        check(iso_reducer_param_needed(reducer, 2 * l)); // waits for its gradient and updates it
        check(iso_reducer_param_needed(reducer, 2 * l + 1));
        forward(&net[l], l + 1 < LAYERS ? net[l + 1].x : output, l + 1 == LAYERS);
    }
    double value = loss(label);
    for (int l = LAYERS - 1; l >= 0; l--) {
        const float *dy = l + 1 < LAYERS ? net[l + 1].dx : d_output;
        backward_weights(&net[l], dy);
        check(iso_reducer_grad_ready(reducer, 2 * l + 1)); // leaves while the rest computes
        check(iso_reducer_grad_ready(reducer, 2 * l));
        if (l > 0) backward_input(&net[l], dy);
    }
    check(iso_reducer_step(reducer, &lr));
    return value;
}

// There are no options to give.
static int print_usage(const char *argument) {
    bool help = strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        fputs("usage: mpirun -n RANKS own-arrays\n"
              "Trains a hand-written network to tell the points of two spirals apart.\n",
              help ? stdout : stderr);
    MPI_Finalize();
    return help ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    int provided;
    iso_comm *comm;
    double sum = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (argc > 1) return print_usage(argv[1]);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_reducer *reducer = make_reducer(comm);
    unsigned seed = 1000u + (unsigned)iso_comm_rank(comm);
    for (int s = 1; s <= STEPS; s++) {
        sum += step(reducer, &seed, 0.5 * (1 - (double)(s - 1) / STEPS));
        if (s % 500 != 0) continue;
        check(iso_comm_allreduce_f64(comm, &sum, 1, ISO_SUM));
        if (iso_comm_rank(comm) == 0)
            printf("step %d: loss %.4f\n", s, sum / 500 / iso_comm_size(comm));
        sum = 0;
    }
    check(iso_reducer_finish(reducer)); // all parameters are current
    iso_reducer_destroy(&reducer);
    check(iso_comm_barrier(comm)); // names a rank that does not come; MPI_Finalize could not
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
