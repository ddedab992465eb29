# Benchmarks: "make bench" builds them. For each: BENCHES += tests/bench/bench_NAME, and
#   tests_bench_bench_NAME_SOURCES = tests/bench/bench_NAME.c
#   tests_bench_bench_NAME_LDADD = libiso_core.la
BENCHES =
