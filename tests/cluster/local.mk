# Tests of several hosts, which are network namespaces: "make check-cluster".
# CLUSTER_TESTS holds scripts that print TAP, CLUSTER_FILES what else those need.
CLUSTER_TESTS =
CLUSTER_FILES =
