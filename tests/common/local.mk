## SPDX-License-Identifier: MIT
# What several tests share: the double-precision oracle, gradient checks, fixtures.
tests_common_libiso_testcommon_la_SOURCES =
tests_common_libiso_testcommon_la_SOURCES += tests/common/mpi_fixture.c tests/common/mpi_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/fixture.c tests/common/fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/balance.c tests/common/balance.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/gossip_model.h tests/common/tensor_access.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/any_device.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/device_fixture.c tests/common/device_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/gradcheck.c tests/common/gradcheck.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/nn_fixture.c tests/common/nn_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/gpt_fixture.c tests/common/gpt_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/dp_fixture.c tests/common/dp_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/oracle.c tests/common/oracle.h tests/common/oracle_pool.c
tests_common_libiso_testcommon_la_SOURCES += tests/common/oracle_loss.c
tests_common_libiso_testcommon_la_SOURCES += tests/common/types_fixture.c tests/common/types_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/scratch.c tests/common/scratch.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/daso_fixture.c tests/common/daso_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/tournament_fixture.c tests/common/tournament_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/daso_model.c tests/common/daso_model.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/server_model.c tests/common/server_model.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/outer_model.c tests/common/outer_model.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/ranks_fixture.c tests/common/ranks_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/resume_fixture.c tests/common/resume_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/regression_fixture.c tests/common/regression_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/samples_fixture.c tests/common/samples_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/any_device.h tests/common/average_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/average_fixture.c tests/common/average_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/codec_model.c tests/common/codec_model.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/shared_fixture.c tests/common/shared_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/hdf5_writer.c tests/common/hdf5_writer.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/picture_writer.c tests/common/picture_writer.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/bag_fixture.c tests/common/bag_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/unused_fixture.c tests/common/unused_fixture.h
# Runs of the train program, for tests that make them in their own process.
EXTRA_LTLIBRARIES = tests/common/libiso_traincommon.la
CLEANFILES += $(EXTRA_LTLIBRARIES)
tests_common_libiso_traincommon_la_SOURCES = $(TRAIN_RUN) tests/common/train_fixture.c \
    tests/common/train_fixture.h
tests_common_libiso_traincommon_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_common_libiso_testcommon_la_SOURCES += tests/common/oracle_norm.c tests/common/oracle_norm.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/channel_fixture.c tests/common/channel_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/join_fixture.c tests/common/join_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/join_couple.c tests/common/join_couple.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/nccl_fixture.c tests/common/nccl_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/transport_fixture.c tests/common/transport_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/hook_fixture.c tests/common/hook_fixture.h
tests_common_libiso_testcommon_la_SOURCES += tests/common/optim_golden.c tests/common/optim_golden.h
