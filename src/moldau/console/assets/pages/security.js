// ACLs, SCRAM users and client quotas.

import { patch, post, put, query, remove, segment } from "../api.js";
import { plural } from "../format.js";
import { Badge, ConfirmDialog, FormDialog, Head, Loaded, Pager, SearchField, Table, Tabs, html, toast, useLoad, useState } from "../ui.js";

const PAGE_SIZE = 100;
const KINDS = ["topic", "group", "cluster", "transactional_id", "delegation_token"];
const OPERATIONS = ["all", "read", "write", "create", "delete", "alter", "describe", "describe_configs", "alter_configs", "idempotent_write", "cluster_action", "create_tokens", "describe_tokens", "two_phase_commit"];
const QUOTAS = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate"];
const TABS = [["acls", "ACLs", "#/security?tab=acls"], ["users", "Users", "#/security?tab=users"], ["quotas", "Quotas", "#/security?tab=quotas"]];
const PARTS = { acls: Acls, users: Users, quotas: Quotas };

export function Security({ query: wanted, canEdit }) {
  const tab = PARTS[wanted.get("tab")] ? wanted.get("tab") : "acls";
  return html`<${Head} title="Security" /><${Tabs} label="Parts of security" tabs=${TABS} current=${tab} />
    <section class="panel"><${PARTS[tab]} key=${tab} canEdit=${canEdit} /></section>`;
}

function useList(path) {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(1);
  const load = useLoad(`${path}${query({ search, page, size: PAGE_SIZE })}`);
  return { load, page, setPage, search, setSearch: (text) => { setSearch(text); setPage(1); } };
}

function List({ list, label, create, canEdit, onCreate, children }) {
  return html`<div class="row"><${SearchField} label=${label} value=${list.search} onSearch=${list.setSearch} />
      ${canEdit && html`<button class="primary" onClick=${onCreate}>${create}</button>`}</div>
    <${Loaded} load=${list.load}>${(data) => html`${children(data)}<${Pager} page=${list.page} size=${PAGE_SIZE} total=${data.total} onPage=${list.setPage} />`}<//>`;
}

function Select({ title, value, options, onChange }) {
  return html`<label>${title} <select value=${value} onChange=${(event) => onChange(event.target.value)}>${options.map((each) => html`<option value=${each}>${each.replaceAll("_", " ")}</option>`)}</select></label>`;
}

function Acls({ canEdit }) {
  const list = useList("/acls");
  const [isOpen, setOpen] = useState(false);
  const [dropped, setDropped] = useState(null);
  const columns = [
    { title: "Principal", name: true, cell: (row) => row.principal },
    { title: "Permission", cell: (row) => html`<${Badge} kind=${row.permission === "allow" ? "good" : "bad"}>${row.permission}<//>` },
    { title: "Operation", cell: (row) => row.operation.replaceAll("_", " ") },
    { title: "Resource", name: true, cell: (row) => html`${row.kind.replaceAll("_", " ")} <strong>${row.name}</strong>${row.pattern === "prefixed" && html`<span class="muted">…</span>`}` },
    { title: "Host", cell: (row) => row.host },
    { title: "Actions", cell: (row) => canEdit && html`<button class="plain" aria-label=${`Delete the ACL of ${row.principal} for ${row.name}`} onClick=${() => setDropped(row)}>Delete</button>` },
  ];
  const drop = async () => {
    const { key, ...acl } = dropped;
    await post("/acls/delete", acl);
    toast("The ACL was deleted.");
    setDropped(null);
    list.load.reload();
  };
  return html`<${List} list=${list} label="Search principals and resources" create="Add ACL" canEdit=${canEdit} onCreate=${() => setOpen(true)}>${(data) => html`
      <${Table} caption=${plural(data.total, "ACL")} columns=${columns} rows=${data.acls.map((each) => ({ key: Object.values(each).join("|"), ...each }))} empty="There are no ACLs." />`}<//>
    ${isOpen && html`<${AddAcl} onClose=${() => setOpen(false)} onDone=${() => { setOpen(false); list.load.reload(); }} />`}
    ${dropped && html`<${FormDialog} title="Delete ACL" action="Delete" danger onClose=${() => setDropped(null)} submit=${drop}>
      <p>${dropped.principal} is no longer ${dropped.permission === "allow" ? "allowed" : "denied"} to ${dropped.operation.replaceAll("_", " ")} on ${dropped.kind} <strong>${dropped.name}</strong>.</p><//>`}`;
}

function AddAcl({ onClose, onDone }) {
  const [acl, setAcl] = useState({ principal: "User:", permission: "allow", operation: "read", kind: "topic", pattern: "literal", name: "", host: "*" });
  const set = (name) => (value) => setAcl({ ...acl, [name]: value, ...(name === "kind" && value === "cluster" ? { name: "kafka-cluster" } : {}) });
  const field = (name) => ({ value: acl[name], onInput: (event) => set(name)(event.target.value), required: true });
  const submit = async () => { await post("/acls", acl); toast("The ACL was added."); onDone(); };
  return html`<${FormDialog} title="Add ACL" action="Add" onClose=${onClose} submit=${submit}>
    <label>Principal <input autofocus ...${field("principal")} /></label>
    <div class="row">
      <${Select} title="Permission" value=${acl.permission} options=${["allow", "deny"]} onChange=${set("permission")} />
      <${Select} title="Operation" value=${acl.operation} options=${OPERATIONS} onChange=${set("operation")} />
      <${Select} title="Kind of resource" value=${acl.kind} options=${KINDS} onChange=${set("kind")} />
      <${Select} title="Pattern" value=${acl.pattern} options=${["literal", "prefixed"]} onChange=${set("pattern")} />
    </div>
    <div class="row"><label class="wide">Name of the resource <input ...${field("name")} /></label><label>Host <input ...${field("host")} /></label></div>
  <//>`;
}

function Users({ canEdit }) {
  const list = useList("/users");
  const [edited, setEdited] = useState(null);
  const [dropped, setDropped] = useState(null);
  const columns = [
    { title: "User", name: true, cell: (row) => row.name },
    { title: "Mechanisms", cell: (row) => Object.entries(row.mechanisms).map(([name, iterations]) => `${name} (${iterations} iterations)`).join(", ") },
    { title: "Actions", cell: (row) => canEdit && html`<button class="plain" onClick=${() => setEdited(row.name)}>Change password</button> <button class="plain" onClick=${() => setDropped(row.name)}>Delete</button>` },
  ];
  const drop = async (confirm) => { await remove(`/users/${segment(dropped)}`, { confirm }); toast(`${dropped} was deleted.`); setDropped(null); list.load.reload(); };
  return html`<${List} list=${list} label="Search users" create="Create user" canEdit=${canEdit} onCreate=${() => setEdited("")}>${(data) => html`
      <${Table} caption=${`${plural(data.total, "user")} with SCRAM credentials`} columns=${columns} rows=${data.users.map((each) => ({ key: each.name, ...each }))} empty="There are no users with SCRAM credentials." />`}<//>
    ${edited !== null && html`<${SetPassword} name=${edited} onClose=${() => setEdited(null)} onDone=${() => { setEdited(null); list.load.reload(); }} />`}
    ${dropped && html`<${ConfirmDialog} title="Delete user" name=${dropped} action="Delete" onClose=${() => setDropped(null)} submit=${drop}>
      The credentials are deleted. Connections that are already authenticated stay open.<//>`}`;
}

function SetPassword({ name: given, onClose, onDone }) {
  const [name, setName] = useState(given);
  const [password, setPassword] = useState("");
  const [mechanism, setMechanism] = useState("SCRAM-SHA-512");
  const submit = async () => { await put(`/users/${segment(name)}`, { password, mechanism }); toast(`The password of ${name} was set.`); onDone(); };
  return html`<${FormDialog} title=${given ? `Change the password of ${given}` : "Create user"} action="Save" onClose=${onClose} submit=${submit}>
    ${!given && html`<label>User <input value=${name} required autocomplete="off" autofocus onInput=${(event) => setName(event.target.value)} /></label>`}
    <label>Password <input type="password" value=${password} required autocomplete="new-password" onInput=${(event) => setPassword(event.target.value)} /></label>
    <${Select} title="Mechanism" value=${mechanism} options=${["SCRAM-SHA-512", "SCRAM-SHA-256"]} onChange=${setMechanism} />
  <//>`;
}

const entityText = (entity) => Object.entries(entity).map(([kind, name]) => `${kind} ${name ?? "(default)"}`).join(", ");

function Quotas({ canEdit }) {
  const list = useList("/quotas");
  const [edited, setEdited] = useState(null);
  const columns = [
    { title: "Entity", name: true, cell: (row) => entityText(row.entity) },
    { title: "Quotas", name: true, cell: (row) => Object.entries(row.values).map(([name, value]) => `${name} = ${value}`).join(", ") },
    { title: "Actions", cell: (row) => canEdit && html`<button class="plain" aria-label=${`Edit the quotas of ${entityText(row.entity)}`} onClick=${() => setEdited(row)}>Edit</button>` },
  ];
  return html`<${List} list=${list} label="Search entities" create="Add quota" canEdit=${canEdit} onCreate=${() => setEdited({ entity: { user: "" }, values: {} })}>${(data) => html`
      <${Table} caption=${plural(data.total, "quota entry").replace("entrys", "entries")} columns=${columns} rows=${data.quotas.map((each) => ({ key: entityText(each.entity), ...each }))} empty="There are no quotas." />`}<//>
    ${edited && html`<${EditQuota} quota=${edited} onClose=${() => setEdited(null)} onDone=${() => { setEdited(null); list.load.reload(); }} />`}`;
}

function EditQuota({ quota, onClose, onDone }) {
  const isNew = quota.entity.user === "" && Object.keys(quota.values).length === 0;
  const [kind, setKind] = useState("user");
  const [name, setName] = useState("");
  const [values, setValues] = useState(Object.fromEntries(QUOTAS.map((each) => [each, quota.values[each] ?? ""])));
  const submit = async () => {
    const changed = QUOTAS.filter((each) => String(values[each]) !== String(quota.values[each] ?? ""));
    if (!changed.length) throw new Error("Nothing was changed.");
    const entity = isNew ? { [kind]: name === "" ? null : name } : quota.entity;
    await patch("/quotas", { entity, values: Object.fromEntries(changed.map((each) => [each, values[each] === "" ? null : Number(values[each])])) });
    toast("The quotas were changed.");
    onDone();
  };
  return html`<${FormDialog} title=${isNew ? "Add quota" : `Quotas of ${entityText(quota.entity)}`} action="Save" onClose=${onClose} submit=${submit}>
    ${isNew && html`<div class="row"><${Select} title="Entity" value=${kind} options=${["user", "client-id", "ip"]} onChange=${setKind} />
      <label class="wide">Name, empty for the default <input value=${name} autocomplete="off" onInput=${(event) => setName(event.target.value)} /></label></div>`}
    ${QUOTAS.map((each) => html`<label>${each} <input type="number" min="0" step="any" placeholder="no quota" value=${values[each]}
      onInput=${(event) => setValues({ ...values, [each]: event.target.value })} /></label>`)}
  <//>`;
}
