// The state of the broker, moment by moment, and its samples for the charts. The tabs of a browser
// share one stream: the tab that holds the lock reads it and informs the others.
import {Problem, request} from './api.js';
import {clock, place} from './base.js';
import {backoff, live} from './page.js';

const most = 450; // samples of a chart: 15 minutes of 2 s
const rings = new Map();

// ring are the samples of a subject, the oldest first: "" is the whole broker.
export const ring = (subject) => rings.get(subject) || [];

// keep adds a sample that is newer than the last one. The rings of the subjects that were shown first
// are dropped.
export function keep(subject, sample) {
  const samples = rings.get(subject) || [];
  if (samples.at(-1)?.at >= sample.at) return;
  samples.push(sample);
  if (samples.length > most) samples.shift();
  rings.delete(subject);
  rings.set(subject, samples);
  if (rings.size > 20) rings.delete(rings.keys().next().value);
}

// take keeps a moment of the broker.
export const take = ({as_of: asOf, totals, counters}) => keep('',
  {at: Date.parse(asOf), ...totals, ...counters, accepted: counters.accepted?.messages,
    rejected: Object.values(counters.throttled).reduce((sum, n) => sum + n, 0)});

// span is the time that samples cover, in milliseconds.
export const span = (samples) => (samples.length > 1 ? samples.at(-1).at - samples[0].at : 0);

// rates are the changes of a counter per second between samples; a restart of the broker leaves a gap.
export const rates = (samples, key) => samples.map((s, i) => {
  const before = samples[i - 1];
  const d = before && s[key] - before[key];
  return d >= 0 && s.at > before.at ? d / ((s.at - before.at) / 1000) : undefined;
});

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
      await read(all, every, AbortSignal.any([signal, other.signal]), () => { failures = 0; });
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

// read is one stream. A stream without a line for three intervals and 5 s is broken.
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
        begun();
        say({moment});
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
