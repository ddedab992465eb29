// SPDX-License-Identifier: MIT
// Tournaments: what takes the place of merges and of the mean over all ranks. The trainers are the
// nodes of the engine. See isotherm/tournament.h.
//
// The exchange of a tournament brings the partner's model. While it is under way, a trainer scores
// its own one. All ranks meet when scores are known: they agree on whether one failed, and every
// rank gets all scores, so the ranks of a trainer decide the same.
#include "optim/periodic/periodic.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"
#include "nn/nn_impl.h"
#include "optim/resume/resume_impl.h"
#include "parallel/parallel_impl.h"

#include <math.h>

// Sums over the ranks of a trainer, in a table with a row for each trainer.
enum { LOSS, ACCURACY, SAMPLES, SCORED, ROOT = 2 * SCORED, COLUMNS };

// ---- Scores ---------------------------------------------------------------------------------------

static iso_status keep_modes(const iso__periodic *p, const iso_module *model) {
    int count = iso__module_count(model);
    ISO_CHECK(count == p->match.module_count, ISO_ERR_STATE,
              "the model had %d modules when the tournament was created, and now has %d: create "
              "it after the last change of the model",
              p->match.module_count, count);
    iso__module_get_modes(model, p->match.mode);
    return ISO_OK;
}

// A layer that the program keeps in evaluation mode stays in it. `score` may change modes, too, as
// iso_evaluate does.
static iso_status score_model(const iso__periodic *p, iso_evaluation *out) {
    const iso_tournament *t = p->config.tournament;
    iso_module *model = iso_data_parallel_module(p->data_parallel);
    const bool *mode = p->match.mode;
    *out = (iso_evaluation){.loss = NAN, .accuracy = NAN};
    ISO_TRY(keep_modes(p, model));
    iso_status status = iso_module_train(model, false);
    if (status == ISO_OK) status = t->score(model, out, t->user);
    iso_status back = iso__module_set_modes(model, &mode);
    ISO_TRY(status);
    ISO_TRY(back);
    return ISO_OK;
}

void iso__match_score_own(iso__periodic *p) {
    if (!p->config.tournament) return;
    p->match.status = iso__periodic_mean_buffers(p, p->node);
    if (p->match.status == ISO_OK) p->match.status = score_model(p, &p->match.own);
}

// Without samples, loss and accuracy say nothing, and may be NaN.
static void add_score(double *row, const iso_evaluation *score) {
    if (score->samples <= 0) return;
    row[LOSS] = score->loss * (double)score->samples;
    row[ACCURACY] = score->accuracy * (double)score->samples;
    row[SAMPLES] = (double)score->samples;
}

// All ranks have the table, so all of them refuse the same.
static iso_status check_samples(const iso__periodic *p) {
    for (int i = 0; i < p->layout->nodes; i++)
        ISO_CHECK(p->match.table[i * COLUMNS + SAMPLES] > 0, ISO_ERR_ARG,
                  "trainer %d has no held-out samples: let `score` of the tournament use at least "
                  "one on any of its ranks",
                  i);
    return ISO_OK;
}

// theirs: NULL if there is no other model. NaN and infinity stay in their row.
static iso_status share_scores(iso__periodic *p, const iso_evaluation *theirs) {
    size_t count = (size_t)p->layout->nodes * COLUMNS;
    double *row = p->match.table + p->layout->node_index * COLUMNS;
    for (size_t i = 0; i < count; i++) p->match.table[i] = 0;
    add_score(row, &p->match.own);
    if (theirs) add_score(row + SCORED, theirs);
    if (p->layout->local_rank == 0) row[ROOT] = iso_comm_rank(p->comm);
    ISO_TRY(iso_comm_allreduce_f64(p->comm, p->match.table, count, ISO_SUM));
    return check_samples(p);
}

// The score of a trainer's own model, or (theirs) of its partner's.
static double score_of(const iso__periodic *p, int trainer, bool theirs) {
    const double *row = p->match.table + trainer * COLUMNS + (theirs ? SCORED : 0);
    bool loss = p->config.tournament->metric == ISO_TOURNAMENT_LOSS;
    return row[SAMPLES] > 0 ? row[loss ? LOSS : ACCURACY] / row[SAMPLES] : NAN;
}

// ---- A tournament ---------------------------------------------------------------------------------

int iso__match_partner(iso__periodic *p, int64_t turn) {
    iso__match *m = &p->match;
    iso__tournament_pairs(p->config.tournament->seed, turn, p->layout->nodes, m->order, m->partner);
    return m->partner[p->layout->node_index];
}

static iso_match match_of(const iso__periodic *p, int trainer) {
    iso_match match = {.step = p->stats.steps,
                       .trainer = trainer,
                       .partner = p->match.partner[trainer],
                       .own = score_of(p, trainer, false)};
    bool alone = match.partner == trainer;
    match.theirs = alone ? match.own : score_of(p, trainer, true);
    match.took = iso__tournament_better(p->config.tournament->metric, match.theirs, match.own);
    match.hyper = iso__match_hyper_of(p, trainer);
    match.hyper_count = p->match.hyper_count;
    return match;
}

static void tell_matches(const iso__periodic *p) {
    const iso_tournament *t = p->config.tournament;
    if (iso_comm_rank(p->comm) != 0) return;
    for (int i = 0; i < p->layout->nodes; i++) {
        iso_match m = match_of(p, i);
        if (m.partner != i)
            iso__log(ISO_LOG_INFO,
                     "tournament after step %lld: trainer %d (%g) %s the model of trainer %d (%g)",
                     (long long)m.step, i, m.own, m.took ? "takes" : "does not take", m.partner,
                     m.theirs);
        for (int k = 0; m.took && k < m.hyper_count; k++)
            iso__log(ISO_LOG_INFO, "tournament after step %lld: trainer %d goes on with %s %g",
                     (long long)m.step, i, p->match.hyper[k].name, m.hyper[k]);
        if (t->told) t->told(&m, t->user);
    }
}

// Keeps the own model in p->room, puts the partner's model in its place, and scores it.
static iso_status try_model(iso__periodic *p, const iso__periodic_exchange *x, const float *model,
                            iso_evaluation *score, bool *kept) {
    ISO_TRY(p->match.status);
    ISO_TRY(iso__periodic_fetch(p, x->first, x->last, p->room));
    *kept = true;
    // Writing to `model` is safe: the exchange is complete, and its memory is not used until the
    // next.
    iso__match_choice_keep(p, (float *)model, p->room);
    ISO_TRY(iso__periodic_put(p, x->first, x->last, model));
    ISO_TRY(score_model(p, score));
    return ISO_OK;
}

// The model that was taken is in place.
static iso_status mutate_model(const iso__periodic *p, int64_t turn, bool took) {
    const iso_tournament *t = p->config.tournament;
    if (!t->mutate_model) return ISO_OK;
    iso_status status = ISO_OK;
    uint64_t random = iso__tournament_random_model(t->seed, turn, p->layout->node_index);
    if (took) status = t->mutate_model(iso_data_parallel_module(p->data_parallel), random, t->user);
    return iso_comm_agree(p->comm, status);
}

// The number of updates of each parameter, and the product of their factors.
enum { NUMBERS = 2 };

static void list_updates(const iso__base_optimizer *core, double *number) {
    for (int i = 0; i < core->count; i++) {
        number[NUMBERS * i] = (double)core->slot[i].step;
        number[NUMBERS * i + 1] = core->slot[i].product;
    }
}

static void take_updates(iso__base_optimizer *core, const double *number, const bool *stays) {
    for (int i = 0; i < core->count; i++) {
        if (stays && stays[i]) continue;
        core->slot[i].step = (int64_t)number[NUMBERS * i];
        core->slot[i].product = number[NUMBERS * i + 1];
    }
}

// Optimizer state has moved: these numbers go with it, but for those of parameters that stay. They
// are equal on all trainers without parameters that are unused in a step, with a rule that counts
// every update and has no factors (NAdam has some).
static iso_status move_updates(iso__periodic *p, int from, const bool *stays) {
    iso__base_optimizer *core = iso__optimizer_innermost(p->inner);
    size_t row = NUMBERS * (size_t)core->count, count = row * (size_t)p->layout->nodes;
    void *memory;
    const iso__rule *rule = iso__rule_of(core);
    if (!p->steps && !rule->factor && !rule->counts) return ISO_OK;
    ISO_TRY(iso__comm_alloc_zero(p->comm, count * sizeof(double), &memory));
    double *table = memory;
    if (p->layout->local_rank == 0) list_updates(core, table + row * (size_t)p->layout->node_index);
    iso_status status = iso_comm_allreduce_f64(p->comm, table, count, ISO_SUM);
    if (status == ISO_OK) take_updates(core, table + row * (size_t)from, stays);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__match_merge(iso__periodic *p, iso__periodic_exchange *x, const float *model) {
    iso_evaluation score;
    int own = p->layout->node_index;
    bool alone = iso__match_partner(p, x->turns) == own, kept = false;
    iso_status status = alone ? p->match.status : try_model(p, x, model, &score, &kept);
    status = iso_comm_agree(p->comm, status);
    if (status == ISO_OK) status = share_scores(p, alone ? NULL : &score);
    bool took = status == ISO_OK && match_of(p, own).took;
    if (status == ISO_OK) status = iso__match_hyper_move(p, x->turns, took);
    if (status == ISO_OK) status = mutate_model(p, x->turns, took);
    took = took && status == ISO_OK;
    iso_status back = ISO_OK;
    if (kept && !took) back = iso__periodic_put(p, x->first, x->last, p->room);
    ISO_TRY(status); // all ranks have this error
    ISO_TRY(iso_comm_agree(p->comm, back));
    iso__match_hyper_put(p);
    x->turns++;
    tell_matches(p);
    if (p->config.tournament->keep_state) return ISO_OK;
    return move_updates(p, took ? p->match.partner[own] : own, p->match.own_state);
}

// ---- One model for all ----------------------------------------------------------------------------

static int best_trainer(const iso__periodic *p) {
    int best = 0;
    for (int i = 1; i < p->layout->nodes; i++)
        if (iso__tournament_better(p->config.tournament->metric, score_of(p, i, false),
                                   score_of(p, best, false)))
            best = i;
    return best;
}

static iso_status send_model(iso__periodic *p, int last, int root) {
    iso_traffic moved = {0};
    iso_status status = ISO_OK;
    size_t bytes = iso__flat_bytes(iso__periodic_flat(p, 0, last));
    if (iso_comm_rank(p->comm) == root) {
        iso__count_blocks(&moved, p->comm, bytes);
        status = iso__periodic_fetch(p, 0, last, p->room);
    }
    ISO_TRY(iso_comm_agree(p->comm, status));
    iso__periodic_add_traffic(p, &moved);
    ISO_TRY(iso_comm_bcast(p->comm, p->room, bytes, root));
    return ISO_OK;
}

static iso_status choose_model(iso__periodic *p, iso__payload payload, const float **model) {
    iso__match_score_own(p);
    ISO_TRY(iso_comm_agree(p->comm, p->match.status));
    ISO_TRY(share_scores(p, NULL));
    int best = best_trainer(p);
    ISO_TRY(
        send_model(p, iso__periodic_last(p, payload), (int)p->match.table[best * COLUMNS + ROOT]));
    if (payload == ISO__PAYLOAD_STATE) ISO_TRY(move_updates(p, best, NULL));
    if (iso_comm_rank(p->comm) == 0)
        iso__log(ISO_LOG_INFO, "after step %lld the best model is that of trainer %d: %g",
                 (long long)p->stats.steps, best, score_of(p, best, false));
    p->match.chosen = true;
    *model = p->room;
    return ISO_OK;
}

// ---- Life -----------------------------------------------------------------------------------------

static iso_status allocate_match(iso__match *m, int trainers, const iso_module *model) {
    size_t count = (size_t)trainers;
    m->module_count = iso__module_count(model);
    ISO_TRY(iso__alloc_zero((size_t)m->module_count * sizeof(*m->mode), (void **)&m->mode));
    ISO_TRY(iso__alloc_zero(count * sizeof(*m->order), (void **)&m->order));
    ISO_TRY(iso__alloc_zero(count * sizeof(*m->partner), (void **)&m->partner));
    return iso__alloc_zero(count * COLUMNS * sizeof(*m->table), (void **)&m->table);
}

// Hashes which ranks form which trainer: their numbers alone do not tell.
static iso_status hash_members(const iso__periodic *p, int64_t *out) {
    void *memory;
    size_t ranks = (size_t)iso_comm_size(p->comm);
    ISO_TRY(iso__comm_alloc_zero(p->comm, ranks * sizeof(int64_t), &memory));
    int64_t *trainer = memory;
    trainer[iso_comm_rank(p->comm)] = p->layout->node_index;
    iso_status status = iso_comm_allreduce_i64(p->comm, trainer, ranks, ISO_SUM);
    *out = (int64_t)iso__hash(ISO_HASH_START, trainer, ranks * sizeof(*trainer));
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status agree_on_choice(iso__periodic *p) {
    uint64_t hash = 0;
    ISO_TRY(iso_comm_agree(p->comm, iso__match_choice_open(p, &hash)));
    int64_t half = (int64_t)(hash >> 1), most[2] = {half, -half};
    ISO_TRY(iso_comm_allreduce_i64(p->comm, most, 2, ISO_MAX));
    ISO_CHECK(most[0] == -most[1], ISO_ERR_MISMATCH,
              "ranks let different parameters move in tournaments: let `moves` choose the same on "
              "all ranks");
    return ISO_OK;
}

// With mutate_model, trainers run different layers, and a buffer of each says which ones.
static iso_status check_buffers(const iso__periodic *p) {
    const iso_buffer_config *c = &iso__data_parallel_buffers(p->data_parallel)->config;
    bool apart = c->when == ISO_BUFFERS_AT_EVALUATION || c->mode == ISO_BUFFERS_NONE;
    ISO_CHECK(apart || !p->config.tournament->mutate_model, ISO_ERR_ARG,
              "a tournament with mutate_model gives trainers different layers, and the buffers of "
              "all ranks are synchronised in training: set buffers.when to "
              "ISO_BUFFERS_AT_EVALUATION");
    return ISO_OK;
}

iso_status iso__match_open(iso__periodic *p) {
    int trainers = p->layout->nodes, ranks = iso_comm_size(p->comm);
    if (!p->config.tournament) return ISO_OK;
    const iso_module *model = iso_data_parallel_module(p->data_parallel);
    ISO_TRY(iso_comm_agree(p->comm, check_buffers(p)));
    ISO_TRY(iso_comm_agree(p->comm, allocate_match(&p->match, trainers, model)));
    ISO_TRY(hash_members(p, &p->match.members));
    ISO_TRY(agree_on_choice(p));
    ISO_TRY(iso__match_hyper_open(p));
    p->match.choose = choose_model;
    if (trainers == 1 && ranks > 1 && iso_comm_rank(p->comm) == 0)
        iso__log(ISO_LOG_WARN,
                 "there is one trainer, of %d ranks, and no tournament: to make each rank a "
                 "trainer, set the unit ISO_SCOPE_RANK (iso-train: --unit rank)",
                 ranks);
    return ISO_OK;
}

void iso__match_close(iso__periodic *p) {
    iso__free(p->match.order);
    iso__free(p->match.partner);
    iso__free(p->match.table);
    iso__free(p->match.mode);
    iso__match_hyper_close(p);
    iso__match_choice_close(p);
    p->match = (iso__match){0};
}

// ---- Saved state ----------------------------------------------------------------------------------

enum { TRAINERS, RANKS, MEMBERS, CHOSEN, HYPERS };

static void list_numbers(const iso__periodic *p, int64_t out[ISO__MATCH_NUMBERS]) {
    out[TRAINERS] = p->layout->nodes;
    out[RANKS] = iso_comm_size(p->comm);
    out[MEMBERS] = p->match.members;
    out[CHOSEN] = p->match.chosen;
    out[HYPERS] = p->match.hypers;
}

iso_status iso__match_state(iso__periodic *p, iso_state *state) {
    if (!p->config.tournament) return ISO_OK;
    list_numbers(p, p->match.saved);
    ISO_TRY(iso__state_add_own(state, ISO_OWN_RANK0, "daso/trainers", ISO_STATE_I64,
                               ISO__MATCH_NUMBERS, p->match.saved));
    return iso__match_hyper_state(p, state);
}

// Each trainer has a model of its own. On other ranks only the mean of all models could be loaded.
iso_status iso__match_loaded(iso__periodic *p) {
    int64_t mine[ISO__MATCH_NUMBERS];
    const int64_t *saved = p->match.saved;
    if (!p->config.tournament) return ISO_OK;
    list_numbers(p, mine);
    ISO_CHECK(mine[TRAINERS] == saved[TRAINERS] && mine[RANKS] == saved[RANKS], ISO_ERR_MISMATCH,
              "the state was saved by a tournament of %lld trainer%s on %lld rank%s, and this one "
              "has %lld on %lld: continue on as many, or start a new run from a checkpoint",
              (long long)saved[TRAINERS], ISO_PLURAL(saved[TRAINERS]), (long long)saved[RANKS],
              ISO_PLURAL(saved[RANKS]), (long long)mine[TRAINERS], (long long)mine[RANKS]);
    ISO_CHECK(mine[MEMBERS] == saved[MEMBERS], ISO_ERR_MISMATCH,
              "the state was saved by a tournament of %lld trainer%s that had other ranks than "
              "those of this one: continue with the same ranks in each node, or start a new run "
              "from a checkpoint",
              (long long)saved[TRAINERS], ISO_PLURAL(saved[TRAINERS]));
    ISO_CHECK(mine[HYPERS] == saved[HYPERS], ISO_ERR_MISMATCH,
              "the state was saved by a tournament with other hyperparameters: list the same, in "
              "the same order and with the same limits");
    p->match.chosen = saved[CHOSEN];
    return iso__match_hyper_loaded(p);
}
