/* Open groups in the filter's order (see leftovers.h). Called by the rollout; owns the samples until they are taken. */
#include "trainer/rollout/leftovers.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/ledger/samples.h"
#include "trainer/plugin/hooks.h"
#include "trainer/sample/filter.h"

struct entry { /* sort entry of a group */
    struct clime_sample **samples;
    int64_t id;
    int finished;
    int64_t tokens;
};

static int by_age(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id); /* group numbers grow with the rollouts */
}

static int by_progress(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->finished != y->finished) return y->finished - x->finished;
    if (x->tokens != y->tokens) return x->tokens < y->tokens ? 1 : -1;
    return by_age(a, b);
}

static const struct {
    const char *name;
    int (*compare)(const void *, const void *);
} orders[] = {{"pop_first", by_age}, {"pop_most_complete", by_progress}};

/* Arranges the groups in the order of list. */
static void arrange(struct clime_leftovers *l, const struct entry *list) {
    struct clime_sample **sorted = xcalloc((size_t)(l->n * l->members) + 1, sizeof *sorted);
    for (int g = 0; g < l->n; g++)
        memcpy(sorted + (ptrdiff_t)g * l->members, list[g].samples, (size_t)l->members * sizeof *sorted);
    free(l->samples);
    l->samples = sorted;
}

static void sort(struct clime_leftovers *l, int (*compare)(const void *, const void *)) {
    struct entry *list = xcalloc((size_t)l->n + 1, sizeof *list);
    for (int g = 0; g < l->n; g++) {
        struct entry *x = &list[g];
        x->samples = l->samples + (ptrdiff_t)g * l->members;
        x->id = x->samples[0]->group;
        for (int m = 0; m < l->members; m++) {
            x->finished += clime_sample_finished(x->samples[m]);
            x->tokens += x->samples[m]->n_response;
        }
    }
    qsort(list, (size_t)l->n, sizeof *list, compare);
    arrange(l, list);
    free(list);
}

/* Puts the library's choice first, omitted groups last. */
static enum clime_err ask(struct clime_leftovers *l, const struct clime_leftovers_order *o, struct clime_error *e) {
    int32_t *order = xcalloc((size_t)l->n + 1, sizeof *order);
    struct entry *list = xcalloc((size_t)l->n + 1, sizeof *list);
    enum clime_err rc =
        clime_hook_buffer(o->hook, o->rollout, o->version, l->samples, l->n, l->members, order, &l->offered, e);
    int at = 0;
    for (; !rc && at < l->offered; at++) list[at].samples = l->samples + (ptrdiff_t)order[at] * l->members;
    for (int g = 0; !rc && g < l->n; g++) {
        bool chosen = false;
        for (int k = 0; k < l->offered && !chosen; k++) chosen = order[k] == g;
        if (!chosen) list[at++].samples = l->samples + (ptrdiff_t)g * l->members;
    }
    if (!rc) arrange(l, list);
    free(order);
    free(list);
    return rc;
}

/* Index in orders; -1 = none. */
static int find(const char *name) {
    const char *dot = strrchr(name, '.');
    for (int k = 0; k < (int)CLIME_COUNT(orders); k++)
        if (!strcmp(dot ? dot + 1 : name, orders[k].name)) return k;
    return -1;
}

enum clime_err clime_leftovers_check(const char *name, struct clime_error *e) {
    if (clime_filter_is_library(name) || find(name) >= 0) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "--buffer-filter-path %s: there is no such filter; there are pop_first, pop_most_complete and "
                      "shared libraries",
                      name);
}

static bool is_one_of(int64_t group, const int64_t *groups, int n) {
    for (int i = 0; i < n; i++)
        if (groups[i] == group) return true;
    return false;
}

/* Frees the groups of these numbers. */
static void leave_out(struct clime_leftovers *l, const int64_t *groups, int n) {
    int left = 0;
    for (int g = 0; g < l->n; g++) {
        struct clime_sample **group = l->samples + (ptrdiff_t)g * l->members;
        bool out = is_one_of(group[0]->group, groups, n);
        for (int m = 0; m < l->members; m++)
            if (out)
                clime_sample_free(group[m]);
            else
                l->samples[(ptrdiff_t)left * l->members + m] = group[m];
        left += !out;
    }
    l->n = left;
}

enum clime_err clime_leftovers_load(struct clime_db *db, const struct clime_leftovers_order *order, int members,
                                    struct clime_leftovers *out, struct clime_error *e) {
    int n;
    *out = (struct clime_leftovers){.members = members};
    enum clime_err rc = clime_samples_open(db, &out->samples, &n, e);
    if (rc) return rc;
    CHECK(n % members == 0);
    out->n = n / members;
    leave_out(out, order->held, order->n_held);
    out->offered = out->n;
    sort(out, order->hook ? by_age : orders[find(order->name)].compare);
    if (order->hook && out->n) rc = ask(out, order, e);
    if (rc) clime_leftovers_free(out);
    return rc;
}

void clime_leftovers_free(struct clime_leftovers *l) {
    for (int i = l->next * l->members; i < l->n * l->members; i++) clime_sample_free(l->samples[i]);
    free(l->samples);
    *l = (struct clime_leftovers){0};
}

int clime_leftovers_take(struct clime_leftovers *l, int n, struct clime_sample ***samples) {
    if (n > l->offered - l->next) n = l->offered - l->next;
    *samples = l->samples + (ptrdiff_t)l->next * l->members;
    l->next += n;
    return n;
}
