# Programs; they see public headers only, and are installed with the prefix iso-.
bin_PROGRAMS += examples/mnist examples/train

examples_mnist_SOURCES = examples/mnist.c
examples_mnist_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_mnist_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_mnist_LDADD = libisotherm.la $(MPI_LIBS) -lm

examples_train_SOURCES = \
    examples/models.c \
    examples/models.h \
    examples/train.c \
    examples/train_agree.c \
    examples/train.h \
    examples/train_error.c \
    examples/train_error.h \
    examples/train_options.c \
    examples/train_options.h \
    examples/train_output.c \
    examples/train_report.c \
    examples/train_setup.c
examples_train_CPPFLAGS = $(PUBLIC_CPPFLAGS)
examples_train_CFLAGS = $(AM_CFLAGS) -Wshadow -Wconversion
examples_train_LDADD = libisotherm.la $(MPI_LIBS) -lm

EXTRA_DIST += examples/trace_svg.py examples/lazy-timeline.svg
