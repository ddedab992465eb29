// SPDX-License-Identifier: MIT
// Private to the library: error macros, logging, memory, environment, random numbers.
#ifndef ISO_BASE_H
#define ISO_BASE_H

#include <isotherm/status.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// ---- Errors ---------------------------------------------------------------------------------------

// Writes the record of a new error (one sentence: what, where, what to do) and returns code.
iso_status iso__error(iso_status code, const char *function, const char *file, int line,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));
// Whether a message begins with a rank, so that it needs no other prefix.
bool iso__names_rank(const char *message);
// Makes a copy of an earlier record the last error again.
void iso__error_restore(const iso_error *record);
// Adds a frame to the record and returns status.
iso_status iso__error_frame(iso_status status, const char *function, const char *file, int line);

#define ISO_FAIL(code, ...) iso__error((code), __func__, __FILE__, __LINE__, __VA_ARGS__)
// Returns from the calling function unless cond holds.
#define ISO_CHECK(cond, code, ...)                                                                 \
    do {                                                                                           \
        if (!(cond)) return ISO_FAIL(code, __VA_ARGS__);                                           \
    } while (0)
// The same, jumping to `fail:` with `iso_status status` set.
#define ISO_CHECK_GOTO(cond, code, ...)                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            status = ISO_FAIL(code, __VA_ARGS__);                                                  \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)
// Forwards an error (negative status); ISO_PENDING passes as success.
#define ISO_TRY(expr)                                                                              \
    do {                                                                                           \
        iso_status try_status_ = (expr);                                                           \
        if (try_status_ < 0) return iso__error_frame(try_status_, __func__, __FILE__, __LINE__);   \
    } while (0)
#define ISO_TRY_GOTO(expr)                                                                         \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status < 0) {                                                                          \
            iso__error_frame(status, __func__, __FILE__, __LINE__);                                \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

#define iso_container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

// ---- Log ------------------------------------------------------------------------------------------

void iso__log(iso_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Logs the last error, of a call that cannot return it, after the words `during`. Logs nothing if
// it equals `before`, a copy of the last error from before that call: that error is not new.
void iso__log_new_error(const iso_error *before, const char *during);
int iso__log_level(void);
int iso__log_rank(void); // -1 before the first communicator

// What ISO_DEBUG asks for. INFO raises the level of the log to info.
enum { ISO__DEBUG_OFF, ISO__DEBUG_INFO, ISO__DEBUG_DETAIL };
int iso__debug_level(void);

// ---- Environment: the table of variables is in env.c ---------------------------------------------

typedef enum iso__env {
    ISO_ENV_LOG,
    ISO_ENV_DEBUG,
    ISO_ENV_PROGRESS,
    ISO_ENV_PROGRESS_US,
    ISO_ENV_PROGRESS_CORE,
    ISO_ENV_TIMEOUT,
    ISO_ENV_RECORDER,
    ISO_ENV_STALL_WARN,
    ISO_ENV_STEP_TIMEOUT,
    ISO_ENV_WATCHDOG, // the programs read it
    ISO_ENV_RANKS_PER_NODE,
    ISO_ENV_NODE_COLLECTIVE,
    ISO_ENV_IALLREDUCE,
    ISO_ENV_CPU_KERNELS,
    ISO_ENV_DIGITS,
    ISO_ENV_CUDA_CONV,
    ISO_ENV_CUDA_GRAPHS,
    ISO_ENV_COUNT
} iso__env;
// The value, or NULL when unset or empty.
const char *iso__env_string(iso__env variable);
const char *iso__env_name(iso__env variable);
// The number, or fallback when unset. A value that the table does not allow is ISO_ERR_ARG, naming
// the variable, the value, and what is allowed.
iso_status iso__env_number(iso__env variable, double fallback, double *out);
// ISO_ERR_ARG as above, whatever the variable's type.
iso_status iso__env_check(iso__env variable);
iso_status iso__env_check_all(void);
// A number that is equal on ranks with the same unknown ISO_* variables; 0: there are none. warn:
// logs a warning for each, with the nearest known name.
uint64_t iso__env_unknown(bool warn);
// Whether all ranks must have the same value, and the value to compare; NULL if it is not set and
// each rank chooses the best value for its machine.
bool iso__env_is_alike(iso__env variable);
const char *iso__env_effective(iso__env variable);

// ---- Memory: aligned to 64 bytes, counted --------------------------------------------------------

// Memory with undefined contents, and zeroed memory. ISO_ERR_NOMEM names the size. With bytes 0 the
// pointer is valid, too.
iso_status iso__alloc(size_t bytes, void **out);
iso_status iso__alloc_zero(size_t bytes, void **out);
// Resizes a buffer and keeps its first `old` bytes. *pointer is unchanged on failure.
iso_status iso__realloc(void **pointer, size_t old, size_t bytes);
// Makes room for one more element of `size` bytes behind the first `count`. *room is the number of
// elements for which there is room, and doubles if it is used up. room NULL: there is room for the
// next power of two, as this function makes it.
iso_status iso__grow(void **array, int count, int *room, size_t size);
iso_status iso__strdup(const char *text, char **out);
void iso__free(void *pointer); // accepts NULL

// Allocates zeroed memory in whole pages. iso__pages_clear returns parts of it to the system. Huge
// pages are disabled, because the system takes back whole pages only. The memory balance counts it
// as a block. A page takes memory once it is written. Free it with the same number of bytes.
iso_status iso__pages_alloc(size_t bytes, void **out);
void iso__pages_free(void *memory, size_t bytes); // accepts NULL
// Zeroes bytes of such memory, and returns the pages that hold nothing else to the system.
void iso__pages_clear(void *from, size_t bytes);
// The size of the pages that hold some of these bytes and are in memory, as the system says.
size_t iso__pages_resident(const void *from, size_t bytes);

// ---- Folders ---------------------------------------------------------------------------------------

// Makes the folder, and those above it that are missing, as mkdir -p does. ISO_ERR_IO if it cannot.
iso_status iso__make_folders(const char *folder);

// ---- Random numbers: Philox 4x32-10 (Salmon et al., SC'11), a pure function of key and counter ----

typedef struct iso__philox_key {
    uint32_t k[2];
} iso__philox_key;
// Purposes keep streams of one seed apart.
enum {
    ISO_RNG_INIT = 1,
    ISO_RNG_DROPOUT,
    ISO_RNG_SHUFFLE,
    ISO_RNG_DIGITS,
    ISO_RNG_TEST,
    ISO_RNG_AUGMENT,
    ISO_RNG_HOOK,
    ISO_RNG_PAIRS,
    ISO_RNG_MUTATION
};
iso__philox_key iso__philox_key_make(uint64_t seed, uint32_t purpose, uint64_t stream);
void iso__philox(iso__philox_key key, const uint32_t counter[4], uint32_t out[4]);
// Below bound, without bias. Different words `shard` give different numbers.
uint64_t iso__draw_below(iso__philox_key key, uint32_t shard, uint64_t position, uint64_t bound);
// [0, 1) with 24 bits.
static inline float iso__uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

// 64-bit FNV-1a over bytes, continuing from `hash` (start with ISO_HASH_START).
#define ISO_HASH_START 0xcbf29ce484222325u
uint64_t iso__hash(uint64_t hash, const void *data, size_t bytes);
// A checksum for whole data sets and files, computed about as fast as memory can be read. Passing
// the bytes in two calls gives a different sum than in one. It depends on the byte order of the
// machine.
uint64_t iso__checksum(uint64_t sum, const void *data, size_t bytes);
// The same checksum for bytes in several places. Adding the places one after the other gives the
// same sum as one call for all bytes.
enum { ISO__CHECKSUM_LANES = 4 };
typedef struct iso__checksum_state {
    uint64_t sum, lane[ISO__CHECKSUM_LANES];
    uint64_t bytes;
    size_t filled; // of rest
    unsigned char rest[ISO__CHECKSUM_LANES * sizeof(uint64_t)];
} iso__checksum_state;
iso__checksum_state iso__checksum_begin(uint64_t sum);
void iso__checksum_add(iso__checksum_state *state, const void *data, size_t bytes);
uint64_t iso__checksum_end(iso__checksum_state *state);

// ---- Numbers --------------------------------------------------------------------------------------

// The ending of a noun after a number in a message: "%d rank%s".
#define ISO_PLURAL(n) ((n) == 1 ? "" : "s")

static inline int64_t iso__smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t iso__larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline size_t iso__round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
// The median of count > 0 numbers; of an even count, the upper one of the two in the middle. Sorts
// the numbers.
double iso__median(double *numbers, int count);

#endif
