/* clime-train grade: a reward function over JSON lines. */
#ifndef CLIME_TRAINER_CMD_GRADE_H
#define CLIME_TRAINER_CMD_GRADE_H

int clime_grade_main(int argc, char **argv); /* argv[0] = "grade"; returns the exit code */

#endif
