// Small settings that this browser keeps for this broker. Two brokers can share an origin behind a
// proxy, so the path is a part of each key. The secret of an access key is never stored.
import {lang, t} from './text.js';

export const place = `tidegate ${new URL('..', document.baseURI).pathname} `;
const memory = new Map();

// store works without storage too: then a setting lasts until the page closes.
export const store = {
  get(key) {
    try { return localStorage.getItem(place + key); } catch { return memory.get(key) ?? null; }
  },
  set(key, value) {
    try {
      if (value === null) localStorage.removeItem(place + key);
      else localStorage.setItem(place + key, value);
    } catch { memory.set(key, value); }
  },
};

// Elements. Data becomes text nodes only: no function here parses markup.

const svgNS = 'http://www.w3.org/2000/svg';

// Control characters, bidi controls, invisible characters and lone surrogates.
const hidden = /[\0-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{d800}-\u{dfff}\u{e0000}-\u{e007f}]/gu;

const escape = (c) => {
  const n = c.codePointAt(0);
  if (n < 0x100) return '\\x' + n.toString(16).padStart(2, '0');
  return n < 0x10000 ? '\\u' + n.toString(16).padStart(4, '0') : `\\u{${n.toString(16)}}`;
};

// safe shows characters that could change how the text around them is read as escapes. With lines,
// line feeds and tabs stay.
export function safe(text, lines = false) {
  return String(text).replace(hidden, (c) => (lines && (c === '\n' || c === '\t') ? c : escape(c)));
}

// lined shows a text of several lines, such as a stack trace, in an element that keeps line feeds.
export const lined = (text) => document.createTextNode(safe(String(text).replace(/\r\n?/g, '\n'), true));

// clip cuts a text for a cell of a table.
export const clip = (text, most = 100) => (text?.length > most ? text.slice(0, most) + '…' : text);

// firstLine is the first line of a text with a mark if it has more, for a cell of a table.
export const firstLine = (text) => {
  const whole = text?.replace(/^[\r\n]+|[\r\n]+$/g, '');
  const line = whole?.split(/[\r\n]/, 1)[0];
  return clip(line && line.length < whole.length && line.length <= 300 ? line + ' …' : line, 300);
};

const handlers = new WeakMap(); // the functions of an element, by the names of their events
const handle = (event) => handlers.get(event.currentTarget)[event.type](event);

function listen(e, type, run) {
  handlers.set(e, {...handlers.get(e), [type]: run});
  e.addEventListener(type, handle);
}

function fill(e, props, children) {
  for (const [k, v] of Object.entries(props || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (typeof v === 'function') listen(e, k, v);
    else if (k === 'value' || k === 'checked' || k === 'selected') e[k] = v;
    else e.setAttribute(k, v === true ? '' : safe(v));
  }
  add(e, children);
  return e;
}

function add(e, children) {
  for (const c of children) {
    if (c === undefined || c === null || c === false) continue;
    if (Array.isArray(c)) add(e, c);
    else e.append(c instanceof Node ? c : safe(c));
  }
}

// h makes an element. A prop that is a function listens to the event of its name. Children are
// nodes, texts, and arrays of them; null and false are left out.
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

// svg makes an element of a picture.
export const svg = (tag, props, ...children) => fill(document.createElementNS(svgNS, tag), props, children);

// draw replaces the children of e. The focus stays on the element with the same data-key, link or
// action, and a selection of text inside e postpones the change: then draw returns false.
export function draw(e, ...children) {
  return change(e, () => {
    e.textContent = '';
    add(e, children);
  });
}

// update is draw for children that are almost those of the last drawing: it changes only what differs,
// so the browser lays out and paints only that, and lists keep their scroll position. The children are
// new elements. Their functions must not refer to other new elements, because the old ones may stay.
export function update(e, ...children) {
  return change(e, () => {
    const fresh = new DocumentFragment();
    add(fresh, children);
    match(e, fresh);
  });
}

function change(e, run) {
  const selection = getSelection();
  if (e.childNodes.length && !selection.isCollapsed && selection.containsNode(e, true)) return false;
  const focused = e.contains(document.activeElement) ? mark(document.activeElement) : '';
  const open = new Set([...e.querySelectorAll('details[open][data-key]')].map((d) => d.dataset.key));
  run();
  for (const d of e.querySelectorAll('details[data-key]')) if (open.has(d.dataset.key)) d.open = true;
  if (focused && !(e.contains(document.activeElement) && mark(document.activeElement) === focused)) {
    [...e.querySelectorAll('a,button,input,select,summary')].find((x) => mark(x) === focused)?.focus({preventScroll: true});
  }
  return true;
}

const mark = (e) => [e.tagName, e.dataset.key, e.dataset.action, e.dataset.subject, e.getAttribute('href'), e.name].join('|');

// match makes the children of e like those of fresh.
function match(e, fresh) {
  const old = [...e.childNodes];
  const next = [...fresh.childNodes];
  next.forEach((n, i) => (i < old.length ? patch(old[i], n) : e.append(n)));
  for (const n of old.slice(next.length)) n.remove();
}

// patch makes old like fresh, or replaces it. A link or button for something else is a new element, so
// that a click that began on the old one does not end on it. Details stay open or closed.
function patch(old, fresh) {
  const run = handlers.get(fresh);
  const kinds = (functions) => Object.keys(functions || {}).join();
  if (old.nodeName !== fresh.nodeName || kinds(run) !== kinds(handlers.get(old))
    || ((run || fresh.href) && mark(old) !== mark(fresh))) return old.replaceWith(fresh);
  if (run) handlers.set(old, run);
  if (!fresh.attributes) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return undefined;
  }
  for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  for (const {name, value} of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== 'open') old.setAttribute(name, value);
  }
  return match(old, fresh);
}

// notice shows a short text at the edge of the page; kind is ok or error.
export function notice(text, kind = 'ok') {
  const e = h('p', {class: 'notice ' + kind, role: kind === 'error' ? 'alert' : 'status'}, text);
  document.getElementById('notices').append(e);
  setTimeout(() => e.remove(), kind === 'error' ? 15000 : 5000);
}

// button makes a button of an action. The data attributes name the action and its subject. An error
// of run is shown at the edge of the page.
export function button(label, action, subject, run, kind) {
  const click = async () => {
    try { await run(); } catch (err) {
      if (err.status === undefined) console.error(err);
      notice(err.message, 'error');
    }
  };
  return h('button', {type: 'button', class: kind, 'data-action': action, 'data-subject': subject, click}, label);
}

// field is a labelled input. props are those of the input; choices make it a select.
export function field(label, props, choices) {
  const {value, hint, ...rest} = props;
  const input = choices
    ? h('select', rest, choices.map(([v, text]) => h('option', {value: v, selected: v === value}, text)))
    : h(rest.rows ? 'textarea' : 'input', {...rest, value: value ?? ''});
  return h('label', {class: rest.type === 'checkbox' ? 'field check' : 'field'}, h('span', null, label), input, hint && h('small', null, hint));
}

// checkbox is a labelled checkbox.
export const checkbox = (label, name, checked, hint) => h('label', {class: 'field check'},
  h('input', {type: 'checkbox', name, checked: !!checked}), h('span', null, label), hint && h('small', null, hint));

// values are the fields of a form: texts without surrounding space, and booleans.
export function values(form) {
  const out = {};
  for (const e of form.elements) {
    if (e.name) out[e.name] = e.type === 'checkbox' ? e.checked : e.tagName === 'TEXTAREA' ? e.value : e.value.trim();
  }
  return out;
}

// dismiss cancels the open dialogs.
export const dismiss = () => { for (const d of document.querySelectorAll('dialog')) d.close(); };

const kept = new Set(); // the dialogs that wait for the next session, with what was typed

// detach removes the open dialogs from the page and keeps them.
export function detach() {
  for (const d of document.querySelectorAll('dialog')) {
    kept.add(d);
    d.remove();
    d.removeAttribute('open');
  }
}

// attach shows the dialogs that detach kept, or cancels them.
export function attach(show) {
  for (const d of [...kept]) {
    kept.delete(d);
    if (show) {
      document.body.append(d);
      d.showModal();
    } else d.dispatchEvent(new Event('close'));
  }
}

// dialog shows a form. run gets the values and is awaited; its error is shown, and the dialog stays
// open. The promise is the result of run, or undefined after a cancellation.
export function dialog({title, body, confirm, cancel, danger, run}) {
  return new Promise((resolve) => {
    const fault = h('p', {class: 'fault', role: 'alert', hidden: true});
    const ok = h('button', {class: danger ? 'danger' : 'main', 'data-action': 'confirm'}, confirm);
    let result;
    const form = h('form', {method: 'dialog', submit: async (event) => {
      event.preventDefault();
      ok.disabled = true;
      fault.hidden = true;
      try {
        result = await run(values(form));
        if (kept.delete(d)) d.dispatchEvent(new Event('close'));
        else d.close();
      } catch (err) {
        if (!d.open && !kept.has(d)) notice(err.message, 'error');
        fault.textContent = safe(err.message);
        fault.hidden = false;
      }
      ok.disabled = false;
    }}, h('h2', null, title), body, fault,
    h('div', {class: 'buttons'}, h('button', {type: 'button', 'data-action': 'cancel', click: () => d.close()}, cancel), ok));
    const d = h('dialog', {close: () => { d.remove(); resolve(result); }}, form);
    document.body.append(d);
    d.showModal();
  });
}

// draggable text files: save offers bytes as a download that no program opens by itself.
export function save(name, parts) {
  const url = URL.createObjectURL(new Blob(parts, {type: 'application/octet-stream'}));
  const a = h('a', {href: url, download: name.replace(/[^\w.-]/g, '_')});
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Numbers, sizes, durations and times as texts. Unknown is "–". Times are the broker's: clock is
// set from its responses, and the clock of the browser only measures the time since then.

export const unknown = '–';
const known = (n) => typeof n === 'number' && Number.isFinite(n);
const group = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, '\u202f');

// num is an integer with its digits in groups: 12 345.
export const num = (n) => (known(n) ? group(String(Math.round(n))) : unknown);

// short has three digits at most: 1.2 k, 34 M.
export function short(n) {
  if (!known(n)) return unknown;
  for (const [unit, size] of [['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
    if (Math.abs(n) >= size) return trim(n / size) + '\u202f' + unit;
  }
  return trim(n);
}

const trim = (n) => (Math.abs(n) >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(Math.abs(n) >= 10 ? 0 : 1));

// rate is a number per second.
export const rate = (n) => (known(n) ? (n > 0 && n < 0.1 ? '< 0.1' : short(n)) : unknown);

// bytes is a size in binary units: 1.2 GiB.
export function bytes(n) {
  if (!known(n)) return unknown;
  for (const [unit, p] of [['TiB', 40], ['GiB', 30], ['MiB', 20], ['KiB', 10]]) {
    if (n >= 2 ** p) return trim(n / 2 ** p) + '\u202f' + unit;
  }
  return `${Math.round(n)}\u202fB`;
}

export const percent = (x) => (known(x) ? (x > 0 && x < 0.01 ? '< 1' : Math.round(100 * x)) + '\u202f%' : unknown);

// hex is bytes in hexadecimal, two digits each.
export const hex = (data) => [...data].map((n) => n.toString(16).padStart(2, '0')).join('');

// cap begins a text with a capital letter.
export const cap = (text) => text[0].toUpperCase() + text.slice(1);

// duration has the two largest units of a time in milliseconds: 4 m 12 s. It is never negative.
export function duration(ms) {
  if (!known(ms)) return unknown;
  ms = Math.max(0, ms);
  if (ms > 0 && ms < 1000) return `${ms < 1 ? ms.toFixed(1) : Math.round(ms)}\u202f${t('ms')}`;
  const unit = ms >= 86400e3 ? 3600 : ms >= 3600e3 ? 60 : 1; // two units are shown
  const s = Math.round(ms / 1000 / unit) * unit;
  if (ms < 10000 && ms % 1000) return `${(ms / 1000).toFixed(1)}\u202f${t('s')}`;
  const parts = [[Math.floor(s / 86400), 'd'], [Math.floor(s / 3600) % 24, 'h'], [Math.floor(s / 60) % 60, 'm'], [s % 60, 's']];
  if (!s) return `0\u202f${t('s')}`;
  const first = parts.findIndex(([n]) => n > 0);
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => `${n}\u202f${t(unit)}`).join(' ');
}

const units = {h: 3600e3, m: 60e3, s: 1e3, ms: 1, us: 1e-3, 'µs': 1e-3, ns: 1e-6};

// parse reads a duration of the API, such as 1m30s, in milliseconds; undefined if it is none.
export function parse(text) {
  if (typeof text === 'number') return text;
  if (!text || !/^[-+]?(([0-9.]+(h|ms|m|s|us|µs|ns))+|0)$/.test(text)) return undefined;
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/([0-9.]+)(h|ms|m|s|us|µs|ns)/g)) sum += Number(n) * units[unit];
  return text.startsWith('-') ? -sum : sum;
}

let offset = 0;
let exact = false;

// clock sets the broker's time. A header has whole seconds; a body has more, and wins.
export function clock(iso, fromBody) {
  const at = Date.parse(iso);
  if (Number.isNaN(at) || (exact && !fromBody)) return;
  const seen = at - Date.now();
  if (fromBody || Math.abs(seen - offset) > 1500) offset = seen;
  exact = exact || !!fromBody;
}

// now is the broker's time in milliseconds.
export const now = () => Date.now() + offset;

// since is the time from a moment to now, in milliseconds.
export const since = (iso) => (iso ? Math.max(0, now() - Date.parse(iso)) : undefined);

const two = (n) => String(n).padStart(2, '0');

// at is a moment in the zone of the reader: the time alone if it is of today.
export function at(iso) {
  const d = new Date(iso);
  if (!iso || Number.isNaN(d.getTime())) return unknown;
  const today = new Date(now());
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  const day = `${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  if (d.toDateString() === today.toDateString()) return time;
  return d.getFullYear() === today.getFullYear() ? `${day} ${time}` : `${d.getFullYear()}-${day} ${time}`;
}

// when is a moment with its distance, as an element whose title has the exact time.
export function when(iso) {
  if (!iso) return unknown;
  const left = Date.parse(iso) - now();
  const distance = left > 0 ? t('in', duration(left)) : t('ago', duration(-left));
  return h('time', {datetime: iso, title: iso}, `${at(iso)} · ${distance}`);
}

// ago is the distance alone.
export function ago(iso) {
  if (!iso) return unknown;
  const left = Date.parse(iso) - now();
  return h('time', {datetime: iso, title: `${iso} · ${at(iso)}`}, left > 0 ? t('in', duration(left)) : t('ago', duration(-left)));
}

// count is a number and its noun: t has the noun for one and for many, divided by "|".
export function count(n, key) {
  const forms = t(key).split('|');
  return `${num(n)} ${forms[lang === 'en' && n === 1 ? 0 : forms.length - 1]}`;
}
