// SPDX-License-Identifier: MIT
// Waits until files and their names are on disk, and keeps other writers away.
#include "io/durable.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/vfs.h>
#endif

// Some file systems cannot sync; a folder that may not be read cannot be synced either.
static bool cannot_sync(int error) {
    return error == EINVAL || error == ENOTSUP || error == EROFS || error == EACCES;
}

iso_status iso__sync_folder(const char *what, const char *path) {
    char *folder;
    ISO_TRY(iso__strdup(path, &folder));
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int file = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool bad = file < 0 || fsync(file) != 0;
    int error = errno;
    if (file >= 0) close(file);
    iso__free(folder);
    ISO_CHECK(!bad || cannot_sync(error), ISO_ERR_IO, "cannot sync the folder of %s %s: %s", what,
              path, strerror(error));
    return ISO_OK;
}

iso_status iso__sync_stream(FILE *file, const char *what, const char *path, bool *placed) {
    struct stat info;
    bool known = fstat(fileno(file), &info) == 0;
    if (known && !S_ISREG(info.st_mode)) return ISO_OK;
    bool bad = !known || fsync(fileno(file)) != 0;
    ISO_CHECK(!bad || cannot_sync(errno), ISO_ERR_IO, "cannot write %s %s: %s", what, path,
              strerror(errno));
    if (!*placed) ISO_TRY(iso__sync_folder(what, path));
    *placed = true;
    return ISO_OK;
}

// On SMB a lock also keeps readers out.
static bool locks_out_readers(int file) {
#ifdef __linux__
    enum { SMB = 0x517B };
    static const uint32_t cifs = 0xFF534D42, smb2 = 0xFE534D42;
    struct statfs info;
    if (fstatfs(file, &info) != 0) return false;
    uint32_t type = (uint32_t)info.f_type;
    return type == SMB || type == cifs || type == smb2;
#else
    (void)file;
    return false;
#endif
}

bool iso__claim_file(int file) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || locks_out_readers(file)) return true;
    return flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}
