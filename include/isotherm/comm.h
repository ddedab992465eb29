// Communicators, non-blocking exchanges, and who drives their progress. The only public header with
// MPI.
#ifndef ISOTHERM_COMM_H
#define ISOTHERM_COMM_H

#include <isotherm/device.h>
// The C++ bindings that some mpi.h still bring along would have to be linked; nothing here uses
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

// Who drives non-blocking collectives during computation (between MPI calls, Open MPI makes no
// progress).
typedef enum iso_progress {
    ISO_PROGRESS_AUTO, // ISO_PROGRESS if set, else thread where MPI gives MPI_THREAD_MULTIPLE, else
                       // poll
    ISO_PROGRESS_OFF,  // nobody: exchanges advance only in waits
    ISO_PROGRESS_POLL, // the calling thread tests between layers
    ISO_PROGRESS_THREAD // a helper that sleeps between tests; idle (blocked) when nothing is in
                        // flight
} iso_progress;
// "auto", "off", "poll", "thread".
iso_status iso_progress_parse(const char *name, iso_progress *out);
const char *iso_progress_name(iso_progress mode);

typedef struct iso_comm iso_comm; // shared: create gives one reference, retain adds, destroy drops

typedef struct iso_comm_config {
    iso_progress
        progress;     // first communicator of the process decides; it is one engine per process
    double timeout_s; // a wait longer than this is ISO_ERR_TIMEOUT naming what is pending; 0:
                      // ISO_TIMEOUT
} iso_comm_config;

// Collective over mpi_comm. Duplicates it (errors on the duplicate are returned, not fatal), so
// that nothing the caller sends there can meet our messages. config may be NULL. MPI must be
// initialised; for the thread mode with MPI_THREAD_MULTIPLE. Works on one rank and without mpirun.
// ISO_ERR_STATE if the mpirun of another MPI started several processes, each of which is alone.
// Checks every ISO_* environment variable (iso_env_print lists them): a bad value on any rank is
// ISO_ERR_ARG on all; ISO_ERR_MISMATCH names variable, values and ranks where ranks differ in one
// that decides how they exchange (ISO_IALLREDUCE, ISO_NODE_COLLECTIVE, ISO_RANKS_PER_NODE) or what
// bits they compute (ISO_CPU_KERNELS, ISO_CUDA_CONV). If no rank sets one of the last two, each
// rank uses what is best on its machine. A warning names unknown variables. ISO_ERR_TIMEOUT if not
// all ranks call this in time; see the blocking collectives below. Destroying a communicator is
// collective, too. MPI_Finalize may be called while communicators are still alive.
iso_status iso_comm_create(MPI_Comm mpi_comm, const iso_comm_config *config, iso_comm **out);
// The same for a communicator of a Fortran program: an integer, of mpi_f08 its component MPI_VAL.
iso_status iso_comm_create_fortran(int mpi_comm, const iso_comm_config *config, iso_comm **out);
iso_comm *iso_comm_retain(iso_comm *comm);
void iso_comm_destroy(iso_comm **comm);

int iso_comm_rank(const iso_comm *comm);
int iso_comm_size(const iso_comm *comm);
MPI_Comm iso_comm_mpi(const iso_comm *comm); // borrowed
// The mode in force and why, e.g. "thread (MPI_THREAD_MULTIPLE)"; the all-reduce algorithm and why.
const char *iso_comm_progress_text(const iso_comm *comm);
const char *iso_comm_algorithm_text(const iso_comm *comm);
iso_progress iso_comm_progress(const iso_comm *comm);

typedef enum iso_reduce { ISO_SUM, ISO_MAX, ISO_MIN } iso_reduce;

// Blocking collectives on host memory. Every rank calls them with the same arguments. A rank that
// waits longer than the time-out gets ISO_ERR_TIMEOUT. MPI cannot cancel the collective, so end the
// job (MPI_Abort): memory that MPI still uses is never freed, buffers of more than 64 KiB and all
// data of iso_comm_gather stay in use, and later collectives on the communicator do not wait but
// return ISO_ERR_TIMEOUT unless they complete at once.
iso_status iso_comm_barrier(iso_comm *comm);
iso_status iso_comm_bcast(iso_comm *comm, void *data, size_t bytes, int root);
iso_status iso_comm_allreduce_f64(iso_comm *comm, double *data, size_t count, iso_reduce op);
iso_status iso_comm_allreduce_i64(iso_comm *comm, int64_t *data, size_t count, iso_reduce op);
// Gathers each rank's bytes (any length, any size_t) on root, in rank order: *out is a new buffer
// of the concatenation with sizes[rank] in *sizes; both NULL elsewhere. Free both with
// iso_comm_free.
iso_status iso_comm_gather(iso_comm *comm, const void *data, size_t bytes, int root, char **out,
                           size_t **sizes);
void iso_comm_free(void *data);
// Collective verdict on `mine` of every rank: ISO_OK if all ranks pass ISO_OK, otherwise an error
// on every rank. A failing rank gets its own error; the others get one that names the lowest
// failing rank and repeats its message.
iso_status iso_comm_agree(iso_comm *comm, iso_status mine);
// Collective check that all ranks pass the same number, such as a checksum of the data that each
// has read. If not, ISO_ERR_MISMATCH on every rank, with the same message: it begins with `what`
// ("the training set of mnist") and lists the ranks that do not have rank 0's number.
iso_status iso_comm_check_same(iso_comm *comm, uint64_t number, const char *what);

// ---- Bytes ----------------------------------------------------------------------------------------

// What training moves: bytes that ranks send one another, between nodes and inside them, by
// messages, through shared memory or by NCCL. All counts of bytes sent follow this definition. They
// include gradients, parameters, optimizer state, buffers and the statistics of synchronised batch
// norms, in the type in which they travel, with padding. They exclude message headers, small
// agreements (verdicts, counts, plans), everything before the first step, evaluation (the mean of
// parameters that it shows, buffers that it makes equal) and exchanges that only measure time.
//
// A sum of n bytes over P ranks (an all-reduce) counts 2 (P - 1) n bytes in all. MPI chooses who
// sends how much of it, so each rank counts a share, and only the sum over all ranks is meaningful.
// Where Open MPI's algorithm moves more, more is counted: Rabenseifner's, which is used unless
// ISO_IALLREDUCE says otherwise, moves 5/2 n instead of 2 n for each rank beyond a power of two
// (three ranks: 9/2 n instead of 4 n); recursive doubling moves n for each rank in each round. How
// much of a sum travels between nodes follows from where its ranks are; of an MPI library that does
// not tell its algorithm, a ring is assumed. In memory that ranks share, and by NCCL, a sum is
// 2 (P - 1) n bytes inside the node. A mean of n bytes over P nodes, as daso makes it, is
// 2 (P - 1) n bytes; what one rank gives to P - 1 others is (P - 1) n.
typedef struct iso_traffic {
    int64_t bytes_sent;          // by this rank: its share
    int64_t bytes_between_nodes; // of that, to other nodes
} iso_traffic;

// ---- Non-blocking all-reduce ----------------------------------------------------------------------

typedef struct iso_request iso_request;

// Collective: every rank of comm must issue the same exchanges in the same order. Sums `data` in
// place. The buffer belongs to the operation until the request completes. `name` (kept by
// reference) is shown when a wait times out. count may exceed INT_MAX.
iso_status iso_comm_iallreduce(iso_comm *comm, void *data, size_t count, iso_dtype dtype,
                               const char *name, iso_request **out);
// Local. ISO_OK: complete, *request is released and NULL. ISO_PENDING: not yet.
iso_status iso_request_test(iso_request **request);
// Blocks and drives progress. Releases *request, on errors too. Only on ISO_ERR_TIMEOUT does
// *request stay valid, because MPI cannot cancel the exchange: wait again, or end the job
// (MPI_Abort).
iso_status iso_request_wait(iso_request **request);
// Poll mode: one round of tests. Does nothing in the other modes, or when nothing is in flight.
void iso_comm_poll(iso_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
