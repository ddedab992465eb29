// SPDX-License-Identifier: MIT
// A few numbers of the program that are summed over the ranks along with a list of gradients.
#include "parallel/reducer/sums.h"

#include "comm/comm_calls.h"

#include <math.h>
#include <string.h>

// A number is an integer multiple of 2^-1074, written as signed digits of 10 bits. Sums of digits
// over 2^14 ranks are below 2^24, so f32 represents them exactly, in any order of the additions.
enum { BITS = 10, BASE = 1 << BITS, LOWEST = -1074 };
enum { NANS, INFS, MINUS_INFS, FIRST_DIGIT, DIGITS = 212, ELEMENTS = FIRST_DIGIT + DIGITS };
enum { CARRIED = 3 }; // further digits that a sum may need

struct iso__sums {
    int count;
    double *mine, *sent, *sum; // [count]: of the next list, of the issued list, over all ranks (and
                               // zeros behind those, see iso__comm_reduction_room)
    bool to_send;              // they need a message of their own
    iso_request *request;
    iso_comm *comm; // the communicator of the request, retained
};

size_t iso__sums_elements(int count) { return (size_t)count * ELEMENTS; }

// ---- Digits -----------------------------------------------------------------------------------------

static void write_digits(double value, double *out) {
    int exponent;
    memset(out, 0, ELEMENTS * sizeof(*out));
    if (isnan(value)) out[NANS] = 1;
    if (isinf(value)) out[value > 0 ? INFS : MINUS_INFS] = 1;
    if (!isfinite(value) || value == 0) return;
    uint64_t whole = (uint64_t)ldexp(frexp(fabs(value), &exponent), 53);
    int at = exponent - 53 - LOWEST;
    if (at < 0) { // a subnormal number: the low bits are 0
        whole >>= -at;
        at = 0;
    }
    double *digit = out + FIRST_DIGIT + at / BITS;
    for (whole <<= at % BITS; whole > 0; whole >>= BITS)
        *digit++ = (value < 0 ? -1 : 1) * (double)(whole % BASE);
}

// Makes every digit 0 to BASE - 1. Returns the carry beyond the last one, which is negative if the
// number is.
static int64_t carry_digit(const double *sum, int sign, int64_t *digit) {
    int64_t rest = 0;
    for (int j = 0; j < DIGITS + CARRIED; j++) {
        rest += j < DIGITS ? sign * (int64_t)sum[FIRST_DIGIT + j] : 0;
        digit[j] = ((rest % BASE) + BASE) % BASE;
        rest = (rest - digit[j]) / BASE;
    }
    return rest;
}

// The nearest double: takes at least 55 bits, and one sticky bit for all lower ones.
static double read_digits(const double *sum) {
    int64_t digit[DIGITS + CARRIED];
    uint64_t top = 0;
    int sign = 1, low = 0;
    if (sum[NANS] > 0 || (sum[INFS] > 0 && sum[MINUS_INFS] > 0)) return NAN;
    if (sum[INFS] > 0 || sum[MINUS_INFS] > 0) return sum[INFS] > 0 ? INFINITY : -INFINITY;
    if (carry_digit(sum, sign, digit) < 0) carry_digit(sum, sign = -1, digit);
    for (int j = DIGITS + CARRIED - 1; j >= 0; j--) {
        if (top < (uint64_t)1 << 54) {
            top = top * BASE + (uint64_t)digit[j];
            low = j;
        } else if (digit[j] != 0) {
            top |= 1;
        }
    }
    return sign * ldexp((double)top, low * BITS + LOWEST);
}

// ---- Riding -----------------------------------------------------------------------------------------

static void *tail_of(const iso__store *store, const iso__bucket *b) {
    return store->arena + b->offset + b->bytes - b->tail;
}

void iso__sums_leave(iso__sums *s, const iso__store *store, const iso__bucket *last) {
    double digit[ELEMENTS];
    if (!s) return;
    memcpy(s->sent, s->mine, (size_t)s->count * sizeof(double));
    memset(s->mine, 0, (size_t)s->count * sizeof(double));
    s->to_send = last->tail == 0;
    void *tail = s->to_send ? NULL : tail_of(store, last);
    for (int k = 0; tail && k < s->count; k++) {
        write_digits(s->sent[k], digit);
        for (int j = 0; j < ELEMENTS; j++) {
            if (last->dtype == ISO_F64)
                ((double *)tail)[k * ELEMENTS + j] = digit[j];
            else
                ((float *)tail)[k * ELEMENTS + j] = (float)digit[j];
        }
    }
}

void iso__sums_come(iso__sums *s, const iso__store *store, const iso__bucket *bucket) {
    double digit[ELEMENTS];
    if (!s || bucket->tail == 0) return;
    const void *tail = tail_of(store, bucket);
    for (int k = 0; k < s->count; k++) {
        for (int j = 0; j < ELEMENTS; j++)
            digit[j] = bucket->dtype == ISO_F64 ? ((const double *)tail)[k * ELEMENTS + j]
                                                : (double)((const float *)tail)[k * ELEMENTS + j];
        s->sum[k] = read_digits(digit);
    }
}

// ---- A message of their own -------------------------------------------------------------------------

iso_status iso__sums_send(iso__sums *s, iso_comm *comm) {
    if (!s || !s->to_send) return ISO_OK;
    ISO_TRY(iso__sums_wait(s)); // the previous sums, which no one has read
    s->to_send = false;
    memcpy(s->sum, s->sent, (size_t)s->count * sizeof(double));
    if (!comm || iso_comm_size(comm) == 1) return ISO_OK;
    s->comm = iso_comm_retain(comm);
    return iso_comm_iallreduce(comm, s->sum, iso__comm_reduction_room(comm, (size_t)s->count),
                               ISO_F64, "sums", &s->request);
}

iso_status iso__sums_wait(iso__sums *s) {
    if (!s->request) return ISO_OK;
    iso_status status = iso_request_wait(&s->request);
    if (!s->request) iso_comm_destroy(&s->comm);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

iso_status iso__sums_create(const iso_comm *world, int count, iso__sums **out) {
    iso__sums *s;
    size_t n = (size_t)count, numbers = 2 * n + iso__comm_reduction_room(world, n);
    ISO_TRY(iso__alloc_zero(sizeof(*s), (void **)&s));
    iso_status status = iso__alloc_zero(numbers * sizeof(double), (void **)&s->mine);
    if (status < 0) iso__free(s);
    ISO_TRY(status);
    s->count = count;
    s->sent = s->mine + count;
    s->sum = s->sent + count;
    *out = s;
    return ISO_OK;
}

bool iso__sums_destroy(iso__sums **pointer) {
    iso__sums *s = *pointer;
    *pointer = NULL;
    if (!s) return true;
    if (s->request && iso__sums_wait(s) < 0) return false;
    iso_comm_destroy(&s->comm);
    iso__free(s->mine);
    iso__free(s);
    return true;
}

int iso__sums_count(const iso__sums *s) { return s ? s->count : 0; }
void iso__sums_add(iso__sums *s, int k, double value) { s->mine[k] += value; }
double iso__sums_get(const iso__sums *s, int k) { return s->sum[k]; }
