// SPDX-License-Identifier: MIT
// An optimizer of the library for plain arrays: a module that holds the reducer's arrays as its
// parameters, and an optimizer of this module that is tied to the reducer.
#include "nn/nn_impl.h"
#include "optim/optim_impl.h"
#include "parallel/reducer/reducer_calls.h"

typedef struct place {
    iso_reducer *reducer; // borrowed: the optimizer goes first
    int index;
} place;

typedef struct array_module {
    iso_module base;
    place *place; // [parameters]
} array_module;

static iso_status refuse_forward(iso_module *module, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    (void)call, (void)in, (void)out;
    return ISO_FAIL(ISO_ERR_STATE, "%s have no forward: call the program's own", module->ops->type);
}

static void destroy_places(iso_module *module) {
    iso__free(iso_container_of(module, array_module, base)->place);
}

static const iso_module_ops array_ops = {
    .type = "Arrays", .forward = refuse_forward, .destroy = destroy_places};

static iso_status complete_array(void *user, iso_parameter *parameter) {
    const place *p = user;
    (void)parameter;
    return iso_reducer_param_needed(p->reducer, p->index);
}

static iso_status add_array(array_module *self, iso_reducer *reducer, int k) {
    int i = iso__reducer_shared(reducer, k);
    const iso_reducer_param p = iso__reducer_param(reducer, i);
    int64_t columns = (int64_t)(p.row > 0 ? p.row : p.count);
    int64_t shape[2] = {(int64_t)p.count / columns, columns};
    int ndim = p.row > 0 ? 2 : 1;
    iso_tensor *value = NULL, *grad = NULL;
    iso_parameter *made;
    iso_device *device = self->base.device;
    self->place[k] = (place){reducer, i};
    ISO_TRY(iso_tensor_borrow(device, p.dtype, ndim, shape + 2 - ndim, p.value, &value));
    iso_status status = iso_tensor_borrow(device, iso__reducer_grad_type(reducer, i), ndim,
                                          shape + 2 - ndim, p.gradient, &grad);
    if (status < 0) iso_tensor_destroy(&value);
    ISO_TRY(status);
    ISO_TRY(iso__module_add_tensors_take(&self->base, p.name, value, grad, &made));
    made->complete = complete_array;
    made->complete_user = &self->place[k];
    made->complete_index = i;
    return ISO_OK;
}

static iso_status create_arrays(iso_reducer *reducer, iso_module **out) {
    iso_device *device;
    iso_module *module;
    int count = iso_reducer_param_count(reducer);
    ISO_TRY(iso__reducer_device(reducer, &device));
    ISO_TRY(iso__module_new(sizeof(array_module), &array_ops, device, &module));
    array_module *self = iso_container_of(module, array_module, base);
    iso_status status =
        iso__alloc_zero((size_t)count * sizeof(*self->place), (void **)&self->place);
    for (int i = 0; status == ISO_OK && i < count; i++) status = add_array(self, reducer, i);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    *out = module;
    return ISO_OK;
}

static iso_status add_groups(iso_optimizer *optimizer, const iso_optimizer_group *groups,
                             int count) {
    for (int g = 0; groups && g < count; g++)
        ISO_TRY(iso_optimizer_add_group(optimizer, &groups[g].hyper, groups[g].belongs,
                                        groups[g].user, NULL));
    return ISO_OK;
}

// Takes inner, on failure too. The module has its parameters in the order that all ranks share. The
// tie has them in the order of this rank's list.
static iso_status tie_arrays(iso_reducer *reducer, iso_module *module, iso_optimizer *inner,
                             iso_optimizer **out) {
    const array_module *self = iso_container_of(module, array_module, base);
    int count = module->parameter_count;
    iso_parameter **listed;
    iso_status status = iso__alloc((size_t)count * sizeof(*listed), (void **)&listed);
    if (status < 0) iso_optimizer_destroy(&inner);
    ISO_TRY(status);
    for (int k = 0; k < count; k++) listed[self->place[k].index] = module->parameter[k];
    const iso__tie tie = {module, reducer, listed, count};
    status = iso__optimizer_tie_take(inner, &tie, out);
    iso__free(listed);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_reducer_set_optimizer(iso_reducer *reducer, iso_optimizer_kind kind,
                                     const iso_hyper *hyper, const iso_optimizer_group *groups,
                                     int group_count, iso_optimizer **out) {
    iso_status status;
    iso_module *module = NULL;
    iso_optimizer *inner = NULL, *tied = NULL;
    ISO_CHECK(iso__reducer_appliers(reducer) == 0, ISO_ERR_STATE,
              "these arrays have an optimizer or an update function already: destroy or remove it "
              "first");
    ISO_TRY(create_arrays(reducer, &module));
    ISO_TRY_GOTO(iso_optimizer_create(kind, module, hyper, &inner));
    ISO_TRY_GOTO(add_groups(inner, groups, group_count));
    iso_optimizer *taken = inner;
    inner = NULL;
    ISO_TRY_GOTO(tie_arrays(reducer, module, taken, &tied));
    iso_module_destroy(&module); // the optimizer retains it
    *out = tied;
    return ISO_OK;
fail:
    iso_optimizer_destroy(&inner);
    iso_module_destroy(&module);
    return status;
}
