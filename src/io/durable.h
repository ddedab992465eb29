// SPDX-License-Identifier: MIT
// What is written survives a loss of power, and other writers.
#ifndef ISO_DURABLE_H
#define ISO_DURABLE_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdio.h>

// The folder of a file: its new names. what: "checkpoint" and the like, for messages.
iso_status iso__sync_folder(const char *what, const char *path);
// A stream that was flushed. Does nothing for pipes and devices. *placed: whether its folder was
// synced; becomes true.
iso_status iso__sync_stream(FILE *file, const char *what, const char *path, bool *placed);
// Claims a regular file for its writer, until it is closed. False: another writer holds it; on NFS,
// possibly one whose host was lost. True for pipes and devices, and on file systems that cannot
// lock files, or whose locks keep readers out (SMB).
bool iso__claim_file(int file);

#endif
