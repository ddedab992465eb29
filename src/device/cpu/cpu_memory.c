// SPDX-License-Identifier: MIT
// Memory of the CPU device: buffers, scratch memory, and conversion between the logical and the
// blocked layout.
#include "device/cpu/cpu_impl.h"

#include <string.h>

static iso_status memory_alloc(iso_device *self, size_t bytes, void **out) {
    (void)self;
    ISO_TRY(iso__alloc(bytes, out));
    return ISO_OK;
}

static void memory_free(iso_device *self, void *data) {
    (void)self;
    iso__free(data);
}

iso_status iso__cpu_scratch(iso__cpu *cpu, size_t bytes, void **out) {
    if (bytes > cpu->scratch_bytes) {
        ISO_TRY(iso__realloc(&cpu->scratch, 0, bytes));
        cpu->scratch_bytes = bytes;
    }
    *out = cpu->scratch;
    return ISO_OK;
}

// Types without kernels for blocks have the logical layout under that name too.
static int64_t block_of(const iso__cpu *cpu, iso_dtype dtype) {
    return dtype == ISO_F32 ? cpu->block : 1;
}

iso__cpu_view iso__cpu_view_of(const iso__cpu *cpu, const iso_tensor *x) {
    iso__cpu_view v = {
        .data = x->data, .rows = x->ndim ? x->shape[0] : 1, .channels = 1, .height = 1, .inner = 1};
    if (x->ndim == 4) {
        v.channels = x->shape[1];
        v.height = x->shape[2];
        v.width = x->shape[3];
        if (x->layout == ISO_LAYOUT_BLOCKED) v.inner = block_of(cpu, x->dtype);
    } else {
        v.width = x->count / v.rows;
    }
    v.groups = (v.channels + v.inner - 1) / v.inner;
    v.total = v.rows * v.groups * v.height * v.width * v.inner;
    return v;
}

static size_t storage_bytes(iso_device *self, iso_dtype dtype, int ndim, const int64_t *shape,
                            iso_layout layout) {
    int64_t block = layout == ISO_LAYOUT_BLOCKED ? block_of(iso__cpu_of(self), dtype) : 1;
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= i == 1 ? (shape[i] + block - 1) / block * block : shape[i];
    return (size_t)count * iso_dtype_size(dtype);
}

// Few channels are not worth the zeros that would fill their block.
static iso_layout preferred_layout(iso_device *self, iso_dtype dtype, int ndim,
                                   const int64_t *shape) {
    int64_t block = block_of(iso__cpu_of(self), dtype);
    return block > 1 && ndim == 4 && 2 * shape[1] >= block ? ISO_LAYOUT_BLOCKED
                                                           : ISO_LAYOUT_LOGICAL;
}

static bool is_in_order(iso_device *self, const iso_tensor *x) {
    (void)self;
    return x->layout == ISO_LAYOUT_LOGICAL;
}

// Blocks of 16 channels, 16 cells at a time; `blocks` is the whole tensor in cells.
static void transpose_blocks(const iso__cpu_view *v, float *blocks, float *planes, bool to_planes) {
    int64_t plane = v->height * v->width;
    for (int64_t g = 0; g < v->rows * v->groups; g++) {
        int64_t left = v->channels - g % v->groups * 16;
        int channels = left < 16 ? (int)left : 16;
        for (int64_t i = 0; i < plane; i += 16) {
            int cells = plane - i < 16 ? (int)(plane - i) : 16;
            float *block = blocks + (g * plane + i) * 16;
            if (to_planes)
                iso__cpu_transpose16(block, 16, cells, channels, planes + i, plane, cells);
            else
                iso__cpu_transpose16(planes + i, plane, channels, cells, block, 16, 16);
        }
        planes += channels * plane;
    }
}

// Cells of `inner` channels -> planes of one channel. Walks the logical side in order.
static void to_logical(const iso__cpu_view *v, float *to) {
    int64_t plane = v->height * v->width;
    if (v->inner == 16 && iso__cpu_is_wide()) {
        transpose_blocks(v, v->data, to, true);
        return;
    }
    for (int64_t n = 0; n < v->rows; n++)
        for (int64_t c = 0; c < v->channels; c++) {
            const float *from = (float *)v->data +
                                ((n * v->groups + c / v->inner) * plane) * v->inner + c % v->inner;
            for (int64_t i = 0; i < plane; i++) *to++ = from[i * v->inner];
        }
}

static void from_logical(const float *from, const iso__cpu_view *v) {
    int64_t plane = v->height * v->width;
    if (v->inner == 16 && iso__cpu_is_wide()) {
        transpose_blocks(v, v->data, (float *)from, false);
        return;
    }
    // Zeros between the channels that exist and the end of the last block.
    if (v->channels % v->inner) memset(v->data, 0, (size_t)v->total * sizeof(float));
    for (int64_t n = 0; n < v->rows; n++)
        for (int64_t c = 0; c < v->channels; c++) {
            float *to = (float *)v->data + ((n * v->groups + c / v->inner) * plane) * v->inner +
                        c % v->inner;
            for (int64_t i = 0; i < plane; i++) to[i * v->inner] = *from++;
        }
}

static void fill_blocked(const iso__cpu_view *v, float value) {
    int64_t cells = v->rows * v->groups * v->height * v->width, plane = v->height * v->width;
    for (int64_t i = 0; i < cells; i++)
        for (int64_t c = 0; c < v->inner; c++)
            ((float *)v->data)[i * v->inner + c] =
                i / plane % v->groups * v->inner + c < v->channels ? value : 0.0f;
}

static iso_status fail_unsupported(iso_dtype dtype) {
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "the CPU device computes in f32 and f64 only, not in %s",
                    iso_dtype_name(dtype));
}

static iso_status memory_fill(iso_device *self, iso_tensor *x, double value) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), x);
    switch (x->dtype) {
    case ISO_F32: fill_blocked(&v, (float)value); return ISO_OK;
    case ISO_F64:
        for (int64_t i = 0; i < v.total; i++) ((double *)v.data)[i] = value;
        return ISO_OK;
    case ISO_I64:
        for (int64_t i = 0; i < v.total; i++) ((int64_t *)v.data)[i] = (int64_t)value;
        return ISO_OK;
    default: return fail_unsupported(x->dtype);
    }
}

static iso_status memory_to_host(iso_device *self, const iso_tensor *from, void *host) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), from);
    if (v.inner == 1)
        memcpy(host, v.data, (size_t)v.total * iso_dtype_size(from->dtype));
    else
        to_logical(&v, host);
    return ISO_OK;
}

static iso_status memory_from_host(iso_device *self, const void *host, iso_tensor *to) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), to);
    if (v.inner == 1)
        memcpy(v.data, host, (size_t)v.total * iso_dtype_size(to->dtype));
    else
        from_logical(host, &v);
    return ISO_OK;
}

// Between element types.
static iso_status convert_elements(const iso_tensor *from, iso_tensor *to) {
    ISO_CHECK(from->layout == ISO_LAYOUT_LOGICAL && to->layout == ISO_LAYOUT_LOGICAL,
              ISO_ERR_UNSUPPORTED,
              "the CPU device converts element types of tensors in logical layout only");
    if (from->dtype == ISO_F32 && to->dtype == ISO_F64)
        for (int64_t i = 0; i < to->count; i++)
            ((double *)to->data)[i] = (double)((const float *)from->data)[i];
    else if (from->dtype == ISO_F64 && to->dtype == ISO_F32)
        for (int64_t i = 0; i < to->count; i++)
            ((float *)to->data)[i] = (float)((const double *)from->data)[i];
    else
        return fail_unsupported(from->dtype == ISO_F32 || from->dtype == ISO_F64 ? to->dtype
                                                                                 : from->dtype);
    return ISO_OK;
}

static iso_status memory_copy(iso_device *self, const iso_tensor *from, iso_tensor *to) {
    iso__cpu *cpu = iso__cpu_of(self);
    if (from->dtype != to->dtype) return convert_elements(from, to);
    iso__cpu_view a = iso__cpu_view_of(cpu, from), b = iso__cpu_view_of(cpu, to);
    if (b.inner == 1) return memory_to_host(self, from, to->data);
    if (a.inner == 1) return memory_from_host(self, from->data, to);
    ISO_CHECK(iso__tensor_same_shape(from, to), ISO_ERR_UNSUPPORTED,
              "the CPU device cannot copy between two shapes that are both blocked");
    memcpy(b.data, a.data, (size_t)a.total * sizeof(float));
    return ISO_OK;
}

void iso__cpu_fill_memory(iso_device_ops *ops) {
    ops->alloc = memory_alloc;
    ops->free = memory_free;
    ops->fill = memory_fill;
    ops->storage_bytes = storage_bytes;
    ops->preferred_layout = preferred_layout;
    ops->is_in_order = is_in_order;
    ops->copy = memory_copy;
    ops->to_host = memory_to_host;
    ops->from_host = memory_from_host;
}
