// SPDX-License-Identifier: MIT
// Writes small pictures of three classes in which one of the colours is the brightest:
// make_pictures FOLDER TRAIN VAL, with so many of each class in FOLDER/train and FOLDER/val; with
// VAL 0, TRAIN of each class in FOLDER itself. Sizes differ; JPEG and PNG take turns. Exits with 77
// if this build has no libjpeg or libpng.
#include "common/picture_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { CLASSES = 3, PATH_ROOM = 4096, MOST = 64 };

// The order of the names is that of the channels.
static const char *const names[CLASSES] = {"a red one", "green", "vivid blue"};

static void write_one(const char *path, picture_kind kind, int number, int class) {
    static uint8_t pixels[MOST * MOST * 3];
    int width = 12 + number * 7 % 30, height = 12 + number * 11 % 25;
    for (int p = 0; p < width * height * 3; p++)
        pixels[p] = (uint8_t)((p % 3 == class ? 150 : 40) + (p * 31 + number * 17) % 80);
    picture_write(path, kind, width, height, pixels);
}

static void write_set(const char *folder, int first, int count) {
    char path[PATH_ROOM];
    mkdir(folder, 0777);
    for (int class = 0; class < CLASSES; class ++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[class]);
        mkdir(path, 0777);
        for (int i = first; i < first + count; i++) {
            bool jpeg = i % 2;
            snprintf(path, sizeof(path), "%s/%s/picture %d.%s", folder, names[class], i,
                     jpeg ? "JPEG" : "png");
            write_one(path, jpeg ? PICTURE_JPEG : PICTURE_PNG, i, class);
        }
    }
}

int main(int argc, char **argv) {
    char path[PATH_ROOM];
    if (argc != 4) {
        fputs("usage: make_pictures FOLDER TRAIN VAL\n", stderr);
        return EXIT_FAILURE;
    }
    if (!pictures_are_there()) return 77;
    int train = atoi(argv[2]), val = atoi(argv[3]);
    mkdir(argv[1], 0777);
    snprintf(path, sizeof(path), "%s%s", argv[1], val > 0 ? "/train" : "");
    write_set(path, 0, train);
    snprintf(path, sizeof(path), "%s/val", argv[1]);
    if (val > 0) write_set(path, train, val);
    return EXIT_SUCCESS;
}
