## SPDX-License-Identifier: MIT
# Programs; they see public headers only, and are installed with the prefix iso-. In a build tree they are in bin/.
EXAMPLE_CPPFLAGS = $(PUBLIC_CPPFLAGS) -I$(top_srcdir)/examples
EXAMPLE_SUPPORT = \
    examples/support/check.c \
    examples/support/check.h \
    examples/support/try.h \
    examples/support/usage.c \
    examples/support/usage.h \
    examples/support/watch.c \
    examples/support/watch.h
EXAMPLE_MODELS = \
    examples/support/models.c \
    examples/support/models.h \
    examples/support/models_resnet.c

# The engine without layers: to be read, and built, but of no use installed.
noinst_PROGRAMS += bin/own-arrays
bin_own_arrays_SOURCES = examples/own_arrays.c
bin_own_arrays_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_own_arrays_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_own_arrays_LDADD = libisotherm.la $(MPI_LIBS) -lm

# A serial program, and the same one made data-parallel.
noinst_PROGRAMS += bin/residual-net bin/residual-net-mpi
bin_residual_net_SOURCES = examples/residual_net.c
bin_residual_net_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_residual_net_LDADD = -lm
bin_residual_net_mpi_SOURCES = examples/residual_net_mpi.c
bin_residual_net_mpi_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_residual_net_mpi_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_residual_net_mpi_LDADD = libisotherm.la $(MPI_LIBS) -lm

# Of data of one's own: to be read, too.
noinst_PROGRAMS += bin/regression
bin_regression_SOURCES = examples/regression.c $(EXAMPLE_SUPPORT)
bin_regression_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_regression_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_regression_LDADD = libisotherm.la $(MPI_LIBS) -lm
noinst_PROGRAMS += bin/two-inputs
bin_two_inputs_SOURCES = examples/two_inputs.c
bin_two_inputs_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_two_inputs_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_two_inputs_LDADD = libisotherm.la $(MPI_LIBS) -lm
noinst_PROGRAMS += bin/char-gpt
bin_char_gpt_SOURCES = examples/char_gpt.c $(EXAMPLE_SUPPORT)
bin_char_gpt_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_char_gpt_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_char_gpt_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_PROGRAMS += bin/mnist bin/mnist-daso bin/train bin/sweep

bin_mnist_SOURCES = examples/mnist.c $(EXAMPLE_SUPPORT)
bin_mnist_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_mnist_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_mnist_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_mnist_daso_SOURCES = examples/mnist_daso.c $(EXAMPLE_SUPPORT)
bin_mnist_daso_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_mnist_daso_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_mnist_daso_LDADD = libisotherm.la $(MPI_LIBS) -lm

# A training run, which both train and sweep make.
TRAIN_RUN = \
    $(EXAMPLE_MODELS) \
    examples/support/option_reader.c \
    examples/support/option_reader.h \
    examples/train/train_agree.c \
    examples/train/train.h \
    examples/train/train_check.c \
    examples/train/train_classes.c \
    examples/train/train_data.c \
    examples/train/train_images.c \
    examples/train/train_equal.c \
    examples/support/watchdog.c \
    examples/support/watchdog.h \
    examples/train/train_error.c \
    examples/train/train_error.h \
    examples/train/train_extend.c \
    examples/train/train_files.c \
    examples/train/train_files.h \
    examples/train/train_kernels.c \
    examples/train/train_lock.c \
    examples/train/train_lock.h \
    examples/train/train_log.c \
    examples/train/train_noise.c \
    examples/train/train_outlier.c \
    examples/train/train_option_table.c \
    examples/train/train_options.c \
    examples/train/train_options.h \
    examples/train/train_output.c \
    examples/train/train_plugin.c \
    examples/train/train_replay.c \
    examples/train/train_ranks.c \
    examples/train/train_rebuild.c \
    examples/train/train_rebuild.h \
    examples/train/train_report.c \
    examples/train/train_run.c \
    examples/train/train_scaler.c \
    examples/train/train_schedule.c \
    examples/train/train_settings.c \
    examples/train/train_server.c \
    examples/train/train_server.h \
    examples/train/train_setup.c \
    examples/train/train_state.c \
    examples/train/train_stats.c \
    examples/train/train_straggler.c \
    examples/train/train_summary.c \
    examples/train/train_stop.c \
    examples/train/train_sync.c \
    examples/train/train_text.c \
    examples/train/train_text.h \
    examples/train/train_threads.c \
    examples/train/train_tournament.c \
    examples/train/train_tournament.h \
    examples/train/train_validation.c \
    $(EXAMPLE_SUPPORT)

bin_train_SOURCES = examples/train/train.c $(TRAIN_RUN)
bin_train_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_train_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_train_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_PROGRAMS += bin/predict
bin_predict_SOURCES = \
    examples/predict/predict.c \
    examples/predict/predict_metadata.c \
    examples/predict/predict_metadata.h \
    examples/support/option_reader.c \
    examples/support/option_reader.h \
    $(EXAMPLE_MODELS) \
    $(EXAMPLE_SUPPORT)
bin_predict_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_predict_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_predict_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_PROGRAMS += bin/postmortem
bin_postmortem_SOURCES = \
    examples/postmortem/postmortem.c \
    examples/postmortem/postmortem.h \
    examples/postmortem/postmortem_find.c \
    examples/postmortem/postmortem_print.c \
    examples/postmortem/postmortem_read.c \
    $(EXAMPLE_SUPPORT)
bin_postmortem_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_postmortem_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_postmortem_LDADD = libisotherm.la $(MPI_LIBS) -lm

SWEEP_REPORT = \
    examples/sweep/report.c \
    examples/sweep/report.h \
    examples/sweep/report_axis.c \
    examples/sweep/report_bars.c \
    examples/sweep/report_csv.c \
    examples/sweep/report_curves.c \
    examples/sweep/report_forecast.c \
    examples/sweep/report_gnuplot.c \
    examples/sweep/report_groups.c \
    examples/sweep/report_groups.h \
    examples/sweep/report_html.c \
    examples/sweep/report_impl.h \
    examples/sweep/report_pareto.c \
    examples/sweep/report_plot.c \
    examples/sweep/report_plot.h \
    examples/sweep/report_predict.c \
    examples/sweep/report_predict.h \
    examples/sweep/report_read.c \
    examples/sweep/report_rhythm.c \
    examples/sweep/report_settings.c \
    examples/sweep/report_sources.c \
    examples/sweep/report_stats.c \
    examples/sweep/report_stats.h \
    examples/sweep/report_tables.c \
    examples/sweep/report_values.c
bin_sweep_SOURCES = \
    $(SWEEP_REPORT) \
    examples/sweep/sweep.c \
    examples/sweep/sweep.h \
    examples/sweep/sweep_describe.c \
    examples/sweep/sweep_folder.c \
    examples/sweep/sweep_list.c \
    examples/sweep/sweep_list.h \
    examples/sweep/sweep_merge.c \
    examples/sweep/sweep_options.c \
    examples/sweep/sweep_resume.c \
    examples/sweep/sweep_seeds.c \
    examples/sweep/sweep_store.c \
    $(TRAIN_RUN)
bin_sweep_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_sweep_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
bin_sweep_LDADD = libisotherm.la $(MPI_LIBS) -lm

# A plugin of train and sweep.
if ISO_SHARED
noinst_LTLIBRARIES += bin/plugin_diloco.la
bin_plugin_diloco_la_SOURCES = examples/plugin_diloco.c
bin_plugin_diloco_la_CPPFLAGS = $(EXAMPLE_CPPFLAGS)
bin_plugin_diloco_la_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion -ffp-contract=off
bin_plugin_diloco_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
bin_plugin_diloco_la_LIBADD = libisotherm.la
endif

# The same for Fortran; tests/check_fortran.sh builds it.
EXTRA_DIST += examples/own_arrays.f90

# Beside the programs in a build tree, too.
bin_SCRIPTS += bin/elastic bin/get-mnist
bin/elastic: examples/elastic/elastic.sh config.status
	@$(MKDIR_P) bin
	$(AM_V_GEN)rm -f $@ && sed 's/[@]PACKAGE_VERSION[@]/$(PACKAGE_VERSION)/' $(srcdir)/examples/elastic/elastic.sh >$@ && chmod a+rx,a-w $@
bin/get-mnist: examples/get_mnist/get_mnist.sh config.status
	@$(MKDIR_P) bin
	$(AM_V_GEN)rm -f $@ && sed 's/[@]PACKAGE_VERSION[@]/$(PACKAGE_VERSION)/' $(srcdir)/examples/get_mnist/get_mnist.sh >$@ && chmod a+rx,a-w $@
CLEANFILES += bin/elastic bin/get-mnist
EXTRA_DIST += examples/elastic/elastic.sh examples/get_mnist/get_mnist.sh

EXTRA_DIST += examples/train/trace_svg.py
