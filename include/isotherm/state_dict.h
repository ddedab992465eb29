// SPDX-License-Identifier: MIT
// state_dict as in PyTorch: parameters, buffers and optimizer state by name, for saving and
// loading.
//
//     iso_state_dict dict = {0};                            PyTorch:
//     iso_module_state_dict(model, &dict);                  dict = model.state_dict()
//     iso_state_dict_save(&dict, path);                     save_file(dict, path)
//     iso_state_dict_destroy(&dict);
//     iso_state_dict_read(path, device, &dict);             dict = load_file(path)
//     iso_module_load_state_dict(model, &dict, true, NULL); model.load_state_dict(dict)
//     iso_state_dict_destroy(&dict);
//
// save_file and load_file are functions of safetensors.torch. Each library reads the files of the
// other. To resume a run on all ranks with bitwise identical results, see isotherm/resume.h.
#ifndef ISOTHERM_STATE_DICT_H
#define ISOTHERM_STATE_DICT_H

#include <isotherm/checkpoint.h>
#include <isotherm/nn.h>
#include <isotherm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

// missing: names of the model that the dict lacks. unexpected: names of the dict that the model
// lacks.
typedef struct iso_incompatible_keys {
    int missing_count, unexpected_count;
    char **missing, **unexpected;
} iso_incompatible_keys;
void iso_incompatible_keys_destroy(iso_incompatible_keys *keys); // resets to {0}

// ---- Modules --------------------------------------------------------------------------------------

// Returns the parameters and buffers of module and of all modules below it, in registration order,
// with PyTorch's names ("layer1.0.bn1.running_mean"). A data_parallel wrapper adds no prefix. A
// shared or tied tensor is listed under each of its names, as in PyTorch.
//
// The tensors are the module's own, not copies. Local, but collective if data_parallel wraps the
// module: completes pending updates first, so the dict is valid until the next step. Buffers are
// this rank's. With daso, parameters in evaluation mode are the mean over all ranks.
iso_status iso_module_state_dict(iso_module *module, iso_state_dict *out);

// Copies the tensors of dict into the parameters and buffers with the same names, and converts
// between f32, f64, bf16 and f16 (rounded to nearest). ISO_ERR_MISMATCH for a tensor of another
// shape or of any other type; the message names it.
//
// strict: ISO_ERR_MISMATCH unless both have the same names; the message lists the names that only
// one of them has. A shared tensor may appear under any one of its names. If it appears under
// several, the last one takes effect. Not strict: loads what both have, and *keys (may be NULL)
// lists the rest; the caller destroys it. Nothing is changed on failure.
//
// Local, but collective if data_parallel wraps the module: completes pending updates first, and
// every rank must load the same.
iso_status iso_module_load_state_dict(iso_module *module, const iso_state_dict *dict, bool strict,
                                      iso_incompatible_keys *keys);

// ---- Optimizers -----------------------------------------------------------------------------------

// As PyTorch's optimizer.state_dict(), with the names of parameters instead of their numbers:
//
//   state.NAME.exp_avg etc.   state tensors, with the shape of the parameter
//   state.NAME.master_param   f32 values of a bf16 or f16 parameter (iso_reducer_set_optimizer)
//   state.NAME.step           number of updates of the parameter (i64, 0 dimensions); of SGD, only
//                             of those with momentum
//   param_groups.0.lr etc.    hyperparameters of each group (0 dimensions)
//   param_groups.0.step       number of steps of the group
//   param_groups.params       group of each parameter, in order; only with several groups
//
// It describes the innermost optimizer: state of a daso wrapper is not included. State tensors are
// the optimizer's memory, so destroy the dict before the optimizer. Local, but collective for a
// tied optimizer, whose pending updates it completes first. ISO_ERR_UNSUPPORTED for a user-defined
// optimizer.
iso_status iso_optimizer_state_dict(iso_optimizer *optimizer, iso_state_dict *out);
// As iso_module_load_state_dict. Also replaces lr and all other hyperparameters, as PyTorch does.
// ISO_ERR_ARG for hyperparameters that PyTorch refuses, ISO_ERR_MISMATCH if the groups differ.
// With strict, a group that lacks maximize, as in files of earlier versions, does not maximize.
// Numbers of updates may be floating-point, as PyTorch's are. Files of earlier versions lack them.
// Each parameter then gets its group's number of steps. For SGD without momentum_buffer, as PyTorch
// writes it, the next update with momentum is the first one.
//
// Two state tensors are optional, because PyTorch's files lack them if the loaded hyperparameters
// do not use them: momentum_buffer of SGD and RMSprop without momentum, and grad_avg of RMSprop
// that is not centered. If one is missing, it becomes zeros and is not listed in keys. Nor is a
// missing master_param: the optimizer's stays, except for elements that the program has changed.
iso_status iso_optimizer_load_state_dict(iso_optimizer *optimizer, const iso_state_dict *dict,
                                         bool strict, iso_incompatible_keys *keys);

#ifdef __cplusplus
}
#endif
#endif
