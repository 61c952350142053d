/* The experts chosen at every position in every layer, indexed by KV slot, so that a cached prefix has its choices
 * along with its keys. Only with --enable-return-routed-experts. Host memory, 2 bytes a choice; engine thread.
 *
 *   send   after a step's rows are queued: copies their choices to the host
 *   take   after the step has finished: stores them in their slots
 */
#ifndef CLIME_SERVER_ENGINE_CHOICES_H
#define CLIME_SERVER_ENGINE_CHOICES_H

#include "model/model.h"
#include "server/schedule/scheduler.h"

struct clime_choices;

size_t clime_choices_bytes(const struct clime_model *m, int max_rows); /* device memory */
enum clime_err clime_choices_open(struct clime_model *m, int max_rows, int n_pages, struct clime_choices **out,
                                  struct clime_error *e);
void clime_choices_close(struct clime_choices *c); /* NULL is fine */

/* [layers, T, k] of a batch of T rows (struct clime_work). */
int32_t *clime_choices_device(const struct clime_choices *c);

/* turn, 0 or 1: which of two steps in flight; also the mark of the copy. */
void clime_choices_send(struct clime_choices *c, int T, int turn);
void clime_choices_take(struct clime_choices *c, int T, const int32_t *slot, const struct clime_page_copy *copies,
                        int n_copies, int turn);

/* out[n, layers, k]: choices at positions from `from` on of a sequence with these pages; 0 in a layer without
 * experts. */
void clime_choices_of(const struct clime_choices *c, const int32_t *pages, int from, int n, int32_t *out);
size_t clime_choices_width(const struct clime_choices *c); /* layers * k */

#endif
