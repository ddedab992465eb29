// SPDX-License-Identifier: MIT
// What the emulated cuBLAS, cuBLASLt and cuDNN share: counts of what is alive, and how their work
// gets into a stream.
#ifndef EMULATED_HANDLES_H
#define EMULATED_HANDLES_H

#include "emulated_internal.h"

namespace emulated {

extern std::atomic<size_t> live_handles, live_descriptors;

// Ends the program for what has been destroyed.
inline void check_alive(uint32_t magic, uint32_t expected, const char *function) {
    if (magic != expected) die("%s: the handle or descriptor has been destroyed", function);
}

// Gives a kernel of a library to the stream; false: the device has failed before. Ends the program
// unless handle, stream and current device agree.
bool submit_library(cudaStream_t stream, int device, const char *function,
                    std::function<void()> kernel);

} // namespace emulated

#endif
