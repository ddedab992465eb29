// SPDX-License-Identifier: MIT
// One parameter in several modules.
#include "base/index.h"
#include "nn/nn_impl.h"

#include <string.h>

void iso__parameter_release(iso_parameter *p) {
    if (--p->references > 0) return;
    iso_tensor_destroy(&p->value);
    iso_tensor_destroy(&p->grad);
    iso__free((void *)p->name);
    iso__free(p);
}

// ---- Tying --------------------------------------------------------------------------------------

// A parameter as its module knows it.
typedef struct place {
    const char *name; // below the module that was given
    iso_module *module;
    int index;
} place;

static iso_status find_parameter(iso_module *root, const char *name, place *out) {
    ISO_CHECK(root && name, ISO_ERR_ARG, "tying needs two modules and the names of parameters");
    *out = (place){.name = name};
    ISO_TRY(iso__module_find_parameter(root, name, &out->module, &out->index));
    return ISO_OK;
}

static iso_status check_free(const place *at) {
    const iso_parameter *p = at->module->parameter[at->index];
    ISO_CHECK(
        iso__parameter_is_free(p), ISO_ERR_STATE,
        "parameter \"%s\" cannot be tied once its module is wrapped or given to an optimizer: "
        "tie it before",
        at->name);
    return ISO_OK;
}

static iso_status check_alike(const place *a, const place *b) {
    const iso_tensor *x = a->module->parameter[a->index]->value;
    const iso_tensor *y = b->module->parameter[b->index]->value;
    char here[100], there[100];
    ISO_CHECK(x->device == y->device && a->module->dtype == b->module->dtype &&
                  x->dtype == y->dtype,
              ISO_ERR_TYPE,
              "parameter \"%s\" is %s and cannot be tied to \"%s\", which is %s: both need one "
              "element type and device",
              a->name, iso_dtype_name(x->dtype), b->name, iso_dtype_name(y->dtype));
    ISO_CHECK(iso__tensor_same_shape(x, y), ISO_ERR_SHAPE,
              "parameter \"%s\" of shape %s cannot be tied to \"%s\" of shape %s", a->name,
              iso__shape_text(x->ndim, x->shape, here, sizeof(here)), b->name,
              iso__shape_text(y->ndim, y->shape, there, sizeof(there)));
    return ISO_OK;
}

// A layer writes each gradient once in a backward, so two parameters of the same layer cannot be
// tied to each other.
static iso_status check_pair(const place *a, const place *b) {
    char label[ISO_LABEL_ROOM];
    const iso_parameter *p = b->module->parameter[b->index];
    for (int i = 0; i < a->module->parameter_count; i++)
        ISO_CHECK(a->module->parameter[i] != p, ISO_ERR_ARG,
                  "parameter \"%s\" cannot be tied to \"%s\": both would be in one %s", a->name,
                  b->name, iso__module_label(a->module, label));
    ISO_CHECK(
        a->module->ops->tied, ISO_ERR_UNSUPPORTED,
        "parameter \"%s\" of %s cannot be tied: its layer has no `tied` function: tie the other "
        "parameter to this one, or add the function",
        a->name, iso__module_label(a->module, label));
    ISO_TRY(check_free(a));
    ISO_TRY(check_free(b));
    return check_alike(a, b);
}

iso_status iso_module_tie(iso_module *module, const char *name, iso_module *other,
                          const char *other_name) {
    place a, b;
    ISO_TRY(find_parameter(module, name, &a));
    ISO_TRY(find_parameter(other, other_name, &b));
    iso_parameter **mine = &a.module->parameter[a.index];
    iso_parameter *theirs = b.module->parameter[b.index];
    if (*mine == theirs) return ISO_OK;
    ISO_TRY(check_pair(&a, &b));
    theirs->references++;
    iso__parameter_release(*mine);
    *mine = theirs;
    a.module->ops->tied(a.module);
    return ISO_OK;
}

// ---- Who shares what ------------------------------------------------------------------------------

// Distinct modules of a tree.
typedef struct census {
    iso_module **module;
    int count;
    iso__index listed; // of module
    iso__index tied;   // tied parameters, by their numbers in uses
    int *uses, tied_count;
} census;

static iso_status count_use(census *all, const iso_parameter *p) {
    if (p->references == 1) return ISO_OK;
    int known = iso__index_of(&all->tied, p);
    if (known < 0) {
        void *uses = all->uses;
        ISO_TRY(iso__grow(&uses, all->tied_count, NULL, sizeof(*all->uses)));
        all->uses = uses;
        known = all->tied_count;
        ISO_TRY(iso__index_add(&all->tied, iso__pointer_key(p), known));
        all->uses[all->tied_count++] = 0;
    }
    all->uses[known]++;
    return ISO_OK;
}

static iso_status enlist_module(iso_module *module, const char *path, void *user) {
    census *all = user;
    (void)path;
    if (iso__index_of(&all->listed, module) >= 0) return ISO_OK;
    ISO_TRY(iso__index_add(&all->listed, iso__pointer_key(module), all->count));
    all->module[all->count++] = module;
    for (int i = 0; i < module->parameter_count; i++) ISO_TRY(count_use(all, module->parameter[i]));
    return ISO_OK;
}

static iso_status check_uses(const census *all, const char *what) {
    char label[ISO_LABEL_ROOM];
    for (int m = 0; m < all->count; m++)
        for (int i = 0; i < all->module[m]->parameter_count; i++) {
            const iso_parameter *p = all->module[m]->parameter[i];
            ISO_CHECK(
                p->references == 1 || all->uses[iso__index_of(&all->tied, p)] == p->references,
                ISO_ERR_STATE,
                "parameter \"%s\" of %s is tied to a parameter outside the module that is "
                "%s: use a module that contains both",
                all->module[m]->parameter_name[i], iso__module_label(all->module[m], label), what);
        }
    return ISO_OK;
}

iso_status iso__module_check_tied(iso_module *root, const char *what) {
    census all = {0};
    void *memory;
    ISO_TRY(iso__alloc((size_t)iso__module_count(root) * sizeof(iso_module *), &memory));
    all.module = memory;
    iso_status status = iso_module_walk(root, enlist_module, &all);
    if (status >= 0) status = check_uses(&all, what);
    iso__index_free(&all.listed);
    iso__index_free(&all.tied);
    iso__free(all.uses);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}
