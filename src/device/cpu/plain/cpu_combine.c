// SPDX-License-Identifier: MIT
// What layers of several inputs need: copies of columns, and outer products of rows.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

static iso_status copy_columns(iso_device *self, int64_t width, const iso_tensor *from,
                               int64_t from_first, iso_tensor *to, int64_t to_first) {
    (void)self;
    const real *source = (real *)from->data + from_first;
    real *target = (real *)to->data + to_first;
    for (int64_t n = 0; n < from->shape[0]; n++)
        memcpy(target + n * to->shape[1], source + n * from->shape[1],
               (size_t)width * sizeof(real));
    return ISO_OK;
}

// ---- Outer products -----------------------------------------------------------------------------

typedef struct sizes {
    int64_t rows, in1, in2;
} sizes;

static sizes sizes_of(const iso_tensor *a, const iso_tensor *b) {
    int64_t in1 = a->shape[a->ndim - 1];
    return (sizes){.rows = a->count / in1, .in1 = in1, .in2 = b->shape[b->ndim - 1]};
}

ISO_CPU_CLONES static void multiply_rows(sizes s, const real *restrict a, const real *restrict b,
                                         real *restrict z) {
    for (int64_t n = 0; n < s.rows; n++, a += s.in1, b += s.in2)
        for (int64_t i = 0; i < s.in1; i++, z += s.in2)
            for (int64_t j = 0; j < s.in2; j++) z[j] = a[i] * b[j];
}

ISO_CPU_CLONES static void first_gradient(sizes s, const real *dz, const real *b, real *da) {
    for (int64_t n = 0; n < s.rows; n++, da += s.in1, b += s.in2)
        for (int64_t i = 0; i < s.in1; i++, dz += s.in2) {
            real sum = 0;
            for (int64_t j = 0; j < s.in2; j++) sum += dz[j] * b[j];
            da[i] = sum;
        }
}

ISO_CPU_CLONES static void second_gradient(sizes s, const real *restrict dz, const real *restrict a,
                                           real *restrict db) {
    memset(db, 0, (size_t)(s.rows * s.in2) * sizeof(real));
    for (int64_t n = 0; n < s.rows; n++, a += s.in1, db += s.in2)
        for (int64_t i = 0; i < s.in1; i++, dz += s.in2)
            for (int64_t j = 0; j < s.in2; j++) db[j] += a[i] * dz[j];
}

static iso_status outer_forward(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                                iso_tensor *z) {
    (void)self;
    multiply_rows(sizes_of(a, b), a->data, b->data, z->data);
    return ISO_OK;
}

static iso_status outer_backward(iso_device *self, const iso_tensor *dz, const iso_tensor *a,
                                 const iso_tensor *b, iso_tensor *da, iso_tensor *db) {
    (void)self;
    if (da) first_gradient(sizes_of(a, b), dz->data, b->data, da->data);
    if (db) second_gradient(sizes_of(a, b), dz->data, a->data, db->data);
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_combine)(iso_kernel_ops *ops) {
    ops->copy_columns = copy_columns;
    ops->outer_forward = outer_forward;
    ops->outer_backward = outer_backward;
}
