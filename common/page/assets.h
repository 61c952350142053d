/* Files of a web page inside a program: taken in by the assembler as they are (the Makefile says which objects depend
 * on them), served under /assets/{name}. Two programs have a page (server/page/, trainer/watch/page/); what both use is
 * here: dom.js, style.css, icon.svg. Stateless; any thread. */
#ifndef CLIME_COMMON_PAGE_ASSETS_H
#define CLIME_COMMON_PAGE_ASSETS_H

#include "common/http/server.h"

/* Defines symbol[] .. symbol_end: the bytes of file, a path from the folder where make runs. */
#define CLIME_EMBED(symbol, file)                                                                                      \
    extern const char symbol[], symbol##_end[];                                                                        \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" file "\"\n" #symbol "_end:\n.popsection\n")

#define CLIME_CSS "text/css; charset=utf-8"
#define CLIME_HTML "text/html; charset=utf-8"
#define CLIME_JS "text/javascript; charset=utf-8"
#define CLIME_SVG "image/svg+xml"
#define CLIME_ASSET(name, type, symbol)                                                                                \
    { name, type, symbol, symbol##_end }

struct clime_asset {
    const char *name, *type, *data, *end;
};

/* Headers of every answer to a page: what it may load (nothing from elsewhere) and do. */
extern const char clime_page_headers[];

/* Answers with the file of that name, of a page's own n files or of those that all pages share; else 404. */
void clime_asset_reply(struct clime_http_request *rq, const struct clime_asset *own, size_t n, struct clime_str name);

#endif
