// SPDX-License-Identifier: MIT
// Outer optimizers on the serial model. One function for each paper.
#include "common/outer_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(const daso_model *m) { return calloc((size_t)m->total, sizeof(double)); }

void outer_model_create(outer_model *o, daso_model *m, const iso_outer *rule, double lr) {
    *o = (outer_model){.m = m, .rule = *rule, .lr = lr};
    for (int f = 0; f < ISO_DASO_FRAGMENTS; f++) o->sent_at[f] = -1;
    o->anchor = zeros(m);
    o->squares = zeros(m);
    o->mean = zeros(m);
    memcpy(o->anchor, m->rank[0].now, (size_t)m->count * sizeof(double));
    for (int r = 0; r < m->config.ranks; r++) {
        o->momentum[r] = zeros(m);
        o->sent[r] = zeros(m);
    }
}

void outer_model_destroy(outer_model *o) {
    for (int r = 0; r < o->m->config.ranks; r++) {
        free(o->momentum[r]);
        free(o->sent[r]);
    }
    free(o->anchor);
    free(o->squares);
    free(o->mean);
}

// Overlap_Local_SGD: x <- (1 - a) x + a z;  v <- beta v + (z - x) / gamma;  z - gamma v is sent.
static double send_pulled(outer_model *o, int r, int64_t k) {
    double a = o->rule.mix, z = o->anchor[k], *x = &o->m->rank[r].now[k], *v = &o->momentum[r][k];
    *x = (1 - a) * *x + a * z;
    *v = o->rule.momentum * *v + (z - *x) / o->lr;
    return z - o->lr * *v;
}

static bool belongs(const outer_model *o, int64_t k, int fragment) {
    return !o->part || o->part[k] == fragment;
}

void outer_model_send(outer_model *o, int fragment, int64_t step) {
    int ranks = o->m->config.ranks;
    bool pulls = strcmp(o->rule.name, "pull") == 0;
    for (int64_t k = 0; k < o->m->count; k++) {
        if (!belongs(o, k, fragment)) continue;
        o->mean[k] = 0;
        for (int r = 0; r < ranks; r++) {
            o->sent[r][k] = pulls ? send_pulled(o, r, k) : o->m->rank[r].now[k];
            o->mean[k] += o->sent[r][k] / ranks;
        }
    }
    for (int64_t k = o->m->count; o->state && k < o->m->total; k++) {
        o->mean[k] = 0;
        for (int r = 0; r < ranks; r++) o->mean[k] += o->m->rank[r].now[k] / ranks;
    }
    if (pulls) model_push(o->m);
    o->sent_at[fragment] = step;
}

// The new outer parameters.
static double step_of(outer_model *o, int fragment, int64_t k) {
    const iso_outer *rule = &o->rule;
    double a = o->anchor[k], m = o->mean[k], *u = &o->momentum[0][k], *v = &o->squares[k];
    if (strcmp(rule->name, "mean") == 0) return m;
    if (strcmp(rule->name, "pull") == 0) return (1 - rule->lr) * a + rule->lr * m;
    if (strcmp(rule->name, "slowmo") == 0) { // Wang et al., equations 2 and 3
        *u = rule->momentum * *u + (a - m) / o->lr;
        return a - rule->lr * o->lr * *u;
    }
    if (strcmp(rule->name, "adam") == 0) { // Kingma and Ba, algorithm 1
        double t = (double)o->merges[fragment], d = a - m;
        *u = rule->momentum * *u + (1 - rule->momentum) * d;
        *v = rule->beta2 * *v + (1 - rule->beta2) * d * d;
        double unbiased = *u / (1 - pow(rule->momentum, t));
        return a - rule->lr * unbiased / (sqrt(*v / (1 - pow(rule->beta2, t))) + rule->eps);
    }
    *u = rule->momentum * *u + (a - m); // torch.optim.SGD
    bool nesterov = strcmp(rule->name, "nesterov") == 0;
    return a - rule->lr * (nesterov ? a - m + rule->momentum * *u : *u);
}

// The mean, or after S > 0 steps (2 S now + P mean) / (2 S + P).
static void merge_state(outer_model *o) {
    double twice = 2.0 * (double)o->age, ranks = o->m->config.ranks;
    for (int r = 0; r < o->m->config.ranks; r++)
        for (int64_t k = o->m->count; k < o->m->total; k++) {
            double *x = &o->m->rank[r].now[k];
            *x = (twice * *x + ranks * o->mean[k]) / (twice + ranks);
            if (o->age == 0) *x = o->mean[k];
        }
}

void outer_model_merge(outer_model *o, int fragment) {
    bool pulls = strcmp(o->rule.name, "pull") == 0;
    o->merges[fragment]++;
    for (int64_t k = 0; k < o->m->count; k++) {
        if (!belongs(o, k, fragment)) continue;
        double a = o->anchor[k] = step_of(o, fragment, k);
        for (int r = 0; !pulls && r < o->m->config.ranks; r++) {
            double *x = &o->m->rank[r].now[k];
            *x = (1 - o->rule.mix) * a + o->rule.mix * *x;
        }
    }
    if (o->state) merge_state(o);
    model_push(o->m);
    o->sent_at[fragment] = -1;
}

void outer_model_mean(outer_model *o) {
    model_mean(o->m, o->mean);
    for (int r = 0; r < o->m->config.ranks; r++)
        memcpy(o->m->rank[r].now, o->mean, (size_t)o->m->count * sizeof(double));
    model_push(o->m);
}
