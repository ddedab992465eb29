// SPDX-License-Identifier: MIT
// Join: ranks that have run out of data take part in the exchanges of the ranks that continue.
#include "comm/comm_calls.h"
#include "comm/same_lines.h"
#include "parallel/data_parallel_impl.h"

#include <inttypes.h>
#include <isotherm/join.h>

#define WARN_SHADOWS 1000

struct iso_join {
    iso_join_config config;
    iso_module **model; // [models], retained
    int models;
    iso_comm *comm; // of the first model
    int64_t *said;  // [ranks], see encode_samples
    int64_t *count; // [modules], of forwards in all models, one model after the other
    int count_room;
    // Since the last exchange. steps: batches. mine: batches for which this rank had data. samples,
    // all_samples: of this rank, and of all ranks. contributors: ranks that had a batch.
    int64_t steps, mine, samples, all_samples;
    int contributors;
    int64_t shadows;
    bool through; // all ranks are out of data
    bool failed;  // a call has failed, so ranks may be in different states
};

static iso__data_parallel *model_of(const iso_join *join, int k) {
    return iso__data_parallel_of(join->model[k]);
}

// Adds the number of the model to its error, if there are several models.
static iso_status name_model(iso_status status, int k, int models) {
    if (status >= 0 || models == 1) return status;
    iso_error said = *iso_last_error();
    return ISO_FAIL(status, "data_parallels[%d]: %.480s", k, said.message);
}

// ---- Beginning and end ------------------------------------------------------------------------------

static iso_status find_shared_norm(iso_module *module, const char *path, void *user) {
    ISO_CHECK(iso__batch_norm_features(module) == 0 || !iso__batch_norm_user(module),
              ISO_ERR_UNSUPPORTED,
              "\"%s\" shares its statistics with all ranks and needs a batch on each: use "
              "ISO_JOIN_THROW or ISO_JOIN_EQUALISE with SyncBatchNorm",
              path);
    (void)user;
    return ISO_OK;
}

static iso_status check_shadow(const iso__data_parallel *self, const iso_join_config *config) {
    if (iso_comm_size(self->comm) == 1) return ISO_OK;
    ISO_TRY(iso_module_walk(self->base.child[0], find_shared_norm, NULL));
    ISO_CHECK(config->step || iso__reducer_appliers(self->reducer) == 0, ISO_ERR_ARG,
              "join in shadow mode needs a step function: a rank without data has to make the "
              "optimizer's step to stay equal to the others");
    return ISO_OK;
}

// Called in every step, because periodic synchronisation may begin or end during a join.
static iso_status check_scope(const iso__data_parallel *self, const iso_join_config *config) {
    bool anywhere = config->mode != ISO_JOIN_SHADOW && config->divisor != ISO_JOIN_SAMPLES;
    bool world = iso__reducer_scope(self->reducer) == ISO_SCOPE_WORLD && !self->hook;
    ISO_CHECK(anywhere || world, ISO_ERR_UNSUPPORTED,
              "join averages gradients over all ranks in every step, and this model does not "
              "(a node's scope, daso or another periodic mode): use ISO_JOIN_EQUALISE or "
              "ISO_JOIN_THROW, and not ISO_JOIN_SAMPLES");
    return ISO_OK;
}

static iso_status check_config(const iso_join_config *config, int models) {
    ISO_CHECK(models > 0, ISO_ERR_ARG, "a join of %d models: give at least one", models);
    ISO_CHECK((int)config->mode >= 0 && config->mode <= ISO_JOIN_EQUALISE, ISO_ERR_ARG,
              "unknown mode %d of join", (int)config->mode);
    ISO_CHECK((int)config->divisor >= 0 && config->divisor <= ISO_JOIN_SAMPLES, ISO_ERR_ARG,
              "unknown divisor %d of join", (int)config->divisor);
    return ISO_OK;
}

static iso_status check_model(const iso_module *module, const iso_join_config *config) {
    ISO_TRY(iso__data_parallel_check(module));
    const iso__data_parallel *self = iso_container_of(module, const iso__data_parallel, base);
    ISO_CHECK(!self->joined, ISO_ERR_STATE,
              "this data_parallel is in a join already: end that before another begins");
    if (config->disabled) return ISO_OK;
    ISO_CHECK(!self->reduce || config->divisor == ISO_JOIN_INITIAL, ISO_ERR_UNSUPPORTED,
              "join cannot weight gradients that a reduce function averages: use "
              "ISO_JOIN_INITIAL");
    ISO_TRY(check_scope(self, config));
    return config->mode == ISO_JOIN_SHADOW ? check_shadow(self, config) : ISO_OK;
}

// Checks model k against the models before it, which have passed all checks.
static iso_status check_beside(iso_module *const *models, int k) {
    for (int i = 0; i < k; i++)
        ISO_CHECK(models[i] != models[k], ISO_ERR_ARG,
                  "the same model as data_parallels[%d]: list each model once", i);
    ISO_CHECK(k == 0 || iso__comm_same_ranks(iso_data_parallel_comm(models[0]),
                                             iso_data_parallel_comm(models[k])),
              ISO_ERR_ARG,
              "its communicator has other ranks than that of data_parallels[0], or another order "
              "of them: give it a join of its own");
    return ISO_OK;
}

static iso_status check_values(iso_module *model, const iso_join_config *config, int count) {
    ISO_CHECK(count == 1 || config->mode != ISO_JOIN_SHADOW ||
                  !iso__reducer_divides_values(iso_data_parallel_reducer(model)),
              ISO_ERR_UNSUPPORTED,
              "with ZeRO stage 3 a rank without data takes part in every forward and backward of "
              "the others, and does not know their order if there are several models: use stage 2");
    return ISO_OK;
}

static iso_status check_models(iso_module *const *models, int count,
                               const iso_join_config *config) {
    ISO_TRY(check_config(config, count));
    for (int k = 0; k < count; k++) {
        ISO_TRY(name_model(check_model(models[k], config), k, count));
        ISO_TRY(name_model(check_beside(models, k), k, count));
        ISO_TRY(name_model(check_values(models[k], config, count), k, count));
    }
    return ISO_OK;
}

static iso_status create_join(iso_module *const *models, int count, const iso_join_config *config,
                              iso_join **out) {
    iso_join *join = NULL;
    iso_status status;
    ISO_TRY(check_models(models, count, config));
    ISO_TRY(iso__alloc_zero(sizeof(*join), (void **)&join));
    join->config = *config;
    join->comm = iso_data_parallel_comm(models[0]);
    for (int k = 0; k < count; k++) join->count_room += iso__module_count(models[k]);
    size_t ranks = (size_t)iso_comm_size(join->comm);
    ISO_TRY_GOTO(iso__alloc_zero((size_t)count * sizeof(*models), (void **)&join->model));
    ISO_TRY_GOTO(iso__alloc_zero(ranks * sizeof(*join->said), (void **)&join->said));
    ISO_TRY_GOTO(
        iso__alloc_zero((size_t)join->count_room * sizeof(*join->count), (void **)&join->count));
    for (; join->models < count; join->models++) {
        join->model[join->models] = iso_module_retain(models[join->models]);
        iso__data_parallel_set_joined(model_of(join, join->models), true);
    }
    *out = join;
    return ISO_OK;
fail:
    iso_join_end(&join);
    return status;
}

// Writes one line for each model. Ranks that list models in different orders write different lines.
static iso_status describe_models(const iso_join *join, char **out) {
    enum { LINE = 160 };
    ISO_TRY(iso__alloc_zero((size_t)join->models * LINE + 1, (void **)out));
    for (int k = 0, used = 0; k < join->models; k++)
        used += snprintf(*out + used, LINE,
                         "as model %d the data_parallel number %" PRId64
                         " (in the order of their creation) with %d modules and %d trainable "
                         "parameters\n",
                         k, model_of(join, k)->number, iso__module_count(join->model[k]),
                         model_of(join, k)->trainable_count);
    return ISO_OK;
}

static iso_status match_settings(const iso_join *join, iso_comm *comm, const char *models) {
    static const char *const mode[] = {"shadow", "throw", "equalise"};
    static const char *const divisor[] = {"initial", "effective", "samples"};
    const iso_join_config *config = &join->config;
    char settings[160];
    snprintf(settings, sizeof(settings),
             "mode of the join: %s\ndivisor of the join: %s\ndisabled of the join: %d\n",
             mode[config->mode], divisor[config->divisor], (int)config->disabled);
    return iso__comm_check_lines(
        comm, &(iso__lines){.list = models, .element = "model", .settings = settings});
}

// Collective once all ranks have a join.
static iso_status match_joins(const iso_join *join, iso_comm *comm) {
    char *models = NULL;
    iso_status status = iso_comm_agree(comm, describe_models(join, &models));
    if (status == ISO_OK) status = match_settings(join, comm, models);
    iso__free(models);
    ISO_TRY(status);
    return ISO_OK;
}

// The communicator on which ranks agree: that of the model that was created first, so that ranks
// meet even if they list models in different orders, or one has a module that cannot be joined.
static iso_comm *find_comm(iso_module *const *models, int count) {
    const iso__data_parallel *first = NULL;
    for (int k = 0; k < count; k++) {
        if (!iso_data_parallel_comm(models[k])) continue;
        const iso__data_parallel *self = iso__data_parallel_of(models[k]);
        if (!first || self->number < first->number) first = self;
    }
    return first ? first->comm : NULL;
}

iso_status iso_join_begin_many(iso_module *const *models, int count, const iso_join_config *config,
                               iso_join **out) {
    iso_join_config chosen = config ? *config : (iso_join_config){0};
    iso_join *join = NULL;
    iso_comm *comm = find_comm(models, count);
    iso_status status = create_join(models, count, &chosen, &join);
    if (comm) status = iso_comm_agree(comm, status);
    ISO_TRY_GOTO(status);
    ISO_TRY_GOTO(match_joins(join, comm));
    *out = join;
    return ISO_OK;
fail:
    iso_join_end(&join);
    return status;
}

iso_status iso_join_begin(iso_module *module, const iso_join_config *config, iso_join **out) {
    return iso_join_begin_many(&module, 1, config, out);
}

// Restores the weights and rows of ordinary batches.
static void restore_state(iso_join *join) {
    for (int k = 0; k < join->models; k++) {
        iso__data_parallel *self = model_of(join, k);
        iso__reducer_end_join(self->reducer);
        iso__data_parallel_place_batch(self, 1, iso_comm_size(self->comm), 0, -1);
    }
}

void iso_join_end(iso_join **pointer) {
    iso_join *join = *pointer;
    *pointer = NULL;
    if (!join) return;
    restore_state(join);
    for (int k = 0; k < join->models; k++) {
        iso__data_parallel_set_joined(model_of(join, k), false);
        iso_module_destroy(&join->model[k]);
    }
    iso__free(join->model);
    iso__free(join->said);
    iso__free(join->count);
    iso__free(join);
}

// ---- Who has data -----------------------------------------------------------------------------------

// The reports of all ranks before this step.
typedef struct census {
    int active, first_active, out, failed; // out, failed: the lowest such rank, or -1
    int syncing;                           // active ranks that will synchronise
    int64_t samples, row;                  // of all; of the ranks before this one
} census;

enum { FAILED = -1 };

// The number that a rank reports: twice its samples, plus 1 if it will synchronise; 0: no samples;
// or FAILED.
static int64_t encode_samples(int64_t samples, bool will_sync) {
    if (samples < 0) return FAILED;
    return samples == 0 ? 0 : 2 * samples + will_sync;
}

static census count_ranks(const int64_t *said, int ranks, int rank) {
    census c = {.first_active = -1, .out = -1, .failed = -1};
    for (int i = 0; i < ranks; i++) {
        if (said[i] == FAILED && c.failed < 0) c.failed = i;
        if (said[i] == 0 && c.out < 0) c.out = i;
        if (said[i] <= 0) continue;
        if (c.active++ == 0) c.first_active = i;
        c.syncing += (int)(said[i] & 1);
        if (i < rank) c.row += said[i] >> 1;
        c.samples += said[i] >> 1;
    }
    return c;
}

static iso_status judge_census(const iso_join *join, const census *c, int64_t samples) {
    ISO_CHECK(samples >= 0, ISO_ERR_STATE,
              "this rank reported failure to iso_join_next (%" PRId64 " samples)", samples);
    ISO_CHECK(c->failed < 0, ISO_ERR_STATE, "rank %d reported failure to iso_join_next", c->failed);
    if (join->config.mode == ISO_JOIN_THROW && c->active > 0) {
        ISO_CHECK(
            samples > 0, ISO_ERR_STATE,
            "rank %d ran out of data while %d other%s ha%s more: give all ranks as many batches",
            iso_comm_rank(join->comm), c->active, ISO_PLURAL(c->active),
            c->active == 1 ? "s" : "ve");
        ISO_CHECK(
            c->out < 0, ISO_ERR_STATE,
            "rank %d ran out of data while this rank has more: give all ranks as many batches",
            c->out);
    }
    ISO_CHECK(c->syncing == 0 || c->syncing == c->active, ISO_ERR_MISMATCH,
              "will_sync is true on %d of the %d ranks with data: it must be the same on all of "
              "them",
              c->syncing, c->active);
    return ISO_OK;
}

// Called before this rank waits for all ranks, because some of them may wait for what it has to
// publish. Does not wait for values: a rank that reports failure may not have made its step.
static iso_status publish_models(const iso_join *join) {
    for (int k = 0; k < join->models; k++)
        ISO_TRY(iso__reducer_publish(model_of(join, k)->reducer, false));
    return ISO_OK;
}

static iso_status check_scopes(const iso_join *join) {
    for (int k = 0; k < join->models; k++)
        ISO_TRY(name_model(check_scope(model_of(join, k), &join->config), k, join->models));
    return ISO_OK;
}

static iso_status take_census(iso_join *join, int64_t samples, bool will_sync, census *out) {
    iso_comm *comm = join->comm;
    int ranks = iso_comm_size(comm), rank = iso_comm_rank(comm);
    iso_status mine = publish_models(join);
    for (int i = 0; i < ranks; i++) join->said[i] = 0;
    join->said[rank] = mine < 0 ? FAILED : encode_samples(samples, will_sync);
    ISO_TRY(iso_comm_allreduce_i64(comm, join->said, (size_t)ranks, ISO_SUM));
    ISO_TRY(mine);
    *out = count_ranks(join->said, ranks, rank);
    ISO_TRY(judge_census(join, out, samples));
    return check_scopes(join);
}

// ---- A step -----------------------------------------------------------------------------------------

static void note_samples(iso_join *join, const census *c, int64_t samples) {
    if (join->steps++ == 0) join->contributors = c->active; // the maximum: no rank comes back
    join->all_samples += c->samples;
    join->samples += samples;
    join->mine += samples > 0;
    for (int k = 0; k < join->models; k++)
        iso__data_parallel_place_batch(model_of(join, k), samples > 0, c->active, c->first_active,
                                       c->row);
}

// Sets this rank's weight for the next backward and all gradients accumulated before it. Samples
// count as multiples of their mean, so that with equal numbers of samples the bits are those of a
// run without a join.
static iso_status weigh_rank(iso_join *join) {
    double weight = join->mine > 0, total = 0;
    // In the other modes all ranks have data, and those of a node may average alone.
    bool effective =
        join->config.divisor == ISO_JOIN_EFFECTIVE && join->config.mode == ISO_JOIN_SHADOW;
    if (effective || join->config.divisor == ISO_JOIN_SAMPLES) total = join->contributors;
    if (join->config.divisor == ISO_JOIN_SAMPLES && join->mine > 0) {
        double mean = (double)join->all_samples / (double)(join->steps * join->contributors);
        weight = (double)join->samples / (double)join->mine / mean;
    }
    join->steps = join->mine = join->samples = join->all_samples = 0;
    for (int k = 0; k < join->models; k++) {
        if (model_of(join, k)->by_weight) continue; // its batches have weights of their own
        ISO_TRY(iso_reducer_set_weight(model_of(join, k)->reducer, weight, total));
    }
    return ISO_OK;
}

// Takes part in the exchanges of the others in one model. syncs: their backward is outside no_sync.
static iso_status shadow_model(iso_module *module, bool syncs, bool leftover) {
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_TRY(iso__data_parallel_before_forward(self));
    ISO_TRY(iso__data_parallel_shadow_pass(self, ISO__FORWARD));
    ISO_TRY(iso__data_parallel_after_forward(self));
    iso__data_parallel_note_backward(self, syncs);
    return syncs ? iso__data_parallel_shadow(module, leftover)
                 : iso__data_parallel_shadow_pass(self, ISO__BACKWARD);
}

// This rank has no batch, but takes part in the exchanges of the others.
static iso_status shadow_others(iso_join *join, const census *c) {
    bool leftover = join->mine > 0;
    if (++join->shadows == WARN_SHADOWS)
        iso__log(ISO_LOG_WARN,
                 "this rank has had no data for %d steps in which others had: its time is lost, "
                 "spread the data evenly",
                 WARN_SHADOWS);
    bool syncs = c->syncing > 0;
    if (syncs) ISO_TRY(weigh_rank(join));
    for (int k = 0; k < join->models; k++) ISO_TRY(shadow_model(join->model[k], syncs, leftover));
    if (syncs && join->config.step) ISO_TRY(join->config.step(join->config.user));
    return ISO_OK;
}

static iso_status put_count(iso_module *module, const char *path, void *user) {
    (void)path;
    int64_t **to = user;
    *(*to)++ = (int64_t)module->forward_number;
    return ISO_OK;
}

static iso_status take_count(iso_module *module, const char *path, void *user) {
    (void)path;
    int64_t **from = user;
    module->forward_number = (uint64_t) * (*from)++;
    return ISO_OK;
}

// Makes the forward numbers equal, so that random layers draw the same numbers on all ranks.
static iso_status agree_on_forwards(iso_join *join) {
    int64_t *to = join->count, *from = join->count;
    for (int k = 0; k < join->models; k++) ISO_TRY(iso_module_walk(join->model[k], put_count, &to));
    ISO_TRY(iso_comm_allreduce_i64(join->comm, join->count, (size_t)join->count_room, ISO_MAX));
    for (int k = 0; k < join->models; k++)
        ISO_TRY(iso_module_walk(join->model[k], take_count, &from));
    return ISO_OK;
}

static iso_status leave_join(iso_join *join) {
    join->through = true;
    if (join->config.mode == ISO_JOIN_SHADOW) {
        for (int k = 0; k < join->models; k++) ISO_TRY(iso_data_parallel_finish(join->model[k]));
        ISO_TRY(agree_on_forwards(join));
    }
    restore_state(join);
    return ISO_PENDING;
}

static bool all_through(const iso_join *join, const census *c) {
    return c->active == 0 || (join->config.mode == ISO_JOIN_EQUALISE && c->out >= 0);
}

static iso_status next_even(int64_t samples) {
    ISO_CHECK(samples >= 0, ISO_ERR_STATE,
              "this rank reported failure to iso_join_next (%" PRId64 " samples)", samples);
    return samples > 0 ? ISO_OK : ISO_PENDING;
}

static iso_status next_batch(iso_join *join, int64_t samples, bool will_sync) {
    while (!join->through) {
        census c = {0};
        ISO_TRY(take_census(join, samples, will_sync, &c));
        if (all_through(join, &c)) return leave_join(join);
        note_samples(join, &c, samples);
        if (samples > 0) return c.syncing > 0 ? weigh_rank(join) : ISO_OK;
        ISO_TRY(shadow_others(join, &c));
    }
    return ISO_PENDING;
}

iso_status iso_join_next(iso_join *join, int64_t samples, bool will_sync) {
    if (join->config.disabled) return next_even(samples);
    ISO_CHECK(!join->failed, ISO_ERR_STATE,
              "iso_join_next failed before: end the loop, ranks may be at different places");
    iso_status status = next_batch(join, samples, will_sync);
    join->failed = status < 0;
    return status;
}
