/* Prefix cache estimates: which workers hold the beginning of a prompt. Called by choose.c under the table's mutex; all
 * state is in the table.
 *
 * A worker holds a prompt once it was sent there, until its cache has stored its reported capacity in other tokens
 * (unknown = for ever): the least recently used prefix is evicted first, from the end of the prompt. v.stored counts
 * stored tokens; each mark keeps the count at which its page was last stored, less the tokens up to the mark. Generated
 * tokens are not counted, since a limit says little about their number, nor are cache hits that move to the front: a
 * stale entry attracts a request in vain, a missing one costs a prefill, which is worse.
 *
 * A worker that was lost or got other weights has an empty cache. */
#include "router/policy/request.h"
#include "router/workers_int.h"

static bool holds(const struct worker *k, const struct clime_placement *p) {
    return p->used_us >= k->emptied_us && (k->v.capacity <= 0 || k->v.stored - p->note <= k->v.capacity);
}

/* A missing mark does not end a worker's match: the table may have dropped it. */
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
        for (int i = 0; n_holders < CLIME_PLACEMENTS_COPIES && i < n_holders; i++) /* else others may hold it too */
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
