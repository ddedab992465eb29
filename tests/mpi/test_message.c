// SPDX-License-Identifier: MIT
// Messages between two ranks: long ones travel in pieces, and are matched in the order of their
// posts for each rank and tag.
#include "comm/comm_calls.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_message, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_message, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_message_life, .init = test_mpi_setup_bare, .timeout = 60);

// ---- In MPI's place -------------------------------------------------------------------------------

static bool watching;
static int sends, fails_at; // 0: none
static int longest;         // bytes

static bool buffers; // MPI copies what is sent, as over TCP, wherever the receiver is

static int watch_send(int count, MPI_Datatype type) {
    int size;
    MPI_Type_size(type, &size);
    if (watching && ++sends == fails_at) return MPI_ERR_INTERN;
    if (watching && count * size > longest) longest = count * size;
    return MPI_SUCCESS;
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    int rc = watch_send(count, type);
    if (rc != MPI_SUCCESS) return rc;
    return (buffers ? PMPI_Ibsend : PMPI_Isend)(data, count, type, to, tag, comm, request);
}

int MPI_Issend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request *request) {
    int rc = watch_send(count, type);
    return rc == MPI_SUCCESS ? PMPI_Issend(data, count, type, to, tag, comm, request) : rc;
}

// ---- Messages -------------------------------------------------------------------------------------

enum { PIECE = 61440, MOST = 40 * PIECE, MESSAGES = 24, TAGS = 3 };

static uint32_t drawn = 1;

static uint32_t draw_below(uint32_t below) {
    drawn = drawn * 1664525u + 1013904223u;
    return (drawn >> 8) % below;
}

// Below a piece, of some pieces, of more than are under way; the same on all ranks.
static size_t draw_length(void) {
    static const size_t lengths[] = {
        64,        PIECE - 64, PIECE,           PIECE + 64,       7 * PIECE,
        8 * PIECE, 16 * PIECE, 16 * PIECE + 64, 23 * PIECE + 128, MOST};
    return lengths[draw_below(10)];
}

static unsigned char byte_of(int from, int tag, int number, size_t i) {
    return (unsigned char)(from * 31 + tag * 7 + number * 13 + (int)(i / 64) * 5 + (int)(i % 7));
}

typedef struct message {
    iso_request *request;
    unsigned char *data;
    size_t bytes;
    int with, tag, number; // number: in its stream
    bool sends;
} message;

static void begin_message(message *m) {
    m->data = malloc(m->bytes);
    for (size_t i = 0; i < m->bytes; i++)
        m->data[i] = m->sends ? byte_of(test_rank, m->tag, m->number, i) : 0;
    iso__message what = {.bytes = m->bytes, .with = m->with, .tag = m->tag};
    if (m->sends)
        what.send = m->data;
    else
        what.recv = m->data;
    cr_assert(iso__comm_imessage(test_comm, &what, "a message", &m->request) >= 0);
}

static bool end_message(message *m) {
    bool right = iso_request_wait(&m->request) == ISO_OK;
    for (size_t i = 0; right && !m->sends && i < m->bytes; i++)
        right = m->data[i] == byte_of(m->with, m->tag, m->number, i);
    free(m->data);
    return right;
}

// Every rank sends to and receives from every other one, in an order of its own between streams;
// it ends them in an order of its own, too.
static void many_at_once(int rounds) {
    static message all[2 * MESSAGES * 2];
    bool right = true;
    watching = true;
    longest = 0;
    for (int round = 0; round < rounds; round++) {
        int count = 0, order[2 * MESSAGES * 2];
        for (int k = 0; k < MESSAGES; k++) {
            int tag = 1 + (int)draw_below(TAGS), number = k;
            size_t bytes = draw_length();
            for (int r = 0; r < test_size; r++)
                for (int sending = 0; r != test_rank && sending < 2; sending++)
                    all[count++] = (message){.bytes = bytes,
                                             .with = r,
                                             .tag = tag,
                                             .number = number,
                                             .sends = sending == test_rank % 2};
        }
        for (int i = 0; i < count; i++) {
            begin_message(&all[i]);
            if (draw_below(8) == 0) usleep(300 * (unsigned)test_rank);
        }
        for (int i = 0; i < count; i++) order[i] = i;
        for (int i = count - 1; i > 0; i--) {
            int j = (int)draw_below((uint32_t)i + 1), other = order[j];
            order[j] = order[i];
            order[i] = other;
        }
        for (int i = 0; i < count; i++) right = end_message(&all[order[i]]) && right;
    }
    watching = false;
    iso_assert_all(right);
    iso_assert_all(longest == PIECE);
}

Test(np2_message, many_at_once) { many_at_once(4); }
Test(np3_message, many_at_once) { many_at_once(2); }

// What has left without a receiver waits in its memory.
Test(np2_message, a_late_receiver_gets_a_window_at_most) {
    static char room[(MOST / PIECE + 8) * (PIECE + MPI_BSEND_OVERHEAD)];
    message m = {.bytes = MOST, .with = 1 - test_rank, .tag = 1, .sends = test_rank == 0};
    int left = 0;
    MPI_Buffer_attach(room, (int)sizeof(room));
    buffers = watching = true;
    sends = 0;
    if (test_rank == 1) MPI_Recv(NULL, 0, MPI_INT, 0, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    begin_message(&m);
    for (int i = 0; test_rank == 0 && i < 200; i++) {
        usleep(1000);
        if (iso_request_test(&m.request) != ISO_PENDING) break;
        left = sends;
    }
    if (test_rank == 0) MPI_Send(NULL, 0, MPI_INT, 1, 77, MPI_COMM_WORLD);
    bool right = end_message(&m);
    watching = buffers = false;
    MPI_Buffer_detach(&(void *){NULL}, &(int){0});
    iso_assert_all(right && (test_rank == 1 || (left == 15 && sends == MOST / PIECE)));
}

// A piece fails. The message and what follows it in its stream fail too; nothing leaves in its
// place. Other streams go on.
Test(np2_message_life, a_piece_that_fails) {
    message m[3];
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm));
    const int other = 1 - test_rank;
    m[0] = (message){.bytes = 20 * PIECE, .with = other, .tag = 1, .sends = test_rank == 0};
    m[1] = (message){.bytes = 64, .with = other, .tag = 1, .number = 1, .sends = test_rank == 0};
    m[2] = (message){.bytes = 64, .with = other, .tag = 2, .sends = test_rank == 0};
    sends = 0;
    watching = true;
    fails_at = 12;
    for (int i = 0; i < 3; i++) begin_message(&m[i]);
    bool right = end_message(&m[2]);
    iso_status status[2] = {ISO_OK, ISO_OK};
    for (int i = 0; i < 2 && test_rank == 0; i++) status[i] = iso_request_wait(&m[i].request);
    watching = false;
    iso__message later = {.send = m, .bytes = 64, .with = other, .tag = 1};
    iso_request *none = NULL;
    bool refused =
        test_rank == 1 || iso__comm_imessage(test_comm, &later, "z", &none) == ISO_ERR_MPI;
    iso_assert_all(right && refused);
    iso_assert_all(test_rank == 1 || (status[0] == ISO_ERR_MPI && status[1] == ISO_ERR_MPI));
    MPI_Finalize(); // what has failed stays
}
