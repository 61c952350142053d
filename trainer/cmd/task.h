/* clime-train task: generated questions with checkable answers, in disjoint parts. */
#ifndef CLIME_TRAINER_CMD_TASK_H
#define CLIME_TRAINER_CMD_TASK_H

int clime_task_main(int argc, char **argv); /* argv[0] = "task"; returns the exit code */

#endif
