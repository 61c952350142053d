/* The scheduler's invariants, recounted from scratch. Called by the property tests after every operation and by the
 * engine with --debug-checks; engine thread; owns nothing.
 *
 * Kept out of scheduler.c so that the rules can be read in one place: each CHECK is one of them.
 */
#include <stdlib.h>

#include "common/err.h"
#include "kernels/kernels.h"
#include "server/schedule/scheduler.h"

static void check_running(const struct clime_sched *s, int32_t *refs) {
    for (int i = 0; i < s->n_running; i++) {
        const struct clime_seq *q = s->running[i];
        CHECK(q->state == CLIME_SEQ_RUNNING && !q->leader);
        CHECK(i == 0 || s->running[i - 1]->arrival < q->arrival);
        CHECK(q->n_kv <= q->n_total && q->n_total <= q->max_total);
        CHECK(q->n_kv <= q->n_pages * CLIME_PAGE && q->n_pages <= clime_pages_for(q->max_total));
        CHECK(q->n_shared <= q->n_kv / CLIME_PAGE);
        for (int p = 0; p < q->n_pages; p++) {
            int32_t page = q->pages[p];
            refs[page]++;
            CHECK(s->pages.version[page] <= s->version);
            /* only sequences kept by an update hold KV of older weights */
            CHECK(q->mixed || s->pages.version[page] == s->version);
            CHECK(q->mixed || !s->pages.mixed[page]);
            if (s->prefix.on && q->epoch == s->prefix.epoch && p < q->n_shared)
                CHECK(clime_prefix_holds(&s->prefix, page));
        }
    }
}

static void check_waiting(const struct clime_sched *s) {
    int n = 0, n_followers = 0, n_led = 0;
    int64_t n_tokens = 0;
    for (const struct clime_seq *q = s->first; q; q = q->next, n++) {
        n_tokens += q->n_total;
        n_followers += q->n_followers;
        n_led += q->leader != NULL;
        CHECK(q->state == CLIME_SEQ_WAITING && q->n_pages == 0 && q->n_kv == 0);
        CHECK(q->next ? q->next->prev == q && q->arrival < q->next->arrival : s->last == q);
        CHECK(!q->leader || q->leader->state != CLIME_SEQ_GONE);
        CHECK(!q->leader || !q->leader->leader); /* no chains: a leader has no leader */
    }
    for (int i = 0; i < s->n_running; i++) n_followers += s->running[i]->n_followers;
    CHECK(n_followers == n_led);
    CHECK(n == s->n_waiting && n_tokens == s->n_waiting_tokens);
}

void clime_sched_check(const struct clime_sched *s) {
    const struct clime_pages *p = &s->pages;
    int32_t *refs = xcalloc((size_t)p->n, sizeof *refs);
    bool *is_free = xcalloc((size_t)p->n, sizeof *is_free);
    check_running(s, refs);
    check_waiting(s);
    for (int i = 0; i < p->n_free; i++) {
        CHECK(!is_free[p->free[i]]);
        is_free[p->free[i]] = true;
    }
    for (int32_t i = 0; i < p->n; i++) {
        bool cached = clime_prefix_holds(&s->prefix, i);
        CHECK(refs[i] + cached == p->refs[i]);
        CHECK(is_free[i] == (p->refs[i] == 0));
        /* a page that a kept sequence still writes is not shared */
        CHECK(!p->mixed[i] || p->refs[i] <= 1);
        CHECK(!cached || (p->version[i] == s->version && !p->mixed[i]));
    }
    clime_prefix_check(&s->prefix);
    free(refs);
    free(is_free);
}
