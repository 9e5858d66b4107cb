// Pictures of numbers. Shapes stretch with the page, so the words around them are ordinary text.
import {cursor, Problem, transient} from './api.js';
import {at, button, cap, count, draw, duration, h, num, since, svg} from './base.js';
import {backoff, link} from './page.js';
import {t} from './text.js';

// lines draws series {label, values, kind} of numbers, undefined where there is none, over the time
// span in milliseconds, at places from 0 to 1 of it. text formats a number.
export function lines({title, series, span, places, text}) {
  const most = Math.max(...series.flatMap((s) => s.values.filter((v) => v !== undefined)), 0);
  const top = most || 1;
  const path = (values) => {
    let d = '';
    let pen = 'M';
    values.forEach((v, i) => {
      if (v === undefined) { pen = 'M'; return; }
      d += `${pen}${(places[i] * 600).toFixed(1)} ${(98 - (v / top) * 94).toFixed(1)}`;
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
// rows so far and learns whether the search is complete. If the broker does not respond, it goes on
// when the broker does. It returns the element with the progress.
export function scan({load, rows, enough, show, signal, after = ''}) {
  const status = h('div', {class: 'scan', role: 'status'});
  let found = [];
  let scanned = 0;
  let next = after;
  let stopped = false;
  let failures = 0;
  let timer;
  const advance = cursor(after);
  async function run() {
    clearTimeout(timer);
    stopped = false;
    let want = found.length + enough;
    try {
      for (;;) {
        const part = await load(next, signal);
        if (signal.aborted) return;
        failures = 0;
        next = advance(part.next);
        found = found.concat(rows(part)).slice(0, 200);
        scanned += part.scanned || 0;
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
      const gone = err.status === 404 || err.status === undefined; // there is nothing to go on with
      if (transient(err)) timer = setTimeout(() => signal.aborted || run(), Math.max(err.wait || 0, backoff(failures++)));
      draw(status, h('p', {class: 'fault', role: 'alert'}, err.message), !gone && button(t('go on'), 'scan-on', '', run));
      show(found, gone, {});
    }
  }
  function progress(part, complete, going) {
    const all = scanned + (part.left || 0);
    draw(status,
      h('span', null, complete ? t('scanned all', count(scanned, 'n messages')) : t('scanned of', num(scanned), num(all)),
        part.reached && !complete && ' · ' + t('reached', at(part.reached))),
      !complete && all > 0 && shape([[scanned / all, 'blue']]),
      going ? button(t('stop'), 'scan-stop', '', () => { stopped = true; }, 'quiet')
        : !complete && found.length < 200 && button(t('go on'), 'scan-on', '', run, 'quiet'),
      found.length >= 200 && h('span', {class: 'hint'}, t('narrow')));
  }
  run();
  return status;
}

// Clients that hold messages for long.

// long is the time after which a client that holds a message may hang: that of the overview.
const long = (held) => held && since(held.since) >= 60000;

// holding is a sentence about the client that holds messages of a group longest, with the advice if it
// holds them for long.
export const holding = (held) => [
  held.client ? [cap(t('client')), ' ', h('a', {href: link('clients', {match: held.client})}, held.client)] : t('lost client'),
  ' ', t('holds', count(held.messages, 'n messages'), duration(since(held.since)), at(held.since)),
  long(held) && [' ', t('if it hangs', at(held.until))]];
