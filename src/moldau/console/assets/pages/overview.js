// Health of the cluster, and rates from the growth of offsets between two samples.

import { compact, number, plural } from "../format.js";
import { segment } from "../api.js";
import { Badge, Chart, Head, Loaded, Table, html, useEffect, useLoad, useState } from "../ui.js";

const SAMPLE_MS = 3000;
const POINTS_MAX = 200;
const BUSIEST_SHOWN = 8;

function useRates() {
  const sample = useLoad("/totals", SAMPLE_MS);
  const [state, setState] = useState({ before: null, points: [], busiest: [] });
  useEffect(() => {
    const now = sample.data;
    if (!now) return;
    setState(({ before, points, busiest }) => {
      const seconds = before ? (now.at_ms - before.at_ms) / 1000 : 0;
      if (seconds <= 0 || !now.is_sampled) return { before: now, points, busiest };
      const rate = Math.max(now.records - before.records, 0) / seconds;
      const rates = Object.entries(now.topics)
        .map(([name, end]) => ({ key: name, name, rate: Math.max(end - (before.topics[name] ?? end), 0) / seconds }))
        .filter((each) => each.rate > 0).sort((left, right) => right.rate - left.rate);
      return {
        before: now,
        points: [...points, [Date.now() / 1000, rate]].slice(-POINTS_MAX),
        busiest: rates.slice(0, BUSIEST_SHOWN),
      };
    });
  }, [sample.data]);
  return { ...state, sample };
}

const Tile = ({ title, kind = "", children }) => html`<div class=${`tile ${kind}`}><dt>${title}</dt><dd>${children}</dd></div>`;

function Problems({ overview }) {
  if (overview.is_healthy) return html`<p class="notice good" role="status">The cluster is healthy.</p>`;
  return html`<div class="notice bad" role="alert"><strong>${plural(overview.problems.length, "problem")}</strong>
    <ul>${overview.problems.map((each) => html`<li>${each}</li>`)}</ul></div>`;
}

const BROKERS = [
  { title: "Broker", cell: (row) => html`<a href=${`#/brokers/${row.id}`}>${row.id}</a>` },
  { title: "Address", name: true, cell: (row) => `${row.host}:${row.port}` },
  { title: "Rack", cell: (row) => row.rack ?? "–" },
  { title: "State", cell: (row) => (row.is_fenced ? html`<${Badge} kind="bad">fenced<//>`
    : row.is_unreachable ? html`<${Badge} kind="bad">unreachable<//>` : html`<${Badge} kind="good">running<//>`) },
];
const BUSIEST = [
  { title: "Topic", name: true, cell: (row) => html`<a href=${`#/topics/${segment(row.name)}`}>${row.name}</a>` },
  { title: "Records/s", number: true, cell: (row) => compact(row.rate) },
];
const UNHEALTHY = [
  { title: "Partition", name: true, cell: (row) => html`<a href=${`#/topics/${segment(row.topic)}/partitions`}>${row.topic}-${row.partition}</a>` },
  { title: "Leader", number: true, cell: (row) => (row.leader < 0 ? html`<${Badge} kind="bad">none<//>` : row.leader) },
  { title: "Replicas", cell: (row) => row.replicas.join(", ") },
  { title: "In sync", cell: (row) => row.isr.join(", ") || "–" },
];

export function Overview({ theme }) {
  const load = useLoad("/overview", 5000);
  const rates = useRates();
  const last = rates.points.at(-1)?.[1];
  return html`<${Head} title="Overview" />
    <${Loaded} load=${load}>${(overview) => html`
      <${Problems} overview=${overview} />
      ${overview.advice.map((each) => html`<p class="notice">${each}</p>`)}
      <dl class="tiles">
        <${Tile} title="Records/s" >${compact(last)}<//>
        <${Tile} title="Brokers">${number(overview.brokers.length)}<//>
        <${Tile} title="Controller">${overview.controller}<//>
        <${Tile} title="Topics">${number(overview.topics)}<//>
        <${Tile} title="Partitions">${number(overview.partitions)}<//>
        <${Tile} title="Groups">${number(rates.sample.data?.groups)}<//>
        <${Tile} title="Without leader" kind=${overview.offline ? "bad" : ""}>${number(overview.offline)}<//>
        <${Tile} title="Out of sync" kind=${overview.under_replicated ? "bad" : ""}>${number(overview.under_replicated)}<//>
      </dl>
      <section class="panel"><h2>Records written per second</h2>
        ${rates.before && !rates.before.is_sampled
          ? html`<p class="muted">The cluster has too many partitions to sample all of them.</p>`
          : html`<${Chart} key=${theme} label="Records written per second" points=${rates.points} format=${compact} />`}
      </section>
      <div class="columns">
        <section class="panel"><h2>Brokers</h2>
          <${Table} caption="Brokers of the cluster" columns=${BROKERS} rows=${overview.brokers.map((each) => ({ key: each.id, ...each }))} />
        </section>
        <section class="panel"><h2>Busiest topics</h2>
          <${Table} caption="Topics by records per second" columns=${BUSIEST} rows=${rates.busiest} empty="No records were written in the last seconds." />
        </section>
      </div>
      ${overview.unhealthy.length > 0 && html`<section class="panel"><h2>Unhealthy partitions</h2>
        <${Table} caption="The first of the unhealthy partitions" columns=${UNHEALTHY}
          rows=${overview.unhealthy.map((each) => ({ key: `${each.topic}-${each.partition}`, ...each }))} /></section>`}
      <p class="muted small">Cluster <span class="mono">${overview.cluster_id ?? "without an id"}</span></p>`}
    <//>`;
}
