/* Runs requests with a window in flight (see windowed.h). Called by evaluation and --replay-generate; owns nothing.
 *
 * Invariant: a request's time limit starts at its submission, not while it waits in the list.
 */
#include "trainer/rollout/windowed.h"

#include "common/clock.h"

#define AT_ONCE 256
#define TICK_US 100000

enum clime_err clime_windowed_run(const struct clime_windowed *w, struct clime_request *requests, int n,
                                  struct clime_error *e) {
    struct clime_request *back[AT_ONCE];
    int sent = 0, done = 0;
    int64_t tick = clime_now_us() + TICK_US;
    enum clime_err rc = CLIME_OK;
    while (done < n && !rc) {
        for (; sent < n && sent - done < 2 * clime_client_most(w->client); sent++) {
            requests[sent].deadline_us = clime_now_us() + w->limit_us;
            clime_client_submit(w->client, &requests[sent]);
        }
        int got = clime_client_next(w->client, back, AT_ONCE, tick);
        for (int i = 0; i < got && !rc; i++) rc = w->back(w->arg, back[i], e);
        done += got;
        if (rc || clime_now_us() < tick) continue;
        tick = clime_now_us() + TICK_US;
        rc = clime_fleet_poll(w->fleet, e);
        clime_client_limit(w->client, clime_fleet_room(w->fleet));
        w->tell(w->arg, done, n);
    }
    if (rc) clime_client_stop(w->client);
    return rc;
}
