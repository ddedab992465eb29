// SPDX-License-Identifier: MIT
// For tests of the parameter server: a serial model of all ranks.
#include "common/server_model.h"

#include "tensor/tensor_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE, PUSHED, ANSWERED };                         // ways of a push
enum { SERVED = 1, MERGED = 2, MEETING = 4, RANKS = 8 }; // actions of a change

// ---- Values ---------------------------------------------------------------------------------------

// Elements of both types, as doubles; NULL: only counts. narrow may be NULL.
static bool read_values(iso_module *module, double *to, bool *narrow, int64_t *count) {
    iso_parameter_list list;
    *count = 0;
    if (iso_data_parallel_finish(module) < 0 || iso_module_parameters(module, &list) < 0)
        return false;
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        void *data;
        if (iso_tensor_map(value, ISO_READ, &data) < 0) return false;
        for (int64_t k = 0; k < value->count; k++, (*count)++) {
            bool f32 = value->dtype == ISO_F32;
            if (to) to[*count] = f32 ? (double)((float *)data)[k] : ((double *)data)[k];
            if (narrow) narrow[*count] = f32;
        }
        if (iso_tensor_unmap(value) < 0) return false;
    }
    iso_parameter_list_destroy(&list);
    return true;
}

// Of every type each server has equally many elements, rounded up, in the order of the ranks.
static void choose_shards(server_model *m) {
    int64_t all[2] = {0}, seen[2] = {0}, shards = m->ranks - m->first;
    for (int64_t i = 0; i < m->count; i++) all[m->narrow[i]]++;
    for (int64_t i = 0; i < m->count; i++) {
        int k = m->narrow[i];
        m->shard[i] = m->first + (int)(seen[k]++ / ((all[k] + shards - 1) / shards));
    }
}

static double *numbers(int64_t count) { return calloc((size_t)count, sizeof(double)); }

bool server_model_open(server_model *m, iso_module *module, int ranks, int servers, int64_t steps,
                       double scale, int64_t period) {
    *m = (server_model){.ranks = ranks, .steps = steps, .period = period};
    m->all_train = servers == 0;
    m->first = servers > 0 ? ranks - servers : 0;
    m->scale = scale > 0 ? scale : 1.0 / (ranks - servers);
    if (!read_values(module, NULL, NULL, &m->count)) return false;
    m->narrow = calloc((size_t)m->count, sizeof(bool));
    m->shard = calloc((size_t)m->count, sizeof(int));
    m->start = numbers(m->count);
    m->copy = numbers(m->count);
    m->kept = numbers(m->count * (steps + 1));
    for (int r = 0; r < ranks; r++) {
        m->now[r] = numbers(m->count);
        m->known[r] = numbers(m->count);
        m->changes[r] = numbers(m->count);
        m->answer[r] = numbers(m->count);
        m->wanted[r] = numbers(m->count * (steps + 1));
    }
    bool read = read_values(module, m->start, m->narrow, &m->count);
    choose_shards(m);
    return read;
}

void server_model_close(server_model *m) {
    for (int r = 0; r < m->ranks; r++) {
        free(m->now[r]);
        free(m->known[r]);
        free(m->changes[r]);
        free(m->answer[r]);
        free(m->wanted[r]);
    }
    free(m->narrow);
    free(m->shard);
    free(m->start);
    free(m->copy);
    free(m->kept);
}

bool server_model_keep(server_model *m, iso_module *module, int64_t step) {
    int64_t count;
    return read_values(module, m->kept + step * m->count, NULL, &count) && count == m->count;
}

// ---- The formulas ---------------------------------------------------------------------------------

// As the element's type represents it.
static double as_typed(const server_model *m, int64_t i, double x) {
    return m->narrow[i] ? (double)(float)x : x;
}

static double change_of(const server_model *m, int rank, int64_t i) {
    double gap = as_typed(m, i, m->now[rank][i] - m->known[rank][i]);
    return as_typed(m, i, as_typed(m, i, m->scale) * gap);
}

static void add_push(server_model *m, int rank, int server) {
    for (int64_t i = 0; i < m->count; i++)
        if (m->shard[i] == server) m->copy[i] = as_typed(m, i, m->copy[i] + m->changes[rank][i]);
}

static void give_answer(server_model *m, int rank, int server) {
    for (int64_t i = 0; i < m->count; i++)
        if (m->shard[i] == server) m->answer[rank][i] = m->copy[i];
}

static void push_shard(server_model *m, int rank, int server) {
    for (int64_t i = 0; i < m->count; i++) {
        if (m->shard[i] != server) continue;
        m->changes[rank][i] = change_of(m, rank, i);
        m->known[rank][i] = m->now[rank][i];
    }
}

static void merge_shard(server_model *m, int rank, int server) {
    for (int64_t i = 0; i < m->count; i++) {
        if (m->shard[i] != server) continue;
        double own = as_typed(m, i, m->now[rank][i] - m->known[rank][i]);
        m->now[rank][i] = as_typed(m, i, m->answer[rank][i] + own);
        m->known[rank][i] = m->answer[rank][i];
    }
}

static bool trains(const server_model *m, int rank) { return m->all_train || rank < m->first; }

static void update_rank(server_model *m, int rank, float drift) {
    if (!trains(m, rank)) return;
    for (int64_t i = 0; i < m->count; i++) {
        float step = drift * (float)(i % 7);
        m->now[rank][i] = as_typed(m, i, m->now[rank][i] + (double)step);
    }
}

// ---- A rank ---------------------------------------------------------------------------------------

typedef struct place {
    int64_t step; // the one that it makes
    int next;     // change that was told
    bool updated; // this step has
    bool ends;    // it is where ranks meet, and has done what was told
} place;

static void begin_rank(server_model *m, int rank) {
    memcpy(m->known[rank], m->now[rank], (size_t)m->count * sizeof(double));
    for (int64_t i = 0; i < m->count; i++)
        if (m->shard[i] == rank) m->copy[i] = m->now[rank][i];
}

// Returns false if it has to wait for another rank.
static bool do_change(server_model *m, int rank, int actions) {
    int with = actions / RANKS;
    if (actions & SERVED) {
        if (m->way[with][rank] != PUSHED) return false;
        add_push(m, with, rank);
        give_answer(m, with, rank);
        m->way[with][rank] = ANSWERED;
    } else {
        if (m->way[rank][with] != ANSWERED) return false;
        merge_shard(m, rank, with);
        m->way[rank][with] = IDLE;
    }
    return true;
}

static void push_due(server_model *m, int rank, int64_t step) {
    for (int s = m->first; s < m->ranks && trains(m, rank); s++) {
        if (step - m->pushed_at[rank][s] < m->period || m->way[rank][s] != IDLE) continue;
        push_shard(m, rank, s);
        m->pushed_at[rank][s] = step;
        m->way[rank][s] = PUSHED;
        if (s != rank) continue;
        add_push(m, rank, s);
        give_answer(m, rank, s);
        merge_shard(m, rank, s);
        m->way[rank][s] = IDLE;
    }
}

static void keep_wanted(server_model *m, int rank, int64_t step) {
    memcpy(m->wanted[rank] + step * m->count, m->now[rank], (size_t)m->count * sizeof(double));
}

// Goes on until the rank has to wait. Returns whether it did something.
static bool advance_rank(server_model *m, int rank, place *at, const iso_daso_change *told,
                         int count, float (*drift)(int rank, int64_t step)) {
    bool did = false;
    while (!at->ends) {
        if (!at->updated) {
            update_rank(m, rank, drift(rank, at->step));
            if (at->step == 1) begin_rank(m, rank);
            at->updated = did = true;
        }
        bool last = at->step == m->steps;
        for (; at->next < count && told[at->next].step == at->step; at->next++) {
            if (!(told[at->next].actions & MEETING) == last) return did; // told of the wrong place
            if (!do_change(m, rank, told[at->next].actions)) return did;
            did = true;
        }
        at->ends = last;
        if (last) break;
        push_due(m, rank, at->step);
        keep_wanted(m, rank, at->step++);
        at->updated = false;
    }
    return did;
}

static bool all_meet(server_model *m) {
    for (int r = 0; r < m->ranks; r++)
        for (int s = 0; s < m->ranks; s++) {
            if (m->way[r][s] != IDLE) return false; // an answer is outstanding
            push_shard(m, r, s);
        }
    for (int s = 0; s < m->ranks; s++)
        for (int r = 0; r < m->ranks; r++) add_push(m, r, s);
    for (int r = 0; r < m->ranks; r++) {
        for (int s = 0; s < m->ranks; s++) {
            give_answer(m, r, s);
            merge_shard(m, r, s);
        }
        keep_wanted(m, r, m->steps);
    }
    return true;
}

bool server_model_run(server_model *m, const iso_daso_change *told, int count,
                      float (*drift)(int rank, int64_t step)) {
    place at[SERVER_RANKS];
    iso_daso_change *own[SERVER_RANKS]; // changes of each rank
    int owns[SERVER_RANKS] = {0};
    bool moves = true, end = true;
    for (int r = 0; r < m->ranks; r++) {
        at[r] = (place){.step = 1};
        own[r] = calloc((size_t)count + 1, sizeof(*told));
        for (int i = 0; i < count; i++)
            if (told[i].rank == r) own[r][owns[r]++] = told[i];
        memcpy(m->now[r], m->start, (size_t)m->count * sizeof(double));
    }
    while (moves) {
        moves = false;
        for (int r = 0; r < m->ranks; r++)
            moves = advance_rank(m, r, &at[r], own[r], owns[r], drift) || moves;
    }
    for (int r = 0; r < m->ranks; r++) {
        end = end && at[r].ends && at[r].next == owns[r];
        free(own[r]);
    }
    return end && all_meet(m);
}

bool server_model_agrees(const server_model *m, int rank) {
    for (int64_t step = 1; step <= m->steps; step++)
        for (int64_t i = 0; i < m->count; i++) {
            double is = m->kept[step * m->count + i], wanted = m->wanted[rank][step * m->count + i];
            if (is == wanted) continue;
            fprintf(stderr, "rank %d, step %lld, element %lld is %.17g, not %.17g\n", rank,
                    (long long)step, (long long)i, is, wanted);
            return false;
        }
    return true;
}
