// Requests to the broker's public API, below the path that the console was loaded from.
import {clock, duration, parse, store} from './base.js';
import {t} from './text.js';

const base = new URL('../v1/', document.baseURI);

// path builds a path; the values in it are escaped: path`topics/${name}`.
export const path = (parts, ...names) => parts.reduce((sum, part, i) => sum + encodeURIComponent(names[i - 1]) + part);

// A Problem is a rejected or failed request. status is 0 without a response.
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || t('failed', status));
    this.status = status;
    this.code = body.code;
    this.wait = parse(body.retry_after);
    this.maybeStored = body.maybe_stored;
    if (this.wait) this.message += ' ' + t('again in', duration(this.wait));
  }
}

// transient reports whether a request can succeed later: the broker did not respond, or is busy.
export const transient = (err) => err instanceof Problem && (err.status === 0 || err.status === 429 || err.status >= 500);

// cursor returns a function that gets the cursor next of each page and returns it. It throws if the
// server repeats a cursor, also in a longer cycle, because the loop over the pages would not end.
export function cursor(after = '') {
  let seen = after;
  let steps = 0;
  let limit = 1;
  return (next) => {
    if (next && next === seen) throw new Problem(undefined, {detail: t('repeated cursor')});
    if (++steps === limit) [seen, steps, limit] = [next, 0, 2 * limit];
    return next;
  };
}

// request is one HTTP request with the session's header. It fails with a Problem.
export async function request(method, where, {query, body, type, headers, signal} = {}) {
  const url = new URL(where, base);
  for (const [k, v] of Object.entries(query || {})) {
    for (const one of [v].flat()) if (one !== undefined && one !== '' && one !== null && one !== false) url.searchParams.append(k, one);
  }
  const all = {...headers};
  const session = store.get('session');
  if (session && !all.Authorization) all['X-Tidegate-Session'] = session;
  if (body !== undefined) all['Content-Type'] = type || 'application/json';
  let response;
  try {
    response = await fetch(url, {method, headers: all, signal, cache: 'no-store', redirect: 'error',
      body: body === undefined || type ? body : JSON.stringify(body)});
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    throw new Problem(0, {detail: t('no answer')});
  }
  clock(response.headers.get('Date'));
  if (response.ok) return response;
  let problem = {};
  try { problem = await response.json(); } catch { /* not from the broker: the status is enough */ }
  if (response.status === 401 && where !== 'session') dispatchEvent(new Event('signedout'));
  throw new Problem(response.status, problem);
}

// call is a request with a JSON response; it has etag if the response has one.
export async function call(method, where, options) {
  const response = await request(method, where, options);
  if (response.status === 204) return {};
  const result = await response.json();
  if (result.now) clock(result.now, true);
  const etag = response.headers.get('ETag');
  if (etag) Object.defineProperty(result, 'etag', {value: etag});
  return result;
}

// onRevision changes settings, unless they were changed after state was read.
export async function onRevision(method, at, state, body) {
  try {
    return await call(method, at, {body, headers: {'If-Match': state.etag}});
  } catch (err) {
    throw err.status === 412 ? new Error(t('changed meanwhile')) : err;
  }
}

export const get = (where, query, signal) => call('GET', where, {query, signal});

// What the session may do. The page hides actions that the server would reject; the server decides.
// The rules are those of the broker's permission table, so the functions mirror it.

let session = {restricted: true, rules: []};

// who returns the session: key, anonymous, restricted, read_only, rules, expires.
export const who = () => session;

// start requests the session; with credentials (an Authorization header) it begins one.
export async function start(authorization) {
  if (authorization) {
    const {token, ...rest} = await call('POST', 'session', {headers: {Authorization: authorization}});
    store.set('session', token);
    session = rest;
    return;
  }
  session = await call('GET', 'session');
}

// leave ends the session here and at the server.
export async function leave() {
  try { await call('DELETE', 'session'); } finally {
    store.set('session', null);
    session = {restricted: true, rules: []};
  }
}

// match compares a name with a pattern of the rules: * matches any text.
export function match(pattern, name) {
  const [head, ...parts] = pattern.split('*');
  if (!parts.length) return pattern === name;
  if (!name.startsWith(head)) return false;
  let rest = name.slice(head.length);
  const tail = parts.pop();
  for (const part of parts) {
    const i = rest.indexOf(part);
    if (i < 0) return false;
    rest = rest.slice(i + part.length);
  }
  return rest.endsWith(tail);
}

const any = (patterns, name) => (patterns || []).some((p) => match(p, name));
const has = (rule, action) => rule.actions.includes(action) || (action === 'observe' && rule.actions.includes('admin'));
const dead = '%DLQ%';
const abandoned = 'TRANS_CHECK_MAX_TIME_TOPIC';

function receivable(rule, topic) {
  const group = topic.startsWith(dead) ? topic.slice(dead.length) : abandoned;
  return any(rule.topics, topic) || (group !== abandoned && any(rule.groups, group));
}

function allowed(changes, test) {
  if (changes && session.read_only) return false;
  return !session.restricted || (session.rules || []).some(test);
}

// may answers for each kind of need.
export const may = {
  topic: (action, topic) => allowed(action === 'admin', (r) => has(r, action) && any(r.topics, topic)),
  group: (action, group) => allowed(action === 'admin', (r) => has(r, action) && any(r.groups, group)),
  server: (action) => allowed(action === 'admin', (r) => has(r, action) && r.topics?.includes('*') && r.groups?.includes('*')),
  send: (topic) => allowed(true, (r) => has(r, 'send') && any(r.topics, topic)),
  look: (topic) => allowed(false, (r) => (has(r, 'observe') && any(r.topics, topic)) || (has(r, 'receive') && receivable(r, topic))),
  // read is to see bodies, keys and properties of stored messages.
  read: (topic) => allowed(false, (r) => has(r, 'receive') && receivable(r, topic)),
  // receive is to see those of the group's dead letters.
  receive: (topic, group) => allowed(false, (r) => has(r, 'receive') && any(r.groups, group) && receivable(r, topic)),
  // redrive is to send dead letters back: those of one topic, or without a topic those of all.
  redrive: (group, topic) => may.letters(group) && (topic ? may.send(topic) : may.server('admin')),
  // letters is to purge dead letters.
  letters: (group) => allowed(true, (r) => has(r, 'admin') && any(r.groups, group) && (group !== abandoned || any(r.topics, dead + group))),
  some: (action) => allowed(action === 'admin' || action === 'send', (r) => has(r, action)),
};
