// What the files of the train program share.
#ifndef EXAMPLES_TRAIN_H
#define EXAMPLES_TRAIN_H

#include "train_error.h"
#include "train_options.h"

#include <isotherm.h>

// Of so many latest steps the durations are kept.
#define TRAIN_STEP_TIMES 65536

typedef struct train_run {
    train_options options;
    iso_comm *comm;
    int rank, ranks;
    iso_device *device;
    iso_dataset *train_set, *test_set;
    iso_dataset_info info; // of the training set; classes covers the test set too
    iso_sampler *train_sampler, *test_sampler;
    iso_loader *train_loader, *test_loader;
    iso_module *model; // a data_parallel once train_setup_shared is through
    iso_loss *loss;
    iso_optimizer *optimizer;
    iso_schedule schedule;
    int64_t steps, step; // of the whole run; done
    double *step_ms;     // [TRAIN_STEP_TIMES], a ring
    iso_json_log *log;   // rank 0's, if wanted
} train_run;

// Of an epoch; loss and test figures over all ranks.
typedef struct train_figures {
    double train_loss, test_loss, test_accuracy; // accuracy in 0 .. 1
    double seconds;                              // of the training, without the test
    int64_t samples;                             // trained on, all ranks
} train_figures;

// ---- train_setup.c ----

// Local: opens device and data, builds the model, and checks what can be checked without others.
iso_status train_setup_local(train_run *run);
// Collective: ties the replicas together.
iso_status train_setup_shared(train_run *run);
// Collective. Frees whatever was set up.
void train_teardown(train_run *run);

// ---- train_output.c ----

// Local. Whether a file can be put at path, by making and removing one beside it.
iso_status train_output_check(const char *path, const char *what);
// Local. Parameters of the model to or from a checkpoint.
iso_status train_checkpoint_save(train_run *run);
iso_status train_checkpoint_load(train_run *run);
// Collective. Gathers the traces of all ranks and writes one file on rank 0.
iso_status train_trace_write(train_run *run);

// ---- train_report.c ----

void train_report_start(const train_run *run);
iso_status train_report_bar(const train_run *run, int64_t epoch, iso_progress_bar **out);
void train_report_epoch(train_run *run, int64_t epoch, const train_figures *figures,
                        iso_progress_bar **bar);
// Collective. Measures what is left to measure and writes the summary. ISO_ERR_MISMATCH when the
// ranks ended with different parameters. `last`: of the last epoch; seconds and samples of all.
iso_status train_report_summary(train_run *run, const train_figures *last);

#endif
