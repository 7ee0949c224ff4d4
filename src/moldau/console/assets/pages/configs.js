// Settings of a topic or a broker: search, edit one with validation and a view of the change.

import { patch, segment } from "../api.js";
import { plural } from "../format.js";
import { Badge, FormDialog, Loaded, SearchField, Table, html, toast, useLoad, useState } from "../ui.js";

export function Configs({ kind, name, canEdit }) {
  const [search, setSearch] = useState("");
  const [onlyChanged, setOnlyChanged] = useState(false);
  const [edited, setEdited] = useState(null);
  const path = `/configs/${kind}/${segment(name)}`;
  const load = useLoad(path);
  const columns = [
    { title: "Setting", name: true, cell: (row) => html`<details><summary class="mono">${row.name}</summary><p class="muted small">${row.documentation ?? "No documentation."}</p></details>` },
    { title: "Value", name: true, cell: (row) => (row.is_sensitive ? html`<${Badge}>hidden<//>` : html`<span class="mono">${row.value === "" ? "(empty)" : row.value ?? "–"}</span>`) },
    { title: "Source", cell: (row) => html`<${Badge} kind=${row.is_default ? "" : "warn"}>${row.source.replaceAll("_", " ")}<//>` },
    { title: "Actions", cell: (row) => canEdit && !row.is_read_only && html`<button class="plain" aria-label=${`Edit ${row.name}`} onClick=${() => setEdited(row)}>Edit</button>` },
  ];
  return html`<div class="row">
      <${SearchField} label="Search settings" value=${search} onSearch=${setSearch} />
      <label class="inline"><input type="checkbox" checked=${onlyChanged} onChange=${(event) => setOnlyChanged(event.target.checked)} /> Only changed</label>
    </div>
    <${Loaded} load=${load}>${(data) => {
      const rows = data.configs.filter((each) => each.name.includes(search.trim().toLowerCase()) && !(onlyChanged && each.is_default));
      return html`<${Table} caption=${plural(rows.length, "setting")} columns=${columns} rows=${rows.map((each) => ({ key: each.name, ...each }))} empty="No setting matches." />`;
    }}<//>
    ${edited && html`<${EditConfig} path=${path} entry=${edited} onClose=${() => setEdited(null)} onDone=${() => { setEdited(null); load.reload(); }} />`}`;
}

function EditConfig({ path, entry, onClose, onDone }) {
  const [value, setValue] = useState(entry.value ?? "");
  const [toDefault, setToDefault] = useState(false);
  const change = () => (toDefault ? { removed: [entry.name] } : { values: { [entry.name]: value } });
  const submit = async () => {
    await patch(path, { ...change(), validate_only: true });
    await patch(path, change());
    toast(`${entry.name} was ${toDefault ? "reset" : "changed"}.`);
    onDone();
  };
  return html`<${FormDialog} title=${entry.name} action="Change" onClose=${onClose} submit=${submit} disabled=${!toDefault && value === entry.value}>
    <p class="muted">${entry.documentation}</p>
    <label>Value <input class="mono" value=${value} disabled=${toDefault} onInput=${(event) => setValue(event.target.value)} autofocus /></label>
    ${!entry.is_default && html`<label class="inline"><input type="checkbox" checked=${toDefault} onChange=${(event) => setToDefault(event.target.checked)} /> Return to the default</label>`}
    <dl class="facts"><dt>Now</dt><dd class="mono">${entry.value ?? "–"}</dd><dt>Then</dt><dd class="mono">${toDefault ? "the default" : value || "(empty)"}</dd></dl>
  <//>`;
}
