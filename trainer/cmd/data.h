/* clime-train data: what a file would be trained on, said before anything is trained; and conversion. */
#ifndef CLIME_TRAINER_CMD_DATA_H
#define CLIME_TRAINER_CMD_DATA_H

int clime_data_main(int argc, char **argv);

#endif
