/* The scheduler under random work, with a naive model in place of the real one.
 *
 * The naive "KV" of a position is a hash of all tokens up to it and of the weights' version. Each row that runs checks
 * that every earlier position of its sequence reads back what belongs there, through the page table, and writes its
 * own; the next token is drawn from what was read. So a wrong page, a stale version, a lost copy or a missed
 * recomputation shows as a wrong hash. Rows of guessed tokens, right and wrong ones, run among the others. After every
 * operation clime_sched_check recounts the books.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/hash.h"
#include "common/rng.h"
#include "kernels/kernels.h"
#include "server/schedule/scheduler.h"

#define MAX_LEN 400
#define MAX_SEQS 64

struct naive {
    struct clime_sched sched;
    struct clime_step_plan plan, next;
    bool overlap;
    bool ahead;                /* next has been planned and is to run */
    int ahead_slots[MAX_SEQS]; /* where its rows write, as the page tables were when it was planned */
    int n_ahead, n_in_vain;
    bool guess;
    int n_right, n_wrong; /* guesses */
    struct clime_rng rng;
    uint64_t *slots; /* [n_pages * CLIME_PAGE] the naive KV memory */
    struct clime_seq *seqs[MAX_SEQS];
    uint64_t *kv[MAX_SEQS]; /* what each position of the sequence must read back */
    int max_new[MAX_SEQS];
    int64_t next_id;
    int n_done;
};

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t words[2] = {a, b};
    return clime_hash64(words, 2);
}

static uint64_t kv_value(const struct clime_seq *q, int p, uint64_t version) {
    uint64_t h = 0;
    for (int i = 0; i <= p; i++) h = mix(h, (uint64_t)q->ids[i]);
    return mix(h, version);
}

static uint64_t *slot_of(struct naive *m, const struct clime_seq *q, int p) {
    return &m->slots[q->pages[p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE];
}

static int index_of(const struct naive *m, const struct clime_seq *q) {
    for (int i = 0; i < MAX_SEQS; i++)
        if (m->seqs[i] == q) return i;
    fail();
    return -1;
}

static void add_seq(struct naive *m, const int32_t *prompt, int n_prompt, int max_new, uint64_t salt) {
    int i = 0;
    while (i < MAX_SEQS && m->seqs[i]) i++;
    if (i == MAX_SEQS) return;
    struct clime_seq *q = xcalloc(1, sizeof *q);
    q->id = q->arrival = m->next_id++;
    q->n_prompt = q->n_total = n_prompt;
    q->max_total = n_prompt + max_new;
    q->ids = xmalloc((size_t)q->max_total * sizeof *q->ids);
    memcpy(q->ids, prompt, (size_t)n_prompt * sizeof *prompt);
    q->pages = xmalloc((size_t)clime_pages_for(q->max_total) * sizeof *q->pages);
    q->salt = salt;
    q->prompt_hash = clime_hash_bytes(prompt, (size_t)n_prompt * sizeof *prompt, salt);
    q->prompt_logp_next = n_prompt;
    if (clime_rng_below(&m->rng, 8) == 0) q->prompt_logp_next = 1 + (int)clime_rng_below(&m->rng, (uint64_t)n_prompt);
    q->share_prompt = q->prompt_logp_next == n_prompt;
    m->seqs[i] = q;
    m->kv[i] = xcalloc((size_t)q->max_total, sizeof *m->kv[i]);
    m->max_new[i] = max_new;
    clime_sched_add(&m->sched, q);
}

static void drop_seq(struct naive *m, int i) {
    clime_sched_remove(&m->sched, m->seqs[i]);
    free(m->seqs[i]->ids);
    free(m->seqs[i]->pages);
    free(m->seqs[i]);
    free(m->kv[i]);
    m->seqs[i] = NULL;
    m->n_done++;
}

/* The rows of a plan that was made now. */
static void run_rows(struct naive *m, const int *n_kv_before) {
    int prefill = 0;
    for (int i = 0; i < m->plan.n_copies; i++)
        memcpy(&m->slots[m->plan.copies[i].to * CLIME_PAGE], &m->slots[m->plan.copies[i].from * CLIME_PAGE],
               CLIME_PAGE * sizeof *m->slots);
    for (int k = 0; k < m->plan.n_items; k++) {
        struct clime_seq *q = m->plan.items[k].seq;
        int i = index_of(m, q), end = q->n_kv + m->plan.items[k].n_rows, known = end - m->plan.items[k].n_guesses;
        if (n_kv_before[i] == 0) /* what came from the cache or a leader belongs to the present weights */
            for (int p = 0; p < q->n_kv; p++) m->kv[i][p] = kv_value(q, p, m->sched.version);
        assert_true(k == 0 || m->plan.items[k - 1].seq->arrival < q->arrival);
        assert_int_equal(m->plan.items[k].first, q->n_kv);
        assert_true(m->plan.items[k].sample == (known == q->n_total));
        if (q->prompt_logp_next < q->n_prompt) assert_true(q->n_kv < q->prompt_logp_next);
        if (known - q->n_kv > 1) prefill += known - q->n_kv;
        for (int p = 0; p < q->n_kv; p++) assert_int_equal(*slot_of(m, q, p), m->kv[i][p]);
        for (int p = q->n_kv; p < end; p++) {
            m->kv[i][p] = kv_value(q, p, m->sched.version);
            *slot_of(m, q, p) = m->kv[i][p];
        }
        if (q->prompt_logp_next < q->n_prompt) q->prompt_logp_next = end + 1 < q->n_prompt ? end + 1 : q->n_prompt;
    }
    assert_true(prefill <= m->sched.opts.chunk);
}

/* Those of a plan made ahead: after the results of the step before it, as its tokens must be known here, but at the
 * places that were right when it was planned, whoever owns them now. */
static void run_rows_ahead(struct naive *m) {
    for (int k = 0; k < m->plan.n_items; k++) {
        struct clime_seq *q = m->plan.items[k].seq;
        if (!q) {
            m->slots[m->ahead_slots[k]] = 0xbad;
            m->n_in_vain++;
            continue;
        }
        int i = index_of(m, q);
        assert_true(m->plan.items[k].first == q->n_kv && q->n_kv + 1 == q->n_total && q->n_total < q->max_total);
        for (int p = 0; p < q->n_kv; p++) assert_int_equal(*slot_of(m, q, p), m->kv[i][p]);
        m->slots[m->ahead_slots[k]] = m->kv[i][q->n_kv] = kv_value(q, q->n_kv, m->sched.version);
    }
}

static void plan_ahead(struct naive *m) {
    m->ahead = clime_sched_plan_ahead(&m->sched, &m->plan, &m->next);
    clime_sched_check(&m->sched);
    for (int k = 0; k < m->next.n_items && m->ahead; k++) {
        const struct clime_step_item *item = &m->next.items[k];
        assert_ptr_equal(m->plan.items[item->from].seq, item->seq);
        m->ahead_slots[k] = (int)(slot_of(m, item->seq, item->first) - m->slots);
    }
    m->n_ahead += m->ahead;
}

/* Ended by its token, perhaps with a step planned that it is part of. */
static void end_seq(struct naive *m, int i) {
    for (int k = 0; k < m->next.n_items && m->ahead; k++)
        if (m->next.items[k].seq == m->seqs[i]) m->next.items[k].seq = NULL;
    drop_seq(m, i);
}

static int32_t token_after(const struct naive *m, const struct clime_seq *q, int p) {
    return (int32_t)(m->kv[index_of(m, q)][p] % 5);
}

static bool ends_after(const struct naive *m, const struct clime_seq *q, int p) {
    return p + 2 == q->max_total || m->kv[index_of(m, q)][p] % 61 == 0;
}

/* Guesses for some of those that decode; most are what the draws will give. */
static void add_guesses(struct naive *m) {
    for (int k = 0; k < m->plan.n_items; k++) {
        struct clime_step_item *item = &m->plan.items[k];
        struct clime_seq *q = item->seq;
        int rows = m->plan.T, n_pages = q->n_pages, n_free = m->sched.pages.n_free;
        if (item->n_rows != 1 || !item->sample || clime_rng_below(&m->rng, 3) == 0) continue;
        int n = clime_sched_guess(&m->sched, &m->plan, item, 1 + (int)clime_rng_below(&m->rng, 90));
        assert_true(n == item->n_guesses && item->n_rows == 1 + n && m->plan.T == rows + n);
        assert_true(n >= 0 && q->n_total + n < q->max_total && q->n_pages - n_pages == n_free - m->sched.pages.n_free);
        for (int p = q->n_total; p < q->n_total + n; p++) {
            q->ids[p] = (int32_t)(kv_value(q, p - 1, m->sched.version) % 5); /* of the last row but for its version */
            if (clime_rng_below(&m->rng, 20) == 0) q->ids[p] = (q->ids[p] + 1) % 5;
        }
    }
    clime_sched_check(&m->sched);
}

static void confirm(struct naive *m, struct clime_step_item *item) {
    const struct clime_seq *q = item->seq;
    int n = 0;
    while (n < item->n_guesses && q->ids[q->n_total + n] == token_after(m, q, q->n_total - 1 + n) &&
           !ends_after(m, q, q->n_total - 1 + n))
        n++;
    item->n_right = n;
    m->n_right += n;
    m->n_wrong += item->n_guesses - n;
}

static void run_step(struct naive *m, bool may_overlap) {
    int n_kv_before[MAX_SEQS];
    for (int i = 0; i < MAX_SEQS; i++) n_kv_before[i] = m->seqs[i] ? m->seqs[i]->n_kv : 0;
    if (m->ahead) {
        struct clime_step_plan swap = m->plan;
        m->plan = m->next;
        m->next = swap;
        run_rows_ahead(m);
    } else {
        clime_sched_plan(&m->sched, &m->plan);
        clime_sched_check(&m->sched);
        assert_true(m->plan.n_items > 0 || m->sched.n_running + m->sched.n_waiting == 0); /* progress */
        if (m->guess && clime_rng_below(&m->rng, 3)) add_guesses(m);
        run_rows(m, n_kv_before);
    }
    m->ahead = false;
    if (may_overlap) plan_ahead(m);
    for (int k = 0; k < m->plan.n_items; k++)
        if (m->plan.items[k].n_guesses > 0) confirm(m, &m->plan.items[k]);
    clime_sched_done(&m->sched, &m->plan);
    clime_sched_check(&m->sched);
    for (int k = 0; k < m->plan.n_items; k++) {
        struct clime_seq *q = m->plan.items[k].seq;
        if (!q || !m->plan.items[k].sample) continue;
        int last = q->n_kv - 1;
        q->ids[q->n_total++] = token_after(m, q, last);
        if (ends_after(m, q, last)) end_seq(m, index_of(m, q));
    }
    clime_sched_check(&m->sched);
}

/* What needs a whole number of steps comes after this. */
static void settle(struct naive *m) {
    if (m->ahead) run_step(m, false);
}

/* Prompts come from a few stems, so that they share pages. */
static void add_random(struct naive *m) {
    int32_t prompt[MAX_LEN];
    int stem = (int)clime_rng_below(&m->rng, 3), n = 1 + (int)clime_rng_below(&m->rng, 200);
    for (int i = 0; i < n; i++) prompt[i] = (stem * 7 + i * i) % 11;
    if (clime_rng_below(&m->rng, 2)) prompt[n - 1] = (int32_t)clime_rng_below(&m->rng, 1000);
    int members = clime_rng_below(&m->rng, 3) == 0 ? 4 : 1;
    uint64_t salt = clime_rng_below(&m->rng, 4) == 0;
    for (int i = 0; i < members; i++) add_seq(m, prompt, n, 1 + (int)clime_rng_below(&m->rng, 120), salt);
}

static void random_operation(struct naive *m) {
    int i = (int)clime_rng_below(&m->rng, MAX_SEQS);
    int what = (int)clime_rng_below(&m->rng, 60);
    if (what < 7) settle(m);
    switch (what) {
    case 0:
        clime_sched_retract_all(&m->sched);
        break;
    case 1:
        clime_sched_new_version(&m->sched, false);
        break;
    case 2:
        clime_sched_new_version(&m->sched, true);
        break;
    case 3:
        if (m->sched.n_running == 0) clime_sched_flush(&m->sched);
        break;
    case 4:
    case 5:
    case 6:
        if (m->seqs[i]) drop_seq(m, i);
        break;
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
        add_random(m);
        break;
    default:
        run_step(m, m->overlap && clime_rng_below(&m->rng, 8) > 0);
    }
    clime_sched_check(&m->sched);
}

static void open_naive(struct naive *m, const struct clime_sched_options *o, uint64_t seed) {
    clime_sched_init(&m->sched, o);
    clime_step_plan_init(&m->plan, o->max_running);
    clime_step_plan_init(&m->next, o->max_running);
    clime_rng_init(&m->rng, seed);
    m->slots = xcalloc((size_t)o->n_pages * CLIME_PAGE, sizeof *m->slots);
}

static void close_naive(struct naive *m) {
    clime_sched_flush(&m->sched);
    assert_int_equal(m->sched.pages.n_free, m->sched.opts.n_pages);
    clime_sched_free(&m->sched);
    clime_step_plan_free(&m->plan);
    clime_step_plan_free(&m->next);
    free(m->slots);
}

static void run_until_done(struct naive *m) {
    for (int step = 0; m->sched.n_running + m->sched.n_waiting > 0; step++) {
        assert_true(step < 100000);
        run_step(m, m->overlap);
    }
    settle(m);
}

static void run_random(const struct clime_sched_options *o, uint64_t seed, bool overlap, bool guess) {
    struct naive m = {.overlap = overlap, .guess = guess};
    open_naive(&m, o, seed);
    for (int step = 0; step < 1500; step++) random_operation(&m);
    run_until_done(&m);
    assert_true(m.n_done > 100);
    if (overlap) assert_true(guess ? m.n_ahead > 10 : m.n_ahead > 100 && m.n_in_vain > 10);
    if (guess) assert_true(m.n_right > 100 && m.n_wrong > 100);
    close_naive(&m);
}

static void test_random_work(void **state) {
    (void)state;
    static const struct clime_sched_options options[] = {
        {.max_running = 64, .chunk = 512, .n_pages = 512, .cache = true}, /* room for all */
        {.max_running = 64, .chunk = 100, .n_pages = 24, .cache = true},  /* eviction and preemption */
        {.max_running = 16, .chunk = 7, .n_pages = 8, .cache = true},     /* hardly room for one */
        {.max_running = 64, .chunk = 64, .n_pages = 30, .cache = false},  /* sharing by leaders alone */
        {.max_running = 1, .chunk = 1, .n_pages = 6, .cache = true},      /* one row at a time */
    };
    for (size_t i = 0; i < CLIME_COUNT(options); i++)
        for (uint64_t seed = 0; seed < 8; seed++) run_random(&options[i], seed, seed % 2, seed % 4 > 1);
}

/* A group of equal prompts computes the prompt once, and copies the last page. */
static void test_group_shares_its_prompt(void **state) {
    (void)state;
    for (int cache = 0; cache < 2; cache++) {
        struct naive m = {0};
        const struct clime_sched_options o = {.max_running = 16, .chunk = 1000, .n_pages = 100, .cache = cache};
        int32_t prompt[130];
        for (int i = 0; i < 130; i++) prompt[i] = i;
        open_naive(&m, &o, 5);
        struct clime_seq *members[8];
        for (int i = 0; i < 8; i++) {
            add_seq(&m, prompt, 130, 50, 0);
            members[i] = m.seqs[i];
            members[i]->prompt_logp_next = 130;
            members[i]->share_prompt = true;
        }
        for (int i = 1; i < 8; i++) {
            if (members[i]->leader) continue; /* with the random start of the log-probabilities that add_seq gives */
            members[i]->leader = members[0];
            members[0]->n_followers++;
        }
        run_step(&m, false);
        assert_int_equal(m.plan.T, 130);
        run_step(&m, false);
        assert_int_equal(m.plan.n_copies, 7);
        assert_int_equal(m.plan.T, 8);
        for (int i = 1; i < 8; i++) {
            assert_int_equal(members[i]->cached_tokens, 129);
            assert_int_equal(members[i]->pages[0], members[0]->pages[0]);
            assert_true(members[i]->pages[2] != members[0]->pages[2]);
        }
        run_until_done(&m);
        close_naive(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_work),
        cmocka_unit_test(test_group_shares_its_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
