// Parameter groups: hyperparameters for some of an optimizer's parameters, as PyTorch's
// param_groups.
#include "optim/optim_impl.h"
#include "optim/resume/resume_impl.h"

#include <assert.h>
#include <string.h>

// ---- Groups --------------------------------------------------------------------------------------

int iso_optimizer_groups(iso_optimizer *optimizer) {
    const iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    return core ? core->groups : 1;
}

iso_hyper *iso_optimizer_group_hyper(iso_optimizer *optimizer, int group) {
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    if (group == 0) return iso_optimizer_hyper(optimizer);
    assert(core && group > 0 && group < core->groups);
    return iso__group_hyper(core, group);
}

int iso_optimizer_group_of(iso_optimizer *optimizer, const char *name) {
    const iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    for (int i = 0; core && i < core->count; i++)
        if (strcmp(core->slot[i].name, name) == 0) return core->slot[i].group;
    return -1;
}

// Marks with `group` the members that are to leave group 0; how many, and how many stay.
static void choose_members(iso__base_optimizer *core, iso_group_filter belongs, void *user,
                           int group, int *chosen, int *left) {
    *chosen = *left = 0;
    for (int i = 0; i < core->count; i++) {
        iso__slot *slot = &core->slot[i];
        if (slot->group != 0) continue;
        bool moves = belongs(slot->name, slot->parameter, user);
        if (moves) slot->group = group;
        *(moves ? chosen : left) += 1;
    }
}

static void put_back(iso__base_optimizer *core, int group) {
    for (int i = 0; i < core->count; i++)
        if (core->slot[i].group == group) core->slot[i].group = 0;
}

static iso_status fill_group(iso__base_optimizer *core, iso_group_filter belongs, void *user,
                             const iso_hyper *hyper) {
    const iso__rule *rule = iso__rule_of(core);
    int group = core->groups, chosen, left;
    choose_members(core, belongs, user, group, &chosen, &left);
    ISO_CHECK(chosen > 0, ISO_ERR_ARG, "%s: no parameter belongs to group %d: a group has some",
              rule->ops.name, group);
    ISO_CHECK(left > 0, ISO_ERR_ARG,
              "%s: all parameters belong to group %d and none are left in group 0: create the "
              "optimizer with these hyperparameters instead",
              rule->ops.name, group);
    for (int i = 0; rule->start && i < core->count; i++)
        if (core->slot[i].group == group) ISO_TRY(rule->start(core, &core->slot[i], hyper));
    return ISO_OK;
}

static iso_status make_room(iso__base_optimizer *core) {
    void *list = core->group, *saved = core->saved_group;
    size_t have = (size_t)(core->groups - 1) * sizeof(iso__group *);
    ISO_TRY(iso__realloc(&list, have, have + sizeof(iso__group *)));
    core->group = list;
    if (!saved) ISO_TRY(iso__alloc_zero((size_t)core->count * sizeof(int64_t), &saved));
    core->saved_group = saved;
    return ISO_OK;
}

iso_status iso_optimizer_add_group(iso_optimizer *optimizer, const iso_hyper *hyper,
                                   iso_group_filter belongs, void *user, int *group) {
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    void *made = NULL;
    ISO_CHECK(core, ISO_ERR_UNSUPPORTED, "a %s optimizer has no groups of parameters",
              optimizer->ops->name);
    ISO_CHECK(!core->tied && core->base.ops == optimizer->ops && core->base.hyper.step == 0,
              ISO_ERR_STATE,
              "%s: groups of parameters are made before the optimizer is wrapped and before its "
              "first step",
              core->base.ops->name);
    ISO_TRY(iso__hyper_check(iso__rule_of(core), hyper));
    ISO_TRY(make_room(core));
    ISO_TRY(iso__alloc_zero(sizeof(iso__group), &made));
    iso_status status = fill_group(core, belongs, user, hyper);
    if (status < 0) {
        put_back(core, core->groups);
        iso__free(made);
        return status;
    }
    iso__group *self = made;
    *self = (iso__group){.hyper = *hyper, .initial_lr = hyper->lr};
    self->hyper.step = 0;
    core->group[core->groups - 1] = self;
    if (group) *group = core->groups;
    core->groups++;
    return ISO_OK;
}

void iso__groups_destroy(iso__base_optimizer *self) {
    for (int g = 1; g < self->groups; g++) iso__free(self->group[g - 1]);
    iso__free(self->group);
    iso__free(self->saved_group);
}

// ---- Saved state ---------------------------------------------------------------------------------

static const int64_t one = 1;

// prefix: "optimizer/KIND" or "optimizer/KIND/groupN".
static iso_status add_hyper(iso_hyper *hyper, const char *prefix, iso_state *state) {
    struct {
        const char *name;
        double *number;
    } const numbers[] = {
        {"lr", &hyper->lr},
        {"momentum", &hyper->momentum},
        {"dampening", &hyper->dampening},
        {"weight_decay", &hyper->weight_decay},
        {"beta1", &hyper->beta1},
        {"beta2", &hyper->beta2},
        {"rho", &hyper->rho},
        {"alpha", &hyper->alpha},
        {"eps", &hyper->eps},
        {"lr_decay", &hyper->lr_decay},
    };
    _Static_assert(sizeof(hyper->nesterov) == 1, "saved as one byte");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        ISO_TRY(iso__state_add_f64(state, numbers[i].number, "%s/%s", prefix, numbers[i].name));
    ISO_TRY(iso__state_add(state, ISO_STATE_U8, 1, &one, &hyper->nesterov, "%s/nesterov", prefix));
    ISO_TRY(iso__state_add(state, ISO_STATE_U8, 1, &one, &hyper->centered, "%s/centered", prefix));
    ISO_TRY(iso__state_add_i64(state, &hyper->step, "%s/step", prefix));
    return ISO_OK;
}

iso_status iso__groups_state(iso__base_optimizer *self, iso_state *state) {
    const char *kind = self->base.ops->name;
    char prefix[64];
    int64_t count = self->count;
    snprintf(prefix, sizeof(prefix), "optimizer/%s", kind);
    ISO_TRY(add_hyper(&self->base.hyper, prefix, state));
    if (self->groups == 1) return ISO_OK;
    for (int g = 1; g < self->groups; g++) {
        snprintf(prefix, sizeof(prefix), "optimizer/%s/group%d", kind, g);
        ISO_TRY(add_hyper(iso__group_hyper(self, g), prefix, state));
        ISO_TRY(
            iso__state_add_f64(state, &self->group[g - 1]->initial_lr, "%s/initial_lr", prefix));
    }
    for (int i = 0; i < self->count; i++) self->saved_group[i] = self->slot[i].group;
    return iso__state_add(state, ISO_STATE_I64, 1, &count, self->saved_group, "optimizer/%s/groups",
                          kind);
}

// As a bool it may be no value at all.
static void mend_flag(bool *flag) {
    uint8_t byte;
    memcpy(&byte, flag, 1);
    *flag = byte != 0;
}

iso_status iso__groups_loaded(iso__base_optimizer *self) {
    const iso__rule *rule = iso__rule_of(self);
    for (int g = 0; g < self->groups; g++) {
        iso_hyper *hyper = iso__group_hyper(self, g);
        mend_flag(&hyper->nesterov);
        mend_flag(&hyper->centered);
        ISO_TRY(iso__hyper_check(rule, hyper));
    }
    for (int i = 0; self->groups > 1 && i < self->count; i++)
        ISO_CHECK(self->saved_group[i] == self->slot[i].group, ISO_ERR_MISMATCH,
                  "%s: parameter %s was saved in group %lld and is in group %d here: make the same "
                  "groups",
                  rule->ops.name, self->slot[i].name, (long long)self->saved_group[i],
                  self->slot[i].group);
    return ISO_OK;
}
