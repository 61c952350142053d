/* A run in MLflow: its options as params, every figure of its lines of metrics, and how it stands, over MLflow's REST
 * API (2.0: experiments/get-by-name, experiments/create, runs/create, runs/log-batch, runs/update).
 *
 * A view of the ledger, as metrics.jsonl is: a thread reads lines from a connection of its own and sends what was not
 * sent yet, so nothing is kept in memory, and what a server that is away misses it gets later, over restarts too. How
 * far that is stands in RUN/mlflow.json, with the id of MLflow's run. Lines have the times of the ledger, so that what
 * is sent twice after a crash is the same to MLflow. Open and close: main thread.
 */
#ifndef CLIME_TRAINER_WATCH_MLFLOW_H
#define CLIME_TRAINER_WATCH_MLFLOW_H

#include "trainer/ledger/runs.h"

struct clime_mlflow_options {   /* borrowed */
    const char *url;            /* of the tracking server; NULL = no MLflow */
    const char *experiment;     /* by name, made where it is missing */
    const char *run_name, *key; /* shown name, NULL = the run folder; bearer, NULL = none */
};

struct clime_mlflow;

/* Starts the thread; does not wait for the server. */
enum clime_err clime_mlflow_open(const struct clime_mlflow_options *o, const struct clime_run *run, const char *folder,
                                 struct clime_mlflow **out, struct clime_error *e);
/* Sends the rest, and whether the run ended well, if that is done within 10 s. NULL is fine. */
void clime_mlflow_close(struct clime_mlflow *m, bool well);

#endif
