// SPDX-License-Identifier: MIT
// Waits until files and their names are on disk.
#include "io/durable.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// File systems that cannot sync folders return EINVAL.
iso_status iso__sync_folder(const char *what, const char *path) {
    char *folder;
    ISO_TRY(iso__strdup(path, &folder));
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int file = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool bad = file < 0 || (fsync(file) != 0 && errno != EINVAL);
    int error = errno;
    if (file >= 0) close(file);
    iso__free(folder);
    ISO_CHECK(!bad, ISO_ERR_IO, "cannot sync the folder of %s %s: %s", what, path, strerror(error));
    return ISO_OK;
}

iso_status iso__sync_stream(FILE *file, const char *what, const char *path, bool *placed) {
    struct stat info;
    bool known = fstat(fileno(file), &info) == 0;
    if (known && !S_ISREG(info.st_mode)) return ISO_OK;
    ISO_CHECK(known && fsync(fileno(file)) == 0, ISO_ERR_IO, "cannot write %s %s: %s", what, path,
              strerror(errno));
    if (!*placed) ISO_TRY(iso__sync_folder(what, path));
    *placed = true;
    return ISO_OK;
}
