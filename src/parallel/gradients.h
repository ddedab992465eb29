// SPDX-License-Identifier: MIT
// Private to src/parallel: the list of gradients of a module, or of plain arrays.
#ifndef ISO_GRADIENTS_H
#define ISO_GRADIENTS_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>
#include <isotherm/reducer.h>

// The gradients of one device. With ZeRO the average of a gradient is spread over the ranks: each
// rank has some of its elements.
typedef struct iso__gradients {
    int count;
    iso_tensor **item; // whole gradients first; from `whole` on, views of this rank's elements of
                       // spread ones
    int whole;
    int *parameter;          // of each item, its number in `list`
    iso_parameter_list list; // of the module; empty for plain arrays
    bool owned;              // all items are views
    iso_comm *comm;          // of the spread gradients, borrowed; NULL: there are none
} iso__gradients;

// local false: completes pending work (then collective). local true: takes gradients as this rank's
// backward has left them, for a pre-sync hook. Free *out with iso__gradients_free.
iso_status iso__gradients_of(iso_module *module, bool local, iso__gradients *out);
// Those of a reducer's arrays, averaged. Completes pending work (then collective). device: that of
// iso__reducer_device.
iso_status iso__gradients_of_arrays(iso_reducer *r, iso_device *device, iso__gradients *out);
void iso__gradients_free(iso__gradients *gradients);

#endif
