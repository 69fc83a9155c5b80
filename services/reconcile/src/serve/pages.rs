//! `/reports`: the reports that are kept, and each of them as a page and as JSON.

use squire_registry::StoredReport;
use squire_service::cli::OutputFormat;
use squire_service::http::Page;
use squire_service::human::show_bytes;
use squire_service::report::Report;
use uuid::Uuid;

use super::Daemon;

const HTML: &str = "text/html; charset=utf-8";

/// What lies below `/reports`: nothing for the list, `<run>` for its page, `<run>.json` for the report itself.
pub(super) async fn page(daemon: &Daemon, rest: &str) -> Option<Page> {
    if rest.is_empty() {
        let list = daemon.registry.reports().await.ok()?;
        return Some(Page { content_type: HTML, body: index(daemon.registry.name(), &list) });
    }
    let (run, json) = match rest.strip_suffix(".json") {
        Some(run) => (run, true),
        None => (rest, false),
    };
    // Parsed, so that nothing else of the registry can be asked for.
    let run = Uuid::parse_str(run).ok()?;
    let bytes = daemon.registry.report_get(run).await.ok()??;
    if json {
        return Some(Page { content_type: "application/json", body: String::from_utf8(bytes.to_vec()).ok()? });
    }
    let report: Report = serde_json::from_slice(&bytes).ok()?;
    Some(Page { content_type: HTML, body: report.render(OutputFormat::Html).ok()? })
}

fn index(estate: &str, reports: &[StoredReport]) -> String {
    let escape =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Reports of estate {0}</title>\n<style>:root {{ color-scheme: light dark; }} body {{ font: 15px/1.6 system-ui, \
         sans-serif; margin: 2rem auto; max-width: 50rem; padding: 0 1rem; }}</style></head>\n\
         <body><h1>Reports of estate {0}</h1>\n<ul>\n",
        escape(estate)
    );
    for r in reports {
        let (run, at, size) = (r.run, r.modified.format("%Y-%m-%d %H:%M UTC"), show_bytes(r.bytes));
        out += &format!(
            "<li><a href=\"/reports/{run}\">{at}</a>, <a href=\"/reports/{run}.json\">JSON</a>, {size}</li>\n"
        );
    }
    if reports.is_empty() {
        out += "<li>none yet</li>\n";
    }
    out + "</ul></body></html>\n"
}
