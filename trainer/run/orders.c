/* Orders of the page between two rollouts (trainer/page/control.h). Called by the loop, main thread. What an order did
 * is an event of the ledger. */
#include <inttypes.h>

#include "trainer/ledger/events.h"
#include "trainer/ledger/versions.h"
#include "trainer/run/run.h"

static enum clime_err checkpoint_now(struct clime_rl *rl, struct clime_error *e) {
    struct clime_checkpoint saved;
    enum clime_err rc = clime_checkpoint_newest(clime_ledger_reader(rl->ledger), INT64_MAX, &saved, e);
    clime_checkpoint_free(&saved);
    if (!rc && saved.step < rl->step) rc = clime_rl_checkpoint(rl, e);
    if (!rc)
        clime_event(rl->ledger, rl->run.incarnation, "order", "checkpoint: step %" PRId64 " %s", rl->step,
                    rl->o.no_save_optim ? "is not saved, as --no-save-optim wants" : "is saved");
    return rc;
}

static enum clime_err end_here(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = checkpoint_now(rl, e);
    if (!rc) rc = clime_rl_record_end(rl, e);
    if (rc) return rc;
    clime_event(rl->ledger, rl->run.incarnation, "order", "stop: after %" PRId64 " of %" PRId64 " rollouts",
                rl->rollouts_done, rl->num_rollout);
    clime_progress_line(&rl->progress,
                        "stopped  by the page after %" PRId64 " of %" PRId64 " rollouts; the same command goes on",
                        rl->rollouts_done, rl->num_rollout);
    return CLIME_OK;
}

enum clime_err clime_rl_obey(struct clime_rl *rl, bool *stop, struct clime_error *e) {
    *stop = false;
    while (rl->control) {
        const struct clime_page_orders o = clime_page_control_take(rl->control);
        enum clime_err rc = o.checkpoint ? checkpoint_now(rl, e) : CLIME_OK;
        *stop = o.stop;
        if (rc || o.stop) return rc ? rc : end_here(rl, e);
        if (!o.pause) break;
        clime_event(rl->ledger, rl->run.incarnation, "order", "pause: before rollout %" PRId64, rl->rollouts_done);
        clime_page_control_wait(rl->control);
        clime_event(rl->ledger, rl->run.incarnation, "order", "the pause is over");
    }
    return CLIME_OK;
}
