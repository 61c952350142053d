/* Web page files embedded in a program by the assembler (the Makefile lists the dependent objects), served under
 * /assets/{name}. Two programs have a page (server/page/, trainer/watch/page/); the shared files are here: dom.js,
 * style.css, icon.svg. Stateless; any thread. */
#ifndef CLIME_COMMON_PAGE_ASSETS_H
#define CLIME_COMMON_PAGE_ASSETS_H

#include "common/http/server.h"

/* Defines symbol[] .. symbol_end: the bytes of file, a path relative to make's folder. */
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

/* Headers of every page answer: they restrict what the page may load (same origin only) and do. */
extern const char clime_page_headers[];

/* Answers with file `name` of a page's own n files or of the shared ones; else 404. */
void clime_asset_reply(struct clime_http_request *rq, const struct clime_asset *own, size_t n, struct clime_str name);

#endif
