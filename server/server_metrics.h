/* The server's Prometheus metrics, under SGLang's names (prefix "sglang:") and, where the meaning is the same, vLLM's
 * ("vllm:"), so that existing dashboards work. Any thread. */
#ifndef CLIME_SERVER_SERVER_METRICS_H
#define CLIME_SERVER_SERVER_METRICS_H

#include "server/engine/engine.h"

struct clime_server_metrics;
struct clime_buf;

struct clime_server_metrics *clime_server_metrics_new(const char *model_name);
void clime_server_metrics_free(struct clime_server_metrics *m);
void clime_server_metrics_job(struct clime_server_metrics *m, const struct clime_job *j); /* a closed job */
void clime_server_metrics_load_time(struct clime_server_metrics *m, double seconds);      /* a weight update */
void clime_server_metrics_write(struct clime_server_metrics *m, struct clime_engine *g, struct clime_buf *out);

#endif
