## SPDX-License-Identifier: MIT
# How buckets and means get from one rank to another: transports, and what is borrowed by them.
libiso_core_la_SOURCES += \
    src/exchange/average.c \
    src/exchange/average.h \
    src/exchange/average_fail.c \
    src/exchange/average_gossip.c \
    src/exchange/average_impl.h \
    src/exchange/average_layout.c \
    src/exchange/average_node.c \
    src/exchange/average_phases.c \
    src/exchange/coder.c \
    src/exchange/coder.h \
    src/exchange/codec.h \
    src/exchange/codec_dtype.c \
    src/exchange/codec_f64.c \
    src/exchange/codec_fp8.c \
    src/exchange/codec_groups.h \
    src/exchange/codec_int4.c \
    src/exchange/codec_int8.c \
    src/exchange/codec_passes.h \
    src/exchange/codec_onebit.c \
    src/exchange/codec_topk.c \
    src/exchange/coll_nccl.h \
    src/exchange/hook_adasum.c \
    src/exchange/hook_powersgd.c \
    src/exchange/hook_random.c \
    src/exchange/hook_shards.h \
    src/exchange/hook_sparse.c \
    src/exchange/hooks.c \
    src/exchange/routes.c \
    src/exchange/routes.h \
    src/exchange/scopes.c \
    src/exchange/scopes.h \
    src/exchange/server.c \
    src/exchange/server.h \
    src/exchange/sparse_rows.c \
    src/exchange/sparse_rows.h \
    src/exchange/store.c \
    src/exchange/store.h \
    src/exchange/transport.h \
    src/exchange/transport_host.c \
    src/exchange/transport_nccl.c \
    src/exchange/transport_none.c \
    src/exchange/transport_phases.c \
    src/exchange/transport_rows.c \
    src/exchange/transport_shards.c \
    src/exchange/transport_zero.c \
    src/exchange/transport_staged.c \
    src/exchange/transports.h

if ISO_HAVE_NCCL
libiso_core_la_SOURCES += src/exchange/coll_nccl.c src/exchange/coll_nccl_create.c \
    src/exchange/coll_nccl_impl.h
else
libiso_core_la_SOURCES += src/exchange/coll_nccl_none.c
endif
