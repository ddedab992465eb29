// SPDX-License-Identifier: MIT
// Reads a command line of options --KEY VALUE and --KEY=VALUE, as a list of settings describes them
// (isotherm/strategy.h), and prints their help.
#ifndef EXAMPLES_OPTION_READER_H
#define EXAMPLES_OPTION_READER_H

#include <isotherm/strategy.h>
#include <stdio.h>

enum { OPTIONS_MOST = 256, OPTION_COLUMN = 28 }; // of meanings in the help

// Of a setting without a key, meaning is the heading of those that follow in the help.
typedef struct option_list {
    const iso_setting *item[OPTIONS_MOST];
    int count;
    char given[OPTIONS_MOST]; // by option_take: the section of the command line that has it, from 1
} option_list;

// Adds settings; there must be room.
void option_list_add(option_list *list, const iso_setting *settings, int count);
// Whether a word is "--KEY", alone or before one of the characters of ends.
bool option_is(const char *word, const char *key, const char *ends);
// The place of the option of a word "--lr" or "--lr=3"; -1: there is none.
int option_find(const option_list *list, const char *word);

// Local. Fields of integers become -1, of numbers NaN, of texts NULL and of switches false; then
// those with a default get it.
iso_status option_set_default(const iso_setting *setting, void *fields);
// As iso_setting_set, with the name of the option in its sentence.
iso_status option_set(const iso_setting *setting, const char *value, void *fields);
// Takes the option argv[*at] and the value after it: its place in the list, and the value. section:
// of the command line, from 1; in each an option may be given once. ISO_ERR_ARG with a sentence.
iso_status option_take(option_list *list, char section, int argc, char **argv, int *at, int *place,
                       const char **value);
// ISO_ERR_ARG for an option that is not in the list, with the one that is spelt most like it.
iso_status option_refuse(const option_list *list, const char *argument);

// Prints a setting of a help, or a heading. notes: behind its meaning; NULL: on what it depends,
// and its default.
void option_print(const iso_setting *setting, const char *notes, FILE *to);

#endif
