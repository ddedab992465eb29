// state_dict, as in PyTorch: parameters, buffers and optimizer state by name, to save and to load.
//
//     iso_state_dict dict = {0};                            PyTorch:
//     iso_module_state_dict(model, &dict);                  dict = model.state_dict()
//     iso_state_dict_save(&dict, path);                     save_file(dict, path)
//     iso_state_dict_read(path, device, &dict);             dict = load_file(path)
//     iso_module_load_state_dict(model, &dict, true, NULL); model.load_state_dict(dict)
//     iso_state_dict_destroy(&dict);
//
// save_file and load_file are of safetensors.torch, which reads these files and whose files are
// read here. To continue a run with the same bits on all ranks, see isotherm/resume.h.
#ifndef ISOTHERM_STATE_DICT_H
#define ISOTHERM_STATE_DICT_H

#include <isotherm/checkpoint.h>
#include <isotherm/nn.h>
#include <isotherm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

// Names of a model that a state_dict lacks, and names of a state_dict that the model lacks.
typedef struct iso_incompatible_keys {
    int missing_count, unexpected_count;
    char **missing, **unexpected;
} iso_incompatible_keys;
void iso_incompatible_keys_destroy(iso_incompatible_keys *keys); // leaves {0}

// ---- Modules --------------------------------------------------------------------------------------

// Parameters and buffers of module and everything below it in registration order, named as PyTorch
// names them ("layer1.0.bn1.running_mean"); a data_parallel wrapper adds no prefix, and a shared or
// tied tensor stands under each of its names, as there. The tensors are the module's own, not
// copies. Local, but collective when the module is wrapped by data_parallel: completes pending
// updates first, and so holds until the next step. Buffers are this rank's. Under daso, evaluation
// mode shows the mean over all ranks.
iso_status iso_module_state_dict(iso_module *module, iso_state_dict *out);

// Copies tensors of dict into the parameters and buffers of the same names, f32 and f64 into each
// other with conversion. ISO_ERR_MISMATCH names a tensor whose shape differs, or whose type differs
// otherwise. strict: ISO_ERR_MISMATCH, listing names, unless both have the same names; of a shared
// tensor one of its names is enough, and the last one holds. Not strict: loads what is common, and
// *keys (may be NULL) lists the rest, to be destroyed by the caller. Nothing is changed on failure.
// Local, but collective when the module is wrapped by data_parallel (completes pending updates
// first), and every rank must load the same then.
iso_status iso_module_load_state_dict(iso_module *module, const iso_state_dict *dict, bool strict,
                                      iso_incompatible_keys *keys);

// ---- Optimizers -----------------------------------------------------------------------------------

// As PyTorch's, with names of parameters in place of their numbers: "state.conv1.weight.exp_avg"
// and its like with the shape of the parameter, and as tensors without dimensions the number of its
// updates, "state.conv1.weight.step" (i64), and of each group the hyperparameters and the number of
// steps made, "param_groups.0.lr", "param_groups.0.step" ... With more than one group,
// "param_groups.params" is the group of each parameter in order. It is that of the innermost
// optimizer: what a daso wrapper keeps is no part of it. State tensors are the optimizer's memory:
// destroy the dict before the optimizer. Local, but completes pending updates of a tied optimizer
// first (then collective). ISO_ERR_UNSUPPORTED for an optimizer of the caller's.
iso_status iso_optimizer_state_dict(iso_optimizer *optimizer, iso_state_dict *out);
// As iso_module_load_state_dict. Replaces lr and all other hyperparameters too, as PyTorch does;
// those that it would refuse are ISO_ERR_ARG, other groups ISO_ERR_MISMATCH. Numbers of updates may
// be of a floating-point type, as PyTorch's are. A dict without any (earlier versions made such) is
// not lacking them: each parameter then has its group's number of steps. State that updates with
// the hyperparameters of dict do not use may be there or not, as PyTorch's files lack it:
// momentum_buffer of SGD and RMSprop without momentum, grad_avg of RMSprop that is not centered.
// Where it is missing it becomes zeros, and keys does not list it.
iso_status iso_optimizer_load_state_dict(iso_optimizer *optimizer, const iso_state_dict *dict,
                                         bool strict, iso_incompatible_keys *keys);

#ifdef __cplusplus
}
#endif
#endif
