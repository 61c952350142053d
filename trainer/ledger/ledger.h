/* The ledger of a run, its system of record (docs/ledger.md): a writer thread that owns the writing connection, and a
 * reading connection for the main thread. Queues in memory are only views of it.
 *
 * Every write blocks until its transaction is committed. The writer runs all waiting calls in one transaction, each in
 * a savepoint, commits, and wakes them: writes are batched, and a returned write is always committed. A failed call
 * rolls back only itself.
 */
#ifndef CLIME_TRAINER_LEDGER_LEDGER_H
#define CLIME_TRAINER_LEDGER_LEDGER_H

#include "trainer/ledger/db.h"

struct clime_ledger;

/* Opens (or creates) the ledger file and starts the writer. */
enum clime_err clime_ledger_open(const char *path, struct clime_ledger **out, struct clime_error *e);
void clime_ledger_close(struct clime_ledger *l); /* NULL is fine; no call may be waiting */

/* Runs fn(db, arg, e) on the writer thread inside a transaction and waits for its commit. If fn fails, its writes are
 * rolled back and its error is returned. durable: on disk when this returns. Any thread. */
typedef enum clime_err clime_ledger_fn(struct clime_db *db, void *arg, struct clime_error *e);
enum clime_err clime_ledger_write(struct clime_ledger *l, clime_ledger_fn *fn, void *arg, bool durable,
                                  struct clime_error *e);

/* The main thread's reading connection. It sees every write that has returned. */
struct clime_db *clime_ledger_reader(struct clime_ledger *l);

#endif
