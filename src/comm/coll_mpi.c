// What is asked of the MPI library itself: element types, error texts, the all-reduce algorithm.
#include "comm/comm_impl.h"

#include <string.h>

#define ALGORITHM_VARIABLE "coll_libnbc_iallreduce_algorithm"

MPI_Datatype iso__mpi_type(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return MPI_FLOAT;
    case ISO_F64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL; // 16-bit sums need an operation of our own
    }
}

iso_status iso__mpi_error(int rc, const char *call, const char *function, const char *file,
                          int line) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(rc, text, &length);
    return iso__error(ISO_ERR_MPI, function, file, line, "MPI said \"%.*s\" in %.80s", length, text,
                      call);
}

static const char *algorithm_name(int value) {
    static const char *const name[] = {"Open MPI's own choice", "ring", "binomial", "Rabenseifner",
                                       "recursive doubling"};
    return value >= 0 && value < 5 ? name[value] : "unknown";
}

static bool find_variable(int *index) {
    int count = 0;
    if (MPI_T_cvar_get_num(&count) != MPI_SUCCESS) return false;
    for (int i = 0; i < count; i++) {
        char name[128];
        int room = sizeof(name), verbosity, bind, scope;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_T_cvar_get_info(i, name, &room, &verbosity, &type, &values, NULL, NULL, &bind,
                                &scope) != MPI_SUCCESS)
            continue;
        if (strcmp(name, ALGORITHM_VARIABLE) != 0) continue;
        *index = i;
        return true;
    }
    return false;
}

static void set_variable(int index, int wanted, char *text, size_t room) {
    MPI_T_cvar_handle handle;
    int count, value = 0;
    if (MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS || count != 1) {
        snprintf(text, room, "MPI's own choice (" ALGORITHM_VARIABLE " cannot be accessed)");
        return;
    }
    MPI_T_cvar_read(handle, &value);
    const char *why = "set through MPI_T: fewest bytes, same bits in chunks";
    if (value == wanted)
        why = wanted ? "set before" : "ISO_IALLREDUCE";
    else if (value != 0)
        why = "set by the user"; // OMPI_MCA_ variable, --mca or a parameter file
    else if (MPI_T_cvar_write(handle, &wanted) != MPI_SUCCESS)
        why = "MPI refused another";
    MPI_T_cvar_read(handle, &value);
    snprintf(text, room, "%d, %s (%s)", value, algorithm_name(value), why);
    MPI_T_cvar_handle_free(&handle);
}

void iso__choose_algorithm(char *text, size_t room) {
    double wanted = 3;
    if (iso__env_number(ISO_ENV_IALLREDUCE, 0, 4, 3, &wanted) < 0)
        iso__log(ISO_LOG_WARN, "%s", iso_last_error()->message);
    int level, index;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) {
        snprintf(text, room, "MPI's own choice (no MPI_T)");
        return;
    }
    if (getenv("OMPI_MCA_" ALGORITHM_VARIABLE))
        snprintf(text, room, "%s (set by the user)", getenv("OMPI_MCA_" ALGORITHM_VARIABLE));
    else if (find_variable(&index))
        set_variable(index, (int)wanted, text, room);
    else
        snprintf(text, room, "MPI's own choice (it has no " ALGORITHM_VARIABLE ")");
    MPI_T_finalize();
}
