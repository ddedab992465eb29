// SPDX-License-Identifier: MIT
// Communication hooks (PyTorch's term) decide how a bucket of gradients travels. A hook is a table
// of functions, which the reducer calls for every bucket. Most hooks convert gradients before and
// after the all-reduce. A hook may also replace the all-reduce by an exchange of its own. Sparse
// gradients (iso_reducer_param.sparse_rows) travel without hooks.
#ifndef ISOTHERM_COMM_HOOK_H
#define ISOTHERM_COMM_HOOK_H

#include <isotherm/comm.h>
#include <isotherm/tensor.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ISO_COMM_HOOK_PHASES = 4 }; // maximum number of phases of an exchange

// A parameter, or a piece of one (iso_reducer_config.piece_bytes), and its place in a bucket.
typedef struct iso_comm_hook_tensor {
    const char *name;     // of the parameter
    size_t offset, count; // elements of the bucket
    size_t row;           // > 0: a matrix of whole rows with this many elements each
} iso_comm_hook_tensor;

// A bucket before or after its exchange. Arrays have `count` elements unless they say otherwise.
// The padding between parameters is zero and must stay zero.
typedef struct iso_comm_hook_bucket {
    size_t count;
    iso_dtype dtype; // of the gradients: ISO_F32 or ISO_F64
    void *gradient;
    void *wire;       // of the hook's wire type; the same as gradient if the hook has no compress
    float *state;     // kept between steps, zero at first; NULL: none
    const char *name; // for messages
    // The number of the bucket, in the order in which backward completes buckets; delayed ones come
    // last.
    int index;
    bool is_last; // true for the last dense bucket that is exchanged

    // For hooks that own their exchange only:
    int rank, ranks; // this rank's number among the ranks that average the bucket; their count
    const iso_comm_hook_tensor *tensor; // [tensor_count], in the order of their offsets
    int tensor_count;
    void *data[ISO_COMM_HOOK_PHASES]; // of each phase, see declare; 64-byte aligned
    // The ranks over which the bucket is averaged. NULL in lazy mode; set with ISO_SYNC_BLOCKING
    // and ISO_SYNC_EXPLICIT. In these modes `run` may itself call collectives over comm, because
    // all ranks call it in the same order.
    iso_comm *comm;
    // The number of this exchange, from 0: how often gradients were exchanged before, modulo 2^24.
    // The same on all ranks, also if some had nothing to exchange for a while, as on a node of one
    // rank in ISO_SCOPE_NODE. Saved with the state.
    long long exchange;
} iso_comm_hook_bucket;

// What happens to the array of a phase.
typedef enum iso_comm_operation {
    ISO_COMM_SUM,     // data has `count` elements, which become the sums over the ranks
    ISO_COMM_GATHER,  // data has `count` elements for each rank; run fills those of its own rank
    ISO_COMM_ALLTOALL // likewise; run fills block r for rank r, and gets rank r's block in its
                      // place
} iso_comm_operation;

typedef struct iso_comm_phase {
    iso_comm_operation operation;
    size_t count; // > 0
    // A sum: ISO_F32, ISO_F64, ISO_BF16 or ISO_F16; other operations: any type. Only f32 is rounded
    // to the hook's wire type.
    iso_dtype dtype;
} iso_comm_phase;

// How a bucket travels. All ranks declare the same.
typedef struct iso_comm_hook_plan {
    int phase_count; // 0: the library exchanges nothing, `run` does; an error in lazy mode
    iso_comm_phase phase[ISO_COMM_HOOK_PHASES];
    size_t state_floats; // total for the bucket; must not depend on the number of ranks
    bool plain;          // the hook does not handle this bucket: it is summed unchanged
} iso_comm_hook_plan;

// A hook has compress and decompress, or declare and run, or none of them.
typedef struct iso_comm_hook {
    const char *name;
    // Element type that travels: ISO_F32, ISO_BF16 or ISO_F16. Buckets of f64 travel unchanged,
    // without compress and decompress. If a hook owns its exchange, its f32 phases travel in this
    // type (PyTorch: bf16_compress_wrapper around the hook).
    iso_dtype wire;
    int state_floats; // with compress: floats of state per element, e.g. 1 for error feedback
    bool divides;     // the reduced values are already the average
    bool silent;      // nothing travels: gradients stay local (to measure the cost of the exchange)
    // Local. Called once per bucket and exchange, by the thread that reported the last gradient of
    // the bucket. wire = gradient * factor. factor is this rank's weight (see
    // iso_reducer_set_weight; 1 by default), divided by
    //   - 1 with ISO_AVERAGE_SUM;
    //   - else the number of ranks, or `total`, if the hook divides or with ISO_AVERAGE_PRE;
    //   - else split_factor with ISO_AVERAGE_SPLIT;
    //   - else 1.
    iso_status (*compress)(const iso_comm_hook_bucket *bucket, double factor, void *user);
    // gradient = wire * factor, where factor turns the sum into an average. Called once per bucket
    // and exchange, after the all-reduce.
    iso_status (*decompress)(const iso_comm_hook_bucket *bucket, double factor, void *user);

    // A hook that owns its exchange declares the phases in which a bucket travels, and computes in
    // between. All ranks exchange phase 0 of all buckets, then phase 1 of all buckets, and so on,
    // so ranks cannot deadlock, in whatever order buckets become ready. (With ISO_SYNC_BLOCKING and
    // ISO_SYNC_EXPLICIT, a bucket completes all its phases before the next bucket starts.)
    //
    // Other ranks cannot complete the later phases unless this rank calls the reducer. So do not
    // wait for another rank by other means (such as iso_comm_barrier) while it may be waiting for
    // its gradients or parameters: call iso_reducer_finish on all ranks first.
    //
    // Local. Called for every bucket that is exchanged, with no data in it: at creation, and when a
    // scope is first used, because scopes may differ in their number of ranks.
    iso_status (*declare)(const iso_comm_hook_bucket *bucket, iso_comm_hook_plan *plan, void *user);
    // Called phase_count + 1 times for each exchange, by a thread of the program: with phase 0 when
    // gradient is final; with phase k when the result of phase k - 1 is in data[k - 1]. Writes
    // data[phase], and in the last call gradient. The arrays persist until then. state has the
    // state_floats of declare. factor is that of compress in the first call, that of decompress in
    // the last call, and 1 in between; if there is only one call, the product of the first two. The
    // reducer function that calls run returns its error.
    iso_status (*run)(const iso_comm_hook_bucket *bucket, int phase, double factor, void *user);
    // Only for hooks with run: the gradients of the first `start` backwards that are exchanged
    // travel as plain sums in their own type. At most 2^24.
    long long start;

    void *user;
    size_t user_bytes; // > 0: the reducer copies this many bytes of user; 0: it keeps the pointer
} iso_comm_hook;

// No conversion (PyTorch: allreduce_hook): compress and decompress are NULL.
extern const iso_comm_hook iso_hook_plain;
// 16-bit gradients (PyTorch: fp16_compress_hook, bf16_compress_hook). They are divided by the
// number of ranks before the sum, which prevents overflow in f16, and rounded to 16 bits. Sums are
// computed in f32 and rounded to 16 bits after each addition.
extern const iso_comm_hook iso_hook_f16, iso_hook_bf16;
// bf16 with error feedback (Seide et al., Interspeech 2014): the rounding error of a rank's
// gradients is added to its gradients of the next step. Rounding errors of the sums over more than
// two ranks are lost. NaN and infinite values leave no error behind.
extern const iso_comm_hook iso_hook_bf16_feedback;
// No exchange (PyTorch: noop_hook): replicas diverge. A step takes as long as on a perfect network.
// Like ISO_SYNC_NONE. With ISO_UNUSED_NEGOTIATE each rank then decides alone which parameters are
// unused.
extern const iso_comm_hook iso_hook_noop;

// Adasum (Maleki et al., MLSys 2021; Horovod: op=Adasum). For the gradients a and b of two ranks,
// (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b replaces the average, separately for each tensor or
// piece of one. So equal gradients stay as they are, and orthogonal ones are added. Ranks are
// combined in pairs, then pairs of pairs, and so on. Of 6 ranks, the first 4 and the last 2 are
// combined separately, then the two results. This hook combines gradients, as
// hvd.allreduce(op=Adasum) does; Horovod's DistributedOptimizer combines updates. Adasum is for f32
// only; f64 is averaged. Every rank receives the gradients of all ranks and combines them itself.
// Memory and bytes grow with the number of ranks, so use this hook with few ranks. ISO_AVERAGE_SUM
// multiplies the result by the number of ranks. ISO_JOIN_EFFECTIVE and ISO_JOIN_SAMPLES multiply it
// by ranks / ranks with data.
extern const iso_comm_hook iso_hook_adasum;

// The hooks below own their exchange. They handle only buckets of f32; others travel unchanged, as
// do buckets of fewer than 512 elements, except with PowerSGD. All but dithering have error
// feedback: what a rank does not send is added to its gradients of the next step. All ranks get the
// same average, so replicas stay equal. NaN and infinite gradients appear in the average, but leave
// no error for the next step.

// 8-bit integers with one f32 scale per group of 256 elements. Each rank sums a shard of the bucket
// in f32 and sends the sum in 8 bits, also with error feedback. If each shard has many groups, this
// sends 3.9 times fewer bytes than f32. State: 1 float per element.
extern const iso_comm_hook iso_hook_int8;

// 8-bit floats of one sign bit, four exponent bits and three bits of a fraction (E4M3: OCP 8-bit
// Floating Point Specification 1.0, 2023) with one f32 scale per group of 128 elements. The scale
// makes the largest magnitude of the group 448, the largest E4M3 value. Values round to nearest,
// ties to even. Below 1/28672 of the largest they become multiples of 1/229376 of it. Sums travel
// as with int8, also with error feedback. If each shard has many groups, this sends 3.9 times fewer
// bytes than f32. State: 1 float per element.
extern const iso_comm_hook iso_hook_fp8;

// 1 bit (Seide et al., Interspeech 2014; both ways: Zheng et al., NeurIPS 2019; BytePS: onebit with
// scaling and error feedback): the sign of each gradient, and the mean magnitude of each group of
// 256 as f32. Sums travel as with int8. If each shard has many groups, this sends 28 times fewer
// bytes than f32. State: 1 float per element.
extern const iso_comm_hook iso_hook_onebit;

// Dithering (QSGD: Alistarh et al., NeurIPS 2017; BytePS: dithering, linear partition, max norm): 4
// bits per element, for the levels -7 to 7 times 1/7 of the largest magnitude of each group of 256.
// A gradient is rounded at random to one of the two nearest levels. So the average is unbiased: its
// expected value is the average of the plain gradients. Exception: a draw has 16 bits, so gradients
// below about 1e-6 of the largest of their group become 0. The sums travel as with int8, and are
// dithered again. This sends 7.7 times fewer bytes than f32. No error feedback, no state. A
// repeated run draws the same random numbers if it has the same number of ranks.
extern const iso_comm_hook iso_hook_dithering;

// Top-k: the largest gradients of each bucket (Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS
// 2018).
typedef struct iso_topk_config {
    double ratio; // fraction of elements to send, 0 < ratio <= 1; at least one of each bucket
} iso_topk_config;
#define ISO_TOPK_DEFAULT                                                                           \
    { .ratio = 0.01 }
// Each rank receives 8 bytes per element that another rank sends. State: 1 float per element.
// *config must remain valid until iso_reducer_create or iso_data_parallel_create_take has copied
// it. config NULL: the default.
iso_comm_hook iso_hook_topk(const iso_topk_config *config);

// Random-k with memory (Stich et al., NeurIPS 2018; BytePS: randomk): each bucket is divided into
// consecutive parts of nearly equal length, and one element of each part is summed, the same on all
// ranks. Others wait for later exchanges. So no indices travel, and the sum is an all-reduce. A
// part with a NaN or an infinite value sends that value.
typedef struct iso_randomk_config {
    double ratio;  // fraction of elements to send, 0 < ratio <= 1; at least one of each bucket
    uint64_t seed; // of the choice; the same on all ranks
} iso_randomk_config;
#define ISO_RANDOMK_DEFAULT                                                                        \
    { .ratio = 0.01, .seed = 0 }
// State: 1 float per element. *config must remain valid until iso_reducer_create or
// iso_data_parallel_create_take has copied it. config NULL: the default.
iso_comm_hook iso_hook_randomk(const iso_randomk_config *config);

// PowerSGD (Vogels et al., NeurIPS 2019; PyTorch: powerSGD_hook) with error feedback and warm
// start: a matrix of gradients (iso_reducer_param.row) travels as the product of two matrices of
// low rank. Other gradients travel unchanged, unless the hook is batched. State of a compressed
// matrix: 1 float per element, and rank * columns.
typedef struct iso_powersgd_config {
    int rank;            // >= 1; PyTorch: matrix_approximation_rank
    long long start;     // number of plain exchanges before PowerSGD; PyTorch: start_powerSGD_iter
    double least_saving; // > 0: only matrices that shrink by more than this factor are compressed;
                         // PyTorch: min_compression_rate
    uint64_t seed;       // for the initial directions; the same on all ranks
    // true: a whole bucket is one matrix of ceil(sqrt(count)) rows and columns, filled up with
    // zeros, whatever its tensors are (PyTorch: batched_powerSGD_hook). Faster than a product for
    // each tensor, but a worse approximation, because rows mix elements of different tensors.
    // State: as for one matrix. What PyTorch leaves out of its padding joins the next exchange;
    // here padding stays 0.
    bool batched;
} iso_powersgd_config;
#define ISO_POWERSGD_DEFAULT                                                                       \
    { .rank = 1, .start = 1000, .least_saving = 2, .seed = 0, .batched = false }
// *config must remain valid until iso_reducer_create or iso_data_parallel_create_take has copied
// it. config NULL: the default.
iso_comm_hook iso_hook_powersgd(const iso_powersgd_config *config);

// "plain" (or "f32"), "f16", "bf16", "bf16-feedback", "int8", "fp8", "dithering", "onebit",
// "topk", "randomk", "powersgd", "powersgd+bf16", "adasum", "noop"; with the default
// configurations. ISO_ERR_ARG for another name; the message lists these.
iso_status iso_comm_hook_parse(const char *name, const iso_comm_hook **out);

#ifdef __cplusplus
}
#endif
#endif
