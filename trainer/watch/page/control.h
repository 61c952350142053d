/* What the page may ask of the run that serves it (--page-control), and where the loop takes it: between two rollouts.
 *
 * Orders
 *   pause       wait before the next rollout     resume     go on
 *   checkpoint  write one                        stop       write one and end; the same command goes on from it
 *
 * None decides the weights. Left by the page's threads, taken by the loop's (main); a lock of its own.
 */
#ifndef CLIME_TRAINER_WATCH_PAGE_CONTROL_H
#define CLIME_TRAINER_WATCH_PAGE_CONTROL_H

#include "common/err.h"
#include "common/json/write.h"

struct clime_page_control;

struct clime_page_orders {
    bool pause, checkpoint, stop;
};

/* The key of an earlier start, that a page which stayed open has, or a new one, in key_file (for its owner alone). */
enum clime_err clime_page_control_open(const char *key_file, struct clime_page_control **out, struct clime_error *e);
void clime_page_control_close(struct clime_page_control *c); /* NULL is fine */
const char *clime_page_control_key(const struct clime_page_control *c);

/* The page's: CLIME_ERR_INPUT for a word that is no order. */
enum clime_err clime_page_control_order(struct clime_page_control *c, const char *order, struct clime_error *e);
/* The member "control": what is ordered, and whether the loop waits. */
void clime_page_control_write(struct clime_page_control *c, struct clime_jw *w);

/* The loop's: what is ordered now; `checkpoint` is taken with it. */
struct clime_page_orders clime_page_control_take(struct clime_page_control *c);
/* Waits while there is nothing but a pause, and until is_over, which is asked a few times a second. */
void clime_page_control_wait(struct clime_page_control *c, bool (*is_over)(void));

#endif
