// SPDX-License-Identifier: MIT
// Hyperparameters that move between trainers with their models, and are perturbed then. See
// isotherm/tournament.h.
//
// Before a model moves, all ranks get the current values of all trainers. The first rank of a
// trainer decides the new values, and all ranks get them before any rank changes its own.
#include "optim/periodic/periodic.h"

#include "comm/comm_calls.h"
#include "optim/resume/resume_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- Lists ----------------------------------------------------------------------------------------

#define KIND(kind) (1u << (kind))
enum {
    ALL = ~0u >> 1,
    ADAMS = KIND(ISO_ADAM) | KIND(ISO_ADAMW) | KIND(ISO_LAMB) | KIND(ISO_NADAM),
};

static const struct {
    const char *name;
    size_t offset;
    double most;
    unsigned kinds; // of the optimizers that compute with it
} fields[] = {
    {"lr", offsetof(iso_hyper, lr), INFINITY, ALL},
    {"momentum", offsetof(iso_hyper, momentum), 0.999, KIND(ISO_SGD) | KIND(ISO_RMSPROP)},
    {"dampening", offsetof(iso_hyper, dampening), 0.999, KIND(ISO_SGD)},
    {"weight_decay", offsetof(iso_hyper, weight_decay), INFINITY, ALL},
    {"beta1", offsetof(iso_hyper, beta1), 0.999, ADAMS},
    {"beta2", offsetof(iso_hyper, beta2), 0.999, ADAMS},
    {"rho", offsetof(iso_hyper, rho), 0.999, KIND(ISO_ADADELTA)},
    {"alpha", offsetof(iso_hyper, alpha), 0.999, KIND(ISO_RMSPROP)},
    {"eps", offsetof(iso_hyper, eps), INFINITY, ALL & ~KIND(ISO_SGD)},
    {"lr_decay", offsetof(iso_hyper, lr_decay), INFINITY, KIND(ISO_ADAGRAD)},
    {"momentum_decay", offsetof(iso_hyper, momentum_decay), INFINITY, KIND(ISO_NADAM)},
};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

static int find_field(const char *name, size_t length) {
    for (int i = 0; i < FIELDS; i++)
        if (strlen(fields[i].name) == length && strncmp(fields[i].name, name, length) == 0)
            return i;
    return -1;
}

// An optimizer of the program may compute with any of them.
static unsigned kind_of(iso_optimizer *optimizer) {
    const iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    iso_optimizer_kind kind;
    if (!core || iso_optimizer_kind_parse(core->base.ops->name, &kind) < 0) return ALL;
    return KIND(kind);
}

static iso_status check_field(iso_optimizer *optimizer, int wanted) {
    char known[128] = "";
    unsigned kind = kind_of(optimizer);
    if (fields[wanted].kinds & kind) return ISO_OK;
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].kinds & kind) {
            size_t used = strlen(known);
            snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "", fields[i].name);
        }
    return ISO_FAIL(ISO_ERR_ARG,
                    "%s cannot travel in tournaments, because %s does not use it: choose among %s",
                    fields[wanted].name, iso__innermost(optimizer)->ops->name, known);
}

iso_status iso_tournament_list_hyper(iso_optimizer *optimizer, const char *names,
                                     iso_tournament_hyper *out, int room, int *count) {
    int groups = iso_optimizer_groups(optimizer), end = *count;
    for (const char *name = names;; name++) {
        size_t length = strcspn(name, ",");
        int i = find_field(name, length);
        ISO_CHECK(i >= 0, ISO_ERR_ARG,
                  "an optimizer has no number \"%.*s\" that could travel in tournaments: use lr, "
                  "momentum, dampening, weight_decay, beta1, beta2, rho, alpha, eps, lr_decay or "
                  "momentum_decay",
                  (int)length, name);
        ISO_TRY(check_field(optimizer, i));
        ISO_CHECK(room - end >= groups, ISO_ERR_ARG,
                  "the list of hyperparameters has room for %d, and \"%s\" of %d groups needs "
                  "more: make it longer",
                  room, fields[i].name, groups);
        for (int g = 0; g < groups; g++)
            out[end++] = (iso_tournament_hyper){
                .name = fields[i].name,
                .value =
                    (double *)((char *)iso_optimizer_group_hyper(optimizer, g) + fields[i].offset),
                .most = fields[i].most};
        name += length;
        if (*name) continue;
        *count = end;
        return ISO_OK;
    }
}

// ---- Values of all trainers -----------------------------------------------------------------------

static double *row_of(const iso__periodic *p, double *table, int trainer) {
    return table + trainer * p->match.hyper_count;
}

// Every trainer's row is that of its first rank.
static iso_status share_table(iso__periodic *p, double *table, const double *own) {
    size_t count = (size_t)(p->layout->nodes * p->match.hyper_count);
    memset(table, 0, count * sizeof(*table));
    if (p->layout->local_rank == 0)
        memcpy(row_of(p, table, p->layout->node_index), own,
               (size_t)p->match.hyper_count * sizeof(*own));
    return iso_comm_allreduce_f64(p->comm, table, count, ISO_SUM);
}

static iso_status get_values(const iso__periodic *p, double *out) {
    for (int i = 0; i < p->match.hyper_count; i++) {
        out[i] = *p->match.hyper[i].value;
        ISO_CHECK(isfinite(out[i]), ISO_ERR_ARG,
                  "hyperparameter \"%s\" of trainer %d is %g: it must be finite to travel in "
                  "tournaments",
                  p->match.hyper[i].name, p->layout->node_index, out[i]);
    }
    return ISO_OK;
}

static iso_status compare_values(const iso__periodic *p, const double *own) {
    const double *first = row_of(p, p->match.before, p->layout->node_index);
    for (int i = 0; i < p->match.hyper_count; i++)
        ISO_CHECK(own[i] == first[i], ISO_ERR_MISMATCH,
                  "hyperparameter \"%s\" is %.17g on the first rank of trainer %d and %.17g on "
                  "rank %d: give all ranks of a trainer the same value",
                  p->match.hyper[i].name, first[i], p->layout->node_index, own[i],
                  iso_comm_rank(p->comm));
    return ISO_OK;
}

// Fills match.before on all ranks, and checks that the ranks of a trainer agree.
static iso_status share_values(iso__periodic *p) {
    double own[ISO_TOURNAMENT_HYPERS];
    ISO_TRY(iso_comm_agree(p->comm, get_values(p, own)));
    ISO_TRY(share_table(p, p->match.before, own));
    return iso_comm_agree(p->comm, compare_values(p, own));
}

// ---- A tournament ---------------------------------------------------------------------------------

static double limit_value(const iso_tournament_hyper *h, double value) {
    if (h->least == 0 && h->most == 0) return value;
    return value < h->least ? h->least : value > h->most ? h->most : value;
}

static iso_status mutate_values(const iso__periodic *p, int64_t turn, double *values) {
    const iso_tournament *t = p->config.tournament;
    int count = p->match.hyper_count;
    uint64_t random = iso__tournament_random(t->seed, turn, p->layout->node_index);
    if (t->mutate) ISO_TRY(t->mutate(values, count, random, t->user));
    if (t->perturb > 0) iso__tournament_perturb(t->perturb, random, values, count);
    for (int i = 0; i < count; i++) {
        const iso_tournament_hyper *h = &p->match.hyper[i];
        if (t->mutate || t->perturb > 0) values[i] = limit_value(h, values[i]);
        ISO_CHECK(isfinite(values[i]), ISO_ERR_ARG,
                  "hyperparameter \"%s\" of trainer %d became %g after a tournament: let `mutate` "
                  "give finite numbers, or set limits",
                  h->name, p->layout->node_index, values[i]);
    }
    return ISO_OK;
}

iso_status iso__match_hyper_move(iso__periodic *p, int64_t turn, bool took) {
    double own[ISO_TOURNAMENT_HYPERS];
    int count = p->match.hyper_count, trainer = p->layout->node_index;
    iso_status status = ISO_OK;
    if (count == 0) return ISO_OK;
    ISO_TRY(share_values(p));
    int from = took ? p->match.partner[trainer] : trainer;
    memcpy(own, row_of(p, p->match.before, from), (size_t)count * sizeof(*own));
    if (took && p->layout->local_rank == 0) status = mutate_values(p, turn, own);
    ISO_TRY(iso_comm_agree(p->comm, status));
    return share_table(p, p->match.after, own);
}

void iso__match_hyper_put(iso__periodic *p) {
    int count = p->match.hyper_count;
    if (count == 0) return;
    const double *row = row_of(p, p->match.after, p->layout->node_index);
    for (int i = 0; i < count; i++) *p->match.hyper[i].value = row[i];
}

const double *iso__match_hyper_of(const iso__periodic *p, int trainer) {
    return p->match.hyper_count > 0 ? row_of(p, p->match.after, trainer) : NULL;
}

// ---- Life -----------------------------------------------------------------------------------------

// The list of the caller is borrowed for this call only, its names too.
static iso_status copy_list(iso__periodic *p) {
    const iso_tournament *t = p->config.tournament;
    size_t count = (size_t)(p->layout->nodes * t->hyper_count);
    iso__match *m = &p->match;
    ISO_TRY(iso__alloc_zero(count * sizeof(*m->before), (void **)&m->before));
    ISO_TRY(iso__alloc_zero(count * sizeof(*m->after), (void **)&m->after));
    for (int i = 0; i < t->hyper_count; i++) {
        m->hyper[i] = t->hyper[i];
        snprintf(m->hyper_name[i], sizeof(m->hyper_name[i]), "%s", t->hyper[i].name);
        m->hyper[i].name = m->hyper_name[i];
    }
    m->hyper_count = t->hyper_count;
    m->hypers = (int64_t)iso__tournament_hyper_hash(t);
    return ISO_OK;
}

void iso__match_hyper_spread(iso__periodic *p) {
    int last = p->layout->nodes - 1;
    double spread = p->config.tournament ? p->config.tournament->spread : 1;
    if (spread == 0 || spread == 1 || last == 0) return;
    double factor = pow(spread, 2.0 * p->layout->node_index / last - 1);
    for (int i = 0; i < p->match.hyper_count; i++) {
        const iso_tournament_hyper *h = &p->match.hyper[i];
        *h->value = limit_value(h, *h->value * factor);
    }
}

iso_status iso__match_hyper_open(iso__periodic *p) {
    if (p->config.tournament->hyper_count == 0) return ISO_OK;
    ISO_TRY(iso_comm_agree(p->comm, copy_list(p)));
    return share_values(p);
}

iso_status iso__match_hyper_equal(iso__periodic *p) {
    if (p->match.hyper_count == 0) return ISO_OK;
    ISO_TRY(share_values(p));
    for (int k = 1; k < p->layout->nodes; k++)
        for (int i = 0; i < p->match.hyper_count; i++) {
            double first = p->match.before[i], other = row_of(p, p->match.before, k)[i];
            ISO_CHECK(first == other, ISO_ERR_MISMATCH,
                      "in a warm-up all trainers must have equal hyperparameters, and \"%s\" is "
                      "%.17g on trainer 0 and %.17g on trainer %d",
                      p->match.hyper[i].name, first, other, k);
        }
    return ISO_OK;
}

void iso__match_hyper_close(iso__periodic *p) {
    iso__free(p->match.before);
    iso__free(p->match.after);
}

// ---- Saved state ----------------------------------------------------------------------------------

iso_status iso__match_hyper_state(iso__periodic *p, iso_state *state) {
    iso__match *m = &p->match;
    if (m->hyper_count == 0) return ISO_OK;
    for (int i = 0; i < m->hyper_count; i++) m->saved_hyper[i] = *m->hyper[i].value;
    return iso__state_add_own(state, ISO_OWN_RANK0, "daso/hyper", ISO_STATE_F64, m->hyper_count,
                              m->saved_hyper);
}

iso_status iso__match_hyper_loaded(iso__periodic *p) {
    const iso__match *m = &p->match;
    for (int i = 0; i < m->hyper_count; i++)
        ISO_CHECK(isfinite(m->saved_hyper[i]), ISO_ERR_FORMAT,
                  "the saved state of the tournament is damaged: its hyperparameter \"%s\" is %g",
                  m->hyper[i].name, m->saved_hyper[i]);
    for (int i = 0; i < m->hyper_count; i++) *m->hyper[i].value = m->saved_hyper[i];
    return ISO_OK;
}
