// The first page: whether the broker is well, its present problems, and the largest of each kind.
import {get, may, onRevision} from './api.js';
import {button, bytes, cap, count, dialog, duration, field, h, notice, num, parse, rate, since, update, when} from './base.js';
import {charted, follow, over, rates} from './live.js';
import {amount, badge, bar, command, facts, filters, groupLink, link, pager, region, sentence, subject, table, topicLink} from './page.js';
import {holding, lines} from './parts.js';
import {t} from './text.js';

export function overview(page) {
  page.head({title: cap(t('overview')), same: command(['status'])});
  const verdict = region(page);
  const charts = h('div', {class: 'columns charts'});
  const choice = h('div');
  page.body.append(h('section', null, charts, choice));
  const top = region(page, 'columns', 'four');
  const state = region(page);
  let data;
  const chart = charted(page, '', {}, () => update(charts, plots(chart.samples())));
  const figures = (moment) => {
    chart.take(Date.parse(moment.as_of), sample(moment), moment.resumed);
    update(charts, plots(chart.samples()));
    update(choice, chart.choice());
    state(h('h2', null, t('resources')), resources({...data, totals: moment.totals}));
  };
  const stream = follow(page, (moment) => {
    if (!data || !moment.totals) return;
    const before = data.totals;
    data.totals = moment.totals;
    figures(moment);
    if (news.some((k) => moment.totals[k] !== before[k])) page.reload();
  });
  stream.want([], []);
  return page.watch(async (signal) => (await Promise.all([get('overview', {}, signal), chart.past()]))[0], (latest) => {
    data = latest;
    verdict(wrong(data), h('p', {class: 'hint'}, t('running', data.version, duration(since(data.started)))));
    top(tops(data.top));
    figures(data);
  }, stream.every);
}

// sample has the totals of a moment for the charts.
const sample = ({totals, counters}) => ({backlog: totals.backlog?.messages ?? 0, waiting_retry: totals.waiting_retry ?? 0,
  accepted: counters.accepted?.messages ?? 0, delivered: counters.delivered ?? 0, acked: counters.acked ?? 0,
  dead_letters: counters.dead_letters ?? 0});

// A change of these totals is a reason to request the problems at once.
const news = ['parked_groups', 'blocked_groups', 'dead_letters_hour', 'dead_letters_stored'];

// wrong is one line for each thing that is wrong, with the page that repairs it.
function wrong(data) {
  const w = data.wrong || {};
  const items = [];
  const more = (part) => part.count > part.first.length && ' ' + t('and more', num(part.count - part.first.length));
  const rows = (part) => part.first.map((r, i) => [i > 0 && ', ', groupLink(r.group), ' ← ', topicLink(r.topic)]);
  if (!data.ready) items.push(['bad', [t('not ready'), ' ', data.not_ready]]);
  if (w.throttles?.count) items.push(...w.throttles.first.map((l) => ['bad', sentence(l)]),
    ...(more(w.throttles) ? [['bad', h('a', {href: link('limits')}, more(w.throttles))]] : []));
  if (w.parked?.count) items.push(['bad',
    [h('a', {href: link('parked')}, t('wrong parked', count(w.parked.count, 'n groups'))), ' ', rows(w.parked),
    more(w.parked)]]);
  if (w.blocked?.count) items.push(['warn',
    [h('a', {href: link('groups', {state: 'blocked'})}, t('wrong blocked', count(w.blocked.count, 'n groups'))), ' ',
    w.blocked.first.map((r, i) => [i > 0 && ', ', h('a', {href: link('parked', r.group, {topic: r.topic})}, r.group), ' ← ',
      topicLink(r.topic)]), more(w.blocked)]]);
  if (w.behind?.count) items.push(['warn',
    [h('a', {href: link('groups', {state: 'behind', sort: '-age'})},
    t('wrong behind', count(w.behind.count, 'n groups'))), ' ', rows(w.behind), more(w.behind)]]);
  if (w.held?.count) items.push(...w.held.first.slice(0, 3).map((r) => ['warn',
    [groupLink(r.group), ' ← ', topicLink(r.topic), ': ', holding(r.held)]]),
    ...(w.held.count > 3 ? [['warn', h('a', {href: link('groups', {state: 'held'})}, t('and more', num(w.held.count - 3)))]]
      : []));
  if (w.dead_letters?.count) items.push(['warn',
    [h('a', {href: link('dead-letters')}, t('wrong dead', count(data.totals.dead_letters_stored, 'n letters'))), ' ',
    w.dead_letters.first.map((r, i) => [i > 0 && ', ', h('a', {href: link('dead-letters', r.group)}, r.group),
      ` ${num(r.dead_letters_stored)}`]), more(w.dead_letters)]]);
  if (!items.length) return h('p', {class: 'state ok'}, h('b', null, t('all well')), ' ', t('all well hint'));
  return [h('p', null, h('b', null, items.some(([kind]) => kind === 'bad') ? t('is bad') : t('is behind'))),
    items.map(([kind, what]) => h('p', {class: 'state ' + kind}, what))];
}

function plots(samples) {
  const series = (label, kind, values) => ({label, kind, values});
  return [
    lines({title: t('messages per second'), ...over(samples), text: rate,
      series: [series(t('accepted'), 'blue', rates(samples, 'accepted')),
      series(t('delivered'), 'amber', rates(samples, 'delivered')),
      series(t('acknowledged'), 'green', rates(samples, 'acked'))]}),
    lines({title: t('dead letters per second'), ...over(samples), text: rate,
      series: [series(t('dead letters'), 'red', rates(samples, 'dead_letters'))]}),
    lines({title: cap(t('backlog')), ...over(samples), text: num,
      series: [series(t('messages'), 'blue', samples.map((s) => s.backlog)),
      series(t('waiting retry'), 'amber', samples.map((s) => s.waiting_retry))]}),
  ];
}

function tops(top = {}) {
  const part = (title, rows, columns, to) => h('div', null, h('h2', null, h('a', {href: to}, title)),
    table({rows: (rows || []).slice(0, 10), empty: t('none now'), columns}));
  const topic = {label: t('topic'), wide: true, cell: (r) => topicLink(r.name)};
  const group = {label: t('group'), wide: true, cell: (r) => [groupLink(r.group), r.topic && [' ← ', r.topic]]};
  const age = {label: t('oldest'), num: true, cell: (r) => duration(r.oldest_ms)};
  const backlog = {label: t('backlog'), num: true, cell: (r) => num(r.backlog?.messages)};
  return [
    part(t('top backlog'), top.groups?.backlog, [group, backlog, age], link('groups', {sort: '-backlog'})),
    part(t('top age'), top.groups?.age, [group, age, backlog], link('groups', {sort: '-age'})),
    part(t('top rate'), top.topics?.in_rate, [topic,
      {label: t('in per second'), num: true, cell: (r) => rate(r.in_rate)},
      {label: t('out per second'), num: true, cell: (r) => rate(r.out_rate)}], link('topics', {sort: '-in'})),
    part(t('top dead'), top.groups?.dead_letters, [group,
      {label: t('dead letters'), num: true, cell: (r) => num(r.dead_letters_stored)}], link('dead-letters')),
  ];
}

function resources({storage = {}, memory = [], totals = {}, clients}) {
  return facts([
    [t('topics'), num(totals.topics)], [t('groups'), num(totals.groups)], [t('clients'), num(clients)],
    [t('stored'), totals.stored && `${num(totals.stored.messages ?? 0)} · ${bytes(totals.stored.bytes ?? 0)}`],
    [t('backlog'), totals.backlog && `${num(totals.backlog.messages ?? 0)} · ${bytes(totals.backlog.bytes ?? 0)}`],
    [t('delayed'), num(totals.delayed?.messages ?? 0)], [t('oldest'), duration(totals.oldest_ms)],
    [t('disk use'), bytes(storage.disk_bytes)], [t('write log'), bytes(storage.wal_bytes)],
      ['fsync p99', storage.fsync_p99 ? duration(parse(storage.fsync_p99)) : undefined],
    ...memory.map((m) => [t('memory ' + m.use), [`${bytes(m.held ?? 0)} / ${bytes(m.limit)}`,
      m.rejected ? ' ' + t('rejected', num(m.rejected)) : '']]),
  ]);
}

// The page of the latest changes, the newest first.

export function audit(page) {
  const {key, subject, operation, since, after} = page.query;
  page.head({title: cap(t('audit')), sub: t('audit sub')});
  page.body.append(filters(page, field(t('access key'), {name: 'key', value: key}),
    field(t('subject'), {name: 'subject', value: subject}),
    field(t('operation'), {name: 'operation', value: operation, placeholder: 'purgeTopic'}),
    field(t('since'), {name: 'since', value: since, placeholder: '2026-01-31T12:00:00Z'})));
  const draw = region(page);
  return page.watch((signal) => get('audit', {key, subject, operation, since, after, limit: 100}, signal), (data) => draw(
    table({rows: data.records, empty: t('no changes'), columns: [
      {label: t('time'), cell: (r) => when(r.time)},
      {label: t('access key'), cell: (r) => r.key},
      {label: t('address'), cell: (r) => r.peer},
      {label: t('operation'), wide: true, cell: did},
      {label: t('subject'), wide: true, cell: (r) => [r.subject, ' ', h('small', null, r.query)]},
      {label: t('result'), wide: true, cell: (r) => (r.result === 'ok' ? badge('ok', 'ok') : r.result)},
    ]}), pager(page, data.next)));
}

// did is the operation of a record. Queries of records are cut, so the new ID may be missing.
function did(r) {
  const as = new URLSearchParams(r.query).get('sent_as');
  if (as && r.operation === 'redriveDeadLetters') return t('edited as', as);
  return as && r.operation === 'purgeDeadLetters' ? t('sent again as', as) : r.operation;
}

// The page of the limits: those that throttle sends first, then the nearest.

export function limits(page) {
  page.head({title: cap(t('limits')), sub: t('limits sub'), same: command(['limits', 'show']),
    actions: may.server('admin') && button(t('change'), 'set-limits', '', async () => change(await get('throttle'), page))});
  const draw = region(page);
  const past = region(page);
  const set = region(page);
  const history = ({counters, started}) => past(h('h2', null, t('throttles so far')), rejections(counters.throttled, started, chart.samples()));
  const chart = charted(page, 'rejected', null);
  const take = (m) => chart.take(Date.parse(m.as_of), {rejected: Object.values(m.counters.throttled).reduce((sum, n) => sum + n, 0)});
  let started;
  const stream = follow(page, (moment) => {
    if (!moment.counters) return; // the key may not observe the broker
    take(moment);
    if (started) history({...moment, started});
  });
  stream.want([], []);
  return page.watch((signal) => Promise.all([get('throttle', {}, signal), get('overview', {}, signal)]), ([data, all]) => {
    started = all.started;
    if (!stream.fresh()) take(all);
    history(all);
    // Free disk has a minimum: the value approaches it from above.
    const near = (l) => (!l.mark ? 0 : l.limit === 'free disk' ? l.mark / Math.max(1, l.value) : l.value / l.mark);
    const rows = [...data.throttles, ...data.not_reached.sort((a, b) => near(b) - near(a))];
    draw(table({caption: rows.length > 200 && t('first 200', rows.length), rows, empty: t('no limits'), columns: [
      {label: t('state'),
        cell: (l) => (l.on ? badge(t('throttled'), 'bad') : near(l) >= 0.8 ? badge(t('near'), 'warn')
        : badge(t('not reached')))},
      {label: t('limit'), cell: (l) => t('limit ' + l.limit)},
      {label: t('subject'), cell: (l) => [subject(l), l.topic && l.topic !== l.subject && [' → ', l.topic]],
        wide: true},
      {label: t('value'), num: true, cell: (l) => [amount(l.value, l.unit), ' ', bar(l.value, l.mark, (n) => amount(n, l.unit), near(l))]},
      {label: t('mark'), num: true, cell: (l) => amount(l.mark, l.unit)},
      {label: t('resumes at'), num: true, cell: (l) => amount(l.resume, l.unit)},
      {label: t('since'), cell: (l) => when(l.since)},
      {label: t('returns in'), num: true, cell: (l) => (l.on ? back(l) : '')},
    ]}));
    const own = flat(data.limits);
    set(h('h2', null, t('limits of broker')), own.length ? facts(own.map(([k, v]) => [h('code', null, k), k.includes('bytes') && v > 0 ? `${v} (${bytes(v)})` : String(v)]))
      : h('p', {class: 'empty'}, t('no own limits')));
  }, stream.every);
}

// back is when a limit accepts sends again.
const back = (l) => (l.resumes_most ? [duration(parse(l.resumes_least)), ' – ', duration(parse(l.resumes_most))]
  : l.limit.includes('backlog') || !l.retry_after ? t('unknown time') : duration(parse(l.retry_after)));

// rejections are the messages that each limit has rejected since the start of the broker, and their
// rate since the console was opened, for an hour at most.
function rejections(throttled, started, samples) {
  const rows = Object.entries(throttled).sort(([, a], [, b]) => b - a);
  return rows.length ? h('div', {class: 'columns'},
    table({rows, empty: '', columns: [
      {label: t('limit'), wide: true, cell: ([limit]) => t('limit ' + limit)},
      {label: t('rejected messages'), num: true, cell: ([, n]) => num(n)},
    ]}), lines({title: t('rejected per second'), ...over(samples), text: rate,
      series: [{label: t('messages'), kind: 'red', values: rates(samples, 'rejected')}]}))
    : h('p', {class: 'empty'}, t('no throttles', duration(since(started))));
}

const keys = ['max_backlog.messages', 'max_backlog.bytes', 'max_backlog.age', 'client_quota.messages_per_second',
  'client_quota.burst',
  'pressure.min_free_disk_bytes', 'pressure.max_compaction_debt_bytes', 'pressure.max_write_stall',
  'pressure.max_cold_reads_bytes_per_second', 'pressure.cold_distance_bytes'];

// flat lists the fields of an object with their paths.
function flat(o, prefix = '') {
  return Object.entries(o || {}).flatMap(([k, v]) => (v && typeof v === 'object' ? flat(v, prefix + k + '.')
    : [[prefix + k, v]]));
}

async function change(state, page) {
  const now = Object.fromEntries(flat(state.limits));
  const done = await dialog({
    title: t('change limits'), confirm: t('change'), cancel: t('cancel'),
    body: [h('p', null, t('change limits hint')), h('div', {class: 'grid'},
      keys.map((k) => field(h('code', null, k), {name: k, value: String(now[k] ?? '')})))],
    run: (form) => {
      const patch = {};
      for (const k of keys) {
        if (form[k] === String(now[k] ?? '')) continue;
        const [part, name] = k.split('.');
        patch[part] ||= {};
        patch[part][name] = form[k] === '' ? null : /^-?\d+(\.\d+)?$/.test(form[k]) ? Number(form[k]) : form[k];
      }
      return onRevision('PATCH', 'throttle', state, patch);
    },
  });
  if (done) { notice(t('changed')); page.reload(); }
}
