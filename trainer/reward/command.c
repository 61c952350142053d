/* The child process behind rm-type command; see command.h. Called by a rewarder's worker thread, which owns it.
 *
 * Both pipes are non-blocking and waited for together: a child that writes before it has read everything cannot
 * lock up with us. After any failure the process group is killed rather than resynchronised, so that a late answer
 * can never be taken for that of a later question.
 */
#include "trainer/reward/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/json/write.h"

#define MAX_LINE ((size_t)1 << 20) /* of an answer */
#define END_WAIT_US 500000         /* for a child whose input was closed */

extern char **environ;

struct clime_command {
    const char *line;
    int stop_fd;
    pid_t pid;           /* 0 = no child */
    int to, from;        /* our ends of the pipes; -1 = none */
    int64_t id;          /* of the last question */
    struct clime_buf in; /* bytes read and not used */
};

struct clime_command *clime_command_new(const char *line, int stop_fd) {
    struct clime_command *c = xcalloc(1, sizeof *c);
    c->line = line;
    c->stop_fd = stop_fd;
    c->to = c->from = -1;
    clime_buf_init(&c->in, MAX_LINE + 1);
    return c;
}

static void close_pipes(struct clime_command *c) {
    if (c->to >= 0) close(c->to);
    if (c->from >= 0) close(c->from);
    c->to = c->from = -1;
    clime_buf_clear(&c->in);
}

static void kill_child(struct clime_command *c) {
    if (c->pid) {
        kill(-c->pid, SIGKILL);
        while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    c->pid = 0;
    close_pipes(c);
}

void clime_command_free(struct clime_command *c) {
    if (!c) return;
    if (c->pid) {
        close(c->to);
        c->to = -1;
        struct pollfd fd = {.fd = c->from, .events = 0}; /* hung up once the whole group has let go of its output */
        poll(&fd, 1, END_WAIT_US / 1000);
    }
    kill_child(c);
    clime_buf_free(&c->in);
    free(c);
}

static enum clime_err start_child(struct clime_command *c, struct clime_error *e) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err = 0;
    char shell[] = "sh", option[] = "-c", *line = xstrdup(c->line), *argv[] = {shell, option, line, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) {
        err = errno;
        goto done;
    }
    /* ours may be masked or ignored (SIGPIPE, SIGTERM): the child gets the defaults */
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    err = posix_spawn(&c->pid, "/bin/sh", &actions, &attr, argv, environ);
    if (err) {
        c->pid = 0;
        goto done;
    }
    c->to = in[1];
    c->from = out[0];
    in[1] = out[0] = -1;
    if (fcntl(c->to, F_SETFL, O_NONBLOCK) || fcntl(c->from, F_SETFL, O_NONBLOCK)) err = errno;
done:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0) close(in[i]);
        if (out[i] >= 0) close(out[i]);
    }
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    free(line);
    return err ? clime_fail(e, CLIME_ERR_UNAVAILABLE, "reward command: cannot start: %s", strerror(err)) : CLIME_OK;
}

/* A child that ended between two questions is replaced without an error. */
static enum clime_err ensure_child(struct clime_command *c, struct clime_error *e) {
    if (c->pid && waitpid(c->pid, NULL, WNOHANG) == c->pid) {
        kill(-c->pid, SIGKILL); /* what it left behind */
        c->pid = 0;
        close_pipes(c);
    }
    return c->pid ? CLIME_OK : start_child(c, e);
}

static void write_members(struct clime_jw *w, const struct clime_reward_request *q) {
    clime_reward_write_request(w, q);
    clime_jw_key(w, "metadata");
    clime_jw_raw(w, q->metadata.len ? q->metadata : clime_str_of("{}"));
}

/* n = 0: q alone, else a group of n. */
static void write_question(struct clime_command *c, const struct clime_reward_request *q, int n,
                           struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "id");
    clime_jw_int(&w, ++c->id);
    if (n == 0) {
        write_members(&w, q);
    } else {
        clime_jw_key(&w, "group");
        clime_jw_array(&w);
        for (int i = 0; i < n; i++) {
            clime_jw_object(&w);
            write_members(&w, &q[i]);
            clime_jw_close(&w);
        }
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    /* JSON given by the caller may hold line breaks; they can only be white space there */
    for (size_t i = 0; i < out->len; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r') out->data[i] = ' ';
    clime_buf_addc(out, '\n');
}

/* Why the child is gone, after its output ended. */
static enum clime_err child_died(struct clime_command *c, struct clime_error *e) {
    int status = 0;
    if (c->pid) kill(-c->pid, SIGKILL); /* it may have closed its output and live on */
    while (c->pid && waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
    if (WIFEXITED(status))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "reward command: exited with status %d before its answer",
                          WEXITSTATUS(status));
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "reward command: ended before its answer (signal %d)",
                      WTERMSIG(status));
}

/* Sends the question and reads until one line is there (in c->in, without its end). */
static enum clime_err exchange(struct clime_command *c, struct clime_str question, int64_t deadline_us,
                               struct clime_error *e) {
    int64_t start_us = clime_now_us();
    size_t sent = 0;
    for (;;) {
        int64_t left_us = deadline_us - clime_now_us();
        if (left_us <= 0)
            return clime_fail(e, CLIME_ERR_TIMEOUT, "reward command: no answer within %.1f s (--rm-timeout)",
                              (double)(deadline_us - start_us) / 1e6);
        struct pollfd fds[3] = {{.fd = c->from, .events = POLLIN},
                                {.fd = sent < question.len ? c->to : -1, .events = POLLOUT},
                                {.fd = c->stop_fd, .events = POLLIN}};
        int64_t wait_ms = left_us / 1000 + 1;
        if (poll(fds, 3, wait_ms > 60000 ? 60000 : (int)wait_ms) < 0 && errno != EINTR)
            return clime_fail(e, CLIME_ERR_IO, "reward command: poll: %s", strerror(errno));
        if (fds[2].revents) return clime_fail(e, CLIME_ERR_ABORTED, "reward command: stopped");
        if (fds[1].revents) {
            ssize_t n = write(c->to, question.ptr + sent, question.len - sent);
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
        ssize_t n = read(c->from, room, 4096);
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

/* {"id", "reward"} ("rewards" of a group of n) or {"id", "error"}. *broken: the protocol was, and the child must go. */
static enum clime_err read_answer(struct clime_command *c, int n, const char *reward_key, struct clime_reward *out,
                                  bool *broken) {
    const char *name = n ? "rewards" : "reward";
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error bad = {0};
    struct clime_str key, reward = {NULL, 0}, complaint = {NULL, 0};
    int64_t id = -1;
    clime_arena_init(&arena, 2 * MAX_LINE);
    clime_json_init(&j, c->in.data, c->in.len, &arena, &bad);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "id"))
            clime_json_int(&j, INT64_MIN, INT64_MAX, &id);
        else if (clime_str_is(key, "error") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &complaint);
        else if (clime_str_is(key, name))
            clime_json_skip(&j, &reward);
        else
            clime_json_skip(&j, NULL);
    }
    *broken = true;
    if (!clime_json_end(&j)) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: its answer is not an object of JSON: %s", bad.msg);
    } else if (id != c->id) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: answered id %lld, asked was %lld", (long long)id,
                   (long long)c->id);
    } else if (complaint.ptr) {
        *broken = false;
        clime_fail(&out->error, CLIME_ERR_INPUT, "reward command: %.*s",
                   (int)(complaint.len < 400 ? complaint.len : 400), complaint.ptr);
    } else if (!reward.ptr) {
        clime_fail(&out->error, CLIME_ERR_INTERNAL, "reward command: its answer has no \"%s\"", name);
    } else {
        *broken = false;
        if (n)
            clime_reward_list_from_json(reward, reward_key, n, out);
        else
            clime_reward_from_json(reward, reward_key, out);
        if (out->error.code) clime_error_prefix(&out->error, "reward command");
    }
    clime_arena_free(&arena);
    return out->error.code;
}

static enum clime_err ask(struct clime_command *c, const struct clime_reward_request *q, int n, const char *reward_key,
                          int64_t deadline_us, struct clime_reward *out) {
    struct clime_buf question;
    bool broken = true;
    memset(out, 0, sizeof *out * (size_t)(n ? n : 1));
    clime_buf_init(&question, 8 * CLIME_REWARD_MAX_TEXT * (size_t)(n ? n : 1));
    if (ensure_child(c, &out->error)) goto done;
    write_question(c, q, n, &question);
    if (question.full) {
        clime_fail(&out->error, CLIME_ERR_LIMIT, "reward command: the question is too long");
        broken = false;
        goto done;
    }
    clime_buf_clear(&c->in);
    if (!exchange(c, clime_buf_str(&question), deadline_us, &out->error)) read_answer(c, n, reward_key, out, &broken);
done:
    if (out->error.code && broken) kill_child(c);
    clime_buf_free(&question);
    return out->error.code;
}

enum clime_err clime_command_grade(struct clime_command *c, const struct clime_reward_request *q,
                                   const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(c, q, 0, reward_key, deadline_us, out);
}

enum clime_err clime_command_grade_group(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out) {
    return ask(c, q, n, reward_key, deadline_us, out);
}
