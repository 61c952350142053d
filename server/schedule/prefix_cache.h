/* The prefix cache: full KV pages, looked up by the tokens that lead to them.
 *
 * A cached page is a node: its 64 token ids, its parent node (the page before it, -1 for the first) and, through the
 * first page, the salt of the request. A look-up walks from the first page by hash and compares ids, parent and salt
 * in full, so a hit is never a collision. Nodes live in arrays indexed by page number; nothing is allocated after init.
 *
 * Versions: the whole cache belongs to one version of the weights. clime_prefix_clear empties it and begins a new
 * epoch; a sequence that began in an older epoch may not insert (it compares `epoch`).
 *
 * Owner: the engine thread. No locking.
 */
#ifndef CLIME_SERVER_SCHEDULE_PREFIX_CACHE_H
#define CLIME_SERVER_SCHEDULE_PREFIX_CACHE_H

#include "server/schedule/kv_pages.h"

struct clime_prefix_node;

struct clime_prefix {
    struct clime_pages *pages;
    bool on;                         /* off: look-ups miss and inserts do nothing */
    struct clime_prefix_node *nodes; /* [pages->n] */
    int32_t *bucket;                 /* [n_buckets] first node of a hash chain, -1 = none */
    uint32_t n_buckets;              /* a power of two */
    int32_t newest, oldest;          /* the idle nodes (only the cache holds them), by last use; -1 = none */
    int n_cached, n_idle;
    uint64_t epoch;
    uint64_t n_evicted;
};

void clime_prefix_init(struct clime_prefix *c, struct clime_pages *pages, bool on);
void clime_prefix_free(struct clime_prefix *c);

/* Pages that take() can still give: free ones and idle cached ones. */
int clime_prefix_available(const struct clime_prefix *c);

/* A page for a sequence to write: a free one, or the longest unused cached one; -1 when every page is held. */
int32_t clime_prefix_take(struct clime_prefix *c, uint64_t version);

/* Drops a sequence's reference. All releases go through here, so that the cache knows which pages are idle. Release a
 * sequence's pages from the last to the first: eviction relies on children being older than their parents. */
void clime_prefix_release(struct clime_prefix *c, int32_t page);

/* The longest cached run of whole pages of ids[0 .. n_max * CLIME_PAGE); takes a reference on each page found and
 * returns how many were put into pages[]. */
int clime_prefix_find(struct clime_prefix *c, uint64_t salt, const int32_t *ids, int n_max, int32_t *pages);

/* Offers a full page that follows `parent` (a cached page, or -1). Returns the page that now stands for this content:
 * the same one, or one cached before with equal content; then the offered page's reference is exchanged for one on that
 * page (equal tokens under equal weights give equal bits, docs/numerics.md). */
int32_t clime_prefix_insert(struct clime_prefix *c, uint64_t salt, int32_t parent, const int32_t *ids, int32_t page);

/* Empties the cache; pages held by sequences stay valid. */
void clime_prefix_clear(struct clime_prefix *c);

bool clime_prefix_holds(const struct clime_prefix *c, int32_t page);

/* Recounts every link and counter; aborts on the first that does not hold. For tests and debug builds. */
void clime_prefix_check(const struct clime_prefix *c);

#endif
