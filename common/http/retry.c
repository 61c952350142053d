/* Retry pauses (see retry.h). Called on the caller's thread; owns only the time of the last log line. */
#include "common/http/retry.h"

#include <stdatomic.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

#define LONG_US 10000000 /* retries longer than this are logged, at this interval */

static _Atomic int64_t next_word_us;

bool clime_http_status_passes(int status) {
    return status == 408 || status == 425 || status == 429 || status == 499 || status >= 500;
}

/* Only one of many waiting threads logs. */
static void say(const struct clime_retry *r, int64_t now, const struct clime_error *e) {
    int64_t next = atomic_load(&next_word_us);
    if (now - r->begun_us < LONG_US || now < next) return;
    if (!atomic_compare_exchange_strong(&next_word_us, &next, now + LONG_US)) return;
    LOG_WARN("%s: tried %d times in %.0f s, and again until %.0f s have passed: %.300s", r->what, r->n_tries,
             (double)(now - r->begun_us) / 1e6, (double)(r->deadline_us - r->begun_us) / 1e6, e->msg);
}

static int64_t pause_of(const struct clime_retry *r, int64_t now, int64_t at_least_us) {
    const uint64_t words[3] = {(uint64_t)now, (uint64_t)r->n_tries, (uint64_t)(uintptr_t)r};
    int n = r->n_tries - 1 < 20 ? r->n_tries - 1 : 20;
    int64_t pause = r->first_pause_us << n;
    if (pause > r->most_pause_us) pause = r->most_pause_us;
    pause += (int64_t)(r->jitter * 1e6 * (double)(clime_hash64(words, 3) >> 11) * 0x1p-53);
    return pause > at_least_us ? pause : at_least_us;
}

enum clime_retry_end clime_retry_plan(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e,
                                      int64_t *pause_us) {
    int64_t now = clime_now_us();
    if (r->n_tries++ == 0) r->begun_us = now;
    if (r->stop && r->stop(r->arg, 0)) return CLIME_RETRY_STOPPED;
    *pause_us = pause_of(r, now, at_least_us);
    if (now + *pause_us >= r->deadline_us) return CLIME_RETRY_LATE;
    if (r->most_tries && r->n_tries >= r->most_tries) return CLIME_RETRY_TIRED;
    LOG_DEBUG("%s: %s; trying again", r->what, e->msg);
    say(r, now, e);
    return CLIME_RETRY_AGAIN;
}

enum clime_retry_end clime_retry_wait(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e) {
    int64_t pause;
    enum clime_retry_end end = clime_retry_plan(r, at_least_us, e, &pause);
    if (end != CLIME_RETRY_AGAIN) return end;
    if (!r->stop)
        clime_sleep_us(pause);
    else if (r->stop(r->arg, pause))
        return CLIME_RETRY_STOPPED;
    return CLIME_RETRY_AGAIN;
}
