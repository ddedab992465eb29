# What several tests share: the double-precision oracle, gradient checks, fixtures.
tests_common_libiso_testcommon_la_SOURCES =
tests_common_libiso_testcommon_la_SOURCES += tests/common/mpi_fixture.c tests/common/mpi_fixture.h
