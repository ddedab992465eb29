// SPDX-License-Identifier: MIT
// Checks at the end of a test that the library has freed everything.
#ifndef ISO_TEST_BALANCE_H
#define ISO_TEST_BALANCE_H

// For the .fini of a suite, or to call last in it. Aborts if blocks are left: Criterion only prints
// assertions that fail in .fini, but a signal makes the test program fail.
void balance_check(void);

#endif
