// Jobs on everything that matches a selection: redrive and purge of dead letters. A job is a series of
// bounded requests. Each is one write of the broker, so an end at any time loses nothing. The job is
// kept in the browser with its position, and goes on after a reload, in one tab at a time.
import {call, cursor, get, may, path} from './api.js';
import {ago, button, bytes, cap, checkbox, count as counted, dialog, draw, field, firstLine, h, lined, now, num, percent, store, when} from './base.js';
import {command, facts, filters, groupLink, link, pager, region, table, topicLink} from './page.js';
import {body} from './body.js';
import {edit} from './edit.js';
import {shape} from './parts.js';
import {t} from './text.js';

const bound = 1000; // letters of one request
const running = new Map(); // by group

const all = () => { try { return JSON.parse(store.get('jobs') || '{}'); } catch { return {}; } };
const changed = (group) => dispatchEvent(new CustomEvent('job', {detail: group}));

function write(job) {
  const jobs = all();
  jobs[job.group] = job;
  store.set('jobs', JSON.stringify(jobs));
  changed(job.group);
}

// job is that of a group, running or not; undefined if it has none.
export const job = (group) => running.get(group)?.job || all()[group];

// active reports whether this tab runs the job of a group.
export const active = (group) => running.has(group);

// forget removes a job that does not run.
export function forget(group) {
  const jobs = all();
  delete jobs[group];
  store.set('jobs', JSON.stringify(jobs));
  changed(group);
}

// stop ends a job after the request that is under way.
export function stop(group) {
  const run = running.get(group);
  if (run) run.stopped = true;
  changed(group);
}

// count is the number of dead letters of a selection, from the server in bounded calls. progress
// gets the sum so far.
export async function count(group, selection, signal, progress = () => {}) {
  const advance = cursor();
  let sum = 0;
  let after;
  do {
    const part = await get(path`groups/${group}/dead-letters`, {...query(selection), count: true, after}, signal);
    sum += part.count;
    after = advance(part.next);
    progress(sum);
  } while (after);
  return sum;
}

// query is a selection as the parameters of a list.
export const query = ({message_ids, ...rest}) => ({...rest, message_id: message_ids});

// begin starts a job. selection has a bound in time, so that later dead letters do not belong to it.
export function begin(group, kind, selection, options, total) {
  const fresh = {group, kind, selection, options, total, sent: 0, kept: {}, next: '', state: 'running',
    began: new Date(now()).toISOString()};
  write(fresh);
  return proceed(group);
}

// alone runs a function in one tab at a time. Pages without TLS from another machine have no locks.
const alone = (name, run) => (navigator.locks ? navigator.locks.request(name, {ifAvailable: true}, run) : run(true));

// proceed runs the job of a group from its position. Another tab that runs it keeps it. A call whose
// response was lost is not counted by its response, so the sum after an interruption is the number of removed letters.
export async function proceed(group) {
  if (running.has(group)) return;
  await alone(`tidegate job ${new URL('..', document.baseURI).pathname} ${group}`, async (lock) => {
    if (!lock) return;
    const run = {job: {...all()[group], state: 'running', fault: ''}, stopped: false};
    running.set(group, run);
    write(run.job);
    try {
      if (run.job.called) run.job.sent = Math.max(run.job.sent, run.job.total - await count(group, run.job.selection));
      await steps(group, run);
    } catch (err) {
      run.job.state = 'failed';
      run.job.fault = err.message;
    }
    running.delete(group);
    write(run.job);
  });
}

async function steps(group, run) {
  const j = run.job;
  const advance = cursor(j.next);
  for (;;) {
    if (run.stopped) { j.state = 'stopped'; return; }
    j.called = true;
    write(j);
    let part;
    try {
      part = await step(j);
    } catch (err) {
      if (err.status !== 429 && err.status !== 530 && err.status !== 0 && err.status < 500) throw err;
      j.fault = err.message;
      write(j);
      await wait(err.wait || 3000, run);
      if (err.status === 0 || err.status >= 500) j.sent = Math.max(j.sent,
        await count(group, j.selection).then((left) => j.total - left, () => 0));
      continue;
    }
    j.fault = part.throttle ? t('throttled') : '';
    j.sent += part.redriven ?? part.purged;
    for (const k of ['no_target', 'too_often']) if (part[k]) j.kept[k] = (j.kept[k] || 0) + part[k];
    j.called = false;
    if (!part.next) { j.state = 'done'; return; }
    if (!part.throttle || part.next !== j.next) j.next = advance(part.next); // else it did not begin
    write(j);
    if (part.throttle) await wait(3000, run);
  }
}

// step is one bounded request.
function step(j) {
  const at = path`groups/${j.group}/dead-letters`;
  if (j.kind === 'purge') return call('DELETE', at,
    {query: {...query(j.selection), after: j.next, limit: bound, all: true}});
  return call('POST', at + '/redrive',
    {body: {...j.selection, ...j.options, after: j.next || undefined, limit: bound}});
}

async function wait(ms, run) {
  for (const end = Date.now() + ms; Date.now() < end
    && !run.stopped;) await new Promise((resolve) => setTimeout(resolve, 100));
}

// unfinished are the jobs that no tab of this page runs.
export const unfinished = () => Object.values(all()).filter((j) => j.state === 'running' && !running.has(j.group));

// The pages of dead letters: which groups have some; those of one group, by cause and one by one.

const prefix = '%DLQ%';

// deadLetters lists the groups with dead letters.
export function deadLetters(page) {
  const {after = ''} = page.query;
  page.head({title: cap(t('dead letters')), sub: t('dead letters sub'),
    same: command(['topic', 'list'], {match: prefix + '*'})});
  const draw = region(page);
  return page.watch((signal) => get('topics', {match: prefix + '*', after, limit: 100}, signal), (data) => {
    const rows = data.topics.filter((row) => row.stored_messages > 0).sort((a,
      b) => b.stored_messages - a.stored_messages);
    draw(table({rows, empty: t('no dead letters at all'), columns: [
      {label: t('group'), wide: true, cell: (row) => h('a', {href: link('dead-letters', row.name.slice(prefix.length))},
        row.name.slice(prefix.length))},
      {label: t('dead letters'), num: true, cell: (row) => num(row.stored_messages)},
      {label: t('size'), num: true, cell: (row) => bytes(row.stored_bytes)},
    ]}), pager(page, data.next), h('p', {class: 'hint'}, t('other dead letter topics')));
  });
}

// selectionOf returns the selection of the address.
function selectionOf(q) {
  const set = {topic: q.topic, reason: q.reason, fingerprint: q.fingerprint, since: q.since, before: q.before,
    dead_letter_topic: q.in};
  return Object.fromEntries(Object.entries(set).filter(([, v]) => v));
}

// words describes a selection.
export function words(group, s) {
  return [t('all dead letters of', group), s.message_ids && [', ', t('with id', s.message_ids.join(', '))],
    s.topic && [', ', t('sent to topic', s.topic)], s.reason && [', ', t('reason contains', s.reason)],
    s.fingerprint && [', ', t('of class', s.fingerprint)], s.since && [', ', t('dead since', s.since)],
      s.before && [', ', t('dead before', s.before)], s.dead_letter_topic && [', ',
      t('in topic', s.dead_letter_topic)]];
}

// flags are those of the command line for a selection.
const flags = (s) => ({topic: s.topic, reason: s.reason, class: s.fingerprint, since: s.since, before: s.before,
  in: s.dead_letter_topic});

export function letters(page) {
  const group = page.names[1];
  const q = page.query;
  const selection = selectionOf(q);
  const admin = may.letters(group);
  const filtered = Object.keys(selection).length > 0;
  page.head({title: t('dead letters of', group), sub: words(group, selection),
    same: command(['dead-letters', q.fingerprint ? 'redrive' : filtered ? 'list' : 'top', group],
    {...flags(selection), 'dry-run': !!q.fingerprint}), actions: [
    h('a', {class: 'button', href: link('groups', group)}, t('group')),
    may.redrive(group, selection.topic) && button(t('redrive all'), 'redrive', group, () => ask(group, 'redrive', selection), 'main'),
    admin && button(t('purge all'), 'purge-letters', group, () => ask(group, 'purge', selection), 'danger')]});
  const drawJob = region(page);
  const showJob = () => drawJob(jobView(group, admin));
  addEventListener('job', showJob, {signal: page.signal});
  addEventListener('storage', showJob, {signal: page.signal}); // another tab runs it
  showJob();
  const drawClasses = region(page);
  page.body.append(h('section', null, h('h2', null, t('letters')), filters(page,
    field(cap(t('topic')), {name: 'topic', value: q.topic}),
      field(t('reason contains one'), {name: 'reason', value: q.reason}),
    field(t('dead letter since'), {name: 'since', value: q.since, placeholder: '2026-01-31T12:00:00Z'}),
      field(t('dead letter before'), {name: 'before', value: q.before, placeholder: '2026-01-31T13:00:00Z'}),
    field(t('dead letter topic'), {name: 'in', value: q.in, placeholder: prefix + group}),
    q.fingerprint && h('a', {class: 'button',
      href: link('dead-letters', group, {...q, fingerprint: undefined, after: undefined})}, t('class x', q.fingerprint),
      ' ×'))));
  const fresh = h('div');
  const list = h('div');
  page.body.lastChild.append(fresh, list);
  let seen;
  const load = async () => {
    const data = await get(path`groups/${group}/dead-letters`,
      {...selection, after: q.after, order: 'newest', limit: 50}, page.signal);
    seen = undefined;
    draw(fresh);
    draw(list, letterTable(group, data, page, q));
  };
  addEventListener('job', (event) => event.detail === group && !active(group) && load().catch(page.fail),
    {signal: page.signal});
  return page.watch(async (signal) => {
    const classes = await get(path`groups/${group}/dead-letters/classes`,
      {topic: q.topic, dead_letter_topic: q.in, limit: 100}, signal);
    if (!list.firstChild) await load();
    return classes;
  }, (data) => {
    seen ??= data.letters;
    draw(fresh, data.letters > seen && h('p', {class: 'state'},
      button(t('newer', num(data.letters - seen)), 'show-newer', group, load, 'quiet')));
    drawClasses(h('h2', null, t('causes')), classTable(group, data, q));
  });
}

function classTable(group, data, q) {
  const rows = [...data.classes, ...(data.other ? [{...data.other, other: true}] : [])];
  const share = (c) => c.share ?? c.count / data.letters;
  return [table({rows, empty: q.topic ? t('no dead letters of topic', group, q.topic) : t('no dead letters', group),
    columns: [
    {label: t('reason'), wide: true,
      cell: (c) => (c.other ? t('other causes') : h('a',
      {href: link('dead-letters', group, {...q, after: undefined, fingerprint: c.fingerprint}),
      'aria-current': q.fingerprint === c.fingerprint}, firstLine(c.reason) || t('no reason')))},
    {label: t('count'), num: true, cell: (c) => num(c.count)},
    {label: t('share'), num: true, cell: (c) => [shape([[share(c), 'red']]), ' ', percent(share(c))]},
    {label: t('topic'), cell: (c) => c.topic && topicLink(c.topic)},
    {label: t('first'), cell: (c) => ago(c.first)},
    {label: t('latest'), cell: (c) => ago(c.last)},
    {label: t('redriven before'), num: true, cell: (c) => num(c.max_redrives ?? 0)},
  ]}), data.next && h('p', {class: 'hint'}, t('largest classes', num(data.classes.length)))];
}

function letterTable(group, data, page, q) {
  return [table({rows: data.dead_letters, empty: data.next ? t('none in this part') : t('no letter matches'), columns: [
    {label: t('dead since'), cell: (l) => when(l.stored_at)},
    {label: t('message ID'), cell: (l) => h('a',
      {class: 'mono', href: link('dead-letters', group, l.message_id, {in: q.in})}, l.message_id)},
    {label: t('topic'), cell: (l) => topicLink(l.origin.topic)},
    {label: t('reason'), wide: true, cell: (l) => firstLine(l.origin.reason) || t('no reason')},
    {label: t('attempts of'), num: true, cell: (l) => num(l.origin.attempts)},
    {label: t('redriven before'), num: true, cell: (l) => num(l.origin.redrives)},
    {label: t('size'), num: true, cell: (l) => bytes(l.body_size)},
  ]}), pager(page, data.next, data.next && !data.dead_letters.length && t('scan goes on'))];
}

// jobView shows the job of the group with its progress.
function jobView(group, admin) {
  const j = job(group);
  if (!j) return null;
  const kept = Object.entries(j.kept).map(([k, n]) => [' · ', t('kept ' + k, num(n))]);
  const on = active(group);
  return h('article', {class: 'job state ' + (j.state === 'done' ? 'ok' : j.state === 'failed' ? 'bad' : 'warn')},
    h('p', null, h('b', null, t(`job ${j.kind} ${on ? 'running' : j.state === 'running' ? 'stopped' : j.state}`)), ' ',
      words(group, j.selection)),
    h('p', null, shape([[j.total ? j.sent / j.total : 1, 'blue']]), ' ', t('n of', num(j.sent), num(j.total)), kept,
      (on || j.state === 'failed') && j.fault && [' · ', j.fault]),
    h('div', {class: 'tools'}, on ? button(t('stop'), 'job-stop', group, () => stop(group)) : [
      j.state !== 'done' && admin && button(t('go on'), 'job-continue', group, () => proceed(group), 'main'),
        button(t('close'), 'job-close', group, () => forget(group))]));
}

// ask states the exact selection and its count, and begins the job. It selects the present letters, and
// no later ones.
export async function ask(group, kind, chosen, done) {
  const selection = {...chosen, before: chosen.before || new Date(now()).toISOString()};
  const ending = new AbortController();
  const amount = h('p', {class: 'amount', 'data-count': ''}, t('counting'));
  let total;
  let error;
  const add = () => count(group, selection, ending.signal,
    (sum) => { amount.textContent = t('counting so far', num(sum)); })
    .then((n) => { total = n; error = undefined; amount.textContent = counted(n, 'n letters'); amount.dataset.count = n; },
      (err) => { error = err; amount.textContent = err.message; });
  let counting = add();
  const redrive = kind === 'redrive';
  const result = await dialog({
    title: t(redrive ? 'redrive title' : 'purge title', group), danger: !redrive,
      confirm: t(redrive ? 'redrive' : 'purge'), cancel: t('cancel'),
    body: [h('p', null, words(group, selection)), amount, redrive ? h('div', {class: 'grid'},
      field(t('to topic'), {name: 'to', value: chosen.topic || '', placeholder: t('own topic'), hint: t('to hint')}),
      field(t('max redrives'), {name: 'most', type: 'number', min: 0, value: '3', hint: t('max redrives hint')}),
      checkbox(t('group only', group), 'only', false, t('group only hint')),
      ) : h('p', null, t('purge hint'))],
    run: async (form) => {
      await counting;
      if (error) { // count again for the next confirmation, which then shows the number first
        const before = error;
        counting = add();
        throw before;
      }
      if (!total) throw new Error(t('nothing selected'));
      const to = form.to && form.to !== chosen.topic ? form.to : undefined;
      if (to && form.only) throw new Error(`${t('group only', group)} ≠ ${t('to topic')} ${to}`);
      const options = redrive ? {to, to_group_only: form.only || undefined, max_redrives: Number(form.most) || undefined} : {};
      begin(group, kind, selection, options, total).then(done);
      return true;
    },
  });
  ending.abort();
  return result;
}

// The page of one dead letter: its reason, its content, its origin, and the actions.

export async function letter(page) {
  const [, group, id] = page.names;
  const inTopic = page.query.in;
  const readable = may.receive(inTopic || '%DLQ%' + group, group);
  page.head({title: t('dead letter', id), sub: [t('of group'), ' ', groupLink(group)],
    same: command(['dead-letters', 'show', group, id], {in: inTopic})});
  const {dead_letters: found} = await get(path`groups/${group}/dead-letters`,
    {message_id: id, dead_letter_topic: inTopic, text: readable || undefined, limit: 10}, page.signal);
  if (!found.length) page.body.append(h('p', {class: 'empty'}, t('letter gone'), ' ',
    h('a', {href: link('dead-letters', group)}, t('dead letters of', group))));
  for (const l of found) page.body.append(one(group, l, readable, inTopic));
  page.ready();
}

function one(group, l, readable, inTopic) {
  const o = l.origin;
  const selection = {message_ids: [l.message_id], ...(inTopic && {dead_letter_topic: inTopic})};
  const admin = may.letters(group);
  // A key that may not send to every topic names the letter's one.
  const again = may.redrive(group) ? selection : {...selection, topic: o.topic};
  const back = () => { location.hash = link('dead-letters', group, {in: inTopic}); };
  return h('article', null,
    h('p', {class: 'state bad reason'}, lined(o.reason || t('no reason'))),
    h('div', {class: 'tools'},
      may.redrive(group, again.topic) && button(t('redrive'), 'redrive-one', l.message_id,
        async () => { if (await ask(group, 'redrive', again)) back(); }, 'main'),
      admin && readable && may.send(o.topic) && button(t('edit and redrive'), 'edit-redrive', l.message_id,
        async () => { if (await edit(group, l, inTopic)) back(); }),
      admin && button(t('purge'), 'purge-one', l.message_id,
        async () => { if (await ask(group, 'purge', selection)) back(); }, 'danger'),
      h('a', {class: 'button', href: link('trace', {id: o.message_id, topic: o.topic})}, t('trace'))),
    facts([[t('dead since'), when(l.stored_at)], [t('sent to'), topicLink(o.topic)],
      [t('place'), `${o.queue} / ${o.offset}`], [t('attempts of'), String(o.attempts)],
      [t('redriven before'), String(o.redrives)], [t('born at'), when(l.born_at)], [t('born host'), l.born_host],
        [t('first ID'), o.message_id], [t('size'), bytes(l.body_size)],
      l.message_group && [t('message group'), l.message_group], l.lite_topic && [t('lite topic'), l.lite_topic],
        l.priority && [t('priority'), String(l.priority)], l.tag && [t('tag'), l.tag],
        l.keys?.length && [t('key'), l.keys.join(' ')], l.trace_context && ['traceparent', l.trace_context]]),
    Object.keys(l.properties || {}).length > 0 && [h('h2', null, t('properties')),
      facts(Object.entries(l.properties).map(([k, v]) => [h('code', null, k), lined(v)]), true)],
    h('h2', null, t('body')), readable ? body(l, l.message_id) : h('p', {class: 'empty'}, t('no payload')));
}
