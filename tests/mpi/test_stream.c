// Sums of streams on 1 to 4 ranks, under random plans and windows, with ranks of random speed.
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"
#include "common/stream_fixture.h"

#include <criterion/criterion.h>

static void setup_poll(void) {
    setenv("ISO_PROGRESS", "poll", 1);
    test_mpi_setup();
}
static void setup_off(void) {
    setenv("ISO_PROGRESS", "off", 1);
    test_mpi_setup();
}

TestSuite(np1_stream, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_stream, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_stream, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_stream, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_stream_poll, .init = setup_poll, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_stream_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_stream_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);

// ---- Sums -------------------------------------------------------------------------------------------

// Waits or tests until it is done.
static iso_status complete(stream_rig *rig, int item) {
    iso_status status = ISO_PENDING;
    for (int tries = (int)stream_draw_mine(rig, 4); tries > 0 && status == ISO_PENDING; tries--)
        status = iso__stream_test(rig->stream, item);
    return status == ISO_PENDING ? iso__stream_wait(rig->stream, item, NULL, NULL) : status;
}

static iso_status give(stream_rig *rig, int item) {
    stream_stumble(rig, 300);
    stream_fill(rig, item);
    return iso__stream_ready(rig->stream, item);
}

// One round after the other; each rank makes items ready in an order and at a speed of its own.
static bool random_round(stream_rig *rig) {
    int order[STREAM_ITEMS];
    iso_status status = ISO_OK;
    stream_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0; k++) status = give(rig, order[k]);
    stream_shuffle_mine(rig, order, rig->items);
    bool right = true;
    for (int k = 0; k < rig->items && status >= 0; k++) {
        status = complete(rig, order[k]);
        right = right && status == ISO_OK && stream_is_summed(rig, order[k]);
    }
    if (status < 0) iso_error_print(stderr);
    return right && status == ISO_OK;
}

static void random_plans(int items, bool shared, int plans) {
    static iso__part part[STREAM_PARTS];
    stream_rig rig;
    stream_rig_create(&rig, test_comm, items, 21000 / (size_t)items, shared);
    bool right = random_round(&rig); // the plan to begin with
    for (int p = 0; p < plans && right; p++) {
        int count = stream_random_plan(&rig, part);
        const size_t windows[] = {1, 3000, 20000, SIZE_MAX};
        iso_status status =
            iso__stream_set_plan(rig.stream, part, count, windows[stream_draw(&rig, 4)]);
        right = status == ISO_OK && iso__stream_parts(rig.stream) == count;
        for (int round = 0; round < 3 && right; round++) right = random_round(&rig);
    }
    iso_assert_all(right);
    stream_rig_destroy(&rig);
}

// The next round's items are made ready while others of this round are under way: a rank may be
// nearly a round ahead of another. No rank waits for ever, and nothing is mixed up.
static bool pipelined_round(stream_rig *rig, bool last) {
    iso_status status = ISO_OK;
    bool right = true;
    int order[STREAM_ITEMS];
    stream_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0 && right; k++) {
        status = complete(rig, order[k]);
        right = status == ISO_OK && stream_is_summed(rig, order[k]);
        stream_stumble(rig, 300);
        if (!right || last || stream_draw_mine(rig, 2)) continue;
        status = give(rig, order[k]);
        order[k] = -1;
    }
    for (int k = 0; k < rig->items && status >= 0 && !last; k++)
        if (order[k] >= 0) status = give(rig, order[k]);
    if (status < 0) iso_error_print(stderr);
    return right && status >= 0;
}

static void ranks_of_random_speed(bool shared, int plans) {
    static iso__part part[STREAM_PARTS];
    stream_rig rig;
    stream_rig_create(&rig, test_comm, 9, 1000, shared);
    bool right = true;
    for (int p = 0; p < plans && right; p++) {
        int count = stream_random_plan(&rig, part);
        const size_t windows[] = {1, 2000, SIZE_MAX};
        right = iso__stream_set_plan(rig.stream, part, count, windows[p % 3]) == ISO_OK;
        for (int i = 0; i < rig.items && right; i++) right = give(&rig, i) == ISO_OK;
        for (int round = 0; round < 40 && right; round++)
            right = pipelined_round(&rig, round == 39);
    }
    iso_assert_all(right);
    stream_rig_destroy(&rig);
}

Test(np2_stream, ranks_of_random_speed) { ranks_of_random_speed(false, 12); }
Test(np3_stream, ranks_of_random_speed) { ranks_of_random_speed(false, 9); }
Test(np4_stream, ranks_of_random_speed) { ranks_of_random_speed(false, 6); }
Test(np3_stream, ranks_of_random_speed_in_shared_memory) { ranks_of_random_speed(true, 9); }
Test(np3_stream_poll, ranks_of_random_speed) { ranks_of_random_speed(false, 6); }
Test(np4_stream_off, ranks_of_random_speed) { ranks_of_random_speed(true, 6); }

Test(np1_stream, sums_under_random_plans) { random_plans(7, false, 20); }
Test(np2_stream, sums_under_random_plans) { random_plans(7, false, 100); }
Test(np3_stream, sums_under_random_plans) { random_plans(7, false, 30); }
Test(np4_stream, sums_under_random_plans) { random_plans(7, false, 20); }
Test(np3_stream_poll, sums_under_random_plans) { random_plans(7, false, 30); }
Test(np2_stream_off, sums_under_random_plans) { random_plans(7, false, 50); }
Test(np2_stream, sums_of_many_items) { random_plans(STREAM_ITEMS, false, 20); }
Test(np3_stream, sums_of_many_items) { random_plans(STREAM_ITEMS, true, 10); }
Test(np2_stream, sums_in_shared_memory) { random_plans(7, true, 100); }
Test(np3_stream_poll, sums_in_shared_memory) { random_plans(7, true, 30); }
Test(np4_stream_off, sums_in_shared_memory) { random_plans(7, true, 20); }

// ---- Two streams and other exchanges in one memory ------------------------------------------------------

enum { EACH = 4, LENGTH = 3000, OTHER = 2 * EACH, ACTIONS = 2 * EACH + 1 };

typedef struct pair {
    stream_rig draws; // random numbers only
    iso__stream *stream[2];
    float *memory;
    iso_request *other;
} pair;

static void create_pair(pair *x) {
    *x = (pair){.memory = shared_create(test_comm, ACTIONS * LENGTH)};
    iso__stream_item item[2 * EACH];
    for (int i = 0; i < 2 * EACH; i++)
        item[i] = (iso__stream_item){x->memory + i * LENGTH, LENGTH * sizeof(float), ISO_F32, "x"};
    iso_assert_ok(iso__stream_create(test_comm, item, EACH, LENGTH, SIZE_MAX, &x->stream[0]));
    iso_assert_ok(iso__stream_create(test_comm, item + EACH, EACH, 500, 1000, &x->stream[1]));
}

static iso_status start(pair *x, int action, int round) {
    float *data = x->memory + action * LENGTH;
    stream_stumble(&x->draws, 300);
    shared_fill(data, LENGTH, ACTIONS * round + action);
    return action == OTHER
               ? iso_comm_iallreduce(test_comm, data, LENGTH, ISO_F32, "other", &x->other)
               : iso__stream_ready(x->stream[action / EACH], action % EACH);
}

static iso_status finish(pair *x, int action) {
    return action == OTHER ? iso_request_wait(&x->other)
                           : iso__stream_wait(x->stream[action / EACH], action % EACH, NULL, NULL);
}

// Each rank starts and waits in an order of its own. The sums are those of shared memory, in the
// order of the ranks.
static void two_streams_in_one_memory(int rounds) {
    pair x;
    int order[ACTIONS];
    create_pair(&x);
    for (int round = 0; round < rounds; round++) {
        iso_status status = ISO_OK;
        bool right = true;
        stream_shuffle_mine(&x.draws, order, ACTIONS);
        for (int k = 0; k < ACTIONS && status >= 0; k++) status = start(&x, order[k], round);
        stream_shuffle_mine(&x.draws, order, ACTIONS);
        for (int k = 0; k < ACTIONS && status >= 0; k++) status = finish(&x, order[k]);
        for (int k = 0; k < ACTIONS; k++)
            right = right && shared_is_summed(x.memory + k * LENGTH, LENGTH, ACTIONS * round + k);
        iso_assert_ok(status);
        iso_assert_all(right);
    }
    iso__stream_destroy(&x.stream[0]);
    iso__stream_destroy(&x.stream[1]);
    shared_destroy(test_comm, &x.memory);
}

Test(np2_stream, two_streams_in_one_memory) { two_streams_in_one_memory(100); }
Test(np3_stream, two_streams_in_one_memory) { two_streams_in_one_memory(50); }
Test(np3_stream_poll, two_streams_in_one_memory) { two_streams_in_one_memory(50); }
Test(np4_stream_off, two_streams_in_one_memory) { two_streams_in_one_memory(30); }

// More than there are queues: the last ones send messages. A queue that was left is taken again.
enum { STREAMS = ISO_QUEUES + 2 };

static void create_one(float *memory, iso__stream **out) {
    const iso__stream_item item = {memory, LENGTH * sizeof(float), ISO_F32, "x"};
    iso_assert_ok(iso__stream_create(test_comm, &item, 1, 500, 1000, out));
}

static void use_all(iso__stream **stream, float *memory, int round) {
    iso_status status = ISO_OK;
    for (int k = 0; k < STREAMS && status >= 0; k++) {
        int i = test_rank ? STREAMS - 1 - k : k; // in opposite order
        shared_fill(memory + i * LENGTH, LENGTH, round * STREAMS + i);
        status = iso__stream_ready(stream[i], 0);
    }
    bool right = true;
    for (int i = 0; i < STREAMS && status >= 0; i++) {
        status = iso__stream_wait(stream[i], 0, NULL, NULL);
        right = right && shared_is_summed(memory + i * LENGTH, LENGTH, round * STREAMS + i);
    }
    iso_assert_ok(status);
    iso_assert_all(right);
}

Test(np2_stream, more_streams_than_queues) {
    float *memory = shared_create(test_comm, STREAMS * LENGTH);
    iso__stream *stream[STREAMS];
    for (int i = 0; i < STREAMS; i++) create_one(memory + i * LENGTH, &stream[i]);
    for (int round = 0; round < 20; round++) {
        use_all(stream, memory, round);
        int left = round * 3 % STREAMS;
        iso__stream_destroy(&stream[left]);
        create_one(memory + left * LENGTH, &stream[left]);
    }
    for (int i = 0; i < STREAMS; i++) iso__stream_destroy(&stream[i]);
    shared_destroy(test_comm, &memory);
}
