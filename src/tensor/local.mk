## SPDX-License-Identifier: MIT
# Shape, element type, layout and buffer.
libiso_core_la_SOURCES += src/tensor/element.h
libiso_core_la_SOURCES += src/tensor/tensor_impl.h
libiso_core_la_SOURCES += src/tensor/tensor.c
