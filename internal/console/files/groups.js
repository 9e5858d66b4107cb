// The page of all groups: a row for each group in each topic.
import {call, get, may, path} from './api.js';
import {at, button, bytes, cap, checkbox, count, dialog, duration, field, firstLine, h, notice, now, num, parse, rate, when} from './base.js';
import {badge, command, filters, groupLink, link, pager, queues, region, sentence, table, topicLink} from './page.js';
import {filterOf, mixed} from './clients.js';
import {charted, follow, over, rates} from './live.js';
import {holding, lines, shape} from './parts.js';
import {attempts, findings, picture, steps} from './schedule.js';
import {change, groupFields, put, show} from './settings.js';
import {t} from './text.js';

export function groups(page) {
  const {match = '', after = '', sort = 'name', state = '', topic = ''} = page.query;
  page.head({title: cap(t('groups')), same: command(['group', 'list'],
    {match, topic, lagging: state === 'backlog' && 1}),
    actions: may.some('admin') && button(t('create group'), 'create-group', '', create)});
  page.body.append(filters(page, field(t('name'),
    {name: 'match', type: 'search', value: match, placeholder: 'billing*'}),
    field(cap(t('topic')), {name: 'topic', type: 'search', value: topic}),
    field(cap(t('state')), {name: 'state', value: state},
      [['', t('any')], ['backlog', t('with backlog')], ['behind', t('with behind')], ['retry', t('with retry')],
      ['parked', t('with parked')], ['blocked', t('with blocked')], ['held', t('with held')], ['dead', t('with dead')], ['idle', t('without receive')]])));
  const draw = region(page);
  const place = (row) => `${row.group}/${row.topic || ''}`;
  let data;
  const stream = follow(page, (moment) => {
    if (!data) return;
    const rows = new Map(moment.groups.map((row) => [place(row), row]));
    data.groups = data.groups.map((row) => rows.get(place(row)) || row);
    list();
  });
  function list() {
    draw(table({rows: data.groups, sort, onSort: (order) => page.go({sort: order}),
      empty: match || after || state || topic ? t('no group matches', match) : t('no groups'), columns: [
      {label: t('group'), sort: 'name', first: 'up', wide: true, cell: (row) => groupLink(row.group)},
      {label: t('topic'), cell: (row) => (row.topic ? topicLink(row.topic) : t('none yet'))},
      {label: t('state ready'), sort: 'ready', num: true, cell: (row) => num(row.ready ?? 0)},
      {label: t('state inflight'), sort: 'inflight', num: true, cell: (row) => num(row.inflight ?? 0)},
      {label: t('state waiting_retry'), sort: 'retry', num: true, cell: (row) => num(row.waiting_retry ?? 0)},
      {label: t('parked'), sort: 'parked', num: true,
        cell: (row) => (row.parked ? h('a', {href: link('parked', row.group)}, num(row.parked)) : '0')},
      {label: t('state blocked'), sort: 'blocked', num: true,
        cell: (row) => (row.blocked_groups ? h('a', {href: link('parked', row.group)}, num(row.blocked ?? 0)) : '0')},
      {label: t('backlog'), sort: 'backlog', num: true, cell: (row) => num(row.backlog?.messages ?? 0)},
      {label: t('oldest'), sort: 'age', num: true, cell: (row) => duration(row.oldest_ms)},
      {label: t('in per second'), sort: 'in', num: true, cell: (row) => rate(row.in_rate)},
      {label: t('out per second'), sort: 'out', num: true, cell: (row) => rate(row.out_rate)},
      {label: t('drains in'), num: true, cell: drains},
      {label: t('dead letters'), sort: 'dead', num: true,
        cell: (row) => (row.dead_letters_stored ? h('a', {href: link('dead-letters', row.group)},
        num(row.dead_letters_stored)) : '0')},
      {label: t('receives waiting'), sort: 'waiting', num: true, cell: (row) => num(row.waiting ?? 0)},
      {label: t('clients'), sort: 'clients', num: true, cell: (row) => (row.clients
        ? h('a', {href: link('clients', {group: row.group})}, num(row.clients)) : '0')},
    ]}), pager(page, data.next, data.total > 0 && t('n of', num(data.groups.length), num(data.total))));
  }
  return page.watch((signal) => get('groups', {view: 'summary', match, after, sort, state, topic, limit: 100}, signal),
    (latest) => {
    data = latest;
    stream.want([], data.groups.map(place));
    list();
  }, stream.every);
}

// drains is the time until the backlog is empty at the rates of now.
function drains(row) {
  const backlog = row.backlog?.messages;
  if (!backlog || row.out_rate === undefined && row.in_rate === undefined) return '';
  const speed = (row.out_rate ?? 0) - (row.in_rate ?? 0);
  return speed > 0 ? duration((backlog / speed) * 1000) : t('never');
}

function create() {
  return dialog({
    title: t('create group'), confirm: t('create'), cancel: t('cancel'),
    body: h('div', {class: 'grid'}, field(t('name'),
      {name: 'name', required: true, maxlength: 120, autocomplete: 'off'}),
      field(t('max attempts'), {name: 'attempts', type: 'number', min: -1, max: 1000, value: '17',
        hint: t('minus one')}), checkbox('FIFO', 'fifo', false)),
    run: async (form) => {
      if (!may.group('admin', form.name)) throw new Error(t('not permitted', form.name));
      await put(path`groups/${form.name}`, form.name, {fifo: form.fifo, max_attempts: Number(form.attempts)});
      location.hash = link('groups', form.name);
    },
  });
}

// The page of one group: where its messages are, when the retries come, its settings.

export function group(page) {
  const name = page.names[1];
  const to = path`groups/${name}`;
  let state = {};
  let throttled = new Map(); // the limits that reject sends, by topic
  const admin = may.group('admin', name);
  page.head({title: name, sub: t('consumer group'), same: command(['group', 'show', name]), actions: [
    h('a', {class: 'button', href: link('dead-letters', name)}, t('dead letters')),
    admin && button(t('change'), 'change-group', name, async () => {
      if (await change({title: t('change group', name), hint: t('change hint'), fields: groupFields, at: to,
        state: await get(to), method: 'PATCH'})) page.reload();
    }),
    admin && button(t('rewind'), 'rewind', name, () => rewind(name, state, page)),
    admin && button(t('delete'), 'delete-group', name, () => remove(name, to), 'danger'),
  ]});
  const drawTopics = region(page);
  const drawPlots = region(page);
  const drawFailures = region(page);
  const drawClients = region(page);
  const drawSchedule = region(page, 'columns');
  let due = []; // of the topics of state
  const stream = follow(page, (moment) => {
    const rows = new Map(moment.groups.filter((row) => row.group === name).map((row) => [row.topic, row]));
    if (!state.topics?.some((s) => rows.has(s.topic))) return;
    state.topics = state.topics.map((s) => (rows.has(s.topic) ? {...s, ...none, ...rows.get(s.topic)} : s));
    figures(Date.parse(moment.as_of), moment.resumed);
  });
  const chart = charted(page, 'group ' + name, {groups: name}, () => figures());
  function figures(time, resumed) {
    if (time) chart.take(time, sample(state.topics || []), resumed);
    drawPlots(h('div', {class: 'columns'}, plots(chart.samples())), chart.choice());
    drawTopics(state.topics?.length ? state.topics.map((s, i) => flow(name, s, due[i], throttled.get(s.topic)))
      : h('p', {class: 'empty'}, t('group without topics', name)));
  }
  return page.watch(async (signal) => {
    const [data, failures, clients, topics] = await Promise.all([get(to, {}, signal),
      get(to + '/failures', {limit: 10}, signal), get('clients', {group: name, limit: 100}, signal),
      get('topics', {view: 'summary', state: 'throttled', limit: 1000}, signal), chart.past()]);
    throttled = new Map(topics.topics.map((row) => [row.name, row.throttle]));
    const times = await Promise.all((data.topics || []).slice(0, 20).map((s) =>
      get(path`groups/${name}/topics/${s.topic}/schedule`, {}, signal)));
    return [data, failures, clients, times];
  }, ([data, failures, clients, times]) => {
    state = data;
    stream.want([], (data.topics || []).map((s) => `${name}/${s.topic}`));
    due = times;
    figures(!stream.fresh() && now());
    drawFailures(h('h2', null, t('recent failures')), failureTable(failures));
    drawClients(h('h2', null, h('a', {href: link('clients', {group: name})}, cap(t('clients'))), ` · ${num(clients.total)}`),
      mixed(clients.clients), clientTable(clients.clients.slice(0, 20)));
    drawSchedule(schedule(data), h('div', null, h('h2', null, t('settings')),
      h('p', {class: 'hint'}, t('grey is default')), show(groupFields, data)));
  }, stream.every);
}

// none are the figures that a moment leaves out if they are 0.
const none = {ready: 0, inflight: 0, waiting_retry: 0, parked: 0, blocked: 0, parked_groups: 0, blocked_groups: 0,
  backlog: {messages: 0, bytes: 0}, acked: 0, redelivered: 0, dead_letters: 0, filtered: 0, held: undefined};

// sample has the sums of a group over its topics.
function sample(topics) {
  const sum = (value) => topics.reduce((total, s) => total + value(s), 0);
  return {backlog: sum((s) => s.backlog.messages), waiting_retry: sum((s) => s.waiting_retry),
    acked: sum((s) => s.acked), redelivered: sum((s) => s.redelivered), dead_letters: sum((s) => s.dead_letters)};
}

// plots are the backlog and the rates of a group.
const plots = (samples) => [
  lines({title: cap(t('backlog')), ...over(samples), text: num, series: [
    {label: t('messages'), kind: 'blue', values: samples.map((s) => s.backlog)},
    {label: t('waiting retry'), kind: 'amber', values: samples.map((s) => s.waiting_retry)}]}),
  lines({title: t('messages per second'), ...over(samples), text: rate, series: [
    {label: t('acknowledged'), kind: 'green', values: rates(samples, 'acked')},
    {label: t('redelivered'), kind: 'amber', values: rates(samples, 'redelivered')},
    {label: t('dead letters'), kind: 'red', values: rates(samples, 'dead_letters')}]}),
];

// flow draws the state table of a group in one topic: boxes with counts, and where messages go.
function flow(name, s, due, throttle) {
  const box = (key, n, kind, to) => h('div', {class: 'box ' + (n ? kind : '')}, h('span', null, t('state ' + key)),
    to && n ? h('a', {href: to}, h('b', null, num(n))) : h('b', null, num(n)));
  return h('article', {class: 'flow-of'}, h('h2', null, topicLink(s.topic), ' ',
    h('small', null, h('a', {href: link('groups', name, s.topic)},
      t('backlog of', num(s.backlog.messages), bytes(s.backlog.bytes))))),
    h('p', {class: 'state ' + verdict(s)[0]}, verdict(s)[1]),
    throttle && h('p', {class: 'state bad'}, t('sends rejected'), ' ', sentence(throttle)),
    h('div', {class: 'beside'}, h('div', {class: 'flow'},
      box('ready', s.ready, 'blue'),
      h('div', {class: 'arrow'}, h('small', null, t('delivered'))),
      box('inflight', s.inflight, 'blue', link('groups', name, s.topic, {state: 'inflight'})),
      h('div', {class: 'ends'},
        end(t('acknowledged'), box('done', s.acked, 'green')),
        end(t('attempt failed'), box('waiting_retry', s.waiting_retry, 'amber',
          link('groups', name, s.topic, {state: 'waiting_retry'})), t('ready again when due')),
        s.parked || s.parked_groups ? end(t('exhausted, order kept'),
          box('parked', s.parked, 'red', link('parked', name))) : null,
        end(t('exhausted'), box('dead_letter', s.dead_letters, 'red', link('dead-letters', name, {topic: s.topic}))),
        s.blocked_groups ? end(t('retried without end'),
          box('blocked', s.blocked, 'amber', link('parked', name)), t('blocked groups', num(s.blocked_groups))) : null)), due && dueTimes(due)),
    h('p', {class: 'hint'}, t('counts since', at(s.counts_since)), [['filtered', s.filtered], ['overtaken', s.overtaken], ['discarded', s.discarded],
      ['expired', s.expired], ['redelivered', s.redelivered]]
      .filter(([, n]) => n).map(([key, n], i) => [i ? ' · ' : ' ', t('count ' + key, num(n))])));
}

const end = (label, box, after) => h('div', {class: 'end'}, h('div', {class: 'arrow'}, h('small', null, label)), box,
  after && h('small', {class: 'hint'}, '↺ ', after));

// dueTimes is the histogram of the times at which messages come back.
function dueTimes({buckets, next_retry: retry, next_lease_end: lease}) {
  const most = Math.max(...buckets.map((b) => (b.waiting_retry || 0) + (b.inflight || 0)));
  if (!most) return null;
  const label = (b, i) => (b.until === undefined ? t('later') : i === 0 ? t('now') : '≤ ' + duration(parse(b.until)));
  return h('div', {class: 'due'}, h('h3', null, t('when they come back')),
    h('p', {class: 'hint'}, retry && [t('next retry'), ' ', when(retry)],
    lease && [retry && ' · ', t('next lease end'), ' ', when(lease)]),
    h('div', {class: 'bars'},
      buckets.map((b, i) => [h('span', null, label(b, i)),
      shape([[(b.waiting_retry || 0) / most, 'amber'], [(b.inflight || 0) / most, 'blue']]),
      h('span', null, b.waiting_retry ? count(b.waiting_retry, 'n retries') : '',
        b.inflight ? ' ' + count(b.inflight, 'n leases') : '')])));
}

// clientTable has the consumers of a group with their versions.
const clientTable = (rows) => table({rows, empty: t('none now'), columns: [
  {label: 'ID', wide: true, cell: (c) => c.id},
  {label: t('language'), cell: (c) => [c.language, ' ', c.version, ' ', c.outdated && badge(t('outdated'), 'warn')]},
  {label: t('filter'), cell: filterOf},
  {label: t('receives waiting'), num: true, cell: (c) => num(c.waiting)},
  {label: t('state inflight'), num: true, cell: (c) => num(c.inflight)},
]});

function failureTable(data) {
  return [table({rows: data.failures, empty: t('no failures'), columns: [
    {label: t('time'), cell: (f) => when(f.time)},
    {label: t('reason'), wide: true, cell: (f) => firstLine(f.reason) || t('cause ' + f.cause)},
    {label: t('result'), cell: (f) => [t('fate is ' + f.fate), f.delay && [' ', t('in', duration(parse(f.delay)))]]},
    {label: t('attempt'), num: true, cell: (f) => num(f.attempt)},
    {label: t('message ID'), cell: (f) => f.message_id && h('a',
      {class: 'mono', href: link('trace', {id: f.message_id, topic: f.topic})}, f.message_id)},
    {label: t('topic'), cell: (f) => topicLink(f.topic)},
    {label: t('client'), cell: (f) => f.client},
  ]}), data.dropped > 0 && h('p', {class: 'hint'}, t('failures dropped', num(data.dropped)))];
}

// verdict returns the sentence about why the group does not consume, and its kind. The broker decides
// which one it is: the field why.
function verdict(s) {
  const text = (...args) => t('why ' + s.why, ...args);
  switch (s.why) {
    case 'parked': return ['bad', text(num(s.parked_groups), num(s.parked))];
    case 'blocked': return ['warn', text(num(s.blocked_groups), num(s.blocked))];
    case 'held': return ['warn', holding(s.held)];
    case 'filtered': return ['warn', text(num(s.filtered), at(s.counts_since))];
    case 'throttled': return ['warn', text()];
    case 'idle': return ['ok', [text(), s.filtered > 0 && [' ', t('filtered some', num(s.acked), num(s.filtered))]]];
    case 'no_consumer': return ['warn', text(num(s.ready))];
    case 'retrying': return ['warn', text(num(s.waiting_retry))];
    case 'working': return ['ok', [text(num(s.inflight), num(s.ready)), s.held && [' ', holding(s.held)]]];
    default: return ['', ''];
  }
}

// schedule is the retry schedule of the group with its sums.
function schedule(data) {
  const most = data.max_attempts ?? 17;
  const waits = data.fifo ? [parse(data.fifo_retry_interval)] : steps(data.retry || '') || [];
  const list = attempts(waits, most);
  return h('div', null, h('h2', null, t('retry schedule')), h('p', {class: 'hint'}, t('schedule hint'), ' ',
    h('a', {href: link('help', {retry: data.fifo ? data.fifo_retry_interval : data.retry, attempts: most})},
      t('calculate'))),
  findings(list, most).map((f) => h('p', {class: 'state warn'}, f)),
  h('details', {'data-key': 'schedule', open: list.length <= 20}, h('summary', null, t('attempts', num(list.length))),
    picture(list, most, data.fifo ? data.on_exhausted : undefined)));
}

async function rewind(name, state, page) {
  const topics = (state.topics || []).map((s) => [s.topic, s.topic]);
  if (!topics.length) return notice(t('group without topics', name), 'error');
  const at = path`groups/${name}/rewind`;
  const chosen = await dialog({
    title: t('rewind group', name), confirm: t('go on'), cancel: t('cancel'),
    body: [h('p', null, t('rewind hint')), h('div', {class: 'grid'}, field(t('topic'), {name: 'topic'}, topics),
      field(t('position'), {name: 'to', value: 'earliest'},
        [['earliest', t('earliest')], ['latest', t('latest')], ['time', t('time below')]]),
      field(t('time'), {name: 'time', placeholder: '2026-01-31T12:00:00Z', hint: 'RFC 3339'}))],
    run: async (form) => {
      const body = {topic: form.topic, to: form.to === 'time' ? form.time : form.to};
      return {body, plan: await call('POST', at, {body: {...body, dry_run: true}})};
    },
  });
  if (!chosen) return;
  const done = await dialog({
    title: t('rewind group', name), confirm: t('rewind'), cancel: t('cancel'), danger: true,
    body: h('p', null, chosen.body.topic, ': ', moved(chosen.plan)),
    run: () => call('POST', at, {body: chosen.body}),
  });
  if (!done) return;
  notice(moved(done));
  page.reload();
}

// moved returns the effect of a rewind, before it or after it.
function moved({queues}) {
  const sum = (value) => queues.reduce((total, q) => total + value(q), 0);
  const by = sum((q) => q.from - q.to);
  return t(by < 0 ? 'rewound forward' : 'rewound back', num(Math.abs(by)), num(sum((q) => q.dropped)));
}

async function remove(name, at) {
  const done = await dialog({
    title: t('delete group', name), danger: true, confirm: t('delete'), cancel: t('cancel'),
    body: [h('p', null, t('delete group hint')), field(t('type name'),
      {name: 'name', autocomplete: 'off', required: true})],
    run: async (form) => {
      if (form.name !== name) throw new Error(t('wrong name', name));
      await call('DELETE', at);
      return true;
    },
  });
  if (done) { notice(t('deleted', name)); location.hash = link('groups'); }
}

// progress is the page of a group in one topic: its unfinished messages.
export function progress(page) {
  const [, group, topic] = page.names;
  const {state = '', after = ''} = page.query;
  const at = path`groups/${group}/topics/${topic}`;
  page.head({title: t('group in topic', group, topic), sub: t('unfinished sub'),
    same: command(['group', 'lag', group], {topic}), actions: h('a', {class: 'button', href: link('groups', group)},
    t('group'))});
  page.body.append(filters(page, field(cap(t('state')), {name: 'state', value: state},
    [['', t('any')], ...['ready', 'held', 'inflight', 'waiting_retry', 'parked'].map((s) => [s, t('state ' + s)])])));
  const drawLeases = region(page);
  const drawQueues = region(page);
  return page.watch((signal) => Promise.all([get(at + '/leases', {state, sort: 'due', after, limit: 100}, signal),
    get(at + '/queues', {after: page.query.queue, limit: 100}, signal)]), ([leases, part]) => {
    drawQueues(queues(page, topic, part));
    drawLeases(table({rows: leases.leases, empty: t('nothing unfinished'), columns: [
      {label: t('state'), cell: (l) => badge(t('state ' + l.state))},
      {label: t('due'), cell: (l) => when(l.due)},
      {label: t('in flight since'), cell: (l) => l.since && when(l.since)},
      {label: t('message ID'), cell: (l) => h('a', {class: 'mono', href: link('trace', {id: l.message_id, topic})},
        l.message_id || t('no id'))},
      {label: t('queue'), num: true, cell: (l) => h('a', {href: link('messages', topic, l.queue, l.offset)},
        `${l.queue} / ${l.offset}`)},
      {label: t('message group'), cell: (l) => l.message_group},
      {label: t('attempt'), num: true, cell: (l) => num(l.attempt)},
      {label: t('client'), wide: true, cell: (l) => l.holder || l.owner},
      {label: t('size'), num: true, cell: (l) => bytes(l.body_size)},
    ]}), pager(page, leases.next));
  });
}
