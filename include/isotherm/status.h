// SPDX-License-Identifier: MIT
// Status codes, error records, and log levels.
//
// Conventions of the whole library: a function that can fail returns iso_status and writes its
// outputs only on success. A function named _take consumes an argument even on failure, and then
// sets *out to NULL. Pointers must not be NULL unless the header allows it. Destroy functions take
// the address of the caller's pointer, which may hold NULL, and set it to NULL.
#ifndef ISOTHERM_STATUS_H
#define ISOTHERM_STATUS_H

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// X(name, value, text). 0 is success, a positive value is "not yet", a negative one is an error.
#define ISO_STATUS_LIST(X)                                                                         \
    X(ISO_OK, 0, "success")                                                                        \
    X(ISO_PENDING, 1, "not complete yet")                                                          \
    X(ISO_ERR_ARG, -1, "invalid argument")                                                         \
    X(ISO_ERR_NOMEM, -2, "out of memory")                                                          \
    X(ISO_ERR_IO, -3, "input/output error")                                                        \
    X(ISO_ERR_FORMAT, -4, "damaged or foreign data")                                               \
    X(ISO_ERR_SHAPE, -5, "shapes do not fit")                                                      \
    X(ISO_ERR_TYPE, -6, "element type does not fit")                                               \
    X(ISO_ERR_STATE, -7, "call not allowed in this state")                                         \
    X(ISO_ERR_MISMATCH, -8, "ranks or data do not match")                                          \
    X(ISO_ERR_TIMEOUT, -9, "timed out")                                                            \
    X(ISO_ERR_MPI, -10, "MPI error")                                                               \
    X(ISO_ERR_DEVICE, -11, "device error")                                                         \
    X(ISO_ERR_UNSUPPORTED, -12, "not supported")

typedef enum iso_status {
#define ISO_STATUS_ENUM(name, value, text) name = (value),
    ISO_STATUS_LIST(ISO_STATUS_ENUM)
#undef ISO_STATUS_ENUM
} iso_status;

// The fixed text of a status ("invalid argument"); never NULL.
const char *iso_status_string(iso_status status);

#define ISO_ERROR_FRAMES 12

// The last error of the calling thread. The function that detects the error writes the record; each
// caller that forwards it adds a frame.
typedef struct iso_error {
    iso_status code;
    int rank;          // in the first communicator of the process; -1 before there is one
    char message[512]; // one sentence: what, where, what to do
    int frame_count;   // at most ISO_ERROR_FRAMES; further frames are dropped
    struct {
        const char *function, *file;
        int line;
    } frame[ISO_ERROR_FRAMES]; // [0]: where the error was detected
} iso_error;

// Local. The record of the last error of the calling thread, valid until its next error.
const iso_error *iso_last_error(void);
// For callbacks and layers of your own: writes the record and returns code.
iso_status iso_error_set(iso_status code, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
// The same for a text without conversions, for languages that cannot call variadic functions.
iso_status iso_error_set_text(iso_status code, const char *text);
// Local. Prints "error: MESSAGE" to `to` (NULL: stderr, for languages without FILE). A rank above 0
// prints "error on rank N: MESSAGE", unless the message begins with a rank. Then, if the log level
// is debug, prints the call trail.
void iso_error_print(FILE *to);

typedef enum iso_log_level {
    ISO_LOG_ERROR,
    ISO_LOG_WARN,
    ISO_LOG_INFO,
    ISO_LOG_DEBUG
} iso_log_level;

// Process-wide. The level of the library's log messages (default: the environment variable ISO_LOG,
// else warn) and their stream (default: stderr; NULL: no messages). A line reads "isotherm[RANK]
// LEVEL: text".
void iso_log_set_level(iso_log_level level);
void iso_log_set_stream(FILE *to);
// Sets the rank in log messages and error records. The first iso_comm_create sets it too.
void iso_log_set_rank(int rank);

// Local. Prints all ISO_* environment variables: name, default, current value, meaning.
void iso_env_print(FILE *to);

// Local. The blocks and bytes that the library holds now, and its allocations since the start. Once
// everything is destroyed and MPI_Finalize has ended the progress thread, blocks is 0. Any pointer
// may be NULL.
void iso_memory_balance(long long *blocks, long long *bytes, long long *allocations);

#ifdef __cplusplus
}
#endif
#endif
