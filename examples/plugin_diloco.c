// SPDX-License-Identifier: MIT
// A sync mode of your own for iso-train, without a change to Isotherm: DiLoCo (Douillard et al.,
// 2023). Every rank trains alone for `period` steps. Then SGD with Nesterov momentum, the outer
// optimizer, moves the parameters towards their mean. It has the bits of --sync diloco.
//
// Compile it, once Isotherm is installed, and run it:
//   flags="-shared -fPIC -O2 -ffp-contract=off $(pkg-config --cflags --libs isotherm)"
//   mpicc plugin_diloco.c -o plugin_diloco.so $flags
//   mpirun -n 2 iso-train --plugin ./plugin_diloco.so --sync my-diloco --period 16
#include <isotherm.h>

ISO_PLUGIN;

// ---- The rule -------------------------------------------------------------------------------------

// a: the parameters with which the ranks began to train apart; u: momentum; x: those of this rank.
#define RULE(T, name)                                                                              \
    static void step_##name(const iso_outer *o, const iso_outer_span *s) {                         \
        const T *mean = s->mean, lr = (T)o->lr, beta = (T)o->momentum;                             \
        T *a = s->state[0], *u = s->state[1], *x = s->now;                                         \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            T d = a[i] - mean[i]; /* the outer gradient */                                         \
            u[i] = beta * u[i] + d;                                                                \
            a[i] -= lr * (d + beta * u[i]);                                                        \
            x[i] = a[i];                                                                           \
        }                                                                                          \
    }
RULE(float, f32)
RULE(double, f64)

static void merge_parameters(const iso_outer *outer, const iso_outer_span *span) {
    if (span->f64)
        step_f64(outer, span);
    else
        step_f32(outer, span);
}

// ---- Its settings, which become options of iso-train ----------------------------------------------

typedef struct values {
    int64_t period;
    double lr, momentum;
} values;

static const iso_setting setting[] = {
    {"period", ISO_SETTING_INTEGER, offsetof(values, period), 1, 1e12, .initial = "16",
     .meaning = "steps between exchanges of parameters"},
    {"outer-lr", ISO_SETTING_NUMBER, offsetof(values, lr), 1e-9, 1e6, .initial = "0.7",
     .meaning = "learning rate of the outer optimizer"},
    {"outer-momentum", ISO_SETTING_NUMBER, offsetof(values, momentum), 0, 0.999999,
     .initial = "0.9", .meaning = "momentum of the outer optimizer"},
};
enum { SETTINGS = sizeof(setting) / sizeof(setting[0]) };

// ---- The mode -------------------------------------------------------------------------------------

static iso_status wrap_optimizer(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    values v;
    iso_status status = iso_settings_read(context->settings, setting, SETTINGS, &v);
    if (status < 0) {
        iso_optimizer_destroy(&inner);
        return status;
    }
    iso_outer outer = {.name = "my-nesterov",
                       .states = 2,
                       .replaces = true,
                       .lr = v.lr,
                       .momentum = v.momentum,
                       .merge = merge_parameters};
    iso_daso_config config = iso_local_sgd_config(context->total_steps, v.period);
    config.outer = &outer; // copied
    status = iso_dp_optimizer_create_take(inner, module, &inner);
    return status < 0 ? status : iso_daso_create_take(inner, module, &config, out);
}

static iso_status complete_exchange(iso_optimizer *optimizer, void *user) {
    (void)user;
    return iso_daso_complete(optimizer);
}

static iso_status get_stats(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    (void)user;
    iso_daso_stats daso;
    iso_status status = iso_daso_get_stats(optimizer, &daso);
    if (status < 0) return status;
    out->syncs = daso.syncs;
    out->period = out->period_requested = daso.global_skip;
    out->phase = daso.phase;
    out->wait_ms = daso.wait_ms;
    out->bytes_sent = daso.bytes_sent;
    out->bytes_between_nodes = daso.bytes_between_nodes;
    return ISO_OK;
}

iso_status iso_plugin_init(void) {
    iso_strategy mode = {.name = "my-diloco",
                         .text = "DiLoCo, written as a plugin",
                         .wrap_optimizer = wrap_optimizer,
                         .epoch_loss = iso_daso_epoch_loss,
                         .finish = iso_daso_finish,
                         .complete = complete_exchange,
                         .stats = get_stats,
                         .setting = setting,
                         .setting_count = SETTINGS};
    return iso_strategy_register(&mode);
}
