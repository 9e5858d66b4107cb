// A page: its place in the address, its heading, and the loop that keeps it current. The address is
// the fragment: #/topics/orders?match=a*.
import {Problem, transient} from './api.js';
import {at, button, bytes, cap, draw, duration, h, notice, now, num, parse, rate, store, unknown, update, when} from './base.js';
import {t} from './text.js';

// link is the address of a page: link('topics', name), link('topics', {match: 'a*'}).
export function link(...parts) {
  const query = typeof parts.at(-1) === 'object' ? parts.pop() : {};
  const set = Object.entries(query).filter(([, v]) => v !== undefined && v !== '' && v !== false && v !== null);
  const q = new URLSearchParams(set.flatMap(([k, v]) => [v].flat().map((one) => [k, String(one)])));
  return '#/' + parts.map(encodeURIComponent).join('/') + (set.length ? '?' + q : '');
}

// here reads the address.
export function here() {
  const [where, query] = (location.hash.replace(/^#\/?/, '') || 'overview').split(/\?(.*)/s);
  const names = where.split('/').map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return {names, query: Object.fromEntries(new URLSearchParams(query || ''))};
}

// The interval and the pause hold for all tabs of the browser.
let interval;
let paused;
let asOf = 0; // of the broker's clock
let freshAt = 0; // of the clock of the browser
let lateSince = 0;
let expected = 0; // since when the tab awaits moments

function settings() {
  interval = Math.max(1000, Math.min(60000, Number(store.get('interval')) || 2000));
  paused = store.get('paused') === 'true';
}
settings();
addEventListener('storage', () => { settings(); dispatchEvent(new Event('live')); });

// live is the state of the updates, for the badge.
export const live = {
  state() {
    const since = expected ? Math.max(expected, freshAt) : lateSince;
    return paused ? 'paused' : since && Date.now() - since > 3 * interval ? 'late' : 'ok';
  },
  text: () => (asOf ? t('as of', at(asOf)) : ''),
  paused: () => paused,
  pause(on) { paused = on; store.set('paused', String(on)); dispatchEvent(new Event('live')); },
  interval: () => interval,
  every(ms) { interval = ms; store.set('interval', String(ms)); dispatchEvent(new Event('live')); },
  fresh(at = now()) { asOf = at; freshAt = Date.now(); lateSince = 0; dispatchEvent(new Event('fresh')); },
  late() { lateSince ||= Date.now(); dispatchEvent(new Event('fresh')); },
  // expect begins or ends to await moments.
  expect(on) { expected = on ? Date.now() : 0; },
};

// backoff is the time before the next attempt after a number of failures: 1 to 30 s.
export const backoff = (failures) => Math.min(30000, 1000 * 2 ** failures * (1 + 0.4 * Math.random()));

// pause waits for ms, and while the page is hidden or the updates are paused.
function pause(ms, signal, always) {
  return new Promise((resolve) => {
    let over = false;
    let timer = 0;
    const end = () => {
      if (!signal.aborted && (!over || document.hidden || (paused && !always))) return;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', end);
      removeEventListener('live', end);
      resolve();
    };
    timer = setTimeout(() => { over = true; end(); }, ms);
    document.addEventListener('visibilitychange', end);
    addEventListener('live', end);
    signal.addEventListener('abort', end);
  });
}

// copy puts text on the clipboard; where the browser forbids that, it selects the text in source.
export async function copy(text, source) {
  try {
    await navigator.clipboard.writeText(text);
    notice(t('copied'));
  } catch {
    getSelection().selectAllChildren(source);
    notice(t('selected'));
  }
}

// quote is a word of a command in a shell.
export const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'\\''`)}'`);

// command builds the command line that does the same as a page. Flags without a value are left out;
// true is a flag alone.
export function command(words, flags = {}) {
  const parts = ['tidegate', ...words.map(quote)];
  for (const [k, v] of Object.entries(flags)) {
    if (v === true) parts.push('--' + k);
    else if (v !== undefined && v !== '' && v !== false && v !== null) parts.push(`--${k}=${quote(v)}`);
  }
  return parts.join(' ');
}

// openPage starts a page in main, and again if the broker did not respond. The result ends it.
export function openPage(main, name, run) {
  const ending = new AbortController();
  const signal = ending.signal;
  const head = h('div', {class: 'head'});
  const fault = h('div');
  const body = h('div', {class: 'content'});
  main.textContent = '';
  main.dataset.page = name;
  delete main.dataset.ready;
  main.append(head, fault, body);
  const {names, query} = here();
  const again = new Set();
  const page = {
    names, query, signal, body,
    // head draws title, subtitle, actions and the command that does the same.
    head({title, sub, actions, same}) {
      document.title = `${title} · tidegate`;
      const code = h('code', null, same);
      draw(head, h('div', {class: 'title'}, h('h1', null, title), sub && h('p', {class: 'sub'}, sub)),
        h('div', {class: 'tools'}, actions,
          same && h('div', {class: 'same', title: t('same hint')}, code,
            button(t('copy'), 'copy-command', name, () => copy(same, code), 'quiet'))));
    },
    // go changes the query of the address; an empty value removes a key, and after unless it is given.
    go(changes) { location.hash = link(...names, {...query, after: undefined, ...changes}); },
    // fail shows an error above the content.
    fail(err) { draw(fault, err && h('p', {class: 'fault', role: 'alert'}, err.message)); },
    ready() { main.dataset.ready = 'true'; },
    // watch loads and draws now, at each interval and after page.reload(). A failure is shown and
    // repeated after 1 to 30 s, with jitter.
    async watch(load, show, every = () => interval) {
      let failures = 0;
      let wake = () => {};
      again.add(() => wake());
      for (let first = true; !signal.aborted; first = false) {
        const began = performance.now();
        let wait;
        try {
          const data = await load(signal);
          if (signal.aborted) return;
          page.fail(null);
          failures = 0;
          head.classList.remove('gone');
          show(data);
          live.fresh();
          page.ready();
          wait = Math.max(every(), 10 * (performance.now() - began));
        } catch (err) {
          if (signal.aborted) return;
          if (!(err instanceof Problem)) console.error(err);
          page.fail(err);
          if (err.status === 404) head.classList.add('gone'); // nothing is there for the actions
          page.ready();
          const permanent = err.status >= 400 && err.status < 500 && err.status !== 429;
          if (!permanent || !first) live.late();
          wait = permanent ? 30000 : backoff(failures++);
        }
        const turn = new AbortController();
        wake = () => turn.abort();
        await pause(wait, AbortSignal.any([signal, turn.signal]), failures > 0);
      }
    },
    reload() { for (const wake of again) wake(); },
  };
  (async () => {
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        await run(page);
        if (failures) page.fail(null);
        return;
      } catch (err) {
        if (signal.aborted) return;
        page.fail(err);
        page.ready();
        if (!transient(err)) return;
        live.late();
        await pause(Math.max(err.wait || 0, backoff(failures)), signal, true);
      }
      body.textContent = '';
      again.clear();
    }
  })();
  return () => ending.abort();
}

// Tables, pagers, badges and the small parts that several pages share.

// table draws rows under columns {label, cell, num, sort, title}. cell makes the content of a row's
// cell. A column with sort is a button that calls onSort with the next order, such as -backlog.
// empty explains a table without rows.
export function table({caption, columns, rows, empty, sort, onSort}) {
  if (!rows.length) return h('p', {class: 'empty'}, empty);
  const shown = columns.filter(Boolean);
  const header = (c) => {
    const direction = sort === c.sort ? 'ascending' : sort === '-' + c.sort ? 'descending' : undefined;
    return h('th', {scope: 'col', class: c.num && 'num', 'aria-sort': c.sort && direction, title: c.title},
      c.sort && onSort
        ? h('button', {type: 'button', class: 'sort', 'data-key': c.sort,
          click: () => onSort(direction === 'descending' || (!direction && c.first === 'up') ? c.sort : '-' + c.sort)},
          c.label, h('span', {'aria-hidden': true}, direction ? (direction === 'descending' ? ' ↓' : ' ↑') : ''))
        : c.label);
  };
  return h('div', {class: 'scroll'}, h('table', null,
    caption && h('caption', null, caption),
    h('thead', null, h('tr', null, shown.map(header))),
    h('tbody', null, rows.slice(0, 200).map((row) => h('tr', {class: row.class},
      shown.map((c) => h('td', {class: c.num ? 'num' : c.wide && 'wide', 'data-label': c.label && cap(c.label)},
      c.wide ? h('div', null, c.cell(row)) : c.cell(row))))))));
}

// pager links the first and the next page.
export function pager(page, next, note) {
  return h('nav', {class: 'pager', 'aria-label': t('pages')}, note && h('span', null, note),
    page.query.after && h('a', {href: link(...page.names, {...page.query, after: undefined})}, t('first page')),
    next && h('a', {href: link(...page.names, {...page.query, after: next}), 'data-key': 'next'}, t('next page')));
}

// queues draws a page of the queues of a topic, or those of a group in it, whose rows have more. The
// pager has a key of its own, because the page can have another list.
export function queues(page, topic, {queues: rows, next}) {
  const n = (label, key) => rows[0]?.[key] !== undefined && {label: t(label), num: true, cell: (q) => num(q[key])};
  return [h('h2', null, t('queues')), table({rows, empty: t('no queues'), columns: [
    {label: t('queue'), num: true, cell: (q) => h('a', {href: link('messages', {topic, queue: q.queue})}, num(q.queue))},
    n('stored', 'messages'), n('first offset', 'begin'), n('next to deliver', 'cursor'), n('end', 'end'),
    n('undelivered', 'undelivered'), n('unfinished', 'unfinished'),
    {label: t('oldest'), cell: (q) => when(q.oldest)},
  ]}), next && h('a', {href: link(...page.names, {...page.query, queue: next}), 'data-key': 'queues'}, t('next page'))];
}

// filters is a form whose fields are the query of the address.
export function filters(page, ...fields) {
  const apply = (event) => {
    event.preventDefault();
    const changes = {};
    for (const e of event.currentTarget.elements) if (e.name) changes[e.name] = e.type === 'checkbox' ? e.checked
      : e.value.trim();
    page.go(changes);
  };
  const form = h('form', {class: 'filters', role: 'search', submit: apply,
    change: (event) => event.target.tagName === 'SELECT' && form.requestSubmit()},
    fields, h('button', {class: 'quiet'}, t('show')));
  return form;
}

// region is a part of the page that is drawn again and again.
export function region(page, ...classes) {
  const e = h('section', {class: classes.join(' ') || undefined});
  page.body.append(e);
  return (...children) => update(e, ...children);
}

// badge is a short state: kind is ok, warn, bad or none.
export const badge = (text, kind = '') => h('span', {class: 'badge ' + kind}, text);

// bar shows a value against its limit. share is how near they are; 1 is at the limit.
export function bar(value, limit, text = num, share = value / limit) {
  if (!limit || value === undefined) return null;
  share = Math.min(1, share);
  return h('meter', {class: share >= 1 ? 'full' : share >= 0.8 ? 'high' : '', min: 0, max: 1, high: 0.8, optimum: 0,
    value: share, title: `${text(value)} / ${text(limit)}`});
}

// amount is a value of a limit in its unit.
export function amount(value, unit) {
  switch (unit) {
    case 'bytes': return bytes(value);
    case 'bytes/s': return `${bytes(value)}/s`;
    case 'ms': return duration(value);
    case 'messages/s': return `${rate(value)}/s`;
    case 'messages': return num(value);
    default: return unknown;
  }
}

// facts is a list of names and values; a null value leaves the pair out. long is for values of any length.
export const facts = (pairs, long) => h('dl', {class: long ? 'facts long' : 'facts'},
  pairs.filter((p) => p && p[1] !== null).map(([name, value, grey]) =>
  h('div', {class: grey && 'grey'}, h('dt', null, name),
    h('dd', null, value === undefined || value === '' ? unknown : value))));

export const topicLink = (name) => h('a', {href: link('topics', name)}, name);
export const groupLink = (name) => h('a', {href: link('groups', name)}, name);

// Limits in words.

// subject is the topic or group of a limit, as a link.
export function subject(l) {
  if (!l.subject) return t('whole broker');
  return l.limit.startsWith('group') ? groupLink(l.subject) : topicLink(l.subject);
}

// sentence describes a limit: value, mark, and the time at which it accepts again. own is the subject that the
// reader sees already.
export function sentence(l, own) {
  const least = parse(l.resumes_least);
  const most = parse(l.resumes_most);
  // The wait of producers is at most two minutes, so that of a backlog is no estimate.
  const back = l.limit.includes('backlog') ? most : parse(l.retry_after);
  return [l.subject && l.subject === own ? null : [subject(l), ': '], h('b', null, t('limit ' + l.limit)), ' ',
    t('n of', amount(l.value, l.unit), amount(l.mark, l.unit)), t('accepts again', amount(l.resume, l.unit)),
    back === undefined ? t('no estimate') : most > 1.25 * least ? t('in between', duration(least), duration(most))
      : t('in about', duration(most === undefined ? back : (least + most) / 2))];
}
