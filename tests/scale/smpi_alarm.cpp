// SPDX-License-Identifier: MIT
// SimGrid's timers, which C cannot call.
#include <simgrid/kernel/Timer.hpp>

extern "C" void model_set_alarm(double time, void (*call)(void)) {
    simgrid::kernel::timer::Timer::set(time, call);
}
