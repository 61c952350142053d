/* A reinforcement-learning run: everything that clime-train rl holds open, shared by the files of the loop.
 *
 *   rl.c               main and the loop, phase by phase
 *   async.c            the loop of --async
 *   debug.c            half a run: rollouts without training, training without rollouts
 *   check.c            what can be said before anything is loaded
 *   open.c             opening and closing, the run folder and its lock
 *   step.c             from a rollout to steps, one step, weights to the fleet
 *   checkpoints.c      checkpoints: written, found again, given up
 *   inputs.c           what the run was given is what it was begun with
 *   truth.c            what servers must have alike
 *   recover.c          bringing the weights to where the ledger says the run was
 *   replay_generate.c  --replay-generate
 *   summary.c          the last lines of a run that is done
 *   explain.c          --explain
 *   sft.c              the loop of clime-train sft
 *   orders.c           orders of the page between two rollouts
 *   again.c            the same command once more, when a rank was lost
 * and by trainer/cmd/eval.c, which opens the same things but a learner.
 *
 * All of it belongs to the main thread.
 */
#ifndef CLIME_TRAINER_RUN_RUN_H
#define CLIME_TRAINER_RUN_RUN_H

#include "trainer/learn/fingerprint.h"
#include "trainer/ledger/steps.h"
#include "trainer/ledger/versions.h"
#include "trainer/options/rl_options.h"
#include "trainer/plugin/hooks.h"
#include "trainer/rollout/ahead.h"
#include "trainer/rollout/evaluation.h"
#include "trainer/rollout/rollout.h"
#include "trainer/watch/alarms.h"
#include "trainer/watch/page/page.h"

#define CLIME_MOST_BAD_GROUPS 16 /* in a row that cannot be trained on: more end the run (docs/alarms.md) */

struct clime_rl {
    struct clime_rl_options o;
    struct clime_run run;
    int lock_fd, dir_fd;   /* the run folder's lock and the folder, both locked; -1 = not open */
    struct clime_now *now; /* says what is waited for; NULL = not yet */
    char *checkpoint_dir, *hf_dir;
    char *tensorboard_dir;     /* NULL = no event file */
    const char *initial_dir;   /* Hugging Face folder of version 0 */
    struct clime_facts truth;  /* what it computes and samples with, which servers must have alike */
    struct clime_facts served; /* checksums of the weights that servers have of their own folder, by their type */
    int max_pos;               /* tokens of a sequence that --hf-checkpoint takes; with truth */
    int64_t num_rollout;       /* of the whole run */
    int64_t rollouts_done;     /* trained on */
    int bad_in_row;            /* groups that could not be trained on, up to the last one */
    int64_t step;              /* optimizer steps done = the version of the learner's weights */
    bool offloaded;            /* the servers' KV memory is released, until the next publish */
    int64_t replay_generated;  /* tokens, by --replay-generate */
    int64_t published;         /* version the fleet serves, -1 = none */
    void *h_weights;           /* those weights in host memory, for pushes over HTTP; NULL until one was wanted */
    int64_t exported;          /* version that --save-hf was written of last, -1 = none */

    struct clime_ledger *ledger;
    struct clime_tokenizer *tokenizer;
    struct clime_dataset data;
    struct clime_evaluation eval;
    struct clime_hook *hooks[CLIME_HOOKS]; /* by enum clime_hook_kind; NULL = none */
    struct clime_learner *learner;
    struct clime_fingerprint fingerprint;            /* running: of the weights of `step`, which are not recorded yet */
    struct clime_model_card owners[CLIME_GROUP_MAX]; /* --colocate: where each rank's weights are */
    struct clime_fleet *fleet;
    struct clime_environments *environments; /* NULL = none */
    struct clime_client *client;             /* NULL until the fleet was first published to */
    struct clime_ahead ahead;                /* --async: the rollouts after this one */
    struct clime_page *page;                 /* NULL = none */
    struct clime_page_control *control;      /* NULL = the page gives no orders */
    struct clime_metrics_log *log;
    struct clime_progress progress;
    struct clime_mlflow *mlflow;       /* NULL = none */
    struct clime_board_samples *board; /* NULL = none */
    struct clime_alarms *alarms;       /* NULL = nothing is recorded, so nothing is watched */
    struct {
        int64_t wait_us, train_us, update_us, save_us; /* of the current rollout */
    } time;
};

/* check.c; the second once the prompts are loaded and the libraries open */
enum clime_err clime_rl_check_options(const struct clime_rl_options *o, struct clime_error *e);
enum clime_err clime_rl_check_rewards(const struct clime_rl *rl, struct clime_error *e);

/* initial.c: fills initial_dir */
enum clime_err clime_rl_choose_initial(struct clime_rl *rl, struct clime_error *e);
/* The checksum of a folder's weights read as dt, as a server says it ("weights"). */
enum clime_err clime_rl_weights_sum(const char *dir, enum clime_dtype dt, uint64_t *sum, struct clime_error *e);
/* Once the ledger is open: says which folder that is, and CLIME_ERR_INPUT where a new run may mean another one. */
enum clime_err clime_rl_check_initial(const struct clime_rl *rl, struct clime_error *e);

/* open.c */
enum clime_err clime_rl_open(struct clime_rl *rl, struct clime_error *e);        /* rl->o is parsed; the rest is zero */
enum clime_err clime_rl_open_client(struct clime_rl *rl, struct clime_error *e); /* after the first publish */
void clime_rl_close(struct clime_rl *rl);
/* The sets and rewards of an evaluation beside a run of another kind (o.evaluate is set); servers, which get the
 * weights of the first publish. */
enum clime_err clime_rl_load_evaluation(struct clime_rl *rl, struct clime_error *e);
enum clime_err clime_rl_open_servers(struct clime_rl *rl, struct clime_error *e);
/* A part of it, for runs of another kind: opens the ledger of o.run as the run of o.options_json (defaults: the same
 * object where no option is given). */
enum clime_err clime_rl_open_record(struct clime_rl *rl, const char *defaults, struct clime_error *e);

/* lock.c: makes o.run and locks it, or fails with CLIME_ERR_BUSY */
enum clime_err clime_rl_lock(struct clime_rl *rl, struct clime_error *e);

/* rl.c */
/* A line of metrics that is new and in the ledger: to the files that show it, and to the alarms. */
void clime_rl_tell_line(struct clime_rl *rl, const char *line);
struct clime_rollout_context clime_rl_rollout_context(struct clime_rl *rl);
/* Whether the current weights are to be evaluated: once for each step. */
enum clime_err clime_rl_evaluation_due(struct clime_rl *rl, bool *due, struct clime_error *e);
enum clime_err clime_rl_evaluate_if_due(struct clime_rl *rl, struct clime_error *e);
/* Runs the n planned steps of a rollout; last: figures of the last one, but the gap is that of all: usually only the
 * first has tokens of its own weights. */
enum clime_err clime_rl_run_steps(struct clime_rl *rl, const struct clime_chosen_step *plans,
                                  struct clime_step_stats *last, struct clime_error *e);
/* The times of a rollout that are known before its steps, for its line of metrics. */
void clime_rl_rollout_times(const struct clime_rl *rl, const struct clime_rollout *r, struct clime_metrics_line *m);
/* A checkpoint where one is due, then the rollout's times: a line of metrics, one on the screen. */
enum clime_err clime_rl_account(struct clime_rl *rl, const struct clime_rollout *r, const struct clime_step_stats *s,
                                int64_t t0, struct clime_error *e);

/* async.c */
/* The version that samples rollout q: the current one, or with --async one that is older by a rollout and what
 * --update-weights-interval adds; a function of q, so that a restart samples with the same. */
int64_t clime_rl_version_of(const struct clime_rl *rl, int64_t rollout);
/* From now on SIGTERM is an order to stop before the next rollout; the second one ends the process at once. */
void clime_rl_end_at_sigterm(void);
/* Orders of the page and of SIGTERM, before the next rollout (orders.c). *stop: the run ends here, and all is saved. */
enum clime_err clime_rl_obey(struct clime_rl *rl, bool *stop, struct clime_error *e);
enum clime_err clime_rl_async_rollout(struct clime_rl *rl, struct clime_error *e); /* the next one: taken, trained on */

/* debug.c */
enum clime_err clime_rl_rollouts_only(struct clime_rl *rl,
                                      struct clime_error *e); /* the whole of --debug-rollout-only */
/* The next rollout of --load-debug-rollout-data. */
enum clime_err clime_rl_load_rollout(struct clime_rl *rl, struct clime_rollout *r, struct clime_error *e);

/* replay_generate.c */
/* --replay-generate, for the current version: what it began is sampled again and compared. */
enum clime_err clime_rl_replay_generate(struct clime_rl *rl, struct clime_error *e);

/* step.c */
/* Advantages over the whole rollout, the split into steps, their packing; recorded in one durable transaction. *plans
 * has o.num_steps_per_rollout entries, whose samples are borrowed from the rollout. */
enum clime_err clime_rl_plan_steps(struct clime_rl *rl, const struct clime_rollout *r, struct clime_chosen_step **plans,
                                   struct clime_error *e);
void clime_rl_plans_free(struct clime_chosen_step *plans, int n);

/* Runs one chosen step. recorded: its result so far; when it was done before, loss and gradient norm must be the same
 * bits (CLIME_ERR_INTERNAL) and the recorded line of metrics is logged again. Sets rl->step. */
enum clime_err clime_rl_train_step(struct clime_rl *rl, const struct clime_chosen_step *p,
                                   const struct clime_step_result *recorded, struct clime_step_stats *stats,
                                   struct clime_error *e);

/* A step that was done before must have the recorded bits (CLIME_ERR_INTERNAL); its recorded line is logged again. */
enum clime_err clime_rl_compare_step(struct clime_rl *rl, const struct clime_step_result *recorded,
                                     const struct clime_step_stats *s, struct clime_error *e);

/* Records the hash of the current weights (which must equal an earlier record). begin computes it beside what follows;
 * end, before the weights change again, records it. */
enum clime_err clime_rl_record_version(struct clime_rl *rl, struct clime_error *e);
enum clime_err clime_rl_record_begin(struct clime_rl *rl, struct clime_error *e);
enum clime_err clime_rl_record_end(struct clime_rl *rl, struct clime_error *e); /* does nothing without a begin */

/* Before the steps of a rollout: servers that share the weights stop computing, and with --offload-rollout all give
 * their KV memory back. */
void clime_rl_writing(struct clime_rl *rl);

/* After a rollout's last step: the reference becomes the policy where that is due (--ref-update-interval). */
enum clime_err clime_rl_refresh_reference(struct clime_rl *rl, struct clime_error *e);

/* Gives the fleet the current weights, unless it has them. */
enum clime_err clime_rl_publish(struct clime_rl *rl, struct clime_error *e);

/* checkpoints.c */
/* The folder of checkpoints is there, and they can be written to it, which is found out before any is due. */
enum clime_err clime_rl_make_checkpoint_dir(const struct clime_rl *rl, struct clime_error *e);
/* Writes a checkpoint of the current step, with --save-hf also a Hugging Face folder, and then its row; with
 * --no-save-optim only the folder. Then gives up what --keep-checkpoints and --keep-rollouts do not keep. */
enum clime_err clime_rl_checkpoint(struct clime_rl *rl, struct clime_error *e);
/* Whether models can be put where they go, before any is due: the first for places that are the same for every rollout,
 * the second, which asks the ledger what comes next, for those that name theirs. */
enum clime_err clime_rl_check_save_hf(const struct clime_rl *rl, struct clime_error *e);
enum clime_err clime_rl_check_next_hf(const struct clime_rl *rl, struct clime_error *e);
/* Loads the newest checkpoint of a step < before that is sound; damaged ones are named and passed over. rl->step = its
 * step, or 0. */
enum clime_err clime_rl_load_checkpoint(struct clime_rl *rl, int64_t before, struct clime_error *e);

/* The weights of a checkpoint of the run in folder `run`, whose ledger has it. After it rl->step is its step. */
enum clime_err clime_rl_load_version(struct clime_rl *rl, const char *run, const struct clime_checkpoint *c,
                                     struct clime_error *e);
/* Before the current weights' evaluation is recorded: where none was better, the folder best/ of the run gets them. */
enum clime_err clime_rl_keep_best(struct clime_rl *rl, const struct clime_eval_record *r, struct clime_error *e);

/* truth.c: fills truth and max_pos, from --hf-checkpoint; once. */
enum clime_err clime_rl_make_truth(struct clime_rl *rl, struct clime_error *e);

/* inputs.c: CLIME_ERR_INPUT names what is another one than the run was begun with. */
enum clime_err clime_rl_compare_options(const struct clime_rl *rl, const char *defaults, struct clime_error *e);
/* Tokenizer and config; prompts: checksum of what the prompt data say, NULL = there are none. */
enum clime_err clime_rl_record_data(struct clime_rl *rl, const uint64_t *prompts, struct clime_error *e);
enum clime_err clime_rl_record_models(struct clime_rl *rl, struct clime_error *e); /* reference and critic, as given */
/* What the teacher of --use-opd says of itself, where it answers and does. */
enum clime_err clime_rl_record_teacher(struct clime_rl *rl, struct clime_error *e);

/* step.c */
/* Evaluates the current weights, which the fleet serves, and records it. */
enum clime_err clime_rl_evaluate(struct clime_rl *rl, struct clime_error *e);

/* recover.c */
/* Loads the newest checkpoint and runs the recorded steps after it again. After it rl->step and rl->rollouts_done are
 * where the record ends, metrics.jsonl holds what happened up to there, and the fleet, where there is one, serves the
 * version that samples the next rollout. */
enum clime_err clime_rl_recover(struct clime_rl *rl, struct clime_error *e);

/* summary.c: what the run came to, where everything is, and the commands that come next, on the screen. */
enum clime_err clime_rl_tell_end(struct clime_rl *rl, struct clime_error *e);

/* explain.c */
void clime_rl_explain(const struct clime_rl *rl, struct clime_buf *out);

#endif
