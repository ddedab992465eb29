// SPDX-License-Identifier: MIT
// Fibers of the executor thread, on which the threads of a block run.
#ifndef EMULATED_FIBERS_H
#define EMULATED_FIBERS_H

namespace emulated {

struct Fiber;

Fiber *fiber_create(void (*body)(void)); // `body` must not return
void fiber_enter(Fiber *fiber);          // from the executor's own stack, until the fiber leaves
void fiber_leave();                      // from within a fiber

} // namespace emulated

#endif
