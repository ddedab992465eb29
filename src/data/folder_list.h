// SPDX-License-Identifier: MIT
// Private to src/data: lists the pictures in class folders.
#ifndef ISO_FOLDER_LIST_H
#define ISO_FOLDER_LIST_H

#include "base/base.h"

#include <stdbool.h>

// Texts that lie one behind the other, each with a 0 behind it.
typedef struct iso__texts {
    char *text;
    size_t bytes, room;
    int64_t *start; // [count], offsets in text
    int64_t count, places;
} iso__texts;
const char *iso__texts_at(const iso__texts *texts, int64_t i);
void iso__texts_free(iso__texts *texts);

typedef struct iso__folder_list {
    iso__texts
        classes;      // names of folders, sorted by their bytes; the number of a name is its label
    iso__texts paths; // of pictures below the folder, in the order of the classes
    void *labels;     // int32_t [paths.count]
    int64_t places;   // for which labels has room
} iso__folder_list;

// Whether a path is a folder.
bool iso__is_folder(const char *path);
// Whether a folder has folders; pictures: folders that hold a picture themselves.
bool iso__has_folders(const char *path, bool pictures);
// Lists the pictures of `folder`, whose folders are the classes. classes_of: the folder whose
// folders number the classes; another one than `folder` may lack some of them. ISO_ERR_IO: a folder
// is missing or cannot be read; ISO_ERR_FORMAT: no class, a class without pictures (not where
// classes_of is another folder), an unknown class, or a picture of a kind that is not read.
iso_status iso__folder_list_create(const char *folder, const char *classes_of,
                                   iso__folder_list *out);
void iso__folder_list_free(iso__folder_list *list);

#endif
