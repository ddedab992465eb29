// SPDX-License-Identifier: MIT
// Trains a small residual network on its own arrays with its own AdamW. Each tensor of all layers
// is one array, as in many such codes. residual_net.cpp is the serial program and needs no library;
// residual_net_mpi.cpp is the same with lazy data parallelism (docs/gradient-engine.md), on a number
// of ranks that divides the batch.
// Compile them, once Isotherm is installed:
//   c++ residual_net.cpp
//   mpicxx residual_net_mpi.cpp $(pkg-config --cflags --libs isotherm)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <isotherm/reducer.hpp>
#include <vector>

namespace {

constexpr int depth = 4, width = 32, inputs = 2, batch = 60;
constexpr int input_layer = 0, head_layer = depth + 1; // before and behind layers 1 to depth

// The tensors of all layers, one behind the other.
class net {
public:
    static constexpr int square = width * width, count = width * (inputs + depth * (width + 1) + 1);
    float *data() { return all.data(); }
    float *input() { return data(); }
    float *inner(int layer = 1) { return input() + width * inputs + (layer - 1) * square; }
    float *bias(int layer = 1) { return inner(depth + 1) + (layer - 1) * width; }
    float *head() { return bias(depth + 1); }

private:
    std::vector<float> all = std::vector<float>(count);
};

struct row {
    float x[inputs], label;        // a point, and to which of two spirals it belongs
    float h[depth + 1][width];     // the input of each layer and of the head
    float branch[depth][width], y; // tanh of each layer; the logit
    float dh[width], dy;           // the gradients of h and y
};

net param, grad, moment, square; // values, gradients, AdamW's averages of g and g * g
int first = 0;                   // of the rows of each batch that this program computes
std::vector<row> rows(batch);
iso_reducer *reducer;
void check(iso_status s) { if (s < 0) iso_error_print(stderr), MPI_Abort(MPI_COMM_WORLD, 1); }

// ---- Data ---------------------------------------------------------------------------------------

float draw(std::uint32_t &seed) { // in [0, 1)
    seed = seed * 1664525u + 1013904223u;
    return float(seed >> 8) / 16777216.0f;
}

void start() {
    std::uint32_t seed = 1;
    for (int k = 0; k < depth * net::square; k++) param.inner()[k] = 0.4f * draw(seed) - 0.2f;
    for (int k = 0; k < width; k++) param.head()[k] = 0.4f * draw(seed) - 0.2f;
    for (int k = 0; k < width * inputs; k++) param.input()[k] = 4 * draw(seed) - 2;
}

void read_batch(int t) {
    std::uint32_t n = std::uint32_t(t * batch + first);
    for (row &r : rows) {
        std::uint32_t seed = 2654435761u * ++n;
        r.label = draw(seed) < 0.5f;
        float far = draw(seed), turn = 9 * far + (r.label > 0 ? 3.14159265f : 0);
        r.x[0] = far * std::cos(turn);
        r.x[1] = far * std::sin(turn);
    }
}

void print(const char *what, int step, double x) {
    if (first > 0) return; // rank 0 prints
    std::printf("step %d: %s %.17g\n", step, what, x);
}

// ---- Forward: h = input x, then h = h + tanh(inner h + bias) in each layer, then y = head h -----

void forward_input(row &r) {
    const float *w = param.input();
    for (int o = 0; o < width; o++)
        r.h[0][o] = w[o * inputs] * r.x[0] + w[o * inputs + 1] * r.x[1];
}

void forward_layer(row &r, int l) {
    const float *w = param.inner(l), *x = r.h[l - 1];
    for (int o = 0; o < width; o++) {
        float sum = param.bias(l)[o];
        for (int i = 0; i < width; i++) sum += w[o * width + i] * x[i];
        r.branch[l - 1][o] = std::tanh(sum);
        r.h[l][o] = x[o] + r.branch[l - 1][o];
    }
}

void forward_head(row &r) {
    r.y = 0;
    for (int i = 0; i < width; i++) r.y += param.head()[i] * r.h[depth][i];
    r.dy = (1 / (1 + std::exp(-r.y)) - r.label) / batch;
}

double forward() {
    double loss = 0;
    for (int l = input_layer; l <= head_layer; l++) {
        check(iso_reducer_layer_needed(reducer, l));
        for (row &r : rows) {
            if (l == input_layer) forward_input(r);
            if (l != input_layer && l != head_layer) forward_layer(r, l);
            if (l == head_layer) forward_head(r);
        }
    }
    for (const row &r : rows) loss += std::log1p(std::exp(double(r.label > 0 ? -r.y : r.y)));
    return loss / batch;
}

// ---- Backward: adds to the gradients, the last layer first --------------------------------------

void backward_head(row &r) {
    for (int i = 0; i < width; i++) {
        grad.head()[i] += r.dy * r.h[depth][i];
        r.dh[i] = r.dy * param.head()[i];
    }
}

void backward_layer(row &r, int l) {
    float d[width];
    for (int o = 0; o < width; o++)
        d[o] = r.dh[o] * (1 - r.branch[l - 1][o] * r.branch[l - 1][o]);
    for (int o = 0; o < width; o++) {
        grad.bias(l)[o] += d[o];
        for (int i = 0; i < width; i++) {
            grad.inner(l)[o * width + i] += d[o] * r.h[l - 1][i];
            r.dh[i] += d[o] * param.inner(l)[o * width + i];
        }
    }
}

void backward_input(row &r) {
    for (int o = 0; o < width; o++)
        for (int i = 0; i < inputs; i++) grad.input()[o * inputs + i] += r.dh[o] * r.x[i];
}

void backward() {
    std::fill_n(grad.data(), net::count, 0.0f);
    for (int l = head_layer; l >= input_layer; l--) {
        for (row &r : rows) {
            if (l == head_layer) backward_head(r);
            if (l != input_layer && l != head_layer) backward_layer(r, l);
            if (l == input_layer) backward_input(r);
        }
        check(iso_reducer_layer_ready(reducer, l));
    }
}

// ---- AdamW --------------------------------------------------------------------------------------

// Updates `count` parameters from number `at` on, in step t = 1, 2, ...
void update(std::size_t at, std::size_t count, const float *g, int t) {
    float *w = param.data() + at, *m = moment.data() + at, *v = square.data() + at;
    const float lr = 3e-3f, decay = 1e-2f, beta1 = 0.9f, beta2 = 0.999f;
    float correct1 = 1 - std::pow(beta1, float(t)), correct2 = 1 - std::pow(beta2, float(t));
    for (std::size_t k = 0; k < count; k++) {
        m[k] = beta1 * m[k] + (1 - beta1) * g[k];
        v[k] = beta2 * v[k] + (1 - beta2) * g[k] * g[k];
        w[k] -= lr * (m[k] / correct1 / (std::sqrt(v[k] / correct2) + 1e-8f) + decay * w[k]);
    }
}

double checksum() {
    double sum = 0;
    for (int k = 0; k < net::count; k++)
        sum += double(param.data()[k]) * double(param.data()[k]) / (k + 1);
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    int steps = argc > 1 ? std::atoi(argv[1]) : 200;
    double loss = 0;
    start();
    const iso_reducer_param list[] = {
        iso_param("input", param.input(), width * inputs, input_layer, grad.input()),
        iso_param("inner", param.inner(), net::square, 1, grad.inner(), depth),
        iso_param("bias", param.bias(), width, 1, grad.bias(), depth),
        iso_param("head", param.head(), width, head_layer, grad.head())};
    iso_reducer_config config{};
    config.average = ISO_AVERAGE_SUM;
    config.sync = argc > 2 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
    iso_comm *comm;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &first);
    check(iso_comm_create(MPI_COMM_WORLD, nullptr, &comm));
    if (batch % iso_comm_size(comm)) check(iso_error_set(ISO_ERR_ARG, "ranks must divide 60"));
    rows.resize(batch / iso_comm_size(comm)), first = int(rows.size()) * iso_comm_rank(comm);
    check(iso_reducer_create(comm, list, 4, &config, &reducer));
    check(iso_reducer_set_update(reducer, [](const iso_reducer_update *u) {
        update(static_cast<float *>(u->value) - param.data(), u->count,
               static_cast<float *>(u->gradient), *static_cast<const int *>(u->hyper));
        return ISO_OK;
    }, sizeof(int), nullptr));
    for (int t = 1; t <= steps; t++) {
        read_batch(t);
        loss += forward();
        backward();
        check(iso_reducer_step(reducer, &t));
        if (t % 20 > 0) continue;
        check(iso_comm_allreduce_f64(comm, &loss, 1, ISO_SUM));
        print("loss", t, loss / 20);
        loss = 0;
    }
    iso_reducer_destroy(&reducer); // makes the last update
    print("checksum", steps, checksum());
    iso_comm_destroy(&comm), MPI_Finalize();
    return EXIT_SUCCESS;
}
