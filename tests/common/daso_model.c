// SPDX-License-Identifier: MIT
// For tests of periodic training: a serial model of it, with all ranks in one process.
#include "common/any_device.h"
#include "common/daso_model.h"

#include "optim/optim_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Nodes ----------------------------------------------------------------------------------------

static int node_of(const daso_model *m, int rank) { return rank / m->config.ranks_per_node; }
static int node_first(const daso_model *m, int node) { return node * m->config.ranks_per_node; }

static int node_size(const daso_model *m, int node) {
    int left = m->config.ranks - node_first(m, node);
    return left < m->config.ranks_per_node ? left : m->config.ranks_per_node;
}

// The rank that stands for its node in a group.
static int member(const daso_model *m, int node, int group) {
    return node_first(m, node) + group % node_size(m, node);
}

static bool in_group(const daso_model *m, int rank, int group) {
    return group < 0 || member(m, node_of(m, rank), group) == rank;
}

// ---- Life -----------------------------------------------------------------------------------------

static iso__base_optimizer *core_of(const model_rank *r) {
    return iso__optimizer_innermost(r->optimizer);
}

static iso_status create_rank(daso_model *m, model_rank *r) {
    const trainer_config *t = &m->config.train;
    int64_t shape[4] = {m->batch_rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    ISO_TRY((t->build ? t->build : build_small_cnn)(m->device, false, &r->net));
    ISO_TRY(iso_optimizer_create(t->optimizer, r->net, &t->hyper, &r->optimizer));
    if (t->prepare) ISO_TRY(t->prepare(r->optimizer));
    ISO_TRY(iso_loss_create(m->device, ISO_CROSS_ENTROPY, &r->loss));
    return iso_tensor_create(m->device, ISO_F32, 4, shape, &r->batch);
}

static void count_elements(daso_model *m) {
    const iso__base_optimizer *core = core_of(&m->rank[0]);
    for (int i = 0; i < core->count; i++) m->count += core->slot[i].parameter->value->count;
    m->total = m->count;
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        if (core->state[k]) m->total += m->count;
}

// Copies between elements of `now` and an array of type that it stands for.
static void copy_elements(iso_dtype type, int64_t count, double *now, void *array, bool push) {
    float *x = array;
    double *y = array;
    for (int64_t i = 0; i < count; i++) {
        if (type == ISO_F64 && push) y[i] = now[i];
        if (type == ISO_F32 && push) x[i] = (float)now[i];
        now[i] = type == ISO_F64 ? y[i] : (double)x[i];
    }
}

// Copies between `now` and the arrays that it stands for. Pushed, it is rounded as they are.
static iso_status transfer(model_rank *r, bool push) {
    const iso__base_optimizer *core = core_of(r);
    double *at = r->now;
    for (int k = -1; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < core->count && (k < 0 || core->state[k]); i++) {
            const iso__slot *slot = &core->slot[i];
            iso_tensor *value = slot->parameter->value, *t = k < 0 ? value : core->state[k];
            void *data;
            ISO_TRY(iso_tensor_map(t, push ? ISO_READ_WRITE : ISO_READ, &data));
            copy_elements(value->dtype, value->count, at, (char *)data + (k < 0 ? 0 : slot->offset),
                          push);
            ISO_TRY(iso_tensor_unmap(t));
            at += value->count;
        }
    return ISO_OK;
}

void model_push(daso_model *m) {
    for (int r = 0; r < m->config.ranks; r++)
        if (transfer(&m->rank[r], true) < 0) abort(); // a test ends where it goes wrong
}

iso_status model_create(daso_model *m, const model_config *config) {
    *m = (daso_model){.config = *config, .batch_rows = config->train.rows / config->ranks};
    m->nodes = (config->ranks + config->ranks_per_node - 1) / config->ranks_per_node;
    m->groups = node_size(m, 0);
    ISO_TRY(iso_device_create(test_device(), &m->device));
    for (int r = 0; r < config->ranks; r++) ISO_TRY(create_rank(m, &m->rank[r]));
    count_elements(m);
    for (int r = 0; r < config->ranks; r++) {
        m->rank[r].now = calloc((size_t)m->total, sizeof(double));
        ISO_TRY(transfer(&m->rank[r], false));
    }
    for (int e = 0; e < MODEL_EXCHANGES; e++) {
        m->exchange[e].mean = calloc((size_t)m->total, sizeof(double));
        for (int r = 0; r < config->ranks; r++)
            m->exchange[e].then[r] = calloc((size_t)m->total, sizeof(double));
    }
    return ISO_OK;
}

void model_destroy(daso_model *m) {
    for (int e = 0; e < MODEL_EXCHANGES; e++) {
        free(m->exchange[e].mean);
        for (int r = 0; r < m->config.ranks; r++) free(m->exchange[e].then[r]);
    }
    for (int i = 0; i < m->config.ranks; i++) {
        model_rank *r = &m->rank[i];
        free(r->now);
        iso_tensor_destroy(&r->batch);
        iso_loss_destroy(&r->loss);
        iso_optimizer_destroy(&r->optimizer);
        iso_module_destroy(&r->net);
    }
    iso_device_destroy(&m->device);
}

// ---- Training -------------------------------------------------------------------------------------

static iso_status backward(daso_model *m, int rank, int step) {
    model_rank *r = &m->rank[rank];
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    int32_t labels[64];
    iso_tensor *out, *grad;
    double loss;
    void *data;
    ISO_TRY(iso_tensor_map(r->batch, ISO_WRITE, &data));
    for (int64_t i = 0; i < m->batch_rows; i++)
        trainer_row((float *)data + i * pixels, step, rank * m->batch_rows + i, &labels[i]);
    ISO_TRY(iso_tensor_unmap(r->batch));
    iso_optimizer_zero_grad(r->optimizer);
    ISO_TRY(iso_module_forward(r->net, r->batch, &out));
    ISO_TRY(iso_loss_compute(r->loss, out, labels, &loss, NULL, &grad));
    return iso_module_backward(r->net, grad, NULL);
}

static double element_of(iso_dtype type, const void *array, int64_t k) {
    return type == ISO_F64 ? ((const double *)array)[k] : (double)((const float *)array)[k];
}

static void set_element(iso_dtype type, void *array, int64_t k, double x) {
    if (type == ISO_F64)
        ((double *)array)[k] = x;
    else
        ((float *)array)[k] = (float)x;
}

// Ranks [first, first + count) get the mean of their gradients of parameter i.
static iso_status average_gradient(daso_model *m, int i, int first, int count) {
    void *g[MODEL_RANKS];
    iso_tensor *grad[MODEL_RANKS];
    const iso_tensor *value = core_of(&m->rank[0])->slot[i].parameter->value;
    for (int r = 0; r < count; r++) {
        ISO_TRY(iso_parameter_grad(core_of(&m->rank[first + r])->slot[i].parameter, &grad[r]));
        ISO_TRY(iso_tensor_map(grad[r], ISO_READ_WRITE, &g[r]));
    }
    for (int64_t k = 0; k < value->count; k++) {
        double sum = 0;
        for (int r = 0; r < count; r++) sum += element_of(value->dtype, g[r], k);
        for (int r = 0; r < count; r++) set_element(value->dtype, g[r], k, sum / count);
    }
    for (int r = 0; r < count; r++) ISO_TRY(iso_tensor_unmap(grad[r]));
    return ISO_OK;
}

static iso_status average_gradients(daso_model *m, iso_scope scope) {
    bool world = scope == ISO_SCOPE_WORLD;
    for (int i = 0; i < core_of(&m->rank[0])->count; i++)
        for (int node = 0; node < (world ? 1 : m->nodes); node++)
            ISO_TRY(average_gradient(m, i, node_first(m, node),
                                     world ? m->config.ranks : node_size(m, node)));
    return ISO_OK;
}

iso_status model_batch(daso_model *m, int step, iso_scope scope) {
    for (int r = 0; r < m->config.ranks; r++) ISO_TRY(backward(m, r, step));
    if (scope != ISO_SCOPE_RANK) ISO_TRY(average_gradients(m, scope));
    for (int r = 0; r < m->config.ranks; r++) {
        ISO_TRY(iso_optimizer_step(m->rank[r].optimizer));
        ISO_TRY(transfer(&m->rank[r], false));
    }
    return ISO_OK;
}

// ---- Events ---------------------------------------------------------------------------------------

static double mean_of(const daso_model *m, int group, int64_t k) {
    double sum = 0;
    for (int r = 0; r < m->config.ranks; r++)
        if (in_group(m, r, group))
            sum += m->rank[r].now[k] * (group < 0 ? 1 : node_size(m, node_of(m, r)));
    return sum / m->config.ranks;
}

void model_send(daso_model *m, int group, int64_t step) {
    model_exchange *e = &m->exchange[m->pending++];
    e->group = group;
    e->ranks = 0;
    e->step = step;
    for (int64_t k = 0; k < m->total; k++) e->mean[k] = mean_of(m, group, k);
    for (int r = 0; r < m->config.ranks; r++)
        memcpy(e->then[r], m->rank[r].now, (size_t)m->total * sizeof(double));
}

void model_send_groups(daso_model *m, int ranks, int64_t step) {
    model_send(m, -1, step);
    m->exchange[m->pending - 1].ranks = ranks;
}

// Of the ranks that average with rank r.
static double sent_mean(const model_exchange *e, int r, int64_t k) {
    double sum = 0;
    if (e->ranks == 0) return e->mean[k];
    for (int q = r / e->ranks * e->ranks; q < (r / e->ranks + 1) * e->ranks; q++)
        sum += e->then[q][k];
    return sum / e->ranks;
}

// The oldest exchange leaves the queue; its memory is used again by a later send.
static model_exchange *receive(daso_model *m) {
    model_exchange oldest = m->exchange[0];
    m->exchange[0] = m->exchange[1];
    m->exchange[1] = oldest;
    m->pending--;
    return &m->exchange[1];
}

static double weighted(const model_rule *rule, double now, double mean) {
    double own = 2.0 * (double)rule->weight, all = (double)rule->participants;
    return (own * now + all * mean) / (own + all);
}

static double merged(const model_rule *rule, double now, double then, double mean) {
    return rule->merge == ISO_MERGE_PROGRESS ? mean + (now - then) : weighted(rule, now, mean);
}

static double merged_state(const model_rule *rule, double now, double mean) {
    if (rule->state == ISO_STATE_SYNC_RESET) return 0;
    return rule->state == ISO_STATE_SYNC_AVERAGE ? weighted(rule, now, mean) : now;
}

void model_merge(daso_model *m, const model_rule *rule) {
    const model_exchange *e = receive(m);
    for (int r = 0; r < m->config.ranks; r++) {
        double *now = m->rank[r].now;
        if (!in_group(m, r, e->group)) continue;
        for (int64_t k = 0; k < m->count; k++)
            now[k] = merged(rule, now[k], e->then[r][k], sent_mean(e, r, k));
        for (int64_t k = m->count; k < m->total; k++)
            now[k] = merged_state(rule, now[k], sent_mean(e, r, k));
    }
    model_push(m);
}

void model_replace(daso_model *m, bool state) {
    const model_exchange *e = receive(m);
    for (int r = 0; r < m->config.ranks; r++)
        for (int64_t k = 0; in_group(m, r, e->group) && k < (state ? m->total : m->count); k++)
            m->rank[r].now[k] = sent_mean(e, r, k);
    model_push(m);
}

void model_node_average(daso_model *m, bool state) {
    for (int node = 0; node < m->nodes; node++)
        for (int64_t k = 0; k < (state ? m->total : m->count); k++) {
            int first = node_first(m, node), size = node_size(m, node);
            double sum = 0;
            for (int r = first; r < first + size; r++) sum += m->rank[r].now[k];
            for (int r = first; r < first + size; r++) m->rank[r].now[k] = sum / size;
        }
    model_push(m);
}

void model_node_copy(daso_model *m, int k) {
    for (int r = 0; r < m->config.ranks; r++) {
        int from = member(m, node_of(m, r), k);
        if (from != r) memcpy(m->rank[r].now, m->rank[from].now, (size_t)m->count * sizeof(double));
    }
    model_push(m);
}

void model_mean(const daso_model *m, double *out) {
    for (int64_t k = 0; k < m->count; k++) out[k] = mean_of(m, -1, k);
}

// ---- Whole steps ----------------------------------------------------------------------------------

static void begin(daso_model *m, const iso_daso_config *c) {
    m->force = (iso_daso_decision){.global_skip = c->global_skip,
                                   .local_skip = c->local_skip,
                                   .batches_to_wait = c->batches_to_wait};
    m->decided = m->force;
    m->next_send = c->warmup_steps + c->global_skip;
}

// How far the gradients of cycling step number `done` (from 1) reach.
static iso_scope cycling_scope(const daso_model *m, const iso_daso_config *c, int64_t done) {
    if (c->unit == ISO_SCOPE_RANK) return ISO_SCOPE_RANK;
    bool before_send = c->warmup_steps + done == m->next_send;
    return done % m->force.local_skip == 0 || before_send ? ISO_SCOPE_NODE : ISO_SCOPE_RANK;
}

// wait 0: the mean replaces the parameters; what is to become of the state follows the same rule.
static void merge_pending(daso_model *m, const iso_daso_config *c, int64_t step) {
    m->last_age = step - m->exchange[0].step;
    m->syncs++;
    int participants = c->unit == ISO_SCOPE_RANK ? m->config.ranks : m->nodes;
    if (m->exchange[0].ranks > 0) participants = m->exchange[0].ranks;
    model_rule rule = {m->last_age == 0 ? ISO_MERGE_HEAT : c->merge, c->state, m->last_age,
                       participants};
    model_merge(m, &rule);
}

// PyTorch's _find_process_group, with `step` updates made before this one; 0: none.
static int group_at(const iso_daso_config *c, int64_t step) {
    for (int i = c->level_count - 1; i >= 0; i--)
        if (step % c->level[i].period == 0) return c->level[i].ranks;
    return 0;
}

static void send_due(daso_model *m, const iso_daso_config *c, int64_t step) {
    m->force = m->decided;
    if (c->level_count > 0) {
        model_send_groups(m, group_at(c, step - 1), step);
        if (m->force.batches_to_wait == 0) merge_pending(m, c, step);
        return;
    }
    if (m->force.local_skip > 1) model_node_average(m, c->state == ISO_STATE_SYNC_AVERAGE);
    model_send(m, -1, step);
    m->next_send += m->force.global_skip;
    if (m->force.batches_to_wait == 0) merge_pending(m, c, step);
}

iso_status model_daso_step(daso_model *m, const iso_daso_config *c, int step) {
    if (step == 0) begin(m, c);
    int64_t finished = step + 1, last = c->total_steps - c->cooldown_steps;
    bool cycling = step >= c->warmup_steps && finished <= last;
    ISO_TRY(model_batch(
        m, step, cycling ? cycling_scope(m, c, finished - c->warmup_steps) : ISO_SCOPE_WORLD));
    if (!cycling) return ISO_OK;
    bool due = finished == m->next_send, end = finished == last;
    if (c->level_count > 0) due = group_at(c, step) > 0;
    bool ripe = m->pending && finished - m->exchange[0].step == m->force.batches_to_wait;
    if (m->pending && (ripe || due || end)) merge_pending(m, c, finished);
    if (due && !end) send_due(m, c, finished);
    if (!end) return ISO_OK;
    model_send(m, -1, finished);
    model_replace(m, c->cooldown_steps > 0);
    m->last_age = 0;
    m->syncs++;
    return ISO_OK;
}

iso_status model_heat_step(daso_model *m, const char *plan, int step) {
    ISO_TRY(model_batch(m, step, strchr(plan, '~') ? ISO_SCOPE_RANK : ISO_SCOPE_NODE));
    for (const char *at = plan; *at; at++) {
        int number = atoi(at + 1);
        model_rule rule = {ISO_MERGE_HEAT, ISO_STATE_SYNC_KEEP, number, m->nodes};
        if (*at == 'S') model_send(m, number % m->groups, step);
        if (*at == 'M') model_merge(m, &rule);
        if (*at == 'F') model_replace(m, false);
        if (*at == 'C') model_node_copy(m, number % m->groups);
    }
    return ISO_OK;
}

// ---- Comparing ------------------------------------------------------------------------------------

iso_status model_difference(const daso_model *m, int rank, iso_module *module, double *out) {
    iso_parameter_list list;
    double worst = 0, size = 0;
    int64_t k = 0;
    ISO_TRY(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        void *a;
        if (!list.item[i]->requires_grad) continue;
        ISO_TRY(iso_tensor_map(value, ISO_READ, &a));
        for (int64_t j = 0; j < value->count; j++, k++) {
            double b = rank < 0 ? mean_of(m, -1, k) : m->rank[rank].now[k];
            double distance = fabs(element_of(value->dtype, a, j) - b);
            worst = isfinite(distance) ? fmax(worst, distance) : INFINITY;
            size = fmax(size, fabs(b));
        }
        ISO_TRY(iso_tensor_unmap(value));
    }
    iso_parameter_list_destroy(&list);
    *out = k == m->count ? worst / size : INFINITY;
    return ISO_OK;
}

double model_spread(const daso_model *m) {
    double worst = 0, size = 0;
    for (int r = 0; r < m->config.ranks; r++)
        for (int64_t k = 0; k < m->count; k++) {
            double first = m->rank[0].now[k];
            worst = fmax(worst, fabs(m->rank[r].now[k] - first));
            size = fmax(size, fabs(first));
        }
    return worst / size;
}
