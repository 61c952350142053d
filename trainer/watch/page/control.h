/* Page control: orders from the page to the run that serves it (--page-control). The loop takes them between two
 * rollouts.
 *
 * Orders
 *   pause       wait before the next rollout     resume     go on
 *   checkpoint  write one                        stop       write one and end; the same command resumes from it
 *
 * None affects the weights. Set by the page's threads, taken by the loop's (main); its own lock. */
#ifndef CLIME_TRAINER_WATCH_PAGE_CONTROL_H
#define CLIME_TRAINER_WATCH_PAGE_CONTROL_H

#include "common/err.h"
#include "common/json/write.h"

struct clime_page_control;

struct clime_page_orders {
    bool pause, checkpoint, stop;
};

/* key_file (private to its owner) keeps the key of an earlier start, so an open page stays valid, or a new one. */
enum clime_err clime_page_control_open(const char *key_file, struct clime_page_control **out, struct clime_error *e);
void clime_page_control_close(struct clime_page_control *c); /* NULL is fine */
const char *clime_page_control_key(const struct clime_page_control *c);

/* Page's side: CLIME_ERR_INPUT for an unknown order. */
enum clime_err clime_page_control_order(struct clime_page_control *c, const char *order, struct clime_error *e);
/* Writes the member "control": pending orders, and whether the loop waits. */
void clime_page_control_write(struct clime_page_control *c, struct clime_jw *w);

/* Loop's side: the pending orders; clears `checkpoint`. */
struct clime_page_orders clime_page_control_take(struct clime_page_control *c);
/* Waits while paused without another order, or until is_over, polled a few times a second. */
void clime_page_control_wait(struct clime_page_control *c, bool (*is_over)(void));

#endif
