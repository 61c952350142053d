/* Start and end of a long-running program, and its port file.
 *
 *   main: clime_process_begin();  ... start threads, serve ...
 *         clime_port_file_write(path, port, parent_fd, &e);
 *         clime_process_wait(parent_fd);  ... stop ...
 * Main thread only.
 */
#ifndef CLIME_COMMON_OS_PROCESS_H
#define CLIME_COMMON_OS_PROCESS_H

#include "common/err.h"

/* Call before any thread starts. Blocks SIGTERM and SIGINT for clime_process_wait, ignores SIGPIPE, and raises the
 * limit of open files to the hard limit. CLIME_ERR_BUSY: that is too low. */
enum clime_err clime_process_begin(struct clime_error *e);

enum clime_process_end {
    CLIME_END_SIGNAL, /* stop requested: drain, then exit 0 */
    CLIME_END_PARENT, /* the parent is gone: no client needs an answer */
    CLIME_END_WAKE,   /* clime_process_wake was called */
};

/* Sleeps until one of the above. parent_fd: the read end of a pipe that only the parent holds open for writing, which
 * detects its death by any cause; -1 = none. */
enum clime_process_end clime_process_wait(int parent_fd);

/* Ends the wait, such as for an engine whose device failed. Any thread, once or more. */
void clime_process_wake(void);

/* Writes "PORT\n" atomically, unless the parent is gone: its successor's child may own the file. path may be NULL. */
enum clime_err clime_port_file_write(const char *path, int port, int parent_fd, struct clime_error *e);

#endif
