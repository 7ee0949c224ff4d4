// Requests to the backend. Every change carries the CSRF token of the session.

const API = "api/console";
let csrfToken = "";
let onLoginRequired = () => {};

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function useSession(session, loginRequired) {
  csrfToken = session.csrf_token ?? "";
  onLoginRequired = loginRequired;
}

export function query(parameters) {
  const entries = Object.entries(parameters).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((each) => [name, each]) : [[name, value]]);
  const given = entries.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const segment = (name) => encodeURIComponent(name);
export const urlOf = (path) => API + path;

async function send(method, path, body, signal) {
  const headers = { "X-CSRF-Token": csrfToken };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(urlOf(path), { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The console does not respond. Is moldau serve still running?");
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  if (content.error === "login_required") onLoginRequired();
  throw new ApiError(response.status, content.error ?? "unknown", content.message ?? `The request failed (${response.status}).`);
}

export const get = (path, signal) => send("GET", path, undefined, signal);
export const post = (path, body, signal) => send("POST", path, body, signal);
export const put = (path, body) => send("PUT", path, body);
export const patch = (path, body) => send("PATCH", path, body);
export const remove = (path, body) => send("DELETE", path, body);
