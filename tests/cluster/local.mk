## SPDX-License-Identifier: MIT
# Tests of several hosts, which are network namespaces: "make check-cluster".
# CLUSTER_TESTS holds scripts that print TAP, CLUSTER_FILES what else those need.
CLUSTER_TESTS =
CLUSTER_FILES =
CLUSTER_TESTS += tests/cluster/check_bytes.sh tests/cluster/check_cluster.sh
CLUSTER_FILES += tests/cluster/end_launcher.sh tests/cluster/kill_rank.sh tests/cluster/lose_host.sh \
    tests/cluster/stall_host.sh tests/cluster/time_odd_hosts.sh tests/cluster/time_two_levels.sh \
    tests/cluster/wait_for.sh \
    tests/cluster/with_cluster.sh
EXTRA_PROGRAMS += tests/cluster/node_groups
CLEANFILES += tests/cluster/node_groups
tests_cluster_node_groups_SOURCES = tests/cluster/node_groups.c
tests_cluster_node_groups_LDADD = libiso_core.la
check-cluster: tests/cluster/node_groups$(EXEEXT) tests/bench/bench_exchange$(EXEEXT)
