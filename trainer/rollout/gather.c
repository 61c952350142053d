/* Groups that are rewarded together (see gather.h). Called by the client's submitter thread, which owns it.
 *
 * A group is identified by its gathering number, since an abandoned group may be restarted while some of its members
 * are still in flight. Invariant: a broken group holds no requests.
 */
#include "trainer/rollout/gather.h"

#include <stdlib.h>
#include <string.h>

struct group {
    struct group *next;
    int64_t gathering;
    int size, n_waiting, n_seen; /* seen: added, answered or not */
    bool broken;
    struct clime_request **member; /* [size] NULL = not here */
};

struct clime_gather {
    struct group *groups;
};

struct clime_gather *clime_gather_new(void) {
    return xcalloc(1, sizeof(struct clime_gather));
}

static void forget(struct clime_gather *g, struct group *one) {
    struct group **at = &g->groups;
    while (*at != one) at = &(*at)->next;
    *at = one->next;
    free(one->member);
    free(one);
}

void clime_gather_free(struct clime_gather *g) {
    if (!g) return;
    while (g->groups) forget(g, g->groups);
    free(g);
}

static struct group *find(struct clime_gather *g, const struct clime_request *r) {
    struct group *one = g->groups;
    while (one && one->gathering != r->gathering) one = one->next;
    if (one) return one;
    one = xcalloc(1, sizeof *one);
    one->gathering = r->gathering;
    one->size = r->group_size;
    one->member = xcalloc((size_t)r->group_size, sizeof *one->member);
    one->next = g->groups;
    g->groups = one;
    return one;
}

/* Releases all members waiting in the group. */
static int release(struct group *one, struct clime_request **out) {
    int n = 0;
    for (int i = 0; i < one->size; i++) {
        if (one->member[i]) out[n++] = one->member[i];
        one->member[i] = NULL;
    }
    one->n_waiting = 0;
    return n;
}

int clime_gather_add(struct clime_gather *g, struct clime_request *r, struct clime_request **out, bool *complete) {
    struct group *one = find(g, r);
    enum clime_sample_status status = r->sample->status;
    int at = r->sample->member, n = 0;
    CHECK(at >= 0 && at < one->size && one->size <= CLIME_GATHER_MOST);
    *complete = false;
    one->n_seen++;
    one->broken |= status != CLIME_SAMPLE_COMPLETED && status != CLIME_SAMPLE_TRUNCATED;
    if (one->broken) {
        n = release(one, out);
        out[n++] = r;
    } else {
        if (one->member[at]) { /* its lease expired and it was generated again: release the older one */
            out[n++] = one->member[at];
            one->n_waiting--;
            one->n_seen--;
        }
        one->member[at] = r;
        one->n_waiting++;
        *complete = one->n_waiting == one->size;
        if (*complete) n = release(one, out); /* n was 0: an older duplicate rules out a complete group */
    }
    if (one->n_waiting == 0 && one->n_seen >= one->size) forget(g, one);
    return n;
}

int clime_gather_stopped(struct clime_gather *g, struct clime_request **out) {
    for (struct group *one = g->groups; one; one = one->next) {
        bool stopped = false;
        for (int i = 0; i < one->size; i++) stopped |= one->member[i] && clime_request_stopped(one->member[i]);
        if (!stopped) continue;
        one->broken = true;
        int n = release(one, out);
        if (one->n_seen >= one->size) forget(g, one);
        return n;
    }
    return 0;
}
