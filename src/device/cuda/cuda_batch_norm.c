// Batch normalisation of the CUDA device: its slots, and numbers on their way from and to the host.
#include "device/cuda/batch_norm_kernels.h"
#include "device/cuda/cuda_impl.h"

static iso__cuda_norm_shape shape_of(const iso_tensor *x) {
    int64_t plane = 1;
    for (int i = 2; i < x->ndim; i++) plane *= x->shape[i];
    return iso__cuda_norm_shape_of(x->dtype, x->shape[0], x->shape[1], plane);
}

static void *data_of(const iso_tensor *t) { return t ? t->data : NULL; }

// Scratch memory: two numbers of each channel, and those of the parts.
static iso_status make_room(iso__cuda *cuda, const iso__cuda_norm_shape *shape, double **numbers,
                            double **parts) {
    int64_t count = 2 * shape->channels + iso__cuda_norm_part_count(shape);
    void *memory;
    ISO_TRY(iso__cuda_scratch(cuda, (size_t)count * sizeof(double), &memory));
    *numbers = memory;
    *parts = *numbers + 2 * shape->channels;
    return ISO_OK;
}

// Given numbers of each channel onto the device; NULL stays NULL.
static iso_status upload(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const double *given,
                         double *room, const double **out) {
    *out = given ? room : NULL;
    return given ? iso__cuda_norm_upload(cuda, 2 * shape->channels, given, room) : ISO_OK;
}

// Waits: the host sends them to other ranks before it can go on.
static iso_status download(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const double *from,
                           double *to) {
    ISO_TRY(iso__cuda_wait(cuda));
    ISO_TRY_CUDA(
        cudaMemcpy(to, from, 2 * (size_t)shape->channels * sizeof(double), cudaMemcpyDeviceToHost));
    return ISO_OK;
}

static size_t batch_norm_workspace(iso_device *self, const iso_tensor *x) {
    (void)self;
    iso__cuda_norm_shape shape = shape_of(x);
    return iso__cuda_norm_workspace(&shape);
}

static iso_status batch_norm_forward(iso_device *self, const iso__batch_norm_args *args,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    iso__cuda *cuda = iso__cuda_of(self);
    double *numbers = NULL;
    iso__cuda_norm_forward forward = {.shape = shape_of(x),
                                      .eps = args->eps,
                                      .factor = args->factor,
                                      .batch = args->batch,
                                      .relu = args->act == ISO_ACT_RELU,
                                      .count = args->count,
                                      .x = x->data,
                                      .weight = data_of(args->weight),
                                      .bias = data_of(args->bias),
                                      .running_mean = data_of(args->running_mean),
                                      .running_var = data_of(args->running_var),
                                      .workspace = workspace,
                                      .y = y->data};
    ISO_TRY(make_room(cuda, &forward.shape, &numbers, &forward.parts));
    ISO_TRY(upload(cuda, &forward.shape, args->batch ? args->moments : NULL, numbers,
                   &forward.moments));
    return iso__cuda_norm_forward_launch(cuda, &forward);
}

// What both ends of a backward have in common; dw and db are set where dy is summed.
static iso__cuda_norm_backward backward_of(const iso__batch_norm_args *args, const iso_tensor *x,
                                           const iso_tensor *dy, const void *workspace) {
    return (iso__cuda_norm_backward){.shape = shape_of(x),
                                     .batch = args->batch,
                                     .relu = args->act == ISO_ACT_RELU,
                                     .count = args->count,
                                     .x = x->data,
                                     .dy = dy->data,
                                     .workspace = workspace};
}

static void set_targets(iso__cuda_norm_backward *backward, iso_tensor *dw, bool accumulate_w,
                        iso_tensor *db, bool accumulate_b) {
    backward->dw = data_of(dw);
    backward->db = data_of(db);
    backward->accumulate_w = accumulate_w;
    backward->accumulate_b = accumulate_b;
}

static iso_status batch_norm_backward(iso_device *self, const iso__batch_norm_args *args,
                                      const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                      iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                      bool accumulate_b, iso_tensor *dx) {
    iso__cuda *cuda = iso__cuda_of(self);
    double *numbers = NULL;
    iso__cuda_norm_backward backward = backward_of(args, x, dy, workspace);
    backward.dx = data_of(dx);
    if (!args->sums) set_targets(&backward, dw, accumulate_w, db, accumulate_b);
    ISO_TRY(make_room(cuda, &backward.shape, &numbers, &backward.parts));
    ISO_TRY(upload(cuda, &backward.shape, args->sums, numbers, &backward.sums));
    return iso__cuda_norm_backward_launch(cuda, &backward);
}

// These two give numbers to the host, so they wait.

static iso_status batch_norm_moments(iso_device *self, const iso_tensor *x, double *moments) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_norm_shape shape = shape_of(x);
    double *numbers = NULL, *parts = NULL;
    ISO_TRY(make_room(cuda, &shape, &numbers, &parts));
    ISO_TRY(iso__cuda_norm_moments_launch(cuda, &shape, x->data, parts, numbers));
    return download(cuda, &shape, numbers, moments);
}

static iso_status batch_norm_sums(iso_device *self, const iso__batch_norm_args *args,
                                  const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                  iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                  bool accumulate_b, double *sums) {
    iso__cuda *cuda = iso__cuda_of(self);
    double *numbers = NULL;
    iso__cuda_norm_backward backward = backward_of(args, x, dy, workspace);
    set_targets(&backward, dw, accumulate_w, db, accumulate_b);
    ISO_TRY(make_room(cuda, &backward.shape, &numbers, &backward.parts));
    backward.out = numbers;
    ISO_TRY(iso__cuda_norm_backward_launch(cuda, &backward));
    return download(cuda, &backward.shape, numbers, sums);
}

void iso__cuda_fill_batch_norm(iso_kernel_ops *ops) {
    ops->batch_norm_workspace = batch_norm_workspace;
    ops->batch_norm_moments = batch_norm_moments;
    ops->batch_norm_forward = batch_norm_forward;
    ops->batch_norm_sums = batch_norm_sums;
    ops->batch_norm_backward = batch_norm_backward;
}
