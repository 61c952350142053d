/* Spans of a rendered text that the model wrote. */
#ifndef CLIME_TEXT_TEMPLATE_SPANS_H
#define CLIME_TEXT_TEMPLATE_SPANS_H

#include <stddef.h>

/* Text of a `{% generation %}` block: bytes begin..end-1 of what the rendering appended. */
struct clime_span {
    size_t begin, end;
};

/* Zero-initialise; free with clime_spans_free. */
struct clime_spans {
    struct clime_span *data;
    size_t n, size;
};

#endif
