/* Transport between the devices of a group: one process per device; bytes are moved, never added (docs/devices.md). A
 * sum over ranks is an exchange and a local sum in a fixed order.
 *
 * Links belong to a device context, whose operations make what they send and read what they receive.
 *
 * Everything is one operation, an exchange: each rank lists its sends and receives. Bytes from one rank to another
 * arrive in the order in which both list them, cut alike. The collectives below are exchanges that all ranks call
 * alike. at is device memory (ops->alloc). On a device that queues, an exchange is queued like any operation; later
 * operations may overwrite what it sent.
 *
 * An exchange can also overlap operations: begin starts it after the work queued so far, end makes later work wait for
 * it. In between, its send buffers must not be written, nor its receive buffers accessed. Exchanges run in the order of
 * their begins, so an end also waits for all earlier ones. A device that does not queue completes it in begin.
 *
 * Bytes for a window can be put there directly, without an intermediate copy, where the transport supports it.
 *
 * No wait is unbounded. It fails, naming rank and operation, in about 50 ms when a rank is lost, at the group's limit
 * when one is stuck. After an error only close may follow. One thread: the owner of dev and of the group.
 */
#ifndef CLIME_KERNELS_LINKS_H
#define CLIME_KERNELS_LINKS_H

#include "common/group/group.h"
#include "kernels/kernels.h"

#define CLIME_LINKS_WINDOWS 32

struct clime_links_window { /* memory of every rank into which the others may put */
    char *at;
    size_t bytes;
};

struct clime_links_moved { /* since the links' owner last zeroed it */
    uint64_t sent_bytes;
    int64_t waited_us[CLIME_GROUP_MAX]; /* host wait per rank; 0 where the device waits, which is not measured */
};

struct clime_links { /* the head of each table's own struct */
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_group *group;
    const char *way; /* name of the transport, for messages */
    int rank, world;
    bool records; /* gathers of few rows may be recorded */
    struct clime_links_moved moved;
    struct clime_links_window window[CLIME_LINKS_WINDOWS];
    int n_windows;
};

#define CLIME_LINKS_FEW_ROWS 256

struct clime_move {
    int rank; /* the other rank; never this one */
    void *at;
    size_t bytes;
    void *to; /* for puts: the destination, as an address in this rank's own window; else NULL */
};

/* Collective. CLIME_ERR_UNAVAILABLE where the ranks cannot be linked. */
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

/* Registers a window: the same offset from `at` has the same meaning on every rank. Collective, with equal bytes; the
 * memory must stay until the links are closed. Small allocations in the same block would be exported with it
 * (ops->alloc_shared gives a block of its own). */
enum clime_err clime_links_window(struct clime_links *l, void *at, size_t bytes, struct clime_error *e);

/* As begin, for bytes that all go to windows: each send's `to` is where the other rank receives it. The destination
 * must not be accessed from before the receiver's begin. */
enum clime_err clime_links_put(struct clime_links *l, const char *what, const struct clime_move *sends, int n_sends,
                               const struct clime_move *receives, int n_receives, uint32_t *number,
                               struct clime_error *e);

/* buf holds every rank's part, rank r's at bytes [from[r], from[r + 1]); each rank has its own and receives the
 * others'. from: [world + 1], the same on all ranks. */
enum clime_err clime_links_all_gather(struct clime_links *l, const char *what, void *buf, const size_t *from,
                                      struct clime_error *e);

/* Gathers rows from columns: y[R] rows of at[world] bytes, of which rank r computed the bytes [at[r], at[r + 1]); R = T
 * * each, `each` per row of a step. parts has room for all: rank r's columns of R rows are at parts + R * at[r]; this
 * rank's own are already there. root: the rank that gets y, -1 = all. y may alias parts where one rank has all columns.
 * Up to T of CLIME_LINKS_FEW_ROWS, where links record, it is an ordinary operation: it may be recorded and fails as
 * operations do. */
enum clime_err clime_links_gather_rows(struct clime_links *l, const char *what, int root, int T, int each,
                                       const size_t *at, void *parts, void *y, struct clime_error *e);

/* Of R rows of world * row_bytes, rank r has made rows start[r * each] up to start[(r + 1) * each], whole and in place.
 * y[R] becomes this rank's row_bytes of each. start is in device memory; a rank may have any number of rows. Only where
 * links record; an ordinary operation. Later operations may overwrite rows. */
void clime_links_home(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start, int each,
                      const void *rows, void *y);

#endif
