/* HTTP server (see server.h): the only file that includes CivetWeb (1.15). Replies are in reply.c, streams in stream.c.
 *
 * begin_request is CivetWeb's callback for every request: it runs on the connection's worker thread, before CivetWeb's
 * own file, websocket and authorisation code, all unused. Owns the context; borrows the routes. Invariant: a request's
 * body is read to its end, or the connection is closed after the answer; its rest is never parsed as the next request.
 * Therefore every doubtful frame (two lengths, a length with a transfer coding, more headers than CivetWeb keeps) is
 * refused before any other check.
 */
#include "common/http/server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/accepted.h"
#include "common/http/peer.h"
#include "common/http/port.h"
#include "common/http/server_int.h"
#include "common/http/tls.h"
#include "common/log.h"
#include "common/os/lookup.h"
#include "common/thread/threadpool.h"

#define IDLE_MS "20000"        /* keep-alive: an idle connection holds a thread */
#define SOCKET_WAIT_MS "30000" /* longest wait for a peer that neither reads nor writes */
#define HEAD_BYTES "16384"     /* request line and headers; each thread has a buffer of this size */
#define BODY_GRACE_US 30000000
#define BODY_MEMORY ((size_t)1 << 30)
#define SEND_PIECE ((size_t)65536)
#define STOP_GRACE_US 5000000 /* for handlers that are about to finish */
#define KNOCK_LOOKUP_US 2000000
#define NO_THREAD "Cannot start worker thread "
#define HEALTH_THREADS 4
#define MALLOC_HEAPS 4   /* malloc arenas: glibc makes 8 per core, and each keeps its peak; most threads here wait */
#define PERMITS_A_CORE 2 /* permits per core: one may wait for a page or a lock */

/* Connection */

bool clime_http_send(struct clime_http_request *rq, const void *data, size_t len) {
    const char *at = data;
    while (len > 0) {
        /* CivetWeb's time limit is per call, whatever was sent meanwhile: send small pieces, each with its own limit. A
         * peer that stops reading yields a partial count, not an error. */
        size_t piece = len < SEND_PIECE ? len : SEND_PIECE;
        if (mg_write(rq->conn, at, piece) != (int)piece) {
            rq->keep_alive = false;
            return false;
        }
        at += piece;
        len -= piece;
    }
    return true;
}

int clime_http_receive(struct clime_http_request *rq, void *out, size_t size) {
    return mg_read(rq->conn, out, size);
}

bool clime_http_peer_gone(struct clime_http_request *rq) {
    int socket = clime_http_connection_socket(rq->connection);
    return socket >= 0 && clime_peer_closed(socket);
}

/* Accessors for handlers */

struct clime_str clime_http_method(const struct clime_http_request *rq) {
    return rq->method;
}

struct clime_str clime_http_path(const struct clime_http_request *rq) {
    return rq->path;
}

struct clime_str clime_http_param(const struct clime_http_request *rq) {
    return rq->param;
}

struct clime_str clime_http_body(const struct clime_http_request *rq) {
    return clime_buf_str(&rq->body);
}

bool clime_http_stopping(const struct clime_http_request *rq) {
    return atomic_load(&rq->server->stopping);
}

const char *clime_http_header(const struct clime_http_request *rq, const char *name) {
    return mg_get_header(rq->conn, name);
}

const char *clime_http_header_next(const struct clime_http_request *rq, const char *name, int *at) {
    const struct mg_request_info *info = mg_get_request_info(rq->conn);
    while (*at < info->num_headers) {
        const struct mg_header *h = &info->http_headers[(*at)++];
        if (!strcasecmp(h->name, name)) return h->value;
    }
    return NULL;
}

struct clime_str clime_http_query_string(const struct clime_http_request *rq) {
    return clime_str_of(mg_get_request_info(rq->conn)->query_string);
}

enum clime_err clime_http_query(const struct clime_http_request *rq, const char *name, char *out, size_t size,
                                bool *given, struct clime_error *e) {
    const char *query = mg_get_request_info(rq->conn)->query_string;
    int n = query ? mg_get_var(query, strlen(query), name, out, size) : -1;
    if (n == -2) return clime_fail(e, CLIME_ERR_INPUT, "%s is longer than %zu bytes", name, size - 1);
    if (n < 0) out[0] = '\0';
    if (given) *given = n >= 0;
    return CLIME_OK;
}

void clime_http_waits(struct clime_http_request *rq) {
    if (rq->has_permit) clime_permits_give(rq->server->main->permits);
    rq->has_permit = false;
}

/* Connections and requests */

static int connection_opened(const struct mg_connection *conn, void **conn_data) {
    struct clime_http_server *s = mg_get_user_data(mg_get_context(conn));
    *conn_data = clime_http_connection_open(s->connections);
    return 0;
}

/* CivetWeb itself refused the head of the connection that this thread serves. */
static _Thread_local bool head_refused;

/* Answers a request for "*", or for a URL of another port or scheme: CivetWeb closes it without a callback. */
static void refuse_unheard(struct mg_connection *conn) {
    const struct mg_request_info *info = mg_get_request_info(conn);
    struct clime_http_request rq = {.server = mg_get_user_data(mg_get_context(conn)), .conn = conn};
    if (info && info->request_uri && !info->local_uri_raw && !head_refused)
        clime_http_reply_error(&rq, 400, "what the request line names is no resource of this server");
    head_refused = false;
}

static void connection_closes(const struct mg_connection *conn) {
    struct clime_http_server *s = mg_get_user_data(mg_get_context(conn));
    refuse_unheard((struct mg_connection *)conn);
    struct clime_http_connection *c = mg_get_user_connection_data(conn);
    if (c) clime_http_connection_close(s->connections, c); /* after a failed TLS handshake it was never opened */
}

/* Refuses heads that a proxy before us may parse differently, and so find the body's end elsewhere: CivetWeb ends the
 * headers at a line that begins with a space or a colon, skips spaces before the first one, and accepts a lone line
 * feed as a line end. CivetWeb has replaced each proper line end with two zeros. */
static bool lines_are_whole(const struct mg_request_info *info) {
    const char *end = info->http_version + strlen(info->http_version);
    for (int i = 0; i < info->num_headers; i++) {
        if (info->http_headers[i].name != end + 2) return false;
        end = info->http_headers[i].value + strlen(info->http_headers[i].value);
    }
    return !end[1] && (end[2] == '\r' || (info->num_headers == 0 && !end[2])) && !end[3];
}

/* RFC 9112, section 3.2: the host of an absolute request target, "http://HOST/...", must equal the Host header. */
static bool names_host(const char *target, const char *host) {
    const char *at = target[0] == '/' ? NULL : strstr(target, "://");
    size_t n = at ? strcspn(at + 3, "/?") : 0;
    return !at || (n == strlen(host) && strncasecmp(at + 3, host, n) == 0);
}

/* RFC 9112, section 6: exactly one framing of the body. */
static bool check_frame(struct clime_http_request *rq, const struct mg_request_info *info) {
    const char *length = NULL, *coding = NULL, *expect = NULL, *host = "";
    int n_lengths = 0, n_codings = 0, n_hosts = 0;
    const char *wrong = NULL;
    for (int i = 0; i < info->num_headers; i++) {
        const char *name = info->http_headers[i].name, *value = info->http_headers[i].value;
        size_t n = strlen(name);
        /* RFC 9112, section 5.1. CivetWeb overwrites the spaces and the colon of "Name : value" with zeros. */
        if (value > name + n + 1 && !name[n + 1]) wrong = "white space before the colon of a header";
        if (strcasecmp(name, "Content-Length") == 0) length = value, n_lengths++;
        if (strcasecmp(name, "Transfer-Encoding") == 0) coding = value, n_codings++;
        if (strcasecmp(name, "Host") == 0) host = value, n_hosts++;
        if (strcasecmp(name, "Expect") == 0) expect = value;
    }
    rq->body_length = coding ? -1 : 0;
    if (n_hosts > 1) wrong = "more than one Host";
    if (!names_host(info->request_uri, host)) wrong = "the request line names another host than its Host";
    if (n_lengths + n_codings > 1) wrong = "more than one of Content-Length and Transfer-Encoding";
    if (coding && (strcasecmp(coding, "chunked") != 0 || rq->http10)) wrong = "Transfer-Encoding is not supported here";
    if (length) {
        char *end;
        rq->body_length = strtoll(length, &end, 10);
        if (length[0] < '0' || length[0] > '9' || *end) wrong = "Content-Length is not a number";
    }
    int status = 400;
    if (info->num_headers >= MG_MAX_HEADERS) { /* CivetWeb silently drops the rest */
        wrong = "too many headers";
        status = 431;
    } else if (!lines_are_whole(info)) {
        wrong = "a line of the head begins with a space or a colon, or does not end with CRLF";
    }
    if (wrong) {
        rq->keep_alive = false;
        return clime_http_refuse(rq, status, wrong, NULL);
    }
    if (expect && !rq->http10) {
        if (strcasecmp(expect, "100-continue") != 0) return clime_http_refuse(rq, 417, "unknown expectation", NULL);
        rq->expects_continue = rq->body_length != 0;
    }
    return true;
}

/* CivetWeb's rule, so that our Connection header matches its behaviour. */
static bool wants_keep_alive(struct clime_http_request *rq) {
    const char *connection = clime_http_header(rq, "Connection");
    return connection ? strcasestr(connection, "keep-alive") != NULL : !rq->http10;
}

/* Decodes RFC 3986 escapes (section 2.1) in place: the buffer is the connection's own. False: an invalid escape, or a
 * zero byte. CivetWeb's decoder keeps the first as is and ends the path at the second. */
static bool decode_path(struct clime_str *path) {
    char *to = (char *)path->ptr;
    size_t n = 0;
    for (size_t i = 0; i < path->len; i++) {
        char c = path->ptr[i];
        if (c == '%') {
            int high = i + 2 < path->len ? clime_hex_digit(path->ptr[i + 1]) : -1,
                low = high >= 0 ? clime_hex_digit(path->ptr[i + 2]) : -1;
            if (low < 0 || high + low == 0) return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        to[n++] = c;
    }
    path->len = n;
    return true;
}

static int begin_request(struct mg_connection *conn) {
    struct clime_http_server *s = mg_get_user_data(mg_get_context(conn));
    const struct mg_request_info *info = mg_get_request_info(conn);
    atomic_fetch_add(&s->n_active, 1);
    struct clime_http_request rq = {.server = s, .conn = conn, .connection = mg_get_user_connection_data(conn)};
    rq.method = clime_str_of(info->request_method);
    rq.path = clime_str_of(info->local_uri_raw);
    bool is_path = decode_path(&rq.path);
    if (rq.path.len > 1 && rq.path.ptr[rq.path.len - 1] == '/') rq.path.len--; /* a common mistake of clients */
    rq.http10 = strcmp(info->http_version, "1.0") == 0;
    rq.keep_alive = wants_keep_alive(&rq);
    rq.head_only = clime_str_is(rq.method, "HEAD");
    clime_http_identify(&rq);
    clime_buf_init(&rq.body, s->o.max_body);
    clime_http_connection_begin(s->connections, rq.connection, info->remote_addr, info->remote_port, info->server_port);
    if (!is_path) rq.keep_alive = false; /* bytes after the head are not parsed */
    if (!is_path)
        clime_http_refuse(&rq, 400, "the path has a % that two hexadecimal digits, not both 0, do not follow", NULL);
    else if (check_frame(&rq, info) && clime_http_admit(&rq)) {
        rq.route->handler(&rq, s->o.context);
        clime_http_waits(&rq);
        if (rq.streaming) clime_http_stream_finish(&rq.stream);
        if (!rq.answered) clime_http_reply_error(&rq, 500, "the handler gave no answer");
    }
    clime_http_body_discard(&rq);
    clime_http_connection_does(s->connections, rq.connection, CLIME_HTTP_IDLE, 0);
    if (!rq.keep_alive) mg_disable_connection_keep_alive(conn);
    clime_buf_free(&rq.body);
    clime_http_body_release(&rq);
    if (rq.holds_slot) atomic_fetch_sub(&s->main->n_held, 1);
    if (rq.holds_key) clime_http_key_give(rq.key);
    atomic_fetch_sub(&s->n_active, 1);
    return rq.status;
}

/* Errors that CivetWeb finds before begin_request. It also calls a head that overflows its buffer malformed. */
static int http_error(struct mg_connection *conn, int status, const char *message) {
    struct clime_http_request rq = {.server = mg_get_user_data(mg_get_context(conn)), .conn = conn};
    if (strcmp(message, "Malformed message") == 0)
        message = "malformed request: its head is over " HEAD_BYTES " bytes, or has a tab or another control character";
    head_refused = true;
    if (strcmp(message, "Bad request") == 0) message = "the request line is malformed, or its method is not known here";
    clime_http_reply_error(&rq, status, message);
    return 0;
}

static int log_message(const struct mg_connection *conn, const char *message) {
    struct clime_http_server *s = mg_get_user_data(mg_get_context(conn));
    if (s && !atomic_load(&s->started)) snprintf(s->complaint, sizeof s->complaint, "%s", message);
    LOG_DEBUG("http: %s", message);
    return 1; /* keep it out of CivetWeb's log */
}

/* Start and stop */

static void server_free(struct clime_http_server *s) {
    free(s->api_key);
    free(s->admin_key);
    if (s->main == s) clime_http_keys_free(s->keys);
    clime_http_connections_free(s->connections);
    if (s->permits) clime_permits_free(s->permits);
    free(s);
}

/* CivetWeb accepts four numbers of any size as an address, and listens elsewhere. */
static enum clime_err check_host(const char *host, struct clime_error *e) {
    struct in_addr v4;
    struct in6_addr v6;
    bool numeric = strspn(host, "0123456789.") == strlen(host);
    bool is_v6 = strchr(host, ':') != NULL;
    if (is_v6 ? inet_pton(AF_INET6, host, &v6) != 1 : numeric && inet_pton(AF_INET, host, &v4) != 1)
        return clime_fail(e, CLIME_ERR_INPUT, "%s is no address to listen on", host);
    if (is_v6 && !mg_check_feature(MG_FEATURES_IPV6)) /* Debian's build has none, and only reports a failure */
        return clime_fail(e, CLIME_ERR_INPUT, "cannot listen on %s: this CivetWeb was built without IPv6", host);
    return CLIME_OK;
}

static void *thread_begins(const struct mg_context *ctx, int type) {
    (void)ctx;
    if (type == 0) clime_accepted_note_mine(); /* an accepting thread */
    return NULL;
}

static void warn_of_openness(const struct clime_http_server *s) {
    const struct clime_http_route *r = s->o.routes;
    while (r->path && r->auth == CLIME_HTTP_OPEN) r++;
    if (!r->path || s->api_key || s->admin_key || clime_http_is_loopback(s->o.host)) return;
    LOG_WARN("http: %s:%d needs no key: any program that reaches this address may use and command it", s->o.host,
             s->port);
}

static enum clime_err start(const struct clime_http_options *o, struct clime_http_server *main_server,
                            struct clime_http_server **out, struct clime_error *e);

static enum clime_err start_health(struct clime_http_server *s, struct clime_error *e) {
    struct clime_http_options o = s->o;
    if (!o.health_routes) return CLIME_OK;
    o.port = o.health_port;
    o.n_threads = HEALTH_THREADS;
    o.routes = o.health_routes;
    o.health_routes = NULL;
    o.has_admin_port = false;
    return start(&o, s, &s->health, e);
}

static enum clime_err start_admin(struct clime_http_server *s, struct clime_error *e) {
    struct clime_http_options o = s->o;
    if (!o.has_admin_port) return CLIME_OK;
    if (o.admin_host) o.host = o.admin_host;
    o.port = o.admin_port;
    o.health_routes = NULL;
    o.has_admin_port = false;
    return start(&o, s, &s->admin, e);
}

/* Holders of named keys must not command, so an admin key is required with them. */
static enum clime_err read_keys(struct clime_http_server *s, struct clime_error *e) {
    if (s->main != s) s->keys = s->main->keys;
    if (s->main != s || !s->o.key_file) return CLIME_OK;
    if (!s->admin_key)
        return clime_fail(e, CLIME_ERR_INPUT, "keys with names (%s) need an admin key beside them", s->o.key_file);
    enum clime_err rc = clime_http_keys_read(s->o.key_file, &s->keys, e);
    if (!rc && clime_http_keys_find(s->keys, s->admin_key))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s has the admin key: keys with names never command", s->o.key_file);
    return rc;
}

static enum clime_err start(const struct clime_http_options *o, struct clime_http_server *main_server,
                            struct clime_http_server **out, struct clime_error *e) {
    CHECK(o->host && o->routes && o->n_threads > 1);
    *out = NULL;
    enum clime_err rc = check_host(o->host, e);
    if (rc == CLIME_OK && o->tls_certificate) rc = clime_tls_prepare(o->tls_certificate, e);
    if (rc != CLIME_OK) return rc;
    clime_http_raise_file_limit(o->n_threads * (1 + o->has_admin_port));
    mallopt(M_ARENA_MAX, MALLOC_HEAPS);
    struct clime_http_server *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->main = main_server ? main_server : s;
    if (s->o.max_body_memory == 0) s->o.max_body_memory = BODY_MEMORY;
    if (s->o.max_body_memory < s->o.max_body) s->o.max_body_memory = s->o.max_body;
    if (s->o.body_grace_us <= 0) s->o.body_grace_us = BODY_GRACE_US;
    int kept = o->n_threads - clime_http_slots(o->n_threads);
    s->connections = clime_http_connections_new(o->n_threads, o->n_threads - (kept + 1) / 2, o->n_threads / 2,
                                                s->o.body_grace_us / 4);
    if (s->main == s) {
        s->n_slots = clime_http_choose_slots(o);
        s->permits = clime_permits_new(o->n_permits > 0 ? o->n_permits : PERMITS_A_CORE * clime_allowed_cores());
    }
    s->api_key = o->api_key && o->api_key[0] ? xstrdup(o->api_key) : NULL;
    s->admin_key = o->admin_key && o->admin_key[0] ? xstrdup(o->admin_key) : NULL;
    if ((rc = read_keys(s, e))) {
        server_free(s);
        return rc;
    }
    bool v6 = strchr(o->host, ':') != NULL;
    char listen[320], n_threads[16], complaint[256] = "";
    snprintf(listen, sizeof listen, v6 ? "[%s]:%d%s" : "%s:%d%s", o->host, o->port, o->tls_certificate ? "s" : "");
    snprintf(n_threads, sizeof n_threads, "%d", o->n_threads);
    const char *settings[][2] = {
        {"listening_ports", listen},
        {"num_threads", n_threads},
        {"listen_backlog", "4096"},
        {"connection_queue", "128"},
        {"max_request_size", HEAD_BYTES},
        {"enable_keep_alive", "yes"},
        {"keep_alive_timeout_ms", IDLE_MS},
        {"request_timeout_ms", SOCKET_WAIT_MS},
        {"tcp_nodelay", "1"},
        {"decode_url", "no"},
        {"enable_auth_domain_check", "no"}, /* else it rejects absolute URLs */
        {o->tls_certificate ? "ssl_certificate" : NULL, o->tls_certificate},
        {NULL, NULL},
    };
    struct mg_callbacks callbacks = {.init_thread = thread_begins,
                                     .init_connection = connection_opened,
                                     .begin_request = begin_request,
                                     .connection_close = connection_closes,
                                     .http_error = http_error,
                                     .log_message = log_message};
    struct mg_init_data init = {.callbacks = &callbacks, .user_data = s, .configuration_options = settings[0]};
    struct mg_error_data error = {.text = complaint, .text_buffer_size = sizeof complaint};
    mg_init_library(o->tls_certificate ? MG_FEATURES_TLS : MG_FEATURES_DEFAULT);
    s->ctx = mg_start2(&init, &error);
    struct mg_server_port port = {0};
    if (s->ctx) mg_get_server_ports(s->ctx, 1, &port);
    if (!s->ctx) {
        clime_fail(e, CLIME_ERR_IO, "cannot listen on %s:%d: %s", o->host, o->port,
                   s->complaint[0] ? s->complaint : complaint);
        server_free(s);
        mg_exit_library();
        return CLIME_ERR_IO;
    }
    /* CivetWeb continues with fewer threads. We do not: they are fewer than the slots, and the next thread that the
     * process starts would fail. */
    if (strncmp(s->complaint, NO_THREAD, strlen(NO_THREAD)) == 0) {
        int got = (int)strtol(s->complaint + strlen(NO_THREAD), NULL, 10) - 1;
        clime_http_server_stop(s);
        return clime_fail(
            e, CLIME_ERR_LIMIT,
            "only %d of %d threads that answer requests could be started; raise the limits of threads and "
            "memory%s%s",
            got, o->n_threads, o->fewer ? ", or lower --" : "", o->fewer ? o->fewer : "");
    }
    s->port = port.port;
    clime_http_connections_port(s->connections, s->port);
    atomic_store(&s->started, true);
    if ((rc = start_health(s, e)) || (rc = start_admin(s, e))) {
        clime_http_server_stop(s);
        return rc;
    }
    warn_of_openness(s);
    *out = s;
    return CLIME_OK;
}

enum clime_err clime_http_server_start(const struct clime_http_options *o, struct clime_http_server **out,
                                       struct clime_error *e) {
    return start(o, NULL, out, e);
}

int clime_http_server_port(const struct clime_http_server *s) {
    return s->port;
}

int clime_http_server_health_port(const struct clime_http_server *s) {
    return s->health ? s->health->port : -1;
}

int clime_http_server_admin_port(const struct clime_http_server *s) {
    return s->admin ? s->admin->port : -1;
}

static bool is_stopped(void *server) {
    return atomic_load(&((struct clime_http_server *)server)->stopped);
}

/* Connects once: CivetWeb's accepting thread checks its stop flag every 2 s, or on a connection. */
static void *knock(void *arg) {
    struct clime_http_server *s = arg;
    const char *host = strcmp(s->o.host, "0.0.0.0") == 0 ? "127.0.0.1"
                       : strcmp(s->o.host, "::") == 0    ? "::1"
                                                         : s->o.host;
    struct addrinfo *found;
    struct clime_error e;
    if (clime_lookup(host, s->port, clime_now_us() + KNOCK_LOOKUP_US, is_stopped, s, &found, &e)) return NULL;
    const struct addrinfo *a = found;
    while (a && a->ai_family != clime_http_port_family(host)) a = a->ai_next;
    while (a && !atomic_load(&s->stopped)) {
        clime_sleep_us(5000); /* mg_stop has set the flag by then, or the next connection finds it */
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) break;
        connect(fd, a->ai_addr, a->ai_addrlen);
        clime_sleep_us(5000);
        close(fd);
    }
    freeaddrinfo(found);
    return NULL;
}

void clime_http_server_stop(struct clime_http_server *s) {
    if (!s) return;
    clime_http_server_stop(s->health);
    clime_http_server_stop(s->admin);
    atomic_store(&s->stopping, true);
    /* CivetWeb cuts every write once it stops, so give pending answers time first. */
    int64_t until = clime_now_us() + STOP_GRACE_US;
    while (atomic_load(&s->n_active) > 0 && clime_now_us() < until) clime_sleep_us(2000);
    pthread_t knocker;
    bool knocks = pthread_create(&knocker, NULL, knock, s) == 0;
    mg_stop(s->ctx);
    atomic_store(&s->stopped, true);
    if (knocks) pthread_join(knocker, NULL);
    mg_exit_library();
    server_free(s);
}
