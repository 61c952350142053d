/* clime-train page RUN...: the page of live or ended runs, from their ledgers. */
#ifndef CLIME_TRAINER_CMD_PAGE_H
#define CLIME_TRAINER_CMD_PAGE_H

int clime_page_main(int argc, char **argv); /* argv[0] = "page"; returns the exit code */

#endif
