// SPDX-License-Identifier: MIT
// Writes the checkpoints and the trace of a training run, each completely or not at all.
#include "support/models.h"
#include "train.h"
#include "train_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_ROOM 4096

static iso_status temporary_name(const char *path, const char *what, char out[PATH_ROOM]) {
    int length = snprintf(out, PATH_ROOM, "%s.tmp.%ld", path, (long)getpid());
    if (length >= PATH_ROOM)
        return train_error(ISO_ERR_ARG, "the name of the %s is too long: %.80s...", what, path);
    return ISO_OK;
}

iso_status train_output_check(const char *path, const char *what) {
    char temporary[PATH_ROOM];
    struct stat info;
    TRY(temporary_name(path, what, temporary));
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return train_error(ISO_ERR_IO,
                           "cannot write %s %s: that name is taken by something that is not a file",
                           what, path);
    // One that is there is of a run that was killed: no other process of this host has our number.
    if (lstat(temporary, &info) == 0 && S_ISREG(info.st_mode)) unlink(temporary);
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return train_error(ISO_ERR_IO, "cannot write %s %s: %s", what, path, strerror(errno));
    close(file);
    unlink(temporary);
    return ISO_OK;
}

// ---- Checkpoints --------------------------------------------------------------------------------

// As "X X ...", one for each channel, which read back as the same numbers.
static iso_status put_channels(iso_state_dict *dict, const char *key, const double *numbers,
                               int64_t channels) {
    size_t room = (size_t)channels * 26 + 1, used = 0;
    char *text = calloc(room, 1);
    if (!text) return train_error(ISO_ERR_NOMEM, "out of memory for a checkpoint");
    for (int64_t c = 0; c < channels; c++)
        used += (size_t)snprintf(text + used, room - used, c ? " %.17g" : "%.17g", numbers[c]);
    iso_status status = iso_state_dict_set_metadata(dict, key, text);
    free(text);
    return status;
}

// What has to be known besides the tensors to classify images: predict reads it.
static iso_status add_description(const train_run *run, iso_state_dict *dict) {
    const iso_dataset_info *info = &run->world->info;
    char shape[80], classes[16];
    snprintf(shape, sizeof(shape), "%lld %lld %lld", (long long)info->channels,
             (long long)info->height, (long long)info->width);
    snprintf(classes, sizeof(classes), "%d", info->classes);
    TRY(iso_state_dict_set_metadata(dict, "isotherm.model", run->options->model));
    if (run->options->activations)
        TRY(iso_state_dict_set_metadata(dict, "isotherm.activations", run->options->activations));
    TRY(iso_state_dict_set_metadata(dict, "isotherm.dtype", run->options->dtype));
    TRY(iso_state_dict_set_metadata(dict, "isotherm.shape", shape));
    TRY(iso_state_dict_set_metadata(dict, "isotherm.classes", classes));
    const double *mean = run->normalisation;
    TRY(put_channels(dict, "isotherm.mean", mean, info->channels));
    return put_channels(dict, "isotherm.std", mean + info->channels, info->channels);
}

iso_status train_check_finite(const train_run *run, const char *what, const char *remedy) {
    char name[128];
    TRY(model_find_not_finite(run->model, name, sizeof(name)));
    if (!name[0]) return ISO_OK;
    return train_error(ISO_ERR_STATE, "%s: parameter %s is not finite: %s", what, name, remedy);
}

// Otherwise the names of all tensors would say so.
static iso_status check_model(const train_run *run, const iso_state_dict *dict) {
    const char *path = run->options->load, *here = run->options->model;
    const char *there = iso_state_dict_metadata(dict, "isotherm.model");
    bool known = there && iso_setting_among(there, MODEL_NAMES);
    if (!known || strcmp(here, there) == 0) return ISO_OK;
    return train_error(ISO_ERR_MISMATCH,
                       "%s has the parameters of --model %s, and this run has --model %s: give "
                       "--model %s, or load another file",
                       path, there, here, there);
}

// Networks with other activations have the same names and shapes. A checkpoint that train did not
// write does not name its activations.
static iso_status check_activations(const train_run *run, const iso_state_dict *dict) {
    const char *path = run->options->load, *here = run->options->activations;
    const char *there = iso_state_dict_metadata(dict, "isotherm.activations");
    if (!iso_state_dict_metadata(dict, "isotherm.model")) return ISO_OK;
    if (!here) here = "relu";
    if (!there) there = "relu";
    if (strcmp(here, there) == 0) return ISO_OK;
    if (!model_activations_fit(there))
        return train_error(ISO_ERR_FORMAT,
                           "%s has a damaged metadata entry isotherm.activations: \"%.60s\" is "
                           "not " MODEL_ACTIVATIONS_RULE,
                           path, there);
    return train_error(ISO_ERR_MISMATCH,
                       "%s has the activations %s, and this network %s: give --activations %s",
                       path, there, here, there);
}

iso_status train_checkpoint_load(train_run *run) {
    const char *path = run->options->load;
    iso_state_dict dict;
    TRY(iso_state_dict_read(path, run->world->device, &dict));
    iso_status status = check_model(run, &dict);
    if (status >= 0) status = check_activations(run, &dict);
    if (status < 0) iso_state_dict_destroy(&dict);
    TRY(status);
    status = iso_module_load_state_dict(run->model, &dict, true, NULL);
    iso_state_dict_destroy(&dict);
    if (status == ISO_ERR_MISMATCH)
        return train_error(status, "cannot load %s for --model %s: %s", path, run->options->model,
                           iso_last_error()->message);
    if (status >= 0 && !model_choices_fit(run->model))
        return train_error(ISO_ERR_FORMAT,
                           "%s is damaged: a layer's choice is none of its activations; load "
                           "another file",
                           path);
    return status < 0 ? status
                      : train_check_finite(run, path, "its training diverged, load another file");
}

static iso_status save_checkpoint(train_run *run, const char *path) {
    iso_state_dict dict;
    TRY(train_check_finite(run, "the training diverged, nothing was saved", train_nan_advice(run)));
    TRY(iso_module_state_dict(run->model, &dict));
    iso_status status = add_description(run, &dict);
    if (status >= 0) status = iso_state_dict_save(&dict, path);
    iso_state_dict_destroy(&dict);
    return status;
}

// Evaluation mode sets the parameters to what is saved: in periodic modes, their mean.
iso_status train_checkpoint_save(train_run *run, const char *path) {
    iso_status status = ISO_OK;
    TRY(iso_module_train(run->model, false));
    if (run->world->rank == 0) status = save_checkpoint(run, path);
    TRY(iso_comm_agree(run->world->comm, status));
    return iso_module_train(run->model, true);
}

// ---- The trace ----------------------------------------------------------------------------------

// texts: what each rank recorded, one after the other.
static bool write_json(FILE *to, const char *texts, const size_t *sizes, int ranks) {
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", to);
    for (int r = 0; r < ranks; texts += sizes[r++]) {
        if (r > 0) fputs(",\n", to);
        fwrite(texts, 1, sizes[r], to);
    }
    fputs("\n]}\n", to);
    return fflush(to) == 0 && !ferror(to);
}

static iso_status write_trace(const char *path, const char *texts, const size_t *sizes, int ranks) {
    char temporary[PATH_ROOM];
    TRY(temporary_name(path, "trace", temporary));
    FILE *to = fopen(temporary, "w");
    bool good = to && write_json(to, texts, sizes, ranks);
    if (to) good = fclose(to) == 0 && good;
    if (good && rename(temporary, path) == 0) return ISO_OK;
    int error = errno;
    unlink(temporary);
    return train_error(ISO_ERR_IO, "cannot write trace %s: %s", path, strerror(error));
}

iso_status train_trace_write(train_run *run) {
    char *mine, *texts;
    size_t size, *sizes;
    iso_loader_destroy(&run->train_loader); // its thread records too
    iso_loader_destroy(&run->test_loader);
    iso_loader_destroy(&run->validation_loader);
    iso_loader_destroy(&run->match_loader);
    iso_log_set_level(ISO_LOG_ERROR); // a trace of the first steps is all that is wanted
    TRY(iso_trace_text(run->world->rank, &mine, &size));
    iso_status status = iso_comm_gather(run->world->comm, mine, size, 0, &texts, &sizes);
    if (status != ISO_ERR_TIMEOUT) iso_trace_free_text(mine); // after a time-out MPI may read it
    TRY(status);
    if (run->world->rank == 0)
        status = write_trace(run->options->trace, texts, sizes, run->world->ranks);
    iso_comm_free(texts);
    iso_comm_free(sizes);
    return status;
}
