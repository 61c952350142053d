/* Command line of this process, to check that a launcher started the same command on all ranks. */
#ifndef CLIME_TRAINER_LEARN_COMMAND_LINE_H
#define CLIME_TRAINER_LEARN_COMMAND_LINE_H

#include "common/json/facts.h"

/* Key "command" is the first word after the program, "--lr" the words after that option, joined by blanks; a repeated
 * option appends its words. Options that may hold a secret (names with "key", "token" or "url") are stored as
 * checksums. Empty where the system does not report it. */
void clime_command_line_facts(struct clime_facts *out);

/* The same for words[n], without the program's name. */
void clime_command_words_facts(const char *const *words, int n, struct clime_facts *out);

#endif
