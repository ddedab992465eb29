// SPDX-License-Identifier: MIT
// Checks the files of a run before anything is written.
#include "train_files.h"

#include "train_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
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

// Whether both lead to one name. A new file that takes it leaves hard links to the old one alone.
static bool is_same_end(const char *a, const char *b) {
    char end_a[PATH_MAX], end_b[PATH_MAX];
    follow_links(a, end_a);
    follow_links(b, end_b);
    return is_same_name(end_a, end_b);
}

// Whether both lead to one file, also by hard links.
static bool is_same_file(const char *a, const char *b) {
    struct stat at_a, at_b;
    bool is_a = stat(a, &at_a) == 0, is_b = stat(b, &at_b) == 0;
    if (is_a && is_b) return at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
    return !is_a && !is_b && is_same_end(a, b);
}

bool train_files_continue(const train_options *o) {
    return o->resume && o->checkpoint && is_same_name(o->resume, o->checkpoint);
}

// ---- Outputs that are inputs, or one file ---------------------------------------------------------

typedef struct output {
    const char *path, *option;
    bool in_place; // it is written to the file that is there; others take the name of that file
    bool checkpoint;
} output;

static bool would_overwrite(const output *out, const char *file) {
    return out->in_place ? is_same_file(out->path, file) : is_same_end(out->path, file);
}

// Whether it would overwrite a file of the folder that has such a name.
static bool is_among(const output *out, const char *folder,
                     bool (*is_such)(const char *name, const char *base), const char *base) {
    char file[PATH_MAX + NAME_MAX + 2];
    const struct dirent *entry;
    DIR *from = opendir(folder);
    bool found = false;
    while (from && !found && (entry = readdir(from))) {
        if (!is_such(entry->d_name, base)) continue;
        snprintf(file, sizeof(file), "%s/%s", folder, entry->d_name);
        found = would_overwrite(out, file);
    }
    if (from) closedir(from);
    return found;
}

// BASE.step-STEP and BASE.step-STEP.rank-RANK: see resume.h.
static bool is_state_name(const char *name, const char *base) {
    static const char step[] = ".step-", rank[] = ".rank-";
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0) return false;
    name += length;
    if (strncmp(name, step, strlen(step)) != 0) return false;
    name += strlen(step);
    size_t digits = strspn(name, "0123456789");
    return digits >= 12 && (!name[digits] || strncmp(name + digits, rank, strlen(rank)) == 0);
}

// The checkpoint of the run may be the one that it goes on with.
static bool is_saved_state(const output *out, const char *resume) {
    char folder[PATH_MAX];
    if (would_overwrite(out, resume)) return strcmp(out->option, "--checkpoint") != 0;
    folder_of(resume, folder);
    return is_among(out, folder, is_state_name, name_in_folder(resume));
}

// Of a file of MNIST: see dataset.h.
static bool is_idx_name(const char *name, const char *base) {
    static const char *const patterns[] = {"-images[-.]idx[34]-ubyte", "-labels[-.]idx1-ubyte"};
    static const char *const sets[] = {"train", "t10k"};
    char pattern[64];
    (void)base;
    for (int i = 0; i < 8; i++) {
        snprintf(pattern, sizeof(pattern), "%s%s%s", sets[i & 1], patterns[i >> 1 & 1],
                 i & 4 ? ".gz" : "");
        if (fnmatch(pattern, name, 0) == 0) return true;
    }
    return false;
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

static bool is_data(const train_run *run, const output *out) {
    const char *data = run->options->data;
    if (strcmp(data, "digits") == 0) return false;
    if (train_images_are_open(run->world)) return is_picture(out->path, data);
    return would_overwrite(out, data) || is_among(out, data, is_idx_name, NULL);
}

// The option whose file this output would overwrite; NULL: none. A checkpoint may replace one.
static const char *overwritten_input(const train_run *run, const output *out) {
    const train_options *o = run->options;
    if (!out->checkpoint && o->load && would_overwrite(out, o->load)) return "--load";
    if (o->resume && is_saved_state(out, o->resume)) return "--resume";
    if (o->replay && would_overwrite(out, o->replay)) return "--replay";
    if (o->plugin && would_overwrite(out, o->plugin)) return "--plugin";
    return is_data(run, out) ? "--data" : NULL;
}

// Of two outputs. One that is written in place would write to a hard link of the other.
static bool are_one_file(const output *a, const output *b) {
    return would_overwrite(a->in_place ? a : b, a->in_place ? b->path : a->path);
}

static iso_status refuse_clashes(const train_run *run) {
    const train_options *o = run->options;
    const output out[] = {{o->checkpoint, "--checkpoint", false, true},
                          {o->checkpoint_best, "--checkpoint-best", false, true},
                          {o->log, "--log", true, false},
                          {o->trace, "--trace", false, false}};
    for (int i = 0; i < 4; i++) {
        const char *path = out[i].path, *option = out[i].option;
        if (!path) continue;
        for (int k = 0; k < i; k++)
            if (out[k].path && are_one_file(&out[i], &out[k]))
                return train_error(ISO_ERR_ARG, "two outputs would go to %s: give another %s", path,
                                   option);
        const char *input = overwritten_input(run, &out[i]);
        if (input)
            return train_error(ISO_ERR_ARG, "%s %s would overwrite a file of %s: give another %s",
                               option, path, input, option);
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
                       "--log (if there is no such process, remove %s)",
                       o->log, o->log);
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
