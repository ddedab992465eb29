# Programs; they see public headers only, and are installed with the prefix iso-.
# The engine without layers: to be read, and built, but of no use installed.
noinst_PROGRAMS += examples/own-arrays
examples_own_arrays_SOURCES = examples/own_arrays.c examples/usage.c examples/usage.h examples/watch.c examples/watch.h
examples_own_arrays_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_own_arrays_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_own_arrays_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_PROGRAMS += examples/mnist examples/mnist-daso examples/train examples/sweep

examples_mnist_SOURCES = examples/mnist.c examples/usage.c examples/usage.h examples/watch.c examples/watch.h
examples_mnist_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_mnist_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_mnist_LDADD = libisotherm.la $(MPI_LIBS) -lm

examples_mnist_daso_SOURCES = examples/mnist_daso.c examples/usage.c examples/usage.h examples/watch.c examples/watch.h
examples_mnist_daso_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_mnist_daso_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_mnist_daso_LDADD = libisotherm.la $(MPI_LIBS) -lm

# A training run, which both train and sweep make.
TRAIN_RUN = \
    examples/models.c \
    examples/models.h \
    examples/models_resnet.c \
    examples/option_reader.c \
    examples/option_reader.h \
    examples/train_agree.c \
    examples/train.h \
    examples/train_check.c \
    examples/train_classes.c \
    examples/train_data.c \
    examples/train_error.c \
    examples/train_error.h \
    examples/train_kernels.c \
    examples/train_lock.c \
    examples/train_lock.h \
    examples/train_option_table.c \
    examples/train_options.c \
    examples/train_options.h \
    examples/train_output.c \
    examples/train_report.c \
    examples/train_run.c \
    examples/train_schedule.c \
    examples/train_settings.c \
    examples/train_setup.c \
    examples/train_state.c \
    examples/train_stats.c \
    examples/train_stop.c \
    examples/train_sync.c \
    examples/train_threads.c \
    examples/usage.c \
    examples/usage.h \
    examples/watch.c \
    examples/watch.h

examples_train_SOURCES = examples/train.c $(TRAIN_RUN)
examples_train_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_train_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_train_LDADD = libisotherm.la $(MPI_LIBS) -lm

bin_PROGRAMS += examples/predict
examples_predict_SOURCES = examples/predict.c examples/models.c examples/models.h examples/models_resnet.c \
    examples/usage.c examples/usage.h examples/watch.c examples/watch.h \
    examples/option_reader.c examples/option_reader.h
examples_predict_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_predict_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_predict_LDADD = libisotherm.la $(MPI_LIBS) -lm

examples_sweep_SOURCES = \
    examples/report.c \
    examples/report.h \
    examples/report_gnuplot.c \
    examples/report_html.c \
    examples/report_impl.h \
    examples/report_plot.c \
    examples/report_read.c \
    examples/sweep.c \
    examples/sweep.h \
    examples/sweep_list.c \
    examples/sweep_list.h \
    examples/sweep_options.c \
    examples/sweep_store.c \
    $(TRAIN_RUN)
examples_sweep_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_sweep_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_sweep_LDADD = libisotherm.la $(MPI_LIBS) -lm

# The same for Fortran; tests/check_fortran.sh builds it.
EXTRA_DIST += examples/own_arrays.f90

# Beside the programs in a build tree, too.
bin_SCRIPTS += examples/get-mnist
examples/get-mnist: examples/get_mnist.sh config.status
	@$(MKDIR_P) examples
	$(AM_V_GEN)rm -f $@ && sed 's/[@]PACKAGE_VERSION[@]/$(PACKAGE_VERSION)/' $(srcdir)/examples/get_mnist.sh >$@ && chmod a+rx,a-w $@
CLEANFILES += examples/get-mnist
EXTRA_DIST += examples/get_mnist.sh

EXTRA_DIST += examples/trace_svg.py
