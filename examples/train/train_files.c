// SPDX-License-Identifier: MIT
// Checks the files of a run before anything is written.
#include "train_files.h"

#include "train_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Names --------------------------------------------------------------------------------------

static const char *name_in_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void folder_of(const char *path, char out[PATH_MAX]) {
    int length = (int)(name_in_folder(path) - path);
    snprintf(out, PATH_MAX, "%.*s", length > 0 ? length : 1, length > 0 ? path : ".");
}

static bool stat_folder(const char *path, struct stat *out) {
    char folder[PATH_MAX];
    folder_of(path, folder);
    return stat(folder, out) == 0;
}

// Whether both are one name, of a file that need not exist: "checkpoint" and "/tmp/checkpoint" can.
static bool is_same_name(const char *a, const char *b) {
    struct stat at_a, at_b;
    if (strcmp(a, b) == 0) return true;
    return strcmp(name_in_folder(a), name_in_folder(b)) == 0 && stat_folder(a, &at_a) &&
           stat_folder(b, &at_b) && at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

// Follows a chain of links, whose end need not exist. A name that becomes too long is cut off.
static void follow_links(const char *path, char out[PATH_MAX]) {
    enum { MOST = 40 }; // as the system follows
    char target[PATH_MAX], whole[2 * PATH_MAX];
    snprintf(out, PATH_MAX, "%s", path);
    for (int i = 0; i < MOST; i++) {
        ssize_t length = readlink(out, target, sizeof(target) - 1);
        if (length < 0) return;
        target[length] = 0;
        int folder = target[0] == '/' ? 0 : (int)(name_in_folder(out) - out);
        snprintf(whole, sizeof(whole), "%.*s%s", folder, out, target);
        snprintf(out, PATH_MAX, "%.*s", PATH_MAX - 1, whole);
    }
}

// Whether both lead to one file, also by links.
static bool is_same_file(const char *a, const char *b) {
    struct stat at_a, at_b;
    char end_a[PATH_MAX], end_b[PATH_MAX];
    bool is_a = stat(a, &at_a) == 0, is_b = stat(b, &at_b) == 0;
    if (is_a && is_b) return at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
    if (is_a || is_b) return false;
    follow_links(a, end_a);
    follow_links(b, end_b);
    return is_same_name(end_a, end_b);
}

bool train_files_continue(const train_options *o) {
    return o->resume && o->checkpoint && is_same_name(o->resume, o->checkpoint);
}

// ---- Outputs that are inputs, or one file ---------------------------------------------------------

// Whether path is a file of the folder whose name begins with one of these.
static bool is_among(const char *path, const char *folder, const char *const *begins) {
    char file[PATH_MAX];
    const struct dirent *entry;
    DIR *from = opendir(folder);
    bool found = false;
    while (from && !found && (entry = readdir(from)))
        for (const char *const *begin = begins; *begin && !found; begin++) {
            if (strncmp(entry->d_name, *begin, strlen(*begin)) != 0) continue;
            snprintf(file, sizeof(file), "%s/%s", folder, entry->d_name);
            found = is_same_file(path, file);
        }
    if (from) closedir(from);
    return found;
}

static bool is_saved_state(const char *path, const char *resume) {
    char folder[PATH_MAX], begin[PATH_MAX];
    folder_of(resume, folder);
    snprintf(begin, sizeof(begin), "%s.step-", name_in_folder(resume));
    return is_same_file(path, resume) || is_among(path, folder, (const char *const[]){begin, NULL});
}

static bool is_picture(const char *path, const char *folder) {
    char file[PATH_MAX], top[PATH_MAX];
    const char *end = strrchr(path, '.');
    bool named = end && (strcasecmp(end, ".jpg") == 0 || strcasecmp(end, ".jpeg") == 0 ||
                         strcasecmp(end, ".png") == 0);
    if (!named || !realpath(path, file) || !realpath(folder, top)) return false;
    size_t length = strlen(top);
    return strncmp(file, top, length) == 0 && file[length] == '/';
}

static bool is_data(const train_run *run, const char *path) {
    static const char *const parts[] = {"train-images", "train-labels", "t10k-images",
                                        "t10k-labels", NULL};
    const char *data = run->options->data;
    if (strcmp(data, "digits") == 0) return false;
    if (train_images_are_open(run->world)) return is_picture(path, data);
    return is_same_file(path, data) || is_among(path, data, parts);
}

// The option whose file this output would overwrite; NULL: none. A checkpoint may replace one.
static const char *overwritten_input(const train_run *run, const char *path, bool checkpoint) {
    const train_options *o = run->options;
    if (!checkpoint && o->load && is_same_file(path, o->load)) return "--load";
    if (!checkpoint && o->resume && is_saved_state(path, o->resume)) return "--resume";
    if (o->replay && is_same_file(path, o->replay)) return "--replay";
    if (o->plugin && is_same_file(path, o->plugin)) return "--plugin";
    return is_data(run, path) ? "--data" : NULL;
}

static iso_status refuse_clashes(const train_run *run) {
    const train_options *o = run->options;
    const char *path[] = {o->checkpoint, o->checkpoint_best, o->log, o->trace};
    static const char *const option[] = {"--checkpoint", "--checkpoint-best", "--log", "--trace"};
    for (int i = 0; i < 4; i++) {
        if (!path[i]) continue;
        for (int k = 0; k < i; k++)
            if (path[k] && is_same_file(path[i], path[k]))
                return train_error(ISO_ERR_ARG, "two outputs would go to %s: give another %s",
                                   path[i], option[i]);
        const char *input = overwritten_input(run, path[i], i < 2);
        if (input)
            return train_error(ISO_ERR_ARG, "%s %s would overwrite a file of %s: give another %s",
                               option[i], path[i], input, option[i]);
    }
    return ISO_OK;
}

// ---- Files that exist ---------------------------------------------------------------------------

static iso_status refuse_sets(const train_options *o) {
    int64_t newest;
    TRY(iso_resume_newest(o->checkpoint, &newest));
    if (newest < 0) return ISO_OK;
    return train_error(
        ISO_ERR_STATE,
        "saved states of %s exist up to step %lld: continue with --resume %s, give another "
        "--checkpoint, or replace them with --overwrite",
        o->checkpoint, (long long)newest, o->checkpoint);
}

// Refuses a file that exists and is not empty. Pipes and devices are accepted.
static iso_status refuse_file(const char *path, const char *what) {
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return ISO_OK;
    return train_error(ISO_ERR_STATE,
                       "the %s %s exists: give another --%s, or replace it with "
                       "--overwrite",
                       what, path, what);
}

// Of a run that empties its log: iso_json_log_create locks it like this. Asked early, because event
// files and states are removed before the log is opened.
static iso_status refuse_written_log(const train_options *o) {
    struct stat info;
    bool anew = o->log && !o->resume && !(o->resume_auto && !o->overwrite);
    if (!anew || stat(o->log, &info) != 0 || !S_ISREG(info.st_mode)) return ISO_OK;
    int file = open(o->log, O_WRONLY | O_CLOEXEC);
    bool written = file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (file >= 0) close(file);
    if (!written) return ISO_OK;
    return train_error(ISO_ERR_STATE,
                       "another process writes the log %s: wait until it ends, or give another "
                       "--log",
                       o->log);
}

// Beside the file itself: links to it share its lock.
static iso_status take_lock(const char *checkpoint, const char *option) {
    char path[PATH_MAX], file[PATH_MAX];
    if (!checkpoint) return ISO_OK;
    follow_links(checkpoint, file);
    if (snprintf(path, sizeof(path), "%s.lock", file) >= PATH_MAX)
        return train_error(ISO_ERR_ARG, "the value of %s is too long: %.80s...", option,
                           checkpoint);
    return train_lock_take(&(train_lock){checkpoint, path, "training run", option});
}

iso_status train_files_check(const train_run *run) {
    const train_options *o = run->options;
    TRY(refuse_clashes(run));
    if (o->trace) TRY(train_output_check(o->trace, "trace"));
    if (o->checkpoint) TRY(train_output_check(o->checkpoint, "checkpoint"));
    if (o->checkpoint_best) TRY(train_output_check(o->checkpoint_best, "checkpoint-best"));
    // A sweep has locked its folder.
    if (run->locks == 0) TRY(take_lock(o->checkpoint, "--checkpoint"));
    if (run->locks == 0) TRY(take_lock(o->checkpoint_best, "--checkpoint-best"));
    TRY(train_log_check(o));
    TRY(refuse_written_log(o));
    if (o->overwrite) return ISO_OK;
    if (!o->resume) TRY(refuse_file(o->checkpoint_best, "checkpoint-best"));
    if (!o->resume) TRY(refuse_file(o->trace, "trace"));
    if (o->checkpoint && !train_files_continue(o)) TRY(refuse_sets(o));
    if (!train_files_continue(o)) TRY(refuse_file(o->checkpoint, "checkpoint"));
    return o->resume || o->resume_auto ? ISO_OK : refuse_file(o->log, "log");
}

iso_status train_files_check_resumed(const train_run *run) {
    const train_options *o = run->options;
    return run->world->rank != 0 || o->overwrite ? ISO_OK : refuse_file(o->trace, "trace");
}
