## SPDX-License-Identifier: MIT
# Documentation: carried by releases, and installed with the links between its pages intact.
nobase_dist_doc_DATA = \
    CHANGELOG.md \
    CONTRIBUTING.md \
    LICENSE \
    README.md \
    docs/architecture.md \
    docs/benchmarks.md \
    docs/cluster.md \
    docs/data.md \
    docs/features.md \
    docs/glossary.md \
    docs/gpu.md \
    docs/gradient-engine.md \
    docs/growth.md \
    docs/growth/buckets-time.csv \
    docs/growth/buckets-time.svg \
    docs/growth/buckets.csv \
    docs/growth/buckets.svg \
    docs/growth/layers-time.csv \
    docs/growth/layers-time.svg \
    docs/growth/layers.csv \
    docs/growth/layers.svg \
    docs/growth/loading.csv \
    docs/growth/loading.svg \
    docs/growth/memory.csv \
    docs/growth/memory.svg \
    docs/growth/parameters.csv \
    docs/growth/parameters.svg \
    docs/growth/ranks.csv \
    docs/growth/ranks.svg \
    docs/growth/saving.csv \
    docs/growth/saving.svg \
    docs/growth/setup.csv \
    docs/growth/setup.svg \
    docs/growth/start.csv \
    docs/growth/start.svg \
    docs/how-to-add.md \
    docs/idea.svg \
    docs/lazy-timeline.svg \
    docs/measurements/autocast-cpu-2026-11-29.jsonl \
    docs/measurements/gpu-2026-11-23.jsonl \
    docs/measurements/odd-hosts-2026-11-27.jsonl \
    docs/measurements/odd-hosts-2026-11-28.jsonl \
    docs/measurements/peers-2026-11-26.csv \
    docs/measurements/peers-2026-11-26.jsonl \
    docs/measurements/peers-2026-11-27.csv \
    docs/measurements/peers-2026-11-27.jsonl \
    docs/measurements/peers-2026-11-28.csv \
    docs/measurements/peers-2026-11-28.jsonl \
    docs/measurements/peers-2026-11-29.csv \
    docs/measurements/peers-2026-11-29.jsonl \
    docs/measurements/scale-measured-2026-11-26.txt \
    docs/measurements/scale-measured-gradients-2026-11-26.txt \
    docs/measurements/scale-measured-network-2026-11-27.txt \
    docs/measurements/scale-predictions-2026-11-26.txt \
    docs/measurements/scale-predictions-gradients-2026-11-26.txt \
    docs/measurements/scale-predictions-network-2026-11-27.txt \
    docs/measurements/scale-pairwise-2026-11-28.jsonl \
    docs/measurements/scale-pairwise-2026-11-29.jsonl \
    docs/measurements/scale-series-2026-11-28.jsonl \
    docs/measurements/scale-tables-2026-11-27.txt \
    docs/measurements/two-levels-2026-11-27.jsonl \
    docs/scale-mlp.svg \
    docs/scale.md \
    docs/studies/adaptive-period-slack.csv \
    docs/studies/adaptive-period.csv \
    docs/studies/adaptive-period.md \
    docs/studies/adaptive-period.sh \
    docs/studies/bytes-to-target.csv \
    docs/studies/bytes-to-target.md \
    docs/studies/bytes-to-target.sh \
    docs/studies/exo-gym-copies.csv \
    docs/studies/exo-gym-times.csv \
    docs/studies/exo-gym.csv \
    docs/studies/exo-gym.md \
    docs/studies/exo-gym.py \
    docs/studies/exo-gym.sh \
    docs/studies/outer-optimizers-comparisons.csv \
    docs/studies/outer-optimizers.csv \
    docs/studies/outer-optimizers.md \
    docs/studies/outer-optimizers.sh \
    docs/sweep-report.svg \
    docs/sync-modes.md \
    docs/testing.md \
    docs/training.md
# The programs that the pages say to read, with what they need to compile.
nobase_dist_doc_DATA += \
    examples/mnist.c \
    examples/mnist_daso.c \
    examples/own_arrays.c \
    examples/own_arrays.f90 \
    examples/plugin_diloco.c \
    examples/regression.c \
    examples/residual_net.c \
    examples/residual_net.cpp \
    examples/residual_net.f90 \
    examples/residual_net_mpi.c \
    examples/residual_net_mpi.cpp \
    examples/residual_net_mpi.f90 \
    examples/char_gpt.c \
    examples/two_inputs.c \
    examples/support/check.c \
    examples/support/check.h \
    examples/support/usage.c \
    examples/support/usage.h \
    examples/support/watch.c \
    examples/support/watch.h
# Written by hand; installed with the prefix of the programs. tests/check_man.sh compares them with --help.
dist_man_MANS = \
    docs/man/elastic.1 \
    docs/man/get-mnist.1 \
    docs/man/mnist-daso.1 \
    docs/man/mnist.1 \
    docs/man/postmortem.1 \
    docs/man/predict.1 \
    docs/man/sweep.1 \
    docs/man/train.1

# The API reference, as HTML in the build tree, from the headers as they are.
EXTRA_DIST += docs/Doxyfile autotools/doxygen_filter.awk
.PHONY: doc
doc:
	@test -n '$(DOXYGEN)' || { echo 'error: "make doc" needs Doxygen: install doxygen, then configure again' >&2; exit 1; }
	$(AM_V_GEN)rm -rf docs/html && $(MKDIR_P) docs && \
	    ISO_VERSION='$(PACKAGE_VERSION)' ISO_SRCDIR='$(abs_srcdir)' ISO_BUILDDIR='$(abs_builddir)' ISO_AWK='$(AWK)' \
	    $(DOXYGEN) $(srcdir)/docs/Doxyfile
	@echo 'The API reference is docs/html/index.html'
