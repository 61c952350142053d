/* Line logger: one write(2) per line to standard error, "2026-01-31T12:00:00.123Z I server: text".
 * Any thread. The level is set once in main before threads start.
 */
#ifndef CLIME_COMMON_LOG_H
#define CLIME_COMMON_LOG_H

#include <stddef.h>

enum clime_log_level { CLIME_LOG_DEBUG, CLIME_LOG_INFO, CLIME_LOG_WARN, CLIME_LOG_ERROR };

/* program: shown in each line ("server", "router", "train"); must stay valid. */
void clime_log_open(const char *program, enum clime_log_level level);

void clime_log(enum clime_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A line of any length; clime_log truncates at 2 KB. */
void clime_log_whole(enum clime_log_level level, const char *text, size_t len);

#define LOG_DEBUG(...) clime_log(CLIME_LOG_DEBUG, __VA_ARGS__)
#define LOG_INFO(...) clime_log(CLIME_LOG_INFO, __VA_ARGS__)
#define LOG_WARN(...) clime_log(CLIME_LOG_WARN, __VA_ARGS__)
#define LOG_ERROR(...) clime_log(CLIME_LOG_ERROR, __VA_ARGS__)

#endif
