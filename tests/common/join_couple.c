// SPDX-License-Identifier: MIT
// For tests of joins of several models: two models of different size on the same uneven batches.
#include "common/join_couple.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

// norm, flatten, fc1 200-40, [dropout], fc2.
static iso_status build_norm(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 9};
    iso_batch_norm_config norm = {.num_features = TRAINER_CHANNELS};
    iso_module *net, *m = NULL;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_batch_norm2d_create(device, &norm, &m), "norm", &m));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, 200, 40, true, &rng, &m), "fc1", &m));
    if (dropout) ISO_TRY(add(net, iso_dropout_create(device, 0.5, &rng, &m), "dropout", &m));
    ISO_TRY(add(net, iso_linear_create(device, 40, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return ISO_OK;
}

couple couple_plan(void) {
    couple p = {.steps = 0};
    p.u[0] = p.u[1] = uneven_default();
    p.u[1].train.build = build_norm;
    return p;
}

void couple_set_lengths(couple *p, int first, int second, int others) {
    for (int m = 0; m < 2; m++)
        for (int r = 0; r < 4; r++) p->u[m].batches[r] = r == 0 ? first : r == 1 ? second : others;
}

void couple_create(couple *p, iso_comm *second) {
    iso_assert_ok(uneven_create(&p->model[0], test_comm, &p->u[0]));
    iso_assert_ok(uneven_create(&p->model[1], second, &p->u[1]));
}

void couple_destroy(couple *p) {
    for (int m = 0; m < 2; m++) trainer_destroy(&p->model[m]);
}

iso_status couple_step(void *user) {
    couple *p = user;
    p->steps++;
    for (int m = 0; m < 2; m++) ISO_TRY(iso_optimizer_step(p->model[m].optimizer));
    return ISO_OK;
}

iso_status couple_begin(couple *p, const iso_join_config *how, iso_join **out) {
    iso_module *models[] = {p->model[0].model, p->model[1].model};
    iso_join_config config = *how;
    config.step = couple_step;
    config.user = p;
    return iso_join_begin_many(models, 2, &config, out);
}

iso_status couple_batch(couple *p, int step, bool sync) {
    for (int m = 0; m < 2; m++) ISO_TRY(uneven_backward(&p->model[m], &p->u[m], step, sync));
    if (!sync) return ISO_OK;
    ISO_TRY(couple_step(p));
    for (int m = 0; m < 2 && p->looks; m++) ISO_TRY(iso_data_parallel_finish(p->model[m].model));
    return ISO_OK;
}

iso_status couple_loop(couple *p, int *steps) {
    iso_join *join;
    iso_status status = ISO_OK;
    int accumulate = p->u[0].accumulate ? p->u[0].accumulate : 1;
    iso_assert_ok(couple_begin(p, &p->u[0].join, &join));
    for (*steps = 0; status == ISO_OK; ++*steps) {
        bool sync = (*steps + 1) % accumulate == 0;
        status = iso_join_next(join, uneven_rows(&p->u[0], test_rank, *steps), sync);
        if (status != ISO_OK) break;
        status = couple_batch(p, *steps, sync);
    }
    iso_join_end(&join);
    return status;
}

void couple_train_apart(couple *p) {
    for (int m = 0; m < 2; m++) iso_assert_ok(uneven_train(&p->model[m], &p->u[m]));
}

uint64_t couple_digest(trainer *t) {
    uint64_t hash = 0;
    iso_buffer_list list;
    iso_assert_ok(trainer_hash(t, &hash));
    iso_assert_ok(iso_module_buffers(t->model, &list));
    for (int i = 0; i < list.count; i++) {
        const iso_tensor *b = list.item[i]->value;
        hash = iso__hash(hash, b->data, (size_t)b->count * iso_dtype_size(b->dtype));
    }
    iso_buffer_list_destroy(&list);
    return hash;
}
