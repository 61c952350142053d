/* Alarm rules: the table and its judge. Called under the lock of alarms.c, by tests, and by the options' check; pure.
 *
 * Limits are set so that a healthy run raises nothing (the quickstart does not), not to catch everything: false alarms
 * teach people to ignore them. Shares are of 1. Where a row and its `unless` row share a line, the `unless` row comes
 * first. */
#include "trainer/watch/alarm_rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SELF(id) .unless = (id)

const struct clime_alarm_rule clime_alarm_rules[CLIME_ALARMS] = {
    [CLIME_ALARM_REWARDS_ALIKE] =
        {"rewards-alike", "rollout", "rollout/raw_reward_std", CLIME_ALARM_UP_TO, 0, 1, 3,
         SELF(CLIME_ALARM_REWARDS_ALIKE), false, "the deviation of the rollout's rewards",
         "Nothing can be learned from such a rollout.",
         "Look at samples and labels: does the reward fit them (clime-train grade --help)? Are "
         "the prompts far too hard, or all solved?"},
    [CLIME_ALARM_GROUPS_ALIKE] = {"groups-alike", "rollout", "rollout/zero_std_frac", CLIME_ALARM_ABOVE, 0.9, 3, 3,
                                  SELF(CLIME_ALARM_REWARDS_ALIKE), false,
                                  "the share of groups whose members all got the same reward",
                                  "Such groups have no advantage: most of the rollout teaches nothing.",
                                  "Take prompts that are neither solved nor out of reach, more samples for each "
                                  "(--n-samples-per-prompt), or --dynamic-sampling-filter-path "
                                  "check_reward_nonzero_std."},
    [CLIME_ALARM_ENTROPY] = {"entropy-collapse", "train", "train/entropy_loss", CLIME_ALARM_FALLEN, 0.02, 5, 5,
                             SELF(CLIME_ALARM_ENTROPY), false, "the entropy of the policy",
                             "The policy has stopped trying anything else than what it does.",
                             "A higher --eps-clip-high, an --entropy-coef, a lower --lr, or other prompts if these are "
                             "solved."},
    [CLIME_ALARM_TRUNCATION] = {"truncation", "rollout", "rollout/truncated_ratio", CLIME_ALARM_ABOVE, 0.5, 3, 3,
                                SELF(CLIME_ALARM_TRUNCATION), false, "the share of samples that the length limit ended",
                                "They are rewarded for what they had said by then.",
                                "A larger --rollout-max-response-len, stop strings that fit the template "
                                "(--rollout-stop), or a reward that says something of cut answers."},
    [CLIME_ALARM_LENGTHS] = {"lengths", "rollout", "rollout/response_len/of_limit", CLIME_ALARM_ABOVE, 0.8, 3, 3,
                             SELF(CLIME_ALARM_TRUNCATION), false,
                             "the mean length of responses, as a share of the limit",
                             "They grow towards the limit, and the next thing is that it cuts them.",
                             "A larger --rollout-max-response-len, or a reward that does not pay for length."},
    [CLIME_ALARM_STALENESS] = {"staleness", "rollout", "rollout/staleness/mean", CLIME_ALARM_ABOVE, 8, 3, 3,
                               SELF(CLIME_ALARM_STALENESS), false,
                               "the mean age of the trained tokens, in optimizer steps",
                               "The weights that sampled them are far from those that are trained.",
                               "A smaller --max-rollouts-ahead or --update-weights-interval, a --max-staleness, or a "
                               "correction (--use-tis)."},
    [CLIME_ALARM_GAP] = {"gap", NULL, NULL, CLIME_ALARM_ABOVE, 0, 1, 8, SELF(CLIME_ALARM_GAP), false,
                         "the number of log-probabilities of the servers that are not the trainer's",
                         "Servers and trainer compute with other weights, or other numbers from the same.",
                         "Are all servers this version of clime, on this kind of device, with the weights that were "
                         "pushed, by this run alone? --gap-must-be-zero ends a run here."},
    [CLIME_ALARM_ROUTING] =
        {"routing", NULL, NULL, CLIME_ALARM_ABOVE, 0, 1, 8, SELF(CLIME_ALARM_ROUTING), false,
         "the number of tokens that other experts drew than the trainer chooses",
         "Servers and trainer compute with other routers, or other numbers before them.",
         "Are all servers this version of clime, on this kind of device, with the weights that were "
         "pushed, by this run alone? --gap-must-be-zero ends a run here."},
    [CLIME_ALARM_CLIPPED] = {"clipped", "train", "train/pg_clipfrac", CLIME_ALARM_ABOVE, 0.3, 5, 5,
                             SELF(CLIME_ALARM_CLIPPED), false, "the share of tokens that the loss clips",
                             "The policy moves further in a step than the loss lets it learn from.",
                             "A lower --lr, fewer --num-steps-per-rollout, or a wider --eps-clip."},
    [CLIME_ALARM_GRADIENT_SPIKE] =
        {"gradient-spike", "train", "train/grad_norm", CLIME_ALARM_SPIKE, 20, 1, 5, SELF(CLIME_ALARM_GRADIENT_SPIKE),
         false, "the gradient norm", "One step is unlike those before it.",
         "Look at the step's samples for what is odd; --clip-grad bounds what a step does, a "
         "lower --lr what follows."},
    [CLIME_ALARM_GRADIENT_BAD] = {"gradient-not-finite", "train", "train/skipped", CLIME_ALARM_ABOVE, 0, 1, 5,
                                  SELF(CLIME_ALARM_GRADIENT_BAD), false,
                                  "the number of steps left out for a gradient that is not finite",
                                  "The weights stay as they were, and the step's samples are lost.",
                                  "If it comes again: a lower --lr, --clip-grad, and the step's samples and rewards."},
    [CLIME_ALARM_GROUP_BAD] =
        {"group-not-finite", "rollout", "rollout/bad_groups", CLIME_ALARM_ABOVE, 0, 1, 3, SELF(CLIME_ALARM_GROUP_BAD),
         false, "the number of groups with a reward or an advantage that is not finite",
         "Such a group is left out of the training; 16 of them in a row end the run.",
         "The ledger's event \"drop\" names the group. Look at its rewards, at what a library makes of them, and at "
         "the KL in the reward."},
    [CLIME_ALARM_TRAINER_STARVED] =
        {"trainer-starved", "perf", "perf/trainer_idle_ratio", CLIME_ALARM_ABOVE, 0.6, 5, 5,
         SELF(CLIME_ALARM_TRAINER_STARVED), true, "the share of its time that the trainer waits for rollouts",
         "Generation is slower than training.",
         "More servers or a larger --server-concurrency; look at the longest samples and at "
         "the time that rewards take."},
    [CLIME_ALARM_SERVERS_STARVED] = {"servers-starved", "perf", "perf/rollout_idle_ratio", CLIME_ALARM_ABOVE, 0.6, 5, 5,
                                     SELF(CLIME_ALARM_SERVERS_STARVED), true,
                                     "the share of the time in which the servers have nothing to do",
                                     "Training is slower than generation.",
                                     "Fewer servers, more samples in a rollout, or with --fully-async a larger "
                                     "--max-rollouts-ahead, whose tokens are older."},
    [CLIME_ALARM_REWARD_FAILS] =
        {"reward-fails", NULL, NULL, CLIME_ALARM_ABOVE, 0.05, 1, 2, SELF(CLIME_ALARM_REWARD_FAILS), false,
         "samples that have no reward, as a share of a rollout's",
         "Their groups are dropped, and a rollout that loses as many as it needs ends the run.",
         "The error says what failed. --rm-timeout bounds one reward; clime-train grade tries "
         "the reward alone."},
    [CLIME_ALARM_REWARD_SLOW] = {"reward-slow", "perf", "perf/reward_time", CLIME_ALARM_ABOVE, 10, 2, 2,
                                 SELF(CLIME_ALARM_REWARD_SLOW), false,
                                 "the mean time from the end of a sample to its reward, in seconds",
                                 "Rollouts wait for rewards, not for the servers.",
                                 "A faster reward, or more of them at a time (--rm-workers)."},
    [CLIME_ALARM_SAMPLES_FAIL] =
        {"samples-fail", NULL, NULL, CLIME_ALARM_ABOVE, 0.05, 1, 2, SELF(CLIME_ALARM_SAMPLES_FAIL), false,
         "samples that could not be generated, as a share of a rollout's",
         "Their groups are dropped, and a rollout that loses as many as it needs ends the run.",
         "The error says what failed; the servers' logs are in logs/ of the run folder."},
    [CLIME_ALARM_STALLED] = {"stalled", NULL, NULL, CLIME_ALARM_ABOVE, 600, 1, 1, SELF(CLIME_ALARM_STALLED), false,
                             "the seconds since a sample last came back whole",
                             "The rollout waits for servers, rewards or environments that do not answer.",
                             "Look at the servers' logs and load; --rollout-request-timeout bounds the wait."},
    [CLIME_ALARM_EVAL_ZERO] = {"evaluation-zero", NULL, NULL, CLIME_ALARM_ABOVE, 0, 1, 1, SELF(CLIME_ALARM_EVAL_ZERO),
                               false, "the number of sets whose answers all got reward 0",
                               "More often the reward does not fit the data than the policy is that bad.",
                               "Does the reward fit the labels (clime-train grade --help lists them)?"},
    [CLIME_ALARM_DISK] = {"disk", "perf", "perf/disk_free_ratio", CLIME_ALARM_UP_TO, 0.02, 1, 1, SELF(CLIME_ALARM_DISK),
                          false, "the free share of the run folder's file system",
                          "A run whose ledger cannot be written ends, and a checkpoint that has no room is not there.",
                          "Make room: fewer --keep-checkpoints, --keep-rollouts N, or a larger file system."},
    [CLIME_ALARM_ENDED] = {"ended", NULL, NULL, CLIME_ALARM_ABOVE, 0, 1, 1, SELF(CLIME_ALARM_ENDED), false,
                           "the number of errors that ended the run", "Nothing works on it any more.",
                           "Mend what the error says; the same command goes on from what is recorded."},
};

int clime_alarm_find(const char *name, int len) {
    for (int i = 0; i < CLIME_ALARMS; i++)
        if ((int)strlen(clime_alarm_rules[i].name) == len && !memcmp(clime_alarm_rules[i].name, name, (size_t)len))
            return i;
    return -1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct clime_alarm_state *s) {
    double v[CLIME_ALARM_RECENT];
    int n = s->n < CLIME_ALARM_RECENT ? (int)s->n : CLIME_ALARM_RECENT;
    memcpy(v, s->recent, (size_t)n * sizeof *v);
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

/* The bound from the values before the current one. */
static double bound_of(const struct clime_alarm_rule *r, double limit, const struct clime_alarm_state *s) {
    if (r->test == CLIME_ALARM_SPIKE) return s->n < CLIME_ALARM_FIRST ? NAN : limit * median(s);
    if (r->test == CLIME_ALARM_FALLEN) return s->n < CLIME_ALARM_FIRST ? NAN : limit * s->first_sum / CLIME_ALARM_FIRST;
    return limit;
}

enum clime_alarm_change clime_alarm_judge(const struct clime_alarm_rule *r, double limit, struct clime_alarm_state *s,
                                          double value, double *bound) {
    bool low = r->test == CLIME_ALARM_UP_TO || r->test == CLIME_ALARM_FALLEN;
    double b = *bound = bound_of(r, limit, s), away = fabs(b) / 10;
    bool bad = low ? value <= b : value > b; /* false for NaN, as is the next */
    bool good = low ? value > b + away : value <= b - away;
    if (s->n < CLIME_ALARM_FIRST) s->first_sum += value;
    s->recent[s->n++ % CLIME_ALARM_RECENT] = value;
    s->bad = bad ? s->bad + 1 : 0;
    s->good = good ? s->good + 1 : 0;
    if (!s->raised && s->bad >= r->rise) {
        s->raised = true;
        return CLIME_ALARM_RAISED;
    }
    if (s->raised && s->good >= r->calm) {
        s->raised = false;
        return CLIME_ALARM_CLEARED;
    }
    return CLIME_ALARM_SAME;
}
