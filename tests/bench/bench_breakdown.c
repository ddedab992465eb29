// SPDX-License-Identifier: MIT
// Times every kernel of a training step: puts slots that take the time in place of the device's. Or
// lets the time of a model pass instead of each.
#include "bench_breakdown.h"

#include "bench_peak.h"
#include "bench_util.h"
#include "device/device_impl.h"

#include <isotherm/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Record ---------------------------------------------------------------------------------------

#define MOST_CALLS 1024

typedef struct call {
    const char *operation, *direction;
    char implementation[64];
    const void *object;  // tensor or memory from which the layer is found
    double flops, bytes; // flops 0: what counts is memory
    int64_t *ns;         // of each step
} call;

static struct {
    iso_device *device;
    const iso_device_ops *device_ops;
    const iso_kernel_ops *kernels;
    iso_device_ops probe_device;
    iso_kernel_ops probe_kernels;
    const char *phase;
    call calls[MOST_CALLS];
    int count, at, depth; // calls of a step; the next one; kernels may call kernels
    int step, steps;      // step < 0: not timed
    bench_spend spend;    // in the place of kernels; NULL: they run
} the;

static void fail(const char *why) {
    fprintf(stderr, "error: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int64_t begin(void) {
    if (the.depth++ == 0) the.device->kernel = NULL;
    return iso_now();
}

static void end(const char *operation, const char *direction, const void *object, double flops,
                double bytes, int64_t start) {
    int64_t took = iso_now() - start;
    if (--the.depth > 0 || the.step < 0) return;
    if (the.at == MOST_CALLS) fail("a step has more kernels than --breakdown keeps");
    call *c = &the.calls[the.at++];
    if (the.step == 0) {
        *c = (call){operation, direction ? direction : the.phase, "", object, flops, bytes, NULL};
        bool blas = flops > 0 && strncmp(the.device->description, "CBLAS", 5) == 0;
        snprintf(c->implementation, sizeof(c->implementation), "%s",
                 the.device->kernel ? the.device->kernel
                 : blas             ? "CBLAS"
                                    : "plain C");
        c->ns = calloc((size_t)the.steps, sizeof(*c->ns));
        the.count = the.at;
    }
    if (the.at > the.count || c->operation != operation) fail("steps differ in their kernels");
    c->ns[the.step] = took;
}

// ---- Slots ----------------------------------------------------------------------------------------

static double size_of(const iso_tensor *x) {
    return x ? (double)x->count * (double)iso_dtype_size(x->dtype) : 0;
}
static double gemm_flops(const iso_tensor *rows, const iso_tensor *w) {
    return w ? 2.0 * (double)rows->shape[0] * (double)w->count : 0;
}
// Of the direct algorithm; Winograd's needs fewer.
static double conv_flops(const iso_tensor *y, const iso_tensor *w) {
    return 2.0 * (double)y->count * (double)w->count / (double)w->shape[0];
}

#define ARGS(...) (__VA_ARGS__)
// A slot of the table of kernels that calls the real one and takes its time.
#define PROBE(slot, direction, object, flops, bytes, PARAMS, ARGUMENTS)                            \
    static iso_status probe_##slot PARAMS {                                                        \
        if (the.spend) return the.spend(#slot, flops, bytes, 1), ISO_OK;                           \
        int64_t start = begin();                                                                   \
        iso_status status = the.kernels->slot ARGUMENTS;                                           \
        end(#slot, direction, object, flops, bytes, start);                                        \
        return status;                                                                             \
    }
#define TENSOR  const iso_tensor *
#define FORWARD "forward"
#define PARAMS  "backward, parameters"
#define INPUT   "backward, input"
#define UPDATE  "update"

// Of a layer that leaves in pieces, dw is NULL: linear_backward_rows computes it.
PROBE(linear_backward_params, PARAMS, (dw ? dw : db)->data, gemm_flops(x, dw),
      size_of(x) + size_of(dw) + size_of(dy),
      ARGS(iso_device *d, TENSOR x, TENSOR dy, iso_tensor *dw, bool add_w, iso_tensor *db,
           bool add_b),
      ARGS(d, x, dy, dw, add_w, db, add_b))
PROBE(linear_backward_input, INPUT, w->data, gemm_flops(dy, w),
      size_of(dx) + size_of(w) + size_of(dy),
      ARGS(iso_device *d, TENSOR dy, TENSOR w, iso_tensor *dx), ARGS(d, dy, w, dx))
PROBE(linear_backward_rows, PARAMS, dw->data, gemm_flops(x, dw),
      size_of(x) + size_of(dw) + size_of(dy),
      ARGS(iso_device *d, TENSOR x, TENSOR dy, int64_t first, iso_tensor *dw, bool accumulate),
      ARGS(d, x, dy, first, dw, accumulate))
PROBE(conv2d_forward, FORWARD, y, conv_flops(y, w), size_of(x) + size_of(w) + size_of(y),
      ARGS(iso_device *d, const iso_conv2d_config *c, TENSOR x, TENSOR w, TENSOR b,
           iso_activation act, iso_tensor *y),
      ARGS(d, c, x, w, b, act, y))
PROBE(conv2d_backward_params, PARAMS, dw->data, conv_flops(dy, dw),
      size_of(x) + size_of(dw) + size_of(dy),
      ARGS(iso_device *d, const iso_conv2d_config *c, TENSOR x, TENSOR dy, iso_tensor *dw,
           bool add_w, iso_tensor *db, bool add_b),
      ARGS(d, c, x, dy, dw, add_w, db, add_b))
PROBE(conv2d_backward_input, INPUT, w->data, conv_flops(dy, w),
      size_of(dx) + size_of(w) + size_of(dy),
      ARGS(iso_device *d, const iso_conv2d_config *c, TENSOR dy, TENSOR w, iso_tensor *dx),
      ARGS(d, c, dy, w, dx))
PROBE(max_pool2d_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, const iso_pool2d_config *c, TENSOR x, iso_tensor *y, void *workspace),
      ARGS(d, c, x, y, workspace))
PROBE(max_pool2d_backward, INPUT, dx, 0, size_of(dy) + size_of(dx),
      ARGS(iso_device *d, const iso_pool2d_config *c, TENSOR dy, const void *workspace,
           iso_tensor *dx),
      ARGS(d, c, dy, workspace, dx))
PROBE(max_pool2d_relu_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, const iso_pool2d_config *c, TENSOR x, iso_tensor *y, void *workspace),
      ARGS(d, c, x, y, workspace))
PROBE(avg_pool2d_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, const iso_pool2d_config *c, TENSOR x, iso_tensor *y), ARGS(d, c, x, y))
PROBE(avg_pool2d_backward, INPUT, dx, 0, size_of(dy) + size_of(dx),
      ARGS(iso_device *d, const iso_pool2d_config *c, TENSOR dy, iso_tensor *dx),
      ARGS(d, c, dy, dx))
PROBE(adaptive_avg_pool2d_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, TENSOR x, iso_tensor *y), ARGS(d, x, y))
PROBE(adaptive_avg_pool2d_backward, INPUT, dx, 0, size_of(dy) + size_of(dx),
      ARGS(iso_device *d, TENSOR dy, iso_tensor *dx), ARGS(d, dy, dx))
PROBE(relu_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, TENSOR x, iso_tensor *y), ARGS(d, x, y))
PROBE(relu_backward, INPUT, y, 0, size_of(y) + size_of(dy) + size_of(dx),
      ARGS(iso_device *d, TENSOR y, TENSOR dy, iso_tensor *dx), ARGS(d, y, dy, dx))
PROBE(relu_backward_bias, INPUT, y, 0, size_of(y) + 2 * size_of(dy),
      ARGS(iso_device *d, TENSOR y, iso_tensor *dy, iso_tensor *db, bool accumulate),
      ARGS(d, y, dy, db, accumulate))
PROBE(add, NULL, y, 0, size_of(a) + size_of(b) + size_of(y),
      ARGS(iso_device *d, TENSOR a, TENSOR b, iso_activation act, iso_tensor *y),
      ARGS(d, a, b, act, y))
PROBE(relu_backward_copy, INPUT, y, 0, 2 * size_of(y) + 2 * size_of(dy),
      ARGS(iso_device *d, TENSOR y, iso_tensor *dy, iso_tensor *copy), ARGS(d, y, dy, copy))
PROBE(batch_norm_forward, FORWARD, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, const iso__batch_norm_args *args, TENSOR x, iso_tensor *y,
           void *workspace),
      ARGS(d, args, x, y, workspace))
PROBE(batch_norm_backward, "backward, both", dw ? dw->data : dx, 0,
      size_of(x) + size_of(dy) + size_of(dx),
      ARGS(iso_device *d, const iso__batch_norm_args *args, TENSOR x, TENSOR dy, void *workspace,
           iso_tensor *dw, bool add_w, iso_tensor *db, bool add_b, iso_tensor *dx),
      ARGS(d, args, x, dy, workspace, dw, add_w, db, add_b, dx))
PROBE(dropout, NULL, y, 0, size_of(x) + size_of(y),
      ARGS(iso_device *d, const iso__dropout_draw *draw, TENSOR x, iso_tensor *y),
      ARGS(d, draw, x, y))
PROBE(loss, "loss", output, 0, size_of(output) + size_of(grad),
      ARGS(iso_device *d, const iso_loss_config *config, TENSOR output, const int32_t *labels,
           double result[2], iso_tensor *grad),
      ARGS(d, config, output, labels, result, grad))
PROBE(scale, NULL, x, 0, 8.0 * (double)count,
      ARGS(iso_device *d, int64_t count, double factor, void *x), ARGS(d, count, factor, x))
PROBE(sgd, UPDATE, p, 0, (m ? 20.0 : 12.0) * (double)count,
      ARGS(iso_device *d, int64_t count, const iso__sgd_args *args, const void *g, void *p,
           void *m),
      ARGS(d, count, args, g, p, m))
PROBE(adam, UPDATE, p, 0, (most ? 36.0 : 28.0) * (double)count,
      ARGS(iso_device *d, int64_t count, const iso__adam_args *args, const void *g, void *p,
           void *m, void *v, void *most),
      ARGS(d, count, args, g, p, m, v, most))

// As the real kernel does: each part of the weight is awaited, then computed with.
static iso_status spend_arriving(TENSOR x, TENSOR w, iso__arrival *arrival, TENSOR y) {
    int64_t rows = w->shape[0], unit = arrival ? arrival->unit : rows;
    double flops = gemm_flops(x, w), bytes = size_of(x) + size_of(w) + size_of(y);
    for (int64_t first = 0, end; first < rows; first = end) {
        end = first + unit < rows ? first + unit : rows;
        if (arrival) ISO_TRY(arrival->wait(arrival, end));
        the.spend("linear_forward", flops, bytes, (double)(end - first) / (double)rows);
    }
    return ISO_OK;
}

static iso_status probe_linear_forward(iso_device *d, TENSOR x, TENSOR w, iso__arrival *arrival,
                                       TENSOR b, iso_activation act, iso_tensor *y) {
    if (the.spend) return spend_arriving(x, w, arrival, y);
    int64_t start = begin();
    iso_status status = the.kernels->linear_forward(d, x, w, arrival, b, act, y);
    end("linear_forward", FORWARD, y, gemm_flops(x, w), size_of(x) + size_of(w) + size_of(y),
        start);
    return status;
}

static iso_status probe_copy(iso_device *d, TENSOR from, iso_tensor *to) {
    if (the.spend) return the.spend("copy", 0, size_of(from) + size_of(to), 1), ISO_OK;
    int64_t start = begin();
    iso_status status = the.device_ops->copy(d, from, to);
    end("copy", NULL, to, 0, size_of(from) + size_of(to), start);
    return status;
}

static iso_status probe_fill(iso_device *d, iso_tensor *x, double value) {
    if (the.spend) return the.spend("fill", 0, size_of(x), 1), ISO_OK;
    int64_t start = begin();
    iso_status status = the.device_ops->fill(d, x, value);
    end("fill", NULL, x, 0, size_of(x), start);
    return status;
}

static void install(iso_device *device) {
#define PUT(slot)    the.probe_kernels.slot = probe_##slot
#define PUT_IF(slot) the.probe_kernels.slot = the.kernels->slot ? probe_##slot : NULL
    the.device = device;
    the.kernels = device->kernels[ISO_F32];
    the.probe_kernels = *the.kernels;
    PUT(linear_forward), PUT(linear_backward_params), PUT(linear_backward_input);
    PUT_IF(linear_backward_rows);
    PUT(conv2d_forward), PUT(conv2d_backward_params), PUT(conv2d_backward_input);
    PUT(max_pool2d_forward), PUT(max_pool2d_backward);
    PUT_IF(max_pool2d_relu_forward);
    PUT_IF(relu_backward_bias);
    PUT(avg_pool2d_forward), PUT(avg_pool2d_backward);
    PUT(adaptive_avg_pool2d_forward), PUT(adaptive_avg_pool2d_backward);
    PUT(relu_forward), PUT(relu_backward), PUT(dropout), PUT(loss);
    PUT(add), PUT(relu_backward_copy), PUT(batch_norm_forward), PUT(batch_norm_backward);
    PUT(scale), PUT(sgd), PUT(adam);
    device->kernels[ISO_F32] = &the.probe_kernels;
    the.device_ops = device->ops;
    the.probe_device = *device->ops;
    the.probe_device.copy = probe_copy;
    the.probe_device.fill = probe_fill;
    device->ops = &the.probe_device;
}

void bench_breakdown_replace(iso_device *device, bench_spend spend) {
    the.spend = spend;
    install(device);
}

static void uninstall(void) {
    the.device->kernels[ISO_F32] = the.kernels;
    the.device->ops = the.device_ops;
}

// ---- Layers ---------------------------------------------------------------------------------------

static bool belongs(const iso_module *module, const void *object) {
    for (int i = 0; i < module->parameter_count; i++) {
        const iso_parameter *p = module->parameter[i];
        if (p->value->data == object || p->grad->data == object) return true;
    }
    for (int i = 0; i < module->call_capacity; i++) {
        const iso_call *c = module->call[i];
        if (object == c->out || object == c->grad_in || object == c->grad_out) return true;
        if (object == c->aux[0] || object == c->aux[1]) return true;
    }
    return false;
}

// The full name of the layer that the tensor or parameter belongs to.
static bool find_layer(const iso_module *module, const void *object, char *name, size_t room) {
    size_t used = strlen(name);
    for (int i = 0; i < module->child_count; i++) {
        const char *child = module->child_name[i]; // "" for one that is wrapped
        if (child[0]) snprintf(name + used, room - used, "%s%s", used ? "." : "", child);
        if (find_layer(module->child[i], object, name, room)) return true;
        name[used] = 0;
    }
    return belongs(module, object);
}

// ---- Report ---------------------------------------------------------------------------------------

static const int64_t *order_by;
static int by_time(const void *a, const void *b) {
    int64_t x = order_by[*(const int *)a], y = order_by[*(const int *)b];
    return (x > y) - (x < y);
}

// The faster half of the steps: what other programs do meets the slower one.
static int choose_steps(const int64_t *total, int *chosen) {
    for (int i = 0; i < the.steps; i++) chosen[i] = i;
    order_by = total;
    qsort(chosen, (size_t)the.steps, sizeof(*chosen), by_time);
    return (the.steps + 1) / 2;
}

static double mean_ms(const int64_t *ns, const int *chosen, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)ns[chosen[i]];
    return sum / count / 1e6;
}

static void print_call(const call *c, const bench_subject *s, double ms, double step,
                       double gflops) {
    char layer[64] = "";
    if (!find_layer(s->model, c->object, layer, sizeof(layer)) || !layer[0])
        snprintf(layer, sizeof(layer), "-");
    double rate = (c->flops > 0 ? c->flops : c->bytes) / ms / 1e6;
    double peak = c->flops > 0 ? gflops : bench_peak_gbs((size_t)c->bytes, s->threads);
    printf("%-22s %-21s %-28s %-46s %8.3f %5.1f %% %7.1f %s %5.0f %%\n", layer, c->direction,
           c->operation, c->implementation, ms, 100 * ms / step, rate,
           c->flops > 0 ? "GFLOP/s" : "GB/s   ", 100 * rate / peak);
}

static void report(const bench_subject *s, const int64_t *total) {
    const char *with;
    int *chosen = calloc((size_t)the.steps, sizeof(*chosen));
    int count = choose_steps(total, chosen);
    double step = mean_ms(total, chosen, count), sum = 0;
    double gflops = bench_peak_gflops(s->threads, &with);
    printf(
        "peak: %.1f GFLOP/s (%s, %d thread%s); memory %.1f GB/s, in caches more: the share is of "
        "what a triad over as many bytes gets\n",
        gflops, with, s->threads, s->threads > 1 ? "s" : "",
        bench_peak_gbs((size_t)1 << 28, s->threads));
    printf("%-22s %-21s %-28s %-46s %8s %7s %15s %7s\n", "layer", "direction", "kernel",
           "implementation", "ms", "of step", "rate", "of peak");
    for (int i = 0; i < the.count; i++) {
        double ms = mean_ms(the.calls[i].ns, chosen, count);
        print_call(&the.calls[i], s, ms, step, gflops);
        sum += ms;
    }
    printf("kernels %.3f ms, the rest %.3f ms (%.1f %%), step %.3f ms: mean of the faster %d of %d "
           "steps\n",
           sum, step - sum, 100 * (step - sum) / step, step, count, the.steps);
    free(chosen);
}

// What bench_model.c reads.
static void write_table(const bench_subject *s, const int64_t *total) {
    FILE *to = fopen(s->table, "w");
    if (!to) fail("the table cannot be written");
    int *chosen = calloc((size_t)the.steps, sizeof(*chosen));
    int count = choose_steps(total, chosen);
    double rest = mean_ms(total, chosen, count);
    for (int i = 0; i < the.count; i++) {
        const call *c = &the.calls[i];
        double ms = mean_ms(c->ns, chosen, count);
        fprintf(to, "%s %.0f %.0f %.6f\n", c->operation, c->flops, c->bytes, ms);
        rest -= ms;
    }
    fprintf(to, "rest 0 0 %.6f\n", rest > 0 ? rest : 0);
    fclose(to);
    free(chosen);
}

// ---- Steps ----------------------------------------------------------------------------------------

static void step(const bench_subject *s) {
    iso_tensor *out, *grad;
    double value;
    the.at = 0;
    the.phase = "forward";
    iso_optimizer_zero_grad(s->optimizer);
    bench_require(iso_module_forward(s->model, s->images, &out));
    the.phase = "loss";
    bench_require(iso_loss_compute(s->loss, out, s->labels, &value, NULL, &grad));
    the.phase = "backward, input";
    bench_require(iso_module_backward(s->model, grad, NULL));
    the.phase = "update";
    bench_require(iso_optimizer_step(s->optimizer));
}

void bench_breakdown(const bench_subject *subject, int warmup, int steps, bool quiet) {
    int64_t *total = calloc((size_t)steps, sizeof(*total));
    install(subject->device);
    the.steps = steps;
    for (the.step = -warmup; the.step < steps; the.step++) {
        int64_t start = iso_now();
        step(subject);
        if (the.step >= 0) total[the.step] = iso_now() - start;
    }
    uninstall();
    if (!quiet) report(subject, total);
    if (!quiet && subject->table) write_table(subject, total);
    for (int i = 0; i < the.count; i++) free(the.calls[i].ns);
    free(total);
}
