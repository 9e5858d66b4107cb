// Pictures of numbers. Shapes stretch with the page, so the words around them are ordinary text.
import {Problem} from './api.js';
import {at, button, bytes as size, cap, draw, duration, field, h, num, parse, safe, save, svg, values} from './base.js';
import {command, copy, link, table} from './page.js';
import {t} from './text.js';

// lines draws series {label, values, kind} of numbers, undefined where there is none, over the time
// span in milliseconds. text formats a number.
export function lines({title, series, span, text}) {
  const most = Math.max(...series.flatMap((s) => s.values.filter((v) => v !== undefined)), 0);
  const top = most || 1;
  const path = (values) => {
    let d = '';
    let pen = 'M';
    values.forEach((v, i) => {
      if (v === undefined) { pen = 'M'; return; }
      d += `${pen}${((i / Math.max(1, values.length - 1)) * 600).toFixed(1)} ${(98 - (v / top) * 94).toFixed(1)}`;
      pen = 'L';
    });
    return d;
  };
  const latest = (s) => text(s.values.at(-1));
  return h('figure', {class: 'plot'},
    h('figcaption', null, h('b', null, title),
      series.map((s) => h('span', {class: 'key ' + s.kind}, s.label, ' ', h('b', null, latest(s))))),
    h('div', {class: 'frame'},
      svg('svg', {viewBox: '0 0 600 100', preserveAspectRatio: 'none', role: 'img',
        'aria-label': `${title}: ${series.map((s) => `${s.label} ${latest(s)}`).join(', ')}`},
        svg('path', {class: 'grid', d: 'M0 4H600M0 51H600M0 98H600'}),
        series.map((s) => svg('path', {class: 'line ' + s.kind, d: path(s.values)}))),
      h('span', {class: 'top'}, text(most))),
    h('div', {class: 'axis'}, h('span', null, t('ago', duration(span))), h('span', null, t('now'))));
}

// shape is one bar of a share between 0 and 1, of several kinds: [[share, kind], …].
export function shape(parts) {
  let x = 0;
  return svg('svg', {class: 'shape', viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': true},
    parts.map(([share, kind]) => {
    const rect = svg('rect', {x, y: 0, width: 100 * Math.max(0, Math.min(1, share)), height: 10, class: kind});
    x += 100 * share;
    return rect;
  }));
}

// Searches that read a part at a time: a series of bounded requests, with progress, stop and go on.

// scan loads parts with load(after) until there are enough rows, the end, or a stop. show draws all
// rows so far and is told whether the search is complete. It returns the element with the progress.
export function scan({load, rows, enough, show, signal, after = ''}) {
  const status = h('div', {class: 'scan', role: 'status'});
  let found = [];
  let scanned = 0;
  let next = after;
  let stopped = false;
  async function run() {
    stopped = false;
    let want = found.length + enough;
    try {
      for (;;) {
        const part = await load(next, signal);
        if (signal.aborted) return;
        found = found.concat(rows(part)).slice(0, 200);
        scanned += part.scanned || 0;
        next = part.next;
        const complete = !next;
        show(found, complete, part);
        want = Math.min(want, 200);
        const going = !complete && !stopped && found.length < want;
        progress(part, complete, going);
        if (!going) return;
      }
    } catch (err) {
      if (signal.aborted) return;
      if (!(err instanceof Problem)) console.error(err);
      draw(status, h('p', {class: 'fault', role: 'alert'}, err.message), button(t('go on'), 'scan-on', '', run));
      show(found, false, {});
    }
  }
  function progress(part, complete, going) {
    const all = scanned + (part.left || 0);
    draw(status,
      h('span', null, complete ? t('scanned all', num(scanned)) : t('scanned of', num(scanned), num(all)),
        part.reached && !complete && ' · ' + t('reached', at(part.reached))),
      !complete && all > 0 && shape([[scanned / all, 'blue']]),
      going ? button(t('stop'), 'scan-stop', '', () => { stopped = true; }, 'quiet')
        : !complete && found.length < 200 && button(t('go on'), 'scan-on', '', run, 'quiet'),
      found.length >= 200 && h('span', {class: 'hint'}, t('narrow')));
  }
  run();
  return status;
}

// The view of a body: text, JSON or bytes. It shows the first 64 KiB; copy and download have all.

const first = 65536;

// pretty indents JSON. It moves the tokens of the text and does not print parsed values, so that
// numbers keep all their digits. The result is null for other text.
export function pretty(text) {
  try { JSON.parse(text); } catch { return null; }
  const line = (depth) => '\n' + '  '.repeat(depth);
  let out = '';
  let depth = 0;
  let last = '';
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g)) {
    const opened = last === '{' || last === '[';
    if (token === '}' || token === ']') out += (opened ? (depth--, '') : line(--depth)) + token;
    else if (token === ',') out += token;
    else if (token === ':') out += ': ';
    else out += (opened || last === ',' ? line(depth) : '') + token;
    if (token === '{' || token === '[') depth++;
    last = token;
  }
  return out;
}

// hex is a dump with offsets and the printable characters.
export function hex(data) {
  const lines = [];
  for (let i = 0; i < data.length; i += 16) {
    const row = [...data.subarray(i, i + 16)];
    const digits = row.map((b) => b.toString(16).padStart(2, '0')).join(' ').padEnd(48);
    lines.push(`${i.toString(16).padStart(6, '0')}  ${digits} ${row.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : '.')).join('')}`);
  }
  return lines.join('\n');
}

// bytesOf is the body of a message of the API.
export const bytesOf = (m) => (m.body_text !== undefined ? new TextEncoder().encode(m.body_text)
  : Uint8Array.from(atob(m.body || ''), (c) => c.charCodeAt(0)));

// body is the view of the body of a message; name is that of the download.
export function body(m, name) {
  const data = bytesOf(m);
  const text = m.body_text;
  const json = text !== undefined && text.length <= 1 << 20 ? pretty(text) : null;
  const forms = [json !== null && ['JSON', () => safe(json.slice(0, limit), true)],
    text !== undefined && [t('text'), () => safe(text.slice(0, limit), true)],
    [t('hex'), () => hex(data.subarray(0, Math.min(data.length,
      limit === Infinity ? data.length : limit / 4)))]].filter(Boolean);
  let limit = first;
  let chosen = forms[0];
  const pre = h('pre', {class: 'body', tabindex: 0});
  const tools = h('div', {class: 'tools'});
  const show = () => {
    pre.textContent = chosen[1]();
    draw(tools, h('span', {class: 'hint'}, size(data.length)),
      h('span', {class: 'tabs', role: 'group', 'aria-label': t('form')},
        forms.map((f) => h('button', {type: 'button', class: 'quiet', 'data-key': f[0],
        'aria-pressed': String(f === chosen), click: () => { chosen = f; show(); }}, f[0]))),
      button(t('copy'), 'copy-body', name, () => copy(text ?? hex(data), pre), 'quiet'),
      button(t('download'), 'download-body', name, () => save(name, [data]), 'quiet'),
      limit < Infinity && pre.textContent.length >= limit
        && button(t('show all'), 'show-all', name, () => { limit = Infinity; show(); }, 'quiet'));
  };
  show();
  return h('div', {class: 'payload'}, tools, pre);
}

// line is the first line of a body, for a table.
export function line(m) {
  if (m.body_text === undefined) return m.body ? t('not text') : '';
  const text = m.body_text.slice(0, 200).split('\n')[0];
  return text.length < m.body_text.length ? text + '…' : text;
}

// The retry schedule: when each attempt comes, and what is wrong with the settings.

// steps reads a schedule such as "10s 30s 1m" in milliseconds; null if a word is no duration.
export function steps(text) {
  const all = text.trim().split(/\s+/).filter(Boolean).map(parse);
  return all.some((ms) => ms === undefined || ms < 0) ? null : all;
}

// attempts lists each attempt with the wait before it and its time after the first. The last
// interval repeats; the list ends after most attempts or 100. Each attempt takes work ms.
export function attempts(waits, most, work = 0) {
  const list = [{number: 1, wait: 0, at: 0}];
  while (list.length < Math.min(most < 0 ? 100 : most, 100)) {
    const last = list.at(-1);
    const wait = waits.length ? waits[Math.min(last.number, waits.length) - 1] : 0;
    list.push({number: last.number + 1, wait, at: last.at + work + wait});
  }
  return list;
}

// findings are the faults of a schedule that settings alone do not show.
export function findings(list, most, retention, lease, work) {
  const late = retention > 0 && list.find((a) => a.at > retention);
  return [
    late && t('retry after retention', late.number, duration(late.at), duration(retention)),
    lease > 0 && work > lease && t('work longer than lease', duration(work), duration(lease)),
    most < 0 && t('never ends'),
    most === 1 && t('no retries'),
    most > 1 && list.at(-1).at < 60000 && t('short schedule', duration(list.at(-1).at)),
  ].filter(Boolean);
}

// picture is the schedule as a table whose bars are the time since the first attempt, on a
// logarithmic scale. then is what happens after the last attempt: a value of on_exhausted.
export function picture(list, most, then = 'dead-letter') {
  const scale = (ms) => Math.log10(1 + ms / 100);
  const full = scale(list.at(-1).at) || 1;
  const end = most < 0 ? t('goes on') : t('then ' + then, duration(list.at(-1).at));
  return [table({rows: list, empty: '', columns: [
    {label: t('attempt'), num: true, cell: (a) => String(a.number)},
    {label: t('wait before'), num: true, cell: (a) => (a.number === 1 ? '' : duration(a.wait))},
    {label: t('after first'), num: true, cell: (a) => duration(a.at)},
    {label: t('time, logarithmic'), cell: (a) => shape([[scale(a.at) / full, 'retry']])},
  ]}), h('p', {class: 'hint'}, end)];
}

// The page of help: the calculator of retry schedules, words and keys.

const ladder = '10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h';

export function help(page) {
  const {retry = ladder, attempts: most = '17', work = '0s', lease = '30s', retention = '72h'} = page.query;
  page.head({title: cap(t('help')), same: command(['help'])});
  const out = h('div');
  const form = h('form', {class: 'filters', submit: (event) => { event.preventDefault(); page.go(values(form)); },
    input: () => calculate()},
    field(t('retry schedule'), {name: 'retry', value: retry}),
    field(`${t('max attempts')} (${t('minus one')})`, {name: 'attempts', value: most, inputmode: 'numeric'}),
    field(t('time of handler'), {name: 'work', value: work}), field(t('lease'), {name: 'lease', value: lease}),
    field(t('retention'), {name: 'retention', value: retention}), h('button', {class: 'quiet'}, t('keep in address')));
  function calculate() {
    const v = values(form);
    const waits = steps(v.retry);
    const n = Number(v.attempts);
    const times = ['work', 'lease', 'retention'].map((k) => parse(v[k]));
    if (!waits || !Number.isInteger(n) || n === 0 || n < -1 || times.includes(undefined)) {
      draw(out, h('p', {class: 'fault', role: 'alert'}, t('bad schedule')));
      return;
    }
    const list = attempts(waits, n, times[0]);
    draw(out, findings(list, n, times[2], times[1], times[0]).map((f) => h('p', {class: 'state warn'}, f)),
      picture(list, n));
  }
  calculate();
  page.body.append(h('section', null, h('h2', null, t('calculator')), h('p', {class: 'hint'}, t('calculator hint')),
    form, out),
    h('section', null, h('h2', null, t('states of a message')), h('dl', {class: 'words'},
      ['ready', 'inflight', 'waiting_retry', 'parked', 'dead_letter',
        'done'].map((s) => [h('dt', null, t('state ' + s)), h('dd', null, t('meaning ' + s))]))),
    h('section', null, h('h2', null, t('questions')), h('ul', null,
      [['why not consumed', link('trace')], ['what fails', link('dead-letters')],
        ['why rejected', link('limits')]].map(([key, to]) => h('li', null, h('a', {href: to}, t(key)))))));
  page.ready();
}
