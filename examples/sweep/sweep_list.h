// SPDX-License-Identifier: MIT
// The list of a sweep: the runs to make, one line "NAME: OPTIONS OF TRAIN" for each.
#ifndef EXAMPLES_SWEEP_LIST_H
#define EXAMPLES_SWEEP_LIST_H

#include <isotherm/status.h>
#include <stdint.h>

#ifndef SWEEP_RUNS // "make fuzz" tries shorter lists
#define SWEEP_RUNS 1024
#endif
enum { SWEEP_NAME = 64, SWEEP_TEXT = 1024, SWEEP_WORDS = 64, SWEEP_SEEDS = 256 };

typedef struct sweep_entry {
    char name[SWEEP_NAME];      // letters, digits and . _ + -, so that it is a file name too
    char file[SWEEP_NAME + 32]; // of its files, without ending: the name, or with a seed of its own
                                // NAME-seedN
    int64_t seed;               // of its own; -1: that of --seed
    char options[SWEEP_TEXT];   // the words with blanks between them
    char *words[SWEEP_WORDS];
    int word_count;
    char memory[SWEEP_TEXT]; // of `words`
} sweep_entry;

typedef struct sweep_list {
    sweep_entry **entries;
    int count;
} sweep_list;

// Adds the runs of a line. A value with commas makes one run for each item: "daso: --sync daso
// --period 4,8" makes daso-period4 and daso-period8. In a name, _ replaces characters of a value
// that names cannot have. Errors are written by train_error.
iso_status sweep_list_add(sweep_list *list, const char *line);
// Adds every line of a text. Ignores empty lines, and comments: # at the start of a line or after a
// blank begins one.
iso_status sweep_list_add_lines(sweep_list *list, const char *text);
// Makes every run with each of the seeds "1,2,3", all runs with the first seed first. At most
// SWEEP_SEEDS.
iso_status sweep_list_seeds(sweep_list *list, const char *seeds);
// Keeps the runs whose number, from 0, is I modulo N, for a shard "I/N", 0 <= I < N.
iso_status sweep_list_shard(sweep_list *list, const char *shard);
void sweep_list_free(sweep_list *list);

#endif
