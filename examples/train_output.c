// Writes the files of a training run, checkpoints and the trace, whole or not at all.
#include "train.h"

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
        return train_error(ISO_ERR_IO, "cannot write %s %s: there is something else of that name",
                           what, path);
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return train_error(ISO_ERR_IO, "cannot write %s %s: %s", what, path, strerror(errno));
    close(file);
    unlink(temporary);
    return ISO_OK;
}

// ---- Checkpoints --------------------------------------------------------------------------------

typedef iso_status (*checkpoint_call)(const char *path, const iso_named_tensor *tensors, int count);

static iso_status with_tensors(const iso_parameter_list *list, const char *path,
                               checkpoint_call call) {
    iso_named_tensor *tensors = calloc((size_t)list->count, sizeof(*tensors));
    if (!tensors) return train_error(ISO_ERR_NOMEM, "out of memory for checkpoint %s", path);
    iso_status status = ISO_OK;
    for (int i = 0; i < list->count && status == ISO_OK; i++) {
        tensors[i].name = list->name[i];
        status = iso_parameter_value(list->item[i], &tensors[i].tensor);
    }
    if (status == ISO_OK) status = call(path, tensors, list->count);
    free(tensors);
    return status;
}

static iso_status checkpoint(train_run *run, const char *path, checkpoint_call call) {
    iso_parameter_list list;
    TRY(iso_module_parameters(run->model, &list));
    iso_status status = with_tensors(&list, path, call);
    iso_parameter_list_destroy(&list);
    return status;
}

iso_status train_checkpoint_load(train_run *run) {
    return checkpoint(run, run->options->load, iso_checkpoint_load);
}

// Evaluation mode shows what is to be saved.
iso_status train_checkpoint_save(train_run *run) {
    iso_status status = ISO_OK;
    TRY(iso_module_train(run->model, false));
    if (run->world->rank == 0)
        status = checkpoint(run, run->options->checkpoint, iso_checkpoint_save);
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
    iso_log_set_level(ISO_LOG_ERROR); // a trace of the first steps is all that is wanted
    TRY(iso_trace_text(run->world->rank, &mine, &size));
    iso_status status = iso_comm_gather(run->world->comm, mine, size, 0, &texts, &sizes);
    iso_trace_free_text(mine);
    TRY(status);
    if (run->world->rank == 0)
        status = write_trace(run->options->trace, texts, sizes, run->world->ranks);
    iso_comm_free(texts);
    iso_comm_free(sizes);
    return status;
}
