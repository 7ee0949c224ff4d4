// The shell: session, navigation, routes, theme, keyboard.

import { render } from "./vendor/htm-preact.js";
import { get, post, remove, useSession } from "./api.js";
import { Problem, Toasts, html, useEffect, useState } from "./ui.js";
import { Overview } from "./pages/overview.js";
import { Topic, Topics } from "./pages/topics.js";
import { Group, Groups } from "./pages/groups.js";
import { Broker, Brokers } from "./pages/brokers.js";
import { Transaction, Transactions } from "./pages/transactions.js";
import { Schemas, Subject } from "./pages/schemas.js";
import { Security } from "./pages/security.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["topics", "Topics", Topics, Topic],
  ["groups", "Groups", Groups, Group],
  ["schemas", "Schemas", Schemas, Subject],
  ["brokers", "Brokers", Brokers, Broker],
  ["transactions", "Transactions", Transactions, Transaction],
  ["security", "Security", Security],
];
const SHORTCUTS = { o: "overview", t: "topics", g: "groups", c: "schemas", b: "brokers", x: "transactions", s: "security" };

// `#/topics/orders/messages?partition=1` → { page, parts, query }
function parseHash() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "overview", ...parts] = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { page, parts, query: new URLSearchParams(search) };
}

function useRoute() {
  const [route, setRoute] = useState(parseHash);
  useEffect(() => {
    const changed = () => setRoute(parseHash());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function stored(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

function useTheme() {
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [theme, setTheme] = useState(() => stored("moldau-theme") ?? system());
  document.documentElement.dataset.theme = theme;
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("moldau-theme", next); } catch { /* a private window: the theme lasts until it closes */ }
    setTheme(next);
  };
  return [theme, toggle];
}

// "g t" goes to the topics, "/" into the search field.
function useKeyboard() {
  useEffect(() => {
    let isGoing = false;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      const field = document.querySelector("[data-search]");
      if (event.key === "/" && field) { event.preventDefault(); field.focus(); }
      else if (isGoing && SHORTCUTS[event.key]) location.hash = `#/${SHORTCUTS[event.key]}`;
      isGoing = event.key === "g" && !isGoing;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Login({ onLogin }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [mechanism, setMechanism] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try { onLogin(await post("/session", { user, password, mechanism: mechanism || null })); } catch (failure) { setError(failure); }
  };
  return html`<main class="login"><form class="panel form" onSubmit=${submit}>
    <h1>Log in</h1>
    <p class="muted">With your SASL user of the cluster. The console acts as this user.</p>
    <label>User <input value=${user} onInput=${(event) => setUser(event.target.value)} autocomplete="username" required autofocus /></label>
    <label>Password <input type="password" value=${password} onInput=${(event) => setPassword(event.target.value)} autocomplete="current-password" required /></label>
    <label>Mechanism <select value=${mechanism} onChange=${(event) => setMechanism(event.target.value)}>
      <option value="">as configured</option><option>SCRAM-SHA-512</option><option>SCRAM-SHA-256</option><option>PLAIN</option>
    </select></label>
    ${error && html`<${Problem} error=${error} />`}
    <button class="primary">Log in</button>
  </form></main>`;
}

function Side({ session, page, theme, toggleTheme, onLogout }) {
  return html`<header class="side">
    <div class="brand"><img src="icon.svg" alt="" /> Moldau</div>
    <nav aria-label="Pages">${PAGES.map(([name, title]) => html`
      <a href=${`#/${name}`} aria-current=${page === name ? "page" : undefined}>${title}</a>`)}</nav>
    <div class="foot">
      <span class="mono" title="Bootstrap servers">${session.bootstrap_servers}</span>
      ${session.is_read_only && html`<span class="badge warn">read-only</span>`}
      <button onClick=${toggleTheme}>${theme === "dark" ? "Light" : "Dark"} theme</button>
      ${session.user && html`<button onClick=${onLogout}>Log out ${session.user}</button>`}
      <span>Version ${session.version}</span>
    </div>
  </header>`;
}

function App() {
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [theme, toggleTheme] = useTheme();
  const route = useRoute();
  useKeyboard();
  const load = async () => {
    setError(null);
    try { setSession(await get("/session")); } catch (failure) { setError(failure); }
  };
  useEffect(() => { load(); }, []);
  if (error) return html`<main><${Problem} error=${error} retry=${load} /></main>`;
  if (!session) return html`<p class="loading">Loading …</p>`;
  useSession(session, () => setSession({ ...session, is_logged_in: false, csrf_token: null }));
  if (!session.is_logged_in) return html`<${Login} onLogin=${setSession} />`;
  const found = PAGES.find(([name]) => name === route.page);
  const Page = found && (route.parts.length && found[3] ? found[3] : found[2]);
  const logOut = async () => setSession(await remove("/session"));
  const canEdit = !session.is_read_only;
  return html`<div class="layout">
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <${Side} session=${session} page=${route.page} theme=${theme} toggleTheme=${toggleTheme} onLogout=${logOut} />
    <main id="content" tabindex="-1">
      ${Page ? html`<${Page} key=${route.page + (route.parts[0] ?? "")} parts=${route.parts} query=${route.query} canEdit=${canEdit} theme=${theme} />`
        : html`<h1>Page not found</h1><p><a href="#/overview">Overview</a></p>`}
    </main>
    <${Toasts} />
  </div>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
