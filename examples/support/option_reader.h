// SPDX-License-Identifier: MIT
// Reads a command line of options --KEY VALUE and --KEY=VALUE, as a list of settings describes them
// (isotherm/strategy.h), and prints their help.
#ifndef EXAMPLES_OPTION_READER_H
#define EXAMPLES_OPTION_READER_H

#include <isotherm/strategy.h>
#include <stdio.h>

enum {
    OPTIONS_MOST = 256,
    OPTION_COLUMN = 28 // the column of the help where meanings begin
};

// A setting without a key is a heading of the help; `meaning` is its text.
typedef struct option_list {
    const iso_setting *item[OPTIONS_MOST];
    int count;
    char given[OPTIONS_MOST]; // the section of the command line that option_take found it in, from
                              // 1; 0: not given
} option_list;

// Adds settings; there must be room.
void option_list_add(option_list *list, const iso_setting *settings, int count);
// Whether a word is "--KEY", alone or followed by one of the characters of `ends`.
bool option_is(const char *word, const char *key, const char *ends);
// The index of the option in a word "--lr" or "--lr=3"; -1: none.
int option_find(const option_list *list, const char *word);

// Local. Sets a field to its default or, without one, an integer to -1, a number to NaN, a text to
// NULL and a switch to false.
iso_status option_set_default(const iso_setting *setting, void *fields);
// As iso_setting_set, with the name of the option in its message.
iso_status option_set(const iso_setting *setting, const char *value, void *fields);
// Takes the option argv[*at] and its value; if the value is a separate argument, moves *at to it.
// *place: the option's index in the list. *value: the value. section: of the command line, from 1;
// in each an option may be given once. ISO_ERR_ARG with a message.
iso_status option_take(option_list *list, char section, int argc, char **argv, int *at, int *place,
                       const char **value);
// ISO_ERR_ARG for an option that is not in the list. The message names the most similar one.
iso_status option_refuse(const option_list *list, const char *argument);

// Prints the help of a setting, or a heading. notes follows its meaning; NULL: the option it
// depends on, and its default.
void option_print(const iso_setting *setting, const char *notes, FILE *to);

#endif
