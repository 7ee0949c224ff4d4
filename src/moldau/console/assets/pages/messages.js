// Records of a topic: pages in both directions, filters, live tail, produce.

import { post, query, segment, urlOf } from "../api.js";
import { bytes, compact, duration, number, plural, time } from "../format.js";
import { Badge, Empty, Loaded, Problem, html, useEffect, useLoad, useRef, useState } from "../ui.js";
import { Content, Headers, oneLine } from "./bytes.js";
import { ProduceDialog } from "./produce.js";

const PAGE = 50;
const ROWS_MAX = 1000; // rows of a page: older ones are dropped
const FIELDS = ["direction", "start", "partition", "text", "key", "expression", "uncommitted"];
const hashOf = (topic, wanted) => `#/topics/${segment(topic)}/messages${query(wanted)}`;

function initial(given) {
  const wanted = Object.fromEntries(FIELDS.map((name) => [name, given.get(name) ?? ""]));
  return { ...wanted, direction: wanted.direction === "oldest" ? "oldest" : "newest" };
}

function bodyOf(wanted) {
  return {
    direction: wanted.direction,
    start: wanted.start || (wanted.direction === "oldest" ? "start" : "end"),
    partitions: wanted.partition === "" ? null : [Number(wanted.partition)],
    text: wanted.text,
    key: wanted.key === "" ? null : wanted.key,
    expression: wanted.expression,
    with_uncommitted: wanted.uncommitted === "true",
    limit: PAGE,
  };
}

const hasFilter = (wanted) => Boolean(wanted.text || wanted.key || wanted.expression);

// Reads pages until one is full, while a filter finds too little: the progress is shown after each request.
function useRecords(topic, wanted, isPaused) {
  const [state, setState] = useState({ records: [], positions: null, scanned: 0, ms: 0, left: 0, isBusy: true, error: null });
  const abort = useRef(null);
  const read = async (positions, records, limit) => {
    abort.current?.abort();
    const mine = (abort.current = new AbortController());
    const target = records.length + limit;
    let now = { records, positions, scanned: 0, bytes: 0, ms: 0, left: 0, isBusy: true, error: null };
    setState(now);
    try {
      do {
        const page = await post(`/topics/${segment(topic)}/read`, { ...bodyOf(wanted), positions: now.positions }, mine.signal);
        now = {
          records: [...now.records, ...page.records].slice(-ROWS_MAX), positions: page.positions, left: page.left,
          scanned: now.scanned + page.scanned, bytes: now.bytes + page.read_bytes, ms: now.ms + page.elapsed_ms, isBusy: true, error: null,
        };
        setState(now);
      } while (now.positions && now.records.length < target && !mine.signal.aborted);
      setState({ ...now, isBusy: false });
    } catch (error) {
      if (error.name === "AbortError") return;
      setState({ ...now, isBusy: false, error });
    }
  };
  const key = JSON.stringify(wanted);
  useEffect(() => {
    if (!isPaused) read(null, [], PAGE);
    return () => abort.current?.abort();
  }, [topic, key, isPaused]);
  const stop = () => { abort.current?.abort(); setState((before) => ({ ...before, isBusy: false })); };
  return { ...state, more: () => read(state.positions, state.records, PAGE), again: () => read(null, [], PAGE), stop };
}

// Server-sent events. A pause keeps the connection, and counts what it hides.
function useTail(topic, wanted, isOn, isPaused) {
  const [state, setState] = useState({ records: [], skipped: 0, hidden: 0, total: 0, error: null });
  const paused = useRef(isPaused);
  paused.current = isPaused;
  useEffect(() => {
    if (!isOn) return undefined;
    setState({ records: [], skipped: 0, hidden: 0, total: 0, error: null });
    const { text, key, expression, partitions, with_uncommitted } = bodyOf(wanted);
    const source = new EventSource(urlOf(`/topics/${segment(topic)}/tail${query({ text, key, expression, partition: partitions?.[0], with_uncommitted })}`));
    source.addEventListener("records", (event) => {
      const { records, skipped } = JSON.parse(event.data);
      setState((before) => (paused.current ? { ...before, hidden: before.hidden + records.length + skipped } : {
        ...before, records: [...records.reverse(), ...before.records].slice(0, ROWS_MAX / 4), skipped: before.skipped + skipped, total: before.total + records.length,
      }));
    });
    source.addEventListener("failed", (event) => { setState((before) => ({ ...before, error: JSON.parse(event.data) })); source.close(); });
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) setState((before) => ({ ...before, error: { message: "The live tail was rejected or has ended." } }));
    };
    return () => source.close();
  }, [topic, JSON.stringify(wanted), isOn]);
  return state;
}

function Controls({ topic, wanted, onSearch }) {
  const [draft, setDraft] = useState(wanted);
  useEffect(() => setDraft(wanted), [JSON.stringify(wanted)]);
  const field = (name) => ({ value: draft[name], onInput: (event) => setDraft({ ...draft, [name]: event.target.value }) });
  return html`<form class="row" role="search" onSubmit=${(event) => { event.preventDefault(); onSearch(draft); }}>
    <label>Order <select value=${draft.direction} onChange=${(event) => setDraft({ ...draft, direction: event.target.value })}>
      <option value="newest">newest first</option><option value="oldest">oldest first</option></select></label>
    <label title="An offset, -10 (ten before the end), @2026-01-01T10:00, start or end">Start at
      <input size="16" placeholder=${draft.direction === "oldest" ? "start" : "end"} ...${field("start")} /></label>
    <label>Partition <input type="number" min="0" max=${topic.partitions - 1} placeholder="all" ...${field("partition")} /></label>
    <label class="wide">Key is <input ...${field("key")} /></label>
    <label class="wide">Text contains <input data-search ...${field("text")} /></label>
    <label class="wide" title='For example: value.country == "CH" and value.amount > 100'>Filter expression
      <input class="mono" placeholder="value.amount > 100" ...${field("expression")} /></label>
    <label class="inline"><input type="checkbox" checked=${draft.uncommitted === "true"}
      onChange=${(event) => setDraft({ ...draft, uncommitted: event.target.checked ? "true" : "" })} /> Uncommitted</label>
    <button class="primary">Search</button>
  </form>`;
}

export function Messages({ topic, query: given, canEdit }) {
  const wanted = initial(given);
  const [isLive, setLive] = useState(false);
  const [isPaused, setPaused] = useState(false);
  const [produced, setProduced] = useState(null);
  const pages = useRecords(topic.name, wanted, isLive);
  const tail = useTail(topic.name, wanted, isLive, isPaused);
  const search = (draft) => {
    const hash = hashOf(topic.name, Object.fromEntries(FIELDS.map((name) => [name, draft[name]])));
    if (location.hash === hash) pages.again(); else location.hash = hash;
  };
  const shown = isLive ? tail.records : pages.records;
  const download = (format) => {
    const { partitions, positions, limit, ...rest } = bodyOf(wanted);
    return urlOf(`/topics/${segment(topic.name)}/download${query({ ...rest, partitions, format, limit: 500 })}`);
  };
  return html`<section class="panel"><${Controls} topic=${topic} wanted=${wanted} onSearch=${search} /></section>
    <section class="panel">
      <div class="row">
        <button aria-pressed=${isLive} class=${isLive ? "primary" : ""} onClick=${() => { setLive(!isLive); setPaused(false); }}>${isLive ? "Stop live tail" : "Live tail"}</button>
        ${isLive && html`<button aria-pressed=${isPaused} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Resume" : "Pause"}</button>`}
        ${canEdit && html`<button onClick=${() => setProduced({})}>Produce</button>`}
        <a class="button" href=${download("ndjson")} download>NDJSON</a>
        <a class="button" href=${download("csv")} download>CSV</a>
      </div>
      ${isLive ? html`<${TailProgress} tail=${tail} isPaused=${isPaused} />` : html`<${Progress} pages=${pages} wanted=${wanted} />`}
      <${Records} topic=${topic.name} records=${shown} canEdit=${canEdit} onResend=${setProduced}
        empty=${isLive ? "Waiting for new records." : pages.isBusy ? "Reading …" : hasFilter(wanted) ? "No record matches." : "No records here."} />
      ${!isLive && pages.positions && !pages.isBusy && html`<p><button onClick=${pages.more}>${wanted.direction === "oldest" ? "Load newer" : "Load older"}</button></p>`}
    </section>
    ${produced && html`<${ProduceDialog} topic=${topic} record=${produced} onClose=${() => setProduced(null)} onDone=${() => { if (!isLive) pages.again(); }} />`}`;
}

function Progress({ pages, wanted }) {
  if (pages.error) return html`<${Problem} error=${pages.error} retry=${pages.again} />`;
  const rate = pages.ms > 0 ? `${compact((1000 * pages.scanned) / pages.ms)} records/s` : "";
  const scanned = hasFilter(wanted) ? `${number(pages.scanned)} searched (${bytes(pages.bytes)}, ${rate})` : `in ${duration(pages.ms)}`;
  return html`<p class="progress" role="status">
    ${plural(pages.records.length, "record")}, ${scanned}${pages.left > 0 ? `, ${compact(pages.left)} left` : ""}
    ${pages.isBusy && html` … <button class="plain" onClick=${pages.stop}>Stop</button>`}</p>`;
}

function TailProgress({ tail, isPaused }) {
  if (tail.error) return html`<${Problem} error=${tail.error} />`;
  return html`<p class="progress" role="status">${plural(tail.total, "record")} since the tail began${tail.skipped > 0 ? `, ${number(tail.skipped)} skipped because they arrive faster than they can be shown` : ""}
    ${isPaused && html` <${Badge} kind="warn">paused, ${number(tail.hidden)} hidden<//>`}</p>`;
}

function Records({ topic, records, canEdit, onResend, empty }) {
  const [open, setOpen] = useState(null);
  if (!records.length) return html`<${Empty}>${empty}<//>`;
  const idOf = (record) => `${record.partition}-${record.offset}`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Records"><table class="records">
    <thead><tr><th scope="col" class="number">Partition</th><th scope="col" class="number">Offset</th><th scope="col">Time</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
    <tbody>${records.map((record) => {
      const id = idOf(record);
      return [
        html`<tr key=${id}>
          <td class="number">${record.partition}</td>
          <td class="number"><button class="plain" aria-expanded=${open === id} aria-label=${`Record ${record.offset} of partition ${record.partition}`}
            onClick=${() => setOpen(open === id ? null : id)}>${open === id ? "▾" : "▸"} ${record.offset}</button></td>
          <td>${time(record.timestamp)}</td><td>${oneLine(record.key)}</td><td>${oneLine(record.value)}</td></tr>`,
        open === id && html`<tr key=${`${id}+`}><td class="detail" colspan="5"><${Detail} topic=${topic} record=${record} canEdit=${canEdit} onResend=${onResend} /></td></tr>`,
      ];
    })}</tbody></table></div>`;
}

function Detail({ topic, record, canEdit, onResend }) {
  const place = `${record.partition}/${record.offset}`;
  const path = `/topics/${segment(topic)}/partitions/${record.partition}/records/${record.offset}`;
  return html`<${Content} title="Key" view=${record.key} href=${urlOf(`${path}/key`)} />
    <${Content} title="Value" view=${record.value} href=${urlOf(`${path}/value`)} />
    <${Headers} record=${record} />
    <div class="row"><a href=${`#/topics/${segment(topic)}/messages/${place}`}>Link to this record</a>
      ${canEdit && html`<button onClick=${() => onResend(record)}>Edit and send again</button>`}</div>`;
}

export function MessagePage({ topic, partition, offset, canEdit }) {
  const [produced, setProduced] = useState(null);
  const load = useLoad(`/topics/${segment(topic)}/partitions/${segment(partition)}/records/${segment(offset)}`);
  return html`<section class="panel"><${Loaded} load=${load}>${(record) => html`
    <dl class="facts"><dt>Partition</dt><dd>${record.partition}</dd><dt>Offset</dt><dd>${record.offset}</dd>
      <dt>Time</dt><dd>${time(record.timestamp)} <span class="muted">(${record.timestamp})</span></dd></dl><br />
    <${Detail} topic=${topic} record=${record} canEdit=${canEdit} onResend=${setProduced} />
    ${produced && html`<${ProduceDialog} topic=${{ name: topic, partitions: null }} record=${produced} onClose=${() => setProduced(null)} onDone=${() => {}} />`}`}
  <//><p><a href=${`#/topics/${segment(topic)}/messages`}>All records</a></p></section>`;
}
