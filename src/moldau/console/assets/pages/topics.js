// The list of topics, and one topic with its tabs.

import { get, post, put, query, remove, segment } from "../api.js";
import { compact, number, plural, retention } from "../format.js";
import { Badge, ConfirmDialog, FormDialog, Head, Loaded, Pager, SearchField, Table, Tabs, html, toast, useLoad, useState } from "../ui.js";
import { Configs } from "./configs.js";
import { MessagePage, Messages } from "./messages.js";

const PAGE_SIZE = 50;
const PARTITIONS_PAGE = 100;
const link = (name, tab = "") => `#/topics/${segment(name)}${tab && `/${tab}`}`;

const COLUMNS = [
  { title: "Topic", name: true, sort: "name", cell: (row) => html`<a href=${link(row.name)}>${row.name}</a> ${row.is_internal && html`<${Badge}>internal<//>`}` },
  { title: "Partitions", number: true, sort: "partitions", cell: (row) => number(row.partitions) },
  { title: "Replicas", number: true, sort: "replication", cell: (row) => row.replication_factor },
  { title: "Records", number: true, cell: (row) => compact(row.records) },
  { title: "Kept", cell: (row) => retention(row.configs) },
  { title: "State", sort: "under_replicated", cell: (row) => (row.offline ? html`<${Badge} kind="bad">${row.offline} without leader<//>`
    : row.under_replicated ? html`<${Badge} kind="warn">${row.under_replicated} under-replicated<//>` : html`<${Badge} kind="good">in sync<//>`) },
];

export function Topics({ query: wanted, canEdit }) {
  const [search, setSearch] = useState(wanted.get("search") ?? "");
  const [page, setPage] = useState(1);
  const [sort, setSort] = useState("name");
  const [internal, setInternal] = useState(false);
  const [isCreating, setCreating] = useState(false);
  const load = useLoad(`/topics${query({ search, page, sort, internal, size: PAGE_SIZE })}`, 10000);
  const shown = { ...load, data: load.data ?? load.last };
  return html`<${Head} title="Topics" actions=${canEdit && html`<button class="primary" onClick=${() => setCreating(true)}>Create topic</button>`} />
    <section class="panel">
      <div class="row">
        <${SearchField} label="Search by name" value=${search} onSearch=${(text) => { setSearch(text); setPage(1); }} />
        <label class="inline"><input type="checkbox" checked=${internal} onChange=${(event) => { setInternal(event.target.checked); setPage(1); }} /> Internal topics</label>
      </div>
      <${Loaded} load=${shown}>${(data) => html`
        <${Table} caption=${plural(data.total, "topic")} columns=${COLUMNS} rows=${data.topics.map((each) => ({ key: each.name, ...each }))}
          sort=${sort} onSort=${(next) => { setSort(next); setPage(1); }}
          empty=${search ? "No topic has this in its name." : "There are no topics yet. Create one, or produce to one that brokers create."} />
        <${Pager} page=${page} size=${PAGE_SIZE} total=${data.total} onPage=${setPage} />`}
      <//>
    </section>
    ${isCreating && html`<${CreateTopic} onClose=${() => setCreating(false)} />`}`;
}

function CreateTopic({ onClose, like }) {
  const [name, setName] = useState(like ? `${like.name}-copy` : "");
  const [partitions, setPartitions] = useState(like ? String(like.partitions) : "");
  const [replicas, setReplicas] = useState(like ? String(like.replication_factor) : "");
  const [configs, setConfigs] = useState(like ? like.configs : "");
  const submit = async () => {
    const lines = configs.split("\n").map((line) => line.trim()).filter(Boolean);
    const wrong = lines.find((line) => !line.includes("="));
    if (wrong) throw new Error(`${wrong}: write settings as name=value, one per line.`);
    await post("/topics", {
      name: name.trim(),
      partitions: partitions ? Number(partitions) : -1,
      replication_factor: replicas ? Number(replicas) : -1,
      configs: Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()])),
    });
    toast(`Topic ${name.trim()} was created.`);
    onClose();
    location.hash = link(name.trim());
  };
  return html`<${FormDialog} title=${like ? `Create a topic like ${like.name}` : "Create topic"} action="Create" onClose=${onClose} submit=${submit}>
    <label>Name <input value=${name} required maxlength="249" onInput=${(event) => setName(event.target.value)} autofocus /></label>
    <div class="row">
      <label class="wide">Partitions <input type="number" min="1" placeholder="default" value=${partitions} onInput=${(event) => setPartitions(event.target.value)} /></label>
      <label class="wide">Replication factor <input type="number" min="1" placeholder="default" value=${replicas} onInput=${(event) => setReplicas(event.target.value)} /></label>
    </div>
    <label>Settings, one name=value per line <textarea value=${configs} placeholder="retention.ms=86400000" onInput=${(event) => setConfigs(event.target.value)}></textarea></label>
  <//>`;
}

function AddPartitions({ topic, onClose, onDone }) {
  const [count, setCount] = useState(String(topic.partitions + 1));
  const submit = async () => {
    await put(`/topics/${segment(topic.name)}/partitions`, { partitions: Number(count) });
    toast(`${topic.name} has ${plural(Number(count), "partition")}.`);
    onDone();
  };
  return html`<${FormDialog} title=${`Add partitions to ${topic.name}`} action="Add" onClose=${onClose} submit=${submit}>
    <p class="notice warn">Records with the same key may go to other partitions afterwards. Partitions cannot be removed.</p>
    <label>New number of partitions <input type="number" min=${topic.partitions + 1} required value=${count} onInput=${(event) => setCount(event.target.value)} /></label>
  <//>`;
}

function Actions({ topic, reload }) {
  const [open, setOpen] = useState(null);
  const [like, setLike] = useState(null);
  const close = () => setOpen(null);
  const path = `/topics/${segment(topic.name)}`;
  const clone = async () => {
    try {
      const { configs } = await get(`/configs/topic/${segment(topic.name)}`);
      const own = configs.filter((each) => each.source === "topic").map((each) => `${each.name}=${each.value}`);
      setLike({ ...topic, configs: own.join("\n") });
      setOpen("clone");
    } catch (error) { toast(error.message, "bad"); }
  };
  const empty = async (confirm) => { await post(`${path}/empty`, { confirm }); toast(`${topic.name} was emptied.`); close(); reload(); };
  const drop = async (confirm) => { await remove(path, { confirm }); toast(`${topic.name} was deleted.`); location.hash = "#/topics"; };
  return html`<button onClick=${() => setOpen("grow")}>Add partitions</button>
    <button onClick=${clone}>Clone</button>
    <button class="danger" onClick=${() => setOpen("empty")}>Empty</button>
    <button class="danger" onClick=${() => setOpen("delete")}>Delete</button>
    ${open === "grow" && html`<${AddPartitions} topic=${topic} onClose=${close} onDone=${() => { close(); reload(); }} />`}
    ${open === "clone" && html`<${CreateTopic} like=${like} onClose=${close} />`}
    ${open === "empty" && html`<${ConfirmDialog} title="Empty topic" name=${topic.name} action="Delete all records" onClose=${close} submit=${empty}>
      All ${compact(topic.records)} records are deleted. Offsets go on from where they are.<//>`}
    ${open === "delete" && html`<${ConfirmDialog} title="Delete topic" name=${topic.name} action="Delete topic" onClose=${close} submit=${drop}>
      The topic and all its records are deleted.<//>`}`;
}

const TABS = ["messages", "partitions", "consumers", "settings"];

export function Topic({ parts, query: wanted, canEdit }) {
  const [name, tab = "messages", ...rest] = parts;
  const load = useLoad(`/topics/${segment(name)}?size=1`, 10000);
  const crumb = html`<a href="#/topics">Topics</a>`;
  const tabs = TABS.map((each) => [each, each[0].toUpperCase() + each.slice(1), link(name, each)]);
  return html`<${Loaded} load=${load}>${(topic) => html`
    <${Head} crumb=${crumb} title=${name} actions=${canEdit && !topic.is_internal && html`<${Actions} topic=${topic} reload=${load.reload} />`}>
      <${Badge}>${plural(topic.partitions, "partition")}<//>
      <${Badge}>${plural(topic.replication_factor, "replica")}<//>
      <${Badge}>${compact(topic.records)} ${topic.records === 1 ? "record" : "records"}<//>
      ${topic.offline > 0 && html`<${Badge} kind="bad">${topic.offline} without leader<//>`}
      ${topic.under_replicated > 0 && html`<${Badge} kind="warn">${topic.under_replicated} under-replicated<//>`}
    <//>
    <${Tabs} label="Parts of the topic" tabs=${tabs} current=${tab} />
    ${tab === "messages" && (rest.length === 2
      ? html`<${MessagePage} topic=${name} partition=${rest[0]} offset=${rest[1]} canEdit=${canEdit} />`
      : html`<${Messages} topic=${topic} query=${wanted} canEdit=${canEdit} />`)}
    ${tab === "partitions" && html`<${Partitions} name=${name} />`}
    ${tab === "consumers" && html`<${Consumers} name=${name} />`}
    ${tab === "settings" && html`<section class="panel"><${Configs} kind="topic" name=${name} canEdit=${canEdit} /></section>`}`}
  <//>
  ${load.error && html`<p><a href="#/topics">All topics</a></p>`}`;
}

function Partitions({ name }) {
  const [page, setPage] = useState(1);
  const load = useLoad(`/topics/${segment(name)}${query({ page, size: PARTITIONS_PAGE })}`, 5000);
  const columns = (data) => {
    const most = Math.max(...data.partition_list.map((each) => each.end - each.start), 1);
    return [
      { title: "Partition", number: true, cell: (row) => row.partition },
      { title: "Leader", number: true, cell: (row) => (row.leader < 0 ? html`<${Badge} kind="bad">none<//>` : html`<a href=${`#/brokers/${row.leader}`}>${row.leader}</a>`) },
      { title: "Replicas", cell: (row) => row.replicas.join(", ") },
      { title: "In sync", cell: (row) => (row.isr.length < row.replicas.length ? html`<${Badge} kind="warn">${row.isr.join(", ") || "none"}<//>` : row.isr.join(", ")) },
      { title: "First offset", number: true, cell: (row) => number(row.start) },
      { title: "End offset", number: true, cell: (row) => number(row.end) },
      { title: "Records", number: true, cell: (row) => (row.end === null ? "–" : number(row.end - row.start)) },
      { title: "Share", cell: (row) => html`<span class="bar" aria-hidden="true"><span style=${{ width: `${(100 * (row.end - row.start)) / most}%` }}></span></span>` },
      { title: "Epoch", number: true, cell: (row) => row.leader_epoch },
    ];
  };
  return html`<section class="panel"><${Loaded} load=${{ ...load, data: load.data ?? load.last }}>${(data) => html`
    ${data.skew !== null && data.total > 1 && html`<p>The largest partition has <strong>${data.skew.toFixed(2)} times</strong> the average number of records.</p>`}
    <${Table} caption=${plural(data.total, "partition")} columns=${columns(data)} rows=${data.partition_list.map((each) => ({ key: each.partition, ...each }))} />
    <${Pager} page=${page} size=${PARTITIONS_PAGE} total=${data.total} onPage=${setPage} />`}
  <//></section>`;
}

const CONSUMERS = [
  { title: "Group", name: true, cell: (row) => html`<a href=${`#/groups/${segment(row.group)}`}>${row.group}</a>` },
  { title: "State", cell: (row) => row.state },
  { title: "Members", number: true, cell: (row) => number(row.members) },
  { title: "Partitions", number: true, cell: (row) => number(row.partitions) },
  { title: "Lag", number: true, cell: (row) => number(row.lag) },
];

function Consumers({ name }) {
  const load = useLoad(`/topics/${segment(name)}/groups`, 10000);
  return html`<section class="panel"><${Loaded} load=${load}>${(data) => html`
    ${data.searched < data.total && html`<p class="notice">The first ${number(data.searched)} of ${number(data.total)} groups were searched.</p>`}
    <${Table} caption="Groups with offsets of this topic" columns=${CONSUMERS} rows=${data.groups.map((each) => ({ key: each.group, ...each }))}
      empty="No group has read this topic." />`}
  <//></section>`;
}
