/* Admission of a request: route, key, slot, body (see server.h). Called by the server on the connection's worker thread
 * once the framing is known to be valid.
 *
 * Invariant: no byte of an unwanted body is read, so all checks of the head come first. A slot is taken only after the
 * body has arrived: slow senders hold threads, which can be reclaimed, not slots.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/http/secret.h"
#include "common/http/server_int.h"
#include "common/rng.h"

/* ---- id ---------------------------------------------------------------------------------------------------- */

void clime_http_identify(struct clime_http_request *rq) {
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:/+=";
    const char *given = clime_http_header(rq, "X-Request-Id");
    size_t n = given ? strspn(given, plain) : 0;
    if (n > 0 && n < sizeof rq->id && !given[n]) {
        memcpy(rq->id, given, n + 1);
        return;
    }
    clime_random_id(rq->id);
}

const char *clime_http_request_id(const struct clime_http_request *rq) {
    return rq->id;
}

/* ---- key --------------------------------------------------------------------------------------------------- */

/* The key in the request, or NULL. */
static const char *given_key(const struct clime_http_request *rq) {
    const char *given = clime_http_header(rq, "Authorization");
    if (given && strncasecmp(given, "Bearer ", 7) == 0) return given + 7 + strspn(given + 7, " ");
    return clime_http_header(rq, "X-Api-Key"); /* sent by Anthropic's clients */
}

bool clime_http_key_is_named(const struct clime_http_request *rq) {
    return rq->key != NULL;
}

bool clime_http_has_key(const struct clime_http_request *rq, const char *key) {
    const char *given = given_key(rq);
    return given && clime_secret_equal(given, key);
}

/* Compares with every key, whichever matches. */
static bool is_users_key(struct clime_http_request *rq, const char *given) {
    const struct clime_http_server *s = rq->server;
    bool is_api_key = s->api_key && clime_secret_equal(given, s->api_key);
    if (s->keys) rq->key = clime_http_keys_find(s->keys, given);
    return is_api_key || rq->key;
}

bool clime_http_is_known(struct clime_http_request *rq) {
    struct clime_http_request as_main = {.server = rq->server->main};
    const struct clime_http_server *s = as_main.server;
    const char *given = given_key(rq);
    if (!s->api_key && !s->admin_key && !s->keys) return true;
    if (!given) return false;
    bool is_admins = s->admin_key && clime_secret_equal(given, s->admin_key);
    return is_users_key(&as_main, given) || is_admins;
}

bool clime_http_may_command(const struct clime_http_request *rq) {
    const struct clime_http_server *s = rq->server->main;
    const char *key = s->admin_key ? s->admin_key : s->api_key;
    return !key || clime_http_has_key(rq, key);
}

static bool check_key(struct clime_http_request *rq) {
    const struct clime_http_server *s = rq->server;
    bool admin = rq->route->auth == CLIME_HTTP_ADMIN && s->admin_key;
    const char *given = given_key(rq);
    if (rq->route->auth == CLIME_HTTP_OPEN) return true;
    if (rq->route->auth == CLIME_HTTP_ADMIN && s->o.has_admin_port)
        return clime_http_refuse(rq, 403, "control calls are taken on the admin port", NULL);
    if (!admin && !s->api_key && !s->keys) return true; /* no key set: ignore the client's */
    bool is_admins = given && s->admin_key && clime_secret_equal(given, s->admin_key);
    bool is_users = given && is_users_key(rq, given);
    if (is_admins || (is_users && !admin)) return true;
    if (is_users) return clime_http_refuse(rq, 403, "this endpoint needs the admin key, not the API key", NULL);
    return clime_http_refuse(rq, 401, given ? "wrong key" : "this endpoint needs a key: send Authorization: Bearer KEY",
                             "WWW-Authenticate: Bearer\r\n");
}

/* ---- slot -------------------------------------------------------------------------------------------------- */

static bool refuse_busy(struct clime_http_request *rq) {
    char message[120];
    struct clime_http_server *s = rq->server->main;
    atomic_fetch_add(&s->n_refused, 1);
    snprintf(message, sizeof message, "%d requests are in work, as many as are taken at a time; try again later",
             s->n_slots);
    return clime_http_refuse(rq, 429, message, "Retry-After: 1\r\n");
}

static bool take_slot(struct clime_http_request *rq) {
    struct clime_http_server *s = rq->server->main;
    int held = atomic_load(&s->n_held);
    while (held < s->n_slots)
        if (atomic_compare_exchange_weak(&s->n_held, &held, held + 1)) return rq->holds_slot = true;
    return refuse_busy(rq);
}

/* Applies the key's own limits; the request counts against them from here on, while its body arrives too. */
static bool take_key(struct clime_http_request *rq) {
    struct clime_error why;
    char extra[40];
    int after_s;
    if (!rq->route->slot || !rq->key) return true;
    if (clime_http_key_take(rq->key, clime_now_us(), &why, &after_s)) return rq->holds_key = true;
    snprintf(extra, sizeof extra, "Retry-After: %d\r\n", after_s);
    return clime_http_refuse(rq, 429, why.msg, extra);
}

bool clime_http_holds_slot(const struct clime_http_request *rq) {
    return rq->holds_slot;
}

static bool no_slot_left(const struct clime_http_request *rq) {
    const struct clime_http_server *s = rq->server->main;
    return rq->route->slot && atomic_load(&s->n_held) >= s->n_slots;
}

/* ---- body -------------------------------------------------------------------------------------------------- */

static bool check_coding(struct clime_http_request *rq) {
    const char *coding = clime_http_header(rq, "Content-Encoding");
    char message[120];
    if (!coding || strcasecmp(coding, "identity") == 0) return true;
    snprintf(message, sizeof message, "bodies with Content-Encoding %.40s are not read: send it as it is", coding);
    return clime_http_refuse(rq, 415, message, "Accept-Encoding: identity\r\n");
}

static bool refuse_large(struct clime_http_request *rq) {
    char message[100];
    rq->keep_alive = false;
    snprintf(message, sizeof message, "the body is larger than %zu bytes", rq->server->o.max_body);
    return clime_http_refuse(rq, 413, message, NULL);
}

static bool take_body(struct clime_http_request *rq) {
    if (rq->route->stream_body) return true;
    if (rq->body_length > 0 && (uint64_t)rq->body_length > rq->server->o.max_body) return refuse_large(rq);
    if (clime_http_body_take(rq)) return true;
    if (rq->over_budget) {
        clime_http_connections_end_stalled(rq->server->connections);
        return clime_http_refuse(rq, 429, "the bodies of other requests take all the memory there is for them",
                                 "Retry-After: 1\r\n");
    }
    if (rq->body_read > rq->server->o.max_body) return refuse_large(rq);
    rq->keep_alive = false;
    if (clime_http_connection_ended(rq->connection))
        return clime_http_refuse(rq, 408, "the body came too slowly", NULL);
    return clime_http_refuse(rq, 400, "the body is broken off or wrongly framed", NULL);
}

bool clime_http_admit(struct clime_http_request *rq) {
    if (clime_http_stopping(rq)) {
        rq->keep_alive = false;
        return clime_http_refuse(rq, 503, "the server is stopping", "Retry-After: 1\r\n");
    }
    if (clime_http_connection_ended(rq->connection)) { /* the request crossed the end of an idle connection */
        rq->keep_alive = false;
        return clime_http_refuse(rq, 503, "the connection was idle and its thread was needed; try again",
                                 "Retry-After: 1\r\n");
    }
    if (!clime_http_origin_check(rq) || clime_http_preflight(rq)) return false;
    if (!clime_http_route_find(rq) || !check_key(rq) || !check_coding(rq)) return false;
    if (rq->route->auth == CLIME_HTTP_ADMIN && !clime_http_origin_check_command(rq)) return false;
    if (no_slot_left(rq)) return refuse_busy(rq);
    if (!take_key(rq) || !take_body(rq)) return false;
    if (!rq->route->slot) return true;
    if (!take_slot(rq)) return false;
    clime_permits_take(rq->server->main->permits);
    return rq->has_permit = true;
}
