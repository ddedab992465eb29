// SPDX-License-Identifier: MIT
// Which files a run may write, and which it goes on with.
#ifndef EXAMPLES_TRAIN_FILES_H
#define EXAMPLES_TRAIN_FILES_H

#include "train.h"

// Local, on rank 0. Refuses an output that is a file which the run reads, or another output. Checks
// whether all outputs can be written, takes the locks of the checkpoints, and refuses files that
// exist unless --overwrite or --resume allows it.
iso_status train_files_check(const train_run *run);
// Local, on all ranks. Refuses an existing trace if a resumed run has steps to make. A finished run
// writes none: it may be started again.
iso_status train_files_check_resumed(const train_run *run);
// Whether the run writes to the files that it resumes from. Local: ranks may see other files.
bool train_files_continue(const train_options *options);

#endif
