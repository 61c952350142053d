/* The command line of this process, for a comparison with other ranks': a launcher starts the same command on all. */
#ifndef CLIME_TRAINER_LEARN_COMMAND_LINE_H
#define CLIME_TRAINER_LEARN_COMMAND_LINE_H

#include "common/json/facts.h"

/* "command" is the first word behind the program, "--lr" the words behind that option, joined by blanks; an option that
 * is given again adds its words. Options that may hold a secret (their names have "key", "token" or "url") are
 * checksums. Nothing where the system does not say. */
void clime_command_line_facts(struct clime_facts *out);

/* The same of words[n], the program's name left out. */
void clime_command_words_facts(const char *const *words, int n, struct clime_facts *out);

#endif
