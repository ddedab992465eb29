// SPDX-License-Identifier: MIT
// Makes folders.
#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

iso_status iso__make_folders(const char *folder) {
    char path[PATH_MAX];
    ISO_CHECK(folder[0] && strlen(folder) < PATH_MAX, ISO_ERR_ARG,
              "the name of a folder is empty or too long: \"%.80s\"", folder);
    strcpy(path, folder);
    for (char *at = path + 1;; at++) {
        char c = *at;
        if (c && c != '/') continue;
        *at = 0;
        // A parent may exist, although its own parent permits no new folders.
        ISO_CHECK(mkdir(path, 0777) == 0 || errno == EEXIST || (c && errno != ENOENT), ISO_ERR_IO,
                  "cannot make the folder %s: %s", path, strerror(errno));
        *at = c;
        if (!c) return ISO_OK;
    }
}
