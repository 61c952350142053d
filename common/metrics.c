/* Counters, gauges and histograms (see metrics.h).
 *
 * Registered by a program at start, updated on any thread, written by the /metrics handler. A mutex guards the list for
 * registration and writing; values are atomics, so the engine's hot loop never waits for a scrape. A 64-bit atomic
 * holds a double's bits. A histogram's count is the sum of its buckets as read, so that a scrape is consistent.
 */
#include "common/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/number.h"

enum kind { COUNTER, GAUGE, HISTOGRAM };

#define MAX_ALIASES 2

struct clime_metric {
    struct clime_metric *next; /* guarded by lock; in order of registration */
    enum kind kind;
    const char *name, *help;
    const char *aliases[MAX_ALIASES]; /* NULL = none; equal in all series of a name */
    char *labels;
    _Atomic uint64_t value;   /* bits of a double; a histogram's sum */
    double *bounds;           /* n_buckets upper bounds, ascending */
    _Atomic uint64_t *counts; /* n_buckets + 1, not cumulative; the last is above every bound */
    int n_buckets;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clime_metric *first; /* guarded by lock */

static uint64_t bits_of(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static struct clime_metric *metric_new(enum kind kind, const char *name, const char *labels, const char *help,
                                       const double *buckets, int n_buckets) {
    struct clime_metric *m = xcalloc(1, sizeof *m);
    m->kind = kind;
    m->name = name;
    m->help = help;
    m->labels = xstrdup(labels);
    m->n_buckets = n_buckets;
    m->bounds = xcalloc((size_t)n_buckets, sizeof m->bounds[0]);
    m->counts = xcalloc((size_t)n_buckets + 1, sizeof m->counts[0]);
    for (int i = 0; i < n_buckets; i++) {
        CHECK(i == 0 || buckets[i] > buckets[i - 1]);
        m->bounds[i] = buckets[i];
    }
    return m;
}

static struct clime_metric *find_or_add(enum kind kind, const char *name, const char *labels, const char *help,
                                        const double *buckets, int n_buckets) {
    pthread_mutex_lock(&lock);
    struct clime_metric **at = &first;
    for (; *at; at = &(*at)->next) {
        if (strcmp((*at)->name, name) != 0) continue;
        CHECK((*at)->kind == kind);
        if (strcmp((*at)->labels, labels) == 0) break;
    }
    if (!*at) *at = metric_new(kind, name, labels, help, buckets, n_buckets);
    struct clime_metric *m = *at;
    pthread_mutex_unlock(&lock);
    return m;
}

struct clime_metric *clime_metric_counter(const char *name, const char *labels, const char *help) {
    return find_or_add(COUNTER, name, labels, help, NULL, 0);
}

struct clime_metric *clime_metric_gauge(const char *name, const char *labels, const char *help) {
    return find_or_add(GAUGE, name, labels, help, NULL, 0);
}

struct clime_metric *clime_metric_histogram(const char *name, const char *labels, const char *help,
                                            const double *buckets, int n_buckets) {
    return find_or_add(HISTOGRAM, name, labels, help, buckets, n_buckets);
}

void clime_metric_alias(struct clime_metric *m, const char *name) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MAX_ALIASES && m->aliases[i] && strcmp(m->aliases[i], name) != 0) i++;
    CHECK(i < MAX_ALIASES);
    m->aliases[i] = name;
    pthread_mutex_unlock(&lock);
}

static void add(_Atomic uint64_t *to, double v) {
    uint64_t old = atomic_load_explicit(to, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(to, &old, bits_of(double_of(old) + v), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void clime_metric_add(struct clime_metric *m, double v) {
    CHECK(m->kind == GAUGE || (m->kind == COUNTER && v >= 0));
    add(&m->value, v);
}

void clime_metric_set(struct clime_metric *m, double v) {
    CHECK(m->kind == GAUGE);
    atomic_store_explicit(&m->value, bits_of(v), memory_order_relaxed);
}

void clime_metric_observe(struct clime_metric *m, double v) {
    CHECK(m->kind == HISTOGRAM);
    int i = 0;
    while (i < m->n_buckets && !(v <= m->bounds[i])) i++;
    atomic_fetch_add_explicit(&m->counts[i], 1, memory_order_relaxed);
    add(&m->value, v);
}

double clime_metric_value(const struct clime_metric *m) {
    return double_of(atomic_load_explicit(&m->value, memory_order_relaxed));
}

static void put_value(struct clime_buf *out, double v) {
    char text[CLIME_NUMBER_TEXT];
    if (isnan(v)) {
        clime_buf_adds(out, "NaN");
    } else if (isinf(v)) {
        clime_buf_adds(out, v > 0 ? "+Inf" : "-Inf");
    } else if (v == floor(v) && fabs(v) < 1e15) {
        clime_buf_printf(out, "%.0f", v);
    } else {
        clime_number_write_double(v, text);
        clime_buf_adds(out, text);
    }
}

static void put_head(struct clime_buf *out, const struct clime_metric *m, const char *name) {
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    clime_buf_printf(out, "# HELP %s ", name);
    for (const char *c = m->help; *c; c++) {
        if (*c == '\\')
            clime_buf_adds(out, "\\\\");
        else if (*c == '\n')
            clime_buf_adds(out, "\\n");
        else
            clime_buf_addc(out, *c);
    }
    clime_buf_printf(out, "\n# TYPE %s %s\n", name, kinds[m->kind]);
}

/* "name suffix {labels} value". */
static void put_line(struct clime_buf *out, const struct clime_metric *m, const char *name, const char *suffix,
                     double v) {
    clime_buf_printf(out, "%s%s", name, suffix);
    if (m->labels[0]) clime_buf_printf(out, "{%s}", m->labels);
    clime_buf_addc(out, ' ');
    put_value(out, v);
    clime_buf_addc(out, '\n');
}

static void put_bucket(struct clime_buf *out, const struct clime_metric *m, const char *name, double bound,
                       double cumulative) {
    clime_buf_printf(out, "%s_bucket{%s%sle=\"", name, m->labels, m->labels[0] ? "," : "");
    put_value(out, bound);
    clime_buf_adds(out, "\"} ");
    put_value(out, cumulative);
    clime_buf_addc(out, '\n');
}

static void put_metric(struct clime_buf *out, const struct clime_metric *m, const char *name) {
    if (m->kind != HISTOGRAM) {
        put_line(out, m, name, "", clime_metric_value(m));
        return;
    }
    uint64_t count = 0;
    for (int i = 0; i <= m->n_buckets; i++) {
        count += atomic_load_explicit(&m->counts[i], memory_order_relaxed);
        put_bucket(out, m, name, i < m->n_buckets ? m->bounds[i] : (double)INFINITY, (double)count);
    }
    put_line(out, m, name, "_sum", clime_metric_value(m));
    put_line(out, m, name, "_count", (double)count);
}

/* Writes all series of m's name under one header; m is the first. */
static void put_series(struct clime_buf *out, const struct clime_metric *m, const char *name) {
    put_head(out, m, name);
    for (const struct clime_metric *s = m; s; s = s->next)
        if (strcmp(s->name, m->name) == 0) put_metric(out, s, name);
}

void clime_metrics_write(struct clime_buf *out) {
    pthread_mutex_lock(&lock);
    for (const struct clime_metric *m = first; m; m = m->next) {
        /* The series of a name are written together, at the first one's place. */
        const struct clime_metric *earlier = first;
        while (strcmp(earlier->name, m->name) != 0) earlier = earlier->next;
        if (earlier != m) continue;
        put_series(out, m, m->name);
        for (int i = 0; i < MAX_ALIASES && m->aliases[i]; i++) put_series(out, m, m->aliases[i]);
    }
    pthread_mutex_unlock(&lock);
}
