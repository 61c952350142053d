/* Restarts the process by exec of the same program with the same arguments, after closing what is open. See again.h. */
#include "trainer/run/again.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/ledger/events.h"

#define MOST_AT_ONE_STEP 3

struct losses {        /* consecutive losses without a step between them */
    int64_t step;      /* the run's last step */
    int times, device; /* device: of the last loss */
    uint64_t left_out; /* bit mask of devices */
};

static const char variable[] = "CLIME_RANK_LOST"; /* "STEP TIMES DEVICE LEFT_OUT", passed to the next start */
static char **words;
static struct losses before;
static int n_said; /* ranks set by the options */

/* Parses the value from the previous start. */
static void recall(const char *text) {
    char *at = (char *)(uintptr_t)text;
    before.step = strtoll(at, &at, 10);
    before.times = (int)strtol(at, &at, 10);
    before.device = (int)strtol(at, &at, 10);
    before.left_out = strtoull(at, &at, 16);
}

void clime_again_keep(int argc, char **argv) {
    if (getenv(variable)) recall(getenv(variable));
    unsetenv(variable); /* not for child processes: a trainer among them may use all devices */
    for (char **word = words; word && *word; word++) free(*word);
    free(words);
    words = xcalloc((size_t)argc + 2, sizeof *words);
    words[0] = xstrdup("clime-train");
    for (int i = 0; i < argc; i++) words[i + 1] = xstrdup(argv[i]);
}

/* The largest power of two with a device per rank; it divides the lanes, as n_said does. */
static int ranks_on(uint64_t left_out) {
    int left = 0, n = 1;
    for (int i = 0; i < n_said; i++) left += !(left_out >> i & 1);
    while (2 * n <= left) n *= 2;
    return left ? n : 0;
}

/* Adjusts a server's --ep-size, which is 1 or the server's width, in every accepted spelling. */
static void narrow_experts(struct clime_opt_list *args, int each) {
    static const char *const names[] = {"--ep-size", "--ep", "--expert-parallel-size"};
    for (int i = 0; i < args->n; i++) {
        const char *word = args->items[i], *equals = strchr(word, '=');
        size_t name = equals ? (size_t)(equals - word) : strlen(word);
        bool is_one = false;
        for (size_t k = 0; k < CLIME_COUNT(names); k++)
            is_one |= name == strlen(names[k]) && !strncmp(word, names[k], name);
        int at = equals ? i : i + 1;
        const char *value = equals ? equals + 1 : at < args->n ? args->items[at] : "1";
        if (!is_one || !strcmp(value, "1")) continue;
        char *now = equals ? xasprintf("%.*s=%d", (int)name, word, each) : xasprintf("%d", each);
        free((void *)(uintptr_t)args->items[at]);
        args->items[at] = now;
    }
}

/* Shrinks servers on the ranks' devices: each gets at most the devices that remain, a number that divides its shares,
 * and together they keep their fraction of the devices. */
static void fewer_servers(struct clime_rl_options *o, int n) {
    const int64_t devices = o->num_servers * o->gpus_per_engine * n / n_said;
    if (o->gpus_per_engine > n) {
        const int64_t said = o->gpus_per_engine;
        for (o->gpus_per_engine = n; said % o->gpus_per_engine;) o->gpus_per_engine /= 2;
        narrow_experts(&o->server_args, (int)o->gpus_per_engine);
    }
    o->num_servers = devices > o->gpus_per_engine ? devices / o->gpus_per_engine : 1;
    LOG_WARN("%d server%s, %d device%s each, on the devices that are left", (int)o->num_servers,
             o->num_servers == 1 ? "" : "s", (int)o->gpus_per_engine, o->gpus_per_engine == 1 ? "" : "s");
}

void clime_again_fewer_ranks(struct clime_rl_options *o) {
    struct clime_learner_options *l = &o->learner;
    n_said = l->n_ranks;
    l->left_out = before.left_out;
    if (!l->left_out) return;
    l->n_ranks = ranks_on(l->left_out);
    if (l->expert_parallel > l->n_ranks) l->expert_parallel = l->n_ranks;
    LOG_WARN("%d of %d ranks (--elastic %d): devices were lost, and are left out until the command is started anew",
             l->n_ranks, n_said, l->elastic);
    if (o->colocate) fewer_servers(o, l->n_ranks);
}

static void remember(const struct losses *l) {
    char text[96];
    snprintf(text, sizeof text, "%" PRId64 " %d %d %" PRIx64, l->step, l->times, l->device, l->left_out);
    setenv(variable, text, 1);
}

/* Failed rank (0 = this one), or -1. files: a file error, which is no device's fault. */
static int lost_rank(const struct clime_rl *rl, const struct clime_error *why, bool *files) {
    enum clime_err code;
    int rank = clime_learner_lost_rank(rl->learner, &code);
    *files = rank >= 0 && code == CLIME_ERR_IO;
    return rank < 0 && rl->o.learner.elastic && why->code == CLIME_ERR_DEVICE ? 0 : rank;
}

void clime_again_if_rank_lost(struct clime_rl *rl, const struct clime_error *why) {
    const struct clime_learner_options *o = &rl->o.learner;
    bool same = false, files;
    const int rank = lost_rank(rl, why, &files);
    if (!words || !rl->ledger || o->place.world > 1 || rank < 0) return;
    struct losses now = {
        .step = rl->step, .times = 1, .device = clime_place_device(o->left_out, rank), .left_out = before.left_out};
    if (before.times && now.step <= before.step) {
        now.step = before.step;
        now.times = before.times + 1;
        same = now.device == before.device;
    }
    clime_event(rl->ledger, rl->run.incarnation, "rank", "%s", why->msg);
    const int n = ranks_on(now.left_out | UINT64_C(1) << now.device);
    if (o->elastic && n >= o->elastic && !files && (same || now.times > MOST_AT_ONE_STEP)) {
        clime_event(rl->ledger, rl->run.incarnation, "rank",
                    "rank %d was lost again before a step was done: its device, %d, is left out, and the run goes on "
                    "with %d of %d ranks",
                    rank, now.device, n, n_said);
        now.left_out |= UINT64_C(1) << now.device;
        now.times = 0;
    } else if (now.times > MOST_AT_ONE_STEP) {
        LOG_ERROR("a rank was lost %d times at step %" PRId64 ": given up%s", now.times, now.step,
                  o->elastic && n < o->elastic ? ", for --elastic wants more ranks than would be left" : "");
        return;
    }
    LOG_WARN("%s. The run starts again from its checkpoint", why->msg);
    remember(&now);
    clime_rl_close(rl);
    execv("/proc/self/exe", words);
    LOG_ERROR("the run cannot start again: %s", strerror(errno));
    _exit(1);
}
