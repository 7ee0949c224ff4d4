// Schemas: subjects, one subject with its versions and differences, register with a compatibility check.

import { get, post, put, query, remove, segment } from "../api.js";
import { number, plural } from "../format.js";
import { Badge, ConfirmDialog, Empty, FormDialog, Head, Loaded, Pager, Problem, SearchField, Table, html, toast, useLoad, useState } from "../ui.js";

const PAGE_SIZE = 50;
const LEVELS = ["BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"];
const KINDS = [["AVRO", "Avro"], ["JSON", "JSON Schema"], ["PROTOBUF", "Protobuf"]];
const titleOf = (kind) => KINDS.find(([name]) => name === kind)?.[1] ?? kind;
const link = (subject) => `#/schemas/${segment(subject)}`;
const pathOf = (subject, rest = "") => `/schemas/subjects/${segment(subject)}${rest}`;

const COLUMNS = [
  { title: "Subject", name: true, cell: (row) => html`<a href=${link(row.subject)}>${row.subject}</a>` },
  { title: "Type", cell: (row) => titleOf(row.kind) },
  { title: "Versions", number: true, cell: (row) => number(row.versions) },
  { title: "Latest", number: true, cell: (row) => row.version },
  { title: "Schema id", number: true, cell: (row) => row.schema_id },
];

export function Schemas({ query: wanted, canEdit }) {
  const [search, setSearch] = useState(wanted.get("search") ?? "");
  const [page, setPage] = useState(1);
  const [deleted, setDeleted] = useState(false);
  const [open, setOpen] = useState(null);
  const load = useLoad(`/schemas/subjects${query({ search, page, size: PAGE_SIZE, deleted })}`);
  const shown = { ...load, data: load.data ?? load.last };
  const level = shown.data?.compatibility;
  const done = () => { setOpen(null); load.reload(); };
  return html`<${Head} title="Schemas" actions=${html`
      <button onClick=${() => setOpen("id")}>Find by id</button>
      ${canEdit && html`<button onClick=${() => setOpen("level")}>Default compatibility</button>
      <button class="primary" onClick=${() => setOpen("new")}>Register schema</button>`}`}>
      ${level && html`<${Badge}>${level}<//>`}<//>
    <section class="panel">
      <div class="row">
        <${SearchField} label="Search by subject" value=${search} onSearch=${(text) => { setSearch(text); setPage(1); }} />
        <label class="inline"><input type="checkbox" checked=${deleted} onChange=${(event) => { setDeleted(event.target.checked); setPage(1); }} /> Deleted subjects</label>
      </div>
      <${Loaded} load=${shown}>${(data) => html`
        <${Table} caption=${plural(data.total, "subject")} columns=${COLUMNS} rows=${data.subjects.map((each) => ({ key: each.subject, ...each }))}
          empty=${search ? "No subject has this in its name." : "There are no schemas yet. Serializers register them, or you do."} />
        <${Pager} page=${page} size=${PAGE_SIZE} total=${data.total} onPage=${setPage} />`}<//>
    </section>
    ${open === "new" && html`<${Register} onClose=${() => setOpen(null)} onDone=${(subject) => { location.hash = link(subject); }} />`}
    ${open === "level" && html`<${LevelDialog} title="Default compatibility" path="/schemas/compatibility" level=${level} onClose=${() => setOpen(null)} onDone=${done} />`}
    ${open === "id" && html`<${FindId} onClose=${() => setOpen(null)} />`}`;
}

function FindId({ onClose }) {
  const [id, setId] = useState("");
  const submit = async () => {
    const found = await get(`/schemas/ids/${segment(id)}`);
    if (!found.versions.length) throw new Error(`No subject has schema ${id}.`);
    location.hash = `${link(found.versions[0].subject)}?version=${found.versions[0].version}`;
    onClose();
  };
  return html`<${FormDialog} title="Find a schema by its id" action="Find" onClose=${onClose} submit=${submit}>
    <label>Schema id <input type="number" min="1" required value=${id} onInput=${(event) => setId(event.target.value)} autofocus /></label>
  <//>`;
}

function LevelDialog({ title, path, level, onClose, onDone }) {
  const [chosen, setChosen] = useState(level ?? "BACKWARD");
  const submit = async () => { await put(path, { compatibility: chosen }); toast(`Compatibility is ${chosen}.`); onDone(); };
  return html`<${FormDialog} title=${title} action="Change" onClose=${onClose} submit=${submit} disabled=${chosen === level}>
    <label>Level <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>${LEVELS.map((each) => html`<option>${each}</option>`)}</select></label>
    <p class="muted small">BACKWARD: new schemas read data of the latest version. FORWARD: the latest version reads new data. FULL: both. TRANSITIVE: all versions count.</p>
  <//>`;
}

function Register({ subject: given, kind: givenKind, text: givenText, onClose, onDone }) {
  const [subject, setSubject] = useState(given ?? "");
  const [kind, setKind] = useState(givenKind ?? "AVRO");
  const [text, setText] = useState(givenText ?? "");
  const [result, setResult] = useState(null);
  const body = () => ({ kind, text });
  const check = async () => {
    try { setResult(await post(pathOf(subject, "/check"), body())); } catch (error) { setResult({ error }); }
  };
  const submit = async () => {
    const done = await post(pathOf(subject, "/versions"), body());
    toast(`${subject} version ${done.version} has schema id ${done.schema_id}.`);
    onClose();
    onDone(subject);
  };
  return html`<${FormDialog} title=${given ? `New version of ${given}` : "Register schema"} action="Register" onClose=${onClose} submit=${submit}>
    ${!given && html`<label>Subject <input required value=${subject} placeholder="orders-value" onInput=${(event) => setSubject(event.target.value)} autofocus /></label>`}
    <label>Type <select value=${kind} onChange=${(event) => setKind(event.target.value)}>${KINDS.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
    <label>Schema <textarea class="mono" rows="14" required value=${text} onInput=${(event) => { setText(event.target.value); setResult(null); }}></textarea></label>
    <div class="row"><button type="button" disabled=${!subject || !text} onClick=${check}>Check compatibility</button>
      ${result?.is_compatible === true && html`<${Badge} kind="good">compatible<//>`}
      ${result?.is_compatible === false && html`<${Badge} kind="bad">not compatible<//>`}</div>
    ${result?.error && html`<${Problem} error=${result.error} />`}
    ${result?.messages?.length > 0 && html`<ul class="small">${result.messages.map((each) => html`<li>${each}</li>`)}</ul>`}
  <//>`;
}

export function Subject({ parts: [subject], query: wanted, canEdit }) {
  const [open, setOpen] = useState(null);
  const [chosen, setChosen] = useState(Number(wanted.get("version")) || null);
  const [against, setAgainst] = useState(null);
  const load = useLoad(pathOf(subject));
  const versions = load.data?.versions ?? [];
  const shown = chosen ?? versions.at(-1)?.version;
  const detail = useLoad(shown ? pathOf(subject, `/versions/${shown}`) : null);
  const others = versions.filter((each) => each.version !== shown);
  const done = () => { setOpen(null); setChosen(null); setAgainst(null); load.reload(); };
  const isDeleted = versions.length > 0 && versions.every((each) => each.is_deleted);
  return html`<${Head} crumb=${html`<a href="#/schemas">Schemas</a>`} title=${subject} actions=${canEdit && load.data && html`
      ${detail.data && html`<button class="primary" onClick=${() => setOpen("new")}>New version</button>`}
      <button onClick=${() => setOpen("level")}>Compatibility</button>
      <button class="danger" onClick=${() => setOpen("delete")}>Delete</button>`}>
      ${load.data && html`<${Badge}>${load.data.compatibility}<//> ${load.data.mode !== "READWRITE" && html`<${Badge} kind="warn">${load.data.mode}<//>`}`}<//>
    <section class="panel"><${Loaded} load=${load}>${() => html`
      <div class="row">
        <label>Version <select value=${shown} onChange=${(event) => { setChosen(Number(event.target.value)); setAgainst(null); }}>
          ${versions.map((each) => html`<option value=${each.version}>${each.version}${each.is_deleted ? " (deleted)" : ""}</option>`)}</select></label>
        <label>Compare with <select value=${against ?? ""} onChange=${(event) => setAgainst(Number(event.target.value) || null)}>
          <option value="">no version</option>${others.map((each) => html`<option value=${each.version}>${each.version}</option>`)}</select></label>
      </div>
      ${against ? html`<${Difference} subject=${subject} before=${Math.min(against, shown)} after=${Math.max(against, shown)} />` : html`<${Version} load=${detail} />`}`}<//>
    </section>
    ${open === "new" && html`<${Register} subject=${subject} kind=${detail.data.kind} text=${detail.data.text} onClose=${() => setOpen(null)} onDone=${done} />`}
    ${open === "level" && html`<${LevelDialog} title=${`Compatibility of ${subject}`} path=${pathOf(subject, "/compatibility")} level=${load.data.compatibility} onClose=${() => setOpen(null)} onDone=${done} />`}
    ${open === "delete" && html`<${ConfirmDialog} title=${isDeleted ? "Delete for good" : "Delete subject"} name=${subject} action="Delete" onClose=${() => setOpen(null)}
      submit=${async (confirm) => { await remove(pathOf(subject, isDeleted ? "?permanent=true" : ""), { confirm }); toast(`${subject} was deleted.`); location.hash = "#/schemas"; }}>
      <p>${isDeleted ? "Records with these schemas can then no longer be decoded." : "Its versions can no longer be used to write; records with them can still be decoded."}</p><//>`}`;
}

function Version({ load }) {
  return html`<${Loaded} load=${load}>${(data) => html`
    <dl class="facts"><dt>Type</dt><dd>${titleOf(data.kind)}</dd><dt>Schema id</dt><dd>${data.schema_id}</dd>
      ${data.references.length > 0 && html`<dt>Refers to</dt><dd>${data.references.map((each) => html`<a href=${link(each.subject)}>${each.name} (${each.subject} ${each.version})</a> `)}</dd>`}
      ${data.referenced_by.length > 0 && html`<dt>Used by schemas</dt><dd>${data.referenced_by.join(", ")}</dd>`}</dl>
    <pre class="bytes" tabindex="0">${data.text}</pre>`}<//>`;
}

function Difference({ subject, before, after }) {
  const load = useLoad(pathOf(subject, `/diff${query({ before, after })}`));
  const kindOf = (line) => ({ "+": "added", "-": "removed" }[line[0]] ?? "");
  return html`<${Loaded} load=${load}>${(data) => (data.lines.length ? html`
    <pre class="bytes" tabindex="0" aria-label=${`Difference between version ${before} and ${after}`}>${data.lines.filter((line) => !line.startsWith("@@")).map((line) => html`<span class=${kindOf(line)}>${line}\n</span>`)}</pre>`
    : html`<${Empty}>Both versions have the same text.<//>`)}<//>`;
}
