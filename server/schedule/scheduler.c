/* The scheduler: plans steps. Called by the engine, engine thread only; owns the pages, the prefix cache and both
 * lists; the caller owns sequences.
 *
 * Invariant: a page is on the free stack, or each of its references is a page table entry or the cache's. Progress: the
 * running sequence that arrived first can always get a page, because it may take those of all others and max_total
 * never exceeds the pool. If the latest arrival itself finds no page it keeps its pages and waits; releasing them would
 * only force a recompute.
 */
#include "server/schedule/scheduler.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/kernels.h"

#define BUCKETS 4096 /* a power of two */

void clime_sched_init(struct clime_sched *s, const struct clime_sched_options *o) {
    CHECK(o->max_running > 0 && o->chunk > 0 && o->n_pages > 0);
    *s = (struct clime_sched){.opts = *o, .version = CLIME_FIRST_VERSION, .closed_from = INT64_MAX};
    clime_pages_init(&s->pages, o->n_pages);
    clime_prefix_init(&s->prefix, &s->pages, o->cache);
    s->running = xcalloc((size_t)o->max_running, sizeof(struct clime_seq *));
    s->alike = xcalloc(BUCKETS, sizeof(struct clime_seq *));
}

void clime_sched_free(struct clime_sched *s) {
    CHECK(s->n_running == 0 && s->n_waiting == 0);
    clime_prefix_free(&s->prefix);
    clime_pages_free(&s->pages);
    free(s->running);
    free(s->alike);
}

void clime_step_plan_init(struct clime_step_plan *p, int max_running) {
    *p = (struct clime_step_plan){0};
    p->items = xcalloc((size_t)max_running, sizeof *p->items);
    p->copies = xcalloc((size_t)max_running, sizeof *p->copies);
}

void clime_step_plan_free(struct clime_step_plan *p) {
    free(p->items);
    free(p->copies);
}

/* ---- the waiting list, ascending arrival ------------------------------------------------------------------- */

static void wait_insert(struct clime_sched *s, struct clime_seq *q) {
    struct clime_seq *before = s->last; /* new arrivals go last: search from there */
    while (before && before->arrival > q->arrival) before = before->prev;
    q->prev = before;
    q->next = before ? before->next : s->first;
    if (q->next)
        q->next->prev = q;
    else
        s->last = q;
    if (before)
        before->next = q;
    else
        s->first = q;
    q->state = CLIME_SEQ_WAITING;
    s->n_waiting++;
    s->n_waiting_tokens += q->n_total;
}

static void wait_remove(struct clime_sched *s, struct clime_seq *q) {
    if (q->prev)
        q->prev->next = q->next;
    else
        s->first = q->next;
    if (q->next)
        q->next->prev = q->prev;
    else
        s->last = q->prev;
    q->next = q->prev = NULL;
    s->n_waiting--;
    s->n_waiting_tokens -= q->n_total;
}

static bool same_prompt(const struct clime_seq *a, const struct clime_seq *b) {
    return a->share_prompt && b->share_prompt && a->prompt_hash == b->prompt_hash && a->n_prompt == b->n_prompt &&
           a->salt == b->salt && memcmp(a->ids, b->ids, (size_t)a->n_prompt * sizeof *a->ids) == 0;
}

static struct clime_seq **bucket_of(const struct clime_sched *s, const struct clime_seq *q) {
    return &s->alike[q->prompt_hash & (BUCKETS - 1)];
}

static void alike_add(struct clime_sched *s, struct clime_seq *q) {
    struct clime_seq **first = bucket_of(s, q);
    q->alike_prev = NULL;
    q->alike_next = *first;
    if (*first) (*first)->alike_prev = q;
    *first = q;
}

static void alike_remove(struct clime_sched *s, struct clime_seq *q) {
    if (q->alike_next) q->alike_next->alike_prev = q->alike_prev;
    *(q->alike_prev ? &q->alike_prev->alike_next : bucket_of(s, q)) = q->alike_next;
}

/* The sequence that will compute, or is computing, q's prompt: the last waiting one, or the first running one. If it
 * has finished the prompt, the prefix cache finds it, or it was the leader when q arrived. */
static struct clime_seq *find_leader(const struct clime_sched *s, const struct clime_seq *q) {
    struct clime_seq *waits = NULL, *runs = NULL;
    if (!q->share_prompt) return NULL;
    for (struct clime_seq *w = *bucket_of(s, q); w; w = w->alike_next) {
        if (!same_prompt(w, q)) continue;
        if (w->state == CLIME_SEQ_WAITING && (!waits || w->arrival > waits->arrival)) waits = w;
        if (w->state == CLIME_SEQ_RUNNING && (!runs || w->arrival < runs->arrival)) runs = w;
    }
    return waits && waits->leader ? waits->leader : waits ? waits : runs;
}

static void follow(struct clime_seq *q, struct clime_seq *leader) {
    if (q->leader) q->leader->n_followers--;
    q->leader = leader;
    if (leader) leader->n_followers++;
}

void clime_sched_add(struct clime_sched *s, struct clime_seq *q) {
    CHECK(q->n_kv == 0 && q->n_pages == 0 && q->max_total <= s->opts.n_pages * CLIME_PAGE);
    follow(q, find_leader(s, q));
    s->held = false;
    wait_insert(s, q);
    if (q->share_prompt) alike_add(s, q);
}

/* ---- pages ------------------------------------------------------------------------------------------------- */

static void drop_pages(struct clime_sched *s, struct clime_seq *q) {
    while (q->n_pages > 0) clime_prefix_release(&s->prefix, q->pages[--q->n_pages]);
    q->n_kv = q->n_shared = 0;
    q->mixed = false;
}

static bool grow(struct clime_sched *s, struct clime_seq *q) {
    int32_t page = clime_prefix_take(&s->prefix, s->version);
    if (page < 0) return false;
    s->pages.mixed[page] = q->mixed;
    q->pages[q->n_pages++] = page;
    return true;
}

static void preempt_last(struct clime_sched *s) {
    struct clime_seq *q = s->running[--s->n_running];
    if (s->retracting) s->retracting(s->retracting_arg, q);
    drop_pages(s, q);
    q->n_retractions++;
    s->n_preempted++;
    wait_insert(s, q);
}

/* Gets pages for n_rows more rows, preempting later arrivals; returns how many rows fit. */
static int make_room(struct clime_sched *s, struct clime_seq *q, int n_rows) {
    while (q->n_pages < clime_pages_for(q->n_kv + n_rows)) {
        if (grow(s, q)) continue;
        if (s->running[s->n_running - 1] == q) break;
        preempt_last(s);
    }
    int fit = q->n_pages * CLIME_PAGE - q->n_kv;
    return n_rows < fit ? n_rows : fit;
}

/* ---- admission --------------------------------------------------------------------------------------------- */

/* Positions that cache or leader may supply: the last row, and rows that need log-probabilities, must run here. */
static int reusable(const struct clime_seq *q) {
    int n = q->n_total - 1;
    if (q->prompt_logp_next < q->n_prompt && q->prompt_logp_next - 1 < n) n = q->prompt_logp_next - 1;
    return n < 0 ? 0 : n;
}

static bool may_fork(const struct clime_sched *s, const struct clime_seq *leader) {
    if (leader->state != CLIME_SEQ_RUNNING || leader->n_kv < leader->n_prompt || leader->mixed) return false;
    for (int i = 0; i < clime_pages_for(leader->n_prompt); i++)
        if (s->pages.mixed[leader->pages[i]] || s->pages.version[leader->pages[i]] != s->version) return false;
    return true;
}

/* Shares the leader's whole prompt pages and copies the last, partly filled one. */
static void fork_pages(struct clime_sched *s, struct clime_step_plan *plan, struct clime_seq *q) {
    const struct clime_seq *leader = q->leader;
    int n_kv = reusable(q), n_full = n_kv / CLIME_PAGE;
    for (int i = 0; i < n_full; i++) {
        clime_pages_ref(&s->pages, leader->pages[i]);
        q->pages[i] = leader->pages[i];
    }
    q->n_pages = n_full;
    q->n_kv = n_full * CLIME_PAGE;
    q->n_shared = leader->n_shared < n_full ? leader->n_shared : n_full;
    q->epoch = leader->epoch;
    if (n_kv > q->n_kv && grow(s, q)) {
        plan->copies[plan->n_copies++] = (struct clime_page_copy){leader->pages[n_full], q->pages[n_full]};
        q->n_kv = n_kv;
    }
}

/* Attaches pages already computed: the leader's, or the cache's. */
static void attach_pages(struct clime_sched *s, struct clime_step_plan *plan, struct clime_seq *q) {
    q->epoch = s->prefix.epoch;
    if (q->leader && may_fork(s, q->leader)) {
        fork_pages(s, plan, q);
        return;
    }
    q->n_pages = q->n_shared = clime_prefix_find(&s->prefix, q->salt, q->ids, reusable(q) / CLIME_PAGE, q->pages);
    q->n_kv = q->n_pages * CLIME_PAGE;
}

static void detach_pages(struct clime_sched *s, struct clime_step_plan *plan, struct clime_seq *q) {
    if (plan->n_copies > 0 && q->n_pages > 0 && plan->copies[plan->n_copies - 1].to == q->pages[q->n_pages - 1])
        plan->n_copies--;
    drop_pages(s, q);
}

static bool leader_is_busy(const struct clime_seq *q) {
    const struct clime_seq *l = q->leader;
    return l && (l->state == CLIME_SEQ_WAITING || l->n_kv < l->n_prompt);
}

/* Pages that running sequences still need for their known tokens and one more position. */
static int pages_owed(const struct clime_sched *s) {
    int n = 0;
    for (int i = 0; i < s->n_running; i++) {
        int need = clime_pages_for(s->running[i]->n_total + 1) - s->running[i]->n_pages;
        if (need > 0) n += need;
    }
    return n;
}

static void running_insert(struct clime_sched *s, struct clime_seq *q) {
    int i = s->n_running++;
    for (; i > 0 && s->running[i - 1]->arrival > q->arrival; i--) s->running[i] = s->running[i - 1];
    s->running[i] = q;
    q->state = CLIME_SEQ_RUNNING;
}

static void start(struct clime_sched *s, struct clime_seq *q) {
    wait_remove(s, q);
    running_insert(s, q);
    follow(q, NULL);
    if (q->admitted) return;
    q->admitted = true;
    q->cached_tokens = q->n_kv;
    s->n_prompt_tokens += q->n_prompt;
    s->n_hit_tokens += q->n_kv;
}

static void add_item(struct clime_step_plan *plan, struct clime_seq *q, int n_rows) {
    plan->items[plan->n_items++] =
        (struct clime_step_item){.seq = q,
                                 .first = q->n_kv,
                                 .n_rows = n_rows,
                                 .sample = q->n_kv + n_rows == q->n_total && q->n_total < q->max_total};
    plan->T += n_rows;
}

static void empty(struct clime_step_plan *plan, bool ahead) {
    plan->n_items = plan->n_copies = plan->T = 0;
    plan->ahead = ahead;
}

static void admit(struct clime_sched *s, struct clime_step_plan *plan, int budget) {
    int owed = pages_owed(s);
    bool all_seen = true; /* no sequence before q waits for a busy leader */
    s->held = false;
    for (struct clime_seq *q = s->first, *next; q && budget > 0 && s->n_running < s->opts.max_running; q = next) {
        next = q->next;
        if (q->arrival >= s->closed_from) break; /* the list is in order of arrival */
        if (leader_is_busy(q)) {
            all_seen = false;
            continue;
        }
        attach_pages(s, plan, q);
        int need = clime_pages_for(q->n_total + 1) - q->n_pages;
        if (s->n_running > 0 && need + owed > clime_prefix_available(&s->prefix)) {
            detach_pages(s, plan, q);
            s->held = all_seen;
            return; /* the rest wait too: first come, first served */
        }
        start(s, q);
        int rows = q->n_total - q->n_kv;
        rows = make_room(s, q, rows < budget ? rows : budget);
        int owe = clime_pages_for(q->n_total + 1) - q->n_pages;
        owed += owe > 0 ? owe : 0;
        if (rows == 0) continue;
        add_item(plan, q, rows);
        budget -= rows;
    }
    s->held = s->n_running == s->opts.max_running;
}

int clime_sched_n_let_in(const struct clime_sched *s) {
    int n = s->n_running;
    for (const struct clime_seq *q = s->first; q && q->arrival < s->closed_from; q = q->next) n++;
    return n;
}

bool clime_sched_has_work(const struct clime_sched *s) {
    return s->n_running > 0 || (s->first && s->first->arrival < s->closed_from);
}

static int by_arrival(const void *a, const void *b) {
    int64_t x = ((const struct clime_step_item *)a)->seq->arrival,
            y = ((const struct clime_step_item *)b)->seq->arrival;
    return (x > y) - (x < y);
}

void clime_sched_plan(struct clime_sched *s, struct clime_step_plan *plan) {
    int budget = s->opts.chunk;
    empty(plan, false);
    for (int i = 0; i < s->n_running; i++) { /* n_running may shrink: the last ones are preempted */
        struct clime_seq *q = s->running[i];
        int want = q->n_total - q->n_kv;
        bool decode = want == 1;
        if (!decode && want > budget) want = budget;
        int rows = want > 0 ? make_room(s, q, want) : 0;
        if (rows == 0) continue;
        add_item(plan, q, rows);
        if (!decode) budget -= rows;
    }
    admit(s, plan, budget);
    if (plan->n_items > 1) qsort(plan->items, (size_t)plan->n_items, sizeof *plan->items, by_arrival);
}

int clime_sched_guess(struct clime_sched *s, struct clime_step_plan *plan, struct clime_step_item *item, int n) {
    struct clime_seq *q = item->seq;
    int most = q->max_total - 1 - q->n_total; /* the last token is never an input */
    CHECK(item->n_rows == 1 && item->sample && item->n_guesses == 0);
    if (n > most) n = most;
    while (q->n_pages < clime_pages_for(q->n_total + n) && s->pages.n_free > 0 && grow(s, q)) continue;
    int fit = q->n_pages * CLIME_PAGE - q->n_total;
    if (n > fit) n = fit;
    item->n_rows += n;
    item->n_guesses = n;
    plan->T += n;
    return n;
}

/* Gets pages for the token that q gains in the running step. */
static bool goes_on(struct clime_sched *s, struct clime_seq *q) {
    while (q->n_pages < clime_pages_for(q->n_total + 1))
        if (!grow(s, q)) return false;
    return true;
}

bool clime_sched_plan_ahead(struct clime_sched *s, const struct clime_step_plan *now, struct clime_step_plan *next) {
    int n_live = 0;
    empty(next, true);
    if (s->n_waiting > 0 && !s->held) return false;
    for (int i = 0; i < now->n_items; i++) {
        struct clime_seq *q = now->items[i].seq;
        if (!q) continue; /* ended; its row is wasted */
        n_live++;
        if (!now->items[i].sample || q->prompt_logp_next < q->n_prompt) return false;
        if (now->items[i].n_guesses > 0) return false; /* how many are right is not known */
        if (q->n_total + 1 == q->max_total) continue;  /* ends with the token being drawn */
        if (!goes_on(s, q)) return false;
        next->items[next->n_items++] =
            (struct clime_step_item){.seq = q, .first = q->n_total, .n_rows = 1, .sample = true, .from = i};
    }
    next->T = next->n_items;
    return next->n_items > 0 && n_live == s->n_running;
}

/* ---- after a step ------------------------------------------------------------------------------------------ */

static void publish_pages(struct clime_sched *s, struct clime_seq *q) {
    if (!s->prefix.on || q->epoch != s->prefix.epoch) return;
    for (; q->n_shared < q->n_kv / CLIME_PAGE; q->n_shared++) {
        int i = q->n_shared;
        if (s->pages.mixed[q->pages[i]]) return;
        int32_t page = clime_prefix_insert(&s->prefix, q->salt, i > 0 ? q->pages[i - 1] : -1,
                                           q->ids + (size_t)i * CLIME_PAGE, q->pages[i]);
        if (page != q->pages[i]) s->held = false; /* q's own page was freed */
        q->pages[i] = page;
    }
}

/* Drops the rows of wrong guesses and the pages that only they needed. */
static void roll_back(struct clime_sched *s, struct clime_seq *q, const struct clime_step_item *item) {
    CHECK(item->n_right >= 0 && item->n_right <= item->n_guesses);
    q->n_kv -= item->n_guesses - item->n_right;
    q->n_total += item->n_right;
    while (q->n_pages > clime_pages_for(q->n_total + 1)) clime_prefix_release(&s->prefix, q->pages[--q->n_pages]);
}

void clime_sched_done(struct clime_sched *s, const struct clime_step_plan *plan) {
    for (int i = 0; i < plan->n_items; i++) {
        struct clime_seq *q = plan->items[i].seq;
        if (!q) continue; /* ended after it was planned ahead */
        CHECK(q->n_kv == plan->items[i].first);
        q->n_kv += plan->items[i].n_rows;
        if (plan->items[i].n_guesses > 0) roll_back(s, q, &plan->items[i]);
        CHECK(q->n_kv <= q->n_total && q->n_kv <= q->n_pages * CLIME_PAGE);
        publish_pages(s, q);
    }
}

void clime_sched_remove(struct clime_sched *s, struct clime_seq *q) {
    if (q->state == CLIME_SEQ_RUNNING) {
        int i = 0;
        while (s->running[i] != q) i++;
        for (s->n_running--; i < s->n_running; i++) s->running[i] = s->running[i + 1];
        drop_pages(s, q);
    } else {
        CHECK(q->state == CLIME_SEQ_WAITING && q->n_pages == 0);
        wait_remove(s, q);
    }
    q->state = CLIME_SEQ_GONE;
    s->held = false;
    follow(q, NULL);
    if (!q->share_prompt) return; /* it leads none */
    alike_remove(s, q);
    /* The first of its followers takes its place. */
    struct clime_seq *heir = NULL;
    for (struct clime_seq *w = *bucket_of(s, q); w; w = w->alike_next)
        if (w->leader == q && (!heir || w->arrival < heir->arrival)) heir = w;
    if (heir) follow(heir, NULL);
    for (struct clime_seq *w = *bucket_of(s, q); w && q->n_followers > 0; w = w->alike_next)
        if (w->leader == q) follow(w, heir);
}

void clime_sched_retract_all(struct clime_sched *s) {
    while (s->n_running > 0) preempt_last(s);
}

void clime_sched_flush(struct clime_sched *s) {
    clime_prefix_clear(&s->prefix);
}

void clime_sched_new_version(struct clime_sched *s, bool keep) {
    if (!keep) clime_sched_retract_all(s);
    clime_prefix_clear(&s->prefix);
    s->version++;
    for (int i = 0; i < s->n_running; i++) {
        struct clime_seq *q = s->running[i];
        q->mixed = q->n_kv > 0;
        for (int p = q->n_kv / CLIME_PAGE; q->mixed && p < q->n_pages; p++) s->pages.mixed[q->pages[p]] = true;
    }
}

int clime_sched_used_tokens(const struct clime_sched *s) {
    return (s->pages.n - s->pages.n_free) * CLIME_PAGE;
}
