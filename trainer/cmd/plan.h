/* clime-train plan: what a run would take on devices that are not there. */
#ifndef CLIME_TRAINER_CMD_PLAN_H
#define CLIME_TRAINER_CMD_PLAN_H

int clime_plan_main(int argc, char **argv); /* argv[0] = "plan"; returns the exit code */

#endif
