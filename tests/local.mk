## SPDX-License-Identifier: MIT
# How tests are run. Every test prints TAP, so that each case is a result of its own.
TEST_EXTENSIONS = .unit .mpi .sh
TAP_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/autotools/aux/tap-driver.sh
UNIT_LOG_DRIVER = $(TAP_DRIVER)
UNIT_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run_unit.sh
MPI_LOG_DRIVER = $(TAP_DRIVER)
MPI_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run_mpi.sh
SH_LOG_DRIVER = $(TAP_DRIVER)
SH_LOG_COMPILER = $(SHELL)
TESTED_MPI = MPICC='$(MPICC)'; MPIRUN='$(MPIRUN)'; MPIRUN_FLAGS='$(MPIRUN_FLAGS)'; export MPICC MPIRUN MPIRUN_FLAGS;
AM_TESTS_ENVIRONMENT = $(TESTED_MPI) $(PRELOAD) ISO_TEST_HAS_GPU='$(HAVE_GPU)'; export ISO_TEST_HAS_GPU;

# Preloaded into tests, so that ranks that wait leave the cores to others: make check PATIENT_RANKS= does without. So do
# sanitizers, which want to be loaded first.
PATIENT_RANKS = $(abs_builddir)/tests/patient_ranks.so
PRELOAD = case '$(CFLAGS)' in *-fsanitize*) ;; *) \
    test ! -e '$(PATIENT_RANKS)' || { LD_PRELOAD='$(PATIENT_RANKS)'; export LD_PRELOAD; } ;; esac;
EXTRA_DIST += tests/patient_ranks.c
CLEANFILES += tests/patient_ranks.so
check_DATA = tests/patient_ranks.so
tests/patient_ranks.so: $(srcdir)/tests/patient_ranks.c
	$(MKDIR_P) tests
	$(CC) -O2 -shared -fPIC -o $@ $(srcdir)/tests/patient_ranks.c

# Of test programs that set no _LDADD of their own.
LDADD = tests/common/libiso_testcommon.la libiso_core.la $(CRITERION_LIBS)

SCRIPT_TESTS = \
    tests/check_bench_peers.sh \
    tests/check_cxx.sh \
    tests/check_configure.sh \
    tests/check_data.sh \
    tests/check_docs.sh \
    tests/check_doxygen.sh \
    tests/check_elastic.sh \
    tests/check_faults.sh \
    tests/check_extend.sh \
    tests/check_files.sh \
    tests/check_fortran.sh \
    tests/check_fuzz.sh \
    tests/check_get_mnist.sh \
    tests/check_growth.sh \
    tests/check_install.sh \
    tests/check_layers.sh \
    tests/check_lock.sh \
    tests/check_man.sh \
    tests/check_messages.sh \
    tests/check_mnist.sh \
    tests/check_plugin.sh \
    tests/check_pictures.sh \
    tests/check_postmortem.sh \
    tests/check_preempt.sh \
    tests/check_predict.sh \
    tests/check_profiler.sh \
    tests/check_programs.sh \
    tests/check_regression.sh \
    tests/check_replay.sh \
    tests/check_residual_net.sh \
    tests/check_char_gpt.sh \
    tests/check_resume.sh \
    tests/check_scale.sh \
    tests/check_slurm.sh \
    tests/check_stall.sh \
    tests/check_stopped.sh \
    tests/check_strategies.sh \
    tests/check_sweep.sh \
    tests/check_tensorboard.sh \
    tests/check_threads.sh \
    tests/check_torch_models.sh \
    tests/check_two_inputs.sh \
    tests/check_version.sh \
    tests/check_watchdog.sh \
    tests/check_zero.sh
TESTS += $(SCRIPT_TESTS)
if ISO_HAVE_CRITERION
check_LTLIBRARIES += tests/common/libiso_testcommon.la
check_PROGRAMS += $(UNIT_TESTS) $(MPI_TESTS)
TESTS += $(UNIT_TESTS) $(MPI_TESTS)
check_PROGRAMS += tests/fuzz/fuzz_replay
FUZZ_TARGETS = \
    examples/postmortem/postmortem.h \
    examples/postmortem/postmortem_find.c \
    examples/postmortem/postmortem_print.c \
    examples/postmortem/postmortem_read.c \
    examples/sweep/report_read.c \
    examples/sweep/sweep_list.c \
    examples/sweep/sweep_seeds.c \
    tests/fuzz/fuzz.c \
    tests/fuzz/fuzz.h \
    tests/fuzz/fuzz_files.c \
    tests/fuzz/fuzz_texts.c
tests_fuzz_fuzz_replay_SOURCES = tests/fuzz/fuzz_replay.c $(FUZZ_TARGETS)
tests_fuzz_fuzz_replay_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_fuzz_fuzz_replay_LDADD = tests/common/libiso_traincommon.la libiso_core.la
# With libFuzzer's main function: "make fuzz".
EXTRA_PROGRAMS += tests/fuzz/fuzz
tests_fuzz_fuzz_SOURCES = $(FUZZ_TARGETS)
tests_fuzz_fuzz_CPPFLAGS = $(tests_fuzz_fuzz_replay_CPPFLAGS)
tests_fuzz_fuzz_LDFLAGS = -fsanitize=fuzzer
tests_fuzz_fuzz_LDADD = tests/common/libiso_traincommon.la libiso_core.la
else
check-local:
	@echo "error: the tests need Criterion: install libcriterion-dev, then configure again" >&2
	@exit 1
endif

# Of a script: in place of a profiler.
if ISO_HAVE_NVTX
if ISO_SHARED
check_LTLIBRARIES += tests/nvtx_recorder.la
tests_nvtx_recorder_la_SOURCES = tests/nvtx_recorder.c
tests_nvtx_recorder_la_CPPFLAGS = $(AM_CPPFLAGS) $(NVTX_CFLAGS)
tests_nvtx_recorder_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
endif
endif
# Of scripts: how train ends on errors, data sets as files, and the networks of train on given images.
check_PROGRAMS += tests/error_probe tests/make_images tests/make_pictures tests/make_records tests/model_probe
tests_error_probe_SOURCES = tests/error_probe.c examples/train/train_error.c examples/train/train_error.h \
    examples/support/usage.c examples/support/usage.h examples/support/watch.c examples/support/watch.h \
    examples/support/watchdog.c examples/support/watchdog.h
tests_error_probe_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_error_probe_LDADD = libiso_core.la
tests_make_images_SOURCES = tests/make_images.c
tests_make_images_LDADD = libiso_core.la
tests_make_pictures_SOURCES = tests/make_pictures.c tests/common/picture_writer.c tests/common/picture_writer.h
tests_make_pictures_CPPFLAGS = $(AM_CPPFLAGS)
tests_make_pictures_LDADD = libiso_core.la
tests_make_records_SOURCES = tests/make_records.c
tests_make_records_LDADD = libiso_core.la
tests_model_probe_SOURCES = tests/model_probe.c examples/support/models.c examples/support/models.h \
    examples/support/models_resnet.c
tests_model_probe_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_model_probe_LDADD = libiso_core.la

EXTRA_PROGRAMS += $(BENCHES)
CLEANFILES += $(BENCHES)
SCALE_FILES = tests/scale/build_scale.sh tests/scale/calibrate.sh tests/scale/cases tests/scale/cases_gradients \
    tests/scale/cases_network tests/scale/costs tests/scale/measure_scale.sh \
    tests/scale/plot_scale.sh tests/scale/predict_scale.sh tests/scale/runs_scale.sh tests/scale/simulate.sh tests/scale/table_scale.py \
    tests/scale/smpi_alarm.cpp tests/scale/smpi_collectives.c tests/scale/smpi_comms.c tests/scale/smpi_memory.c \
    tests/scale/smpi_model.h tests/scale/smpi_network.c \
    tests/scale/tables.sh
EXTRA_DIST += $(SCALE_FILES) $(CLUSTER_TESTS) $(CLUSTER_FILES) $(SCRIPT_TESTS) tests/cxx_caller.cpp tests/fortran_caller.f90 \
    tests/fortran_layout.c tests/fortran_layout.f90 tests/fortran_hooks.f90 tests/fortran_network.f90 tests/idx_files.sh \
    tests/same_bits/random_arrays.c tests/same_bits/random_case.h tests/same_bits/random_modules.c \
    tests/checkers/run_checked.sh tests/checkers/thread.supp tests/checkers/valgrind.supp \
    tests/faults/fault_libc.c tests/faults/fault_mpi.c tests/faults/fault_shim.c tests/faults/fault_shim.h \
    tests/faults/faults.sh tests/faults/run_faults.sh \
    tests/fuzz/run_fuzz.sh \
    tests/fuzz/corpus/csv/header tests/fuzz/corpus/csv/labels tests/fuzz/corpus/csv/plain tests/fuzz/corpus/csv/tabs \
    tests/fuzz/corpus/gzip/empty tests/fuzz/corpus/gzip/one tests/fuzz/corpus/gzip/plain tests/fuzz/corpus/gzip/two \
    tests/fuzz/corpus/idx/floats tests/fuzz/corpus/idx/images tests/fuzz/corpus/idx/images.gz \
    tests/fuzz/corpus/idx/labels \
    tests/fuzz/corpus/list/many_commas tests/fuzz/corpus/list/two tests/fuzz/corpus/list/values \
    tests/fuzz/corpus/options/daso tests/fuzz/corpus/options/lazy tests/fuzz/corpus/options/levels \
    tests/fuzz/corpus/options/powersgd tests/fuzz/corpus/record/count tests/fuzz/corpus/record/entry \
    tests/fuzz/corpus/record/rank tests/fuzz/corpus/report/backslash_at_the_end \
    tests/fuzz/corpus/report/quote_in_escape tests/fuzz/corpus/report/run.jsonl tests/fuzz/corpus/safetensors/escape \
    tests/fuzz/corpus/safetensors/none tests/fuzz/corpus/safetensors/two tests/fuzz/corpus/settings/heat \
    tests/fuzz/corpus/settings/number tests/fuzz/corpus/settings/outer tests/fuzz/corpus/settings/period \
    tests/fuzz/corpus/state/shared \
    tests/same_bits/same_bits.sh tests/same_bits/same_speed.sh \
    tests/cores.sh tests/event_files.py tests/note_files.c tests/program_tests.sh tests/run_cluster.sh \
    tests/run_mpi.sh tests/run_unit.sh tests/slow_rank.c tests/soak/random_delay.c tests/soak/soak.sh \
    tests/stop_rank.c tests/summary.sh tests/test_env.sh tests/torch_models.py

.PHONY: bench check-cluster check-faults check-sanitize check-tsan check-valgrind fuzz soak
bench: $(BENCHES)

check-cluster: all
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(CLUSTER_TESTS)' \
	    SH_LOG_COMPILER='$(SHELL) $(top_srcdir)/tests/run_cluster.sh'

# The unit tests with the address and undefined-behaviour sanitizers, in a build tree of its own.
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
check-sanitize:
	$(MKDIR_P) sanitize
	cd sanitize && { test -f Makefile || $(abs_srcdir)/configure CFLAGS='-O1 -g $(SANITIZE)'; }
	cd sanitize && ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	    $(MAKE) $(AM_MAKEFLAGS) check TESTS='$(UNIT_TESTS)'

# Training on several ranks with the thread sanitizer, in a build tree of its own, and with valgrind. (Criterion's tests
# do not run under either: they start in processes that share memory at fixed addresses.)
check-tsan:
	$(MKDIR_P) tsan
	cd tsan && { test -f Makefile || $(abs_srcdir)/configure --with-cuda=no CFLAGS='-O1 -g -fsanitize=thread'; }
	cd tsan && $(MAKE) $(AM_MAKEFLAGS) bin/train bin/own-arrays
	cd tsan && { $(TESTED_MPI) $(SHELL) $(abs_srcdir)/tests/checkers/run_checked.sh tsan; }
check-valgrind: all
	$(TESTED_MPI) $(SHELL) $(top_srcdir)/tests/checkers/run_checked.sh valgrind

# A short run of train with every call failing in turn: make check-faults FAULTS="alloc mpi" JOBS=8
FAULTS =
check-faults: all
	$(TESTED_MPI) JOBS='$(JOBS)' ALL='$(ALL)' MOST='$(MOST)' \
	    $(SHELL) $(top_srcdir)/tests/faults/run_faults.sh $(FAULTS)

# All readers of foreign input with libFuzzer, in a build tree of its own: make fuzz RUNS=1000000 FUZZ="idx csv"
RUNS = 100000
FUZZ =
FUZZ_CFLAGS = -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
    -DISO_RECORDER_RECORDS=64 -DISO_RECORDER_STREAMS=8 -DSWEEP_RUNS=64
fuzz:
	$(MKDIR_P) fuzzing
	cd fuzzing && { test -f Makefile || $(abs_srcdir)/configure --with-cuda=no CC=clang CXX=clang++ CFLAGS='$(FUZZ_CFLAGS)'; }
	cd fuzzing && $(MAKE) $(AM_MAKEFLAGS) tests/fuzz/fuzz
	cd fuzzing && RUNS=$(RUNS) $(SHELL) $(abs_srcdir)/tests/fuzz/run_fuzz.sh $(FUZZ)

# Very many steps with kills and resumes: make soak SOAK='-s 50000 -k 5'
soak: bin/train$(EXEEXT)
	MPICC='$(MPICC)' $(SHELL) $(srcdir)/tests/soak/soak.sh $(SOAK)

clean-local:
	rm -rf checked faults fuzzing sanitize tsan docs/html
