/* The prefix cache. Called by the scheduler, engine thread only; owns the nodes, borrows the pages.
 *
 * Invariant: a cached page that a sequence holds is not idle, and all its ancestors are held by that sequence too.
 * Idle nodes form a list by last use. Since a sequence releases its last page first, a parent is always newer in that
 * list than its children, so the oldest idle node never has children and eviction is O(1) (clime_prefix_check
 * asserts it). A radix tree would share less memory per node, but pages are the unit of sharing anyway.
 */
#include "server/schedule/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/hash.h"
#include "kernels/kernels.h"

struct clime_prefix_node { /* index = page number */
    uint64_t key;          /* hash of ids, parent's key and salt */
    uint64_t salt;
    int32_t parent;       /* page number, -1 = first page of a prompt */
    int32_t next_in_hash; /* -1 = end */
    int32_t newer, older; /* idle list; -1 = end */
    int32_t n_children;
    bool cached, idle;
    int32_t ids[CLIME_PAGE];
};

void clime_prefix_init(struct clime_prefix *c, struct clime_pages *pages, bool on) {
    *c = (struct clime_prefix){.pages = pages, .on = on, .newest = -1, .oldest = -1, .n_buckets = 64};
    while (c->n_buckets < (uint32_t)pages->n) c->n_buckets *= 2;
    c->nodes = xcalloc((size_t)pages->n, sizeof *c->nodes);
    c->bucket = xmalloc(c->n_buckets * sizeof *c->bucket);
    for (uint32_t i = 0; i < c->n_buckets; i++) c->bucket[i] = -1;
}

void clime_prefix_free(struct clime_prefix *c) {
    free(c->nodes);
    free(c->bucket);
    *c = (struct clime_prefix){0};
}

int clime_prefix_available(const struct clime_prefix *c) {
    return c->pages->n_free + c->n_idle;
}

bool clime_prefix_holds(const struct clime_prefix *c, int32_t page) {
    return c->nodes[page].cached;
}

static void idle_add(struct clime_prefix *c, int32_t page) {
    struct clime_prefix_node *n = &c->nodes[page];
    CHECK(n->cached && !n->idle);
    n->idle = true;
    n->newer = -1;
    n->older = c->newest;
    if (c->newest >= 0) c->nodes[c->newest].newer = page;
    c->newest = page;
    if (c->oldest < 0) c->oldest = page;
    c->n_idle++;
}

static void idle_remove(struct clime_prefix *c, int32_t page) {
    struct clime_prefix_node *n = &c->nodes[page];
    CHECK(n->idle);
    if (n->newer >= 0)
        c->nodes[n->newer].older = n->older;
    else
        c->newest = n->older;
    if (n->older >= 0)
        c->nodes[n->older].newer = n->newer;
    else
        c->oldest = n->newer;
    n->idle = false;
    c->n_idle--;
}

/* Removes the node from the table; the caller drops the page's reference. */
static void forget(struct clime_prefix *c, int32_t page) {
    struct clime_prefix_node *n = &c->nodes[page];
    int32_t *at = &c->bucket[n->key & (c->n_buckets - 1)];
    while (*at != page) {
        CHECK(*at >= 0);
        at = &c->nodes[*at].next_in_hash;
    }
    *at = n->next_in_hash;
    if (n->idle) idle_remove(c, page);
    if (n->parent >= 0) c->nodes[n->parent].n_children--;
    n->cached = false;
    c->n_cached--;
}

int32_t clime_prefix_take(struct clime_prefix *c, uint64_t version) {
    if (c->pages->n_free == 0 && c->oldest >= 0) {
        int32_t victim = c->oldest;
        CHECK(c->nodes[victim].n_children == 0);
        forget(c, victim);
        clime_pages_unref(c->pages, victim);
        c->n_evicted++;
    }
    return clime_pages_take(c->pages, version);
}

void clime_prefix_release(struct clime_prefix *c, int32_t page) {
    clime_pages_unref(c->pages, page);
    if (c->nodes[page].cached && c->pages->refs[page] == 1) idle_add(c, page);
}

static uint64_t key_of(const struct clime_prefix *c, uint64_t salt, int32_t parent, const int32_t *ids) {
    uint64_t up = parent < 0 ? salt : c->nodes[parent].key;
    return clime_hash_bytes(ids, CLIME_PAGE * sizeof *ids, up);
}

static int32_t find_node(const struct clime_prefix *c, uint64_t key, uint64_t salt, int32_t parent,
                         const int32_t *ids) {
    for (int32_t i = c->bucket[key & (c->n_buckets - 1)]; i >= 0; i = c->nodes[i].next_in_hash) {
        const struct clime_prefix_node *n = &c->nodes[i];
        if (n->key == key && n->parent == parent && n->salt == salt && memcmp(n->ids, ids, sizeof n->ids) == 0)
            return i;
    }
    return -1;
}

static void hold(struct clime_prefix *c, int32_t page) {
    if (c->nodes[page].idle) idle_remove(c, page);
    clime_pages_ref(c->pages, page);
}

int clime_prefix_find(struct clime_prefix *c, uint64_t salt, const int32_t *ids, int n_max, int32_t *pages) {
    int n = 0;
    if (!c->on) return 0;
    for (int32_t parent = -1; n < n_max; n++, ids += CLIME_PAGE) {
        int32_t page = find_node(c, key_of(c, salt, parent, ids), salt, parent, ids);
        if (page < 0) break;
        hold(c, page);
        pages[n] = parent = page;
    }
    return n;
}

int32_t clime_prefix_insert(struct clime_prefix *c, uint64_t salt, int32_t parent, const int32_t *ids, int32_t page) {
    if (!c->on) return page;
    CHECK(parent < 0 || c->nodes[parent].cached);
    CHECK(!c->nodes[page].cached && !c->pages->mixed[page]);
    uint64_t key = key_of(c, salt, parent, ids);
    int32_t same = find_node(c, key, salt, parent, ids);
    if (same >= 0) {
        hold(c, same);
        clime_prefix_release(c, page);
        return same;
    }
    struct clime_prefix_node *n = &c->nodes[page];
    *n = (struct clime_prefix_node){
        .key = key, .salt = salt, .parent = parent, .cached = true, .newer = -1, .older = -1};
    memcpy(n->ids, ids, sizeof n->ids);
    n->next_in_hash = c->bucket[key & (c->n_buckets - 1)];
    c->bucket[key & (c->n_buckets - 1)] = page;
    if (parent >= 0) c->nodes[parent].n_children++;
    clime_pages_ref(c->pages, page);
    c->n_cached++;
    return page;
}

void clime_prefix_clear(struct clime_prefix *c) {
    for (int32_t i = 0; i < c->pages->n; i++) {
        if (!c->nodes[i].cached) continue;
        forget(c, i);
        clime_pages_unref(c->pages, i);
    }
    CHECK(c->n_cached == 0 && c->n_idle == 0);
    c->epoch++;
}

void clime_prefix_check(const struct clime_prefix *c) {
    int n_cached = 0, n_idle = 0, n_listed = 0;
    int32_t *children = xcalloc((size_t)c->pages->n, sizeof *children);
    for (int32_t i = 0; i < c->pages->n; i++) {
        const struct clime_prefix_node *n = &c->nodes[i];
        if (!n->cached) {
            CHECK(!n->idle);
            continue;
        }
        n_cached++;
        n_idle += n->idle;
        CHECK(c->pages->refs[i] >= 1 && !c->pages->mixed[i]);
        CHECK(n->idle == (c->pages->refs[i] == 1));
        CHECK(n->key == key_of(c, n->salt, n->parent, n->ids));
        CHECK(find_node(c, n->key, n->salt, n->parent, n->ids) == i);
        if (n->parent >= 0) {
            CHECK(c->nodes[n->parent].cached);
            children[n->parent]++;
        }
    }
    for (int32_t i = 0; i < c->pages->n; i++) CHECK(!c->nodes[i].cached || children[i] == c->nodes[i].n_children);
    for (int32_t i = c->oldest; i >= 0; i = c->nodes[i].newer, n_listed++) {
        CHECK(c->nodes[i].idle);
        /* everything older than i is visited: i's children must be among it */
        children[i] = -1 - children[i];
        if (c->nodes[i].parent >= 0 && c->nodes[c->nodes[i].parent].idle) CHECK(children[c->nodes[i].parent] >= 0);
    }
    CHECK(n_cached == c->n_cached && n_idle == c->n_idle && n_listed == c->n_idle);
    free(children);
}
