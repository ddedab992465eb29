// DataParallelOptimizer: an optimizer whose step only freezes the hyperparameters; the reducer
// calls it back for each layer when the next forward reaches that layer.
#include "optim/optim_impl.h"
#include "parallel/parallel_impl.h"

typedef struct dp_optimizer {
    iso_optimizer base;
    iso_optimizer *inner; // owned
    iso__base_optimizer *core;
    iso_module *data_parallel; // retained
    iso_reducer *reducer;      // its
    iso_hyper *now;            // [groups], for step() to hand over
} dp_optimizer;

static dp_optimizer *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, dp_optimizer, base);
}

static iso_status apply(int i, void *gradient, double scale, const void *hyper, void *user) {
    iso__base_optimizer *core = ((dp_optimizer *)user)->core;
    const iso_hyper *frozen = (const iso_hyper *)hyper + core->slot[i].group;
    return core->base.ops->update(&core->base, i, gradient, scale, frozen);
}

static iso_status step(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    iso__count_step(self->core);
    for (int g = 0; g < self->core->groups; g++) self->now[g] = *iso__group_hyper(self->core, g);
    ISO_TRY(iso_reducer_step(self->reducer, self->now));
    return ISO_OK;
}

static void zero_grad(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    iso_optimizer_zero_grad(self->inner);
    iso_reducer_zero_grad(self->reducer);
}

static iso_status update(iso_optimizer *optimizer, int i, const void *gradient, double scale,
                         const iso_hyper *hyper) {
    dp_optimizer *self = self_of(optimizer);
    return self->inner->ops->update(self->inner, i, gradient, scale, hyper);
}

static void destroy(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    // Completes what is pending while there is still someone to apply it.
    if (self->reducer && iso_reducer_set_apply(self->reducer, NULL, 0, NULL) < 0)
        iso__log(ISO_LOG_ERROR, "while completing pending updates: %s", iso_last_error()->message);
    iso_optimizer_destroy(&self->inner);
    iso_module_destroy(&self->data_parallel);
    iso__free(self->now);
    iso__free(self);
}

static iso_optimizer *inner(iso_optimizer *optimizer) { return self_of(optimizer)->inner; }

static const iso_optimizer_ops dp_optimizer_ops = {
    .name = "data_parallel",
    .step = step,
    .zero_grad = zero_grad,
    .update = update,
    .destroy = destroy,
    .inner = inner,
};

iso_module *iso__dp_optimizer_module(const iso_optimizer *optimizer) {
    if (optimizer->ops != &dp_optimizer_ops) return NULL;
    return iso_container_of(optimizer, dp_optimizer, base)->data_parallel;
}

static iso_status check_same_parameters(const iso__base_optimizer *core,
                                        iso_module *data_parallel) {
    iso_parameter *const *trainable;
    int count = iso__data_parallel_trainable(data_parallel, &trainable);
    ISO_CHECK(count == core->count, ISO_ERR_ARG,
              "the optimizer updates %d parameters but data_parallel exchanges %d: create both "
              "from the same "
              "module, and freeze parameters before",
              core->count, count);
    for (int i = 0; i < count; i++)
        ISO_CHECK(trainable[i] == core->slot[i].parameter, ISO_ERR_ARG,
                  "the optimizer updates \"%s\", which data_parallel does not exchange in its "
                  "place: create "
                  "both from the same module",
                  core->slot[i].name);
    return ISO_OK;
}

iso_status iso_dp_optimizer_create_take(iso_optimizer *wrapped, iso_module *data_parallel,
                                        iso_optimizer **out) {
    iso_status status;
    dp_optimizer *self = NULL;
    iso__base_optimizer *core = iso__optimizer_innermost(wrapped);
    ISO_CHECK_GOTO(core, ISO_ERR_ARG, "a %s optimizer cannot be updated layer by layer",
                   wrapped->ops->name);
    ISO_CHECK_GOTO(iso_data_parallel_reducer(data_parallel), ISO_ERR_ARG,
                   "the optimizer can only be tied to a DataParallel module, not to a %s",
                   data_parallel->ops->type);
    ISO_TRY_GOTO(check_same_parameters(core, data_parallel));
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(*self), (void **)&self));
    *self = (dp_optimizer){.base = {.ops = &dp_optimizer_ops},
                           .inner = wrapped,
                           .core = core,
                           .reducer = iso_data_parallel_reducer(data_parallel)};
    size_t bytes = (size_t)core->groups * sizeof(iso_hyper);
    ISO_TRY_GOTO(iso__alloc(bytes, (void **)&self->now));
    ISO_TRY_GOTO(iso_reducer_set_apply(self->reducer, apply, bytes, self));
    core->tied = true;
    self->data_parallel = iso_module_retain(data_parallel);
    *out = &self->base;
    return ISO_OK;
fail:
    iso_optimizer_destroy(&wrapped);
    if (self) iso__free(self->now);
    iso__free(self);
    *out = NULL; // often the caller's pointer to the optimizer that is gone
    return status;
}
