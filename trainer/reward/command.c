/* Reward command: the child process of rm-type command (command.h). Called by a rewarder's worker thread, which owns
 * it.
 *
 * Both pipes are non-blocking and polled together: a child that writes before it has read everything cannot deadlock.
 * After any failure the process group is killed, not resynchronised, so a late answer is never taken for a later
 * question's. */
#include "trainer/reward/command.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/os/child.h"

#define MAX_LINE ((size_t)1 << 20) /* of an answer */
#define END_WAIT_US 500000         /* wait for a child after its input is closed */

struct clime_command {
    struct clime_child child;
    int stop_fd;
    int64_t id;          /* of the last question */
    int64_t started_us;  /* start of this child; 0: it has answered */
    struct clime_buf in; /* bytes read but not used */
};

struct clime_command *clime_command_new(const char *line, int stop_fd) {
    struct clime_command *c = xcalloc(1, sizeof *c);
    const struct clime_child_options o = {.name = "reward command", .line = line, .talk = true, .up_limit_us = -1};
    clime_child_init(&c->child, &o);
    c->stop_fd = stop_fd;
    clime_buf_init(&c->in, MAX_LINE + 1);
    return c;
}

void clime_command_free(struct clime_command *c) {
    if (!c) return;
    if (c->child.pid) {
        close(c->child.to);
        c->child.to = -1;
        struct pollfd fd = {.fd = c->child.from, .events = 0}; /* hangs up when the whole group has closed its output */
        poll(&fd, 1, END_WAIT_US / 1000);
    }
    clime_child_stop(&c->child);
    clime_child_free(&c->child);
    clime_buf_free(&c->in);
    free(c);
}

static enum clime_err stopped(struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_ABORTED, "reward command: stopped");
}

/* Starts a child if none runs. One that ended between two questions is replaced without an error, at once if it had
 * answered before; one that always ends before its first answer is delayed a little longer each time. */
static enum clime_err ensure_child(struct clime_command *c, int64_t deadline_us, struct clime_error *e) {
    for (;;) {
        bool was_down = c->child.state == CLIME_CHILD_DOWN;
        enum clime_err rc = clime_child_poll(&c->child, NULL, e);
        if (was_down && !rc && c->child.state != CLIME_CHILD_DOWN) c->started_us = clime_now_us();
        if (rc || c->child.state != CLIME_CHILD_DOWN) return rc;
        clime_buf_clear(&c->in);
        int64_t now = clime_now_us(), wait_us = c->child.restart_us - now;
        if (now >= deadline_us)
            return clime_fail(e, CLIME_ERR_TIMEOUT,
                              "reward command: it ended before its first answer %d times, and the "
                              "next start is after --rm-timeout",
                              c->child.n_quick_deaths);
        struct pollfd fd = {.fd = c->stop_fd, .events = POLLIN};
        if (wait_us > deadline_us - now) wait_us = deadline_us - now;
        if (wait_us > 0 && poll(&fd, 1, (int)(wait_us / 1000) + 1) > 0) return stopped(e);
    }
}

static void write_members(struct clime_jw *w, const struct clime_reward_request *q) {
    clime_reward_write_request(w, q);
    clime_jw_put_raw(w, "metadata", q->metadata.len ? q->metadata : clime_str_of("{}"));
}

enum shape { ALONE, GROUP, BATCH };

/* Writes q alone, or n requests under the shape's member. */
static void write_question(struct clime_command *c, const struct clime_reward_request *q, int n, enum shape shape,
                           struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "id", ++c->id);
    if (shape == ALONE) {
        write_members(&w, q);
    } else {
        clime_jw_key(&w, shape == GROUP ? "group" : "batch");
        clime_jw_array(&w);
        for (int i = 0; i < n; i++) {
            clime_jw_object(&w);
            write_members(&w, &q[i]);
            clime_jw_close(&w);
        }
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    /* JSON from the caller may have line breaks, which can only be white space */
    for (size_t i = 0; i < out->len; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r') out->data[i] = ' ';
    clime_buf_addc(out, '\n');
}

/* The reason the child is gone, after its output ended. */
static enum clime_err child_died(struct clime_command *c, struct clime_error *e) {
    struct clime_error why;
    if (clime_child_finish(&c->child, &why)) return clime_fail(e, why.code, "%s", why.msg);
    int status = c->child.last_status;
    if (WIFEXITED(status))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "reward command: exited with status %d before its answer",
                          WEXITSTATUS(status));
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "reward command: ended before its answer (signal %d)",
                      WTERMSIG(status));
}

/* Sends the question and reads one line (into c->in, without its end). */
static enum clime_err exchange(struct clime_command *c, struct clime_str question, int64_t deadline_us,
                               struct clime_error *e) {
    int64_t start_us = clime_now_us();
    size_t sent = 0;
    for (;;) {
        int64_t left_us = deadline_us - clime_now_us();
        if (left_us <= 0)
            return clime_fail(e, CLIME_ERR_TIMEOUT, "reward command: no answer within %.1f s (--rm-timeout)",
                              (double)(deadline_us - start_us) / 1e6);
        struct pollfd fds[3] = {{.fd = c->child.from, .events = POLLIN},
                                {.fd = sent < question.len ? c->child.to : -1, .events = POLLOUT},
                                {.fd = c->stop_fd, .events = POLLIN}};
        int64_t wait_ms = left_us / 1000 + 1;
        if (poll(fds, 3, wait_ms > 60000 ? 60000 : (int)wait_ms) < 0 && errno != EINTR)
            return clime_fail(e, CLIME_ERR_IO, "reward command: poll: %s", strerror(errno));
        if (fds[2].revents) return stopped(e);
        if (fds[1].revents) {
            ssize_t n = write(c->child.to, question.ptr + sent, question.len - sent);
            if (n > 0)
                sent += (size_t)n;
            else if (n < 0 && errno == EPIPE)
                return child_died(c, e);
            else if (n < 0 && errno != EAGAIN && errno != EINTR)
                return clime_fail(e, CLIME_ERR_IO, "reward command: write: %s", strerror(errno));
        }
        if (!fds[0].revents) continue;
        char *room = clime_buf_reserve(&c->in, 4096);
        if (!room)
            return clime_fail(e, CLIME_ERR_INTERNAL, "reward command: an answer of more than %zu bytes", MAX_LINE);
        ssize_t n = read(c->child.from, room, 4096);
        if (n == 0) return child_died(c, e);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n < 0) return clime_fail(e, CLIME_ERR_IO, "reward command: read: %s", strerror(errno));
        clime_buf_grew(&c->in, (size_t)n);
        char *end = memchr(room, '\n', (size_t)n);
        if (!end) continue;
        if (end + 1 != c->in.data + c->in.len || sent < question.len)
            return clime_fail(e, CLIME_ERR_INTERNAL,
                              "reward command: wrote more than one line, or before its question");
        c->in.len--;
        return CLIME_OK;
    }
}

/* Sets the error that the command reported. */
static void complain(struct clime_error *e, struct clime_str said) {
    if (!said.len) said = clime_str_of("an error without a word");
    clime_fail(e, CLIME_ERR_INPUT, "%.*s", (int)(said.len < 400 ? said.len : 400), said.ptr);
}

/* Reads {"reward"} or {"error"} of one answer of a batch. */
static void read_own(struct clime_str json, const char *reward_key, struct clime_reward *out) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str key, reward = {NULL, 0}, complaint = {NULL, 0};
    clime_arena_init(&arena, 2 * MAX_LINE);
    clime_json_init(&j, json.ptr, json.len, &arena, &out->error);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "error") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &complaint);
        else if (clime_str_is(key, "reward"))
            clime_json_skip(&j, &reward);
        else
            clime_json_skip(&j, NULL);
    }
    if (clime_json_end(&j) && complaint.ptr)
        complain(&out->error, complaint);
    else if (!out->error.code && !reward.ptr)
        clime_fail(&out->error, CLIME_ERR_INPUT, "an answer without \"reward\"");
    else if (!out->error.code)
        clime_reward_from_json(reward, reward_key, out);
    if (out->error.code) clime_error_prefix(&out->error, "reward command");
    clime_arena_free(&arena);
}

/* Reads a batch's answers, exactly n; another number fails the whole. */
static enum clime_err read_batch(struct clime_str json, const char *reward_key, int n, struct clime_reward *out) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str one;
    int k = 0;
    clime_arena_init(&arena, 2 * MAX_LINE);
    clime_json_init(&j, json.ptr, json.len, &arena, &e);
    for (clime_json_array(&j); clime_json_item(&j); k++)
        if (clime_json_skip(&j, &one) && k < n) read_own(one, reward_key, &out[k]);
    if (clime_json_end(&j) && k != n) clime_fail(&e, CLIME_ERR_INPUT, "%d answers to a batch of %d", k, n);
    for (int i = 0; i < n && e.code; i++) clime_reward_free(&out[i]);
    if (e.code) out[0].error = e;
    clime_arena_free(&arena);
    return e.code;
}

/* Copies the beginning of arbitrary bytes for a message: mostly a log line that belongs on standard error. */
static void excerpt(struct clime_str s, char *out, size_t size) {
    size_t n = s.len < size - 1 ? s.len : size - 1;
    for (size_t i = 0; i < n; i++) out[i] = s.ptr[i] >= ' ' && s.ptr[i] <= '~' ? s.ptr[i] : '?';
    out[n] = 0;
}

/* Reads {"id", "reward"} ("rewards" of a group of n, "answers" of a batch) or {"id", "error"}. *broken: the protocol
 * is, and the child must be stopped. */
static enum clime_err read_answer(struct clime_command *c, int n, enum shape shape, const char *reward_key,
                                  struct clime_reward *out, bool *broken) {
    const char *name = shape == GROUP ? "rewards" : shape == BATCH ? "answers" : "reward";
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error bad = {0};
    struct clime_str key, id = {NULL, 0}, reward = {NULL, 0}, complaint = {NULL, 0};
    char asked[24];
    snprintf(asked, sizeof asked, "%lld", (long long)c->id);
    clime_arena_init(&arena, 2 * MAX_LINE);
    clime_json_init(&j, c->in.data, c->in.len, &arena, &bad);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "id"))
            clime_json_skip(&j, &id);
        else if (clime_str_is(key, "error") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &complaint);
        else if (clime_str_is(key, name))
            clime_json_skip(&j, &reward);
        else
            clime_json_skip(&j, NULL);
    }
    *broken = true;
    if (!clime_json_end(&j)) {
        char wrote[61];
        excerpt(clime_buf_str(&c->in), wrote, sizeof wrote);
        clime_fail(&out->error, CLIME_ERR_INTERNAL,
                   "reward command: its answer is not an object of JSON: %s; it wrote: %s", bad.msg, wrote);
    } else if (!id.ptr) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: its answer has no \"id\"; asked was %s", asked);
    } else if (!clime_str_is(id, asked)) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: answered id %.*s, asked was %s",
                   (int)(id.len < 60 ? id.len : 60), id.ptr, asked);
    } else if (complaint.ptr) {
        *broken = false;
        complain(&out->error, complaint);
        clime_error_prefix(&out->error, "reward command");
    } else if (!reward.ptr) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: its answer has no \"%s\"", name);
    } else {
        *broken = false;
        enum clime_err rc = CLIME_OK;
        if (shape == BATCH)
            rc = read_batch(reward, reward_key, n, out);
        else if (shape == GROUP)
            rc = clime_reward_list_from_json(reward, reward_key, n, out);
        else
            rc = clime_reward_from_json(reward, reward_key, out);
        if (rc) clime_error_prefix(&out->error, "reward command");
        *broken = rc && shape == BATCH;
        clime_arena_free(&arena);
        return rc;
    }
    clime_arena_free(&arena);
    return out->error.code;
}

/* *lost: the child failed for a reason that may be unrelated to the question. */
static enum clime_err ask_child(struct clime_command *c, const struct clime_reward_request *q, int n, enum shape shape,
                                const char *reward_key, int64_t deadline_us, struct clime_reward *out, bool *lost) {
    enum clime_err rc;
    struct clime_buf question;
    bool broken = true;
    *lost = false;
    memset(out, 0, sizeof *out * (size_t)n);
    clime_buf_init(&question, 8 * CLIME_REWARD_MAX_TEXT * (size_t)n);
    if ((rc = ensure_child(c, deadline_us, &out->error))) goto done;
    write_question(c, q, n, shape, &question);
    if (question.full) {
        rc = clime_fail(&out->error, CLIME_ERR_LIMIT, "reward command: the question is too long");
        broken = false;
        goto done;
    }
    clime_buf_clear(&c->in);
    *lost = true;
    if (!(rc = exchange(c, clime_buf_str(&question), deadline_us, &out->error)))
        rc = read_answer(c, n, shape, reward_key, out, &broken);
done:
    if (!broken && c->started_us) /* its imports can take longer than all its grading */
        LOG_INFO("reward command: process %d gave its first answer %.1f s after its start", (int)c->child.pid,
                 (double)(clime_now_us() - c->started_us) / 1e6);
    if (!broken) c->started_us = 0;
    if (!broken)
        clime_child_is_up(&c->child);
    else if (c->child.state != CLIME_CHILD_DOWN)
        clime_child_stop(&c->child);
    *lost = *lost && broken && (rc == CLIME_ERR_UNAVAILABLE || rc == CLIME_ERR_INTERNAL);
    clime_buf_free(&question);
    return rc;
}

/* A killed or confused child says little about the answer: asks another one, once. */
static enum clime_err ask(struct clime_command *c, const struct clime_reward_request *q, int n, enum shape shape,
                          const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    bool lost;
    enum clime_err rc = ask_child(c, q, n, shape, reward_key, deadline_us, out, &lost);
    if (!lost || c->child.restart_us >= deadline_us) return rc;
    LOG_WARN("%s; asked again", out->error.msg);
    return ask_child(c, q, n, shape, reward_key, deadline_us, out, &lost);
}

enum clime_err clime_command_grade(struct clime_command *c, const struct clime_reward_request *q,
                                   const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(c, q, 1, ALONE, reward_key, deadline_us, out);
}

enum clime_err clime_command_grade_group(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(c, q, n, GROUP, reward_key, deadline_us, out);
}

enum clime_err clime_command_grade_batch(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(c, q, n, BATCH, reward_key, deadline_us, out);
}
