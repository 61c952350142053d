/* Open groups in the order of a filter. Called by the rollout; owns the samples until they are taken. */
#include "trainer/buffer.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/ledger/samples.h"

struct entry { /* one group while the buffer is sorted */
    struct clime_sample **samples;
    int64_t id;
    int finished;
    int64_t tokens;
};

static int by_age(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id); /* numbers of groups grow with the rollouts */
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

static void sort(struct clime_buffer *b, int (*compare)(const void *, const void *)) {
    struct entry *list = xcalloc((size_t)b->n + 1, sizeof *list);
    struct clime_sample **sorted = xcalloc((size_t)(b->n * b->members) + 1, sizeof *sorted);
    for (int g = 0; g < b->n; g++) {
        struct entry *x = &list[g];
        x->samples = b->samples + (ptrdiff_t)g * b->members;
        x->id = x->samples[0]->group;
        for (int m = 0; m < b->members; m++) {
            x->finished += clime_sample_finished(x->samples[m]);
            x->tokens += x->samples[m]->n_response;
        }
    }
    qsort(list, (size_t)b->n, sizeof *list, compare);
    for (int g = 0; g < b->n; g++)
        memcpy(sorted + (ptrdiff_t)g * b->members, list[g].samples, (size_t)b->members * sizeof *sorted);
    free(list);
    free(b->samples);
    b->samples = sorted;
}

enum clime_err clime_buffer_load(struct clime_db *db, const char *order, int members, struct clime_buffer *out,
                                 struct clime_error *e) {
    const char *dot = strrchr(order, '.');
    size_t k = 0;
    int n;
    *out = (struct clime_buffer){.members = members};
    while (k < CLIME_COUNT(orders) && strcmp(dot ? dot + 1 : order, orders[k].name)) k++;
    if (k == CLIME_COUNT(orders))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--buffer-filter-path %s: there is no such filter; there are pop_first and pop_most_complete",
                          order);
    if (!db) return CLIME_OK;
    enum clime_err rc = clime_samples_open(db, &out->samples, &n, e);
    if (rc) return rc;
    CHECK(n % members == 0);
    out->n = n / members;
    sort(out, orders[k].compare);
    return CLIME_OK;
}

void clime_buffer_free(struct clime_buffer *b) {
    for (int i = b->next * b->members; i < b->n * b->members; i++) clime_sample_free(b->samples[i]);
    free(b->samples);
    *b = (struct clime_buffer){0};
}

int clime_buffer_take(struct clime_buffer *b, int n, struct clime_sample ***samples) {
    if (n > b->n - b->next) n = b->n - b->next;
    *samples = b->samples + (ptrdiff_t)b->next * b->members;
    b->next += n;
    return n;
}
