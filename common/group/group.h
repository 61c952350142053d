/* A group of processes that own a device each: how they meet, how they notice that one is lost, and messages between
 * rank 0 and the others. Tensors go another way (kernels/links.h).
 *
 * Nouns
 *   rank    one process of the group; rank 0 leads: the others connect to it over TCP and do what it says.
 *   roster  what every rank said of itself when they met: process, host, build.
 *   lost    a rank that has ended, or that has said that it failed. Its name and reason stay: every later wait of the
 *           group ends at once with them, and nothing but close may follow.
 *
 * Every wait ends: when what it waits for is there, when a rank is lost (in at most some 50 ms on one host), or at its
 * limit, with an error that names rank, operation and limit. One thread owns a group.
 */
#ifndef CLIME_COMMON_GROUP_GROUP_H
#define CLIME_COMMON_GROUP_GROUP_H

#include "common/buf.h"
#include "common/group/options.h"
#include "common/json/facts.h"

struct clime_group;

/* Returns when all ranks have come and are of one build (the very same program file). CLIME_ERR_TIMEOUT names who is
 * missing, CLIME_ERR_INPUT who is another program or does not fit in; every rank that has come gets the reason. */
enum clime_err clime_group_meet(const struct clime_group_options *o, struct clime_group **out, struct clime_error *e);
/* For a rank 0 that a launcher started and that ends before it has met the others: those that come within limit_us are
 * told why, so that they need not wait for as long as a start may take. Returns when all have come. */
void clime_group_refuse(const struct clime_place *p, int64_t limit_us, const struct clime_error *why);
/* NULL is fine. The others find this one lost. Where a rank is lost a follower waits here for rank 0 to close, for 10 s
 * at most. */
void clime_group_close(struct clime_group *g);

int clime_group_rank(const struct clime_group *g);
int clime_group_world(const struct clime_group *g);
int64_t clime_group_limit_us(const struct clime_group *g);
void clime_group_set_limit(struct clime_group *g, int64_t limit_us, const char *option); /* see options.h */
bool clime_group_one_host(const struct clime_group *g); /* all ranks see each other's processes */
/* "rank 2 of 4 (pid 4711)", for messages; in one of four places that take turns. */
const char *clime_group_name(const struct clime_group *g, int rank);

/* ---- messages between rank 0 and the others, in order ---- */
enum clime_err clime_group_send(struct clime_group *g, int to, const void *data, size_t n, struct clime_error *e);
/* Into out, whose cap is the limit of a message. what: for the error, "the end of a step". limit_us < 0: waits for as
 * long as nobody is lost (a follower for its next command). */
enum clime_err clime_group_receive(struct clime_group *g, int from, const char *what, int64_t limit_us,
                                   struct clime_buf *out, struct clime_error *e);
/* Whether there is something to receive from it, or it has ended; waits up to ms for that. */
bool clime_group_said(struct clime_group *g, int from, int ms);
/* Tells the others, or rank 0, why this rank cannot go on: they find it lost with these words. */
void clime_group_fail(struct clime_group *g, const struct clime_error *why);

/* This rank is the one that cannot go on: the group is lost to it, too. */
void clime_group_give_up(struct clime_group *g, const struct clime_error *why);

/* Who is lost; -1 = nobody is known to be. This rank itself where it has given up. *code: of what it said, else of its
 * end or silence. */
int clime_group_lost(const struct clime_group *g, enum clime_err *code);

/* CLIME_OK while nobody is lost. Does not wait. For those who wait by other means. */
enum clime_err clime_group_check(struct clime_group *g, struct clime_error *e);
/* Tells rank 0 that this rank is there, where it has asked, and hears its last words: for those who are busy by other
 * means for long, and need not know of anybody's end yet. Does not wait. */
enum clime_err clime_group_answer(struct clime_group *g, struct clime_error *e);

/* All ranks must have the same facts. CLIME_ERR_INPUT on all of them, with the first rank and key that differ and both
 * values. */
enum clime_err clime_group_compare(struct clime_group *g, const struct clime_facts *mine, struct clime_error *e);
/* The same of one text, which says where they are: no rank returns before all have come there. */
enum clime_err clime_group_agree(struct clime_group *g, const char *mine, struct clime_error *e);

/* Host memory of all ranks: buf holds rank r's part at bytes [from[r], from[r + 1]); each has its own and gets the
 * others', through rank 0. For what is small; from: [world + 1], the same on all. */
enum clime_err clime_group_share(struct clime_group *g, const char *what, void *buf, const size_t *from,
                                 struct clime_error *e);

/* A message of this rank's about what another has not done in time. */
enum clime_err clime_group_late(struct clime_group *g, int rank, const char *what, struct clime_error *e);

#endif
