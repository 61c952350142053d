/* MLflow export of a run: options as params, all figures of its metrics, and its status, over MLflow's REST API (2.0:
 * experiments/get-by-name, experiments/create, runs/create, runs/log-batch, runs/update).
 *
 * A view of the ledger, like metrics.jsonl: a thread reads lines over its own connection and sends the unsent ones. So
 * nothing is buffered in memory, and a server that was down catches up later, across restarts too. Progress and
 * MLflow's run id are in RUN/mlflow.json. Lines carry the ledger's times, so a resend after a crash changes nothing in
 * MLflow. Open and close: main thread. */
#ifndef CLIME_TRAINER_WATCH_MLFLOW_H
#define CLIME_TRAINER_WATCH_MLFLOW_H

#include "trainer/ledger/runs.h"

struct clime_mlflow_options {   /* borrowed */
    const char *url;            /* tracking server; NULL = disabled */
    const char *experiment;     /* name; created if missing */
    const char *run_name, *key; /* shown name, NULL = the run folder; bearer key, NULL = none */
};

struct clime_mlflow;

/* Starts the thread; does not wait for the server. */
enum clime_err clime_mlflow_open(const struct clime_mlflow_options *o, const struct clime_run *run, const char *folder,
                                 struct clime_mlflow **out, struct clime_error *e);
/* Sends the rest and the final status (well: success), for up to 10 s. NULL is fine. */
void clime_mlflow_close(struct clime_mlflow *m, bool well);

#endif
