/* GET /engine_metrics: the /metrics of all workers in one text, each sample labelled with its worker. Runs on HTTP
 * threads; owns nothing. Invalid lines are dropped, or one worker's would void those of all. Prometheus wants a
 * metric's samples together, below one HELP and TYPE: lines are sorted by where any worker's text first has their
 * metric, and otherwise keep their order. */
#include <stdlib.h>

#include "router/fanout.h"
#include "router/sample.h"

#define TEXT_CAP ((size_t)256 << 20)
#define WORKER "worker"
#define MOST_METRICS 4096 /* searched for each line; a server has a few hundred */

struct line {
    struct clime_str text, name;
    int metric, order; /* order: among all */
    int worker;
    bool comment;
};

struct lines {
    struct line *at;
    int n, size;
    struct clime_str *metrics; /* names, in order of first appearance */
    int n_metrics, metrics_size;
};

/* Samples of a histogram have longer names than its comments. */
static bool is_of(struct clime_str sample, struct clime_str metric) {
    static const char *const ends[] = {"", "_bucket", "_sum", "_count"};
    if (sample.len < metric.len || memcmp(sample.ptr, metric.ptr, metric.len) != 0) return false;
    struct clime_str end = {sample.ptr + metric.len, sample.len - metric.len};
    for (size_t i = 0; i < CLIME_COUNT(ends); i++)
        if (clime_str_is(end, ends[i])) return true;
    return false;
}

/* -1: too many metrics. */
static int metric_of(struct lines *l, struct clime_str name, int before, bool comment) {
    if (before >= 0 && !comment && is_of(name, l->metrics[before])) return before; /* mostly the line before's */
    for (int i = 0; i < l->n_metrics; i++)
        if (clime_str_eq(name, l->metrics[i])) return i;
    if (l->n_metrics == MOST_METRICS) return -1;
    if (l->n_metrics == l->metrics_size) {
        l->metrics_size = l->metrics_size ? 2 * l->metrics_size : 64;
        l->metrics = xrealloc(l->metrics, (size_t)l->metrics_size * sizeof *l->metrics);
    }
    l->metrics[l->n_metrics] = name;
    return l->n_metrics++;
}

static void add_text(struct lines *l, struct clime_str text, int worker) {
    struct clime_str line, name;
    int before = -1;
    while (clime_str_line(&text, &line)) {
        bool comment = clime_sample_is_comment(line, &name);
        if (!comment && !clime_sample_is_sound(line, &name)) continue;
        if (!comment && clime_sample_label(line, WORKER) && clime_sample_label(line, "exported_" WORKER)) continue;
        if ((before = metric_of(l, name, before, comment)) < 0) continue;
        if (l->n == l->size) {
            l->size = l->size ? 2 * l->size : 1024;
            l->at = xrealloc(l->at, (size_t)l->size * sizeof *l->at);
        }
        l->at[l->n] = (struct line){
            .text = line, .name = name, .metric = before, .order = l->n, .worker = worker, .comment = comment};
        l->n++;
    }
}

static int by_metric(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    if (x->metric != y->metric) return x->metric - y->metric;
    return x->comment != y->comment ? y->comment - x->comment : x->order - y->order;
}

/* An existing label `worker`, as from a router that is a worker here, becomes exported_worker as in Prometheus. */
static void write_sample(struct clime_buf *out, const struct line *line, const char *worker) {
    const char *rest = line->text.ptr + line->name.len, *end = line->text.ptr + line->text.len;
    const char *own = clime_sample_label(line->text, WORKER);
    bool labels = end - rest > 1 && rest[0] == '{' && rest[1] != '}';
    bool braces = end > rest && rest[0] == '{';
    clime_buf_add(out, line->text.ptr, line->name.len);
    clime_buf_printf(out, "{" WORKER "=\"%s\"%s", worker, labels ? "," : braces ? "" : "}");
    rest += braces;
    if (own) {
        clime_buf_add(out, rest, (size_t)(own - rest));
        clime_buf_adds(out, "exported_");
        rest = own;
    }
    clime_buf_add(out, rest, (size_t)(end - rest));
    clime_buf_addc(out, '\n');
}

void clime_router_engine_metrics(struct clime_http_request *rq, void *context) {
    struct clime_fanout f;
    struct clime_buf out;
    struct lines l = {0};
    int first = -1; /* the worker whose comments are used */
    clime_fanout_run_to(&f, context, rq, "/metrics");
    for (int i = 0; i < f.n; i++)
        if (f.results[i].status == 200) add_text(&l, clime_buf_str(&f.results[i].body), i);
    if (l.n) qsort(l.at, (size_t)l.n, sizeof *l.at, by_metric);
    clime_buf_init(&out, TEXT_CAP);
    for (int i = 0; i < l.n; i++) {
        if (i == 0 || l.at[i].metric != l.at[i - 1].metric) first = l.at[i].worker;
        if (!l.at[i].comment) {
            write_sample(&out, &l.at[i], f.results[l.at[i].worker].name);
        } else if (l.at[i].worker == first) {
            clime_buf_add(&out, l.at[i].text.ptr, l.at[i].text.len);
            clime_buf_addc(&out, '\n');
        }
    }
    int status = f.n_ok ? 200 : clime_fanout_status(&f);
    if (status == 200)
        clime_http_reply(rq, 200, "text/plain; version=0.0.4", NULL, clime_buf_str(&out));
    else
        clime_http_reply_error(rq, status, f.n ? "no worker has told its metrics" : "no worker is registered");
    clime_buf_free(&out);
    free(l.at);
    free(l.metrics);
    clime_fanout_free(&f);
}
