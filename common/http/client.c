/* HTTP client (see client.h): the only file that includes libcurl.
 *
 * Called by the router's and the trainer's worker threads; each owns its client. A call drives libcurl's multi
 * interface with one easy handle: curl_easy_perform calls its progress callback only once a second when idle, but a
 * cancelled call must end within CANCEL_POLL_MS. Each client has its own connection cache; libcurl does not support
 * sharing one between threads, and it crashed when tried.
 *
 * A loop waits with epoll for libcurl's sockets, so a turn costs what the active calls cost, not the waiting ones.
 */
#include "common/http/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/field.h"

#define CONNECT_TIMEOUT_US 5000000
#define CANCEL_POLL_MS 250
#define IDLE_POLL_MS 10000 /* without a cancel function only libcurl's timers and the socket matter */
#define MAX_IDLE_S 15L     /* below the server's 20 s: a connection is rarely reused while being closed */
#define MAX_CONNECTIONS 16L
#define KEEPALIVE_S 15L /* idle time before TCP keep-alive probes, sent every KEEPALIVE_EVERY_S */
#define KEEPALIVE_EVERY_S 5L
#define MOST_RETRY_AFTER_S 3600
#define LARGEST_HEAD (256 << 10) /* bytes; libcurl keeps every line */
#define EVENTS 256               /* socket events per epoll_wait */

struct clime_http_client {
    CURLM *multi;
    CURLSH *sessions;
    char *bearer; /* default bearer; NULL = none */
};

/* An in-flight call; on the caller's stack, or owned by a loop. */
struct transfer {
    const struct clime_http_call *call;
    struct clime_http_result *out;
    CURL *easy;
    struct curl_slist *headers;
    char why[CURL_ERROR_SIZE];
    enum clime_err stopped; /* why a callback stopped the transfer */
    bool no_descriptor;     /* this process has no descriptor left: not the peer's fault */
    bool has_head;          /* the answer's head is complete */
    int64_t length;         /* Content-Length of the answer; -1 = none */
    int64_t head_bytes;     /* total size of heads and trailer */
    const char *bad_head;   /* why the head is invalid; NULL = valid */
    /* of a loop: */
    struct clime_http_call own; /* the copy that `call` points to */
    struct clime_error *e;
    clime_http_done_fn *done;
    void *arg;
    struct transfer *before, *after;
};

struct clime_http_loop {
    CURLM *multi;
    CURLSH *sessions;
    char *bearer;
    int epoll, wake;      /* descriptors */
    int64_t timer_us;     /* libcurl's next timeout; -1 = none */
    int64_t next_ask_us;  /* next poll of the cancel functions */
    struct transfer *all; /* in flight */
    int n_all;
};

static const char *trusted; /* PEM; NULL = the system's */

void clime_http_client_global_init(void) {
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
}

enum clime_err clime_http_client_trust(const char *ca_file, struct clime_error *e) {
    if (ca_file && access(ca_file, R_OK) != 0)
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "--ca-certificate: cannot read %s", ca_file);
    trusted = ca_file;
    return CLIME_OK;
}

bool clime_http_url_is_base(const char *url) {
    if ((strncmp(url, "http://", 7) && strncmp(url, "https://", 8)) || strpbrk(url, "?#")) return false;
    CURLU *u = curl_url();
    CHECK(u);
    bool is = curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER) == CURLUE_OK;
    curl_url_cleanup(u);
    return is;
}

/* TLS session cache, which shortens handshakes: libcurl has one per handle, and a handle serves one call here. */
static CURLSH *sessions_new(void) {
    CURLSH *s = curl_share_init();
    CHECK(s && curl_share_setopt(s, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) == CURLSHE_OK);
    return s;
}

struct clime_http_client *clime_http_client_new(void) {
    struct clime_http_client *c = xcalloc(1, sizeof *c);
    c->multi = curl_multi_init();
    CHECK(c->multi);
    c->sessions = sessions_new();
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, MAX_CONNECTIONS);
    return c;
}

void clime_http_client_free(struct clime_http_client *c) {
    if (!c) return;
    curl_multi_cleanup(c->multi);
    CHECK(curl_share_cleanup(c->sessions) == CURLSHE_OK);
    free(c->bearer);
    free(c);
}

void clime_http_client_bearer(struct clime_http_client *c, const char *key) {
    free(c->bearer);
    c->bearer = key ? xstrdup(key) : NULL;
}

/* Callbacks, all on the caller's thread inside curl_multi_perform */

static size_t on_body(char *data, size_t size, size_t n, void *arg) {
    struct transfer *t = arg;
    n *= size;
    if (t->call->on_data) {
        if (t->call->on_data(t->call->arg, data, n)) return n;
        t->stopped = CLIME_ERR_ABORTED;
        return n + 1; /* anything but n stops libcurl */
    }
    clime_buf_add(&t->out->reply, data, n);
    if (!t->out->reply.full) return n;
    t->stopped = CLIME_ERR_LIMIT;
    return n + 1;
}

static size_t read_up(char *out, size_t size, size_t n, void *arg) {
    struct transfer *t = arg;
    int64_t got = t->call->read_body(t->call->arg, out, size * n);
    if (got >= 0) return (size_t)got;
    t->stopped = CLIME_ERR_ABORTED;
    return CURL_READFUNC_ABORT;
}

/* "30" in microseconds; 0 for a date, which our peers do not send. */
static int64_t seconds_of(const char *value) {
    long s = strtol(value, NULL, 10);
    return 1000000ll * (s < 0 ? 0 : s < MOST_RETRY_AFTER_S ? s : MOST_RETRY_AFTER_S);
}

static bool is_named(const struct clime_http_field *f, const char *name) {
    return f->name.len == strlen(name) && !strncasecmp(f->name.ptr, name, f->name.len);
}

/* False ends the call. */
static bool take_field(struct transfer *t, const struct clime_http_field *f) {
    if (is_named(f, "Retry-After")) t->out->retry_after_us = seconds_of(f->value);
    /* With two lengths libcurl would use one, and parse the rest as the next answer. */
    if (is_named(f, "Content-Length") && !clime_http_field_length(f->value, &t->length))
        t->bad_head = "its Content-Length is not one number";
    if (t->call->on_header && !t->bad_head) {
        char *name = xstrndup(f->name.ptr, f->name.len);
        t->call->on_header(t->call->arg, t->out->status, name, f->value);
        free(name);
    }
    return !t->bad_head;
}

static size_t on_header_line(char *line, size_t size, size_t n, void *arg) {
    struct transfer *t = arg;
    struct clime_http_field f;
    size_t len = n * size;
    long status = 0; /* 100 Continue comes first, then the real answer's */
    t->head_bytes += (int64_t)len;
    if (t->head_bytes > LARGEST_HEAD) t->bad_head = "its heads and trailer are larger than 256 KiB";
    if (t->bad_head) return 0;   /* anything but len stops libcurl */
    if (t->has_head) return len; /* a trailer, which does not affect the head */
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->out->status = (int)status;
    if (len >= 5 && strncasecmp(line, "HTTP/", 5) == 0) return len;
    if (line[0] == '\r' || line[0] == '\n') t->has_head = status >= 200 && status < 600;
    if (t->out->status < 200 || !clime_http_field_read((struct clime_str){line, len}, &f)) return len;
    bool goes_on = take_field(t, &f);
    free(f.value);
    return goes_on ? len : 0;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a) {
    struct transfer *t = arg;
    (void)purpose;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    if (fd >= 0) return fd;
    t->no_descriptor = errno == EMFILE || errno == ENFILE;
    return CURL_SOCKET_BAD;
}

/* Setting up */

static struct curl_slist *header_list(const char *bearer, const struct clime_http_call *call) {
    if (call->bearer) bearer = call->bearer;
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"); /* waiting for 100 Continue costs time */
    char *line = NULL;
    if (bearer) {
        line = xasprintf("Authorization: Bearer %s", bearer);
        list = curl_slist_append(list, line);
        free(line);
    }
    if (call->content_type || call->body.len || call->read_body) {
        line = xasprintf("Content-Type: %s", call->content_type ? call->content_type : "application/json");
        list = curl_slist_append(list, line);
        free(line);
    }
    for (const char *const *h = call->headers; h && *h; h++) list = curl_slist_append(list, *h);
    CHECK(list);
    return list;
}

static void set_body(CURL *h, const struct clime_http_call *call, struct transfer *t) {
    if (call->read_body) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, read_up);
        curl_easy_setopt(h, CURLOPT_READDATA, t);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(call->body_length < 0 ? -1 : call->body_length));
        curl_easy_setopt(h, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
        /* A stale connection would fail the call, as a streamed body cannot be sent twice. Nor must a fresh connection
         * stay behind: each idle one holds a thread of the server. */
        curl_easy_setopt(h, CURLOPT_FRESH_CONNECT, 1L);
        curl_easy_setopt(h, CURLOPT_FORBID_REUSE, 1L);
    } else if (call->body.len || strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0) {
        curl_easy_setopt(h, CURLOPT_POST, 1L);
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body.len);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, call->body.len ? call->body.ptr : "");
    } else if (strcmp(call->method, "HEAD") == 0) {
        curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    }
    curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, call->method);
}

static int64_t connect_limit(const struct clime_http_call *call) {
    return call->connect_timeout_us ? call->connect_timeout_us : CONNECT_TIMEOUT_US;
}

static void set_call(struct transfer *t, const char *bearer, CURLSH *sessions) {
    const struct clime_http_call *call = t->call;
    CURL *h = t->easy = curl_easy_init();
    CHECK(h);
    CHECK(call->timeout_us > 0 || call->cancel);
    CHECK(call->on_data || call->max_reply > 0);
    *t->out = (struct clime_http_result){0};
    t->length = -1;
    clime_buf_init(&t->out->reply, call->max_reply);
    t->headers = header_list(bearer, call);
    curl_easy_setopt(h, CURLOPT_URL, call->url);
    curl_easy_setopt(h, CURLOPT_SHARE, sessions);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    if (trusted) {
        curl_easy_setopt(h, CURLOPT_CAINFO, trusted);
        curl_easy_setopt(h, CURLOPT_CAPATH, NULL); /* no other authorities */
    }
    curl_easy_setopt(h, CURLOPT_PATH_AS_IS, 1L); /* do not normalise the path */
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_PROXY, "");
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    /* A call at its limit, or cancelled, does not wait for its DNS thread, which cannot be stopped and ends at the
     * resolver's timeout. */
    curl_easy_setopt(h, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "clime");
    curl_easy_setopt(h, CURLOPT_MAXAGE_CONN, MAX_IDLE_S);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L); /* a dead host sends nothing, not even a reset */
    curl_easy_setopt(h, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    curl_easy_setopt(h, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(h, CURLOPT_OPENSOCKETDATA, t);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)((connect_limit(call) + 999) / 1000));
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)((call->timeout_us + 999) / 1000));
    if (call->stall_us > 0) {
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, (long)(call->min_rate ? call->min_rate : 1));
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)((call->stall_us + 999999) / 1000000));
    }
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, t->why);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header_line);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, t);
    set_body(h, call, t);
}

/* Running */

/* Drives the transfer to its end; returns libcurl's result, unless t->stopped is set. */
static CURLcode drive(struct clime_http_client *c, struct transfer *t) {
    int64_t next_question = 0;
    for (;;) {
        int running = 0, left = 0;
        if (curl_multi_perform(c->multi, &running) != CURLM_OK) return CURLE_FAILED_INIT;
        for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));)
            if (m->msg == CURLMSG_DONE) return m->data.result;
        if (t->call->cancel && clime_now_us() >= next_question) {
            if (t->call->cancel(t->call->arg)) {
                t->stopped = CLIME_ERR_ABORTED;
                return CURLE_ABORTED_BY_CALLBACK;
            }
            next_question = clime_now_us() + CANCEL_POLL_MS * 1000;
        }
        curl_multi_poll(c->multi, NULL, 0, t->call->cancel ? CANCEL_POLL_MS : IDLE_POLL_MS, NULL);
    }
}

static enum clime_err class_of(CURL *h, CURLcode rc) {
    curl_off_t connected = 0;
    switch (rc) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
        return CLIME_ERR_UNAVAILABLE;
    case CURLE_OPERATION_TIMEDOUT:
        /* A host that never accepted the connection counts as down. */
        curl_easy_getinfo(h, CURLINFO_PRETRANSFER_TIME_T, &connected);
        return connected ? CLIME_ERR_TIMEOUT : CLIME_ERR_UNAVAILABLE;
    case CURLE_URL_MALFORMAT:
        return CLIME_ERR_INPUT;
    case CURLE_UNSUPPORTED_PROTOCOL: /* of the URL, or the answer is not HTTP/1 */
        curl_easy_getinfo(h, CURLINFO_PRETRANSFER_TIME_T, &connected);
        return connected ? CLIME_ERR_INTERNAL : CLIME_ERR_INPUT;
    default:
        return CLIME_ERR_INTERNAL;
    }
}

static enum clime_err report(const struct transfer *t, CURLcode rc, struct clime_error *e) {
    const struct clime_http_call *call = t->call;
    const struct clime_url_shown url = clime_url_shown(call->url);
    if (t->stopped == CLIME_ERR_LIMIT)
        return clime_fail(e, CLIME_ERR_LIMIT, "%s %s: the reply is larger than %zu bytes", call->method, url.text,
                          call->max_reply);
    if (t->stopped) return clime_fail(e, t->stopped, "%s %s: stopped on request", call->method, url.text);
    if (t->bad_head)
        return clime_fail(e, CLIME_ERR_INTERNAL, "%s %s: this is no answer: %s", call->method, url.text, t->bad_head);
    if (rc == CURLE_OK && t->has_head) return CLIME_OK;
    if (rc == CURLE_OK) /* libcurl accepts an end inside the head */
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s %s: no whole head of an answer came (its status: %d)",
                          call->method, url.text, t->out->status);
    if (t->no_descriptor)
        return clime_fail(e, CLIME_ERR_BUSY, "%s %s: this process has no file descriptor left", call->method, url.text);
    return clime_fail(e, class_of(t->easy, rc), "%s %s: %s", call->method, url.text,
                      t->why[0] ? t->why : curl_easy_strerror(rc));
}

/* Ends a transfer and reports its result. Its handle is freed: in a reused one, libcurl 7.88 parses a head whose first
 * line begins with a blank as a continuation of the previous head, whose memory is freed by then. A new handle costs 2
 * us; connections and addresses stay in the multi handle, TLS sessions in the share. */
static enum clime_err finish(CURLM *multi, struct transfer *t, CURLcode rc, struct clime_error *e) {
    enum clime_err code = report(t, rc, e);
    curl_off_t connected = 0;
    curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
    t->out->connected = connected > 0;
    curl_multi_remove_handle(multi, t->easy); /* closes the connection unless the transfer ended cleanly */
    curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    return code;
}

enum clime_err clime_http_client_call(struct clime_http_client *c, const struct clime_http_call *call,
                                      struct clime_http_result *out, struct clime_error *e) {
    struct transfer t = {.call = call, .out = out};
    set_call(&t, c->bearer, c->sessions);
    CURLcode rc = CURLE_FAILED_INIT;
    if (curl_multi_add_handle(c->multi, t.easy) == CURLM_OK) rc = drive(c, &t);
    return finish(c->multi, &t, rc, e);
}

/* ---- concurrent calls ---- */

static int watch_socket(CURL *h, curl_socket_t fd, int what, void *arg, void *unused) {
    struct clime_http_loop *l = arg;
    struct epoll_event v = {.data.fd = fd};
    (void)h;
    (void)unused;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL); /* fails when already closed, hence removed */
        return 0;
    }
    if (what & CURL_POLL_IN) v.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) v.events |= EPOLLOUT;
    if (epoll_ctl(l->epoll, EPOLL_CTL_MOD, fd, &v)) CHECK(epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &v) == 0);
    return 0;
}

static int set_timer(CURLM *multi, long ms, void *arg) {
    struct clime_http_loop *l = arg;
    (void)multi;
    l->timer_us = ms < 0 ? -1 : clime_now_us() + (int64_t)ms * 1000;
    return 0;
}

struct clime_http_loop *clime_http_loop_new(int n_kept, struct clime_error *e) {
    struct clime_http_loop *l = xcalloc(1, sizeof *l);
    l->multi = curl_multi_init();
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->timer_us = -1;
    l->sessions = sessions_new();
    struct epoll_event v = {.events = EPOLLIN, .data.fd = l->wake};
    CHECK(l->multi);
    if (l->epoll < 0 || l->wake < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wake, &v)) {
        clime_fail(e, CLIME_ERR_BUSY, "calls cannot be waited for: %s", strerror(errno));
        clime_http_loop_free(l);
        return NULL;
    }
    clime_http_loop_keep(l, n_kept);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
    return l;
}

void clime_http_loop_keep(struct clime_http_loop *l, int n_kept) {
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)n_kept);
}

void clime_http_loop_bearer(struct clime_http_loop *l, const char *key) {
    free(l->bearer);
    l->bearer = key ? xstrdup(key) : NULL;
}

static void end_transfer(struct clime_http_loop *l, struct transfer *t, CURLcode rc) {
    if (t->before) t->before->after = t->after;
    if (t->after) t->after->before = t->before;
    if (l->all == t) l->all = t->after;
    l->n_all--;
    enum clime_err code = finish(l->multi, t, rc, t->e);
    clime_http_done_fn *done = t->done;
    void *arg = t->arg;
    free(t);
    done(arg, code);
}

void clime_http_loop_start(struct clime_http_loop *l, const struct clime_http_call *call, struct clime_http_result *out,
                           struct clime_error *e, clime_http_done_fn *done, void *arg) {
    struct transfer *t = xcalloc(1, sizeof *t);
    *t = (struct transfer){.own = *call, .out = out, .e = e, .done = done, .arg = arg};
    t->call = &t->own;
    set_call(t, l->bearer, l->sessions);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    if ((t->after = l->all)) l->all->before = t;
    l->all = t;
    l->n_all++;
    CHECK(curl_multi_add_handle(l->multi, t->easy) == CURLM_OK);
}

static void ask_whether_cancelled(struct clime_http_loop *l) {
    for (struct transfer *t = l->all, *next; t; t = next) {
        next = t->after;
        if (!t->call->cancel || !t->call->cancel(t->call->arg)) continue;
        t->stopped = CLIME_ERR_ABORTED;
        end_transfer(l, t, CURLE_ABORTED_BY_CALLBACK);
    }
    l->next_ask_us = clime_now_us() + CANCEL_POLL_MS * 1000;
}

static void end_finished(struct clime_http_loop *l) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));) {
        struct transfer *t;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        end_transfer(l, t, m->data.result);
    }
}

static void pass_event(struct clime_http_loop *l, const struct epoll_event *v) {
    int what = 0, running;
    uint64_t count;
    if (v->data.fd == l->wake) {
        if (read(l->wake, &count, sizeof count) < 0) return; /* no wake pending */
        return;
    }
    if (v->events & EPOLLIN) what |= CURL_CSELECT_IN;
    if (v->events & EPOLLOUT) what |= CURL_CSELECT_OUT;
    if (v->events & (EPOLLERR | EPOLLHUP)) what |= CURL_CSELECT_ERR;
    curl_multi_socket_action(l->multi, v->data.fd, what, &running);
}

int clime_http_loop_turn(struct clime_http_loop *l, int64_t until_us) {
    struct epoll_event v[EVENTS];
    int64_t until = l->n_all && l->next_ask_us < until_us ? l->next_ask_us : until_us, now = clime_now_us();
    int running;
    if (l->timer_us >= 0 && l->timer_us < until) until = l->timer_us;
    if (until > now + IDLE_POLL_MS * 1000) until = now + IDLE_POLL_MS * 1000;
    int n = epoll_wait(l->epoll, v, EVENTS, until > now ? (int)((until - now + 999) / 1000) : 0);
    for (int i = 0; i < n; i++) pass_event(l, &v[i]);
    if (l->timer_us >= 0 && clime_now_us() >= l->timer_us) {
        l->timer_us = -1;
        curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    end_finished(l);
    if (clime_now_us() >= l->next_ask_us) ask_whether_cancelled(l);
    return l->n_all;
}

void clime_http_loop_wake(struct clime_http_loop *l) {
    uint64_t one = 1;
    if (write(l->wake, &one, sizeof one) < 0) return; /* already awake, or turns within IDLE_POLL_MS */
}

void clime_http_loop_free(struct clime_http_loop *l) {
    if (!l) return;
    while (l->all) {
        l->all->stopped = CLIME_ERR_ABORTED;
        end_transfer(l, l->all, CURLE_ABORTED_BY_CALLBACK);
    }
    curl_multi_cleanup(l->multi);
    CHECK(curl_share_cleanup(l->sessions) == CURLSHE_OK);
    if (l->epoll >= 0) close(l->epoll);
    if (l->wake >= 0) close(l->wake);
    free(l->bearer);
    free(l);
}
