/* clime-train plan: estimates a run on devices, without having them. */
#ifndef CLIME_TRAINER_CMD_PLAN_H
#define CLIME_TRAINER_CMD_PLAN_H

int clime_plan_main(int argc, char **argv); /* argv[0] = "plan"; returns the exit code */

#endif
