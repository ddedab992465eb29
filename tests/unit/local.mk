# Tests of one process. For each: UNIT_TESTS += tests/unit/NAME.unit, and
#   tests_unit_NAME_unit_SOURCES = tests/unit/test_NAME.c
UNIT_TESTS =
