/* Moving bytes between the devices of a group: one process a device, and nothing is ever added on the way
 * (docs/devices.md). A sum over ranks is an exchange and a local sum in a fixed order.
 *
 * Links belong to a device context: what they send is made by its operations, and what they receive is read by them.
 *
 * Everything is one operation, an exchange: each rank says what it sends to whom and what it gets from whom; what goes
 * from one rank to another arrives in the order in which both name it, cut alike. The collectives below are exchanges
 * that all ranks call alike. at is memory of the device (ops->alloc); on a device that queues, an exchange is queued
 * like any operation, and what it sent may be written again by what is queued after it.
 *
 * Or it is queued beside the operations: begin lets it run from what is queued before, end makes what is queued after
 * wait for it. In between nobody may write what it sends, nor touch what it receives. Exchanges run in the order in
 * which they begin, so an end is one of all that began before; a device that does not queue has done it in begin.
 *
 * What goes to a window can be put there, where the way can: nothing lies in between, and nobody copies it on.
 *
 * Every wait ends: at once (some 50 ms) when a rank is lost, at the group's limit when one does not move, with an error
 * that names rank and operation. After an error only close may follow. One thread: the owner of dev and of the group.
 */
#ifndef CLIME_KERNELS_LINKS_H
#define CLIME_KERNELS_LINKS_H

#include "common/group/group.h"
#include "kernels/kernels.h"

#define CLIME_LINKS_WINDOWS 32

struct clime_links_window { /* memory of every rank in which the others may put what they send */
    char *at;
    size_t bytes;
};

struct clime_links_moved { /* since the owner of the links has zeroed it */
    uint64_t sent_bytes;
    int64_t waited_us[CLIME_GROUP_MAX]; /* the host, for whom; where it is the device that waits nobody knows: 0 */
};

struct clime_links { /* the head of each table's own */
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_group *group;
    const char *way; /* how bytes go, for people */
    int rank, world;
    bool records; /* gathers of few rows may be recorded */
    struct clime_links_moved moved;
    struct clime_links_window window[CLIME_LINKS_WINDOWS];
    int n_windows;
};

#define CLIME_LINKS_FEW_ROWS 256

struct clime_move {
    int rank; /* the other one; never this rank itself */
    void *at;
    size_t bytes;
    void *to; /* of what is put: where it goes, as this rank has that place in its own window; else NULL */
};

/* All ranks of the group call it. CLIME_ERR_UNAVAILABLE where the ranks are too far apart for them. */
enum clime_err clime_links_open(const struct clime_ops *ops, struct clime_dev *d, struct clime_group *g,
                                struct clime_links **out, struct clime_error *e);
void clime_links_close(struct clime_links *l); /* NULL is fine */

/* what: for errors, "gathering new weights". */
enum clime_err clime_links_exchange(struct clime_links *l, const char *what, const struct clime_move *sends,
                                    int n_sends, const struct clime_move *receives, int n_receives,
                                    struct clime_error *e);

enum clime_err clime_links_begin(struct clime_links *l, const char *what, const struct clime_move *sends, int n_sends,
                                 const struct clime_move *receives, int n_receives, uint32_t *number,
                                 struct clime_error *e);
void clime_links_end(struct clime_links *l, uint32_t number);

/* A window: what lies at some distance from `at` means the same on every rank. All call it alike, with as many bytes;
 * the memory must stay until the links are closed. An allocation with small ones beside it would go out with them
 * (ops->alloc_shared makes one that has none). */
enum clime_err clime_links_window(struct clime_links *l, void *at, size_t bytes, struct clime_error *e);

/* As begin, of bytes that all go to windows: each send says where to, which is where the other receives it. Nobody may
 * touch that from before the begin of the one that receives it. */
enum clime_err clime_links_put(struct clime_links *l, const char *what, const struct clime_move *sends, int n_sends,
                               const struct clime_move *receives, int n_receives, uint32_t *number,
                               struct clime_error *e);

/* buf holds every rank's part behind each other, rank r's at bytes [from[r], from[r + 1]); each has its own and gets
 * the others'. from: [world + 1], the same on all. */
enum clime_err clime_links_all_gather(struct clime_links *l, const char *what, void *buf, const size_t *from,
                                      struct clime_error *e);

/* Rows of which every rank has computed its columns: y[R] rows of at[world] bytes, rank r's are the bytes [at[r],
 * at[r + 1]) of each, R = T * each: `each` of every row of a step. parts has room for all: rank r's columns of R rows
 * lie at parts + R * at[r], its own are there. root: the rank that gets y, -1 = all. y may lie where parts does where
 * one rank has all columns. Up to T of CLIME_LINKS_FEW_ROWS, where links record, it is an operation like others: it may
 * be recorded, and fails as they do. */
enum clime_err clime_links_gather_rows(struct clime_links *l, const char *what, int root, int T, int each,
                                       const size_t *at, void *parts, void *y, struct clime_error *e);

/* Of R rows of world * row_bytes, rank r has made those from start[r * each] up to start[(r + 1) * each], whole and in
 * their places. y[R] becomes this rank's row_bytes of each. start is the device's: no host need know it, and as much
 * may be a rank's as will, all or nothing. Where links record; an operation like others. rows may be written again by
 * what is queued after it. */
void clime_links_home(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start, int each,
                      const void *rows, void *y);

#endif
