/* Judge: grades a request by its type: a function of this process, a command, a URL, a library. Called by a rewarder's
 * worker thread, which owns the judge, its command and its connection.
 *
 * Invariant: once `lost` is set nothing of the rewarder is accessed; it may be freed. */
#include "trainer/reward/judge.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "grade/answer.h"
#include "trainer/reward/library.h"
#include "trainer/reward/mixture.h"
#include "trainer/reward/reward.h"

/* Calls the library, which cannot be stopped: the rewarder may have abandoned the thread when it returns. */
static enum clime_err library_call(struct clime_judge *o, const struct clime_reward_request *q, int n,
                                   int64_t deadline_us, struct clime_reward *out) {
    o->enter(o->arg, deadline_us);
    enum clime_err rc = clime_library_reward(o->o->library, q, n, deadline_us, out);
    o->lost = !o->leave(o->arg);
    return rc;
}

/* Grades n answers with an external type; n = 0: a single answer. The error is in out[0].error. */
static enum clime_err outside_call(struct clime_judge *o, const char *base, const struct clime_reward_request *q, int n,
                                   const char *key, struct clime_reward *out) {
    const struct clime_rewarder_options *ro = o->o;
    int64_t deadline_us = clime_now_us() + ro->timeout_us;
    bool is_command = strcmp(base, "command") == 0, is_custom = strcmp(base, "custom") == 0;
    struct clime_error *e = &out[0].error;
    if (is_custom && !ro->library) return clime_fail(e, CLIME_ERR_INPUT, "reward type custom needs --custom-rm-path");
    if (is_command && !ro->command) return clime_fail(e, CLIME_ERR_INPUT, "reward type command needs --rm-command");
    if (!is_custom && !is_command && !ro->url)
        return clime_fail(e, CLIME_ERR_INPUT, "reward type %s needs --rm-url", base);
    if (is_custom) return library_call(o, q, n ? n : 1, deadline_us, out);
    if (is_command) {
        if (!o->command) o->command = clime_command_new(ro->command, o->stop_fd);
        return n ? clime_command_grade_group(o->command, q, n, key, deadline_us, out)
                 : clime_command_grade(o->command, q, key, deadline_us, out);
    }
    if (!o->remote) o->remote = clime_remote_new(ro->url, o->stop_fd);
    return n ? clime_remote_grade_group(o->remote, q, n, key, deadline_us, out)
             : clime_remote_grade(o->remote, q, key, deadline_us, out);
}

/* The request as the type sees it: boxed_ replaces the response by its last box's content. */
static struct clime_reward_request seen(const struct clime_reward_request *q, bool boxed) {
    struct clime_reward_request inner = *q;
    if (boxed && !clime_answer_boxed(q->response, &inner.response)) inner.response = clime_str_of("");
    return inner;
}

/* Grades with one type, built-in or external. */
static enum clime_err grade_one(void *arg, const struct clime_reward_request *q, const char *key,
                                struct clime_reward *out) {
    bool boxed;
    const struct clime_reward_type *type = clime_reward_find(q->type, &boxed, &out->error);
    if (!type) return out->error.code;
    if (type->grade) return clime_reward_grade(q, key, out);
    struct clime_reward_request inner = seen(q, boxed);
    return outside_call(arg, type->name, &inner, 0, key, out);
}

static void grade_group(struct clime_judge *o, const struct clime_reward_request *group, int n,
                        const struct clime_reward_type *type, bool boxed, struct clime_reward *out) {
    struct clime_reward_request *q = xcalloc((size_t)n, sizeof *q);
    for (int i = 0; i < n; i++) q[i] = seen(&group[i], boxed);
    outside_call(o, type->name, q, n, o->o->reward_key, out);
    for (int i = 1; i < n && out[0].error.code; i++) {
        clime_reward_free(&out[i]);
        out[i].error = out[0].error;
    }
    free(q);
}

static bool has_custom(const struct clime_mixture_part *parts, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(parts[i].type, "custom") == 0 || strcmp(parts[i].type, "boxed_custom") == 0) return true;
    return false;
}

void clime_judge_grade(struct clime_judge *o, struct clime_reward_request *q, int n, bool is_group,
                       struct clime_reward *out) {
    struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
    const struct clime_reward_type *type = NULL;
    char name[CLIME_REWARD_NAME];
    struct clime_error e = {0};
    bool boxed = false;
    int n_parts = 0;
    if (!clime_reward_type_of(&q[0], name, &e)) n_parts = clime_mixture_read(name, parts, &e);
    if (o->o->library && n_parts >= 0 && !has_custom(parts, n_parts) && strcmp(name, "boxed_custom") != 0) {
        memcpy(name, "custom", sizeof "custom");
        n_parts = 0;
    }
    if (!e.code && n_parts == 0) type = clime_reward_find(name, &boxed, &e);
    for (int i = 0; i < n; i++) {
        q[i].type = name;
        q[i].type_is_final = true;
        out[i].error = e;
    }
    if (e.code) return;
    if (is_group && type && !type->grade) {
        grade_group(o, q, n, type, boxed, out);
    } else {
        for (int i = 0; i < n && !o->lost; i++) {
            if (n_parts > 0)
                clime_mixture_grade(parts, n_parts, &q[i], grade_one, o, &out[i]);
            else
                grade_one(o, &q[i], o->o->reward_key, &out[i]);
        }
    }
    for (int i = 0; i < n && !o->lost; i++) clime_reward_check_range(&out[i]);
}

bool clime_judge_is_command(const struct clime_judge *o, const struct clime_reward_request *q) {
    char name[CLIME_REWARD_NAME];
    struct clime_error e;
    return o->o->command && !o->o->library && !clime_reward_type_of(q, name, &e) && !strcmp(name, "command");
}

void clime_judge_grade_batch(struct clime_judge *o, struct clime_reward_request *q, int n, struct clime_reward *out) {
    int64_t deadline_us = clime_now_us() + o->o->timeout_us;
    if (!o->command) o->command = clime_command_new(o->o->command, o->stop_fd);
    enum clime_err rc = clime_command_grade_batch(o->command, q, n, o->o->reward_key, deadline_us, out);
    for (int i = 0; i < n; i++) {
        if (rc && i) {
            clime_reward_free(&out[i]);
            out[i].error = out[0].error;
        }
        clime_reward_check_range(&out[i]);
    }
}

void clime_judge_close(struct clime_judge *o) {
    clime_command_free(o->command);
    clime_remote_free(o->remote);
}
