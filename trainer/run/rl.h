/* clime-train rl: reinforcement learning of a policy through router and servers. */
#ifndef CLIME_TRAINER_RUN_RL_H
#define CLIME_TRAINER_RUN_RL_H

int clime_rl_main(int argc, char **argv); /* argv[0] = "rl"; returns the exit code */

#endif
