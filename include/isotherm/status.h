// Status codes, the error record behind them, and log levels.
//
// Of the whole library: what can fail returns iso_status and writes its outputs only on success (a
// function named _take sets *out to NULL on failure, for what it took is gone). Pointers must not
// be NULL unless the header says so. Destroy functions take a pointer to the caller's pointer,
// which may hold NULL, and set it to NULL.
#ifndef ISOTHERM_STATUS_H
#define ISOTHERM_STATUS_H

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// X(name, value, text). 0 is success, positive is "not yet", negative is an error.
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
    X(ISO_ERR_MISMATCH, -8, "ranks disagree")                                                      \
    X(ISO_ERR_TIMEOUT, -9, "timed out")                                                            \
    X(ISO_ERR_MPI, -10, "MPI error")                                                               \
    X(ISO_ERR_DEVICE, -11, "device error")                                                         \
    X(ISO_ERR_UNSUPPORTED, -12, "not supported")

typedef enum iso_status {
#define ISO_STATUS_ENUM(name, value, text) name = (value),
    ISO_STATUS_LIST(ISO_STATUS_ENUM)
#undef ISO_STATUS_ENUM
} iso_status;

// The fixed text of a code ("invalid argument"); never NULL.
const char *iso_status_string(iso_status status);

#define ISO_ERROR_FRAMES 12

// What went wrong last on the calling thread. Written once by the function that first decides that
// something is an error; each caller that forwards it adds a frame.
typedef struct iso_error {
    iso_status code;
    int rank;          // rank in the process's first communicator, -1 before there is one
    char message[512]; // one sentence: what, where, what to do
    int frame_count;   // frames beyond ISO_ERROR_FRAMES are dropped
    struct {
        const char *function, *file;
        int line;
    } frame[ISO_ERROR_FRAMES]; // [0] is where it was decided
} iso_error;

// Local. The record of the last error of the calling thread; valid until its next error.
const iso_error *iso_last_error(void);
// For callbacks and layers of a user's own: writes the record and returns code.
iso_status iso_error_set(iso_status code, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
// The same with the text as it is, for languages that cannot call a function with an ellipsis.
iso_status iso_error_set_text(iso_status code, const char *text);
// Local. Writes "error: MESSAGE" (and the call trail when the log level is debug) to `to`, at
// once; NULL: to stderr, for languages that have no FILE.
void iso_error_print(FILE *to);

typedef enum iso_log_level {
    ISO_LOG_ERROR,
    ISO_LOG_WARN,
    ISO_LOG_INFO,
    ISO_LOG_DEBUG
} iso_log_level;

// Process-wide. Level of the library's own messages (default: ISO_LOG, else warn) and the stream
// they go to (default stderr; NULL silences them). Lines read "isotherm[RANK] LEVEL: text".
void iso_log_set_level(iso_log_level level);
void iso_log_set_stream(FILE *to);
// The rank shown before messages and in error records; iso_comm_create sets it from its first
// communicator.
void iso_log_set_rank(int rank);

// Local. Writes the table of all ISO_* environment variables: name, default, current value,
// meaning.
void iso_env_print(FILE *to);

// Local. Number of blocks and bytes that the library has allocated and not yet freed, and
// allocations since the start; a program that destroyed everything sees 0 blocks once
// MPI_Finalize has ended the progress engine. Any pointer may
// be NULL.
void iso_memory_balance(long long *blocks, long long *bytes, long long *allocations);

#ifdef __cplusplus
}
#endif
#endif
