/* MLflow export (mlflow.h). Runs on the thread, except open and close; close runs after the thread ended.
 *
 * Owns the HTTP client, the read connection and the state file. Invariant: the state file never claims more than the
 * server accepted; it is written after each batch. */
#include "trainer/watch/mlflow.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/json/scan.h"
#include "common/json/tree.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/thread/periodic.h"
#include "trainer/ledger/metrics.h"

#define LOOK_US 2000000       /* interval of ledger polls */
#define FIRST_PAUSE_US 500000 /* after a failure; doubles with each more */
#define MOST_PAUSE_US 60000000
#define CALL_US 20000000
#define CLOSE_US 10000000
#define LINES 16   /* per batch: MLflow's limits are 1,000 metrics and 1 MiB */
#define PARAMS 100 /* per batch */
#define MOST_METRICS 1000
#define ENOUGH 300     /* figures in a batch before no line is added */
#define MOST_VALUE 500 /* bytes of a param that every version accepts */
#define MOST_KEY 250
#define MAX_BODY ((size_t)1 << 20)
#define MAX_REPLY ((size_t)4 << 20)

static const char *const kinds[] = {"rollout", "train", "perf", "eval"};
#define KINDS CLIME_COUNT(kinds)

struct clime_mlflow {
    struct clime_mlflow_options o;
    const struct clime_run *run;
    const char *folder;
    char *state_path, *ledger_path;
    struct clime_periodic *thread;        /* owned by the main thread */
    const struct clime_periodic *running; /* set on the thread; NULL: the main thread, closing */
    struct clime_http_client *http;
    struct clime_db *db;
    _Atomic int64_t end_us; /* clime_now_us scale; 0 = not closing */
    int64_t pause_us;       /* after the last failure; 0 = no failure since the last success */
    bool greeted;           /* status and options were sent by this process */
    /* state file */
    char id[64];         /* MLflow's run; "" = none yet */
    int64_t sent[KINDS]; /* step of the newest accepted line per kind; -1 = none */
};

/* ---- calls ---- */

static bool must_stop(void *arg) {
    const struct clime_mlflow *m = arg;
    int64_t end = atomic_load(&m->end_us);
    return (m->running && clime_periodic_stopping(m->running)) || (end && clime_now_us() > end);
}

/* Calls the API; returns the parsed reply. *status 404 is not a failure if the caller asks for it. */
static enum clime_err call(struct clime_mlflow *m, const char *method, const char *path, struct clime_str body,
                           int *status, struct cJSON **reply, struct clime_error *e) {
    char *url = xasprintf("%s/api/2.0/mlflow/%s", m->o.url, path);
    const struct clime_http_call c = {.method = method,
                                      .url = url,
                                      .body = body,
                                      .bearer = m->o.key,
                                      .timeout_us = CALL_US,
                                      .max_reply = MAX_REPLY,
                                      .cancel = must_stop,
                                      .arg = m};
    struct clime_http_result r = {0};
    *reply = NULL;
    enum clime_err rc = clime_http_client_call(m->http, &c, &r, e);
    if (status) *status = r.status;
    if (!rc && r.status != 200 && !(status && r.status == 404))
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s answers %d: %.300s", path, r.status,
                        r.reply.len ? r.reply.data : "");
    if (!rc && r.status == 200) rc = clime_tree_parse(r.reply.data ? r.reply.data : "", r.reply.len, reply, e);
    clime_buf_free(&r.reply);
    free(url);
    return rc;
}

/* Calls the API and ignores the reply. */
static enum clime_err tell(struct clime_mlflow *m, const char *path, struct clime_str body, struct clime_error *e) {
    struct cJSON *reply;
    enum clime_err rc = call(m, "POST", path, body, NULL, &reply, e);
    clime_tree_free(reply);
    return rc;
}

static void put_pair(struct clime_jw *w, const char *key, const char *value) {
    clime_jw_object(w);
    clime_jw_put_strz(w, "key", key);
    clime_jw_put_strz(w, "value", value);
    clime_jw_close(w);
}

/* ---- the state file ---- */

static enum clime_err save_state(const struct clime_mlflow *m, struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "url", clime_url_shown(m->o.url).text);
    clime_jw_put_strz(&w, "run_id", m->id);
    for (size_t i = 0; i < KINDS; i++) clime_jw_put_int(&w, kinds[i], m->sent[i]);
    clime_jw_close(&w);
    enum clime_err rc = clime_atomic_save(m->state_path, b.data, b.len, e);
    clime_buf_free(&b);
    return rc;
}

/* Reads the state; a missing file, or another server's, starts anew. */
static void read_state(struct clime_mlflow *m) {
    struct cJSON *t = NULL;
    struct clime_error e;
    for (size_t i = 0; i < KINDS; i++) m->sent[i] = -1;
    if (clime_tree_read_file(m->state_path, 1 << 16, &t, &e)) return;
    if (!strcmp(clime_tree_str(clime_tree_get(t, "url"), ""), clime_url_shown(m->o.url).text)) {
        snprintf(m->id, sizeof m->id, "%s", clime_tree_str(clime_tree_get(t, "run_id"), ""));
        for (size_t i = 0; i < KINDS; i++) m->sent[i] = (int64_t)clime_tree_num(clime_tree_get(t, kinds[i]), -1);
    }
    clime_tree_free(t);
}

/* ---- experiment and run ---- */

/* *id: "" = none. */
static enum clime_err find_experiment(struct clime_mlflow *m, char id[64], struct clime_error *e) {
    struct clime_buf path;
    struct cJSON *reply;
    int status;
    clime_buf_init(&path, 1 << 16);
    clime_buf_adds(&path, "experiments/get-by-name?experiment_name=");
    clime_url_encode(&path, clime_str_of(m->o.experiment), "");
    enum clime_err rc = call(m, "GET", path.data, (struct clime_str){0}, &status, &reply, e);
    const struct cJSON *x = clime_tree_get(reply, "experiment");
    snprintf(id, 64, "%s", clime_tree_str(clime_tree_get(x, "experiment_id"), ""));
    clime_tree_free(reply);
    clime_buf_free(&path);
    return rc;
}

static enum clime_err make_experiment(struct clime_mlflow *m, char id[64], struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    struct cJSON *reply;
    clime_buf_init(&b, MAX_BODY);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "name", m->o.experiment);
    clime_jw_close(&w);
    enum clime_err rc = call(m, "POST", "experiments/create", clime_buf_str(&b), NULL, &reply, e);
    snprintf(id, 64, "%s", clime_tree_str(clime_tree_get(reply, "experiment_id"), ""));
    clime_tree_free(reply);
    clime_buf_free(&b);
    return rc;
}

static enum clime_err make_run(struct clime_mlflow *m, const char *experiment, struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    struct cJSON *reply;
    clime_buf_init(&b, MAX_BODY);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "experiment_id", experiment);
    clime_jw_put_strz(&w, "run_name", m->o.run_name ? m->o.run_name : m->folder);
    clime_jw_put_int(&w, "start_time", clime_wall_us() / 1000);
    clime_jw_key(&w, "tags");
    clime_jw_array(&w);
    put_pair(&w, "mlflow.source.name", "clime-train");
    put_pair(&w, "clime.run", m->run->name);
    put_pair(&w, "clime.folder", m->folder);
    clime_jw_close(&w);
    clime_jw_close(&w);
    enum clime_err rc = call(m, "POST", "runs/create", clime_buf_str(&b), NULL, &reply, e);
    const struct cJSON *info = clime_tree_get(clime_tree_get(reply, "run"), "info");
    snprintf(m->id, sizeof m->id, "%s", clime_tree_str(clime_tree_get(info, "run_id"), ""));
    if (!rc && !m->id[0]) rc = clime_fail(e, CLIME_ERR_INTERNAL, "runs/create answers without a run_id");
    clime_tree_free(reply);
    clime_buf_free(&b);
    return rc ? rc : save_state(m, e);
}

/* status: NULL = RUNNING. */
static enum clime_err say_status(struct clime_mlflow *m, const char *status, struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, MAX_BODY);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "run_id", m->id);
    clime_jw_put_strz(&w, "status", status ? status : "RUNNING");
    if (status) clime_jw_put_int(&w, "end_time", clime_wall_us() / 1000);
    clime_jw_close(&w);
    enum clime_err rc = tell(m, "runs/update", clime_buf_str(&b), e);
    clime_buf_free(&b);
    return rc;
}

/* ---- batches ---- */

struct batch {
    struct clime_buf body;
    struct clime_jw w;
    int64_t at_ms, rollout, step; /* of the current line */
    int n_lines, n_metrics;
    int64_t last; /* step of its newest line */
};

static void begin_batch(struct batch *b, const struct clime_mlflow *m, const char *what) {
    *b = (struct batch){.last = -1};
    clime_buf_init(&b->body, MAX_BODY);
    clime_jw_init(&b->w, &b->body);
    clime_jw_object(&b->w);
    clime_jw_put_strz(&b->w, "run_id", m->id);
    clime_jw_key(&b->w, what);
    clime_jw_array(&b->w);
}

static enum clime_err send_batch(struct batch *b, struct clime_mlflow *m, struct clime_error *e) {
    clime_jw_close(&b->w);
    clime_jw_close(&b->w);
    enum clime_err rc = tell(m, "runs/log-batch", clime_buf_str(&b->body), e);
    clime_buf_free(&b->body);
    return rc;
}

/* Writes an MLflow key: letters, digits and "_-. /"; others become "_". */
static void put_key(struct clime_jw *w, struct clime_str name) {
    char key[MOST_KEY + 1];
    size_t n = name.len < MOST_KEY ? name.len : MOST_KEY;
    for (size_t i = 0; i < n; i++) {
        char c = name.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("_-. /", c);
        key[i] = plain ? c : '_';
    }
    key[n] = 0;
    clime_jw_put_strz(w, "key", key);
}

static void add_figure(void *arg, struct clime_str kind, struct clime_str name, double v) {
    struct batch *b = arg;
    bool by_step = clime_str_is(kind, "train") || clime_str_is(kind, "eval");
    if (clime_str_is(name, "rollout"))
        b->rollout = (int64_t)v;
    else if (clime_str_is(name, "step"))
        b->step = (int64_t)v;
    else if (b->n_metrics++ < MOST_METRICS) {
        clime_jw_object(&b->w);
        put_key(&b->w, name);
        clime_jw_put_double(&b->w, "value", v);
        clime_jw_put_int(&b->w, "timestamp", b->at_ms);
        clime_jw_put_int(&b->w, "step", by_step ? b->step : b->rollout > 0 ? b->rollout : 0);
        clime_jw_close(&b->w);
    }
}

static void add_line(void *arg, int64_t step, int64_t at_us, const char *line) {
    struct batch *b = arg;
    if (b->n_metrics > ENOUGH) return; /* sent with the next batch */
    b->at_ms = at_us / 1000;
    clime_metrics_figures(line, add_figure, b);
    b->n_lines++;
    b->last = step;
}

/* Sends all unsent lines of a kind. */
static enum clime_err send_lines(struct clime_mlflow *m, int kind, struct clime_error *e) {
    for (;;) {
        struct batch b;
        begin_batch(&b, m, "metrics");
        enum clime_err rc = clime_metrics_after(m->db, kinds[kind], m->sent[kind], LINES, add_line, &b, e);
        if (rc || !b.n_lines) {
            clime_buf_free(&b.body);
            return rc;
        }
        int64_t last = b.last;
        if (b.n_metrics > MOST_METRICS) LOG_WARN("mlflow: of %d figures %d were sent", b.n_metrics, MOST_METRICS);
        if ((rc = send_batch(&b, m, e))) return rc;
        m->sent[kind] = last;
        if ((rc = save_state(m, e))) return rc;
    }
}

/* Writes the next member of the run's options: text unquoted, other values as JSON. */
static void put_param(struct clime_jw *w, struct clime_str name, struct clime_json *options) {
    struct clime_str value = {0};
    char text[MOST_VALUE + 1];
    if (clime_json_peek(options) == CLIME_JSON_STRING)
        clime_json_string(options, &value);
    else
        clime_json_skip(options, &value);
    snprintf(text, sizeof text, CLIME_STR_FMT, CLIME_STR_ARG(value));
    clime_jw_object(w);
    put_key(w, name);
    clime_jw_put_strz(w, "value", text);
    clime_jw_close(w);
}

static enum clime_err send_params(struct clime_mlflow *m, struct clime_error *e) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str name;
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&arena, MAX_REPLY);
    clime_json_init(&j, m->run->options, strlen(m->run->options), &arena, e);
    clime_json_object(&j);
    for (bool more = clime_json_key(&j, &name); more && !rc;) {
        struct batch b;
        begin_batch(&b, m, "params");
        for (int i = 0; i < PARAMS && more; i++, more = clime_json_key(&j, &name)) put_param(&b.w, name, &j);
        rc = send_batch(&b, m, e);
    }
    clime_arena_free(&arena);
    m->greeted = !rc;
    return rc;
}

/* ---- the thread ---- */

static enum clime_err look(struct clime_mlflow *m, struct clime_error *e) {
    enum clime_err rc = m->db ? CLIME_OK : clime_db_open(m->ledger_path, CLIME_DB_READ, &m->db, e);
    if (!rc && !m->id[0]) {
        char experiment[64];
        rc = find_experiment(m, experiment, e);
        if (!rc && !experiment[0]) rc = make_experiment(m, experiment, e);
        if (!rc) rc = make_run(m, experiment, e);
    }
    if (!rc && !m->greeted) {
        rc = say_status(m, NULL, e);
        if (!rc) rc = send_params(m, e);
    }
    for (int i = 0; i < (int)KINDS && !rc; i++) rc = send_lines(m, i, e);
    return rc;
}

static int64_t look_again(struct clime_periodic *p, void *arg) {
    struct clime_mlflow *m = arg;
    struct clime_error e = {0};
    m->running = p;
    enum clime_err rc = look(m, &e);
    if (rc == CLIME_ERR_ABORTED) return LOOK_US;
    if (rc && !m->pause_us) LOG_WARN("mlflow: %s; what is missing there is sent later", e.msg);
    if (!rc && m->pause_us) LOG_INFO("mlflow: %s has everything again", clime_url_shown(m->o.url).text);
    m->pause_us = !rc ? 0 : m->pause_us ? 2 * m->pause_us : FIRST_PAUSE_US;
    if (m->pause_us > MOST_PAUSE_US) m->pause_us = MOST_PAUSE_US;
    return rc ? m->pause_us : LOOK_US;
}

enum clime_err clime_mlflow_open(const struct clime_mlflow_options *o, const struct clime_run *run, const char *folder,
                                 struct clime_mlflow **out, struct clime_error *e) {
    struct clime_mlflow *m = xcalloc(1, sizeof *m);
    m->o = *o;
    m->run = run;
    m->folder = folder;
    m->state_path = xasprintf("%s/mlflow.json", folder);
    m->ledger_path = xasprintf("%s/ledger.db", folder);
    atomic_init(&m->end_us, 0);
    read_state(m);
    m->http = clime_http_client_new();
    *out = m;
    if ((m->thread = clime_periodic_start(look_again, m))) return CLIME_OK;
    *out = NULL;
    return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread that sends to MLflow");
}

void clime_mlflow_close(struct clime_mlflow *m, bool well) {
    struct clime_error e = {0};
    if (!m) return;
    clime_periodic_stop(m->thread);
    m->running = NULL;
    atomic_store(&m->end_us, clime_now_us() + CLOSE_US);
    enum clime_err rc = look(m, &e);
    if (!rc) rc = say_status(m, well ? "FINISHED" : "FAILED", &e);
    if (rc) LOG_WARN("mlflow: %s; the next start sends the rest", e.msg);
    clime_db_close(m->db);
    clime_http_client_free(m->http);
    free(m->state_path);
    free(m->ledger_path);
    free(m);
}
