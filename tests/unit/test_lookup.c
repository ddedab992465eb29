// SPDX-License-Identifier: MIT
// Modules, parameters and buffers by name, and the walk over a tree.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <string.h>

TestSuite(lookup, .timeout = 60);

// Residual of fc and norm, then head, whose weight is fc's.
static iso_module *new_model(iso_device *device) {
    iso_rng rng = {.seed = 1};
    iso_module *model = NULL, *body = NULL, *m = NULL;
    cr_ok(iso_sequential_create(device, &body));
    cr_ok(iso_linear_create(device, 4, 4, true, &rng, &m));
    cr_ok(iso_sequential_add_take(body, "fc", m));
    cr_ok(iso_batch_norm1d_create(device, &(iso_batch_norm_config){.num_features = 4}, &m));
    cr_ok(iso_sequential_add_take(body, "norm", m));
    cr_ok(iso_residual_create_take(device, body, NULL, false, &m));
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_sequential_add_take(model, "block", m));
    cr_ok(iso_linear_create(device, 4, 4, false, &rng, &m));
    cr_ok(iso_sequential_add_take(model, "head", m));
    cr_ok(iso_module_tie(m, "weight", model, "block.fc.weight"));
    return model;
}

Test(lookup, every_listed_name_is_found) {
    iso_device *device = open_cpu();
    iso_module *model = new_model(device);
    iso_parameter_list parameters;
    iso_buffer_list buffers;
    cr_ok(iso_module_parameters(model, &parameters));
    cr_ok(iso_module_buffers(model, &buffers));
    cr_assert(parameters.count == 4 && buffers.count == 3);
    for (int i = 0; i < parameters.count; i++) {
        iso_parameter *p = NULL;
        cr_ok(iso_module_get_parameter(model, parameters.name[i], &p));
        cr_assert_eq(p, parameters.item[i], "%s", parameters.name[i]);
    }
    for (int i = 0; i < buffers.count; i++) {
        iso_buffer *b = NULL;
        cr_ok(iso_module_get_buffer(model, buffers.name[i], &b));
        cr_assert_eq(b, buffers.item[i], "%s", buffers.name[i]);
    }
    iso_parameter *tied = NULL;
    cr_ok(iso_module_get_parameter(model, "head.weight", &tied));
    cr_assert_eq(tied, parameters.item[0], "a tied one under its other name");
    iso_parameter_list_destroy(&parameters);
    iso_buffer_list_destroy(&buffers);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(lookup, unknown_names_are_refused) {
    iso_device *device = open_cpu();
    iso_module *model = new_model(device), *m = NULL;
    iso_parameter *p = NULL;
    iso_buffer *b = NULL;
    static const char *const names[] = {"",
                                        "weight",
                                        "block.fc",
                                        "block.fc.",
                                        "block.fc.weigh",
                                        ".head.weight",
                                        "head.weight.",
                                        "block.fc.weight2",
                                        "block.fc_weight",
                                        "block.norm.running_mean"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cr_fails(iso_module_get_parameter(model, names[i], &p), ISO_ERR_ARG, "has no parameter");
    cr_fails(iso_module_get_buffer(model, "block.norm.weight", &b), ISO_ERR_ARG,
             "Sequential has no buffer \"block.norm.weight\"");
    cr_fails(iso_module_get_submodule(model, "block.f", &m), ISO_ERR_ARG, "has no module");
    cr_assert(!p && !b && !m);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- The walk -----------------------------------------------------------------------------------

static char walked[128];

static iso_status list_names(iso_module *module, const char *name, void *user) {
    snprintf(walked + strlen(walked), sizeof(walked) - strlen(walked), "%s=%s;", name,
             module->ops->type);
    iso_module *found = NULL;
    cr_ok(iso_module_get_submodule(user, name, &found));
    // The body of a Residual has its name.
    cr_assert(found == module || strcmp(found->ops->type, "Residual") == 0, "%s", name);
    return ISO_OK;
}

static iso_status stop_at_norm(iso_module *module, const char *name, void *user) {
    *(int *)user += 1;
    if (strcmp(name, "block.norm") != 0) return ISO_OK;
    return ISO_FAIL(ISO_ERR_STATE, "stopped at %s", module->ops->type);
}

Test(lookup, walk_names_every_module_parents_first) {
    iso_device *device = open_cpu();
    iso_module *model = new_model(device);
    int count = 0;
    cr_ok(iso_module_walk(model, list_names, model));
    cr_assert_str_eq(walked, "=Sequential;block=Residual;block=Sequential;block.fc=Linear;"
                             "block.norm=BatchNorm1d;head=Linear;");
    cr_fails(iso_module_walk(model, stop_at_norm, &count), ISO_ERR_STATE, "stopped at BatchNorm1d");
    cr_assert_eq(count, 5);
    iso_module_destroy(&model);
    close_cpu(&device);
}
