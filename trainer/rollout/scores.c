/* Means and intervals over prompts. Called by the evaluation, main thread. */
#include "trainer/rollout/scores.h"

#include <math.h>

#include "common/err.h"

double clime_pass_at_k(int n, int c, int k) {
    CHECK(n > 0 && k >= 1 && k <= n && c >= 0 && c <= n);
    if (n - c < k) return 1;
    double miss = 1;
    for (int i = n - c + 1; i <= n; i++) miss *= 1 - (double)k / i;
    return 1 - miss;
}

/* Adds one prompt (Welford; variance holds the sum of squares until the end). */
static void add(struct clime_scores *s, double x) {
    double before = x - s->mean;
    s->mean += before / ++s->n;
    s->variance += before * (x - s->mean);
}

static void end(struct clime_scores *s) {
    if (s->n > 1) s->variance /= s->n - 1;
}

void clime_scores_of_rewards(struct clime_sample *const *samples, int n, int tries, struct clime_scores *out) {
    *out = (struct clime_scores){0};
    for (int i = 0; i < n; i += tries) {
        double sum = 0;
        int scored = 0;
        for (int t = i; t < i + tries; t++) {
            if (samples[t]->has_reward) sum += samples[t]->reward;
            scored += samples[t]->has_reward;
        }
        if (scored) add(out, sum / scored);
    }
    end(out);
}

void clime_scores_of_pass(struct clime_sample *const *samples, int n, int tries, int k, struct clime_scores *out) {
    *out = (struct clime_scores){0};
    for (int i = 0; i < n; i += tries) {
        int right = 0, scored = 0;
        for (int t = i; t < i + tries; t++) {
            scored += samples[t]->has_reward;
            right += samples[t]->has_reward && samples[t]->reward == 1;
        }
        if (scored >= k) add(out, clime_pass_at_k(scored, right, k));
    }
    end(out);
}

double clime_scores_ci95(const struct clime_scores *s) {
    CHECK(s->n > 1);
    return 1.96 * sqrt(s->variance / s->n);
}

double clime_mean_scored(struct clime_sample *const *samples, int n) {
    double sum = 0;
    int scored = 0;
    for (int i = 0; i < n; i++) {
        if (samples[i]->has_reward) sum += samples[i]->reward;
        scored += samples[i]->has_reward;
    }
    CHECK(scored > 0);
    return sum / scored;
}
