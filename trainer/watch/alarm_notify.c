/* Alarm notifications (alarm_notify.h). clime_notify_send runs under the lock of alarms.c; the rest on the thread.
 *
 * Owns the queue of copied messages and the thread, which owns the child and the HTTP client. */
#include "trainer/watch/alarm_notify.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/retry.h"
#include "common/log.h"
#include "common/os/child.h"
#include "common/os/shell.h"
#include "common/thread/queue.h"

#define MOST_WAITING 64
#define MOST_AT_ONCE 20 /* messages, plus one every REFILL_US */
#define REFILL_US 30000000
#define COMMAND_US 30000000
#define POST_US 10000000
#define POST_TRIES 3
#define CLOSE_US 5000000
#define LOOK_US 20000 /* interval at which the thread checks for its end */

struct clime_notify {
    const char *command, *url;
    struct clime_queue *queue;
    pthread_t thread;
    bool started;
    _Atomic int64_t end_us; /* clime_now_us scale: deadline for pending messages; 0 = not closing */
    int64_t refilled_us;    /* last refill of allowed; by the thread of send */
    int allowed, n_left_out;
};

static bool late(const struct clime_notify *n) {
    int64_t end = atomic_load(&n->end_us);
    return end && clime_now_us() >= end;
}

/* ---- a command ---- */

/* Writes the rest of the message to the command, and discards its output. */
static void talk(struct clime_child *c, bool *silent, struct clime_str json, size_t *sent) {
    char said[4096];
    struct pollfd fds[2] = {{.fd = *silent ? -1 : c->from, .events = POLLIN}, {.fd = c->to, .events = POLLOUT}};
    if (poll(fds, 2, LOOK_US / 1000) < 0) return;
    if (fds[1].revents) {
        ssize_t n = write(c->to, json.ptr + *sent, json.len - *sent);
        if (n > 0) *sent += (size_t)n;
        if (*sent == json.len || (n < 0 && errno != EAGAIN && errno != EINTR)) { /* the command need not read it */
            close(c->to);
            c->to = -1;
        }
    }
    if (fds[0].revents && read(c->from, said, sizeof said) == 0) *silent = true;
}

static void run_command(const struct clime_notify *n, struct clime_str json) {
    const struct clime_child_options o = {.name = "alarm command", .line = n->command, .talk = true, .once = true};
    struct clime_child child;
    struct clime_error e = {0};
    bool died = false, silent = false;
    size_t sent = 0;
    int64_t until = clime_now_us() + COMMAND_US;
    clime_child_init(&child, &o);
    enum clime_err rc = clime_child_poll(&child, NULL, &e);
    while (!rc && !died && clime_now_us() < until && !late(n)) {
        talk(&child, &silent, json, &sent);
        rc = clime_child_poll(&child, &died, &e);
    }
    bool well = died && WIFEXITED(child.last_status) && !WEXITSTATUS(child.last_status);
    if (!died && !rc)
        LOG_WARN("--alarm-command took too long and is killed");
    else if (!well) /* rc includes how it ended */
        LOG_WARN("--alarm-command: an alarm may not be told: %s", e.msg);
    clime_child_stop(&child);
    clime_child_free(&child);
}

/* ---- a URL ---- */

static bool give_up(void *arg) {
    return late(arg);
}

static bool wait_unless_late(void *arg, int64_t us) {
    int64_t until = clime_now_us() + us;
    for (int64_t left; (left = until - clime_now_us()) > 0;) {
        if (late(arg)) return true;
        clime_sleep_us(left < LOOK_US ? left : LOOK_US);
    }
    return late(arg);
}

static void post(struct clime_notify *n, struct clime_http_client *http, struct clime_str json) {
    struct clime_error e = {0};
    struct clime_retry again = {.what = "--alarm-url",
                                .deadline_us = clime_now_us() + POST_TRIES * POST_US,
                                .first_pause_us = 500000,
                                .most_pause_us = 2000000,
                                .most_tries = POST_TRIES,
                                .stop = wait_unless_late,
                                .arg = n};
    for (;;) {
        const struct clime_http_call call = {.method = "POST",
                                             .url = n->url,
                                             .body = json,
                                             .timeout_us = POST_US,
                                             .max_reply = 1 << 20,
                                             .cancel = give_up,
                                             .arg = n};
        struct clime_http_result r = {0};
        enum clime_err rc = clime_http_client_call(http, &call, &r, &e);
        bool passes = rc || clime_http_status_passes(r.status);
        if (!rc && r.status >= 300) rc = clime_fail(&e, CLIME_ERR_UNAVAILABLE, "it answers %d", r.status);
        clime_buf_free(&r.reply);
        if (!rc) return;
        if (passes && clime_retry_wait(&again, r.retry_after_us, &e) == CLIME_RETRY_AGAIN) continue;
        LOG_WARN("--alarm-url %s: an alarm was not told: %s", clime_url_shown(n->url).text, e.msg);
        return;
    }
}

/* ---- the thread ---- */

static void *notify_main(void *arg) {
    struct clime_notify *n = arg;
    struct clime_http_client *http = n->url ? clime_http_client_new() : NULL;
    int n_lost = 0;
    sigset_t pipe_signal; /* a command that does not read its input gives EPIPE */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
    for (void *item; clime_queue_pop(n->queue, &item, 1, -1) == 1; free(item)) {
        if (late(n)) {
            n_lost++;
            continue;
        }
        if (n->command) run_command(n, clime_str_of(item));
        if (n->url) post(n, http, clime_str_of(item));
    }
    if (n_lost) LOG_WARN("%d alarms were not told before the end", n_lost);
    if (http) clime_http_client_free(http);
    return NULL;
}

enum clime_err clime_notify_open(const char *command, const char *url, struct clime_notify **out,
                                 struct clime_error *e) {
    if (command && clime_shell_check("--alarm-command", command, e)) return e->code;
    struct clime_notify *n = xcalloc(1, sizeof *n);
    n->command = command;
    n->url = url;
    n->queue = clime_queue_new(MOST_WAITING);
    n->allowed = MOST_AT_ONCE;
    n->refilled_us = clime_now_us();
    atomic_init(&n->end_us, 0);
    n->started = !pthread_create(&n->thread, NULL, notify_main, n);
    *out = n;
    if (n->started) return CLIME_OK;
    clime_notify_close(n);
    *out = NULL;
    return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread that tells alarms");
}

void clime_notify_close(struct clime_notify *n) {
    if (!n) return;
    atomic_store(&n->end_us, clime_now_us() + CLOSE_US);
    clime_queue_close(n->queue);
    if (n->started) pthread_join(n->thread, NULL);
    clime_queue_free(n->queue);
    free(n);
}

void clime_notify_send(struct clime_notify *n, const char *json) {
    int64_t more = (clime_now_us() - n->refilled_us) / REFILL_US;
    n->refilled_us += more * REFILL_US;
    n->allowed = n->allowed + more < MOST_AT_ONCE ? n->allowed + (int)more : MOST_AT_ONCE;
    char *copy = n->allowed > 0 ? xstrdup(json) : NULL;
    if (copy && clime_queue_push(n->queue, copy)) {
        n->allowed--;
        return;
    }
    free(copy);
    LOG_WARN("%d alarms were too many to tell so far: --alarm-command and --alarm-url get one every %d s",
             ++n->n_left_out, REFILL_US / 1000000);
}
