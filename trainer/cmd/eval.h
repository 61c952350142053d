/* clime-train eval: scores a policy on prompt sets. */
#ifndef CLIME_TRAINER_CMD_EVAL_H
#define CLIME_TRAINER_CMD_EVAL_H

int clime_eval_main(int argc, char **argv); /* argv[0] = "eval"; returns the exit code */

#endif
