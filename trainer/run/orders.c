/* Executes orders between two rollouts: from the page (trainer/watch/page/control.h), and SIGTERM from a process
 * manager. Called by the loop, main thread; any thread may receive the signal. Each order is recorded as a ledger
 * event. */
#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

#include "trainer/ledger/events.h"
#include "trainer/ledger/versions.h"
#include "trainer/run/run.h"

static volatile sig_atomic_t asked;

static void note(int number) {
    static const char words[] = "asked to end: after this rollout, with all saved; asked again, at once\n";
    (void)number;
    asked = 1;
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) return;
}

void clime_rl_end_at_sigterm(void) {
    struct sigaction a = {.sa_handler = note, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    CHECK(sigaction(SIGTERM, &a, NULL) == 0);
}

static bool is_asked(void) {
    return asked;
}

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

static enum clime_err end_here(struct clime_rl *rl, const char *by, struct clime_error *e) {
    enum clime_err rc = checkpoint_now(rl, e);
    if (!rc) rc = clime_rl_record_end(rl, e);
    if (rc) return rc;
    clime_event(rl->ledger, rl->run.incarnation, "order", "stop: by %s after %" PRId64 " of %" PRId64 " rollouts", by,
                rl->rollouts_done, rl->num_rollout);
    clime_progress_line(&rl->progress,
                        "stopped  by %s after %" PRId64 " of %" PRId64 " rollouts; the same command goes on", by,
                        rl->rollouts_done, rl->num_rollout);
    return CLIME_OK;
}

enum clime_err clime_rl_obey(struct clime_rl *rl, bool *stop, struct clime_error *e) {
    for (;;) {
        struct clime_page_orders o = {.stop = false};
        if (rl->control) o = clime_page_control_take(rl->control);
        enum clime_err rc = o.checkpoint ? checkpoint_now(rl, e) : CLIME_OK;
        *stop = o.stop || is_asked();
        if (rc || *stop) return rc ? rc : end_here(rl, is_asked() ? "SIGTERM" : "the page", e);
        if (!o.pause) return CLIME_OK;
        clime_event(rl->ledger, rl->run.incarnation, "order", "pause: before rollout %" PRId64, rl->rollouts_done);
        clime_page_control_wait(rl->control, is_asked);
        clime_event(rl->ledger, rl->run.incarnation, "order", "the pause is over");
    }
}
