// SPDX-License-Identifier: MIT
// Sums of bf16 and f16 over ranks: MPI has neither the types nor operations for them.
#include "base/half.h"
#include "comm/engine.h"

// Every addition is made in f32 and rounded to nearest even. For two numbers the result is the
// exact sum rounded once, because f32 has more than twice their digits; hence the operation
// commutes. For more than two numbers, the bits depend on the order of the additions. All ranks get
// the same bits nevertheless: MPI's algorithms sum an element on one rank and then distribute it,
// or use the same tree on all ranks.

ISO_CLONES static void add_bf16(size_t count, const uint16_t *restrict x, uint16_t *restrict sum) {
    for (size_t i = 0; i < count; i++)
        sum[i] = (uint16_t)iso__bf16_of(iso__of_bf16(x[i]) + iso__of_bf16(sum[i]));
}

ISO_CLONES static void add_f16(size_t count, const uint16_t *restrict x, uint16_t *restrict sum) {
    for (size_t i = 0; i < count; i++)
        sum[i] = (uint16_t)iso__f16_of(iso__of_f16(x[i]) + iso__of_f16(sum[i]));
}

// With the signature of MPI_User_function.
static void sum_bf16(void *in, void *in_out, int *count, MPI_Datatype *type) {
    (void)type;
    add_bf16((size_t)*count, in, in_out);
}

static void sum_f16(void *in, void *in_out, int *count, MPI_Datatype *type) {
    (void)type;
    add_f16((size_t)*count, in, in_out);
}

iso_status iso__sum16_create(iso__engine *engine) {
    const int commutes = 1;
    engine->sum_bf16 = engine->sum_f16 = MPI_OP_NULL;
    ISO_TRY_MPI(MPI_Op_create(sum_bf16, commutes, &engine->sum_bf16));
    ISO_TRY_MPI(MPI_Op_create(sum_f16, commutes, &engine->sum_f16));
    return ISO_OK;
}

void iso__sum16_free(iso__engine *engine) {
    if (engine->sum_bf16 != MPI_OP_NULL) MPI_Op_free(&engine->sum_bf16);
    if (engine->sum_f16 != MPI_OP_NULL) MPI_Op_free(&engine->sum_f16);
}
