// SPDX-License-Identifier: MIT
// The tensors of a kernel call for bf16 or f16 as f32.
#include "device/cpu/half/cpu_half.h"

static bool is_half(const iso_tensor *x) { return x && iso__is_half(x->dtype); }

// With the padding of a blocked layout, which is the same in all element types that have blocks.
static int64_t stored_count(const iso__wide *w, int i) {
    return iso__cpu_view_of(w->cpu, w->given[i]).total;
}

static iso_status wide_memory(iso__cpu *cpu, size_t bytes, void **out) {
    if (bytes > cpu->wide_bytes) {
        iso__free(cpu->wide); // free it first: old and new need not fit together
        cpu->wide = NULL;
        cpu->wide_bytes = 0;
        ISO_TRY(iso__alloc(bytes, &cpu->wide));
        cpu->wide_bytes = bytes;
    }
    *out = cpu->wide;
    return ISO_OK;
}

iso_status iso__wide_open(iso__wide *w, iso_device *self, int count, const iso_tensor *const *x) {
    size_t bytes = 0;
    void *memory = NULL;
    w->cpu = iso__cpu_of(self);
    w->ops = self->kernels[ISO_F32];
    w->count = count;
    for (int i = 0; i < count; i++) {
        w->given[i] = x[i];
        w->as[i] = (iso_tensor *)x[i];
        if (is_half(x[i])) bytes += iso__round_up((size_t)stored_count(w, i) * sizeof(float), 64);
    }
    ISO_TRY(wide_memory(w->cpu, bytes, &memory));
    char *at = memory;
    for (int i = 0; i < count; i++) {
        if (!is_half(x[i])) continue;
        w->copy[i] = *x[i];
        w->copy[i].dtype = ISO_F32;
        w->copy[i].data = at;
        w->as[i] = &w->copy[i];
        at += iso__round_up((size_t)stored_count(w, i) * sizeof(float), 64);
    }
    return ISO_OK;
}

void iso__wide_read(iso__wide *w, int i) {
    if (is_half(w->given[i]))
        iso__cpu_widen(w->given[i]->dtype, stored_count(w, i), w->given[i]->data, w->copy[i].data);
}

void iso__wide_write(const iso__wide *w, int i) {
    if (is_half(w->given[i]))
        iso__cpu_narrow(w->given[i]->dtype, stored_count(w, i), w->copy[i].data, w->given[i]->data);
}

iso_status iso__widen(iso__wide *w, iso_device *self, int reads, int count,
                      const iso_tensor *const *x) {
    ISO_TRY(iso__wide_open(w, self, count, x));
    for (int i = 0; i < reads; i++) iso__wide_read(w, i);
    return ISO_OK;
}

void iso__narrow(const iso__wide *w, int first) {
    for (int i = first; i < w->count; i++) iso__wide_write(w, i);
}
