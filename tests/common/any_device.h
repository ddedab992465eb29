// SPDX-License-Identifier: MIT
// The device that tests of modules and of training use: the CPU, or what ISO_TEST_DEVICE names.
#ifndef ISO_TEST_ANY_DEVICE_H
#define ISO_TEST_ANY_DEVICE_H

#include <stdlib.h>

static inline const char *test_device(void) {
    const char *name = getenv("ISO_TEST_DEVICE");
    return name && name[0] ? name : "cpu";
}

#endif
