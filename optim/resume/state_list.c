// SPDX-License-Identifier: MIT
// The list of named memory that is saved or loaded.
#include "optim/resume/resume_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define NAME_ROOM 768

iso_status iso_state_create(iso_state **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_state), &memory));
    *out = memory;
    return ISO_OK;
}

void iso_state_destroy(iso_state **state) {
    iso_state *self = state ? *state : NULL;
    if (!self) return;
    *state = NULL;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < self->count[k]; i++) {
            iso__free((void *)self->array[k][i].shape);
            iso_tensor_destroy(&self->array[k][i].tensor);
        }
        iso__free(self->array[k]);
        iso__index_free(&self->named[k]);
    }
    iso__index_free(&self->placed);
    iso__free(self->merge);
    iso__free(self->place);
    iso__free(self->table);
    iso__free(self);
}

int iso__state_find(const iso_state *self, iso_state_owner owner, const char *name) {
    int i = 0;
    for (size_t at = 0; i >= 0;) {
        i = iso__index_next(&self->named[owner], iso__name_key(name), &at);
        if (i >= 0 && strcmp(self->array[owner][i].name, name) == 0) return i;
    }
    return -1;
}

static bool has_name(const iso_state *self, const char *name) {
    return iso__state_find(self, ISO_STATE_SHARED, name) >= 0 ||
           iso__state_find(self, ISO_STATE_OWN, name) >= 0;
}

// Room for the rule of the own array that comes next.
static iso_status add_rule(iso_state *self) {
    void *list = self->merge;
    int count = self->count[ISO_STATE_OWN];
    ISO_TRY(iso__grow(&list, count, &self->merge_room, sizeof(iso__own_merge)));
    self->merge = list;
    self->merge[count] = (iso__own_merge){ISO_OWN_REFUSED, 0};
    return ISO_OK;
}

// Copies name and shape, into one block.
static iso_status add_array(iso_state *self, iso_state_owner owner, const char *name,
                            iso__array array) {
    ISO_CHECK(name && name[0] && strcmp(name, "__metadata__") != 0, ISO_ERR_ARG,
              "an entry of a state needs a name other than \"__metadata__\"");
    ISO_CHECK(!has_name(self, name), ISO_ERR_ARG, "two entries of a state have the name %s", name);
    ISO_CHECK((int)owner >= 0 && owner <= ISO_STATE_OWN, ISO_ERR_ARG,
              "entry %s of a state has the unknown owner %d", name, (int)owner);
    void *list = self->array[owner], *block;
    ISO_TRY(iso__grow(&list, self->count[owner], &self->room[owner], sizeof(iso__array)));
    self->array[owner] = list;
    if (owner == ISO_STATE_OWN) ISO_TRY(add_rule(self));
    size_t shape_bytes = (size_t)array.ndim * sizeof(int64_t), name_bytes = strlen(name) + 1;
    ISO_TRY(iso__alloc(shape_bytes + name_bytes, &block));
    memcpy(block, array.shape, shape_bytes);
    memcpy((char *)block + shape_bytes, name, name_bytes);
    iso_status status =
        iso__index_add(&self->named[owner], iso__name_key(name), self->count[owner]);
    if (status < 0) iso__free(block);
    ISO_TRY(status);
    array.shape = block;
    array.name = (char *)block + shape_bytes;
    if (array.tensor) iso_tensor_retain(array.tensor);
    self->array[owner][self->count[owner]++] = array;
    return ISO_OK;
}

void iso__state_rule(iso_state *self, iso_own_rule rule, int64_t kept) {
    self->merge[self->count[ISO_STATE_OWN] - 1] = (iso__own_merge){rule, kept};
}

// Sets the rule of the array added last, if ranks are replicas that have it of their own.
static void average_last(iso_state *self, bool bytes) {
    if (self->owner == ISO_STATE_OWN && self->averages)
        iso__state_rule(self, bytes ? ISO_OWN_RANK0 : ISO_OWN_MEAN, 0);
}

static iso_status add_memory(iso_state *self, iso_state_owner owner, const char *name,
                             iso_state_type type, int ndim, const int64_t *shape, void *data) {
    static const char *const dtypes[] = {"F32", "F64", "I64", "U8"};
    ISO_CHECK((int)type >= 0 && type <= ISO_STATE_U8, ISO_ERR_ARG,
              "entry %s of a state has the unknown type %d", name, (int)type);
    iso__array array = {.dtype = dtypes[type], .ndim = ndim, .shape = shape, .data = data};
    ISO_CHECK(data || iso__array_bytes(&array) == 0, ISO_ERR_ARG, "entry %s of a state has no data",
              name);
    ISO_TRY(add_array(self, owner, name, array));
    return ISO_OK;
}

static iso_status add_tensor(iso_state *self, iso_state_owner owner, const char *name,
                             iso_tensor *tensor) {
    iso__array array = {.dtype = iso__safetensors_dtype(iso_tensor_dtype(tensor)),
                        .ndim = iso_tensor_ndim(tensor),
                        .shape = iso_tensor_shape(tensor),
                        .tensor = tensor};
    ISO_TRY(add_array(self, owner, name, array));
    return ISO_OK;
}

iso_status iso_state_add(iso_state *state, iso_state_owner owner, const char *name,
                         iso_state_type type, int64_t count, void *data) {
    ISO_CHECK(count >= 0, ISO_ERR_ARG, "entry %s of a state has %" PRId64 " elements", name, count);
    ISO_TRY(add_memory(state, owner, name, type, 1, &count, data));
    return ISO_OK;
}

iso_status iso_state_set_own_rule(iso_state *self, const char *name, iso_own_rule rule) {
    ISO_CHECK((int)rule >= 0 && rule <= ISO_OWN_ZERO, ISO_ERR_ARG,
              "entry %s of a state has the unknown rule %d", name, (int)rule);
    int i = iso__state_find(self, ISO_STATE_OWN, name);
    ISO_CHECK(i >= 0, ISO_ERR_ARG, "a state has no entry %s with ISO_STATE_OWN", name);
    bool adds = rule == ISO_OWN_MEAN || rule == ISO_OWN_SUM;
    ISO_CHECK(!adds || strcmp(self->array[ISO_STATE_OWN][i].dtype, "U8") != 0, ISO_ERR_ARG,
              "entry %s of a state has bytes, which have no mean and no sum", name);
    self->merge[i] = (iso__own_merge){rule, 0};
    return ISO_OK;
}

void iso_state_accept_ranks(iso_state *self, int64_t *saved_ranks) {
    self->saved_ranks = saved_ranks;
}

void iso_state_accept_nodes(iso_state *self, bool *moved) { self->relaid = moved; }

iso_status iso__state_add_own(iso_state *state, iso_own_rule rule, const char *name,
                              iso_state_type type, int64_t count, void *data) {
    ISO_TRY(iso_state_add(state, ISO_STATE_OWN, name, type, count, data));
    iso__state_rule(state, rule, 0);
    return ISO_OK;
}

static iso_status make_name(char text[NAME_ROOM], const char *format, va_list args) {
    int n = vsnprintf(text, NAME_ROOM, format, args);
    ISO_CHECK(n >= 0 && n < NAME_ROOM, ISO_ERR_ARG, "the name of an entry is too long: %.80s...",
              text);
    return ISO_OK;
}
#define MAKE_NAME(text, format)                                                                    \
    do {                                                                                           \
        va_list args_;                                                                             \
        va_start(args_, format);                                                                   \
        iso_status named_ = make_name(text, format, args_);                                        \
        va_end(args_);                                                                             \
        ISO_TRY(named_);                                                                           \
    } while (0)

iso_status iso__state_add(iso_state *state, iso_state_type type, int ndim, const int64_t *shape,
                          void *data, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, type, ndim, shape, data));
    average_last(state, type == ISO_STATE_U8);
    return ISO_OK;
}

iso_status iso__state_add_tensor(iso_state *state, iso_tensor *tensor, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_tensor(state, state->owner, name, tensor));
    average_last(state, false);
    return ISO_OK;
}

static const int64_t one = 1;

iso_status iso__state_add_f64(iso_state *state, double *number, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, ISO_STATE_F64, 1, &one, number));
    average_last(state, false);
    return ISO_OK;
}

iso_status iso__state_add_i64(iso_state *state, int64_t *number, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, ISO_STATE_I64, 1, &one, number));
    average_last(state, false);
    return ISO_OK;
}

iso_status iso__state_add_new(iso_state *state, iso_state_type type, void *number,
                              const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, type, 1, &one, number));
    average_last(state, type == ISO_STATE_U8);
    state->array[state->owner][state->count[state->owner] - 1].optional = true;
    return ISO_OK;
}

iso_status iso__state_add_layout(iso_state *self, int64_t *layout, const char *name) {
    ISO_TRY(add_memory(self, ISO_STATE_SHARED, name, ISO_STATE_I64, 1, &one, layout));
    self->array[ISO_STATE_SHARED][self->count[ISO_STATE_SHARED] - 1].optional = true;
    self->layout = layout;
    self->layout_name = name;
    return ISO_OK;
}

iso_status iso__state_add_place(iso_state *self, void *place) {
    void *list = self->place;
    ISO_TRY(iso__grow(&list, self->places, &self->place_room, sizeof(void *)));
    self->place = list;
    self->place[self->places++] = place;
    return ISO_OK;
}
