/* A pool of worker threads for compute: parallel loops over fixed tiles.
 *
 * clime_pool_run calls fn(arg, i) once for each i in [0, n); the caller's thread works too. The assignment of tiles to
 * threads varies, so fn must compute the same bits for any: tiles may not share outputs. Threads sleep when idle (a
 * short spin first). One caller at a time: the pool belongs to one engine or trainer thread.
 */
#ifndef CLIME_COMMON_THREAD_THREADPOOL_H
#define CLIME_COMMON_THREAD_THREADPOOL_H

struct clime_pool;

/* n_threads >= 1 includes the caller; 0 = clime_allowed_cores (affinity, container quota). */
int clime_allowed_cores(void); /* cores that this process may use */
struct clime_pool *clime_pool_new(int n_threads);
void clime_pool_free(struct clime_pool *p); /* NULL is fine; joins the threads */
int clime_pool_threads(const struct clime_pool *p);
void clime_pool_run(struct clime_pool *p, int n, void (*fn)(void *arg, int i), void *arg);

#endif
