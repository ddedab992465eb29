// Kernels that compute every element from the elements at its place, 16 bytes at a time where
// memory is aligned to that.
#ifndef ISO_CUDA_MAP_CUH
#define ISO_CUDA_MAP_CUH

#include "device/cuda/cuda_pack.cuh"
#include "device/cuda/cuda_submit.cuh"

template <class Real> struct iso__map_args {
    int64_t count, packs;
    const Real *a, *b;
    Real *y, *copy;
};

// y = Function::of(a, b), which may be a or b; copy = y unless NULL. b is read where
// Function::binary.
template <class Real, class Function> __global__ void iso__map(iso__map_args<Real> m) {
    typedef iso__pack<Real> pack;
    for (int64_t i = iso__first_item(); i < m.packs; i += iso__item_stride()) {
        pack a = ((const pack *)m.a)[i], b = Function::binary ? ((const pack *)m.b)[i] : a, y;
        for (int k = 0; k < pack::width; k++) y.at[k] = Function::of(a.at[k], b.at[k]);
        ((pack *)m.y)[i] = y;
        if (m.copy) ((pack *)m.copy)[i] = y;
    }
    int64_t rest = m.packs * pack::width + iso__first_item();
    for (int64_t i = rest; i < m.count; i += iso__item_stride()) {
        Real y = Function::of(m.a[i], Function::binary ? m.b[i] : m.a[i]);
        m.y[i] = y;
        if (m.copy) m.copy[i] = y;
    }
}

template <class Real, class Function>
iso_status iso__cuda_map_as(iso__cuda *cuda, int64_t count, const void *a, const void *b, void *y,
                            void *copy) {
    bool aligned = ((uintptr_t)a | (uintptr_t)b | (uintptr_t)y | (uintptr_t)copy) % 16 == 0;
    int64_t packs = aligned ? count / iso__pack<Real>::width : 0;
    iso__map_args<Real> args = {count,           packs,     (const Real *)a,
                                (const Real *)b, (Real *)y, (Real *)copy};
    return iso__cuda_submit_over(cuda, iso__map<Real, Function>, packs > 0 ? packs : count, args);
}

template <class Function>
iso_status iso__cuda_map(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *a,
                         const void *b, void *y, void *copy) {
    if (dtype == ISO_F64) return iso__cuda_map_as<double, Function>(cuda, count, a, b, y, copy);
    return iso__cuda_map_as<float, Function>(cuda, count, a, b, y, copy);
}

#endif
