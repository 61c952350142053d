/* Iteration in chat templates: Python iterators and Jinja's loop object.
 *
 * Internal to text/template/. An iterator is lazy as Python's generators are: `items|map("upper")|first` looks at
 * one item, and a filtered for loop tests each item at its turn, so it sees the body's changes.
 */
#ifndef CLIME_TEXT_TEMPLATE_VALUE_ITER_H
#define CLIME_TEXT_TEMPLATE_VALUE_ITER_H

#include "text/template/value/value.h"

struct clime_titer {
    /* The next item into *out, false at the end (and ever after). Fails where Python raises. */
    bool (*next)(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out);
    struct clime_tv src;
    size_t pos; /* STR: byte offset; otherwise item number */
};

struct clime_tloop {
    struct clime_tv iterable;
    struct clime_titer *it;
    int64_t index0;                      /* -1 before the first item */
    int64_t length;                      /* -1 until queried */
    struct clime_tv current, before;     /* MISSING where there is none */
    struct clime_tv after;               /* an item already taken from it, or MISSING */
    struct clime_tv changed;             /* arguments of the last loop.changed() */
    int depth0;                          /* of recursive loops */
    const struct clime_tnode *recursive; /* the for node when it is marked recursive */
    struct clime_tscope *scope;          /* scope of the for node */
};

bool clime_titer_able(struct clime_tv v);                                    /* has iter() */
struct clime_titer *clime_titer_new(struct clime_tr *tr, struct clime_tv v); /* fails when it is not iterable */
/* Counts as a level of recursion: a generator over a generator over ... is walked through all of them. */
static inline bool clime_titer_next(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    clime_tr_enter(tr);
    bool more = it->next(tr, it, out);
    clime_tr_leave(tr);
    return more;
}
struct clime_tv clime_titer_value(struct clime_titer *it); /* as a value of kind ITER */

/* The items of any iterable. A list or tuple is returned itself, not a copy: read only. */
struct clime_tlist *clime_titer_items(struct clime_tr *tr, struct clime_tv v);

/* Queries that may iterate: truth, len() (false: has none), `v in seq`. */
bool clime_tv_truth(struct clime_tr *tr, struct clime_tv v);
bool clime_tv_length(struct clime_tr *tr, struct clime_tv v, int64_t *n);
bool clime_tv_contains(struct clime_tr *tr, struct clime_tv seq, struct clime_tv v);

/* An iterator over l's items, from the last one when reversed. */
struct clime_tv clime_titer_over(struct clime_tr *tr, struct clime_tlist *l, bool reversed);

bool clime_tloop_next(struct clime_tr *tr, struct clime_tloop *l, struct clime_tv *out);
int64_t clime_tloop_length(struct clime_tr *tr, struct clime_tloop *l);
/* loop.index, loop.last, ...; MISSING when it has no such attribute. */
struct clime_tv clime_tloop_attr(struct clime_tr *tr, struct clime_tloop *l, struct clime_str name);

#endif
