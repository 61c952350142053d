/* A bounded queue of pointers between threads: many producers, many consumers, one mutex. A push transfers ownership of
 * the item. close() wakes all; pops drain the rest, then return 0.
 */
#ifndef CLIME_COMMON_THREAD_QUEUE_H
#define CLIME_COMMON_THREAD_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct clime_queue;

struct clime_queue *clime_queue_new(size_t capacity);
void clime_queue_free(struct clime_queue *q); /* must be empty or hold borrowed items */

bool clime_queue_push(struct clime_queue *q, void *item); /* false when full or closed; never waits */

/* Waits for an item, the deadline (clime_now_us scale; < 0 = none) or close; moves up to max items into out and returns
 * their number (0 = deadline, or closed and empty). One wake-up takes all queued items, up to max. */
size_t clime_queue_pop(struct clime_queue *q, void **out, size_t max, int64_t deadline_us);

void clime_queue_close(struct clime_queue *q);

#endif
