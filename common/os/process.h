/* What the long-running programs share: how they end, and how they say which port they got.
 *
 *   main: clime_process_begin();  ... start threads, serve ...
 *         clime_port_file_write(path, port, parent_fd, &e);
 *         clime_process_wait(parent_fd);  ... stop ...
 * Main thread only.
 */
#ifndef CLIME_COMMON_OS_PROCESS_H
#define CLIME_COMMON_OS_PROCESS_H

#include "common/err.h"

/* Before any thread starts: SIGTERM and SIGINT are held for clime_process_wait, SIGPIPE is ignored, and as many files
 * may be open as the hard limit allows. CLIME_ERR_BUSY: it allows too few. */
enum clime_err clime_process_begin(struct clime_error *e);

enum clime_process_end {
    CLIME_END_SIGNAL, /* asked to stop: drain, then exit 0 */
    CLIME_END_PARENT, /* the parent is gone: nobody waits for an answer */
    CLIME_END_WAKE,   /* clime_process_wake was called */
};

/* Sleeps until one of the above. parent_fd: the read end of a pipe that only the parent holds open for writing, so
 * that a parent killed in any way is noticed; -1 = none. */
enum clime_process_end clime_process_wait(int parent_fd);

/* Ends the wait from another thread (an engine whose device failed). Any thread, once or more. */
void clime_process_wake(void);

/* Writes "PORT\n" so that it appears whole; not when the parent is gone, for then the file may be that of its
 * successor's child. path NULL = nothing to do. */
enum clime_err clime_port_file_write(const char *path, int port, int parent_fd, struct clime_error *e);

#endif
