// SPDX-License-Identifier: MIT
// What a channel asks of MPI, watched and made to fail on the way: the order of chunks, the window,
// errors.
#include "common/balance.h"
#include "common/channel_fixture.h"
#include "common/mpi_fixture.h"
#include "comm/comm_state.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(np1_channel_order, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_channel_order, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
// All-reduces of MPI, whose calls are watched, on three ranks too.
static void setup_rabenseifner(void) {
    setenv("ISO_IALLREDUCE", "3", 1);
    test_mpi_setup();
}

TestSuite(np3_channel_order, .init = setup_rabenseifner, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np1_channel_faults, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np2_channel_faults, .init = test_mpi_setup_bare, .timeout = 60);

// ---- In MPI's place ------------------------------------------------------------------------------------

enum { MOST = 4000, AT_ONCE = 500 };

// The engine's lock guards it all: it holds it in these calls.
static bool watching;
static const void *buffer[MOST]; // in the order of the calls
static int calls;
static MPI_Request handle[AT_ONCE]; // of what is under way, MPI_REQUEST_NULL: free
static size_t length[AT_ONCE];
static size_t under_way, most_under_way; // bytes; those of single chunks excepted
static int fail_call = -1, fail_completion = -1;
static bool pretending; // memory that cannot be touched is summed
static int most_elements;
static size_t total;

static void watch(const void *data, size_t bytes, MPI_Request request) {
    int slot = 0;
    if (calls < MOST) buffer[calls] = data;
    calls++;
    while (slot < AT_ONCE && length[slot] > 0) slot++;
    if (slot == AT_ONCE) return;
    handle[slot] = request;
    length[slot] = bytes;
    bool alone = under_way == 0;
    under_way += bytes;
    if (!alone && under_way > most_under_way) most_under_way = under_way;
}

static void unwatch(MPI_Request request) {
    for (int slot = 0; slot < AT_ONCE; slot++)
        if (length[slot] > 0 && handle[slot] == request) {
            under_way -= length[slot];
            length[slot] = 0;
            return;
        }
}

int MPI_Iallreduce(const void *send, void *data, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    if (!watching || send != MPI_IN_PLACE)
        return PMPI_Iallreduce(send, data, count, type, op, comm, request);
    if (calls == fail_call) return MPI_ERR_INTERN;
    int size, rc = pretending ? PMPI_Ibarrier(comm, request)
                              : PMPI_Iallreduce(send, data, count, type, op, comm, request);
    MPI_Type_size(type, &size);
    most_elements = count > most_elements ? count : most_elements;
    total += (size_t)count * (size_t)size;
    watch(data, (size_t)count * (size_t)size, *request);
    return rc;
}

int MPI_Testsome(int count, MPI_Request *request, int *done, int *index, MPI_Status *status) {
    static MPI_Request before[AT_ONCE];
    if (!watching || count > AT_ONCE) return PMPI_Testsome(count, request, done, index, status);
    memcpy(before, request, (size_t)count * sizeof(*before));
    int rc = PMPI_Testsome(count, request, done, index, status);
    for (int i = 0; *done != MPI_UNDEFINED && i < *done; i++) unwatch(before[index[i]]);
    if (fail_completion < 0 || *done == MPI_UNDEFINED || (fail_completion -= *done) >= 0) return rc;
    for (int i = 0; i < *done; i++) status[i].MPI_ERROR = i == 0 ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
    return MPI_ERR_IN_STATUS;
}

static void start_watching(iso_comm *comm) {
    pthread_mutex_lock(&comm->engine->lock);
    watching = true;
    calls = 0;
    most_under_way = 0;
    pthread_mutex_unlock(&comm->engine->lock);
}

static void stop_watching(iso_comm *comm) {
    pthread_mutex_lock(&comm->engine->lock);
    watching = false;
    pthread_mutex_unlock(&comm->engine->lock);
}

// ---- Order and window ---------------------------------------------------------------------------------

static bool random_round(channel_rig *rig) {
    int order[CHANNEL_ITEMS];
    iso_status status = ISO_OK;
    channel_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0; k++) {
        channel_stumble(rig, 500);
        channel_fill(rig, order[k]);
        status = iso__channel_ready(rig->channel, order[k]);
    }
    for (int i = 0; i < rig->items && status >= 0; i++)
        status = iso__channel_wait(rig->channel, i, NULL, NULL);
    if (status < 0) iso_error_print(stderr);
    return status >= 0;
}

static bool called_in_order(const channel_rig *rig, const iso__chunk *chunk, int count,
                            int rounds) {
    bool right = calls == count * rounds;
    for (int k = 0; k < calls && k < MOST && right; k++) {
        const iso__chunk *p = &chunk[k % count];
        right = buffer[k] == (char *)rig->item[p->item].data + p->offset;
    }
    return right;
}

// Whatever becomes ready first and however slow a rank is, the chunks leave in the order of the
// plan, and no more bytes are under way than the window says.
static void order_is_the_plans(void) {
    static iso__chunk chunk[CHANNEL_CHUNKS];
    enum { ROUNDS = 5, WINDOW = 6000 };
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 8, 2000, false);
    bool window_was_used = false;
    for (int p = 0; p < 10; p++) {
        int count = channel_random_plan(&rig, chunk);
        iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, count, WINDOW));
        // One that lacks a chunk is refused, and this one holds.
        iso_status status = iso__channel_set_plan(rig.channel, chunk, count - 1, WINDOW);
        iso_assert_all(status == ISO_ERR_ARG);
        start_watching(test_comm);
        bool right = true;
        for (int round = 0; round < ROUNDS && right; round++) right = random_round(&rig);
        stop_watching(test_comm);
        iso_assert_all(right && called_in_order(&rig, chunk, count, ROUNDS));
        iso_assert_all(most_under_way <= WINDOW && under_way == 0);
        window_was_used = window_was_used || most_under_way > WINDOW / 2;
    }
    iso_assert_all(window_was_used);
    channel_rig_destroy(&rig);
}

Test(np2_channel_order, order_is_the_plans) { order_is_the_plans(); }
Test(np3_channel_order, order_is_the_plans) { order_is_the_plans(); }

// No MPI call counts more elements than an int can.
Test(np1_channel_order, long_chunks_are_split) {
    size_t bytes = ((size_t)9 << 30) + 4;
    void *data = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert(data != MAP_FAILED);
    const iso__channel_item item = {
        .data = data, .bytes = bytes, .dtype = ISO_F32, .label = "huge"};
    const iso__chunk chunk[] = {{0, 0, bytes - 8}, {0, bytes - 8, 8}};
    iso__channel *channel;
    iso_assert_ok(iso__channel_create(test_comm, &item, 1, SIZE_MAX, SIZE_MAX, &channel));
    pretending = true;
    for (int plan = 0; plan < 2; plan++) {
        if (plan == 1) iso_assert_ok(iso__channel_set_plan(channel, chunk, 2, SIZE_MAX));
        total = 0;
        start_watching(test_comm);
        iso_assert_ok(iso__channel_ready(channel, 0));
        iso_assert_ok(iso__channel_wait(channel, 0, NULL, NULL));
        stop_watching(test_comm);
        cr_expect_eq(calls, 10);
        cr_expect_eq(total, bytes);
        cr_expect_leq(most_elements, 1 << 28);
    }
    iso__channel_destroy(&channel);
    munmap(data, bytes);
}

// ---- Errors -------------------------------------------------------------------------------------------

static bool names_it(iso_status status, const char *text) {
    return status == ISO_ERR_MPI && strstr(iso_last_error()->message, text) != NULL;
}

// The items before it are done, nothing is posted after it, and everything after it says so, again
// and again, whoever met the error: the helper or this thread.
static void check_failed(channel_rig *rig, int error) {
    char why[MPI_MAX_ERROR_STRING] = "", text[2 * MPI_MAX_ERROR_STRING];
    MPI_Error_string(error, why, &(int){0});
    snprintf(text, sizeof(text), "the exchange of \"item 1\" failed: MPI said \"%s\"", why);
    cr_expect_eq(iso__channel_wait(rig->channel, 0, NULL, NULL), ISO_OK);
    cr_expect(channel_is_summed(rig, 0));
    for (int times = 0; times < 2; times++)
        for (int i = 1; i < 3; i++) {
            cr_expect(names_it(iso__channel_wait(rig->channel, i, NULL, NULL), text), "%s",
                      iso_last_error()->message);
            cr_expect(names_it(iso__channel_ready(rig->channel, i), text));
            cr_expect(!iso__channel_is_done(rig->channel, i));
        }
    cr_expect(names_it(iso__channel_ready(rig->channel, 0), text));
}

static void error_of_a_call(iso_progress mode) {
    iso_comm_config config = {.progress = mode};
    iso_comm *comm;
    channel_rig rig;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, &comm));
    channel_rig_create(&rig, comm, 3, 300, false);
    iso__chunk chunk[3];
    for (int i = 0; i < 3; i++) chunk[i] = (iso__chunk){.item = i, .bytes = rig.item[i].bytes};
    iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, 3, 1)); // the second one leaves later
    fail_call = 1;
    start_watching(comm);
    for (int i = 0; i < 3; i++) {
        channel_fill(&rig, i);
        cr_expect(iso__channel_ready(rig.channel, i) >= 0 || calls == 1);
    }
    check_failed(&rig, MPI_ERR_INTERN);
    cr_expect_eq(calls, 1);
    stop_watching(comm);
    channel_rig_destroy(&rig);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    balance_check();
}

// Ranks meet it together.
Test(np1_channel_faults, error_of_a_call_under_the_helper) { error_of_a_call(ISO_PROGRESS_THREAD); }
Test(np2_channel_faults, error_of_a_call_under_the_helper) { error_of_a_call(ISO_PROGRESS_THREAD); }
Test(np2_channel_faults, error_of_a_call_without_it) { error_of_a_call(ISO_PROGRESS_OFF); }

static void error_of_a_completion(iso_progress mode) {
    iso_comm_config config = {.progress = mode};
    iso_comm *comm;
    channel_rig rig;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, &comm));
    channel_rig_create(&rig, comm, 3, 300, false);
    iso__chunk chunk[3];
    for (int i = 0; i < 3; i++) chunk[i] = (iso__chunk){.item = i, .bytes = rig.item[i].bytes};
    iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, 3, 1));
    fail_completion = 1;
    start_watching(comm);
    for (int i = 0; i < 3; i++) {
        channel_fill(&rig, i);
        cr_expect(iso__channel_ready(rig.channel, i) >= 0 || calls == 2);
    }
    check_failed(&rig, MPI_ERR_TRUNCATE);
    cr_expect_eq(calls, 2);
    stop_watching(comm);
    channel_rig_destroy(&rig);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    balance_check();
}

Test(np2_channel_faults, error_of_a_completion_under_the_helper) {
    error_of_a_completion(ISO_PROGRESS_THREAD);
}
Test(np2_channel_faults, error_of_a_completion_without_it) {
    error_of_a_completion(ISO_PROGRESS_OFF);
}

// What is under way when a channel is destroyed stays, so that nobody writes into freed memory; it
// completes later.
Test(np2_channel_faults, destroyed_while_under_way) {
    static float data[64];
    iso__channel *channel;
    const iso__channel_item item = {
        .data = data, .bytes = sizeof(data), .dtype = ISO_F32, .label = "late"};
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    iso_assert_ok(iso__channel_create(comm, &item, 1, 256, 1, &channel));
    if (test_rank == 0) usleep(SLOW); // the slow one
    cr_expect_eq(iso__channel_ready(channel, 0), ISO_OK);
    if (test_rank == 0) cr_expect_eq(iso__channel_wait(channel, 0, NULL, NULL), ISO_OK);
    iso__channel_destroy(&channel);
    cr_expect(channel == NULL);
    iso_comm_destroy(&comm);
    MPI_Finalize(); // completes it
    long long blocks;
    iso_memory_balance(&blocks, NULL, NULL);
    cr_expect(test_rank == 0 ? blocks == 0 : blocks > 0);
}
