// The two-dimensional max-pooling layer.
#include "nn/nn_impl.h"

typedef struct max_pool2d {
    iso_module base;
    int64_t window, stride;
} max_pool2d;

// The device's notes on where each maximum was, as a tensor of so many bytes.
static iso_status workspace(iso_module *self, iso_call *call, void **out) {
    size_t bytes = iso__kernels(call->in)->max_pool2d_workspace(self->device, call->in, call->out);
    int64_t words = (int64_t)(bytes / sizeof(float)) + 1;
    ISO_TRY(iso_call_tensor(self, &call->aux[0], 1, &words, ISO_LAYOUT_LOGICAL));
    *out = call->aux[0]->data;
    return ISO_OK;
}

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    max_pool2d *l = iso_container_of(self, max_pool2d, base);
    if (in->ndim != 4 || in->shape[2] < l->window || in->shape[3] < l->window)
        return iso__shape_error(self, in, "[N, C, H, W] with H and W at least %lld",
                                (long long)l->window);
    int64_t shape[4] = {in->shape[0], in->shape[1], (in->shape[2] - l->window) / l->stride + 1,
                        (in->shape[3] - l->window) / l->stride + 1};
    ISO_TRY(iso_call_tensor(self, &call->out, 4, shape, in->layout));
    void *notes = NULL;
    if (self->training) ISO_TRY(workspace(self, call, &notes));
    *out = call->out;
    return iso__kernels(call->in)->max_pool2d_forward(self->device, l->window, l->stride, in,
                                                      call->out, notes);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    max_pool2d *l = iso_container_of(self, max_pool2d, base);
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(call->number > 0, ISO_ERR_STATE,
              "backward of %s, whose forward was in evaluation mode",
              iso__module_label(self, label));
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 4, call->in->shape, call->in->layout));
    *grad_in = call->grad_in;
    return iso__kernels(call->in)->max_pool2d_backward(self->device, l->window, l->stride, grad_out,
                                                       call->aux[0]->data, call->grad_in);
}

static const iso_module_ops max_pool2d_ops = {
    .type = "MaxPool2d",
    .forward = forward,
    .backward_input = backward_input,
};

iso_status iso_max_pool2d_create(iso_device *device, int64_t window, int64_t stride,
                                 iso_module **out) {
    ISO_CHECK(window > 0 && stride > 0, ISO_ERR_ARG,
              "a MaxPool2d with window %lld and stride %lld: both must be at least 1",
              (long long)window, (long long)stride);
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(max_pool2d), &max_pool2d_ops, device, &module));
    max_pool2d *l = iso_container_of(module, max_pool2d, base);
    l->window = window;
    l->stride = stride;
    *out = module;
    return ISO_OK;
}
