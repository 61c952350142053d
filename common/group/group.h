/* A group of processes, one per device: rendezvous, failure detection, and messages between rank 0 and the other ranks.
 * Tensors use kernels/links.h.
 *
 * Nouns
 *   rank    a process of the group. Rank 0 leads: the others connect to it over TCP and follow its commands.
 *   roster  the cards of all ranks, exchanged when they met: process, host, build.
 *   lost    a rank that has ended or reported a failure. The group keeps its name and reason: every later wait fails at
 *           once with them, and only close may follow.
 *
 * Every wait ends: with its result, when a rank is lost (within about 50 ms on one host), or at its limit, with an
 * error that names rank, operation and limit. One thread owns a group.
 */
#ifndef CLIME_COMMON_GROUP_GROUP_H
#define CLIME_COMMON_GROUP_GROUP_H

#include "common/buf.h"
#include "common/group/options.h"
#include "common/json/facts.h"

struct clime_group;

/* Returns when all ranks have met and run the same build (the same program file). CLIME_ERR_TIMEOUT names the missing
 * ranks, CLIME_ERR_INPUT the rank with another build or place; every rank present gets the reason. */
enum clime_err clime_group_meet(const struct clime_group_options *o, struct clime_group **out, struct clime_error *e);
/* For a rank 0 started by a launcher that fails before it meets the others: sends `why` to the ranks that connect
 * within limit_us, so that they do not wait for a whole start. Returns when all have connected. */
void clime_group_refuse(const struct clime_place *p, int64_t limit_us, const struct clime_error *why);
/* The other ranks see this one lost. After a loss, a follower waits up to 10 s for rank 0 to close. NULL is fine. */
void clime_group_close(struct clime_group *g);

int clime_group_rank(const struct clime_group *g);
int clime_group_world(const struct clime_group *g);
int64_t clime_group_limit_us(const struct clime_group *g);
void clime_group_set_limit(struct clime_group *g, int64_t limit_us, const char *option); /* see options.h */
bool clime_group_one_host(const struct clime_group *g); /* all ranks share a host and a PID namespace */
/* "rank 2 of 4 (pid 4711)", for messages; valid for the thread's next three calls. */
const char *clime_group_name(const struct clime_group *g, int rank);

/* ---- messages between rank 0 and the others, in order ---- */
enum clime_err clime_group_send(struct clime_group *g, int to, const void *data, size_t n, struct clime_error *e);
/* Receives into out, whose cap limits a message. what: for the error, "the end of a step". limit_us < 0: no limit (a
 * follower waiting for its next command). */
enum clime_err clime_group_receive(struct clime_group *g, int from, const char *what, int64_t limit_us,
                                   struct clime_buf *out, struct clime_error *e);
/* Waits up to ms; true when a message from the rank is pending, or it has ended. */
bool clime_group_said(struct clime_group *g, int from, int ms);
/* Reports to the other ranks, or to rank 0, why this rank cannot continue: they see it lost for that reason. */
void clime_group_fail(struct clime_group *g, const struct clime_error *why);

/* Marks the group lost by this rank, locally as well. */
void clime_group_give_up(struct clime_group *g, const struct clime_error *why);

/* Failed rank, or -1; this rank after give_up. *code: the code it reported, else that of its end or silence. */
int clime_group_lost(const struct clime_group *g, enum clime_err *code);

/* CLIME_OK while no rank is lost. Does not wait. For callers that wait by other means. */
enum clime_err clime_group_check(struct clime_group *g, struct clime_error *e);
/* Answers a liveness query of rank 0, and reads its failure report: for a rank busy for long by other means that can
 * ignore another rank's end. Does not wait. */
enum clime_err clime_group_answer(struct clime_group *g, struct clime_error *e);

/* Checks that all ranks have the same facts. CLIME_ERR_INPUT on all of them names the first rank and key that differ,
 * with both values. */
enum clime_err clime_group_compare(struct clime_group *g, const struct clime_facts *mine, struct clime_error *e);
/* A barrier that compares one text, the ranks' position: returns when all ranks have reached it. */
enum clime_err clime_group_agree(struct clime_group *g, const char *mine, struct clime_error *e);

/* All-gather of host memory, through rank 0: buf holds rank r's part at bytes [from[r], from[r + 1]); each rank
 * supplies its own and receives the others'. For small data; from: [world + 1], the same on all ranks. */
enum clime_err clime_group_share(struct clime_group *g, const char *what, void *buf, const size_t *from,
                                 struct clime_error *e);

/* Makes the error of this rank for an operation that `rank` has not done in time. */
enum clime_err clime_group_late(struct clime_group *g, int rank, const char *what, struct clime_error *e);

#endif
