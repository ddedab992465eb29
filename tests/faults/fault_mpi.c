// SPDX-License-Identifier: MIT
// The MPI functions that the library and its programs call.
#include "fault_shim.h"

#include <mpi.h>

#define WRAP_AS(kind, name, parameters, arguments)                                                 \
    int name parameters {                                                                          \
        if (FAULT_DUE(kind, #name)) return fault_mpi_error(__builtin_return_address(0));           \
        return P##name arguments;                                                                  \
    }
#define WRAP(name, parameters, arguments) WRAP_AS(FAULT_MPI, name, parameters, arguments)
#define POLL(name, parameters, arguments) WRAP_AS(FAULT_POLL, name, parameters, arguments)

// ---- Polls ----------------------------------------------------------------------------------------

POLL(MPI_Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status))
POLL(MPI_Testall, (int count, MPI_Request *requests, int *flag, MPI_Status *statuses),
     (count, requests, flag, statuses))
POLL(MPI_Testsome,
     (int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses),
     (count, requests, done, indices, statuses))
POLL(MPI_Improbe,
     (int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
     (source, tag, comm, flag, message, status))
POLL(MPI_T_cvar_get_info,
     (int index, char *name, int *name_length, int *verbosity, MPI_Datatype *type,
      MPI_T_enum *values, char *text, int *text_length, int *bind, int *scope),
     (index, name, name_length, verbosity, type, values, text, text_length, bind, scope))

// ---- Messages -------------------------------------------------------------------------------------

WRAP(MPI_Wait, (MPI_Request * request, MPI_Status *status), (request, status))
WRAP(MPI_Cancel, (MPI_Request * request), (request))
WRAP(MPI_Get_count, (const MPI_Status *status, MPI_Datatype type, int *count),
     (status, type, count))
WRAP(MPI_Isend,
     (const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
      MPI_Request *request),
     (from, count, type, to, tag, comm, request))
WRAP(MPI_Issend,
     (const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
      MPI_Request *request),
     (from, count, type, to, tag, comm, request))
WRAP(MPI_Irecv,
     (void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
      MPI_Request *request),
     (into, count, type, from, tag, comm, request))
WRAP(MPI_Imrecv,
     (void *into, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
     (into, count, type, message, request))

// ---- Collectives ----------------------------------------------------------------------------------

WRAP(MPI_Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request))
WRAP(MPI_Ibcast,
     (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),
     (data, count, type, root, comm, request))
WRAP(MPI_Ireduce,
     (const void *from, void *into, int count, MPI_Datatype type, MPI_Op op, int root,
      MPI_Comm comm, MPI_Request *request),
     (from, into, count, type, op, root, comm, request))
WRAP(MPI_Iallreduce,
     (const void *from, void *into, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
      MPI_Request *request),
     (from, into, count, type, op, comm, request))
WRAP(MPI_Iallgather,
     (const void *from, int count, MPI_Datatype type, void *into, int each, MPI_Datatype its,
      MPI_Comm comm, MPI_Request *request),
     (from, count, type, into, each, its, comm, request))
WRAP(MPI_Ialltoall,
     (const void *from, int count, MPI_Datatype type, void *into, int each, MPI_Datatype its,
      MPI_Comm comm, MPI_Request *request),
     (from, count, type, into, each, its, comm, request))
WRAP(MPI_Igather,
     (const void *from, int count, MPI_Datatype type, void *into, int each, MPI_Datatype its,
      int root, MPI_Comm comm, MPI_Request *request),
     (from, count, type, into, each, its, root, comm, request))

// ---- Communicators and groups ---------------------------------------------------------------------

WRAP(MPI_Comm_rank, (MPI_Comm comm, int *rank), (comm, rank))
WRAP(MPI_Comm_size, (MPI_Comm comm, int *size), (comm, size))
WRAP(MPI_Comm_compare, (MPI_Comm a, MPI_Comm b, int *result), (a, b, result))
WRAP(MPI_Comm_dup, (MPI_Comm comm, MPI_Comm *out), (comm, out))
WRAP(MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *out), (comm, color, key, out))
WRAP(MPI_Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out),
     (comm, type, key, info, out))
WRAP(MPI_Comm_create_group, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *out),
     (comm, group, tag, out))
WRAP(MPI_Comm_free, (MPI_Comm * comm), (comm))
WRAP(MPI_Comm_set_errhandler, (MPI_Comm comm, MPI_Errhandler handler), (comm, handler))
WRAP(MPI_Comm_create_keyval,
     (MPI_Comm_copy_attr_function * copy, MPI_Comm_delete_attr_function *end, int *key,
      void *state),
     (copy, end, key, state))
WRAP(MPI_Comm_get_attr, (MPI_Comm comm, int key, void *value, int *flag), (comm, key, value, flag))
WRAP(MPI_Comm_set_attr, (MPI_Comm comm, int key, void *value), (comm, key, value))
WRAP(MPI_Comm_group, (MPI_Comm comm, MPI_Group *group), (comm, group))
WRAP(MPI_Group_incl, (MPI_Group group, int count, const int *ranks, MPI_Group *out),
     (group, count, ranks, out))
WRAP(MPI_Group_translate_ranks,
     (MPI_Group group, int count, const int *ranks, MPI_Group other, int *out),
     (group, count, ranks, other, out))
WRAP(MPI_Group_free, (MPI_Group * group), (group))

// ---- Types, operations, and what MPI tells --------------------------------------------------------

WRAP(MPI_Type_contiguous, (int count, MPI_Datatype type, MPI_Datatype *out), (count, type, out))
WRAP(MPI_Type_create_resized, (MPI_Datatype type, MPI_Aint low, MPI_Aint bytes, MPI_Datatype *out),
     (type, low, bytes, out))
WRAP(MPI_Type_commit, (MPI_Datatype * type), (type))
WRAP(MPI_Type_free, (MPI_Datatype * type), (type))
WRAP(MPI_Op_create, (MPI_User_function * function, int commutes, MPI_Op *op),
     (function, commutes, op))
WRAP(MPI_Op_free, (MPI_Op * op), (op))
WRAP(MPI_Query_thread, (int *level), (level))
WRAP(MPI_Get_processor_name, (char *name, int *length), (name, length))
WRAP(MPI_T_init_thread, (int required, int *provided), (required, provided))
WRAP(MPI_T_finalize, (void), ())
WRAP(MPI_T_cvar_get_num, (int *count), (count))
WRAP(MPI_T_cvar_handle_alloc, (int index, void *object, MPI_T_cvar_handle *handle, int *count),
     (index, object, handle, count))
WRAP(MPI_T_cvar_handle_free, (MPI_T_cvar_handle * handle), (handle))
WRAP(MPI_T_cvar_read, (MPI_T_cvar_handle handle, void *value), (handle, value))
WRAP(MPI_T_cvar_write, (MPI_T_cvar_handle handle, const void *value), (handle, value))
