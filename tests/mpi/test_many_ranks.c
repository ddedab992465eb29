// SPDX-License-Identifier: MIT
// What set-up costs on many ranks: its collectives take a number of rounds that grows with the
// logarithm of the ranks. Counts the calls of MPI, and takes from Open MPI's sources which
// algorithm each of them gets. What MPI itself exchanges to create a communicator is not counted,
// but the calls that create one are.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/same_lines.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <isotherm/topology.h>
#include <stdatomic.h>
#include <string.h>

TestSuite(np3_many_ranks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_many_ranks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_many_ranks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_many_ranks_bare, .init = test_mpi_setup_bare, .fini = test_mpi_teardown,
          .timeout = 60);
TestSuite(np5_many_ranks_bare, .init = test_mpi_setup_bare, .fini = test_mpi_teardown,
          .timeout = 60);

// ---- Counting -------------------------------------------------------------------------------------

enum { CHAIN_BYTES = 65536, DIRECT_RANKS = 4 }; // of Open MPI's ibcast and ireduce

static atomic_int calls, slow_calls, rounds, messages, made;

static int log_of(int size) { // rounded up
    int n = 0;
    while (1 << n < size) n++;
    return n;
}

static void count_call(MPI_Comm comm, bool slow, int times) {
    int size;
    PMPI_Comm_size(comm, &size);
    calls++;
    slow_calls += slow && size > 1;
    rounds += slow ? times * (size - 1) : times * log_of(size);
}

static bool is_chained(int count, MPI_Datatype type, MPI_Comm comm) {
    int size, each;
    PMPI_Comm_size(comm, &size);
    PMPI_Type_size(type, &each);
    return size > DIRECT_RANKS && (size_t)count * (size_t)each >= CHAIN_BYTES;
}

static bool takes_ring(int count, MPI_Comm comm) {
    int size, power = 1;
    PMPI_Comm_size(comm, &size);
    while (2 * power <= size) power *= 2;
    return count < power;
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *out) {
    count_call(comm, false, 1);
    return PMPI_Ibarrier(comm, out);
}

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *out) {
    count_call(comm, is_chained(count, type, comm), 1);
    return PMPI_Ibcast(data, count, type, root, comm, out);
}

int MPI_Ireduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root,
                MPI_Comm comm, MPI_Request *out) {
    count_call(comm, is_chained(count, type, comm), 1);
    return PMPI_Ireduce(send, recv, count, type, op, root, comm, out);
}

int MPI_Iallreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *out) {
    count_call(comm, takes_ring(count, comm), 2);
    return PMPI_Iallreduce(send, recv, count, type, op, comm, out);
}

int MPI_Iallgather(const void *send, int send_count, MPI_Datatype send_type, void *recv, int count,
                   MPI_Datatype type, MPI_Comm comm, MPI_Request *out) {
    count_call(comm, true, 1);
    return PMPI_Iallgather(send, send_count, send_type, recv, count, type, comm, out);
}

int MPI_Igather(const void *send, int send_count, MPI_Datatype send_type, void *recv, int count,
                MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *out) {
    count_call(comm, true, 1);
    return PMPI_Igather(send, send_count, send_type, recv, count, type, root, comm, out);
}

int MPI_Ialltoall(const void *send, int send_count, MPI_Datatype send_type, void *recv, int count,
                  MPI_Datatype type, MPI_Comm comm, MPI_Request *out) {
    count_call(comm, true, 1);
    return PMPI_Ialltoall(send, send_count, send_type, recv, count, type, comm, out);
}

// Open MPI agrees on what these make in as many rounds as there are ranks. Other calls that make a
// communicator are not slow.
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    made++;
    return PMPI_Comm_dup(comm, out);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
    made++;
    return PMPI_Comm_split(comm, color, key, out);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out) {
    made++;
    return PMPI_Comm_split_type(comm, type, key, info, out);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out) {
    messages++;
    return PMPI_Isend(data, count, type, to, tag, comm, out);
}

// ---- Set-up ---------------------------------------------------------------------------------------

enum { PARAMS = 12, LONG = 40000, SHORT = 100, LONG_PARAMS = PARAMS / 3 };

static float value[PARAMS][LONG];

static iso_status make_reducer(iso_comm *comm, iso_reducer **out) {
    iso_reducer_param params[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        params[i] = (iso_reducer_param){.name = "p",
                                        .value = value[i],
                                        .count = i % 3 ? SHORT : LONG,
                                        .dtype = ISO_F32,
                                        .layer = i};
    return iso_reducer_create(comm, params, PARAMS, NULL, out);
}

// What a program does before its first step. MPI_Comm part: of the ranks that take part.
static iso_status set_up(MPI_Comm part) {
    iso_comm *comm = NULL;
    iso_topology *topology = NULL;
    iso_reducer *reducer = NULL;
    iso_cores cores;
    iso_status status = iso_comm_create(part, NULL, &comm);
    if (status < 0) return status;
    double sum[2] = {1, 2};
    status = iso_topology_create(comm, NULL, &topology);
    if (status == ISO_OK) status = iso_cores_survey(comm, 1, &cores);
    if (status == ISO_OK) status = iso_comm_check_same(comm, 7, "a number");
    if (status == ISO_OK) status = iso__comm_check_lines(comm, &(iso__lines){.settings = "a: 1\n"});
    if (status == ISO_OK) status = iso_comm_allreduce_f64(comm, sum, 2, ISO_SUM);
    if (status == ISO_OK) status = make_reducer(comm, &reducer);
    iso_reducer_destroy(&reducer);
    iso_topology_destroy(&topology);
    iso_comm_destroy(&comm);
    return status;
}

// A long array is scattered and gathered, in at most 2 log2 P messages of a rank, rounded up for
// ranks beyond a power of two. Of three ranks, Open MPI's own broadcast is direct.
static void sets_up(void) {
    calls = slow_calls = rounds = messages = made = 0;
    iso_status status = set_up(MPI_COMM_WORLD);
    int all[5] = {calls, slow_calls, rounds, messages, made};
    iso_assert_ok(status);
    PMPI_Allreduce(MPI_IN_PLACE, all, 5, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    iso_assert_all(all[0] > 50 && all[1] == 0 && all[2] <= 2 * all[0] * log_of(test_size));
    iso_assert_all(all[3] <= LONG_PARAMS * 2 * log_of(test_size));
    iso_assert_all((all[3] > 0) == (test_size > DIRECT_RANKS));
    iso_assert_all(all[4] == 1); // MPI_Comm_dup of the program's communicator
}

Test(np3_many_ranks_bare, no_collective_of_set_up_is_a_ring_or_a_chain) { sets_up(); }
Test(np5_many_ranks_bare, no_collective_of_set_up_is_a_ring_or_a_chain) { sets_up(); }

// ---- Further communicators ------------------------------------------------------------------------

// All ranks but the last `without`, in the reverse order. NULL: not of this rank.
static MPI_Comm reversed(int without) {
    MPI_Comm part;
    int color = test_rank < test_size - without ? 0 : MPI_UNDEFINED;
    PMPI_Comm_split(MPI_COMM_WORLD, color, -test_rank, &part);
    return part;
}

// Creates one of part, uses it, and destroys it. slow: the slow calls that it took.
static bool creates(MPI_Comm part, int slow) {
    iso_comm *comm = NULL;
    if (part == MPI_COMM_NULL) return true;
    int rank;
    double sum[2] = {test_rank, 1};
    made = 0;
    iso_status status = iso_comm_create(part, NULL, &comm);
    bool right = status == ISO_OK && made == slow;
    PMPI_Comm_rank(part, &rank);
    right = right && iso_comm_rank(comm) == rank;
    right = right && iso_comm_allreduce_f64(comm, sum, 2, ISO_SUM) == ISO_OK;
    int size = comm ? iso_comm_size(comm) : 0;
    right = right && sum[0] == size * (size - 1) / 2 && sum[1] == size;
    iso_comm_destroy(&comm);
    return right;
}

// One whose ranks another iso_comm has is made of that one's MPI communicator, unless it has failed
// on a rank.
static void makes_of_another(void) {
    for (int without = 0; without < test_size - 1; without++) {
        MPI_Comm part = reversed(without);
        iso_assert_all(creates(part, 0));
        test_comm->lost = test_rank == 1;
        iso_assert_all(creates(part, 1));
        test_comm->lost = false;
        iso_assert_all(creates(part, 0));
        if (part != MPI_COMM_NULL) MPI_Comm_free(&part);
    }
}
Test(np3_many_ranks, further_communicators_are_made_of_the_first) { makes_of_another(); }
Test(np5_many_ranks, further_communicators_are_made_of_the_first) { makes_of_another(); }

// Those that lack a rank, or were destroyed, are of no use.
static void makes_of_none(void) {
    iso_comm *part_comm = NULL;
    MPI_Comm part = reversed(1);
    if (part != MPI_COMM_NULL) iso_comm_create(part, NULL, &part_comm);
    iso_assert_all(creates(MPI_COMM_WORLD, 1));
    iso_assert_all(creates(part, 0));
    iso_comm_destroy(&part_comm);
    iso_assert_all(creates(part, 1));
    if (part != MPI_COMM_NULL) MPI_Comm_free(&part);
}
Test(np3_many_ranks_bare, communicators_of_other_ranks_are_not_used) { makes_of_none(); }

// ---- Broadcasts -----------------------------------------------------------------------------------

static char byte_of(size_t i, int seed) { return (char)((i * 2654435761u >> 7) + (size_t)seed); }

static void fill_bytes(char *data, size_t bytes, int seed) {
    for (size_t i = 0; i < bytes; i++) data[i] = byte_of(i, seed);
}

static bool has_bytes(const char *data, size_t bytes, int seed) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != byte_of(i, seed)) return false;
    return true;
}

static void broadcasts_long_arrays(void) {
    enum { MOST = 300007 };
    static char data[MOST + 1];
    const size_t sizes[] = {65535, 65536, 65537, MOST};
    for (int s = 0; s < 4; s++)
        for (int root = 0; root < test_size; root += 2) {
            fill_bytes(data, MOST + 1, test_rank);
            iso_assert_ok(iso_comm_bcast(test_comm, data, sizes[s], root));
            iso_assert_all(has_bytes(data, sizes[s], root));
            iso_assert_all(data[sizes[s]] == byte_of(sizes[s], test_rank));
        }
}

Test(np3_many_ranks, long_broadcasts_of_any_rank) { broadcasts_long_arrays(); }
Test(np5_many_ranks, long_broadcasts_of_any_rank) { broadcasts_long_arrays(); }
Test(np6_many_ranks, long_broadcasts_of_any_rank) { broadcasts_long_arrays(); }

// Arrays that travel alone, several packs of others, and empty ones.
static void broadcasts_lists(void) {
    enum { COUNT = 24, ROOM = 400000 };
    static char data[COUNT][ROOM];
    iso__block block[COUNT];
    bool right = true;
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = i % 5 == 0 ? 0 : i % 7 == 0 ? ROOM : (size_t)(i * 10007);
        block[i] = (iso__block){data[i], bytes};
        fill_bytes(data[i], bytes, 40 * test_rank + i);
    }
    iso_assert_ok(iso__comm_bcast_list(test_comm, block, COUNT));
    for (int i = 0; i < COUNT; i++) right = right && has_bytes(data[i], block[i].bytes, i);
    iso_assert_all(right);
    iso_assert_ok(iso__comm_bcast_list(test_comm, block, 0));
}

Test(np3_many_ranks, lists_of_arrays) { broadcasts_lists(); }
Test(np5_many_ranks, lists_of_arrays) { broadcasts_lists(); }

// ---- Sums -----------------------------------------------------------------------------------------

static double term_of(int rank, int i) { return 1.0 / (3 + 7 * rank + i) * (rank % 2 ? -1e3 : 1); }

// The order that isotherm/comm.h gives: pairs of the first ranks beyond a power of two, then
// neighbours.
static double sum_of_tree(int size, int i) {
    double part[16];
    int power = 1;
    while (2 * power <= size) power *= 2;
    int beyond = size - power;
    for (int v = 0; v < power; v++)
        part[v] = v < beyond ? term_of(2 * v, i) + term_of(2 * v + 1, i) : term_of(v + beyond, i);
    for (; power > 1; power /= 2)
        for (int v = 0; v < power / 2; v++) part[v] = part[2 * v] + part[2 * v + 1];
    return part[0];
}

static void sums_doubles(void) {
    bool known = strstr(iso_comm_algorithm_text(test_comm), "Rabenseifner");
    for (size_t count = 1; count <= 7; count++) {
        double sum[8], first[8];
        bool right = true;
        for (size_t i = 0; i < count; i++) sum[i] = term_of(test_rank, (int)i);
        iso_assert_ok(iso_comm_allreduce_f64(test_comm, sum, count, ISO_SUM));
        memcpy(first, sum, sizeof(sum));
        iso_assert_ok(iso_comm_bcast(test_comm, first, count * sizeof(double), 0));
        iso_assert_all(memcmp(first, sum, count * sizeof(double)) == 0);
        for (size_t i = 0; known && i < count; i++)
            right = right && sum[i] == sum_of_tree(test_size, (int)i);
        iso_assert_all(right);
    }
}

Test(np3_many_ranks, sums_of_doubles_have_one_order) { sums_doubles(); }
Test(np5_many_ranks, sums_of_doubles_have_one_order) { sums_doubles(); }
Test(np6_many_ranks, sums_of_doubles_have_one_order) { sums_doubles(); }
