/* What workers hold of a prompt's beginning, as far as a router can tell. Called by choose.c under the table's mutex;
 * owns nothing but what is in the table.
 *
 * A worker that is sent a prompt holds it from then on, until its cache has taken in as much else as it has room for,
 * by its own word (capacity; unknown = for ever): what was used longest ago goes, and of a prompt the end. v.stored
 * counts what it has taken in; beside each mark stands the count at which its page came in last, earlier by the tokens
 * up to the mark. Generated tokens are not counted, since a limit says little of how many there will be, nor what was
 * there and moves to the front: forgotten late it draws in vain, forgotten early it is computed again, which costs
 * more.
 *
 * A worker that was lost, or has other weights than before, has an empty cache. */
#include "router/policy/request.h"
#include "router/workers_int.h"

static bool holds(const struct worker *k, const struct clime_placement *p) {
    return p->used_us >= k->emptied_us && (k->v.capacity <= 0 || k->v.stored - p->note <= k->v.capacity);
}

/* A mark that a worker does not have is no end for it: it may have been pushed out of the table. */
void clime_prefixes_find(struct clime_workers *w, const struct clime_route_request *rq, int n, int64_t now_us) {
    struct clime_placement all[CLIME_PLACEMENTS_COPIES];
    for (int p = 0; p < rq->n_pages; p++) clime_placements_prefetch(w->prefixes, rq->pages[p]);
    for (int i = 0; i < n; i++) w->ready[i]->matched = w->ready[i]->own = 0;
    int64_t page = 0;
    for (int p = 0; p < rq->n_pages; p++) {
        struct worker *holders[CLIME_PLACEMENTS_COPIES];
        int n_all = clime_placements_all(w->prefixes, rq->pages[p], now_us, all), n_holders = 0;
        page = clime_route_next_page(page);
        for (int i = 0; i < n_all; i++) {
            int at = clime_workers_ready_at(w, all[i].worker);
            struct worker *k = at < 0 ? NULL : &w->w[w->ready[at]->slot];
            if (!k || !holds(k, &all[i])) continue;
            holders[n_holders++] = k;
            k->v.matched = page * CLIME_ROUTE_PAGE_TOKENS;
        }
        for (int i = 0; n_holders < CLIME_PLACEMENTS_COPIES && i < n_holders; i++) /* or others may well have it too */
            holders[i]->v.own = holders[i]->v.matched;
    }
}

void clime_prefixes_note(struct clime_workers *w, const struct clime_route_request *rq, struct clime_worker_view *v,
                         int64_t now_us) {
    int64_t page = 0;
    v->stored += v->matched < rq->prompt ? rq->prompt - v->matched : 0;
    for (int p = 0; p < rq->n_pages; p++) {
        page = clime_route_next_page(page);
        clime_placements_set(w->prefixes, rq->pages[p], clime_workers_place(v),
                             v->stored - page * CLIME_ROUTE_PAGE_TOKENS, now_us);
    }
}
