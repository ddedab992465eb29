## SPDX-License-Identifier: MIT
# Communicators, requests, progress and collectives: the only folder that calls MPI.
libiso_core_la_SOURCES += \
    src/comm/await.c \
    src/comm/channel.c \
    src/comm/channel.h \
    src/comm/channel_impl.h \
    src/comm/channel_chunks.c \
    src/comm/coll_mpi.c \
    src/comm/coll_shm.c \
    src/comm/comm.c \
    src/comm/comm_calls.h \
    src/comm/comm_create.c \
    src/comm/comm_make.c \
    src/comm/comm_state.h \
    src/comm/cores.c \
    src/comm/cores_impl.h \
    src/comm/cores_judge.c \
    src/comm/debug.c \
    src/comm/debug.h \
    src/comm/engine.c \
    src/comm/engine.h \
    src/comm/environment.c \
    src/comm/exchange.c \
    src/comm/launcher.c \
    src/comm/mpi_error.c \
    src/comm/mpi_error.h \
    src/comm/progress.c \
    src/comm/request.c \
    src/comm/request.h \
    src/comm/same_lines.c \
    src/comm/same_lines.h \
    src/comm/segment.c \
    src/comm/segment.h \
    src/comm/shared.c \
    src/comm/shared_impl.h \
    src/comm/stop.c \
    src/comm/stall.c \
    src/comm/stall.h \
    src/comm/sum16.c \
    src/comm/topology.c \
    src/comm/traffic.c \
    src/comm/traffic.h \
    src/comm/watch_ask.c \
    src/comm/watch_impl.h \
    src/comm/watch_make.c \
    src/comm/watch_seat.c
