// Components that the pages share.

import { html, useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { number } from "./format.js";

export { html, useCallback, useEffect, useRef, useState };

// Load a path, again when it changes, and every `intervalMs` while the page is visible.
export function useLoad(path, intervalMs = 0) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const [version, setVersion] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    let timer = 0;
    const load = async () => {
      if (!document.hidden || intervalMs === 0) {
        try {
          const data = await get(path, abort.signal);
          setState({ path, data, error: null });
        } catch (error) {
          if (error.name === "AbortError") return;
          setState((before) => ({ path, data: before.path === path ? before.data : null, error }));
        }
      }
      if (intervalMs && !abort.signal.aborted) timer = setTimeout(load, intervalMs);
    };
    load();
    return () => { abort.abort(); clearTimeout(timer); };
  }, [path, intervalMs, version]);
  const reload = useCallback(() => setVersion((before) => before + 1), []);
  const isCurrent = state.path === path;
  return { data: isCurrent ? state.data : null, last: state.data, error: isCurrent ? state.error : null, reload };
}

export function Loaded({ load, children }) {
  const data = load.data;
  return [
    load.error && html`<${Problem} error=${load.error} retry=${load.reload} />`,
    data ? children(data) : !load.error && html`<p class="loading" role="status">Loading …</p>`,
  ];
}

export function Problem({ error, retry }) {
  const hints = {
    security_disabled: "The cluster has no authorizer, so there are no ACLs.",
    unsupported_version: "This cluster does not support it.",
    unreachable: "Check that the brokers run and that their advertised addresses can be reached from the console.",
  };
  return html`<div class=${`notice ${error.code === "security_disabled" ? "" : "bad"}`} role="alert">
    <strong>${error.message}</strong> ${hints[error.code] ?? ""}
    ${retry && html` <button class="plain" onClick=${retry}>Try again</button>`}
  </div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

export function Head({ crumb, title, children, actions }) {
  useEffect(() => { document.title = `${title} – Moldau console`; }, [title]);
  return html`<header class="head">
    ${crumb && html`<nav class="crumb" aria-label="Parent page">${crumb}</nav>`}
    <h1>${title}</h1>${children}
    ${actions && html`<div class="actions">${actions}</div>`}
  </header>`;
}

export function Tabs({ label, tabs, current }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(([name, title, href]) => html`<a href=${href} aria-current=${name === current ? "page" : undefined}>${title}</a>`)}
  </nav>`;
}

// `columns`: [{ key, title, number, sort, cell(row) }]
export function Table({ caption, columns, rows, sort, onSort, empty = "Nothing to show." }) {
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const direction = (column) => (sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : undefined);
  const title = (column) => {
    if (!column.sort || !onSort) return column.title;
    const arrow = { ascending: " ▲", descending: " ▼" }[direction(column)] ?? "";
    const next = sort === column.sort ? `-${column.sort}` : column.sort;
    return html`<button onClick=${() => onSort(next)}>${column.title}${arrow}</button>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map((column) => html`
      <th scope="col" class=${column.number ? "number" : ""} aria-sort=${direction(column)}>${title(column)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}>${columns.map((column) => html`
      <td class=${column.number ? "number" : column.name ? "name" : ""}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export function Pager({ page, size, total, onPage }) {
  const pages = Math.max(Math.ceil(total / size), 1);
  if (pages === 1) return null;
  const first = (page - 1) * size + 1;
  return html`<nav class="pager" aria-label="Pages of the list">
    <button disabled=${page <= 1} onClick=${() => onPage(page - 1)}>Previous</button>
    <button disabled=${page >= pages} onClick=${() => onPage(page + 1)}>Next</button>
    <span>${number(first)}–${number(Math.min(first + size - 1, total))} of ${number(total)}</span>
  </nav>`;
}

// A search field whose text is applied a moment after the last key.
export function SearchField({ label, value, onSearch }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => onSearch(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<label class="wide">${label}
    <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} data-search />
  </label>`;
}

export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => {
    const opener = document.activeElement;
    element.current.showModal();
    return () => opener?.focus?.();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <h2>${title}</h2>${children}
  </dialog>`;
}

// A form in a dialog. `submit` may throw; its error is shown above the buttons.
export function FormDialog({ title, action, danger, disabled, onClose, submit, children }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try { await submit(); } catch (failure) { setError(failure); }
    setBusy(false);
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="form" onSubmit=${run}>
      ${children}
      ${error && html`<${Problem} error=${error} />`}
      <div class="row">
        <button class=${`primary ${danger ? "danger" : ""}`} disabled=${busy || disabled}>${action}</button>
        <button type="button" onClick=${onClose}>Cancel</button>
      </div>
    </form>
  <//>`;
}

// A destructive action, confirmed by typing the name of its object.
export function ConfirmDialog({ title, name, action, onClose, submit, children }) {
  const [typed, setTyped] = useState("");
  return html`<${FormDialog} title=${title} action=${action} danger disabled=${typed !== name} onClose=${onClose} submit=${() => submit(typed)}>
    <div>${children}</div>
    <label>Type <code>${name}</code> to confirm
      <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" autofocus />
    </label>
  <//>`;
}

const listeners = new Set();
export const toast = (text, kind = "good") => listeners.forEach((listener) => listener({ text, kind, id: Math.random() }));

export function Toasts() {
  const [shown, setShown] = useState([]);
  useEffect(() => {
    const add = (entry) => {
      setShown((before) => [...before.slice(-3), entry]);
      setTimeout(() => setShown((before) => before.filter((each) => each !== entry)), 6000);
    };
    listeners.add(add);
    return () => listeners.delete(add);
  }, []);
  return html`<div class="toast" role="status">${shown.map((each) => html`<p key=${each.id} class=${`notice ${each.kind}`}>${each.text}</p>`)}</div>`;
}

const SECONDS_SHOWN_MIN = 120;

function shownRange(low, high) {
  const last = high ?? Date.now() / 1000;
  return [Math.min(low ?? last, last - SECONDS_SHOWN_MIN), last];
}

// A live chart of [seconds, value] points; the text below it says the same to a screen reader.
export function Chart({ label, points, format }) {
  const element = useRef(null);
  const plot = useRef(null);
  // A single point has no time range of its own: it is shown from the second one on.
  const columns = () => (points.length < 2 ? [[], []] : [points.map((each) => each[0]), points.map((each) => each[1])]);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    plot.current = new window.uPlot({
      width: element.current.clientWidth || 300,
      height: 190,
      cursor: { show: false },
      legend: { show: false },
      scales: { x: { range: (_, low, high) => shownRange(low, high) }, y: { range: (_, low, high) => [0, Math.max(high * 1.15, 1)] } },
      series: [{}, { stroke: color("--accent"), width: 2, fill: `${color("--accent")}22` }],
      axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((each) => new Date(each * 1000).toTimeString().slice(0, 8)) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
    }, columns(), element.current);
    const observer = new ResizeObserver(() => plot.current.setSize({ width: element.current.clientWidth, height: 190 }));
    observer.observe(element.current);
    return () => { observer.disconnect(); plot.current.destroy(); };
  }, [document.documentElement.dataset.theme]);
  useEffect(() => plot.current?.setData(columns()), [points]);
  const last = points.at(-1)?.[1];
  return html`<figure><div class="chart" ref=${element} role="img" aria-label=${`${label}: ${last === undefined ? "no data yet" : format(last)}`}></div></figure>`;
}
