/* Embedded files of the page (common/page/assets.h). On the server's threads; owns nothing. */
#include "common/page/assets.h"
#include "common/http/openapi.h"

#include "trainer/watch/page/page_int.h"

#define EMBED(symbol, file) CLIME_EMBED(symbol, "trainer/watch/page/assets/" file)

EMBED(asset_index, "index.html");
EMBED(asset_views_css, "views.css");
EMBED(asset_main_js, "main.js");
EMBED(asset_api_js, "api.js");
EMBED(asset_catalogue_js, "catalogue.js");
EMBED(asset_chart_js, "chart.js");
EMBED(asset_compare_js, "compare.js");
EMBED(asset_curves_js, "curves.js");
EMBED(asset_events_js, "events.js");
EMBED(asset_fleet_js, "fleet.js");
EMBED(asset_group_js, "group.js");
EMBED(asset_metrics_js, "metrics.js");
EMBED(asset_paint_js, "paint.js");
EMBED(asset_sample_js, "sample.js");
EMBED(asset_samples_js, "samples.js");
EMBED(asset_time_js, "time.js");

static const struct clime_asset assets[] = {
    CLIME_ASSET("index.html", CLIME_HTML, asset_index),        CLIME_ASSET("views.css", CLIME_CSS, asset_views_css),
    CLIME_ASSET("main.js", CLIME_JS, asset_main_js),           CLIME_ASSET("api.js", CLIME_JS, asset_api_js),
    CLIME_ASSET("catalogue.js", CLIME_JS, asset_catalogue_js), CLIME_ASSET("chart.js", CLIME_JS, asset_chart_js),
    CLIME_ASSET("compare.js", CLIME_JS, asset_compare_js),     CLIME_ASSET("curves.js", CLIME_JS, asset_curves_js),
    CLIME_ASSET("events.js", CLIME_JS, asset_events_js),       CLIME_ASSET("fleet.js", CLIME_JS, asset_fleet_js),
    CLIME_ASSET("group.js", CLIME_JS, asset_group_js),         CLIME_ASSET("metrics.js", CLIME_JS, asset_metrics_js),
    CLIME_ASSET("paint.js", CLIME_JS, asset_paint_js),         CLIME_ASSET("sample.js", CLIME_JS, asset_sample_js),
    CLIME_ASSET("samples.js", CLIME_JS, asset_samples_js),     CLIME_ASSET("time.js", CLIME_JS, asset_time_js),
};

void clime_page_index(struct clime_http_request *rq, void *page) {
    (void)page;
    clime_asset_reply(rq, assets, CLIME_COUNT(assets), clime_str_of("index.html"));
}

void clime_page_openapi(struct clime_http_request *rq, void *page) {
    (void)page;
    clime_http_reply(rq, 200, "application/json", clime_page_headers, clime_openapi_page);
}

void clime_page_asset(struct clime_http_request *rq, void *page) {
    (void)page;
    clime_asset_reply(rq, assets, CLIME_COUNT(assets), clime_http_param(rq));
}
