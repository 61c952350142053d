/* Teacher threads, requests and replies (see teacher.h).
 *
 * Called by the client. Owns its queue, threads and one HTTP client per thread; requests are borrowed. Invariant: a
 * submitted request reaches `out` unless the teacher is closed first.
 *
 * Log-probabilities are requested at temperature 1 (as greedy sampling reports), like in slime: the policy learns the
 * teacher's own distribution whatever its own sampling temperature.
 */
#include "trainer/rollout/teacher.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/retry.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/os/waits.h"

#define MAX_REPLY ((size_t)256 << 20)
#define MAX_BODY ((size_t)64 << 20)
#define FIRST_PAUSE_US 100000
#define MAX_PAUSE_US 2000000
#define STOP_CHECK_US 200000
#define ASK_US 10000000 /* limit for its identity */

struct clime_teacher {
    char *url;
    int64_t timeout_us;
    struct clime_queue *in, *out;
    pthread_t *threads;
    int n_threads;
    atomic_bool stop;
    const char *vocabulary;
    const struct clime_opt_list *allowed;
    pthread_mutex_t lock;     /* guards first and told */
    atomic_bool known;        /* identified since the last broken connection */
    struct clime_facts first; /* its first identity */
    bool told;                /* logged that it reports none */
};

/* ---- text ---- */

void clime_teacher_body(const struct clime_sample *s, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "input_ids");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_prompt + s->n_response; i++) clime_jw_int(&w, s->ids[i]);
    clime_jw_close(&w);
    clime_jw_key(&w, "sampling_params");
    clime_jw_object(&w);
    clime_jw_put_int(&w, "temperature", 0);
    clime_jw_put_int(&w, "max_new_tokens", 0);
    clime_jw_put_bool(&w, "skip_special_tokens", false);
    clime_jw_close(&w);
    clime_jw_put_bool(&w, "return_logprob", true);
    clime_jw_put_int(&w, "logprob_start_len", s->n_prompt > 0 ? s->n_prompt - 1 : 0); /* the first entry may be null */
    clime_jw_close(&w);
}

struct entries { /* of input_token_logprobs */
    float *logp; /* NAN = null */
    int64_t *ids;
    int n, max;
};

static void read_entries(struct clime_json *j, struct entries *p) {
    for (clime_json_array(j); clime_json_item(j); p->n++) {
        struct clime_str digits = {0};
        int64_t id = -1;
        clime_json_array(j);
        for (int k = 0; clime_json_item(j); k++) {
            if (k == 1)
                clime_json_int(j, 0, INT32_MAX, &id);
            else if (k > 1)
                clime_json_skip(j, NULL);
            else if (clime_json_peek(j) == CLIME_JSON_NULL)
                clime_json_null(j);
            else
                clime_json_number_text(j, &digits);
        }
        if (p->n == p->max) clime_json_bad(j, "more log-probabilities than tokens");
        if (j->failed) return;
        p->logp[p->n] = digits.len ? strtof(digits.ptr, NULL) : NAN;
        p->ids[p->n] = id;
    }
}

static void read_reply(struct clime_json *j, struct entries *p) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (!clime_str_is(key, "meta_info")) {
            clime_json_skip(j, NULL);
            continue;
        }
        for (clime_json_object(j); clime_json_key(j, &key);) {
            if (clime_str_is(key, "input_token_logprobs"))
                read_entries(j, p);
            else
                clime_json_skip(j, NULL);
        }
    }
}

static enum clime_err take(struct clime_sample *s, const struct entries *p, struct clime_error *e) {
    int from = p->n - s->n_response;
    if (from < 0)
        return clime_fail(e, CLIME_ERR_INPUT, "%d prompt log-probabilities for a response of %d tokens", p->n,
                          s->n_response);
    for (int i = 0; i < s->n_response; i++) {
        if (p->ids[from + i] != s->ids[s->n_prompt + i])
            return clime_fail(e, CLIME_ERR_INPUT, "token %d of the response is %d, the teacher says %lld", i,
                              s->ids[s->n_prompt + i], (long long)p->ids[from + i]);
        if (!isfinite(p->logp[from + i]))
            return clime_fail(e, CLIME_ERR_INPUT, "no log-probability for token %d of the response", i);
    }
    size_t bytes = (size_t)s->n_response * sizeof *s->teacher_logp;
    free(s->teacher_logp);
    s->teacher_logp = xmalloc(bytes + 1);
    memcpy(s->teacher_logp, p->logp + from, bytes);
    return CLIME_OK;
}

enum clime_err clime_teacher_read(struct clime_sample *s, struct clime_str reply, struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    struct entries p = {.max = s->n_prompt + s->n_response};
    p.logp = xcalloc((size_t)p.max + 1, sizeof *p.logp);
    p.ids = xcalloc((size_t)p.max + 1, sizeof *p.ids);
    clime_arena_init(&a, reply.len + 4096);
    clime_json_init(&j, reply.ptr, reply.len, &a, &je);
    read_reply(&j, &p);
    enum clime_err rc = clime_json_end(&j) ? take(s, &p, e) : clime_fail(e, CLIME_ERR_INPUT, "its reply: %s", je.msg);
    free(p.logp);
    free(p.ids);
    clime_arena_free(&a);
    return rc;
}

/* ---- identity ---- */

static char *path_of(const char *url, const char *path) {
    static const char generate[] = "/generate";
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/') n--;
    if (n >= strlen(generate) && !memcmp(url + n - strlen(generate), generate, strlen(generate))) n -= strlen(generate);
    return xasprintf("%.*s%s", (int)n, url, path);
}

static void read_identity(struct clime_str reply, struct clime_facts *out) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_error unread = {0};
    struct clime_str key, raw;
    struct clime_facts said = {0};
    clime_arena_init(&a, reply.len + 4096);
    clime_json_init(&j, reply.ptr, reply.len, &a, &unread);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (clime_json_skip(&j, &raw) && clime_str_is(key, "identity")) clime_facts_read(raw, &said, &unread);
    if (clime_json_end(&j)) clime_facts_add(out, "teacher.", &said);
    clime_facts_free(&said);
    clime_arena_free(&a);
}

static enum clime_err ask(struct clime_http_client *http, const char *url, struct clime_facts *out,
                          struct clime_error *e) {
    char *info = path_of(url, "/server_info");
    const struct clime_http_call call = {
        .method = "GET", .url = info, .timeout_us = ASK_US, .max_reply = (size_t)4 << 20};
    struct clime_http_result res = {0};
    enum clime_err rc = clime_http_client_call(http, &call, &res, e);
    if (!rc && res.status == 200) read_identity(clime_buf_str(&res.reply), out);
    clime_buf_free(&res.reply);
    free(info);
    return rc;
}

enum clime_err clime_teacher_ask(const char *url, struct clime_facts *out, struct clime_error *e) {
    struct clime_http_client *http = clime_http_client_new();
    enum clime_err rc = ask(http, url, out, e);
    clime_http_client_free(http);
    return rc;
}

/* Checks that its identity is unchanged and has the policy's vocabulary. Under the lock. */
static enum clime_err compare(struct clime_teacher *t, struct clime_facts *said, struct clime_error *e) {
    const char *const *allowed = t->allowed ? t->allowed->items : NULL;
    const int n = t->allowed ? t->allowed->n : 0;
    struct clime_facts want = {0}, has = {0};
    const char *vocabulary = clime_facts_get(said, "teacher.vocabulary");
    enum clime_err rc = CLIME_OK;
    if (!said->n && !t->told) {
        LOG_WARN("the teacher %s does not say what it is: its vocabulary is not compared",
                 clime_url_shown(t->url).text);
        t->told = true;
    }
    if (vocabulary && t->vocabulary) {
        clime_facts_put(&has, "teacher.vocabulary", vocabulary);
        clime_facts_put(&want, "teacher.vocabulary", t->vocabulary);
        rc = clime_facts_compare(t->url, &has, "the policy", &want, allowed, n, e);
    }
    if (!rc && t->first.n && said->n)
        rc = clime_facts_compare(t->url, said, "before it broke off it", &t->first, allowed, n, e);
    if (!rc && !t->first.n) clime_facts_add(&t->first, "", said);
    clime_facts_free(&want);
    clime_facts_free(&has);
    return rc;
}

static enum clime_err check(struct clime_teacher *t, struct clime_http_client *http, struct clime_error *e) {
    struct clime_facts said = {0};
    if (atomic_load(&t->known)) return CLIME_OK;
    enum clime_err rc = ask(http, t->url, &said, e);
    if (!rc) {
        pthread_mutex_lock(&t->lock);
        rc = compare(t, &said, e);
        pthread_mutex_unlock(&t->lock);
        atomic_store(&t->known, !rc);
    }
    clime_facts_free(&said);
    return rc;
}

/* ---- threads ---- */

static bool stopping(void *arg) {
    return atomic_load(&((struct clime_teacher *)arg)->stop);
}

static bool wait_unless_stopping(void *arg, int64_t wait_us) {
    int64_t until = clime_now_us() + wait_us;
    for (;;) {
        int64_t left = until - clime_now_us();
        if (stopping(arg)) return true;
        if (left <= 0) return false;
        clime_sleep_us(left < STOP_CHECK_US ? left : STOP_CHECK_US);
    }
}

/* One try. True if final: *e is set or the sample has its log-probabilities. */
static bool try_once(struct clime_teacher *t, struct clime_http_client *http, struct clime_str body, int64_t left_us,
                     struct clime_sample *s, int64_t *retry_after_us, struct clime_error *e) {
    struct clime_http_call call = {.method = "POST",
                                   .url = t->url,
                                   .body = body,
                                   .timeout_us = left_us,
                                   .max_reply = MAX_REPLY,
                                   .cancel = stopping,
                                   .arg = t};
    struct clime_http_result res = {0};
    bool last = true;
    *e = (struct clime_error){0};
    *retry_after_us = 0;
    if (check(t, http, e)) {
        last = e->code == CLIME_ERR_INPUT;
    } else if (clime_http_client_call(http, &call, &res, e)) {
        atomic_store(&t->known, false); /* it may be another server after reconnecting */
        last = e->code == CLIME_ERR_LIMIT;
    } else if (res.status == 200) {
        clime_teacher_read(s, clime_buf_str(&res.reply), e);
    } else {
        last = !clime_http_status_passes(res.status);
        *retry_after_us = res.retry_after_us;
        clime_fail(e, last ? CLIME_ERR_INPUT : CLIME_ERR_UNAVAILABLE, "%s answers %d: %.300s",
                   clime_url_shown(t->url).text, res.status, res.reply.len ? res.reply.data : "");
    }
    clime_buf_free(&res.reply);
    return last;
}

static bool score(struct clime_teacher *t, struct clime_http_client *http, struct clime_request *r,
                  struct clime_sample *s) {
    char what[160];
    int64_t retry_after_us;
    struct clime_retry again = {.what = what,
                                .deadline_us = clime_now_us() + t->timeout_us,
                                .first_pause_us = FIRST_PAUSE_US,
                                .most_pause_us = MAX_PAUSE_US,
                                .stop = wait_unless_stopping,
                                .arg = t};
    struct clime_error e = {0};
    struct clime_buf body;
    snprintf(what, sizeof what, "%s: teacher", r->rid);
    clime_buf_init(&body, MAX_BODY);
    clime_teacher_body(s, &body);
    struct clime_wait wait = {0};
    clime_wait_begin(&wait, "the teacher's log-probabilities", again.deadline_us - clime_now_us(), "%s", r->rid);
    while (!try_once(t, http, clime_buf_str(&body), again.deadline_us - clime_now_us(), s, &retry_after_us, &e))
        if (clime_retry_wait(&again, retry_after_us, &e) != CLIME_RETRY_AGAIN) break;
    clime_wait_end(&wait);
    if (e.code) {
        clime_error_prefix(&e, "teacher");
        clime_sample_fail(r->sample, &e);
    }
    clime_buf_free(&body);
    return !e.code;
}

static void *teacher_main(void *arg) {
    struct clime_teacher *t = arg;
    struct clime_http_client *http = clime_http_client_new();
    void *item;
    while (clime_queue_pop(t->in, &item, 1, -1) == 1) {
        if (stopping(t)) continue;
        struct clime_request *r = item;
        for (struct clime_sample *s = r->sample; s && score(t, http, r, s);) s = s->next;
        CHECK(clime_queue_push(t->out, item));
    }
    clime_http_client_free(http);
    return NULL;
}

enum clime_err clime_teacher_open(const struct clime_teacher_options *o, struct clime_teacher **out,
                                  struct clime_error *e) {
    struct clime_teacher *t = xcalloc(1, sizeof *t);
    *out = NULL;
    t->url = path_of(o->url, "/generate");
    t->timeout_us = o->timeout_us;
    t->out = o->out;
    t->in = clime_queue_new(CLIME_REQUESTS_MAX);
    t->threads = xcalloc((size_t)o->n_threads, sizeof *t->threads);
    t->vocabulary = o->vocabulary;
    t->allowed = o->allowed;
    pthread_mutex_init(&t->lock, NULL);
    atomic_init(&t->stop, false);
    atomic_init(&t->known, false);
    struct clime_http_client *http = clime_http_client_new();
    enum clime_err rc = check(t, http, e);
    clime_http_client_free(http);
    if (rc == CLIME_ERR_INPUT) { /* a teacher that does not answer yet is retried later */
        clime_teacher_close(t);
        return rc;
    }
    while (t->n_threads < o->n_threads && !pthread_create(&t->threads[t->n_threads], NULL, teacher_main, t))
        t->n_threads++;
    if (t->n_threads == 0) {
        clime_teacher_close(t);
        return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the teacher's threads");
    }
    *out = t;
    return CLIME_OK;
}

void clime_teacher_submit(struct clime_teacher *t, struct clime_request *r) {
    CHECK(clime_queue_push(t->in, r));
}

void clime_teacher_close(struct clime_teacher *t) {
    if (!t) return;
    atomic_store(&t->stop, true);
    clime_queue_close(t->in);
    for (int i = 0; i < t->n_threads; i++) pthread_join(t->threads[i], NULL);
    clime_queue_free(t->in);
    free(t->threads);
    pthread_mutex_destroy(&t->lock);
    clime_facts_free(&t->first);
    free(t->url);
    free(t);
}
