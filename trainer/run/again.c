/* The same program file with the same words takes this one's place; what it holds open is closed first. See again.h. */
#include "trainer/run/again.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/ledger/events.h"

#define MOST_AT_ONE_STEP 3

static const char variable[] = "CLIME_RANK_LOST"; /* "STEP TIMES", from one start to the next */
static char **words;

void clime_again_keep(int argc, char **argv) {
    words = xcalloc((size_t)argc + 2, sizeof *words);
    words[0] = xstrdup("clime-train");
    for (int i = 0; i < argc; i++) words[i + 1] = xstrdup(argv[i]);
}

/* How often it has happened at this step, this time included. */
static int times_at(int64_t step) {
    const char *before = getenv(variable);
    char *end = NULL;
    if (!before || strtoll(before, &end, 10) != step) return 1;
    return (int)strtol(end, NULL, 10) + 1;
}

void clime_again_if_rank_lost(struct clime_rl *rl, const struct clime_error *why) {
    char text[48];
    int n = times_at(rl->step);
    if (!words || !rl->ledger || rl->o.learner.place.world > 1 || !clime_learner_lost_a_rank(rl->learner)) return;
    clime_event(rl->ledger, rl->run.incarnation, "rank", "%s", why->msg);
    if (n > MOST_AT_ONE_STEP) {
        LOG_ERROR("a rank was lost %d times at step %" PRId64 ": given up", n, rl->step);
        return;
    }
    LOG_WARN("%s. The run starts again from its checkpoint", why->msg);
    clime_rl_close(rl);
    snprintf(text, sizeof text, "%" PRId64 " %d", rl->step, n);
    setenv(variable, text, 1);
    execv("/proc/self/exe", words);
    LOG_ERROR("the run cannot start again: %s", strerror(errno));
    _exit(1);
}
