// Private to nn: what layers share with the base of all modules.
#ifndef ISO_NN_IMPL_H
#define ISO_NN_IMPL_H

#include "device/device_impl.h"

// For layers of the library: allocates `bytes` (a struct that starts with iso_module) and inits it.
iso_status iso__module_new(size_t bytes, const iso_module_ops *ops, iso_device *device,
                           iso_module **out);
// Adds the one child of a wrapper. It has no name, so parameters below keep the names they have
// without the wrapper. Takes one reference of child, on failure too.
iso_status iso__module_add_wrapped_take(iso_module *wrapper, iso_module *child);

// As iso_call_tensor, of another element type.
iso_status iso__call_tensor_of(iso_module *module, iso_dtype dtype, iso_tensor **slot, int ndim,
                               const int64_t *shape, iso_layout layout);
// *out is x itself where it has this layout, else a copy of it in *slot.
iso_status iso__call_layout(iso_module *module, iso_tensor **slot, iso_layout layout, iso_tensor *x,
                            iso_tensor **out);

// Calls visit for the module and everything below it, parents first, with the name of each ("" for
// the root); a module that is used twice is visited twice.
typedef iso_status (*iso__module_visit)(iso_module *module, const char *path, void *user);
iso_status iso__module_walk(iso_module *root, iso__module_visit visit, void *user);

// Whether a parameter of the module itself / of it or anything below it requires a gradient.
bool iso__module_trains_own(const iso_module *module);
bool iso__module_trains(const iso_module *module);

// `Conv2d "conv1"`, or the type alone for a module without a name, into text; returns text.
#define ISO_LABEL_ROOM 96
const char *iso__module_label(const iso_module *module, char *text);
// The error for an input that does not fit: `Conv2d "conv1" expects EXPECTED but got [64, 28, 28]`.
iso_status iso__shape_error(const iso_module *module, const iso_tensor *in, const char *expected,
                            ...) __attribute__((format(printf, 3, 4)));

// Weight or bias ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)) from the next stream of rng: element i is
// word i % 4 of block i / 4.
iso_status iso__init_uniform(iso_parameter *parameter, int64_t fan_in, iso_rng *rng);

// The 8 bytes of a dropout that its masks depend on besides forward_number; NULL for other modules.
void *iso__dropout_key(iso_module *module);

// Whether this is the relu layer (which sequential fuses into the layer before it).
bool iso__module_is_relu(const iso_module *module);
// For layers that fuse a relu: turns grad_out into the gradient before it, in place.
iso_status iso__undo_activation(iso_module *self, iso_call *call, iso_tensor *grad_out);

#endif
