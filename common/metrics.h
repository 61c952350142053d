/* Counters, gauges and histograms in Prometheus text form (exposition format 0.0.4).
 *
 * A program registers its metrics once at start and keeps the pointers. Updates are lock-free atomics: any thread.
 */
#ifndef CLIME_COMMON_METRICS_H
#define CLIME_COMMON_METRICS_H

#include <stdint.h>

struct clime_metric;
struct clime_buf;

/* name and help must stay valid. labels: "" or 'worker="a"' (already escaped, copied). Registering the same name with
 * other labels adds a series; with the same labels it returns the existing series (its kind must match). Buckets
 * ascend; +Inf is added. */
struct clime_metric *clime_metric_counter(const char *name, const char *labels, const char *help);
struct clime_metric *clime_metric_gauge(const char *name, const char *labels, const char *help);
struct clime_metric *clime_metric_histogram(const char *name, const char *labels, const char *help,
                                            const double *buckets, int n_buckets);

/* Also exports the metric under another name, below the first; at most two aliases. name must stay valid. */
void clime_metric_alias(struct clime_metric *m, const char *name);

void clime_metric_add(struct clime_metric *m, double v); /* counter, gauge */
void clime_metric_set(struct clime_metric *m, double v); /* gauge */
void clime_metric_observe(struct clime_metric *m, double v);
double clime_metric_value(const struct clime_metric *m); /* counter, gauge */

void clime_metrics_write(struct clime_buf *out);

#endif
