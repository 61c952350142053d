/* Registration with a router. Main starts and stops it; the thread owns its HTTP client.
 *
 * The thread registers once. The router's /health names its instance; only a new instance (a restarted router) or a
 * report that it evicted us makes the thread register again. Repeating it blindly would undo an operator's DELETE.
 * Failures are logged once per change of state, not once per try.
 */
#include "server/registration.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/port.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/os/lookup.h"
#include "common/os/thread.h"

#define RETRY_US ((int64_t)1000000)  /* until the first success */
#define REPEAT_US ((int64_t)2000000) /* after it */
#define CALL_US ((int64_t)3000000)
#define MAX_REPLY ((size_t)1 << 16)

struct clime_registration {
    char *router, *key, *advertise_url, *scheme, *host;
    int port, health_port;
    char *self; /* our URL, as last determined */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* guarded by lock */
};

/* reply: gets the response body (the caller frees it); NULL = not wanted. */
static bool call(struct clime_http_client *client, const struct clime_registration *r, const char *method,
                 const char *path, struct clime_str body, struct clime_buf *reply, struct clime_error *e) {
    char *url = xasprintf("%s%s", r->router, path);
    struct clime_http_call c = {.method = method,
                                .url = url,
                                .body = body,
                                .bearer = r->key,
                                .connect_timeout_us = CALL_US,
                                .timeout_us = CALL_US,
                                .max_reply = MAX_REPLY};
    struct clime_http_result result = {0};
    enum clime_err err = clime_http_client_call(client, &c, &result, e);
    if (!err && result.status >= 300)
        err = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s answered %d: %.200s", clime_url_shown(url).text, result.status,
                         result.reply.data ? result.reply.data : "");
    free(url);
    if (reply && !err)
        *reply = result.reply;
    else
        clime_buf_free(&result.reply);
    return !err;
}

static bool is_stopping(void *registration) {
    struct clime_registration *r = registration;
    pthread_mutex_lock(&r->lock);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return stop;
}

/* Our local address on the route there (nothing is sent), in URL form; NULL when there is no route. */
static char *own_address(const struct addrinfo *there) {
    int fd = socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    char text[NI_MAXHOST], *out = NULL;
    if (fd >= 0 && !connect(fd, there->ai_addr, there->ai_addrlen) && !getsockname(fd, (struct sockaddr *)&own, &len) &&
        !getnameinfo((struct sockaddr *)&own, len, text, sizeof text, NULL, 0, NI_NUMERICHOST))
        out = xasprintf(strchr(text, ':') ? "[%s]" : "%s", text);
    if (fd >= 0) close(fd);
    return out;
}

/* Our local address on the route to the router, of the family that we listen on; NULL when there is none. */
static char *address_towards(struct clime_registration *r, struct clime_error *e) {
    const char *url = r->router, *at = strstr(url, "://");
    at = at ? at + 3 : url;
    char host[256], *out = NULL;
    int port = 80;
    bool bracketed = at[0] == '[';
    size_t n = bracketed ? strcspn(++at, "]") : strcspn(at, ":/");
    snprintf(host, sizeof host, "%.*s", (int)n, at);
    at += n + bracketed;
    if (at[0] == ':') port = (int)strtol(at + 1, NULL, 10);
    struct addrinfo *found;
    if (clime_lookup(host, port, clime_now_us() + CALL_US, is_stopping, r, &found, e)) return NULL;
    for (const struct addrinfo *a = found; a && !out; a = a->ai_next)
        if (a->ai_family == clime_http_port_family(r->host)) out = own_address(a);
    freeaddrinfo(found);
    if (!out)
        clime_fail(e, CLIME_ERR_UNAVAILABLE, "no way leads to %s from an address that --host %s listens on",
                   clime_url_shown(url).text, r->host);
    return out;
}

/* Determines our URL for the router; false when it is not known yet. */
static bool locate(struct clime_registration *r, struct clime_error *e) {
    bool all = !strcmp(r->host, "0.0.0.0") || !strcmp(r->host, "::");
    char *host = all ? address_towards(r, e) : strchr(r->host, ':') ? xasprintf("[%s]", r->host) : xstrdup(r->host);
    if (!host) return false;
    free(r->self);
    r->self = r->advertise_url ? xstrdup(r->advertise_url) : xasprintf("%s://%s:%d", r->scheme, host, r->port);
    free(host);
    return true;
}

static bool enter(struct clime_http_client *client, struct clime_registration *r, struct clime_error *e) {
    if (!locate(r, e)) return false;
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 4096);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "url", r->self);
    if (r->health_port > 0) clime_jw_put_int(&w, "health_port", r->health_port);
    clime_jw_close(&w);
    bool ok = call(client, r, "POST", "/workers", clime_buf_str(&body), NULL, e);
    clime_buf_free(&body);
    return ok;
}

static void leave(struct clime_http_client *client, const struct clime_registration *r) {
    struct clime_error e = {0};
    char *path = clime_url_with("/remove_worker?url=", r->self);
    if (!call(client, r, "POST", path, clime_str_of("{}"), NULL, &e)) LOG_WARN("leaving the router: %s", e.msg);
    free(path);
}

/* True on stop. */
static bool sleep_until(struct clime_registration *r, int64_t at) {
    pthread_mutex_lock(&r->lock);
    while (!r->stop && clime_now_us() < at) clime_cond_wait_until(&r->wake, &r->lock, at);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return stop;
}

/* One round: gets the router's instance and whether it evicted us, and registers if that is new. *instance: the
 * instance we are registered with, NULL = none. */
static bool keep_registered(struct clime_http_client *client, struct clime_registration *r, char **instance,
                            struct clime_error *e) {
    struct clime_buf health;
    if (!r->self && !locate(r, e)) return false;
    char *path = clime_url_with("/health?worker=", r->self);
    bool ok = call(client, r, "GET", path, clime_str_of(""), &health, e);
    free(path);
    if (!ok) return false;
    char *answer = clime_buf_take(&health);
    if (*instance && strcmp(*instance, answer) == 0) {
        free(answer);
    } else if ((ok = enter(client, r, e))) {
        LOG_INFO("registered with %s as %s", clime_url_shown(r->router).text, r->self);
        free(*instance);
        *instance = answer;
    } else {
        free(answer);
    }
    return ok;
}

static void *registration_main(void *arg) {
    struct clime_registration *r = arg;
    struct clime_http_client *client = clime_http_client_new();
    char *instance = NULL;
    bool was_ok = true, ok;
    do {
        struct clime_error e = {0};
        ok = keep_registered(client, r, &instance, &e);
        if (!ok && was_ok && e.code != CLIME_ERR_ABORTED) LOG_WARN("registering with the router: %s", e.msg);
        was_ok = ok;
    } while (!sleep_until(r, clime_now_us() + (ok ? REPEAT_US : RETRY_US)));
    if (instance) leave(client, r);
    free(instance);
    clime_http_client_free(client);
    return NULL;
}

struct clime_registration *clime_registration_start(const struct clime_registration_options *o) {
    struct clime_registration *r = xcalloc(1, sizeof *r);
    size_t n = strlen(o->router);
    while (n > 0 && o->router[n - 1] == '/') n--;
    r->router = xstrndup(o->router, n);
    r->key = o->key ? xstrdup(o->key) : NULL;
    r->advertise_url = o->advertise_url ? xstrdup(o->advertise_url) : NULL;
    r->scheme = xstrdup(o->scheme);
    r->host = xstrdup(o->host);
    r->port = o->port;
    r->health_port = o->health_port;
    pthread_mutex_init(&r->lock, NULL);
    clime_cond_init(&r->wake);
    xthread(&r->thread, NULL, registration_main, r);
    return r;
}

void clime_registration_stop(struct clime_registration *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    free(r->router);
    free(r->key);
    free(r->advertise_url);
    free(r->scheme);
    free(r->host);
    free(r->self);
    free(r);
}
