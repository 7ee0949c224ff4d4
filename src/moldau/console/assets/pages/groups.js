// Consumer groups: the list with lag, one group with its members, offset resets.

import { post, query, remove, segment } from "../api.js";
import { compact, duration, number, plural } from "../format.js";
import { Badge, Chart, ConfirmDialog, FormDialog, Head, Loaded, Pager, Problem, SearchField, Table, html, toast, useEffect, useLoad, useState } from "../ui.js";

const PAGE_SIZE = 25;
const POINTS_MAX = 300;
const SAMPLE_MS = 3000;
const DRAIN_POINTS = 20;
const state = (row) => html`<${Badge} kind=${row.state === "Stable" ? "good" : row.state === "Empty" ? "" : "warn"}>${row.state}<//>`;

const COLUMNS = [
  { title: "Group", name: true, sort: "group", cell: (row) => html`<a href=${`#/groups/${segment(row.group)}`}>${row.group}</a>` },
  { title: "State", sort: "state", cell: state },
  { title: "Protocol", sort: "protocol", cell: (row) => row.protocol },
  { title: "Members", number: true, cell: (row) => number(row.members) },
  { title: "Topics", name: true, cell: (row) => (row.message ? html`<span class="muted">${row.message}</span>`
    : `${(row.topics ?? []).slice(0, 3).join(", ")}${row.topics_total > 3 ? ` and ${row.topics_total - 3} more` : ""}`) },
  { title: "Lag", number: true, cell: (row) => number(row.lag) },
];

export function Groups() {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(1);
  const [sort, setSort] = useState("group");
  const load = useLoad(`/groups${query({ search, page, sort, size: PAGE_SIZE })}`, 5000);
  return html`<${Head} title="Groups" />
    <section class="panel">
      <div class="row"><${SearchField} label="Search by name" value=${search} onSearch=${(text) => { setSearch(text); setPage(1); }} /></div>
      <${Loaded} load=${{ ...load, data: load.data ?? load.last }}>${(data) => html`
        ${data.failures.map((each) => html`<p class="notice warn">Broker ${each.broker} did not list its groups: ${each.message}</p>`)}
        <${Table} caption=${plural(data.total, "group")} columns=${COLUMNS} rows=${data.groups.map((each) => ({ key: each.group, ...each }))} sort=${sort} onSort=${setSort}
          empty=${search ? "No group has this in its name." : "There are no groups. One appears when a consumer with a group id connects."} />
        <${Pager} page=${page} size=${PAGE_SIZE} total=${data.total} onPage=${setPage} />`}
      <//>
    </section>`;
}

// The history of this page's visit; the drain estimate is the trend of the last minute.
function useLag(data) {
  const [points, setPoints] = useState([]);
  useEffect(() => {
    if (data && data.lag !== null) setPoints((before) => [...before, [Date.now() / 1000, data.lag]].slice(-POINTS_MAX));
  }, [data]);
  return points;
}

function drain(points) {
  const recent = points.slice(-DRAIN_POINTS);
  if (recent.length < 3) return "…";
  const [first, last] = [recent[0], recent.at(-1)];
  if (last[1] === 0) return "no lag";
  const rate = (first[1] - last[1]) / (last[0] - first[0]);
  if (rate <= 0) return rate < 0 ? "never: it grows" : "never: it is constant";
  return `in about ${duration((1000 * last[1]) / rate)}`;
}

const PARTITIONS = [
  { title: "Topic", name: true, cell: (row) => html`<a href=${`#/topics/${segment(row.topic)}`}>${row.topic}</a>` },
  { title: "Partition", number: true, cell: (row) => row.partition },
  { title: "Committed", number: true, cell: (row) => number(row.committed) },
  { title: "End", number: true, cell: (row) => number(row.end) },
  { title: "Lag", number: true, cell: (row) => number(row.lag) },
  { title: "Member", name: true, cell: (row) => row.client_id ?? html`<span class="muted">none</span>` },
];
const MEMBERS = [
  { title: "Client id", name: true, cell: (row) => row.client_id },
  { title: "Member id", name: true, cell: (row) => html`<span class="mono small">${row.member_id}</span>` },
  { title: "Instance id", cell: (row) => row.instance_id ?? "–" },
  { title: "Host", cell: (row) => row.host },
  { title: "Partitions", number: true, cell: (row) => number(row.partitions) },
];

export function Group({ parts, canEdit, theme }) {
  const name = parts[0];
  const path = `/groups/${segment(name)}`;
  const load = useLoad(path, SAMPLE_MS);
  const points = useLag(load.data);
  const [open, setOpen] = useState(null);
  const [page, setPage] = useState(1);
  const close = () => setOpen(null);
  const drop = async (confirm) => { await remove(path, { confirm }); toast(`${name} was deleted.`); location.hash = "#/groups"; };
  const crumb = html`<a href="#/groups">Groups</a>`;
  const actions = (group) => canEdit && html`
    <button disabled=${group.members_total > 0} title=${group.members_total > 0 ? "Stop the members first" : ""} onClick=${() => setOpen("reset")}>Reset offsets</button>
    <button class="danger" disabled=${group.members_total > 0} title=${group.members_total > 0 ? "Stop the members first" : ""} onClick=${() => setOpen("delete")}>Delete</button>`;
  return html`<${Loaded} load=${load}>${(group) => html`
    <${Head} crumb=${crumb} title=${name} actions=${actions(group)}>
      ${state(group)} <${Badge}>${group.protocol}<//> ${group.assignor && html`<${Badge}>${group.assignor}<//>`} <${Badge}>coordinator ${group.coordinator}<//>
    <//>
    <dl class="tiles">
      <div class="tile"><dt>Lag</dt><dd>${number(group.lag)}</dd></div>
      <div class="tile"><dt>Lag drains</dt><dd>${drain(points)}</dd></div>
      <div class="tile"><dt>Members</dt><dd>${number(group.members_total)}</dd></div>
      <div class="tile"><dt>Partitions</dt><dd>${number(group.partitions_total)}</dd></div>
    </dl>
    <section class="panel"><h2>Lag since this page was opened</h2>
      <${Chart} key=${theme} label="Lag" points=${points} format=${compact} /></section>
    <section class="panel"><h2>Partitions</h2>
      <${Table} caption="Offsets and lag by partition" columns=${PARTITIONS} rows=${group.partitions.slice((page - 1) * 100, page * 100).map((each) => ({ key: `${each.topic}-${each.partition}`, ...each }))}
        empty="The group has no offsets yet." />
      <${Pager} page=${page} size=${100} total=${group.partitions.length} onPage=${setPage} />
    </section>
    <section class="panel"><h2>Members</h2>
      <${Table} caption="Members of the group" columns=${MEMBERS} rows=${group.members.map((each) => ({ key: each.member_id, ...each }))} empty="No consumer is connected." /></section>
    ${open === "reset" && html`<${Reset} group=${group} path=${path} onClose=${close} onDone=${() => { close(); load.reload(); }} />`}
    ${open === "delete" && html`<${ConfirmDialog} title="Delete group" name=${name} action="Delete group" onClose=${close} submit=${drop}>
      The group and its committed offsets are deleted.<//>`}`}
  <//>`;
}

const MODES = [["start", "the first record"], ["end", "the end"], ["time", "a time"], ["offset", "an offset"], ["ago", "a duration ago"], ["shift", "a shift of the committed offsets"]];
const UNITS = { s: 1000, m: 60000, h: 3600000, d: 86400000 };

function targetOf(mode, value) {
  if (mode === "start" || mode === "end") return { to: mode };
  if (mode === "offset") return { to: value.trim() };
  if (mode === "shift") {
    if (!/^[+-]?\d+$/.test(value.trim())) throw new Error("A shift is a number, such as -100.");
    return { shift: Number(value) };
  }
  if (mode === "time") return { to: `@${new Date(value).getTime()}` };
  const found = /^(\d+)\s*([smhd])$/.exec(value.trim());
  if (!found) throw new Error("Write a duration as 30s, 90m, 12h or 7d.");
  return { to: `@${Date.now() - Number(found[1]) * UNITS[found[2]]}` };
}

function Reset({ group, path, onClose, onDone }) {
  const topics = [...new Set(group.partitions.map((each) => each.topic))];
  const [topic, setTopic] = useState(topics[0] ?? "");
  const [partitions, setPartitions] = useState("");
  const [mode, setMode] = useState("start");
  const [value, setValue] = useState("");
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [confirm, setConfirm] = useState("");
  const body = () => ({
    ...targetOf(mode, value),
    topics: { [topic]: partitions.trim() ? partitions.split(",").map((each) => Number(each.trim())) : null },
  });
  const preview = async () => {
    setError(null);
    try { setPlan(await post(`${path}/offsets`, { ...body(), dry_run: true })); } catch (failure) { setPlan(null); setError(failure); }
  };
  const submit = async () => {
    const done = await post(`${path}/offsets`, { ...body(), dry_run: false, confirm });
    toast(`The offsets of ${plural(done.plan.length, "partition")} were reset.`);
    onDone();
  };
  const changed = (set) => (event) => { set(event.target.value); setPlan(null); };
  const columns = [
    { title: "Partition", number: true, cell: (row) => row.partition },
    { title: "Committed", number: true, cell: (row) => number(row.committed) },
    { title: "New", number: true, cell: (row) => number(row.target) },
    { title: "Change", number: true, cell: (row) => (row.committed === null ? "–" : number(row.target - row.committed)) },
  ];
  return html`<${FormDialog} title=${`Reset offsets of ${group.group}`} action="Commit" danger disabled=${!plan || confirm !== group.group} onClose=${onClose} submit=${submit}>
    <div class="row">
      <label class="wide">Topic <input value=${topic} list="reset-topics" required onInput=${changed(setTopic)} />
        <datalist id="reset-topics">${topics.map((each) => html`<option value=${each} />`)}</datalist></label>
      <label>Partitions <input placeholder="all" value=${partitions} onInput=${changed(setPartitions)} /></label>
    </div>
    <div class="row">
      <label>To <select value=${mode} onChange=${changed(setMode)}>${MODES.map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      ${mode === "time" && html`<label>Time <input type="datetime-local" step="1" value=${value} onInput=${changed(setValue)} /></label>`}
      ${["offset", "ago", "shift"].includes(mode) && html`<label>${mode === "ago" ? "Duration" : mode === "offset" ? "Offset" : "Shift"}
        <input value=${value} placeholder=${{ offset: "42", ago: "12h", shift: "-100" }[mode]} onInput=${changed(setValue)} /></label>`}
      <button type="button" onClick=${preview}>Show what changes</button>
    </div>
    ${error && html`<${Problem} error=${error} />`}
    ${plan && html`<${Table} caption=${`Dry run: ${plural(plan.plan.length, "partition")}`} columns=${columns} rows=${plan.plan.slice(0, 200).map((each) => ({ key: each.partition, ...each }))} />
      <label>Type <code>${group.group}</code> to confirm <input value=${confirm} autocomplete="off" onInput=${(event) => setConfirm(event.target.value)} /></label>`}
  <//>`;
}
