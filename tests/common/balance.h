// SPDX-License-Identifier: MIT
// Checks at the end of a test that the library has freed everything.
#ifndef ISO_TEST_BALANCE_H
#define ISO_TEST_BALANCE_H

// For .fini of a suite, or called last in it. Aborts when blocks are left: Criterion only prints
// assertions that fail in .fini, but a signal there makes the test program fail.
void balance_check(void);

#endif
