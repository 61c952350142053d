/* Remote reward: the client of rm-type url (remote.h). Called by a rewarder's worker thread, which owns it. */
#include "trainer/reward/remote.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/retry.h"
#include "common/json/write.h"

#define MAX_TRIES 10
#define MAX_REPLY ((size_t)1 << 20)

struct clime_remote {
    const char *url;
    int stop_fd;
    struct clime_http_client *client;
};

struct clime_remote *clime_remote_new(const char *url, int stop_fd) {
    struct clime_remote *r = xcalloc(1, sizeof *r);
    r->url = url;
    r->stop_fd = stop_fd;
    r->client = clime_http_client_new();
    return r;
}

void clime_remote_free(struct clime_remote *r) {
    if (!r) return;
    clime_http_client_free(r->client);
    free(r);
}

/* Waits up to timeout_us for stop; true when stopped. */
static bool stopped(void *arg, int64_t timeout_us) {
    const struct clime_remote *r = arg;
    struct pollfd fd = {.fd = r->stop_fd, .events = POLLIN};
    struct timespec t = {.tv_sec = timeout_us / 1000000, .tv_nsec = timeout_us % 1000000 * 1000};
    return ppoll(&fd, 1, &t, NULL) > 0;
}

static bool is_cancelled(void *arg) {
    return stopped(arg, 0);
}

/* *retry_after_us: the delay the answer requests. */
static enum clime_err try_once(struct clime_remote *r, struct clime_str body, int n, const char *reward_key,
                               int64_t deadline_us, struct clime_reward *out, int64_t *retry_after_us) {
    struct clime_http_result result = {0};
    struct clime_http_call call = {.method = "POST", .url = r->url, .body = body, .max_reply = MAX_REPLY};
    call.timeout_us = deadline_us - clime_now_us();
    call.cancel = is_cancelled;
    call.arg = r;
    *retry_after_us = 0;
    memset(out, 0, sizeof *out * (size_t)(n ? n : 1));
    if (call.timeout_us <= 0) return clime_fail(&out->error, CLIME_ERR_TIMEOUT, "no time left");
    if (clime_http_client_call(r->client, &call, &result, &out->error)) goto done;
    struct clime_str reply = clime_buf_str(&result.reply);
    if (result.status < 200 || result.status > 299) /* redirects are not followed */
        clime_fail(&out->error, CLIME_ERR_UNAVAILABLE, "status %d: %.*s", result.status,
                   (int)(reply.len < 200 ? reply.len : 200), reply.ptr);
    else if (n)
        clime_reward_list_from_json(reply, reward_key, n, out);
    else
        clime_reward_from_json(reply, reward_key, out);
done:
    *retry_after_us = result.retry_after_us;
    clime_buf_free(&result.reply);
    return out->error.code;
}

/* n = 0: q alone, else a group of n. */
static enum clime_err ask(struct clime_remote *r, const struct clime_reward_request *q, int n, const char *reward_key,
                          int64_t deadline_us, struct clime_reward *out) {
    int64_t start_us = clime_now_us();
    struct clime_buf body;
    struct clime_jw w;
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&body, 8 * CLIME_REWARD_MAX_TEXT * (size_t)(n ? n : 1));
    clime_jw_init(&w, &body);
    if (n) clime_jw_array(&w);
    for (int i = 0; i < (n ? n : 1); i++) {
        clime_jw_object(&w);
        clime_reward_write_request(&w, &q[i]);
        clime_jw_close(&w);
    }
    if (n) clime_jw_close(&w);
    memset(out, 0, sizeof *out * (size_t)(n ? n : 1));
    if (body.full) rc = clime_fail(&out->error, CLIME_ERR_LIMIT, "reward url: the question is too long");
    struct clime_retry again = {.what = "reward url",
                                .deadline_us = deadline_us,
                                .first_pause_us = 1000000,
                                .most_pause_us = 30000000,
                                .jitter = 1,
                                .most_tries = MAX_TRIES,
                                .stop = stopped,
                                .arg = r};
    enum clime_retry_end end = CLIME_RETRY_AGAIN;
    while (!body.full && end == CLIME_RETRY_AGAIN) {
        int64_t retry_after_us;
        rc = try_once(r, clime_buf_str(&body), n, reward_key, deadline_us, out, &retry_after_us);
        if (!rc) break;
        struct clime_error last = out->error;
        end = rc == CLIME_ERR_ABORTED ? CLIME_RETRY_STOPPED : clime_retry_wait(&again, retry_after_us, &last);
        if (end == CLIME_RETRY_STOPPED)
            rc = clime_fail(&out->error, CLIME_ERR_ABORTED, "reward url: stopped");
        else if (end == CLIME_RETRY_LATE)
            rc = clime_fail(
                &out->error, CLIME_ERR_TIMEOUT, "reward url: no reward within %.1f s (--rm-timeout), %d %s: %.350s",
                (double)(deadline_us - start_us) / 1e6, again.n_tries, again.n_tries > 1 ? "tries" : "try", last.msg);
        else if (end == CLIME_RETRY_TIRED)
            rc = clime_fail(&out->error, CLIME_ERR_UNAVAILABLE, "reward url: %d tries failed: %.400s", MAX_TRIES,
                            last.msg);
    }
    clime_buf_free(&body);
    return rc;
}

enum clime_err clime_remote_grade(struct clime_remote *r, const struct clime_reward_request *q, const char *reward_key,
                                  int64_t deadline_us, struct clime_reward *out) {
    return ask(r, q, 0, reward_key, deadline_us, out);
}

enum clime_err clime_remote_grade_group(struct clime_remote *r, const struct clime_reward_request *q, int n,
                                        const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(r, q, n, reward_key, deadline_us, out);
}
