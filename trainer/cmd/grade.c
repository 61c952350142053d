/* clime-train grade: reads {"response", "label", "prompt"?, "metadata"?} lines from standard input, writes {"reward"}
 * or {"error"} lines to standard output, in order.
 *
 * The main thread reads and submits; a second thread writes each result once it and all before it are ready, so the
 * other program may wait for an answer before it sends the next line. A failed line gives {"error": text, "state":
 * name}, and reading continues. */
#include "trainer/cmd/grade.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/http/client.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/os/thread.h"
#include "trainer/plugin/hooks.h"
#include "trainer/reward/rewarder.h"
#include "trainer/reward/types.h"

#define MAX_LINE (4 * CLIME_REWARD_MAX_TEXT)
#define READ_BYTES ((size_t)1 << 16)
#define WINDOW 4096 /* lines read ahead of the results */

struct grade_options {
    const char *type, *reward_key, *command, *url, *library;
    double timeout;
    int64_t n_workers, batch, seed;
};

static void write_result(struct clime_buf *line, const struct clime_reward *reward) {
    struct clime_jw w;
    clime_buf_clear(line);
    clime_jw_init(&w, line);
    clime_jw_object(&w);
    if (reward->error.code) {
        clime_jw_put_strz(&w, "error", reward->error.msg);
        clime_jw_put_strz(&w, "state", clime_err_name(reward->error.code));
    } else {
        clime_jw_key(&w, "reward");
        if (reward->object && isnan(reward->value))
            clime_jw_raw(&w, clime_str_of(reward->object));
        else
            clime_jw_double(&w, reward->value);
        if (reward->is_sum) clime_jw_put_raw(&w, "sum", clime_str_of(reward->object));
    }
    clime_jw_close(&w);
    clime_buf_addc(line, '\n');
}

/* The second thread. Returns non-NULL when standard output is closed. */
static void *write_results(void *arg) {
    struct clime_rewarder *r = arg;
    struct clime_buf line;
    struct clime_reward reward;
    void *tag, *broken = NULL;
    clime_buf_init(&line, 8 * CLIME_REWARD_MAX_TEXT);
    while (clime_rewarder_next(r, -1, &tag, &reward)) {
        if (!broken) {
            write_result(&line, &reward);
            if (fwrite(line.data, 1, line.len, stdout) != line.len) broken = r;
            /* flush when no further result is ready: the reader may be waiting for this line */
            if (!broken && !clime_rewarder_ready(r) && fflush(stdout)) broken = r;
        }
        clime_reward_free(&reward);
    }
    if (fflush(stdout)) broken = r;
    clime_buf_free(&line);
    return broken;
}

static enum clime_err read_question(struct clime_str line, struct clime_arena *arena, struct clime_reward_request *q,
                                    struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    bool has_response = false;
    q->label_is_json = q->prompt_is_json = true;
    clime_json_init(&j, line.ptr, line.len, arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "response"))
            has_response = clime_json_string(&j, &q->response);
        else if (clime_str_is(key, "label"))
            clime_json_skip(&j, &q->label);
        else if (clime_str_is(key, "prompt"))
            clime_json_skip(&j, &q->prompt);
        else if (clime_str_is(key, "metadata") && clime_json_peek(&j) == CLIME_JSON_OBJECT)
            clime_json_skip(&j, &q->metadata);
        else
            clime_json_skip(&j, NULL);
    }
    if (!clime_json_end(&j)) return e->code;
    return has_response ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "the line has no \"response\"");
}

static void submit_line(struct clime_rewarder *r, struct clime_str line, const struct grade_options *o,
                        int64_t n_line) {
    struct clime_arena arena;
    struct clime_error e = {0};
    struct clime_reward_request q = {0};
    uint64_t words[2] = {(uint64_t)o->seed, (uint64_t)n_line};
    clime_arena_init(&arena, 2 * MAX_LINE);
    clime_rewarder_wait_room(r);
    q.seed = clime_hash64(words, 2);
    enum clime_err err = read_question(line, &arena, &q, &e);
    if (err) {
        clime_error_prefix(&e, "line %lld", (long long)n_line);
        err = clime_rewarder_submit_error(r, &e, NULL, NULL);
    } else {
        err = clime_rewarder_submit(r, &q, NULL, NULL);
    }
    CHECK(err == CLIME_OK); /* there was room, and no other thread submits */
    clime_arena_free(&arena);
}

/* Submits the lines of standard input; blank lines count but give no result. */
static enum clime_err read_lines(struct clime_rewarder *r, const struct grade_options *o, struct clime_error *e) {
    struct clime_buf in;
    enum clime_err err = CLIME_OK;
    int64_t n_line = 0;
    ssize_t n = 1;
    clime_buf_init(&in, MAX_LINE);
    while (n > 0 && !err) {
        char *room = clime_buf_reserve(&in, READ_BYTES);
        if (!room) {
            err = clime_fail(e, CLIME_ERR_LIMIT, "line %lld is longer than %zu bytes", (long long)n_line + 1, MAX_LINE);
            break;
        }
        n = read(STDIN_FILENO, room, READ_BYTES);
        if (n < 0 && errno == EINTR) {
            n = 1;
            continue;
        }
        if (n < 0) err = clime_fail(e, CLIME_ERR_IO, "standard input: %s", strerror(errno));
        if (n > 0) clime_buf_grew(&in, (size_t)n);
        if (n == 0 && in.len) clime_buf_addc(&in, '\n');
        char *at = in.data, *end, *stop = in.data + in.len;
        while (at && at < stop && (end = memchr(at, '\n', (size_t)(stop - at)))) {
            struct clime_str line = {at, (size_t)(end - at)};
            n_line++;
            if (strspn(at, " \t\r") < line.len) submit_line(r, line, o, n_line);
            at = end + 1;
        }
        if (at && at > in.data) {
            in.len = (size_t)(stop - at);
            memmove(in.data, at, in.len);
            in.data[in.len] = 0;
        }
    }
    clime_buf_free(&in);
    return err;
}

int clime_grade_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct grade_options o = {0};
    struct clime_rewarder *r = NULL;
    struct clime_hook *library = NULL;
    struct clime_buf usage;
    pthread_t writer;
    void *broken = NULL;
    const struct clime_opt table[] = {
        {"rm-type", CLIME_OPT_STRING, &o.type, NULL, "TYPE",
         "the reward; without it each line's metadata.rm_type says"},
        {"reward-key", CLIME_OPT_STRING, &o.reward_key, NULL, "KEY", "the member of a reward that is an object"},
        {"rm-timeout", CLIME_OPT_DOUBLE, &o.timeout, "120", "S", "seconds for one call of a command or URL", 0.001,
         86400},
        {"rm-command", CLIME_OPT_STRING, &o.command, NULL, "CMD", "for rm-type command, run by sh"},
        {"rm-url", CLIME_OPT_STRING, &o.url, NULL, "URL", "for rm-type url"},
        {"custom-rm-path", CLIME_OPT_STRING, &o.library, NULL, "FILE",
         "a shared library (trainer/plugin/plugin.h) whose `reward` grades every line"},
        {"num-workers", CLIME_OPT_INT, &o.n_workers, "0", "N", "calls at a time; 0 = 64 for a URL, else 2", 0, 256,
         "rm-workers"},
        {"rm-batch-size", CLIME_OPT_INT, &o.batch, "1", "N", "answers that a command gets in one line", 1, 64},
        {"rollout-seed", CLIME_OPT_INT, &o.seed, "42", "N", "seed of rm-type random", 0, 9e15},
    };
    clime_buf_init(&usage, 1 << 16);
    clime_buf_adds(&usage, "clime-train grade --rm-type TYPE [options]\n"
                           "Reads {\"response\", \"label\", \"prompt\"?, \"metadata\"?} a line, writes {\"reward\"} or "
                           "{\"error\"} a line, in order.\n\nTypes (with the prefix boxed_: on the content of the last "
                           "\\boxed{}; a:0.8,b:0.2 is a weighted sum):\n");
    clime_reward_describe(&usage);
    enum clime_err err = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, NULL, 0, usage.data, &e);
    if (!err && o.library) err = clime_hook_open(o.library, CLIME_HOOK_REWARD, &library, &e);
    if (!err) {
        struct clime_rewarder_options ro = {.type = o.type, .reward_key = o.reward_key, .command = o.command};
        ro.url = o.url;
        ro.library = library;
        ro.in_order = true;
        ro.timeout_us = (int64_t)(o.timeout * 1e6);
        ro.n_workers = (int)o.n_workers;
        ro.batch = (int)o.batch;
        ro.max_pending = WINDOW;
        clime_http_client_global_init();
        err = clime_rewarder_new(&ro, &r, &e);
    }
    if (!err) {
        xthread(&writer, NULL, write_results, r);
        err = read_lines(r, &o, &e);
        clime_rewarder_finish(r);
        pthread_join(writer, &broken);
    }
    if (broken && !err) err = clime_fail(&e, CLIME_ERR_IO, "standard output is closed");
    if (err) LOG_ERROR("grade: %s", e.msg);
    clime_rewarder_free(r);
    clime_hook_close(library);
    clime_buf_free(&usage);
    return err ? 1 : 0;
}
