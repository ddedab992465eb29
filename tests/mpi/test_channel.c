// SPDX-License-Identifier: MIT
// Sums of channels on 1 to 4 ranks, under random plans and windows, with ranks of random speed.
#include "common/channel_fixture.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"
#include "comm/comm_state.h"

#include <criterion/criterion.h>

static void setup_poll(void) {
    setenv("ISO_PROGRESS", "poll", 1);
    test_mpi_setup();
}
static void setup_off(void) {
    setenv("ISO_PROGRESS", "off", 1);
    test_mpi_setup();
}

TestSuite(np1_channel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_channel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_channel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_channel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_channel_poll, .init = setup_poll, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_channel_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_channel_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);

// ---- Sums -------------------------------------------------------------------------------------------

static void random_plans(int items, bool shared, int plans) {
    static iso__chunk chunk[CHANNEL_CHUNKS];
    channel_rig rig;
    channel_rig_create(&rig, test_comm, items, 21000 / (size_t)items, shared);
    bool right = channel_random_round(&rig); // the plan to begin with
    for (int p = 0; p < plans && right; p++) {
        int count = channel_random_plan(&rig, chunk);
        const size_t windows[] = {1, 3000, 20000, SIZE_MAX};
        iso_status status =
            iso__channel_set_plan(rig.channel, chunk, count, windows[channel_draw(&rig, 4)]);
        right = status == ISO_OK;
        for (int round = 0; round < 3 && right; round++) right = channel_random_round(&rig);
    }
    iso_assert_all(right);
    channel_rig_destroy(&rig);
}

// The next round's items are made ready while others of this round are under way: a rank may be
// nearly a round ahead of another. No rank waits for ever, and nothing is mixed up.
static bool pipelined_round(channel_rig *rig, bool last) {
    iso_status status = ISO_OK;
    bool right = true;
    int order[CHANNEL_ITEMS];
    channel_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0 && right; k++) {
        status = channel_complete(rig, order[k]);
        right = status == ISO_OK && channel_is_summed(rig, order[k]);
        channel_stumble(rig, 300);
        if (!right || last || channel_draw_mine(rig, 2)) continue;
        status = channel_give(rig, order[k]);
        order[k] = -1;
    }
    for (int k = 0; k < rig->items && status >= 0 && !last; k++)
        if (order[k] >= 0) status = channel_give(rig, order[k]);
    if (status < 0) iso_error_print(stderr);
    return right && status >= 0;
}

static void ranks_of_random_speed(bool shared, int plans) {
    static iso__chunk chunk[CHANNEL_CHUNKS];
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 9, 1000, shared);
    bool right = true;
    for (int p = 0; p < plans && right; p++) {
        int count = channel_random_plan(&rig, chunk);
        const size_t windows[] = {1, 2000, SIZE_MAX};
        right = iso__channel_set_plan(rig.channel, chunk, count, windows[p % 3]) == ISO_OK;
        for (int i = 0; i < rig.items && right; i++) right = channel_give(&rig, i) == ISO_OK;
        for (int round = 0; round < 40 && right; round++)
            right = pipelined_round(&rig, round == 39);
    }
    iso_assert_all(right);
    channel_rig_destroy(&rig);
}

Test(np2_channel, ranks_of_random_speed) { ranks_of_random_speed(false, 12); }
Test(np3_channel, ranks_of_random_speed) { ranks_of_random_speed(false, 9); }
Test(np4_channel, ranks_of_random_speed) { ranks_of_random_speed(false, 6); }
Test(np3_channel, ranks_of_random_speed_in_shared_memory) { ranks_of_random_speed(true, 9); }
Test(np3_channel_poll, ranks_of_random_speed) { ranks_of_random_speed(false, 6); }
Test(np4_channel_off, ranks_of_random_speed) { ranks_of_random_speed(true, 6); }

Test(np1_channel, sums_under_random_plans) { random_plans(7, false, 20); }
Test(np2_channel, sums_under_random_plans) { random_plans(7, false, 100); }
Test(np3_channel, sums_under_random_plans) { random_plans(7, false, 30); }
Test(np4_channel, sums_under_random_plans) { random_plans(7, false, 20); }
Test(np3_channel_poll, sums_under_random_plans) { random_plans(7, false, 30); }
Test(np2_channel_off, sums_under_random_plans) { random_plans(7, false, 50); }
Test(np2_channel, sums_of_many_items) { random_plans(CHANNEL_ITEMS, false, 20); }
Test(np3_channel, sums_of_many_items) { random_plans(CHANNEL_ITEMS, true, 10); }
Test(np2_channel, sums_in_shared_memory) { random_plans(7, true, 100); }
Test(np3_channel_poll, sums_in_shared_memory) { random_plans(7, true, 30); }
Test(np4_channel_off, sums_in_shared_memory) { random_plans(7, true, 20); }

// ---- Phases -----------------------------------------------------------------------------------------

// Every third item is of phase 1, and becomes ready when the one before it has come.
static int phase_of(int item) { return item % 3 == 1; }

static void create_phased(channel_rig *rig, bool shared) {
    channel_rig_create(rig, test_comm, 9, 1000, shared);
    iso__channel_destroy(&rig->channel);
    for (int i = 0; i < rig->items; i++) rig->item[i].phase = phase_of(i);
    iso_assert_ok(iso__channel_create(test_comm, rig->item, rig->items, 400, 1000, &rig->channel));
}

// A random plan, of which each phase keeps its order.
static int phased_plan(channel_rig *rig, iso__chunk *chunk) {
    static iso__chunk mixed[CHANNEL_CHUNKS];
    int count = channel_random_plan(rig, mixed), n = 0;
    for (int phase = 0; phase < 2; phase++)
        for (int k = 0; k < count; k++)
            if (phase_of(mixed[k].item) == phase) chunk[n++] = mixed[k];
    return count;
}

// given: what was made ready in the round before. ahead: some items of phase 0 are, for the next
// round, while others of this one are under way.
static iso_status phased_round(channel_rig *rig, bool *given, bool ahead) {
    int order[CHANNEL_ITEMS];
    iso_status status = ISO_OK;
    channel_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0; k++)
        if (phase_of(order[k]) == 0 && !given[order[k]]) status = channel_give(rig, order[k]);
    channel_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0; k++) {
        int i = order[k];
        if (phase_of(i) == 1) continue;
        status = channel_complete(rig, i);
        if (status >= 0 && !channel_is_summed(rig, i)) return ISO_ERR_STATE;
        if (status >= 0 && phase_of(i + 1) == 1) status = channel_give(rig, i + 1);
        given[i] = ahead && channel_draw_mine(rig, 2);
        if (status >= 0 && given[i]) status = channel_give(rig, i);
    }
    for (int k = 0; k < rig->items && status >= 0; k++) {
        if (phase_of(order[k]) == 0) continue;
        status = channel_complete(rig, order[k]);
        if (status >= 0 && !channel_is_summed(rig, order[k])) return ISO_ERR_STATE;
    }
    return status;
}

static void phases_follow_one_another(bool shared, int plans) {
    static iso__chunk chunk[CHANNEL_CHUNKS];
    bool given[CHANNEL_ITEMS] = {false};
    channel_rig rig;
    create_phased(&rig, shared);
    for (int p = 0; p < plans; p++) {
        const size_t windows[] = {1, 2000, SIZE_MAX};
        for (int round = 0; round < 10; round++)
            iso_assert_ok(phased_round(&rig, given, round < 9));
        int count = phased_plan(&rig, chunk);
        iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, count, windows[p % 3]));
    }
    channel_rig_destroy(&rig);
}

Test(np2_channel, phases_follow_one_another) { phases_follow_one_another(false, 20); }
Test(np3_channel, phases_follow_one_another) { phases_follow_one_another(false, 10); }
Test(np3_channel, phases_follow_one_another_in_shared_memory) {
    phases_follow_one_another(true, 10);
}
Test(np2_channel_off, phases_follow_one_another) { phases_follow_one_another(true, 10); }

// ---- Two channels and other exchanges in one memory ------------------------------------------------------

enum { EACH = 4, LENGTH = 3000, OTHER = 2 * EACH, ACTIONS = 2 * EACH + 1 };

typedef struct pair {
    channel_rig draws; // random numbers only
    iso__channel *channel[2];
    float *memory;
    iso_request *other;
} pair;

static iso__channel_item item_at(float *data) {
    return (iso__channel_item){
        .data = data, .bytes = LENGTH * sizeof(float), .dtype = ISO_F32, .label = "x"};
}

static void create_pair(pair *x) {
    *x = (pair){.memory = shared_create(test_comm, ACTIONS * LENGTH)};
    iso__channel_item item[2 * EACH];
    for (int i = 0; i < 2 * EACH; i++) item[i] = item_at(x->memory + i * LENGTH);
    iso_assert_ok(iso__channel_create(test_comm, item, EACH, LENGTH, SIZE_MAX, &x->channel[0]));
    iso_assert_ok(iso__channel_create(test_comm, item + EACH, EACH, 500, 1000, &x->channel[1]));
}

static iso_status start(pair *x, int action, int round) {
    float *data = x->memory + action * LENGTH;
    channel_stumble(&x->draws, 300);
    shared_fill(data, LENGTH, ACTIONS * round + action);
    return action == OTHER
               ? iso_comm_iallreduce(test_comm, data, LENGTH, ISO_F32, "other", &x->other)
               : iso__channel_ready(x->channel[action / EACH], action % EACH);
}

static iso_status finish(pair *x, int action) {
    return action == OTHER
               ? iso_request_wait(&x->other)
               : iso__channel_wait(x->channel[action / EACH], action % EACH, NULL, NULL);
}

// Each rank starts and waits in an order of its own. The sums are those of shared memory, in the
// order of the ranks.
static void two_channels_in_one_memory(int rounds) {
    pair x;
    int order[ACTIONS];
    create_pair(&x);
    for (int round = 0; round < rounds; round++) {
        iso_status status = ISO_OK;
        bool right = true;
        channel_shuffle_mine(&x.draws, order, ACTIONS);
        for (int k = 0; k < ACTIONS && status >= 0; k++) status = start(&x, order[k], round);
        channel_shuffle_mine(&x.draws, order, ACTIONS);
        for (int k = 0; k < ACTIONS && status >= 0; k++) status = finish(&x, order[k]);
        for (int k = 0; k < ACTIONS; k++)
            right = right && shared_is_summed(x.memory + k * LENGTH, LENGTH, ACTIONS * round + k);
        iso_assert_ok(status);
        iso_assert_all(right);
    }
    iso__channel_destroy(&x.channel[0]);
    iso__channel_destroy(&x.channel[1]);
    shared_destroy(test_comm, &x.memory);
}

Test(np2_channel, two_channels_in_one_memory) { two_channels_in_one_memory(100); }
Test(np3_channel, two_channels_in_one_memory) { two_channels_in_one_memory(50); }
Test(np3_channel_poll, two_channels_in_one_memory) { two_channels_in_one_memory(50); }
Test(np4_channel_off, two_channels_in_one_memory) { two_channels_in_one_memory(30); }

// More than there are queues: the last ones send messages. A queue that was left is taken again.
enum { CHANNELS = ISO_QUEUES + 2 };

static void create_one(float *memory, iso__channel **out) {
    const iso__channel_item item = item_at(memory);
    iso_assert_ok(iso__channel_create(test_comm, &item, 1, 500, 1000, out));
}

static void use_all(iso__channel **channel, float *memory, int round) {
    iso_status status = ISO_OK;
    for (int k = 0; k < CHANNELS && status >= 0; k++) {
        int i = test_rank ? CHANNELS - 1 - k : k; // in opposite order
        shared_fill(memory + i * LENGTH, LENGTH, round * CHANNELS + i);
        status = iso__channel_ready(channel[i], 0);
    }
    bool right = true;
    for (int i = 0; i < CHANNELS && status >= 0; i++) {
        status = iso__channel_wait(channel[i], 0, NULL, NULL);
        right = right && shared_is_summed(memory + i * LENGTH, LENGTH, round * CHANNELS + i);
    }
    iso_assert_ok(status);
    iso_assert_all(right);
}

Test(np2_channel, more_channels_than_queues) {
    float *memory = shared_create(test_comm, CHANNELS * LENGTH);
    iso__channel *channel[CHANNELS];
    for (int i = 0; i < CHANNELS; i++) create_one(memory + i * LENGTH, &channel[i]);
    for (int round = 0; round < 20; round++) {
        use_all(channel, memory, round);
        int left = round * 3 % CHANNELS;
        iso__channel_destroy(&channel[left]);
        create_one(memory + left * LENGTH, &channel[left]);
    }
    for (int i = 0; i < CHANNELS; i++) iso__channel_destroy(&channel[i]);
    shared_destroy(test_comm, &memory);
}
