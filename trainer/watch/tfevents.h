/* Encoder of TensorBoard's event files: protobuf fields, Event messages, records. Pure.
 *
 * A file is a sequence of TFRecords (length, masked CRC-32C of it, bytes, masked CRC-32C of them), each a protobuf
 * message Event (tensorflow/core/util/event.proto); the first has file_version "brain.Event:2". */
#ifndef CLIME_TRAINER_WATCH_TFEVENTS_H
#define CLIME_TRAINER_WATCH_TFEVENTS_H

#include <stdint.h>

#include "common/buf.h"

#define CLIME_TFEVENTS_HEAD 12 /* bytes before an event: its length and that length's CRC */
#define CLIME_TFEVENTS_TIME 9  /* bytes of an event's first field, its time */

/* Protobuf: little-endian bytes, and fields by their number. */
void clime_tfevents_fixed(struct clime_buf *b, uint64_t v, int bytes);
void clime_tfevents_bytes(struct clime_buf *b, int field, const void *data, size_t len);
void clime_tfevents_text(struct clime_buf *b, int field, const char *text);
void clime_tfevents_int(struct clime_buf *b, int field, uint64_t v);
void clime_tfevents_double(struct clime_buf *b, int field, double v);

/* event: replaces the buffer by an event: wall_time = 1, step = 2, summary = 5. version: the same with a file's first
 * event. */
void clime_tfevents_event(struct clime_buf *event, double seconds, int64_t step, const struct clime_buf *summary);
void clime_tfevents_version(struct clime_buf *event, double seconds);

void clime_tfevents_record(struct clime_buf *out, const struct clime_buf *event); /* appends */
uint32_t clime_tfevents_crc(const void *data, size_t len);                        /* masked */

#endif
