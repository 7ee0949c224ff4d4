// Brokers, the metadata quorum, ongoing reassignments; one broker with its log dirs and settings.

import { put, segment } from "../api.js";
import { bytes, duration, number, plural } from "../format.js";
import { Badge, FormDialog, Head, Loaded, Table, Tabs, html, toast, useLoad, useState } from "../ui.js";
import { Configs } from "./configs.js";

const COLUMNS = [
  { title: "Broker", cell: (row) => html`<a href=${`#/brokers/${row.id}`}>${row.id}</a> ${row.isController && html`<${Badge}>controller<//>`}` },
  { title: "Address", name: true, cell: (row) => row.address ?? "–" },
  { title: "Rack", cell: (row) => row.rack ?? "–" },
  { title: "State", cell: (row) => (row.is_fenced ? html`<${Badge} kind="bad">fenced<//>` : row.is_cordoned ? html`<${Badge} kind="warn">cordoned<//>` : html`<${Badge} kind="good">running<//>`) },
  { title: "Leaders", number: true, cell: (row) => html`${number(row.leaders)} <span class="muted">of ${number(row.preferred)}</span>` },
  { title: "Replicas", number: true, cell: (row) => number(row.replicas) },
  { title: "Out of sync", number: true, cell: (row) => (row.out_of_sync ? html`<${Badge} kind="warn">${number(row.out_of_sync)}<//>` : 0) },
  { title: "Logs", number: true, cell: (row) => bytes(row.size_bytes) },
  { title: "Free", number: true, cell: (row) => bytes(row.free_bytes) },
];
const VOTERS = [
  { title: "Node", cell: (row) => html`${row.id} ${row.isLeader && html`<${Badge} kind="good">leader<//>`}` },
  { title: "Role", cell: (row) => row.role },
  { title: "End offset", number: true, cell: (row) => number(row.end_offset) },
  { title: "Lag", number: true, cell: (row) => number(row.lag) },
  { title: "Behind", number: true, cell: (row) => duration(row.behind_ms) },
  { title: "Listeners", name: true, cell: (row) => row.listeners.join(", ") || "–" },
];
const MOVES = [
  { title: "Partition", name: true, cell: (row) => html`<a href=${`#/topics/${segment(row.topic)}/partitions`}>${row.topic}-${row.partition}</a>` },
  { title: "Replicas", cell: (row) => row.replicas.join(", ") },
  { title: "Added", cell: (row) => row.adding.join(", ") || "–" },
  { title: "Removed", cell: (row) => row.removing.join(", ") || "–" },
];

export function Brokers() {
  const brokers = useLoad("/brokers", 5000);
  const quorum = useLoad("/quorum", 5000);
  const moves = useLoad("/reassignments", 5000);
  const replicas = (view) => [...view.voters.map((each) => ({ ...each, role: "voter" })), ...view.observers.map((each) => ({ ...each, role: "observer" }))];
  return html`<${Head} title="Brokers" />
    <section class="panel"><${Loaded} load=${brokers}>${(data) => html`
      <${Table} caption=${plural(data.brokers.length, "broker")} columns=${COLUMNS} rows=${data.brokers.map((each) => ({ key: each.id, isController: each.id === data.controller, ...each }))} />`}<//></section>
    <section class="panel"><h2>Metadata quorum</h2><${Loaded} load=${quorum}>${(view) => html`
      <p class="muted">Leader ${view.leader}, epoch ${number(view.epoch)}, high watermark ${number(view.high_watermark)}</p>
      <${Table} caption="Voters and observers of the metadata log" columns=${VOTERS} rows=${replicas(view).map((each) => ({ key: `${each.role}-${each.id}-${each.directory_id}`, isLeader: each.id === view.leader, ...each }))} />`}<//></section>
    <section class="panel"><h2>Reassignments</h2><${Loaded} load=${moves}>${(data) => html`
      <${Table} caption=${plural(data.total, "partition")} columns=${MOVES} rows=${data.reassignments.map((each) => ({ key: `${each.topic}-${each.partition}`, ...each }))} empty="No partition is being reassigned." />`}<//></section>`;
}

function Cordon({ id, isCordoned, onClose, onDone }) {
  const submit = async () => {
    await put(`/brokers/${id}/cordon`, { is_cordoned: !isCordoned });
    toast(`Broker ${id} is ${isCordoned ? "uncordoned" : "cordoned"}.`);
    onDone();
  };
  return html`<${FormDialog} title=${`${isCordoned ? "Uncordon" : "Cordon"} broker ${id}`} action=${isCordoned ? "Uncordon" : "Cordon"} onClose=${onClose} submit=${submit}>
    <p>${isCordoned ? "The broker gets new partitions again." : "The broker gets no new partitions until it is uncordoned. It keeps those that it has."}</p>
  <//>`;
}

const LARGEST = [
  { title: "Topic", name: true, cell: (row) => html`<a href=${`#/topics/${segment(row.name)}`}>${row.name}</a>` },
  { title: "Size", number: true, cell: (row) => bytes(row.size_bytes) },
];

export function Broker({ parts, canEdit }) {
  const [id, tab = "log-dirs"] = parts;
  const [isOpen, setOpen] = useState(false);
  const brokers = useLoad("/brokers", 10000);
  const state = brokers.data?.brokers.find((each) => String(each.id) === id);
  const isCordoned = Boolean(state?.is_cordoned);
  const actions = canEdit && state && html`<button onClick=${() => setOpen(true)}>${isCordoned ? "Uncordon" : "Cordon"}</button>`;
  return html`<${Head} crumb=${html`<a href="#/brokers">Brokers</a>`} title=${`Broker ${id}`} actions=${actions}>
      ${state && html`<${Badge}>${state.address ?? "unknown address"}<//>`} ${isCordoned && html`<${Badge} kind="warn">cordoned<//>`}
      ${state?.is_fenced && html`<${Badge} kind="bad">fenced<//>`}
    <//>
    <${Tabs} label="Parts of the broker" tabs=${[["log-dirs", "Log dirs", `#/brokers/${id}/log-dirs`], ["settings", "Settings", `#/brokers/${id}/settings`]]} current=${tab} />
    ${tab === "settings" ? html`<section class="panel"><${Configs} kind="broker" name=${id} canEdit=${canEdit} /></section>` : html`<${LogDirs} id=${id} />`}
    ${isOpen && html`<${Cordon} id=${id} isCordoned=${isCordoned} onClose=${() => setOpen(false)} onDone=${() => { setOpen(false); brokers.reload(); }} />`}`;
}

function LogDirs({ id }) {
  const load = useLoad(`/brokers/${segment(id)}/log-dirs`);
  return html`<${Loaded} load=${load}>${(data) => data.log_dirs.map((each) => html`<section class="panel"><h2 class="mono">${each.path}</h2>
    ${each.error_code !== 0 && html`<p class="notice bad">The broker cannot use this directory (error ${each.error_code}).</p>`}
    <dl class="facts"><dt>Logs</dt><dd>${bytes(each.size_bytes)}</dd><dt>Disk</dt><dd>${bytes(each.total_bytes)}</dd><dt>Free</dt><dd>${bytes(each.usable_bytes)}</dd></dl><br />
    <${Table} caption=${`The largest of ${plural(each.topics_total, "topic")}`} columns=${LARGEST} rows=${each.topics.map((topic) => ({ key: topic.name, ...topic }))} empty="No logs." />
  </section>`)}<//>`;
}
