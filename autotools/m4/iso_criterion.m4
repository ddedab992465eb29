dnl SPDX-License-Identifier: MIT
# ISO_CRITERION: the Criterion test framework, which "make check" needs.
AC_DEFUN([ISO_CRITERION], [
    ISO_DEPENDENCY([criterion], [CRITERION], [the tests], [criterion], [criterion/criterion.h],
                   [#include <criterion/criterion.h>],
                   [return criterion_run_all_tests(criterion_initialize());],
                   [-lcriterion], [libcriterion-dev])
])
