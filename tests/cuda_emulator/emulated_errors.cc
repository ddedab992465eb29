// SPDX-License-Identifier: MIT
// Names and texts of the emulated CUDA runtime's errors.
#include <cuda_runtime_api.h>

struct Text {
    cudaError_t error;
    const char *name, *text;
};

#define ERROR(name, text)                                                                          \
    { name, #name, text }

static const Text texts[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction"),
    ERROR(cudaErrorInsufficientDriver, "driver too old for this runtime"),
    ERROR(cudaErrorDevicesUnavailable, "devices busy or unavailable"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device"),
    ERROR(cudaErrorInvalidDevice, "invalid device number"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image for this device"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable memory error"),
    ERROR(cudaErrorInvalidPtx, "invalid PTX"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "resource in a wrong state"),
    ERROR(cudaErrorNotReady, "not ready"),
    ERROR(cudaErrorIllegalAddress, "illegal memory access"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchTimeout, "launch timed out"),
    ERROR(cudaErrorAssert, "device-side assertion"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "host memory already registered"),
    ERROR(cudaErrorHostMemoryNotRegistered, "host memory not registered"),
    ERROR(cudaErrorHardwareStackError, "hardware stack error"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorSystemNotReady, "system not ready"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not allowed in a stream capture"),
    ERROR(cudaErrorStreamCaptureInvalidated, "stream capture invalidated by an earlier error"),
    ERROR(cudaErrorStreamCaptureMerge, "two independent captures would be merged"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not begun in this stream"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capture has work that was not joined"),
    ERROR(cudaErrorStreamCaptureIsolation, "capture depends on work outside of it"),
    ERROR(cudaErrorStreamCaptureImplicit, "capture would depend on the default stream"),
    ERROR(cudaErrorCapturedEvent, "event was last recorded in a capture"),
    ERROR(cudaErrorStreamCaptureWrongThread, "capture was begun by another thread"),
    ERROR(cudaErrorGraphExecUpdateFailure, "graph update not possible"),
    ERROR(cudaErrorUnknown, "unknown error"),
};

static const Text *find(cudaError_t error) {
    for (const Text &t : texts)
        if (t.error == error) return &t;
    return nullptr;
}

const char *cudaGetErrorName(cudaError_t error) {
    const Text *t = find(error);
    return t != nullptr ? t->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const Text *t = find(error);
    return t != nullptr ? t->text : "unrecognized error code";
}
