/* clime-train sft: supervised fine-tuning on JSONL of prompts and responses, loss on the response. */
#ifndef CLIME_TRAINER_CMD_SFT_H
#define CLIME_TRAINER_CMD_SFT_H

int clime_sft_main(int argc, char **argv); /* argv[0] = "sft"; returns the exit code */
int clime_dpo_main(int argc, char **argv); /* the same with pairs of answers */

#endif
