// Produce one record, or many from lines of JSON.

import { post, segment } from "../api.js";
import { plural } from "../format.js";
import { FormDialog, html, toast, useState } from "../ui.js";

const HEX = /^([0-9a-f]{2})*$/i;

const FORMS = [["text", "text or JSON"], ["hex", "hexadecimal"], ["schema", "JSON of a schema"], ["null", "null"]];

function payload(form, text, schemaId) {
  if (form === "null") return {};
  if (form === "schema") return { text, schema_id: Number(schemaId) };
  if (form === "text") return { text };
  const digits = text.replace(/\s+/g, "");
  if (!HEX.test(digits)) throw new Error("Hexadecimal text has two digits per byte.");
  return { base64: btoa(String.fromCharCode(...(digits.match(/../g) ?? []).map((pair) => parseInt(pair, 16)))) };
}

const formOf = (view) => (view === undefined ? "text" : view.schema_type ? "schema" : view.encoding === "null" ? "null" : view.encoding === "hex" ? "hex" : "text");

function Bytes({ title, form, setForm, text, setText, schemaId, setSchemaId, rows }) {
  return html`<label>${title} as <select value=${form} onChange=${(event) => setForm(event.target.value)}>
      ${FORMS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
    ${form === "schema" && html`<label>Schema id of the ${title.toLowerCase()} <input type="number" min="1" required value=${schemaId} onInput=${(event) => setSchemaId(event.target.value)} /></label>`}
    ${form !== "null" && html`<label>${title}<textarea rows=${rows} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}`;
}

function parseHeaders(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    if (!line.includes("=")) throw new Error(`${line}: write headers as name=value, one per line.`);
    const at = line.indexOf("=");
    return { name: line.slice(0, at).trim(), text: line.slice(at + 1) };
  });
}

// Lines as `moldau consume --format json` and the NDJSON download write them.
function parseLines(text) {
  return text.split("\n").filter((line) => line.trim()).map((line, index) => {
    let fields;
    try { fields = JSON.parse(line); } catch { throw new Error(`Line ${index + 1} is not JSON.`); }
    if (typeof fields !== "object" || fields === null || Array.isArray(fields)) throw new Error(`Line ${index + 1} is not an object.`);
    const bytesOf = (name) => {
      if (fields[`${name}_base64`] !== undefined) return { base64: fields[`${name}_base64`] };
      const value = fields[name];
      if (value === undefined || value === null) return {};
      return { text: typeof value === "string" ? value : JSON.stringify(value) };
    };
    const headers = (fields.headers ?? []).map((each) => ({ name: each.name, ...(each.value_base64 === undefined ? { text: each.value } : { base64: each.value_base64 }) }));
    return { key: bytesOf("key"), value: bytesOf("value"), headers, partition: fields.partition ?? null };
  });
}

export function ProduceDialog({ topic, record, onClose, onDone }) {
  const [isBulk, setBulk] = useState(false);
  const [keyForm, setKeyForm] = useState(record.key ? formOf(record.key) : "null");
  const [key, setKey] = useState(record.key?.text ?? "");
  const [valueForm, setValueForm] = useState(formOf(record.value));
  const [value, setValue] = useState(record.value?.text ?? "");
  const [headers, setHeaders] = useState((record.headers ?? []).map((each) => `${each.name}=${each.value.text ?? ""}`).join("\n"));
  const [partition, setPartition] = useState(record.partition === undefined ? "" : String(record.partition));
  const [lines, setLines] = useState("");
  const [keySchema, setKeySchema] = useState(record.key?.schema_id ?? "");
  const [valueSchema, setValueSchema] = useState(record.value?.schema_id ?? "");
  const isCut = record.value?.is_cut || record.key?.is_cut;
  const submit = async () => {
    const records = isBulk ? parseLines(lines) : [{
      key: payload(keyForm, key, keySchema), value: payload(valueForm, value, valueSchema), headers: parseHeaders(headers), partition: partition === "" ? null : Number(partition),
    }];
    const done = await post(`/topics/${segment(topic.name)}/records`, { records });
    const first = done.records[0];
    toast(isBulk ? `${plural(done.records.length, "record")} were produced.` : `Produced to partition ${first.partition} at offset ${first.offset}.`);
    onDone();
    onClose();
  };
  return html`<${FormDialog} title=${`Produce to ${topic.name}`} action="Produce" onClose=${onClose} submit=${submit}>
    ${isCut && html`<p class="notice warn">Only the beginning of this record was loaded. Open its link to edit all of it.</p>`}
    <label class="inline"><input type="checkbox" checked=${isBulk} onChange=${(event) => setBulk(event.target.checked)} /> Many records, one JSON object per line</label>
    ${isBulk ? html`<label>Lines <textarea rows="10" required value=${lines} placeholder=${'{"key": "a", "value": {"n": 1}}'} onInput=${(event) => setLines(event.target.value)}></textarea></label>` : html`
      <${Bytes} title="Key" form=${keyForm} setForm=${setKeyForm} text=${key} setText=${setKey} schemaId=${keySchema} setSchemaId=${setKeySchema} rows="2" />
      <${Bytes} title="Value" form=${valueForm} setForm=${setValueForm} text=${value} setText=${setValue} schemaId=${valueSchema} setSchemaId=${setValueSchema} rows="8" />
      <label>Headers, one name=value per line <textarea rows="2" value=${headers} onInput=${(event) => setHeaders(event.target.value)}></textarea></label>
      <label>Partition <input type="number" min="0" placeholder="by key" value=${partition} onInput=${(event) => setPartition(event.target.value)} /></label>`}
  <//>`;
}
