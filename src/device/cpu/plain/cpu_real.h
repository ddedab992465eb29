// SPDX-License-Identifier: MIT
// Private to the plain kernels: the element type that a file is compiled for. Each of these files
// is compiled twice, for f32, and for f64 with ISO_CPU_F64 defined.
#ifndef ISO_CPU_REAL_H
#define ISO_CPU_REAL_H

#include "device/cpu/cpu_impl.h"

#include <tgmath.h>

#ifdef ISO_CPU_F64
typedef double real;
#define ISO_REAL_TYPE  ISO_F64
#define ISO_REAL(name) name##_f64
#else
typedef float real;
#define ISO_REAL_TYPE  ISO_F32
#define ISO_REAL(name) name##_f32
#endif

#endif
