# Modules: one file per layer family; knows no MPI.
libiso_core_la_SOURCES += src/nn/nn_impl.h
libiso_core_la_SOURCES += src/nn/activation.c
libiso_core_la_SOURCES += src/nn/cast.c
libiso_core_la_SOURCES += src/nn/conv2d.c
libiso_core_la_SOURCES += src/nn/dispatch.c
libiso_core_la_SOURCES += src/nn/dropout.c
libiso_core_la_SOURCES += src/nn/flatten.c
libiso_core_la_SOURCES += src/nn/init.c
libiso_core_la_SOURCES += src/nn/linear.c
libiso_core_la_SOURCES += src/nn/loss.c
libiso_core_la_SOURCES += src/nn/module.c
libiso_core_la_SOURCES += src/nn/norm.c
libiso_core_la_SOURCES += src/nn/parameter.c
libiso_core_la_SOURCES += src/nn/pool.c
libiso_core_la_SOURCES += src/nn/residual.c
libiso_core_la_SOURCES += src/nn/sequential.c
libiso_core_la_SOURCES += src/nn/sequential_build.c
