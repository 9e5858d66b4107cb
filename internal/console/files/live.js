// The state of the broker, moment by moment, and its samples for the charts. The tabs of a browser
// share one stream: the tab that holds the lock reads it and informs the others.
import {get, Problem, request} from './api.js';
import {at, cap, clock, h, now, place} from './base.js';
import {backoff, link, live} from './page.js';
import {t} from './text.js';

// windows are the periods of the charts: their length, and the distance of their samples.
const windows = {hour: {span: 3600000, step: 10000}, day: {span: 86400000, step: 300000}};
const rings = new Map(); // samples by window and subject, the oldest first
const counters = ['accepted', 'delivered', 'acked', 'redelivered', 'dead_letters'];

// charted are the samples of a subject for the charts of a page: the hour or the day that the broker
// has kept, and the moments after it. wanted is the query of the subject, {} for the whole broker, and
// null for a subject that the broker keeps nothing of. show draws the page when an hour has come late.
export function charted(page, subject, wanted, show) {
  const window = page.query.window === 'day' && wanted ? 'day' : 'hour';
  const {span: most, step} = windows[window];
  const id = `${window} ${subject}`;
  const limit = () => 3 * live.interval() + 5000;
  let loading;
  let note;
  const store = (samples) => {
    rings.delete(id);
    rings.set(id, samples.filter((s) => s.at > samples.at(-1).at - most - step));
    if (rings.size > 20) rings.delete(rings.keys().next().value);
  };
  const load = () => (loading ||= get('history', {window, ...wanted}, page.signal).then((past) => {
    const series = past.total || past.topics?.[0] || past.groups?.[0];
    if (!series) return;
    note = series.left_out && series.from;
    store(merge(rings.get(id) || [], past, series));
  }, (err) => {
    if (!page.signal.aborted && !(err instanceof Problem)) console.error(err);
  }).finally(() => { loading = undefined; }));
  return {
    // past awaits what the broker has kept, unless the samples go on until now.
    past: async () => {
      const newest = rings.get(id)?.at(-1);
      if (wanted && !(newest && Math.abs(now() - newest.at) < limit())) await load();
    },
    // take keeps a sample, which replaces the newest one in the same step. If samples before it are missing,
    // or the stream was interrupted as by a restart of the broker, it requests what the broker has kept.
    take(time, values, resumed) {
      let samples = rings.get(id) || [];
      const newest = samples.at(-1);
      if (newest && time < newest.at - limit()) samples = []; // the broker's clock was set back
      else if (newest?.at >= time) return;
      const gap = resumed || !newest || Math.abs(time - newest.at) > limit();
      const before = samples.at(-2);
      const same = !gap && before && newest.at - before.at < step;
      store([...(same ? samples.slice(0, -1) : samples), {at: time, ...values}]);
      if (wanted && gap) load().then(() => page.signal.aborted || show());
    },
    samples: () => rings.get(id) || [],
    // choice are the links to the windows.
    choice: () => h('p', {class: 'hint'}, [['hour', cap(t('last hour'))], ['day', cap(t('last day'))]].map(([key, text]) => [
      h('a', {href: link(...page.names, {...page.query, window: key === 'day' && key}), 'data-key': key,
        'aria-current': key === window && 'true'}, text), ' ']), note && t('history left out', at(note))),
  };
}

// merge makes samples of what the broker has kept, and keeps those that are newer. Samples of before a
// restart stay, with a gap after them: a sample without values.
function merge(samples, {as_of: asOf, started, step_ms: step}, series) {
  const from = Date.parse(series.from);
  const end = Date.parse(asOf);
  const first = {at: from};
  const past = [first];
  series.backlog?.forEach((n, i, all) => past.push({at: i < all.length - 1 ? from + (i + 1) * step : end,
    backlog: n, waiting_retry: series.waiting_retry?.[i]}));
  for (const key of counters) {
    if (!series[key]) continue;
    let sum = series.counters[key] ?? 0;
    for (let i = past.length - 1; i >= 0; i--) {
      past[i][key] = sum;
      sum -= series[key][i - 1] ?? 0;
    }
  }
  if (past.length > 2 && past.at(-2).at >= end) past.pop(); // the slot in progress has just begun
  const before = Math.abs(from - Date.parse(started)) < 1000 ? samples.filter((s) => s.at < from - 1) : [];
  return [...before, ...(before.length ? [{at: from - 1}] : []), ...past, ...samples.filter((s) => s.at > end)];
}

// span is the time that samples cover, in milliseconds.
const span = (samples) => (samples.length > 1 ? samples.at(-1).at - samples[0].at : 0);

// rates are the changes of a counter per second, from a second or more before each sample on; a restart of
// the broker leaves a gap.
export const rates = (samples, key) => samples.map((s, i) => {
  let j = i - 1;
  while (j > 0 && s.at - samples[j].at < 1000 && samples[j][key] !== undefined) j--;
  const before = samples[j];
  const d = before && s[key] - before[key];
  return d >= 0 && s.at > before.at ? d / ((s.at - before.at) / 1000) : undefined;
});

// over is the time axis of samples, for lines.
export const over = (samples) => ({span: span(samples),
  places: samples.map((s) => (s.at - samples[0].at) / (span(samples) || 1))});

const names = 100; // of topics and groups in a stream: the limit of the broker
const forgotten = 90000; // a tab repeats its wishes each 30 s
const me = String(Math.random());
const key = 'live ' + place;
const channel = new BroadcastChannel(key);
const wishes = new Map(); // the topics and groups that each tab shows, by its name
let follower = null; // the page of this tab
let leading = null; // ends the wait for the lock, and the stream
let restart = () => {};

// follow gives a page the moments of the broker until it ends. While they arrive, every is a long
// interval for the requests of other data. want names the topics, groups and group/topic
// that the page shows.
export function follow(page, show) {
  const mine = {show, topics: [], groups: [], seen: 0};
  follower = mine;
  page.signal.addEventListener('abort', () => {
    if (follower === mine) follower = null;
    turn();
  });
  const fresh = () => Date.now() - mine.seen < 3 * live.interval();
  return {
    want(topics, groups) {
      if (String(topics) === String(mine.topics) && String(groups) === String(mine.groups) && leading) return;
      Object.assign(mine, {topics, groups});
      turn();
    },
    fresh,
    every: () => (fresh() ? Math.max(live.interval(), Math.min(15000, 5 * live.interval())) : live.interval()),
  };
}

// turn takes part in the stream, or leaves it: a tab that is hidden, paused or has no page for it.
function turn() {
  const on = follower && !document.hidden && !live.paused();
  if (on) say({wish: {topics: follower.topics, groups: follower.groups}});
  if (on && !leading) {
    leading = new AbortController();
    live.expect(true);
    lead(leading.signal);
  }
  if (!on) leave();
}

function leave() {
  if (!leading) return;
  leading.abort();
  leading = null;
  live.expect(false);
  say({wish: null});
}

// lead waits for the lock and reads the stream until signal. Without locks, on a page without TLS
// from another machine, each tab has a stream.
async function lead(signal) {
  const read = () => { channel.postMessage({ask: true}); return stream(signal); };
  try {
    await (navigator.locks ? navigator.locks.request(key, {signal}, read) : read());
  } catch (err) {
    if (!signal.aborted) console.error(err);
  }
}

function say(message) {
  channel.postMessage({from: me, ...message});
  hear({from: me, ...message});
}

function hear({from, wish, ask, moment}) {
  if (wish) wishes.set(from, {...wish, at: Date.now()});
  if (wish === null) wishes.delete(from);
  if (wish) restart();
  if (ask && leading) turn();
  if (!moment || !leading) return;
  clock(moment.now, true);
  live.fresh(Date.parse(moment.as_of));
  follower.seen = Date.now();
  follower.show(moment);
}

// union are the names that all tabs show, those of the latest wish first.
function union() {
  const all = {topics: new Set(), groups: new Set()};
  for (const [from, wish] of [...wishes].sort(([, a], [, b]) => b.at - a.at)) {
    if (Date.now() - wish.at > forgotten) wishes.delete(from);
    else for (const kind of ['topics', 'groups']) for (const name of wish[kind]) {
      if (all.topics.size + all.groups.size < names) all[kind].add(name);
    }
  }
  return all;
}

// stream reads until signal: again after 1 to 30 s if it fails, and at once for other names.
async function stream(signal) {
  for (let failures = 0; !signal.aborted;) {
    const all = union();
    const every = live.interval();
    const other = new AbortController();
    restart = () => {
      const now = union();
      const kept = ['topics', 'groups'].every((kind) => [...now[kind]].every((name) => all[kind].has(name)));
      if (!kept || live.interval() !== every) other.abort();
    };
    let wait = 0;
    try {
      await read(all, every, AbortSignal.any([signal, other.signal]), () => {
        const resumed = failures > 0;
        failures = 0;
        return resumed;
      });
    } catch (err) {
      if (!signal.aborted && !other.signal.aborted && !(err instanceof Problem)) console.error(err);
      wait = err.wait || 0;
    }
    if (signal.aborted || other.signal.aborted) continue;
    await new Promise((resolve) => {
      setTimeout(resolve, Math.max(wait, backoff(failures++)));
      signal.addEventListener('abort', resolve);
    });
  }
}

// read is one stream. begun reports whether it follows a failure. A stream without a line for three intervals and 5 s is broken.
async function read({topics, groups}, every, signal, begun) {
  const silent = new AbortController();
  const wait = () => setTimeout(() => silent.abort(), 3 * every + 5000);
  let timer = wait();
  try {
    const response = await request('GET', 'live', {signal: AbortSignal.any([signal, silent.signal]),
      query: {every: every + 'ms', topics: [...topics].join(), groups: [...groups].join()}});
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    let moment = {};
    for (;;) {
      const {value, done} = await reader.read().catch((err) => {
        throw signal.aborted ? err : new Problem(0, {});
      });
      if (done) return;
      clearTimeout(timer);
      timer = wait();
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const part = JSON.parse(line);
        if (part.error?.status === 401) dispatchEvent(new Event('signedout'));
        if (part.error) throw new Problem(part.error.status, part.error);
        moment = {...part, ...moment, topics: [...moment.topics || [], ...part.topics || []],
          groups: [...moment.groups || [], ...part.groups || []]};
        if (part.more) continue;
        say({moment: {...moment, resumed: begun()}});
        moment = {};
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

channel.addEventListener('message', (event) => hear(event.data));
document.addEventListener('visibilitychange', turn);
addEventListener('live', () => { turn(); restart(); });
addEventListener('pagehide', leave);
addEventListener('pageshow', turn);
setInterval(() => { if (leading) turn(); }, 30000);
