// SPDX-License-Identifier: MIT
// Kernels that compute every element from the inputs' elements at the same index, 16 bytes at a
// time if memory is aligned accordingly.
#ifndef ISO_CUDA_MAP_CUH
#define ISO_CUDA_MAP_CUH

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

template <class T> struct iso__map_args {
    int64_t count, packs;
    const T *a, *b;
    T *y, *copy;
    typename iso__real<T>::type number;
};

// y = Function::of(a, b, number); y may be a or b. copy = y unless copy is NULL. b is read only if
// Function::binary.
template <class T, class Function> __global__ void iso__map(iso__map_args<T> m) {
    typedef iso__pack<T> pack;
    for (int64_t i = iso__first_item(); i < m.packs; i += iso__item_stride()) {
        pack a = ((const pack *)m.a)[i], b = Function::binary ? ((const pack *)m.b)[i] : a, y;
        for (int k = 0; k < pack::width; k++)
            iso__narrow(Function::of(iso__widen(a.at[k]), iso__widen(b.at[k]), m.number), &y.at[k]);
        ((pack *)m.y)[i] = y;
        if (m.copy) ((pack *)m.copy)[i] = y;
    }
    int64_t rest = m.packs * pack::width + iso__first_item();
    for (int64_t i = rest; i < m.count; i += iso__item_stride()) {
        T y, a = m.a[i], b = Function::binary ? m.b[i] : a;
        iso__narrow(Function::of(iso__widen(a), iso__widen(b), m.number), &y);
        m.y[i] = y;
        if (m.copy) m.copy[i] = y;
    }
}

template <class T, class Function>
iso_status iso__cuda_map_as(iso__cuda *cuda, int64_t count, const void *a, const void *b, void *y,
                            void *copy, double number) {
    typedef typename iso__real<T>::type Real;
    bool aligned = ((uintptr_t)a | (uintptr_t)b | (uintptr_t)y | (uintptr_t)copy) % 16 == 0;
    int64_t packs = aligned ? count / iso__pack<T>::width : 0;
    iso__map_args<T> args = {count,  packs,     (const T *)a, (const T *)b,
                             (T *)y, (T *)copy, (Real)number};
    return iso__cuda_submit_over(cuda, iso__map<T, Function>, packs > 0 ? packs : count, args);
}

template <class Function>
iso_status iso__cuda_map(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *a,
                         const void *b, void *y, void *copy, double number = 0) {
    auto map =
        iso__for_type(dtype, iso__cuda_map_as<double, Function>, iso__cuda_map_as<float, Function>,
                      iso__cuda_map_as<iso__bf16, Function>, iso__cuda_map_as<iso__f16, Function>);
    return map(cuda, count, a, b, y, copy, number);
}

#endif
