// Transactions by state, one transaction, and hanging ones.

import { post, query, remove, segment } from "../api.js";
import { duration, number, plural, time } from "../format.js";
import { Badge, ConfirmDialog, Head, Loaded, Pager, SearchField, Table, html, toast, useLoad, useState } from "../ui.js";

const PAGE_SIZE = 50;
const STATES = ["Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty"];
const OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"];
const state = (row) => html`<${Badge} kind=${OPEN.includes(row.state) ? "warn" : ""}>${row.state}<//>`;

const COLUMNS = [
  { title: "Transactional id", name: true, sort: "transactional_id", cell: (row) => html`<a href=${`#/transactions/${segment(row.transactional_id)}`}>${row.transactional_id}</a>` },
  { title: "State", sort: "state", cell: state },
  { title: "Producer id", number: true, cell: (row) => row.producer_id },
  { title: "Coordinator", number: true, sort: "coordinator", cell: (row) => row.coordinator },
];

export function Transactions({ canEdit }) {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(1);
  const [sort, setSort] = useState("transactional_id");
  const [wanted, setWanted] = useState("");
  const load = useLoad(`/transactions${query({ search, page, sort, state: wanted, size: PAGE_SIZE })}`, 5000);
  return html`<${Head} title="Transactions" />
    <section class="panel">
      <div class="row">
        <${SearchField} label="Search by transactional id" value=${search} onSearch=${(text) => { setSearch(text); setPage(1); }} />
        <label>State <select value=${wanted} onChange=${(event) => { setWanted(event.target.value); setPage(1); }}>
          <option value="">all</option>${STATES.map((each) => html`<option>${each}</option>`)}</select></label>
      </div>
      <${Loaded} load=${{ ...load, data: load.data ?? load.last }}>${(data) => html`
        ${data.failures.map((each) => html`<p class="notice warn">Broker ${each.broker} did not list its transactions: ${each.message}</p>`)}
        <${Table} caption=${plural(data.total, "transactional id")} columns=${COLUMNS} rows=${data.transactions.map((each) => ({ key: each.transactional_id, ...each }))} sort=${sort} onSort=${setSort}
          empty="No producer uses transactions here." />
        <${Pager} page=${page} size=${PAGE_SIZE} total=${data.total} onPage=${setPage} />`}
      <//>
    </section>
    <${Hanging} canEdit=${canEdit} />`;
}

function Hanging({ canEdit }) {
  const [minutes, setMinutes] = useState("15");
  const [path, setPath] = useState(null);
  const [aborted, setAborted] = useState(null);
  const load = useLoad(path);
  const place = (row) => `${row.topic}-${row.partition}`;
  const abort = async (confirm) => {
    await post("/hanging-transactions/abort", { topic: aborted.topic, partition: aborted.partition, start_offset: aborted.start_offset, confirm });
    toast(`The transaction on ${place(aborted)} was aborted.`);
    setAborted(null);
    load.reload();
  };
  const columns = [
    { title: "Partition", name: true, cell: place },
    { title: "Open since offset", number: true, cell: (row) => number(row.start_offset) },
    { title: "Last written", cell: (row) => time(row.last_timestamp) },
    { title: "Producer id", number: true, cell: (row) => row.producer_id },
    { title: "Actions", cell: (row) => canEdit && html`<button class="danger" onClick=${() => setAborted(row)}>Abort</button>` },
  ];
  return html`<section class="panel"><h2>Hanging transactions</h2>
    <p class="muted">A transaction hangs if it is open on a partition but unknown to its coordinator. Consumers with read_committed stop there.</p>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); setPath(`/hanging-transactions${query({ minutes })}`); load.reload(); }}>
      <label>Open for at least, in minutes <input type="number" min="1" required value=${minutes} onInput=${(event) => setMinutes(event.target.value)} /></label>
      <button>Search all partitions</button>
    </form>
    ${path && html`<${Loaded} load=${load}>${(data) => html`<${Table} caption=${plural(data.hanging.length, "hanging transaction")} columns=${columns}
      rows=${data.hanging.map((each) => ({ key: `${place(each)}-${each.producer_id}`, ...each }))} empty="No transaction hangs." />`}<//>`}
    ${aborted && html`<${ConfirmDialog} title="Abort hanging transaction" name=${place(aborted)} action="Abort" onClose=${() => setAborted(null)} submit=${abort}>
      The records of this transaction on this partition are never shown to consumers with read_committed.<//>`}
  </section>`;
}

export function Transaction({ parts, canEdit }) {
  const id = parts[0];
  const path = `/transactions/${segment(id)}`;
  const load = useLoad(path, 5000);
  const [isOpen, setOpen] = useState(false);
  const terminate = async (confirm) => { await remove(path, { confirm }); toast(`${id} was terminated.`); setOpen(false); load.reload(); };
  const actions = canEdit && html`<button class="danger" onClick=${() => setOpen(true)}>Terminate</button>`;
  return html`<${Loaded} load=${load}>${(found) => html`
    <${Head} crumb=${html`<a href="#/transactions">Transactions</a>`} title=${id} actions=${actions}>${state(found)}<//>
    <section class="panel"><dl class="facts">
      <dt>Coordinator</dt><dd>${found.coordinator}</dd>
      <dt>Producer</dt><dd>${found.producer_id}, epoch ${found.producer_epoch}</dd>
      <dt>Timeout</dt><dd>${duration(found.timeout_ms)}</dd>
      <dt>Began</dt><dd>${time(found.start_ms)}</dd>
      <dt>Partitions</dt><dd>${found.partitions.join(", ") || "none"}</dd>
    </dl></section>
    ${isOpen && html`<${ConfirmDialog} title="Terminate transaction" name=${id} action="Terminate" onClose=${() => setOpen(false)} submit=${terminate}>
      The open transaction is aborted, and the producer that owns this id is fenced: it fails at its next request.<//>`}`}
  <//>`;
}
