## SPDX-License-Identifier: MIT
# Benchmarks: "make bench" builds them. For each: BENCHES += tests/bench/bench_NAME, and
#   tests_bench_bench_NAME_SOURCES = tests/bench/bench_NAME.c
#   tests_bench_bench_NAME_LDADD = libiso_core.la
BENCHES =
BENCHES += tests/bench/bench_ops
tests_bench_bench_ops_SOURCES = tests/bench/bench_ops.c
tests_bench_bench_ops_LDADD = libiso_core.la
BENCHES += tests/bench/bench_exchange
tests_bench_bench_exchange_SOURCES = tests/bench/bench_exchange.c tests/bench/bench_util.c tests/bench/bench_util.h
tests_bench_bench_exchange_LDADD = libiso_core.la
BENCHES += tests/bench/bench_step
tests_bench_bench_step_SOURCES = tests/bench/bench_breakdown.c tests/bench/bench_breakdown.h \
    tests/bench/bench_device.c tests/bench/bench_device.h \
    tests/bench/bench_options.c tests/bench/bench_options.h tests/bench/bench_peak.c \
    tests/bench/bench_peak.h tests/bench/bench_step.c tests/bench/bench_util.c tests/bench/bench_util.h \
    examples/support/models.c examples/support/models.h examples/support/models_resnet.c
tests_bench_bench_step_LDADD = libiso_core.la
BENCHES += tests/bench/bench_scale
tests_bench_bench_scale_SOURCES = tests/bench/bench_breakdown.c tests/bench/bench_breakdown.h \
    tests/bench/bench_model.c tests/bench/bench_model.h tests/bench/bench_peak.c tests/bench/bench_peak.h \
    tests/bench/bench_scale.c tests/bench/bench_util.c tests/bench/bench_util.h \
    examples/support/models.c examples/support/models.h examples/support/models_resnet.c
tests_bench_bench_scale_LDADD = libiso_core.la
BENCHES += tests/bench/bench_growth
tests_bench_bench_growth_SOURCES = tests/bench/bench_breakdown.c tests/bench/bench_breakdown.h \
    tests/bench/bench_growth.c tests/bench/bench_peak.c tests/bench/bench_peak.h tests/bench/bench_util.c \
    tests/bench/bench_util.h
tests_bench_bench_growth_LDADD = libiso_core.la
check_PROGRAMS += tests/bench/bench_growth
BENCHES += tests/bench/bench_loader
tests_bench_bench_loader_SOURCES = tests/bench/bench_loader.c tests/bench/bench_util.c tests/bench/bench_util.h \
    examples/support/models.c examples/support/models.h examples/support/models_resnet.c
tests_bench_bench_loader_LDADD = libiso_core.la
BENCHES += tests/bench/bench_loader_threads
tests_bench_bench_loader_threads_SOURCES = tests/bench/bench_loader_threads.c tests/bench/bench_util.c \
    tests/bench/bench_util.h
tests_bench_bench_loader_threads_LDADD = libiso_core.la
BENCHES += tests/bench/bench_order
tests_bench_bench_order_SOURCES = tests/bench/bench_order.c tests/bench/bench_util.c tests/bench/bench_util.h
tests_bench_bench_order_LDADD = libiso_core.la
BENCHES += tests/bench/bench_period
tests_bench_bench_period_SOURCES = tests/bench/bench_period.c tests/bench/bench_util.c tests/bench/bench_util.h \
    examples/support/models.c examples/support/models.h examples/support/models_resnet.c
tests_bench_bench_period_LDADD = libiso_core.la
BENCHES += tests/bench/bench_balance
tests_bench_bench_balance_SOURCES = tests/bench/bench_balance.c
tests_bench_bench_balance_LDADD = libiso_core.la
BENCHES += tests/bench/bench_recorder
tests_bench_bench_recorder_SOURCES = tests/bench/bench_recorder.c tests/bench/bench_util.c tests/bench/bench_util.h
tests_bench_bench_recorder_LDADD = libiso_core.la
BENCHES += tests/bench/bench_transformer
tests_bench_bench_transformer_SOURCES = tests/bench/bench_transformer.c tests/bench/bench_transformer_net.c \
    tests/bench/bench_transformer_net.h tests/bench/bench_util.c tests/bench/bench_util.h
tests_bench_bench_transformer_LDADD = libiso_core.la
BENCHES += tests/bench/bench_gpu_ops
tests_bench_bench_gpu_ops_SOURCES = tests/bench/bench_device.c tests/bench/bench_device.h \
    tests/bench/bench_gpu_ops.c tests/bench/bench_util.c tests/bench/bench_util.h
tests_bench_bench_gpu_ops_LDADD = libiso_core.la
EXTRA_DIST += tests/bench/bench_peers.py tests/bench/growth.sh tests/bench/overlap.sh tests/bench/predict.sh tests/bench/time_to_accuracy.sh tests/bench/wires.sh \
    tests/bench/peers/bench_facts.py tests/bench/peers/bench_install.py tests/bench/peers/bench_report.py \
    tests/bench/peers/bench_run.py tests/bench/peers/bench_samples.py tests/bench/peers/bench_stats.py \
    tests/bench/peers/ddp_pytorch.py tests/bench/peers/step_exogym.py tests/bench/peers/step_heat.py \
    tests/bench/peers/step_horovod.py tests/bench/peers/step_pytorch.py tests/bench/peers/step_pytorch_gpu.py

# The step against other libraries': make bench-peers PEERS="--quick --out DIR" (bench_peers.py --help)
PYTHON = python3
PEERS =
.PHONY: bench-peers
bench-peers: tests/bench/bench_step tests/bench/bench_period
	$(PYTHON) $(srcdir)/tests/bench/bench_peers.py --build . $(PEERS)
