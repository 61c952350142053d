/* The files of the page, inside the program: the assembler takes them in as they are (.incbin, from the folder where
 * make runs; the Makefile says what this object depends on). On the server's threads; owns nothing. */
#include "common/http/openapi.h"
#include "common/http/server.h"
#include "trainer/page/page_int.h"

#define EMBED(symbol, file)                                                                                            \
    extern const char symbol[], symbol##_end[];                                                                        \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"trainer/page/assets/" file "\"\n" #symbol                   \
            "_end:\n.popsection\n")

EMBED(asset_index, "index.html");
EMBED(asset_icon_svg, "icon.svg");
EMBED(asset_style_css, "style.css");
EMBED(asset_views_css, "views.css");
EMBED(asset_main_js, "main.js");
EMBED(asset_api_js, "api.js");
EMBED(asset_catalogue_js, "catalogue.js");
EMBED(asset_chart_js, "chart.js");
EMBED(asset_compare_js, "compare.js");
EMBED(asset_curves_js, "curves.js");
EMBED(asset_dom_js, "dom.js");
EMBED(asset_events_js, "events.js");
EMBED(asset_fleet_js, "fleet.js");
EMBED(asset_group_js, "group.js");
EMBED(asset_metrics_js, "metrics.js");
EMBED(asset_paint_js, "paint.js");
EMBED(asset_sample_js, "sample.js");
EMBED(asset_samples_js, "samples.js");
EMBED(asset_time_js, "time.js");

#define CSS "text/css; charset=utf-8"
#define JS "text/javascript; charset=utf-8"
#define SVG "image/svg+xml"
#define ASSET(name, type, symbol)                                                                                      \
    { name, type, symbol, symbol##_end }

static const struct {
    const char *name, *type, *data, *end;
} assets[] = {
    ASSET("icon.svg", SVG, asset_icon_svg),    ASSET("style.css", CSS, asset_style_css),
    ASSET("views.css", CSS, asset_views_css),  ASSET("main.js", JS, asset_main_js),
    ASSET("api.js", JS, asset_api_js),         ASSET("catalogue.js", JS, asset_catalogue_js),
    ASSET("chart.js", JS, asset_chart_js),     ASSET("compare.js", JS, asset_compare_js),
    ASSET("curves.js", JS, asset_curves_js),   ASSET("dom.js", JS, asset_dom_js),
    ASSET("events.js", JS, asset_events_js),   ASSET("fleet.js", JS, asset_fleet_js),
    ASSET("group.js", JS, asset_group_js),     ASSET("metrics.js", JS, asset_metrics_js),
    ASSET("paint.js", JS, asset_paint_js),     ASSET("sample.js", JS, asset_sample_js),
    ASSET("samples.js", JS, asset_samples_js), ASSET("time.js", JS, asset_time_js),
};

static void reply(struct clime_http_request *rq, const char *type, const char *data, const char *end) {
    clime_http_reply(rq, 200, type, clime_page_headers, (struct clime_str){data, (size_t)(end - data)});
}

void clime_page_index(struct clime_http_request *rq, void *page) {
    (void)page;
    reply(rq, "text/html; charset=utf-8", asset_index, asset_index_end);
}

void clime_page_openapi(struct clime_http_request *rq, void *page) {
    (void)page;
    clime_http_reply(rq, 200, "application/json", clime_page_headers, clime_openapi_page);
}

void clime_page_asset(struct clime_http_request *rq, void *page) {
    (void)page;
    for (size_t i = 0; i < CLIME_COUNT(assets); i++)
        if (clime_str_is(clime_http_param(rq), assets[i].name)) {
            reply(rq, assets[i].type, assets[i].data, assets[i].end);
            return;
        }
    clime_http_reply_error(rq, 404, "the page has no such file");
}
