// SPDX-License-Identifier: MIT
// Memory of the CPU device: buffers, scratch memory, and conversion between the logical and the
// blocked layout.
#include "base/half.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/half/cpu_half.h"

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

// For types without blocked kernels, the blocked layout is the logical one.
static int64_t block_of(const iso__cpu *cpu, iso_dtype dtype) {
    return dtype == ISO_F32 || iso__is_half(dtype) ? cpu->block : 1;
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

// Too few channels are not blocked: zeros would fill most of the block.
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

// Where an element is in memory: channel c of sample n, cell i.
static int64_t place_of(const iso__cpu_view *v, int64_t n, int64_t c, int64_t i) {
    int64_t plane = v->height * v->width;
    return ((n * v->groups + c / v->inner) * plane + i) * v->inner + c % v->inner;
}

// Zeros behind the last channel, up to the end of its block.
static void clear_padding(const iso__cpu_view *v, size_t size) {
    int64_t used = v->channels % v->inner;
    for (int64_t n = 0; used && n < v->rows; n++)
        for (int64_t i = 0; i < v->height * v->width; i++)
            memset((char *)v->data + (size_t)(place_of(v, n, v->channels - 1, i) + 1) * size, 0,
                   (size_t)(v->inner - used) * size);
}

// Elements of `size` bytes, which is a constant where this is inlined.
ISO_INLINE void walk_blocks(const iso__cpu_view *v, const size_t size, char *planes,
                            bool to_planes) {
    int64_t plane = v->height * v->width;
    const size_t step = (size_t)v->inner * size;
    for (int64_t n = 0; n < v->rows; n++)
        for (int64_t c = 0; c < v->channels; c++) {
            char *block = (char *)v->data + (size_t)place_of(v, n, c, 0) * size;
            for (int64_t i = 0; i < plane; i++, planes += size, block += step)
                memcpy(to_planes ? planes : block, to_planes ? block : planes, size);
        }
}

// Cells of `inner` channels -> planes of one channel. Walks the logical side in order.
static void to_logical(const iso__cpu_view *v, size_t size, void *to) {
    if (size == sizeof(uint16_t))
        walk_blocks(v, sizeof(uint16_t), to, true);
    else if (v->inner == 16 && iso__cpu_is_wide())
        transpose_blocks(v, v->data, to, true);
    else
        walk_blocks(v, sizeof(float), to, true);
}

static void from_logical(const void *from, size_t size, const iso__cpu_view *v) {
    char *planes = (char *)from; // which is only read
    if (size == sizeof(float) && v->inner == 16 && iso__cpu_is_wide()) {
        transpose_blocks(v, v->data, (float *)planes, false);
        return;
    }
    clear_padding(v, size);
    if (size == sizeof(uint16_t))
        walk_blocks(v, sizeof(uint16_t), planes, false);
    else
        walk_blocks(v, sizeof(float), planes, false);
}

static iso_status fail_unsupported(iso_dtype dtype) {
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "the CPU device does not compute in %s",
                    iso_dtype_name(dtype));
}

static iso_status memory_fill(iso_device *self, iso_tensor *x, double value) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), x);
    float single = (float)value;
    uint32_t half = x->dtype == ISO_BF16 ? iso__bf16_of(single) : iso__f16_of(single);
    switch (x->dtype) {
    case ISO_F32:
        for (int64_t i = 0; i < v.total; i++) ((float *)v.data)[i] = single;
        break;
    case ISO_BF16:
    case ISO_F16:
        for (int64_t i = 0; i < v.total; i++) ((uint16_t *)v.data)[i] = (uint16_t)half;
        break;
    case ISO_F64:
        for (int64_t i = 0; i < v.total; i++) ((double *)v.data)[i] = value;
        break;
    case ISO_I64:
        for (int64_t i = 0; i < v.total; i++) ((int64_t *)v.data)[i] = (int64_t)value;
        break;
    default: return fail_unsupported(x->dtype);
    }
    clear_padding(&v, iso_dtype_size(x->dtype));
    return ISO_OK;
}

static iso_status memory_to_host(iso_device *self, const iso_tensor *from, void *host) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), from);
    if (v.inner == 1)
        memcpy(host, v.data, (size_t)v.total * iso_dtype_size(from->dtype));
    else
        to_logical(&v, iso_dtype_size(from->dtype), host);
    return ISO_OK;
}

static iso_status memory_from_host(iso_device *self, const void *host, iso_tensor *to) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), to);
    if (v.inner == 1)
        memcpy(v.data, host, (size_t)v.total * iso_dtype_size(to->dtype));
    else
        from_logical(host, iso_dtype_size(to->dtype), &v);
    return ISO_OK;
}

// ---- Between element types, a piece at a time, which is f32 in between -----------------------------

enum { PIECE = 256 };

static const float *read_piece(const iso_tensor *x, int64_t first, int count, float *piece) {
    if (x->dtype == ISO_F32) return (const float *)x->data + first;
    if (x->dtype == ISO_F64)
        for (int i = 0; i < count; i++) piece[i] = (float)((const double *)x->data)[first + i];
    else
        iso__cpu_widen(x->dtype, count, (const uint16_t *)x->data + first, piece);
    return piece;
}

static void write_piece(const float *piece, int64_t first, int count, iso_tensor *x) {
    if (x->dtype == ISO_F32)
        memcpy((float *)x->data + first, piece, (size_t)count * sizeof(float));
    else if (x->dtype == ISO_F64)
        for (int i = 0; i < count; i++) ((double *)x->data)[first + i] = (double)piece[i];
    else
        iso__cpu_narrow(x->dtype, count, piece, (uint16_t *)x->data + first);
}

static iso_status check_convertible(iso_dtype type) {
    if (type == ISO_F32 || type == ISO_F64 || iso__is_half(type)) return ISO_OK;
    return fail_unsupported(type);
}

// One layout is blocked, and the other logical.
static void convert_across(const iso__cpu_view *a, const iso_tensor *from, const iso__cpu_view *b,
                           iso_tensor *to) {
    float one;
    clear_padding(b, iso_dtype_size(to->dtype));
    for (int64_t n = 0; n < a->rows; n++)
        for (int64_t c = 0; c < a->channels; c++)
            for (int64_t i = 0; i < a->height * a->width; i++)
                write_piece(read_piece(from, place_of(a, n, c, i), 1, &one), place_of(b, n, c, i),
                            1, to);
}

static iso_status convert_elements(const iso__cpu *cpu, const iso_tensor *from, iso_tensor *to) {
    iso__cpu_view a = iso__cpu_view_of(cpu, from), b = iso__cpu_view_of(cpu, to);
    float piece[PIECE];
    ISO_TRY(check_convertible(from->dtype));
    ISO_TRY(check_convertible(to->dtype));
    if (a.inner != b.inner) {
        convert_across(&a, from, &b, to);
        return ISO_OK;
    }
    for (int64_t first = 0; first < a.total; first += PIECE) {
        int count = (int)iso__smaller(a.total - first, PIECE);
        write_piece(read_piece(from, first, count, piece), first, count, to);
    }
    return ISO_OK;
}

// ---- Copies ---------------------------------------------------------------------------------------

static iso_status memory_copy(iso_device *self, const iso_tensor *from, iso_tensor *to) {
    iso__cpu *cpu = iso__cpu_of(self);
    if (from->dtype != to->dtype) return convert_elements(cpu, from, to);
    iso__cpu_view a = iso__cpu_view_of(cpu, from), b = iso__cpu_view_of(cpu, to);
    if (b.inner == 1) return memory_to_host(self, from, to->data);
    if (a.inner == 1) return memory_from_host(self, from->data, to);
    ISO_CHECK(iso__tensor_same_shape(from, to), ISO_ERR_UNSUPPORTED,
              "the CPU device cannot copy between two shapes that are both blocked");
    memcpy(b.data, a.data, (size_t)a.total * iso_dtype_size(from->dtype));
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
    ops->take_master = iso__cpu_take_master;
    ops->to_host = memory_to_host;
    ops->from_host = memory_from_host;
}
