// SPDX-License-Identifier: MIT
// Relu and dropout; dropout draws by logical index, so the mask is the same in every layout.
#include "device/cpu/plain/cpu_real.h"

ISO_CPU_CLONES static void relu(int64_t count, const real *x, real *y) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0 : x[i]; // a NaN stays one
}

ISO_CPU_CLONES static void relu_mask(int64_t count, const real *y, const real *dy, real *dx) {
    for (int64_t i = 0; i < count; i++) dx[i] = y[i] > 0 ? dy[i] : 0;
}

static iso_status relu_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    relu(iso__cpu_view_of(iso__cpu_of(self), x).total, x->data, y->data);
    return ISO_OK;
}

static iso_status relu_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                iso_tensor *dx) {
    relu_mask(iso__cpu_view_of(iso__cpu_of(self), y).total, y->data, dy->data, dx->data);
    return ISO_OK;
}

// ---- Dropout ------------------------------------------------------------------------------------

// Philox calls made side by side, and the draws they give.
#define LANES 16
#define DRAWS (4 * LANES)
// The loop should vectorise, not unroll.
#define EACH_LANE _Pragma("GCC unroll 1") for (uint32_t l = 0; l < LANES; l++)

typedef struct row_mask {
    iso__philox_key key;
    uint32_t word1, word2, word3;
    uint32_t threshold; // of the upper 24 bits; below it an element is dropped
    real kept;
} row_mask;

// iso__philox for the counters first .. first + LANES - 1 at once: draw[w][l] is word w of counter
// first + l.
static inline __attribute__((always_inline)) void philox_lanes(const row_mask *r, uint32_t first,
                                                               uint32_t draw[4][LANES]) {
    uint32_t k0 = r->key.k[0], k1 = r->key.k[1];
    EACH_LANE {
        draw[0][l] = first + l;
        draw[1][l] = r->word1;
        draw[2][l] = r->word2;
        draw[3][l] = r->word3;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        EACH_LANE {
            uint64_t p0 = (uint64_t)0xD2511F53u * draw[0][l],
                     p1 = (uint64_t)0xCD9E8D57u * draw[2][l];
            draw[0][l] = (uint32_t)(p1 >> 32) ^ draw[1][l] ^ k0;
            draw[2][l] = (uint32_t)(p0 >> 32) ^ draw[3][l] ^ k1;
            draw[1][l] = (uint32_t)p1;
            draw[3][l] = (uint32_t)p0;
        }
    }
}

// mask[i] = 0 or `kept`; writes up to the next multiple of DRAWS.
ISO_CPU_CLONES static void draw_mask(const row_mask *r, int64_t count, real *mask) {
    const uint32_t threshold = r->threshold;
    const real kept = r->kept;
    for (int64_t i = 0; i < count; i += DRAWS) {
        uint32_t draw[4][LANES];
        philox_lanes(r, (uint32_t)(i / 4), draw);
        EACH_LANE for (int w = 0; w < 4; w++) mask[i + 4 * l + w] =
            draw[w][l] >> 8 < threshold ? 0.0f : kept;
    }
}

ISO_CPU_CLONES static void multiply(int64_t count, const real *x, const real *mask, real *y) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] * mask[i];
}

// One sample in the layout of v; mask has one entry per element in logical order, or one per
// channel.
static void apply_mask(const iso__cpu_view *v, bool channels, const real *x, const real *mask,
                       real *y) {
    int64_t plane = v->height * v->width;
    if (!channels && v->inner == 1) {
        multiply(v->channels * plane, x, mask, y);
        return;
    }
    for (int64_t g = 0; g < v->groups; g++)
        for (int64_t i = 0; i < plane; i++)
            for (int64_t l = 0; l < v->inner; l++, x++, y++) {
                int64_t c = g * v->inner + l;
                *y = c < v->channels ? *x * mask[channels ? c : c * plane + i] : 0.0f;
            }
}

static iso_status drop_elements(iso_device *self, const iso__dropout_draw *draw,
                                const iso_tensor *x, iso_tensor *y) {
    iso__cpu *cpu = iso__cpu_of(self);
    iso__cpu_view v = iso__cpu_view_of(cpu, x);
    // Draws of one sample. A 2-dimensional input has a channel per column.
    int64_t plane = v.height * v.width, count = v.channels * plane;
    bool channels = draw->channels && x->ndim == 4;
    if (channels) count = v.channels;
    void *mask;
    ISO_TRY(iso__cpu_scratch(cpu, (size_t)(count + DRAWS) * sizeof(real), &mask));
    row_mask r = {.key = draw->key,
                  .word2 = (uint32_t)draw->number,
                  .word3 = (uint32_t)(draw->number >> 32),
                  .threshold = (uint32_t)ceil(draw->p * 0x1p24),
                  .kept = (real)(1 / (1 - draw->p))};
    int64_t sample = v.total / v.rows;
    for (int64_t n = 0; n < v.rows; n++) {
        r.word1 = (uint32_t)(draw->first_row + n);
        draw_mask(&r, count, mask);
        apply_mask(&v, channels, (real *)x->data + n * sample, mask, (real *)y->data + n * sample);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_elementwise)(iso_kernel_ops *ops) {
    ops->relu_forward = relu_forward;
    ops->relu_backward = relu_backward;
    ops->dropout = drop_elements;
}
