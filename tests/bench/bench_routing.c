/* Routing on a real trace, in simulated time: which policy finds the most cached prefixes, how even it loads the
 * workers, and what that does to the time to the first token.
 *
 *   bench_routing TRACE.jsonl N_WORKERS CACHE_BLOCKS PREFILL_TOKENS_PER_S
 *
 * TRACE: lines {"timestamp" (ms), "input_length", "output_length", "hash_ids"} (Mooncake's), where equal ids are equal
 * blocks of 512 tokens with equal beginnings. A worker holds CACHE_BLOCKS blocks (least recently used ones go),
 * prefills one prompt after another at the given rate, leaving out the leading blocks that it holds, and then decodes
 * at 40 tokens a second beside all others. Workers say what they hold, answers are streams and prompts are known by
 * their ids, but where it says otherwise. The policies are the router's own code (clime_workers_pick), which knows of a
 * worker what it says and what it was sent. Beside them stands cache_aware as sglang-router describes it, with that
 * router's defaults (threshold 0.3, balance 64 and 1.5): imbalanced, the shortest queue; else the best prefix match
 * over the threshold; else the smallest tree. And one worker as large and fast as all together, which has nothing to
 * choose. */
#include <stdio.h>
#include <stdlib.h>

#include "common/arena.h"
#include "common/buf.h"
#include "common/hash.h"
#include "common/json/scan.h"
#include "common/log.h"
#include "router/policy/policy.h"
#include "router/workers.h"

enum { BLOCK = 512, PAGES_A_BLOCK = BLOCK / 64, MAX_WORKERS = 64, DECODE_PER_S = 40, TEXT_PAGE = 256 };

struct request {
    double at_s;
    int64_t input, output;
    int *blocks, n_blocks;
};

struct trace {
    struct request *rq;
    int n, n_ids;
};

/* ---- the trace ---- */

static bool read_request(struct clime_str line, struct clime_arena *arena, struct request *r) {
    struct clime_error e;
    struct clime_json j;
    struct clime_str key;
    double ms = 0;
    int64_t id;
    *r = (struct request){.blocks = xmalloc(line.len * sizeof(int))};
    clime_json_init(&j, line.ptr, line.len, arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "timestamp"))
            clime_json_double(&j, &ms);
        else if (clime_str_is(key, "input_length"))
            clime_json_int(&j, 1, 1 << 24, &r->input);
        else if (clime_str_is(key, "output_length"))
            clime_json_int(&j, 0, 1 << 24, &r->output);
        else if (clime_str_is(key, "hash_ids"))
            for (clime_json_array(&j); clime_json_item(&j) && clime_json_int(&j, 0, 1 << 24, &id);)
                r->blocks[r->n_blocks++] = (int)id;
        else
            clime_json_skip(&j, NULL);
    }
    r->at_s = ms / 1000;
    return clime_json_end(&j);
}

static void read_trace(const char *path, struct trace *t) {
    struct clime_buf text;
    struct clime_error e;
    struct clime_arena arena;
    clime_buf_init(&text, (size_t)1 << 30);
    if (clime_buf_read_file(&text, path, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    clime_arena_init(&arena, 1 << 24);
    *t = (struct trace){.rq = xcalloc(text.len / 32 + 1, sizeof *t->rq)};
    for (size_t at = 0, end; at < text.len; at = end + 1) {
        const char *nl = memchr(text.data + at, '\n', text.len - at);
        end = nl ? (size_t)(nl - text.data) : text.len;
        if (!read_request((struct clime_str){text.data + at, end - at}, &arena, &t->rq[t->n])) continue;
        for (int i = 0; i < t->rq[t->n].n_blocks; i++)
            if (t->rq[t->n].blocks[i] >= t->n_ids) t->n_ids = t->rq[t->n].blocks[i] + 1;
        t->n++;
    }
    clime_arena_free(&arena);
    clime_buf_free(&text);
}

/* ---- a worker's cache: blocks in order of use ---- */

struct cache {
    int *next, *prev; /* [n_ids + 1]; the last is the list's head; -1 = not held */
    int head, n, room;
};

static void cache_open(struct cache *c, int n_ids, int room) {
    *c = (struct cache){.head = n_ids, .room = room};
    c->next = xmalloc((size_t)(n_ids + 1) * sizeof(int));
    c->prev = xmalloc((size_t)(n_ids + 1) * sizeof(int));
    for (int i = 0; i < n_ids; i++) c->next[i] = -1;
    c->next[n_ids] = c->prev[n_ids] = n_ids;
}

static void unlink_block(struct cache *c, int b) {
    c->next[c->prev[b]] = c->next[b];
    c->prev[c->next[b]] = c->prev[b];
    c->next[b] = -1;
    c->n--;
}

static void use_block(struct cache *c, int b) {
    if (c->next[b] >= 0) unlink_block(c, b);
    c->next[b] = c->next[c->head];
    c->prev[b] = c->head;
    c->prev[c->next[b]] = b;
    c->next[c->head] = b;
    c->n++;
    if (c->n > c->room) unlink_block(c, c->prev[c->head]);
}

/* ---- cache_aware, as described ---- */

struct cache_aware {
    uint64_t *owners; /* [n_ids] bit: the worker's tree has the block */
    int64_t tree[MAX_WORKERS];
    int in_flight[MAX_WORKERS];
};

static int pick_cache_aware(struct cache_aware *a, const struct request *r, int n) {
    int min = 0, max = 0, smallest = 0, matched = 0, best = -1;
    for (int i = 1; i < n; i++) {
        if (a->in_flight[i] < a->in_flight[min]) min = i;
        if (a->in_flight[i] > a->in_flight[max]) max = i;
        if (a->tree[i] < a->tree[smallest]) smallest = i;
    }
    for (int k = 0; k < r->n_blocks && a->owners[r->blocks[k]]; k++) {
        best = __builtin_ctzll(a->owners[r->blocks[k]]);
        matched = k + 1;
    }
    bool imbalanced = a->in_flight[max] - a->in_flight[min] > 64 && a->in_flight[max] > 1.5 * a->in_flight[min];
    int at = imbalanced ? min : best >= 0 && matched > 0.3 * r->n_blocks ? best : smallest;
    for (int k = 0; k < r->n_blocks; k++) {
        uint64_t *o = &a->owners[r->blocks[k]];
        if (!(*o >> at & 1)) a->tree[at]++;
        *o |= (uint64_t)1 << at;
    }
    return at;
}

/* ---- a run ---- */

struct flight { /* a request; a heap by what happens next: its first token, or its end */
    double next_s, end_s;
    bool began;
    int worker;
    struct clime_lease lease;
};

struct heap {
    struct flight *at;
    int n;
};

static void heap_push(struct heap *h, struct flight f) {
    int i = h->n++;
    for (; i > 0 && h->at[(i - 1) / 2].next_s > f.next_s; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = f;
}

static struct flight heap_pop(struct heap *h) {
    struct flight first = h->at[0], last = h->at[--h->n];
    int i = 0;
    for (int k; (k = 2 * i + 1) < h->n; i = k) {
        if (k + 1 < h->n && h->at[k + 1].next_s < h->at[k].next_s) k++;
        if (last.next_s <= h->at[k].next_s) break;
        h->at[i] = h->at[k];
    }
    h->at[i] = last;
    return first;
}

/* As clime_route_request_read has them of ids. */
static void pages_of(const struct request *r, struct clime_route_request *rq) {
    for (int64_t page = 1; page <= r->input / CLIME_ROUTE_PAGE_TOKENS && rq->n_pages < CLIME_ROUTE_PAGES;
         page = clime_route_next_page(page)) {
        const uint64_t words[] = {(uint64_t)r->blocks[(page - 1) / PAGES_A_BLOCK], (uint64_t)page};
        rq->pages[rq->n_pages++] = clime_hash64(words, 2);
    }
}

/* And of the same prompt as a text: marks lie at so many bytes, and a token has two and a half to five and a half, by
 * its block. */
static void text_pages_of(const struct request *r, struct clime_route_request *rq) {
    double begin = 0; /* of the block, in bytes */
    int64_t page = 1;
    for (int b = 0; b < r->n_blocks; b++) {
        const uint64_t id = (uint64_t)r->blocks[b];
        int64_t n_tokens = b < r->n_blocks - 1 ? BLOCK : r->input - (int64_t)b * BLOCK;
        double bytes = (double)n_tokens * (2.5 + 3 * (double)(clime_hash64(&id, 1) % 1000) / 999);
        for (; (double)page * TEXT_PAGE <= begin + bytes && rq->n_pages < CLIME_ROUTE_PAGES;
             page = clime_route_next_page(page)) {
            const uint64_t words[] = {id, (uint64_t)page};
            rq->pages[rq->n_pages++] = clime_hash64(words, 2);
        }
        begin += bytes;
    }
}

static struct clime_workers *make_fleet(const struct clime_policy *policy, int n, int64_t capacity) {
    struct clime_workers_options o = {
        .fail_threshold = 3, .ok_threshold = 1, .policy = policy, .session_ttl_us = (int64_t)7200e6, .slack = 2};
    struct clime_workers *w = clime_workers_new(&o);
    for (int i = 0; i < n; i++) {
        char url[64];
        int64_t id;
        snprintf(url, sizeof url, "http://worker-%d:8000", i);
        clime_workers_add(w, clime_str_of(url), 0, &id, NULL);
        clime_workers_probed(w, id, true, "");
        clime_workers_set_capacity(w, id, capacity);
    }
    return w;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef void pages_fn(const struct request *r, struct clime_route_request *rq);

struct way {
    const char *name;
    const struct clime_policy *policy; /* NULL = cache_aware */
    pages_fn *pages;
    bool no_streams; /* the router sees the first token with the whole answer */
    bool no_word;    /* of what a worker holds */
};

static void run(const struct trace *t, const struct way *way, int n, int room, double rate) {
    static const uint64_t none[CLIME_WORKERS_MAX / 64];
    struct clime_workers *w =
        way->policy ? make_fleet(way->policy, n, way->no_word ? -1 : (int64_t)room * BLOCK) : NULL;
    struct cache_aware a = {.owners = xcalloc((size_t)t->n_ids, sizeof *a.owners)};
    struct cache cache[MAX_WORKERS];
    struct heap h = {.at = xcalloc((size_t)t->n + 1, sizeof *h.at)};
    double free_s[MAX_WORKERS] = {0}, work[MAX_WORKERS] = {0}, most = 0, sum = 0, hit = 0, all = 0;
    double *first = xmalloc((size_t)t->n * sizeof *first);
    for (int i = 0; i < n; i++) cache_open(&cache[i], t->n_ids, room);
    for (int i = 0; i < t->n; i++) {
        const struct request *r = &t->rq[i];
        struct flight f = {0};
        while (h.n && h.at[0].next_s <= r->at_s) {
            f = heap_pop(&h);
            if (!f.began) {
                if (w && !way->no_streams) clime_workers_began(w, &f.lease);
                f.began = true;
                f.next_s = f.end_s;
                heap_push(&h, f);
                continue;
            }
            a.in_flight[f.worker]--;
            if (w) clime_workers_release(w, &f.lease, CLIME_OUTCOME_SERVED);
        }
        if (w) {
            struct clime_route_request rq = {
                .cost = r->input + r->output + 1, .output = r->output + 1, .prompt = r->input};
            struct clime_error e;
            way->pages(r, &rq);
            CHECK(!clime_workers_pick(w, &rq, none, &f.lease, &e));
        }
        int k = f.worker = w ? f.lease.slot : pick_cache_aware(&a, r, n), held = 0;
        while (held < r->n_blocks && cache[k].next[r->blocks[held]] >= 0) held++;
        for (int b = r->n_blocks - 1; b >= 0; b--) use_block(&cache[k], r->blocks[b]); /* its end goes first */
        double known = (double)held * BLOCK < (double)r->input ? (double)held * BLOCK : (double)r->input - 1;
        double left = (double)r->input - known, begin = free_s[k] > r->at_s ? free_s[k] : r->at_s;
        free_s[k] = begin + left / rate;
        first[i] = free_s[k] - r->at_s;
        f.next_s = free_s[k];
        f.end_s = free_s[k] + (double)r->output / DECODE_PER_S;
        f.began = false;
        a.in_flight[k]++;
        heap_push(&h, f);
        work[k] += left;
        hit += known;
        all += (double)r->input;
    }
    for (int i = 0; i < n; i++) {
        most = work[i] > most ? work[i] : most;
        sum += work[i];
        free(cache[i].next);
        free(cache[i].prev);
    }
    qsort(first, (size_t)t->n, sizeof *first, by_size);
    printf("| %d | %s | %.1f %% | %.2f | %.2f | %.1f |\n", n, way->name, 100 * hit / all, most * n / sum,
           first[t->n / 2], first[(int)((double)t->n * 0.99)]);
    while (h.n) {
        struct flight f = heap_pop(&h);
        if (w) clime_workers_release(w, &f.lease, CLIME_OUTCOME_SERVED);
    }
    clime_workers_free(w);
    free(a.owners);
    free(h.at);
    free(first);
}

int main(int argc, char **argv) {
    struct trace t;
    if (argc != 5 || (int)strtol(argv[2], NULL, 10) < 1 || (int)strtol(argv[2], NULL, 10) > MAX_WORKERS ||
        (int)strtol(argv[3], NULL, 10) < 1 || strtod(argv[4], NULL) <= 0) {
        fprintf(stderr, "bench_routing TRACE.jsonl N_WORKERS CACHE_BLOCKS PREFILL_TOKENS_PER_S\n");
        return 2;
    }
    clime_log_open("bench", CLIME_LOG_ERROR);
    read_trace(argv[1], &t);
    printf("%d requests over %.0f s\n", t.n, t.rq[t.n - 1].at_s);
    printf("| workers | policy | prompt tokens found in a cache | most work over mean | first token, s, p50 | p99 |\n");
    printf("| --- | --- | --- | --- | --- | --- |\n");
    int n = (int)strtol(argv[2], NULL, 10), room = (int)strtol(argv[3], NULL, 10);
    double rate = strtod(argv[4], NULL);
    for (int i = 0; i < 6; i++)
        run(&t, &(struct way){clime_policies[i]->name, clime_policies[i], pages_of}, n, room, rate);
    const struct clime_policy *prefix = &clime_policy_prefix;
    run(&t, &(struct way){"prefix, as texts", prefix, text_pages_of}, n, room, rate);
    run(&t, &(struct way){"prefix, no streams", prefix, pages_of, .no_streams = true}, n, room, rate);
    run(&t, &(struct way){"prefix, workers do not say what they hold", prefix, pages_of, .no_word = true}, n, room,
        rate);
    run(&t, &(struct way){"cache_aware (as described)", NULL, NULL}, n, room, rate);
    run(&t, &(struct way){"one worker for all", prefix, pages_of}, 1, n * room, n * rate);
    return 0;
}
