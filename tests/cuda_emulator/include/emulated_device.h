// SPDX-License-Identifier: MIT
// The language of kernels for a C++ compiler: qualifiers, built-in variables, warp and block
// operations, atomics and vector types. Included by cuda_runtime.h.
#ifndef EMULATED_DEVICE_H
#define EMULATED_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __managed__
// The blocks of all kernels run one after the other, so one instance serves them all.
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))

// ---- Launch ----

typedef void (*emulated_trampoline)(const void *kernel, const void *args);
void emulated_register_kernel(const void *kernel, emulated_trampoline call, size_t args_size,
                              const char *signature);

template <class A> void emulated_call(const void *kernel, const void *args) {
    alignas(A) unsigned char space[sizeof(A)];
    memcpy(space, args, sizeof(A));
    reinterpret_cast<void (*)(A)>(const_cast<void *>(kernel))(*reinterpret_cast<A *>(space));
}

// A kernel's address says nothing about its argument, and a CPU needs a typed call: so each kernel
// is made known before its first launch (again is harmless). The argument's device pointers, where
// they stand at multiples of 8 bytes, become addresses that the CPU can use; pointers that are kept
// in device memory do not, so no kernel can follow those.
template <class A> void emulated_register(void (*kernel)(A)) {
    static_assert(std::is_trivially_copyable<A>::value, "a kernel's argument is copied as bytes");
    emulated_register_kernel(reinterpret_cast<const void *>(kernel), emulated_call<A>, sizeof(A),
                             __PRETTY_FUNCTION__);
}

// ---- Built-in variables: plain globals, because only the executor thread runs kernels ----

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

// ---- Barriers and warp operations ----

// The place is the caller's, so that threads waiting at different barriers are noticed.
void emulated_barrier(int line, const char *file);
int emulated_barrier_count(int predicate, int line, const char *file);
// All threads of `mask` exchange a value; what comes from a lane outside of it is all ones.
uint64_t emulated_shuffle(unsigned mask, uint64_t value, int source_lane);
unsigned emulated_ballot(unsigned mask, int predicate);
int emulated_lane(void);

inline void __syncthreads(int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    emulated_barrier(line, file);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE(),
                               const char *file = __builtin_FILE()) {
    return emulated_barrier_count(predicate, line, file);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE(),
                            const char *file = __builtin_FILE()) {
    return emulated_barrier_count(predicate, line, file) > 0;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE(),
                             const char *file = __builtin_FILE()) {
    return emulated_barrier_count(!predicate, line, file) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated_ballot(mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated_ballot(mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate) {
    return emulated_ballot(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return emulated_ballot(mask, !predicate) == 0;
}

template <class T> inline T emulated_exchange(unsigned mask, T value, int source_lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = emulated_shuffle(mask, bits, source_lane);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    int lane = emulated_lane();
    return emulated_exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = emulated_lane(), source = lane - static_cast<int>(delta);
    return emulated_exchange(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = emulated_lane(), source = lane + static_cast<int>(delta);
    return emulated_exchange(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    int lane = emulated_lane(), source = lane ^ lane_mask;
    return emulated_exchange(mask, value, source > (lane | (width - 1)) ? lane : source);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- Atomics: there is one executor thread ----

#define EMULATED_ATOMIC(name, type, expression)                                                    \
    inline type name(type *address, type value) {                                                  \
        type old = *address;                                                                       \
        *address = expression;                                                                     \
        return old;                                                                                \
    }
#define EMULATED_ATOMIC_INTEGERS(name, expression)                                                 \
    EMULATED_ATOMIC(name, int, expression)                                                         \
    EMULATED_ATOMIC(name, unsigned, expression)                                                    \
    EMULATED_ATOMIC(name, unsigned long long, expression)
EMULATED_ATOMIC_INTEGERS(atomicAdd, old + value)
EMULATED_ATOMIC(atomicAdd, float, old + value)
EMULATED_ATOMIC(atomicAdd, double, old + value)
EMULATED_ATOMIC_INTEGERS(atomicMax, old > value ? old : value)
EMULATED_ATOMIC_INTEGERS(atomicMin, old < value ? old : value)
EMULATED_ATOMIC_INTEGERS(atomicOr, old | value)
EMULATED_ATOMIC_INTEGERS(atomicAnd, old &value)
EMULATED_ATOMIC_INTEGERS(atomicExch, value)
EMULATED_ATOMIC(atomicExch, float, value)
#undef EMULATED_ATOMIC_INTEGERS
#undef EMULATED_ATOMIC
template <class T> inline T atomicCAS(T *address, T compare, T value) {
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "as on the device");
    T old = *address;
    if (old == compare) *address = value;
    return old;
}

// ---- Arithmetic ----

template <class T> inline T __ldg(const T *address) { return *address; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

#define EMULATED_MIN_MAX(type)                                                                     \
    inline type min(type a, type b) { return b < a ? b : a; }                                      \
    inline type max(type a, type b) { return a < b ? b : a; }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
#undef EMULATED_MIN_MAX
// On the device these are fminf and its family: a NaN loses.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

template <class To, class From> inline To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// Single operations, rounded to nearest, that a compiler must not fuse.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// ---- Vector types, aligned as on the device ----

#define EMULATED_VECTOR2(type, name)                                                               \
    struct alignas(2 * sizeof(type)) name {                                                        \
        type x, y;                                                                                 \
    };                                                                                             \
    inline name make_##name(type x, type y) { return name{x, y}; }
#define EMULATED_VECTOR4(type, name)                                                               \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name {                           \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    inline name make_##name(type x, type y, type z, type w) { return name{x, y, z, w}; }
EMULATED_VECTOR2(float, float2)
EMULATED_VECTOR4(float, float4)
EMULATED_VECTOR2(double, double2)
EMULATED_VECTOR2(int, int2)
EMULATED_VECTOR4(int, int4)
EMULATED_VECTOR2(unsigned, uint2)
EMULATED_VECTOR4(unsigned, uint4)
EMULATED_VECTOR2(unsigned short, ushort2)
EMULATED_VECTOR4(unsigned short, ushort4)
EMULATED_VECTOR4(unsigned char, uchar4)
EMULATED_VECTOR2(long long, longlong2)
#undef EMULATED_VECTOR4
#undef EMULATED_VECTOR2
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }

#endif
