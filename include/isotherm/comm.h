// SPDX-License-Identifier: MIT
// Communicators, collectives, and the progress of non-blocking exchanges. This is the only public
// header that includes MPI's.
#ifndef ISOTHERM_COMM_H
#define ISOTHERM_COMM_H

#include <isotherm/device.h>
// Some MPI headers declare C++ bindings, which a program would then have to link. Nothing here uses
// them.
#ifdef __cplusplus
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#endif
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Who drives non-blocking collectives while the program computes. (Open MPI makes no progress
// between MPI calls.)
typedef enum iso_progress {
    // The environment variable ISO_PROGRESS if set, else thread if MPI provides
    // MPI_THREAD_MULTIPLE, else poll.
    ISO_PROGRESS_AUTO,
    ISO_PROGRESS_OFF,   // nobody: exchanges advance only in waits
    ISO_PROGRESS_POLL,  // the calling thread tests requests between layers
    ISO_PROGRESS_THREAD // a helper thread; it sleeps between tests and blocks if nothing is pending
} iso_progress;
// "auto", "off", "poll", "thread".
iso_status iso_progress_parse(const char *name, iso_progress *out);
const char *iso_progress_name(iso_progress mode);

typedef struct iso_comm iso_comm; // reference-counted: create gives one reference, retain adds one

typedef struct iso_comm_config {
    iso_progress progress; // of the whole process: the first communicator decides
    // Seconds. A longer wait returns ISO_ERR_TIMEOUT, and names what is pending and the ranks that
    // keep this one waiting. 0: the environment variable ISO_TIMEOUT (default 300). A warning says
    // the same after ISO_STALL_WARN seconds (default 30), and again whenever the wait has doubled.
    // A wait counts as progress for ISO_STEP_TIMEOUT, which ends a process that makes none
    // (docs/cluster.md).
    double timeout_s;
} iso_comm_config;

// Collective over mpi_comm, as is iso_comm_destroy. Duplicates mpi_comm, so the library's messages
// never mix with yours. Initialise MPI first (else ISO_ERR_STATE), with MPI_THREAD_MULTIPLE for the
// thread mode (otherwise the mode is poll, with a warning). config NULL: the default. Works on one
// rank and without mpirun. You may call MPI_Finalize while communicators still exist. The duplicate
// uses MPI_ERRORS_RETURN. Even so, Open MPI may end the job if ranks call different collectives
// (MPI_ERR_TRUNCATE); ISO_DEBUG=detail names the calls before that.
//
// Checks all ISO_* environment variables (iso_env_print lists them). ISO_ERR_ARG on all ranks if
// any rank has an invalid value. ISO_ERR_MISMATCH if ranks have different values of a variable that
// decides how they exchange (ISO_IALLREDUCE, ISO_NODE_COLLECTIVE, ISO_RANKS_PER_NODE, ISO_DEBUG;
// Open MPI's own OMPI_MCA_coll_libnbc_iallreduce_algorithm), how their results round
// (ISO_CPU_KERNELS, ISO_CUDA_CONV) or how many digits they generate (ISO_DIGITS). The message names
// the variable, values and ranks. If no rank sets ISO_CPU_KERNELS (or ISO_CUDA_CONV), each rank
// uses the best kernels (convolutions) for its machine. A warning names unknown variables.
//
// In Open MPI, all communicators of a process share one all-reduce algorithm. The first mpi_comm
// that has all processes of the job sets it (see ISO_IALLREDUCE), unless exchanges are in flight at
// that time. An mpi_comm with fewer processes does not change it; a warning names the option of
// mpirun that does: --mca coll_libnbc_iallreduce_algorithm 3.
//
// Communicators, and objects that have their own (topologies, reducers, modules and optimizers that
// exchange), must be created and destroyed in one thread at a time, and in the same order on all
// ranks. Otherwise ranks may wait for each other until the time-out.
//
// ISO_ERR_ARG for MPI_COMM_NULL. ISO_ERR_STATE if the mpirun of another MPI started the processes,
// so that each of them is alone. ISO_ERR_MPI if the all-reduce algorithms of ranks differ because
// MPI did not accept the setting on some of them. ISO_ERR_TIMEOUT if a rank does not call this in
// time; see the blocking collectives below.
iso_status iso_comm_create(MPI_Comm mpi_comm, const iso_comm_config *config, iso_comm **out);
// The same for a communicator of a Fortran program: an integer, or the component MPI_VAL in
// mpi_f08.
iso_status iso_comm_create_fortran(int mpi_comm, const iso_comm_config *config, iso_comm **out);
iso_comm *iso_comm_retain(iso_comm *comm);
// Gives one reference back, and sets *comm to NULL. Does nothing if comm or *comm is NULL.
void iso_comm_destroy(iso_comm **comm);

int iso_comm_rank(const iso_comm *comm);
int iso_comm_size(const iso_comm *comm);
MPI_Comm iso_comm_mpi(const iso_comm *comm);    // borrowed
int iso_comm_mpi_fortran(const iso_comm *comm); // the same as the integer of a Fortran program
// The progress mode and its reason, e.g. "thread (MPI_THREAD_MULTIPLE)"; the all-reduce algorithm
// and its reason. Borrowed.
const char *iso_comm_progress_text(const iso_comm *comm);
const char *iso_comm_algorithm_text(const iso_comm *comm);
iso_progress iso_comm_progress(const iso_comm *comm);

typedef enum iso_reduce { ISO_SUM, ISO_MAX, ISO_MIN } iso_reduce;

// Blocking collectives on host memory. All ranks call them with the same sizes, root and op. A rank
// that waits longer than the time-out gets ISO_ERR_TIMEOUT. MPI cannot cancel the collective, so
// end the job then (MPI_Abort). The caller may then free its memory, because MPI works on copies of
// at most 16 MiB each. (Exception: if there is no memory for a copy, MPI works on the caller's
// memory.) After an error, an array longer than that may be changed in part. Later collectives on
// this communicator do not wait: they return ISO_ERR_TIMEOUT unless they complete at once.
//
// Sums are bitwise identical on all ranks. With Rabenseifner's algorithm (the default, see
// ISO_IALLREDUCE), doubles are added in a tree. Of P ranks, let B be the number beyond a power of
// two. First, the first 2 B ranks are added in pairs: 0 + 1, 2 + 3, and so on. Then neighbours
// among these sums and the remaining ranks are added, then neighbours among the results, until one
// is left: (0 + 1) + (2 + 3) with four ranks, ((0 + 1) + 2) + (3 + 4) with five.
iso_status iso_comm_barrier(iso_comm *comm);
iso_status iso_comm_bcast(iso_comm *comm, void *data, size_t bytes, int root);
iso_status iso_comm_allreduce_f64(iso_comm *comm, double *data, size_t count, iso_reduce op);
iso_status iso_comm_allreduce_i64(iso_comm *comm, int64_t *data, size_t count, iso_reduce op);
// Gathers the bytes of all ranks on root; the lengths may differ and exceed INT_MAX. On root *out
// is the concatenation in rank order and (*sizes)[rank] the lengths; elsewhere both are NULL. Free
// both with iso_comm_free.
iso_status iso_comm_gather(iso_comm *comm, const void *data, size_t bytes, int root, char **out,
                           size_t **sizes);
void iso_comm_free(void *data);
// Collective. ISO_OK if all ranks pass ISO_OK as `mine`, else an error on every rank. A failing
// rank gets its own error. The others get an error that names the lowest failing rank and repeats
// its message. In two cases a failing rank cannot tell the others, and returns its error at once.
// First, an earlier wait on this communicator has failed. Second, `mine` is ISO_ERR_MPI or
// ISO_ERR_TIMEOUT, and MPI or a wait has failed on some communicator of this process. The others
// then get ISO_ERR_TIMEOUT after the time-out. End the job after such an error, as after any
// ISO_ERR_MPI of a call on the communicator: later blocking calls on it do not wait and return
// ISO_ERR_TIMEOUT.
iso_status iso_comm_agree(iso_comm *comm, iso_status mine);
// Collective. Checks that all ranks pass the same number, e.g. a checksum of the data they read. If
// not, ISO_ERR_MISMATCH on every rank with the same message: it starts with `what` ("the training
// set of mnist") and lists the ranks whose number differs from rank 0's.
iso_status iso_comm_check_same(iso_comm *comm, uint64_t number, const char *what);

// Collective: waits for a non-blocking MPI collective of your own over the ranks of comm, such as
// an MPI_Ibcast on MPI_COMM_WORLD. All ranks call it in the same order as the collectives above, so
// that the warnings of ISO_STALL_WARN and the time-out, which hold for it too, can name the ranks
// that have not called it. what: borrowed; completes "rank 0 waited 300 s in ...". The request
// becomes MPI_REQUEST_NULL.
iso_status iso_comm_await(iso_comm *comm, MPI_Request *request, const char *what);

// ---- Bytes ----------------------------------------------------------------------------------------

// How the library counts bytes sent. The counts cover what training moves between ranks, between
// and inside nodes, by messages, shared memory or NCCL: gradients, parameters, optimizer state,
// buffers, and statistics of synchronised batch norms, in the element type in which they travel,
// with padding. They exclude message headers, small agreements (verdicts, counts, plans),
// everything before the first step, evaluation (its mean of parameters, its synchronisation of
// buffers), samples (iso_shuffle), and exchanges that only measure time.
//
// An all-reduce of n bytes over P ranks counts 2 (P - 1) n bytes in all. MPI decides which rank
// sends how much, so each rank counts a share, and only the sum over all ranks is meaningful. If
// Open MPI's algorithm moves more, more is counted. Rabenseifner's algorithm moves 5/2 n instead of
// 2 n for each rank beyond a power of two, so 9/2 n instead of 4 n with three ranks. Where sums of
// gradients use pairwise exchange instead (see ISO_IALLREDUCE), they move 2 (P - 1) n.
// Recursive doubling moves n per rank and round. The bytes between nodes follow from the placement
// of the ranks; for an MPI library that does not report its algorithm, a ring is assumed.
//
// In shared memory and by NCCL, an all-reduce counts 2 (P - 1) n bytes. By NCCL over N nodes (2 or
// more), 2 N (P - 1) / P n of these go between nodes, as in a ring that leaves each node once. A
// sum of gradients in two levels (isotherm/reducer.h) counts 2 (R - 1) n bytes in a node of R
// ranks, and one all-reduce of n bytes over as many ranks as there are nodes. A mean of n bytes
// over P nodes (daso) counts 2 (P - 1) n bytes, and a broadcast from one rank (P - 1) n. (A
// blocking one of more than 64 KiB to over four ranks moves at most log2(P) n / 2 more, which is
// not counted.)
typedef struct iso_traffic {
    int64_t bytes_sent;          // this rank's share
    int64_t bytes_between_nodes; // of these, bytes to other nodes
} iso_traffic;

// ---- Non-blocking all-reduce ----------------------------------------------------------------------

typedef struct iso_request iso_request;

// Collective: all ranks must issue the same exchanges in the same order. Sums `data`, in host
// memory, in place. Until the request completes, the buffer belongs to the operation. `name` is
// borrowed until then, too; a time-out shows it. count may exceed INT_MAX. dtype: f32, f64, bf16 or
// f16 (else ISO_ERR_UNSUPPORTED).
iso_status iso_comm_iallreduce(iso_comm *comm, void *data, size_t count, iso_dtype dtype,
                               const char *name, iso_request **out);
// Local. ISO_OK: complete; *request is freed and set to NULL. ISO_PENDING: not yet complete. A NULL
// *request counts as complete, here and in iso_request_wait.
iso_status iso_request_test(iso_request **request);
// Blocks until the exchange completes and drives its progress. Frees *request and sets it to NULL,
// also on errors. Exception: on ISO_ERR_TIMEOUT *request stays valid, because MPI cannot cancel the
// exchange. Wait again, or end the job (MPI_Abort).
iso_status iso_request_wait(iso_request **request);
// In poll mode, tests all requests once. Does nothing in other modes, or if nothing is pending.
void iso_comm_poll(iso_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
