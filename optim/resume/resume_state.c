// The list of what a run needs to go on with the same bits, and what module and optimizer put into
// it.
#include "optim/resume/resume_impl.h"

#include "nn/nn_impl.h"
#include "optim/optim_impl.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer_calls.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define NAME_ROOM 768

// ---- The list -----------------------------------------------------------------------------------

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
    }
    iso__free(self->place);
    iso__free(self->table);
    iso__free(self);
}

void iso__state_set_owner(iso_state *state, iso_state_owner owner) { state->owner = owner; }

// Room for one more of `size` bytes in an array that holds `count`.
static iso_status grow(void **array, int count, int *room, size_t size) {
    if (count < *room) return ISO_OK;
    int larger = *room ? 2 * *room : 32;
    ISO_TRY(iso__realloc(array, (size_t)count * size, (size_t)larger * size));
    *room = larger;
    return ISO_OK;
}

static bool has_name(const iso_state *self, const char *name) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < self->count[k]; i++)
            if (strcmp(self->array[k][i].name, name) == 0) return true;
    return false;
}

// Copies name and shape, into one block.
static iso_status add(iso_state *self, iso_state_owner owner, const char *name, iso__array array) {
    ISO_CHECK(name && name[0] && strcmp(name, "__metadata__") != 0, ISO_ERR_ARG,
              "an entry of a state needs a name, and not \"__metadata__\"");
    ISO_CHECK(!has_name(self, name), ISO_ERR_ARG, "two entries of a state have the name %s", name);
    ISO_CHECK((int)owner >= 0 && owner <= ISO_STATE_OWN, ISO_ERR_ARG,
              "entry %s of a state has the unknown owner %d", name, (int)owner);
    void *list = self->array[owner], *block;
    ISO_TRY(grow(&list, self->count[owner], &self->room[owner], sizeof(iso__array)));
    self->array[owner] = list;
    size_t shape_bytes = (size_t)array.ndim * sizeof(int64_t), name_bytes = strlen(name) + 1;
    ISO_TRY(iso__alloc(shape_bytes + name_bytes, &block));
    memcpy(block, array.shape, shape_bytes);
    memcpy((char *)block + shape_bytes, name, name_bytes);
    array.shape = block;
    array.name = (char *)block + shape_bytes;
    if (array.tensor) iso_tensor_retain(array.tensor);
    self->array[owner][self->count[owner]++] = array;
    return ISO_OK;
}

static iso_status add_memory(iso_state *self, iso_state_owner owner, const char *name,
                             iso_state_type type, int ndim, const int64_t *shape, void *data) {
    static const char *const dtypes[] = {"F32", "F64", "I64", "U8"};
    ISO_CHECK((int)type >= 0 && type <= ISO_STATE_U8, ISO_ERR_ARG,
              "entry %s of a state has the unknown type %d", name, (int)type);
    iso__array array = {.dtype = dtypes[type], .ndim = ndim, .shape = shape, .data = data};
    ISO_CHECK(data || iso__array_bytes(&array) == 0, ISO_ERR_ARG, "entry %s of a state has no data",
              name);
    ISO_TRY(add(self, owner, name, array));
    return ISO_OK;
}

static iso_status add_tensor(iso_state *self, iso_state_owner owner, const char *name,
                             iso_tensor *tensor) {
    iso__array array = {.dtype = iso__safetensors_dtype(iso_tensor_dtype(tensor)),
                        .ndim = iso_tensor_ndim(tensor),
                        .shape = iso_tensor_shape(tensor),
                        .tensor = tensor};
    ISO_TRY(add(self, owner, name, array));
    return ISO_OK;
}

iso_status iso_state_add(iso_state *state, iso_state_owner owner, const char *name,
                         iso_state_type type, int64_t count, void *data) {
    ISO_CHECK(count >= 0, ISO_ERR_ARG, "entry %s of a state has %" PRId64 " elements", name, count);
    ISO_TRY(add_memory(state, owner, name, type, 1, &count, data));
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
    return ISO_OK;
}

iso_status iso__state_add_tensor(iso_state *state, iso_tensor *tensor, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_tensor(state, state->owner, name, tensor));
    return ISO_OK;
}

static const int64_t one = 1;

iso_status iso__state_add_f64(iso_state *state, double *number, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, ISO_STATE_F64, 1, &one, number));
    return ISO_OK;
}

iso_status iso__state_add_i64(iso_state *state, int64_t *number, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, ISO_STATE_I64, 1, &one, number));
    return ISO_OK;
}

iso_status iso__state_add_new_i64(iso_state *state, int64_t *number, const char *format, ...) {
    char name[NAME_ROOM];
    MAKE_NAME(name, format);
    ISO_TRY(add_memory(state, state->owner, name, ISO_STATE_I64, 1, &one, number));
    state->array[state->owner][state->count[state->owner] - 1].optional = true;
    return ISO_OK;
}

// ---- Random layers ------------------------------------------------------------------------------
// Masks depend on how often a module ran and on the key of a dropout. Ranks that do not use the
// same layers in every step count differently, so the numbers of all ranks are kept.

static iso_status add_place(iso_state *self, void *place) {
    void *list = self->place;
    ISO_TRY(grow(&list, self->places, &self->place_room, sizeof(void *)));
    self->place = list;
    self->place[self->places++] = place;
    return ISO_OK;
}

// Of every module once, in the order of the walk.
static iso_status collect_places(iso_state *self, iso_module *module) {
    for (int i = 0; i < self->places; i++)
        if (self->place[i] == &module->forward_number) return ISO_OK;
    _Static_assert(sizeof(module->forward_number) == 8, "saved as one number");
    ISO_TRY(add_place(self, &module->forward_number));
    void *key = iso__dropout_key(module);
    if (key) ISO_TRY(add_place(self, key));
    for (int i = 0; i < module->child_count; i++) ISO_TRY(collect_places(self, module->child[i]));
    return ISO_OK;
}

static iso_status check_places(iso_comm *comm, int places) {
    int64_t extremes[2] = {places, -places};
    ISO_TRY(iso_comm_allreduce_i64(comm, extremes, 2, ISO_MAX));
    ISO_CHECK(extremes[0] == -extremes[1], ISO_ERR_MISMATCH,
              "ranks disagree: their modules have from %" PRId64 " to %" PRId64
              " counters and dropout keys",
              -extremes[1], extremes[0]);
    return ISO_OK;
}

// The numbers of all ranks of comm (NULL: this one only), the same on each.
static iso_status add_table(iso_state *self, iso_comm *comm) {
    void *memory;
    if (comm) ISO_TRY(check_places(comm, self->places));
    int64_t shape[2] = {comm ? iso_comm_size(comm) : 1, self->places};
    size_t numbers = (size_t)(shape[0] * shape[1]);
    ISO_TRY(iso__alloc_zero(numbers * sizeof(int64_t), &memory));
    self->table = memory;
    self->row = comm ? iso_comm_rank(comm) : 0;
    int64_t *row = self->table + (int64_t)self->row * self->places;
    for (int i = 0; i < self->places; i++) memcpy(&row[i], self->place[i], sizeof(row[i]));
    // Zeros elsewhere: a gather.
    if (comm) ISO_TRY(iso_comm_allreduce_i64(comm, self->table, numbers, ISO_SUM));
    ISO_TRY(add_memory(self, ISO_STATE_SHARED, "forward_counters", ISO_STATE_I64, 2, shape,
                       self->table));
    return ISO_OK;
}

void iso__state_scatter(const iso_state *self) {
    const int64_t *row = self->table + (int64_t)self->row * self->places;
    for (int i = 0; i < self->places; i++) memcpy(self->place[i], &row[i], sizeof(row[i]));
}

// ---- Module and optimizer -----------------------------------------------------------------------

static iso_optimizer *inner_of(iso_optimizer *optimizer) {
    return optimizer->ops->inner ? optimizer->ops->inner(optimizer) : NULL;
}

static iso_status add_parameters(iso_state *self, const iso_parameter_list *list) {
    char name[NAME_ROOM];
    for (int i = 0; i < list->count; i++) {
        iso_tensor *value;
        ISO_TRY(iso_parameter_value(list->item[i], &value)); // completes what is pending
        snprintf(name, sizeof(name), "param/%s", list->name[i]);
        ISO_TRY(add_tensor(self, self->owner, name, value));
    }
    return ISO_OK;
}

// Every rank has statistics of its own.
static iso_status add_buffers(iso_state *self, iso_module *module) {
    iso_buffer_list list;
    char name[NAME_ROOM];
    ISO_TRY(iso_module_buffers(module, &list));
    iso_status status = ISO_OK;
    for (int i = 0; i < list.count && status >= 0; i++) {
        snprintf(name, sizeof(name), "buffer/%s", list.name[i]);
        status = add_tensor(self, ISO_STATE_OWN, name, list.item[i]->value);
    }
    iso_buffer_list_destroy(&list);
    return status;
}

// What a communication hook keeps from step to step, each rank of its own gradients.
static iso_status add_hook_state(iso_state *self, const iso_reducer *reducer) {
    size_t count = 0;
    float *state = reducer ? iso__reducer_hook_state(reducer, &count) : NULL;
    if (!state) return ISO_OK;
    ISO_TRY(iso_state_add(self, ISO_STATE_OWN, "hook_state", ISO_STATE_F32, (int64_t)count, state));
    return ISO_OK;
}

// Whether ranks may have different parameters between steps.
static bool ranks_differ(iso_module *module, iso_optimizer *optimizer) {
    const iso_reducer *reducer = iso_data_parallel_reducer(module);
    if (reducer && !iso__reducer_keeps_ranks_equal(reducer)) return true;
    for (; optimizer; optimizer = inner_of(optimizer))
        if (optimizer->ops->ranks_differ) return true;
    return false;
}

static iso_status add_module(iso_state *self, iso_module *module) {
    iso_parameter_list list;
    iso_module *inner = iso_data_parallel_module(module); // the wrapper is no part of the model
    ISO_TRY(iso_module_parameters(module, &list));
    iso_status status = add_parameters(self, &list);
    iso_parameter_list_destroy(&list);
    ISO_TRY(status);
    ISO_TRY(add_buffers(self, module));
    ISO_TRY(add_hook_state(self, iso_data_parallel_reducer(module)));
    ISO_TRY(collect_places(self, inner ? inner : module));
    return ISO_OK;
}

iso_status iso_training_state(iso_module *module, iso_optimizer *optimizer, iso_state *state) {
    bool parallel = iso_data_parallel_reducer(module) != NULL;
    iso_comm *comm = parallel ? iso_data_parallel_comm(module) : NULL;
    ISO_CHECK(!state->table, ISO_ERR_STATE, "this state has a module and an optimizer already");
    // One of them would be all that is saved.
    int optimizers = parallel ? iso__reducer_appliers(iso_data_parallel_reducer(module)) : 1;
    ISO_CHECK(
        optimizers <= 1, ISO_ERR_UNSUPPORTED,
        "the model has %d optimizers, and the state of one can be saved: use one optimizer "
        "with parameter groups (iso_optimizer_add_group), or iso_optimizer_state_dict of each",
        optimizers);
    if (parallel) ISO_TRY(iso_data_parallel_finish(module));
    iso__state_set_owner(state, ranks_differ(module, optimizer) ? ISO_STATE_OWN : ISO_STATE_SHARED);
    iso_status status = add_module(state, module);
    // A rank that failed alone would leave the others waiting in what follows.
    if (comm) status = iso_comm_agree(comm, status);
    ISO_TRY(status);
    ISO_TRY(add_table(state, comm));
    for (; optimizer; optimizer = inner_of(optimizer)) {
        const iso_optimizer_ops *ops = optimizer->ops;
        ISO_CHECK(ops->state || ops->inner, ISO_ERR_UNSUPPORTED,
                  "the state of a %s optimizer cannot be saved: its table has no state function",
                  ops->name);
        if (ops->state) ISO_TRY(ops->state(optimizer, state));
    }
    return ISO_OK;
}

static iso_status tell_loaded(iso_optimizer *optimizer) {
    if (inner_of(optimizer)) ISO_TRY(tell_loaded(inner_of(optimizer)));
    if (optimizer->ops->loaded) ISO_TRY(optimizer->ops->loaded(optimizer));
    return ISO_OK;
}

iso_status iso_training_loaded(iso_module *module, iso_optimizer *optimizer) {
    // Gradients belong to the parameters that were there before.
    iso_module_zero_grad(module);
    iso_optimizer_zero_grad(optimizer);
    ISO_TRY(tell_loaded(optimizer));
    return ISO_OK;
}
