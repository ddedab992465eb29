// SPDX-License-Identifier: MIT
// Norms of gradients and clipping on the CUDA device.
#include "device/cuda/ops/clip_kernels.h"
#include "device/cuda/runtime/cuda_impl.h"

// ---- Lists ----------------------------------------------------------------------------------------

static int64_t parts_of(const iso_tensor *x) {
    return (x->count + ISO_CUDA_CLIP_PART - 1) / ISO_CUDA_CLIP_PART;
}

static bool has_room(const iso__cuda_clip_list *list, const iso_tensor *x) {
    return list->arrays < ISO_CUDA_CLIP_ARRAYS && list->first[list->arrays] + parts_of(x) < 1 << 30;
}

static void add_array(iso__cuda_clip_list *list, const iso_tensor *x) {
    int64_t i = list->arrays++;
    list->at[i] = x->data;
    list->count[i] = x->count;
    list->first[i + 1] = list->first[i] + (int32_t)parts_of(x);
}

// Called with one list after the other, until all arrays of all types were in one.
typedef struct walk {
    iso__cuda *cuda;
    int count;
    iso_tensor *const *x;
    iso_status (*visit)(struct walk *self, iso_dtype dtype, const iso__cuda_clip_list *list);
    double p, most, *parts;
    int64_t parts_used;
    iso__cuda_clip_result *result;
} walk;

static iso_status walk_type(walk *w, iso_dtype dtype) {
    iso__cuda_clip_list list = {.arrays = 0};
    for (int i = 0; i < w->count; i++) {
        if (w->x[i]->dtype != dtype) continue;
        if (!has_room(&list, w->x[i])) {
            ISO_TRY(w->visit(w, dtype, &list));
            list = (iso__cuda_clip_list){.arrays = 0};
        }
        add_array(&list, w->x[i]);
    }
    return list.arrays > 0 ? w->visit(w, dtype, &list) : ISO_OK;
}

static iso_status walk_all(walk *w) {
    static const iso_dtype types[] = {ISO_F32, ISO_F64, ISO_BF16, ISO_F16};
    for (int i = 0; i < 4; i++) ISO_TRY(walk_type(w, types[i]));
    return ISO_OK;
}

// ---- What is done with them -----------------------------------------------------------------------

static iso_status visit_parts(walk *w, iso_dtype dtype, const iso__cuda_clip_list *list) {
    double *parts = w->parts + w->parts_used;
    w->parts_used += list->first[list->arrays];
    return iso__cuda_clip_parts(w->cuda, dtype, list, w->p, parts);
}

static iso_status visit_scale(walk *w, iso_dtype dtype, const iso__cuda_clip_list *list) {
    return iso__cuda_clip_scale(w->cuda, dtype, list, w->result);
}

static iso_status visit_clamp(walk *w, iso_dtype dtype, const iso__cuda_clip_list *list) {
    return iso__cuda_clip_clamp(w->cuda, dtype, list, w->most);
}

// Scratch memory is there until the next kernel that wants some, which comes after these.
static iso_status make_room(walk *w) {
    int64_t parts = 0;
    void *memory;
    for (int i = 0; i < w->count; i++) parts += parts_of(w->x[i]);
    ISO_TRY(iso__cuda_scratch(w->cuda, sizeof(*w->result) + (size_t)parts * sizeof(*w->parts),
                              &memory));
    w->result = memory;
    w->parts = (double *)(w->result + 1);
    return ISO_OK;
}

static iso_status clip_norm(iso_device *self, int count, iso_tensor *const *x, double p,
                            const double *max_norm, double *norm) {
    walk w = {.cuda = iso__cuda_of(self), .count = count, .x = x, .p = p, .visit = visit_parts};
    ISO_TRY(make_room(&w));
    ISO_TRY(walk_all(&w));
    ISO_TRY(iso__cuda_clip_result_of(w.cuda, w.parts_used, w.parts, p, max_norm ? *max_norm : 0,
                                     w.result));
    w.visit = visit_scale;
    if (max_norm) ISO_TRY(walk_all(&w));
    if (!norm) return ISO_OK;
    ISO_TRY(iso__cuda_wait(w.cuda));
    ISO_TRY_CUDA(cudaMemcpy(norm, &w.result->norm, sizeof(*norm), cudaMemcpyDeviceToHost));
    return ISO_OK;
}

static iso_status clip_value(iso_device *self, int count, iso_tensor *const *x, double most) {
    walk w = {.cuda = iso__cuda_of(self), .count = count, .x = x, .visit = visit_clamp};
    w.most = most;
    return walk_all(&w);
}

void iso__cuda_fill_clip(iso__remote_ops *ops) {
    ops->clip_norm = clip_norm;
    ops->clip_value = clip_value;
}
