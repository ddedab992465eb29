// SPDX-License-Identifier: MIT
// Parameter groups: hyperparameters for some of an optimizer's parameters, as PyTorch's
// param_groups.
#include "optim/optim_impl.h"

#include <assert.h>
#include <string.h>

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
    ISO_CHECK(chosen > 0, ISO_ERR_ARG,
              "%s: no parameter belongs to group %d: a group needs at least one", rule->ops.name,
              group);
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
              "%s: create groups of parameters before wrapping the optimizer and before its first "
              "step",
              core->base.ops->name);
    ISO_TRY(iso__hyper_check(iso__rule_of(core), hyper));
    ISO_TRY(iso__hyper_check_state(core, hyper));
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
