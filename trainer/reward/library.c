/* Rewards from a user's library: calls `reward` (library.h). Called by the rewarder's workers. */
#include "trainer/reward/library.h"

#include <math.h>
#include <stdlib.h>

#include "common/arena.h"
#include "common/clock.h"
#include "trainer/plugin/hooks.h"

static char *text_of(struct clime_arena *a, struct clime_str s) {
    return clime_arena_strdup(a, s.ptr ? s : clime_str_of(""));
}

enum clime_err clime_library_reward(const struct clime_hook *h, const struct clime_reward_request *q, int n,
                                    int64_t deadline_us, struct clime_reward *out) {
    char reason[CLIME_HOOK_REASON] = "";
    struct clime_arena arena;
    struct clime_error *e = &out[0].error;
    struct clime_plugin_question *question = xcalloc((size_t)n, sizeof *question);
    const struct clime_plugin_question **pointers = xcalloc((size_t)n, sizeof *pointers);
    double *reward = xcalloc((size_t)n, sizeof *reward);
    bool complete = true;
    clime_arena_init(&arena, SIZE_MAX);
    for (int i = 0; i < n; i++) {
        question[i] = (struct clime_plugin_question){.prompt = text_of(&arena, q[i].prompt),
                                                     .response = text_of(&arena, q[i].response),
                                                     .label = text_of(&arena, q[i].label),
                                                     .metadata = text_of(&arena, q[i].metadata),
                                                     .seed = q[i].seed};
        pointers[i] = &question[i];
        complete &= question[i].prompt && question[i].response && question[i].label && question[i].metadata;
        reward[i] = NAN;
    }
    CHECK(complete); /* the arena has no cap */
    if (h->plugin.reward(pointers, n, reward, reason, sizeof reason - 1))
        clime_fail(e, CLIME_ERR_INPUT, "`reward` of %s: %s", h->path, reason[0] ? reason : "failed without a word");
    else if (clime_now_us() > deadline_us)
        clime_fail(e, CLIME_ERR_TIMEOUT, "`reward` of %s: took longer than --rm-timeout", h->path);
    for (int i = 0; i < n && !e->code; i++) {
        out[i].value = reward[i];
        if (!isfinite(reward[i])) clime_fail(e, CLIME_ERR_INPUT, "`reward` of %s: it is not finite", h->path);
    }
    clime_arena_free(&arena);
    free(question);
    free(pointers);
    free(reward);
    return e->code;
}
