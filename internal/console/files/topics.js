// The page of all topics.
import {call, get, may, path} from './api.js';
import {ago, button, bytes, cap, dialog, duration, field, h, hex, notice, num, rate} from './base.js';
import {charted, follow, over, rates} from './live.js';
import {badge, bar, command, facts, filters, groupLink, link, pager, queues, region, sentence, table, topicLink} from './page.js';
import {lines} from './parts.js';
import {addressFields, change, put, show, topicFields} from './settings.js';
import {t} from './text.js';

export function topics(page) {
  const {match = '', after = '', sort = 'name', state = ''} = page.query;
  page.head({title: cap(t('topics')), same: command(['topic', 'list'],
    {match, sort: /backlog|bytes/.test(sort) && sort}),
    actions: may.some('admin') && button(t('create topic'), 'create-topic', '', create)});
  page.body.append(filters(page, field(t('name'),
    {name: 'match', type: 'search', value: match, placeholder: 'orders*'}),
    field(cap(t('state')), {name: 'state', value: state},
      [['', t('any')], ['throttled', t('throttled')], ['backlog', t('with backlog')], ['delayed', t('with delayed')],
      ['empty', t('empty')]])));
  const draw = region(page);
  let data;
  const stream = follow(page, (moment) => {
    if (!data) return;
    const rows = new Map(moment.topics.map((row) => [row.name, row]));
    data.topics = data.topics.map((row) => rows.get(row.name) || row);
    list();
  });
  function list() {
    draw(table({rows: data.topics, sort, onSort: (order) => page.go({sort: order}),
      empty: match || after || state ? t('no topic matches', match) : t('no topics'), columns: [
      {label: t('topic'), sort: 'name', first: 'up', wide: true, cell: (row) => topicLink(row.name)},
      {label: t('type'), cell: (row) => row.type},
      {label: t('queues'), num: true, cell: (row) => num(row.queues)},
      {label: t('stored'), num: true, cell: (row) => num(row.stored?.messages ?? 0)},
      {label: t('backlog'), sort: 'backlog', num: true, title: t('backlog hint'),
        cell: (row) => num(row.backlog?.messages ?? 0)},
      {label: t('size'), sort: 'bytes', num: true, cell: (row) => bytes(row.backlog?.bytes ?? 0)},
      {label: t('oldest'), sort: 'age', num: true, cell: (row) => duration(row.oldest_ms)},
      {label: t('in per second'), sort: 'in', num: true, cell: (row) => rate(row.in_rate)},
      {label: t('out per second'), sort: 'out', num: true, cell: (row) => rate(row.out_rate)},
      {label: t('groups'), num: true, cell: (row) => num(row.groups ?? 0)},
      {label: t('state'), wide: true,
        cell: (row) => (row.throttle ? [badge(t('throttled'), 'bad'), ' ',
        sentence({subject: row.name, ...row.throttle}, row.name)] : row.delayed ? badge(t('n delayed', num(row.delayed.messages)))
        : '')},
    ]}), pager(page, data.next, data.total > 0 && t('n of', num(data.topics.length), num(data.total))));
  }
  return page.watch((signal) => get('topics', {view: 'summary', match, after, sort, state, limit: 100}, signal),
    (latest) => {
    data = latest;
    stream.want(data.topics.map((row) => row.name), []);
    list();
  }, stream.every);
}

function create() {
  return dialog({
    title: t('create topic'), confirm: t('create'), cancel: t('cancel'),
    body: h('div', {class: 'grid'},
      field(t('name'), {name: 'name', required: true, maxlength: 127, autocomplete: 'off'}),
      field(t('type'), {name: 'type', value: 'NORMAL'},
        ['NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'PRIORITY', 'LITE'].map((v) => [v, v])),
      field(t('queues'), {name: 'queues', type: 'number', min: 1, max: 1024, value: '8'})),
    run: async (form) => {
      if (!may.topic('admin', form.name)) throw new Error(t('not permitted', form.name));
      await put(path`topics/${form.name}`, form.name, {type: form.type,
        queues: form.type === 'LITE' ? undefined : Number(form.queues)});
      location.hash = link('topics', form.name);
    },
  });
}

// The page of one topic.

export function topic(page) {
  const name = page.names[1];
  const at = path`topics/${name}`;
  let state = {};
  let slowest; // the group that holds the backlog of a throttled topic
  const admin = may.topic('admin', name);
  page.head({title: name, sub: t('topic'), same: command(['topic', 'show', name]), actions: [
    may.send(name) && button(t('send test message'), 'send', name, () => send(name, page)),
    admin && button(t('change'), 'change-topic', name, async () => {
      const now = await get(at);
      if (await change({title: t('change topic', name), hint: t('change hint'), fields: topicFields, at,
        state: now})) page.reload();
    }),
    admin && button(t('purge'), 'purge-topic', name, () => purge(name, at, page), 'danger'),
    admin && button(t('delete'), 'delete-topic', name, () => remove(name, at, state), 'danger'),
  ]});
  const top = region(page);
  const drawPlots = region(page);
  const drawLites = region(page);
  const drawQueues = region(page);
  const groups = region(page);
  const settings = region(page, 'columns');
  const chart = charted(page, 'topic ' + name, {topics: name}, () => figures());
  const stream = follow(page, (moment) => {
    const row = moment.topics.find((one) => one.name === name);
    if (!row || !state.name) return;
    state = {...state, stored_messages: row.stored?.messages ?? 0, stored_bytes: row.stored?.bytes ?? 0,
      backlog: {messages: 0, bytes: 0, ...row.backlog}, delayed_messages: row.delayed?.messages,
      half_messages: row.half_messages, throttle: row.throttle};
    chart.take(Date.parse(moment.as_of), {backlog: row.backlog?.messages ?? 0, accepted: row.accepted ?? 0,
      acked: row.acked ?? 0}, moment.resumed);
    figures();
  });
  stream.want([name], []);
  function figures() {
    const limit = state.max_backlog || {};
    drawPlots(h('div', {class: 'columns'}, plots(chart.samples())), chart.choice());
    top(state.throttle ? h('p', {class: 'state bad'}, [sentence({subject: name, ...state.throttle}, name),
      slowest && [' ', t('slowest group'), ' ', groupLink(slowest.group)]])
      : h('p', {class: 'state ok'}, t('accepts sends')),
    facts([
      [t('type'), state.type],
      [t('stored'), `${num(state.stored_messages)} · ${bytes(state.stored_bytes)}`],
      [t('accepted since start'), num(state.accepted_messages)],
      [t('backlog'), [`${num(state.backlog.messages)} · ${bytes(state.backlog.bytes)} `,
        bar(state.backlog.messages, limit.messages), bar(state.backlog.bytes, limit.bytes, bytes)]],
      [t('delayed'), num(state.delayed_messages || 0)],
      [t('half messages'), num(state.half_messages || 0)],
    ]));
  }
  return page.watch(async (signal) => {
    const [topicState, address, part] = await Promise.all([get(at, {}, signal), get(at + '/address-settings', {}, signal),
      get(at + '/queues', {after: page.query.queue, limit: 100}, signal), chart.past()]);
    const sort = {'topic backlog messages': '-backlog', 'topic backlog bytes': '-bytes',
      'topic backlog age': '-age'}[topicState.throttle?.limit];
    const slow = sort && await get('groups', {view: 'summary', topic: name, sort, limit: 1}, signal);
    const lites = topicState.type === 'LITE'
      && await get(at + '/lite-topics', {after: page.query.lite, limit: 50}, signal);
    return {topicState, address, part, lites, first: slow && slow.groups[0]};
  }, ({topicState, address, part, lites, first}) => {
    state = topicState;
    slowest = first;
    figures();
    drawLites(lites && liteTopics(page, name, admin, lites));
    drawQueues(queues(page, name, part));
    groups(h('h2', null, t('groups')), table({rows: state.groups || [], empty: t('no groups of topic'), columns: [
      {label: t('group'), wide: true, cell: (group) => groupLink(group)},
    ]}));
    settings(
      h('div', null, h('h2', null, t('settings')), h('p', {class: 'hint'}, t('grey is default')),
        show(topicFields, state)),
      h('div', null, h('h2', null, t('address settings')), address.matches.length
        ? [h('p', {class: 'hint'}, t('patterns'), address.matches.map((m) => [' ', badge(m)])),
          show(addressFields, address)]
        : h('p', {class: 'empty'}, t('no address settings'))));
  }, stream.every);
}

// liteTopics draws a page of the lite topics of a topic. The pager has a key of its own, because the
// page can have another list.
function liteTopics(page, name, admin, {lite_topics: rows, total, more}) {
  const of = (groups, cell) => groups.map((g) => h('div', null, groupLink(g.group), ' ', cell(g)));
  return [h('h2', null, t('lite topics')), table({rows, empty: t('no lite topics'), columns: [
    {label: t('lite topic'), wide: true, cell: (lt) => h('code', null, lt.name)},
    {label: t('stored'), num: true,
      cell: (lt) => h('a', {href: link('messages', {topic: name, queue: lt.queue})}, num(lt.messages))},
    {label: t('last use'), cell: (lt) => ago(lt.used_at)},
    {label: t('backlog'), cell: (lt) => of(lt.groups || [], (g) => num(g.backlog))},
    {label: t('consumers'), wide: true, cell: (lt) => of((lt.groups || []).filter((g) => g.consumers),
      (g) => g.consumers.map((id) => [h('code', null, id), ' ']))},
    admin && {label: '', cell: (lt) => h('span', {class: 'tools'}, button(t('delete'), 'delete-lite', lt.name,
      () => removeLite(page, name, lt), 'quiet danger'))},
  ]}), h('p', {class: 'hint'}, t('n of', num(rows.length), num(total))),
  page.query.lite && h('a', {href: link(...page.names, {...page.query, lite: undefined})}, t('first page')), ' ',
  more && h('a', {href: link(...page.names, {...page.query, lite: rows.at(-1).name}), 'data-key': 'lites'},
    t('next page'))];
}

async function removeLite(page, topic, lt) {
  const done = await dialog({
    title: t('delete lite topic', lt.name), danger: true, confirm: t('delete'), cancel: t('cancel'),
    body: h('p', null, t('delete lite topic hint', num(lt.messages))),
    run: async () => { await call('DELETE', path`topics/${topic}/lite-topics/${lt.name}`); return true; },
  });
  if (done) { notice(t('deleted', lt.name)); page.reload(); }
}

// plots are the backlog and the rates of a topic.
const plots = (samples) => [
  lines({title: cap(t('backlog')), ...over(samples), text: num, series: [
    {label: t('messages'), kind: 'blue', values: samples.map((s) => s.backlog)}]}),
  lines({title: t('messages per second'), ...over(samples), text: rate, series: [
    {label: t('accepted'), kind: 'blue', values: rates(samples, 'accepted')},
    {label: t('acknowledged'), kind: 'green', values: rates(samples, 'acked')}]}),
];

// send asks for a message. A repeated request with the same values has the same ID, so the broker
// stores the message once even if the first response was lost.
async function send(name, page) {
  let last, id;
  const done = await dialog({
    title: t('send to', name), confirm: t('send'), cancel: t('cancel'),
    body: h('div', {class: 'grid'},
      field(t('body'), {name: 'body', rows: 6, required: true}),
      field(t('tag'), {name: 'tag'}), field(t('key'), {name: 'key'}),
      field(t('message group'), {name: 'group', hint: t('only fifo')}),
        field(t('lite topic'), {name: 'lite', hint: t('only lite'), maxlength: 64}),
        field(t('priority'), {name: 'priority', hint: t('only priority'), type: 'number', min: 0}),
        field(t('deliver after'), {name: 'after', hint: t('only delay'), placeholder: '30s'})),
    run: (form) => {
      if (last !== JSON.stringify(form)) id = unique();
      last = JSON.stringify(form);
      return call('POST', path`topics/${name}/messages`, {body: {
        id, body_text: form.body, tag: form.tag || undefined, keys: form.key ? [form.key] : undefined,
        message_group: form.group || undefined, lite_topic: form.lite || undefined, priority: Number(form.priority) || undefined,
        deliver_after: form.after || undefined}});
    },
  });
  if (done) { notice(t('sent', done.id)); page.reload(); }
}

// unique returns 128 random bits in hexadecimal.
const unique = () => hex(crypto.getRandomValues(new Uint8Array(16))).toUpperCase();

async function purge(name, at, page) {
  const {removed} = await call('POST', at + '/purge', {query: {dry_run: true}});
  const done = await dialog({
    title: t('purge topic', name), danger: true, confirm: t('purge'), cancel: t('cancel'),
    body: h('p', null, t('purge topic hint', num(removed.messages), bytes(removed.bytes), name)),
    run: () => call('POST', at + '/purge'),
  });
  if (done) { notice(t('purged', num(done.removed.messages))); page.reload(); }
}

async function remove(name, at, state) {
  const done = await dialog({
    title: t('delete topic', name), danger: true, confirm: t('delete'), cancel: t('cancel'),
    body: [h('p', null, t('delete topic hint', num(state.stored_messages), name)),
      field(t('type name'), {name: 'name', autocomplete: 'off', required: true})],
    run: async (form) => {
      if (form.name !== name) throw new Error(t('wrong name', name));
      await call('DELETE', at);
      return true;
    },
  });
  if (done) { notice(t('deleted', name)); location.hash = link('topics'); }
}
