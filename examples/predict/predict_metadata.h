// SPDX-License-Identifier: MIT
// The metadata that train writes to a checkpoint, read again by predict.
#ifndef EXAMPLES_PREDICT_METADATA_H
#define EXAMPLES_PREDICT_METADATA_H

#include <isotherm/checkpoint.h>
#include <isotherm/nn.h>

// Local. ISO_ERR_FORMAT if the metadata has the entry `key` (such as "isotherm.model") with a value
// that train never writes. The message names file and entry. ISO_OK for an entry that is missing.
iso_status predict_metadata_check(const iso_state_dict *dict, const char *file, const char *key);
// Writes the record of that error, and returns its code. wanted: what the value must be.
iso_status predict_metadata_refuse(const char *file, const char *key, const char *value,
                                   const char *wanted);

// Local. Gives a model the type that it was trained in. One of 16 bits takes and gives f32; on a
// device other than the CPU it stays f32.
iso_status predict_metadata_convert(const iso_state_dict *dict, iso_module **model);

// Local. Reads `channels` numbers, or one for all, separated by commas or blanks. ISO_ERR_ARG for
// anything else; the message begins with `option`.
iso_status predict_channels_parse(const char *option, const char *text, int64_t channels,
                                  double *out);

#endif
