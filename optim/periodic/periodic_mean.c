// SPDX-License-Identifier: MIT
// Blocking means: over all ranks, and over a node.
#include "optim/periodic/periodic.h"

#include "comm/traffic.h"
#include "parallel/parallel_impl.h"

#include <isotherm/trace.h>
#include <string.h>

int iso__periodic_last(const iso__periodic *p, iso__payload payload) {
    const iso_tournament *t = p->config.tournament;
    bool carries = t ? !t->keep_state : p->config.state == ISO_STATE_SYNC_AVERAGE;
    if (payload == ISO__PAYLOAD_STATE || (payload == ISO__PAYLOAD_WIRE && carries))
        return p->common_count;
    return p->parameter_count + (t ? p->buffer_count : 0);
}

iso_status iso__periodic_make_average(iso__routes *routes, iso__flat size,
                                      const iso__average_config *config, iso__average **out) {
    iso__average_config own = *config;
    own.f64 = size.f64;
    return iso__average_create(routes, size.f32, &own, out);
}

iso_status iso__periodic_average_of(iso__periodic *p, iso__payload payload, iso__average **out) {
    if (!p->average[payload]) {
        iso__average_config exact = {.wire = &iso__codec_f32, .each_rank = p->ranks != NULL};
        iso__flat size = iso__periodic_flat(p, 0, iso__periodic_last(p, payload));
        ISO_TRY(iso__periodic_make_average(p->routes, size, &exact, &p->average[payload]));
    }
    *out = p->average[payload];
    return ISO_OK;
}

static iso_status sum_over(iso__periodic *p, iso_comm *comm, size_t count, iso_dtype dtype,
                           void *x) {
    iso_request *request;
    iso_traffic moved = {0};
    if (count == 0) return ISO_OK;
    iso__count_sum(&moved, comm, count * iso_dtype_size(dtype));
    iso__periodic_add_traffic(p, &moved);
    ISO_TRY(iso_comm_iallreduce(comm, x, count, dtype, "mean over ranks", &request));
    ISO_TRY(iso_request_wait(&request));
    return ISO_OK;
}

// The mean of x, a flat array, over ranks that trained apart. ranks: how many of them count; the
// others have zeros.
static iso_status mean_over(iso__periodic *p, iso_comm *comm, int ranks, iso__flat size, float *x) {
    double *y = (void *)((char *)x + iso__flat_f64(size));
    float factor = 1.0f / (float)ranks;
    ISO_TRY(sum_over(p, comm, size.f32, ISO_F32, x));
    ISO_TRY(sum_over(p, comm, size.f64, ISO_F64, y));
    for (size_t i = 0; i < size.f32; i++) x[i] *= factor;
    for (size_t i = 0; i < size.f64; i++) y[i] /= ranks;
    return ISO_OK;
}

// Buffers never are: every rank has the statistics of its own batches.
static bool state_is_node_equal(const iso__periodic *p) {
    return p->node_equal_state && p->buffer_count == 0;
}

static iso_status exact_mean(iso__periodic *p, iso__payload payload, float *x, const float **mean) {
    iso__average *average;
    double metrics[ISO__METRICS] = {0};
    int last = iso__periodic_last(p, payload);
    ISO_TRY(iso__periodic_average_of(p, payload, &average));
    ISO_TRY(iso__periodic_fetch(p, 0, last, x));
    bool state = payload == ISO__PAYLOAD_STATE;
    if (!p->node_equal || (state && !state_is_node_equal(p)))
        ISO_TRY(mean_over(p, p->node, iso_comm_size(p->node), iso__periodic_flat(p, 0, last), x));
    ISO_TRY(iso__average_start(average, x, ISO__SHARDS, metrics));
    ISO_TRY(iso__average_finish(average, mean, metrics));
    return ISO_OK;
}

iso_status iso__periodic_exact_mean(iso__periodic *p, iso__payload payload, const float **mean) {
    if (p->match.choose) return p->match.choose(p, payload, mean);
    void *room = NULL; // the state is asked for once in a run
    size_t bytes = iso__flat_bytes(iso__periodic_flat(p, 0, iso__periodic_last(p, payload)));
    iso_status status = ISO_OK;
    if (payload == ISO__PAYLOAD_STATE)
        status = iso_comm_agree(p->comm, iso__pinned_alloc(p->device, bytes, &room));
    if (status == ISO_OK) status = exact_mean(p, payload, room ? room : p->room, mean);
    iso__pinned_free(p->device, room);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Shards of optimizer state (ZeRO) -------------------------------------------------------------

static void add_flat(iso__flat size, const void *from, void *to) {
    const double *y = (const void *)((const char *)from + iso__flat_f64(size));
    double *sum = (void *)((char *)to + iso__flat_f64(size));
    for (size_t i = 0; i < size.f32; i++) ((float *)to)[i] += ((const float *)from)[i];
    for (size_t i = 0; i < size.f64; i++) sum[i] += y[i];
}

static void divide_flat(iso__flat size, int nodes, void *x) {
    double *y = (void *)((char *)x + iso__flat_f64(size));
    for (size_t i = 0; i < size.f32; i++) ((float *)x)[i] /= (float)nodes;
    for (size_t i = 0; i < size.f64; i++) y[i] /= nodes;
}

// Adds in the order of the nodes, as an exact mean does, so that the bits are the same. own: this
// rank's shards. from: room for those of another node.
static iso_status mean_of_nodes(iso__periodic *p, iso__flat size, const void *own, void *from,
                                void *sum) {
    int nodes = iso_comm_size(p->across);
    size_t bytes = iso__flat_bytes(size);
    iso_traffic moved = {0};
    iso__count_blocks(&moved, p->across, bytes);
    iso__periodic_add_traffic(p, &moved);
    for (int k = 0; k < nodes; k++) {
        if (k == iso_comm_rank(p->across)) memcpy(from, own, bytes);
        ISO_TRY(iso_comm_bcast(p->across, from, bytes, k));
        if (k == 0)
            memcpy(sum, from, bytes);
        else
            add_flat(size, from, sum);
    }
    divide_flat(size, nodes, sum);
    return ISO_OK;
}

iso_status iso__periodic_mean_shards(iso__periodic *p) {
    int first = p->common_count, last = p->span_count;
    iso__flat size = iso__periodic_flat(p, first, last);
    size_t bytes = iso__flat_bytes(size);
    void *room = NULL; // once in a run
    if (!p->across) return ISO_OK;
    iso_status status = iso_comm_agree(p->comm, iso__pinned_alloc(p->device, 3 * bytes, &room));
    char *own = room;
    if (status == ISO_OK) status = iso__periodic_fetch(p, first, last, room);
    if (status == ISO_OK) status = mean_of_nodes(p, size, own, own + bytes, own + 2 * bytes);
    if (status == ISO_OK)
        status = iso__periodic_put(p, first, last, (float *)(void *)(own + 2 * bytes));
    iso__pinned_free(p->device, room);
    ISO_TRY(status);
    return ISO_OK;
}

// Ranks that train apart may have skipped updates of different parameters. Products shrink with
// each update.
iso_status iso__periodic_agree_on_steps(iso__periodic *p, iso_comm *comm) {
    iso__base_optimizer *core = iso__optimizer_innermost(p->inner);
    if (!p->steps) return ISO_OK;
    double *step = p->steps, *product = step + core->count;
    for (int i = 0; i < core->count; i++) {
        step[i] = (double)core->slot[i].step;
        product[i] = -core->slot[i].product;
    }
    ISO_TRY(iso_comm_allreduce_f64(comm, p->steps, 2 * (size_t)core->count, ISO_MAX));
    for (int i = 0; i < core->count; i++) {
        core->slot[i].step = (int64_t)step[i];
        core->slot[i].product = -product[i];
    }
    return ISO_OK;
}

iso_status iso__periodic_node_average(iso__periodic *p) {
    int last = iso__periodic_last(p, ISO__PAYLOAD_WIRE);
    bool state = last > p->parameter_count;
    if (p->node_equal && (!state || state_is_node_equal(p))) return ISO_OK;
    int64_t start = iso_now();
    ISO_TRY(iso__periodic_fetch(p, 0, last, p->room));
    ISO_TRY(mean_over(p, p->node, iso_comm_size(p->node), iso__periodic_flat(p, 0, last), p->room));
    ISO_TRY(iso__periodic_put(p, 0, last, p->room));
    if (state) ISO_TRY(iso__periodic_agree_on_steps(p, p->node));
    p->node_equal = true;
    p->node_equal_state = p->node_equal_state || state;
    p->stats.work_ms += (double)(iso_now() - start) * 1e-6;
    return ISO_OK;
}

// Uses p->room, which the next send fills anew.
iso_status iso__periodic_mean_buffers(iso__periodic *p, iso_comm *comm) {
    if (p->buffer_count == 0 || iso_comm_size(comm) == 1) return ISO_OK;
    int first = p->parameter_count, last = first + p->buffer_count;
    iso__flat size = iso__periodic_flat(p, first, last);
    int ranks = comm == p->comm ? iso__periodic_trainers(p) : iso_comm_size(comm);
    ISO_TRY(iso__periodic_fetch(p, first, last, p->room));
    if (p->serves) memset(p->room, 0, iso__flat_bytes(size));
    ISO_TRY(mean_over(p, comm, ranks, size, p->room));
    return iso__periodic_put(p, first, last, p->room);
}

iso_status iso__periodic_node_copy(iso__periodic *p, int group) {
    if (iso_comm_size(p->node) == 1) return ISO_OK;
    int64_t start = iso_now();
    int root = group % iso_comm_size(p->node);
    iso_traffic moved = {0};
    ISO_TRY(iso__periodic_map(p, 0, p->parameter_count));
    for (int i = 0; i < p->parameter_count; i++)
        ISO_TRY(iso_comm_bcast(p->node, p->span[i].host, iso__span_bytes(&p->span[i]), root));
    ISO_TRY(iso__periodic_unmap(p, 0, p->parameter_count));
    for (int i = 0; i < p->parameter_count; i++)
        iso__count_blocks(&moved, p->node, iso__span_bytes(&p->span[i]));
    if (iso_comm_rank(p->node) == root) iso__periodic_add_traffic(p, &moved);
    p->node_equal = true;
    p->stats.work_ms += (double)(iso_now() - start) * 1e-6;
    return ISO_OK;
}
