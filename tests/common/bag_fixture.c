// SPDX-License-Identifier: MIT
// For tests of optimizers: a module that has parameters and nothing else.
#include "common/bag_fixture.h"

#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static iso_status no_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call, (void)in, (void)out;
    return ISO_ERR_UNSUPPORTED;
}
static const iso_module_ops bag_ops = {.type = "Bag", .forward = no_forward};

iso_module *bag_create(iso_device *device) {
    static const int64_t shape[BAG_PARAMETERS][4] = {{1},          {3},  {17}, {4, 5},
                                                     {2, 3, 2, 2}, {33}, {64}};
    static const int ndim[BAG_PARAMETERS] = {1, 1, 1, 2, 4, 1, 1};
    iso_module *bag = calloc(1, sizeof(*bag));
    cr_assert_eq(iso_module_init(bag, &bag_ops, device), ISO_OK);
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        char name[3] = {'p', (char)('0' + i), 0};
        cr_assert_eq(iso_module_add_parameter(bag, name, ndim[i], shape[i], NULL), ISO_OK);
    }
    return bag;
}

static const double *set(iso_tensor *to, const double *from) {
    for (int64_t k = 0; k < to->count; k++, from++) {
        if (to->dtype == ISO_F64)
            ((double *)to->data)[k] = (float)*from;
        else
            ((float *)to->data)[k] = (float)*from;
    }
    return from;
}

void bag_get_values(iso_module *bag, double *out) {
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        const iso_tensor *value = bag->parameter[i]->value;
        for (int64_t k = 0; k < value->count; k++)
            *out++ = value->dtype == ISO_F64 ? ((double *)value->data)[k]
                                             : (double)((float *)value->data)[k];
    }
}

void bag_set_values(iso_module *bag, const double *from) {
    for (int i = 0; i < BAG_PARAMETERS; i++) from = set(bag->parameter[i]->value, from);
}

void bag_set_gradients(iso_module *bag, const double *from) {
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        from = set(bag->parameter[i]->grad, from);
        bag->parameter[i]->grad_valid = true;
    }
}
