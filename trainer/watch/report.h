/* clime-train report RUN: summary of a run from its ledger, with a text plot of the reward. */
#ifndef CLIME_TRAINER_WATCH_REPORT_H
#define CLIME_TRAINER_WATCH_REPORT_H

int clime_report_main(int argc, char **argv); /* argv[0] = "report"; returns the exit code */

#endif
