// Keys and values: one line in a table, the whole content in a detail.

import { bytes } from "../format.js";
import { Badge, html } from "../ui.js";

export function oneLine(view) {
  if (view.encoding === "null") return html`<${Badge}>null<//>`;
  if (view.encoding === "empty") return html`<${Badge}>empty<//>`;
  return html`<span class="mono">${view.text.slice(0, 300)}</span>`;
}

function pretty(view) {
  if (view.encoding !== "json" || view.is_cut) return view.text;
  try {
    // Numbers beyond 2^53 would change: such JSON is shown as it was written.
    if (/\d{16}/.test(view.text)) return view.text;
    return JSON.stringify(JSON.parse(view.text), null, 2);
  } catch { return view.text; }
}

export function Content({ title, view, href }) {
  return html`<div>
    <div class="row small"><strong>${title}</strong>
      <${Badge}>${view.encoding}<//> ${view.size > 0 && html`<span class="muted">${bytes(view.size)}</span>`}
      ${view.schema_id !== undefined && html`<${Badge} kind=${view.schema_error ? "warn" : ""}>${view.schema_type ?? ""} schema ${view.schema_id}<//>`}
      ${view.is_cut && html`<${Badge} kind="warn">cut<//>`}
      ${href && view.size > 0 && html`<a href=${href} download>Download</a>`}
    </div>
    ${view.schema_error && html`<p class="muted small">Not decoded: ${view.schema_error}.</p>`}
    ${view.text ? html`<pre class="bytes" tabindex="0">${pretty(view)}</pre>` : html`<p class="muted small">${view.encoding === "null" ? "No value (null)." : "Zero bytes."}</p>`}
  </div>`;
}

export function Headers({ record }) {
  if (!record.headers_count) return null;
  return html`<div><strong class="small">Headers</strong>
    <dl class="facts bytes">${record.headers.map((each) => [
      html`<dt class="mono">${each.name}</dt>`, html`<dd class="mono">${each.value.text ?? "null"}</dd>`])}</dl>
    ${record.headers_count > record.headers.length && html`<p class="muted small">${record.headers_count - record.headers.length} more headers are not shown.</p>`}
  </div>`;
}
