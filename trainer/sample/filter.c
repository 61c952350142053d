/* Built-in filters. Looked up when a run opens and by each rollout, called for a complete group on the rollout's
 * thread; no state. Invariant: a verdict is a function of the members' rewards alone, so a restart decides the same. */
#include "trainer/sample/filter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* slime's rule: the unbiased deviation of the rewards exceeds 1e-6. A member's parts count as one, as in the
 * estimators. */
static bool rewards_differ(struct clime_sample *const *s, int n) {
    double mean = 0, var = 0;
    for (int i = 0; i < n; i++) mean += clime_sample_reward(s[i]) / n;
    for (int i = 0; i < n; i++)
        for (const struct clime_sample *p = s[i]; p; p = p->next)
            var += (p->reward - mean) * (p->reward - mean) / clime_sample_parts(s[i]);
    return n > 1 && sqrt(var / (n - 1)) > 1e-6;
}

static void nonzero_std(struct clime_sample *const *members, int n, struct clime_verdict *out) {
    *out = (struct clime_verdict){.keep = rewards_differ(members, n)};
    if (!out->keep) snprintf(out->reason, sizeof out->reason, "zero_std_%.1f", clime_sample_reward(members[0]));
}

static void nonzero_std_with_fallback(struct clime_sample *const *members, int n, struct clime_verdict *out) {
    nonzero_std(members, n, out);
    out->keep_when_insufficient = true;
}

static const struct {
    const char *name;
    clime_filter_fn *fn;
} filters[] = {
    {"check_reward_nonzero_std", nonzero_std},
    {"check_reward_nonzero_std_with_fallback", nonzero_std_with_fallback},
};

bool clime_filter_is_library(const char *path) {
    size_t n = path ? strlen(path) : 0;
    return n > 0 && (strchr(path, '/') || (n > 3 && !strcmp(path + n - 3, ".so")));
}

clime_filter_fn *clime_filter_find(const char *path, struct clime_error *e) {
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    for (size_t i = 0; i < CLIME_COUNT(filters); i++)
        if (!strcmp(filters[i].name, name)) return filters[i].fn;
    clime_fail(e, CLIME_ERR_INPUT,
               "--dynamic-sampling-filter-path %s: there is no such filter; there are check_reward_nonzero_std, "
               "check_reward_nonzero_std_with_fallback and shared libraries",
               path);
    return NULL;
}
