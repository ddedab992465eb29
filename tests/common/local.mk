# What several tests share: the double-precision oracle, gradient checks, fixtures.
tests_common_libiso_testcommon_la_SOURCES =
tests_common_libiso_testcommon_la_SOURCES += tests/common/mpi_fixture.c tests/common/mpi_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/fixture.c tests/common/fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/balance.c tests/common/balance.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/gradcheck.c tests/common/gradcheck.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/nn_fixture.c tests/common/nn_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/dp_fixture.c tests/common/dp_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/oracle.c tests/common/oracle.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/scratch.c tests/common/scratch.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/daso_fixture.c tests/common/daso_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/daso_model.c tests/common/daso_model.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/resume_fixture.c tests/common/resume_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/average_fixture.c tests/common/average_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/shared_fixture.c tests/common/shared_fixture.h
