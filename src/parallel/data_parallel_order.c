// SPDX-License-Identifier: MIT
// Puts the parameters and buffers of a module into the order of rank 0, by their names.
#include "parallel/data_parallel_impl.h"

#include <string.h>

enum { NAME_ROOM = 800, SHAPE_ROOM = 64 };

// What is matched of a parameter or a buffer. Layers follow from the order, which is not known yet.
typedef struct entry {
    char name[NAME_ROOM], shape[SHAPE_ROOM];
} entry;

static iso_reducer_param describe_entry(const iso_tensor *t, const char *further, entry *text) {
    char shape[48];
    iso__shape_text(t->ndim, t->shape, shape, sizeof(shape));
    snprintf(text->shape, sizeof(text->shape), "%s%s", shape, further);
    return (iso_reducer_param){
        .name = text->name,
        .value = t->data,
        .count = (size_t)t->count,
        .dtype = t->dtype,
        .shape_id = iso__hash(ISO_HASH_START, t->shape, (size_t)t->ndim * sizeof(t->shape[0])),
        .shape_text = text->shape};
}

// Parameters first. A buffer is named as such, for messages.
static void list_entries(const iso__data_parallel *self, iso_reducer_param *out, entry *text) {
    int n = 0;
    for (int i = 0; i < self->list.count; i++, n++) {
        const iso_parameter *p = self->list.item[i];
        snprintf(text[n].name, NAME_ROOM, "%s", self->list.name[i]);
        out[n] = describe_entry(p->value, p->requires_grad ? "" : " frozen", &text[n]);
    }
    for (int i = 0; i < self->buffers.count; i++, n++) {
        snprintf(text[n].name, NAME_ROOM, "%s (a buffer)", self->buffers.name[i]);
        out[n] = describe_entry(self->buffers.item[i]->value, "", &text[n]);
    }
}

// Modules that are wrapped later get higher places, on every rank.
static void set_places(iso__data_parallel *self, const int *from, int count) {
    for (int k = 0; k < count; k++) {
        int64_t place = self->number << 32 | (k + 1);
        int buffer = from[k] - self->list.count;
        if (buffer < 0)
            self->list.item[from[k]]->place = place;
        else
            self->buffers.item[buffer]->place = place;
    }
    self->placed = true;
}

// The lists of the places that are set now.
static iso_status list_again(iso__data_parallel *self) {
    iso_module *module = self->base.child[0];
    iso_parameter_list list;
    iso_buffer_list buffers;
    ISO_TRY(iso_module_parameters(module, &list));
    iso_status status = iso_module_buffers(module, &buffers);
    if (status < 0) iso_parameter_list_destroy(&list);
    ISO_TRY(status);
    iso_parameter_list_destroy(&self->list);
    iso_buffer_list_destroy(&self->buffers);
    self->list = list;
    self->buffers = buffers;
    return ISO_OK;
}

// What matching needs, for each parameter and buffer.
typedef struct work {
    iso_reducer_param *param;
    entry *text;
    int *from;
} work;

static iso_status allocate_work(size_t count, work *w) {
    ISO_TRY(iso__alloc_zero(count * sizeof(*w->param), (void **)&w->param));
    ISO_TRY(iso__alloc_zero(count * sizeof(*w->text), (void **)&w->text));
    return iso__alloc_zero(count * sizeof(*w->from), (void **)&w->from);
}

static iso_status match_entries(iso__data_parallel *self, const work *w, int count) {
    list_entries(self, w->param, w->text);
    ISO_TRY(iso__reducer_match_names(self->comm, w->param, count, w->from));
    set_places(self, w->from, count);
    return iso_comm_agree(self->comm, list_again(self));
}

iso_status iso__data_parallel_take_order(iso__data_parallel *self) {
    int count = self->list.count + self->buffers.count;
    work w = {0};
    iso_status status = iso_comm_agree(self->comm, allocate_work((size_t)count, &w));
    if (status == ISO_OK) status = match_entries(self, &w, count);
    iso__free(w.param);
    iso__free(w.text);
    iso__free(w.from);
    ISO_TRY(status);
    return ISO_OK;
}

void iso__data_parallel_drop_order(iso__data_parallel *self) {
    if (!self->placed) return;
    for (int i = 0; i < self->list.count; i++) self->list.item[i]->place = 0;
    for (int i = 0; i < self->buffers.count; i++) self->buffers.item[i]->place = 0;
}
