# Programs; they see public headers only, and are installed with the prefix iso-.
# For each: bin_PROGRAMS += examples/NAME, and its _SOURCES, _CPPFLAGS and _LDADD as
#   examples_NAME_SOURCES = examples/NAME.c
#   examples_NAME_CPPFLAGS = $(PUBLIC_CPPFLAGS)
#   examples_NAME_LDADD = libisotherm.la $(MPI_LIBS) -lm
