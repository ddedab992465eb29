// SPDX-License-Identifier: MIT
// Reads the flight records of a job and names the rank that is behind: postmortem FOLDER. Needs no
// MPI launcher.
#include "postmortem.h"

#include "support/usage.h"

#include <isotherm/version.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Reads the flight records of a job that hangs or has failed: postmortem FOLDER [OPTION]\n"
    "(installed as iso-postmortem)\n"
    "\n"
    "Every program that uses the library writes such records, one file a rank, if the environment\n"
    "variable ISO_RECORDER names a folder. Prints what each rank did last, the first operation "
    "that\n"
    "differs between ranks, and the ranks that are behind the others. It needs no launcher, and "
    "the\n"
    "job may still be running.\n"
    "\n"
    "  --stacks                  print the stacks of ranks that timed out or died\n"
    "  --entries RANK            print the entries of one rank, the oldest first: number, time,\n"
    "                            event, stream, sequence number or status, bytes, name\n"
    "  --help                    print this text\n"
    "  --version                 print the version\n";

typedef struct options {
    const char *folder, *rank;
    bool stacks;
} options;

static int refuse_input(const char *problem, const char *what) {
    fprintf(stderr, "postmortem: %s%s: see --help\n", problem, what);
    return EXIT_FAILURE;
}

static int read_options(int argc, char **argv, options *out) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--entries") == 0 && i + 1 < argc)
            out->rank = argv[++i];
        else if (strncmp(word, "--entries=", 10) == 0)
            out->rank = word + 10;
        else if (strcmp(word, "--stacks") == 0)
            out->stacks = true;
        else if (strcmp(word, "--entries") == 0)
            return refuse_input("give a rank after ", word);
        else if (word[0] == '-')
            return refuse_input("unknown option ", word);
        else if (out->folder)
            return refuse_input("give one folder, not also ", word);
        else
            out->folder = word;
    }
    return out->folder ? EXIT_SUCCESS : refuse_input("give the folder of the records", "");
}

static int print_rank(const job *j, const char *text) {
    char *end;
    errno = 0;
    long rank = strtol(text, &end, 10);
    if (end == text || *end || errno || rank < 0 || rank >= j->size)
        return fprintf(stderr, "postmortem: --entries %s: give a rank from 0 to %d\n", text,
                       j->size - 1),
               EXIT_FAILURE;
    if (!j->rank[rank].file)
        return fprintf(stderr, "postmortem: there is no record of rank %ld\n", rank), EXIT_FAILURE;
    job_print_entries(&j->rank[rank], stdout);
    return EXIT_SUCCESS;
}

static int analyse_job(const options *o) {
    job j;
    if (job_read(o->folder, &j) < 0) {
        fprintf(stderr, "postmortem: %s\n", iso_last_error()->message);
        return EXIT_FAILURE;
    }
    int code = EXIT_SUCCESS;
    if (o->rank)
        code = print_rank(&j, o->rank);
    else
        (o->stacks ? job_print_stacks : job_print)(&j, stdout);
    job_free(&j);
    return code;
}

int main(int argc, char **argv) {
    options o = {0};
    for (int i = 1; i < argc; i++) {
        if (usage_is_help(argv[i])) return fputs(help, stdout), EXIT_SUCCESS;
        if (strcmp(argv[i], "--version") == 0) return puts("isotherm " ISO_VERSION), EXIT_SUCCESS;
    }
    int code = read_options(argc, argv, &o);
    if (code == EXIT_SUCCESS) code = analyse_job(&o);
    const char *problem = usage_output_problem();
    if (code != EXIT_SUCCESS || !problem) return code;
    fprintf(stderr, "postmortem: cannot write to standard output: %s\n", problem);
    return EXIT_FAILURE;
}
