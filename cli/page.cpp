// SPDX-License-Identifier: Apache-2.0

#include "page.h"

#include <fmt/format.h>

#include "chart.h"

namespace switchyard::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1c1e21; --muted: #667079;
  --edge: #e3e6e8; --grid: #eceef0; --ours: #1261c9; --floor: #8a949c; --bad: #b3261e;
  --c0: #b8560f; --c1: #2a7d4f; --c2: #7b4bc4; --c3: #b02a6b; --c4: #0f7c86; --c5: #8a6d00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --card: #1b1f23; --ink: #e7eaec; --muted: #98a2ab; --edge: #2c3238;
    --grid: #272c31; --ours: #5aa2ff; --floor: #7e8a94; --bad: #ff8a80; --c0: #f0964e; --c1: #5cc48c;
    --c2: #b794f4; --c3: #f07fb0; --c4: #4fc3cf; --c5: #d8bb4a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 880px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 14px; color: var(--muted); }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 18px 20px; margin-top: 18px; overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 8px 0 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 5px 8px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--edge); }
th { color: var(--muted); font-weight: 500; } tr:last-child td { border-bottom: 0; }
td.text, th.text { text-align: left; white-space: normal; }
table.wide { font-size: 13px; } table.wide th, table.wide td { padding: 5px 4px; }
tr.upper td { border-bottom: 0; }
.bad { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; min-width: 560px; height: auto; }
svg text { font-family: inherit; fill: var(--ink); }
.tick, .axis { font-size: 12px; } svg .tick, svg .axis { fill: var(--muted); }
.name { font-size: 12.5px; } .name.strong { font-weight: 650; } .value { font-size: 12px; }
.grid { stroke: var(--grid); } .limit { stroke: var(--floor); stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .line.strong { stroke-width: 2.8; }
.line.dashed { stroke-dasharray: 6 5; } .lead { stroke: var(--edge); fill: none; }
.dot { stroke: var(--card); stroke-width: 1.2; }
)";

}  // namespace

std::string page_start(const std::string& title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style></head>\n<body><main>\n",
      escaped(title), kStyle);
}

std::string page_end() { return "</main></body></html>\n"; }

std::string entry(const std::string& name, const std::string& value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
}

std::string time_text(double us) {
  if (us >= 1e5) return fmt::format("{:.1f} ms", us * 1e-3);
  return us < 100 ? fmt::format("{:.1f} us", us) : fmt::format("{:.0f} us", us);
}

}  // namespace switchyard::cli
