// The page of messages: look at those of a topic, or find some, without receiving them.
import {get, may, path} from './api.js';
import {at, bytes, cap, clip, count, draw, field, h, lined, num, update, when} from './base.js';
import {badge, command, facts, filters, groupLink, link, table} from './page.js';
import {body, line} from './body.js';
import {scan} from './parts.js';
import {t} from './text.js';

// same is the command: find with a filter, else peek.
function same(topic, q) {
  const newest = q.order !== 'oldest';
  const flags = {key: q.key, contains: q.contains, tag: q.tag, 'message-group': q.message_group, queue: q.queue,
    since: q.since, before: q.before};
  if (!q.id && !Object.values(flags).some(Boolean)) return command(['peek', topic], {from: newest && 'last'});
  return command(['find', topic, ...(q.id ? [q.id] : [])], {...flags, newest});
}

export function messages(page) {
  const q = page.query;
  const topic = q.topic || '';
  const readable = topic && may.read(topic);
  page.head({title: topic ? t('messages of', topic) : cap(t('messages')), sub: t('messages sub'),
    same: topic && same(topic, q)});
  page.body.append(filters(page,
    field(cap(t('topic')), {name: 'topic', value: topic, required: true, autocomplete: 'off'}),
    field('ID', {name: 'id', value: q.id}),
    readable !== false && [field(t('key'), {name: 'key', value: q.key}), field(t('tag'), {name: 'tag', value: q.tag}),
      field(t('body contains'), {name: 'contains', value: q.contains})],
    field(t('message group'), {name: 'message_group', value: q.message_group}),
    field(t('queue'), {name: 'queue', value: q.queue, inputmode: 'numeric'}),
    field(t('stored since'), {name: 'since', value: q.since, placeholder: '2026-01-31T12:00:00Z'}),
    field(t('stored before'), {name: 'before', value: q.before, placeholder: '2026-01-31T13:00:00Z'}),
    field(t('order'), {name: 'order', value: q.order || 'newest'},
      [['newest', t('newest first')], ['oldest', t('oldest first')]])));
  const out = h('section');
  page.body.append(out);
  if (!topic) {
    draw(out, h('p', {class: 'empty'}, t('choose topic'), ' ', h('a', {href: link('topics')}, t('list of topics'))));
    return page.ready();
  }
  const list = h('div');
  const status = scan({
    signal: page.signal, enough: 50, after: q.after,
    load: (after, signal) => get(path`topics/${topic}/messages`,
      {...q, topic: undefined, order: q.order || 'newest', text: readable || undefined, limit: 50, after}, signal),
    rows: (part) => part.messages,
    show(found, complete, part) {
      draw(list, part.corrupt && h('p', {class: 'state bad'}, t('corrupt', num(part.corrupt))),
        table({rows: found, empty: complete ? t('no message found') : t('none so far'), columns: [
        {label: t('stored at'), cell: (m) => h('time', {datetime: m.stored_at, title: m.stored_at}, at(m.stored_at))},
        {label: 'ID', cell: (m) => h('a', {href: link('messages', topic, m.queue, m.offset), class: 'mono'},
          m.id || t('no id'))},
        {label: t('queue'), num: true, cell: (m) => `${m.queue} / ${num(m.offset)}`},
        {label: t('tag'), cell: (m) => clip(m.tag)},
        {label: t('key'), cell: (m) => clip((m.keys || []).join(' '))},
        {label: t('message group'), cell: (m) => clip(m.message_group)},
        {label: t('size'), num: true, cell: (m) => bytes(m.body_size)},
        readable && {label: t('body'), wide: true, cell: (m) => h('span', {class: 'mono'}, line(m))},
      ]}));
      page.ready();
    },
  });
  draw(out, readable === false && h('p', {class: 'hint'}, t('no payload')), status, list);
}

// message is the page of one stored message, by its place.
export async function message(page) {
  const [, topic, queue, offset] = page.names;
  const readable = may.read(topic);
  page.head({title: t('message at', topic, queue, offset),
    same: command(['peek', topic], {queue, offset, limit: 1, bodies: readable})});
  const {messages: found} = await get(path`topics/${topic}/messages`,
    {queue, offset, limit: 1, text: readable || undefined}, page.signal);
  const m = found.find((one) => String(one.offset) === offset);
  page.body.append(m ? view(topic, m, readable) : h('p', {class: 'empty'}, t('message gone', topic)));
  page.ready();
}

// view shows a message with its fields and its body.
export function view(topic, m, readable) {
  return h('div', {class: 'message'},
    facts([['ID', h('span', {class: 'mono'}, m.id || m.message_id || t('no id'))], [t('stored at'), m.stored_at],
      [t('born at'), m.born_at], [t('queue'), `${m.queue} / ${m.offset}`], m.tag && [t('tag'), m.tag],
      m.keys?.length && [t('key'), m.keys.join(' ')], m.message_group && [t('message group'), m.message_group],
        m.lite_topic && [t('lite topic'), m.lite_topic], m.priority && [t('priority'), String(m.priority)]]),
    Object.keys(m.properties || {}).length > 0 && [h('h2', null, t('properties')),
      facts(Object.entries(m.properties).map(([k, v]) => [h('code', null, k), lined(v)]), true)],
    m.id && h('p', null, h('a', {href: link('trace', {id: m.id, topic})}, t('why not consumed'))),
    readable ? body(m, m.id || `${topic}-${m.queue}-${m.offset}`) : h('p', {class: 'empty'}, t('no payload')));
}

// The page of one message: its state in each group, and the next step.

const epoch = Date.UTC(2021, 0, 1);

// bornAt is the time in an ID of RocketMQ 5: its bytes 9 to 12 are the seconds since 2021.
export function bornAt(id) {
  return /^01[0-9a-f]{32}$/i.test(id) ? epoch + 1000 * parseInt(id.slice(18, 26), 16) : undefined;
}

export function trace(page) {
  const {id = '', topic = '', all} = page.query;
  page.head({title: cap(id ? t('message', id) : t('trace')), sub: t('trace sub'),
    same: id && command(['trace', id], {topic})});
  page.body.append(filters(page, field('ID', {name: 'id', value: id, required: true, autocomplete: 'off'}),
    field(cap(t('topic')), {name: 'topic', value: topic, required: true, autocomplete: 'off'})));
  const out = h('section');
  page.body.append(out);
  if (!id || !topic) {
    draw(out, h('p', {class: 'empty'}, t('trace needs')));
    return page.ready();
  }
  const born = bornAt(id);
  const bounds = born && !all ? {since: new Date(born - 2000).toISOString(),
    before: new Date(born + 600000).toISOString()} : {};
  const [, before] = /^(.+)\.redrive-[1-9]\d*$/.exec(id) || [];
  if (before) draw(out, h('p', null, h('a', {href: link('trace', {id: before, topic})}, t('redriven from', before))));
  const list = h('div');
  const first = {};
  const hints = () => [
    first.due && h('p', {class: 'state warn'}, t('waits for delivery time'), ' ', when(first.due)),
    first.half && h('p', {class: 'state warn'}, t('is half'))];
  const load = (after, signal) => get(path`topics/${topic}/messages/${id}`, {...bounds, after}, signal);
  const places = []; // the starts of the parts with the message: its state changes, so the page watches them
  const watch = () => page.watch((signal) => Promise.all(places.map((after) => load(after, signal))), (parts) => {
    const found = parts.flatMap((part) => part.messages);
    update(list, hints(), found.length ? found.map((m) => one(topic, m)) : h('p', {class: 'empty'}, t('not found in', topic)));
  });
  const status = scan({
    signal: page.signal, enough: 1,
    async load(after, signal) {
      const part = await load(after, signal);
      if (part.messages.length && places.push(after) === 1) watch();
      return part;
    },
    rows: (part) => part.messages,
    show(found, complete, part) {
      Object.assign(first, part.deliver_at && {due: part.deliver_at}, part.half && {half: true});
      draw(list, hints(), found.map((m) => one(topic, m)),
        !found.length && complete && !first.due && !first.half
          && h('div', {class: 'empty'}, h('p', null,
          bounds.since ? t('not found between', at(bounds.since), at(bounds.before)) : t('not found in', topic)),
          bounds.since && h('a', {href: link('trace', {id, topic, all: true})}, t('search all')),
            h('p', null, t('stored later'))));
      page.ready();
    },
  });
  out.append(status, list);
}

function one(topic, m) {
  const groups = m.groups || [];
  return h('article', {class: 'trace'},
    h('p', null, t('stored in', m.queue, num(m.offset)), ' ', when(m.stored_at),
      m.message_group && [' · ', t('message group'), ' ', badge(m.message_group)], ' · ',
      h('a', {href: link('messages', topic, m.queue, m.offset)}, may.read(topic) ? t('show body') : t('show message'))),
    groups.length ? h('ol', {class: 'fates'}, groups.map((f) => fate(topic, m, f)))
      : h('p', {class: 'empty'}, t('nobody subscribed', topic)));
}

const kinds = {done: 'ok', dead_letter: 'bad', parked: 'bad', waiting_retry: 'warn', held: 'warn', leaving: 'warn'};

// fate is the sentence for one group, its failures and the next step.
function fate(topic, m, f) {
  const next = f.redriven_as ? h('a', {class: 'button', href: link('trace', {id: f.redriven_as, topic: f.topic || topic})}, t('to redriven'))
    : f.state === 'dead_letter' && f.dead_letter
    ? h('a', {class: 'button', href: link('dead-letters', f.group, f.dead_letter.message_id)}, t('to dead letter'))
    : f.state === 'parked' ? h('a', {class: 'button', href: link('parked', f.group, {topic})}, t('to parked')) : null;
  return h('li', null, h('p', null, groupLink(f.group), ' ', badge(t('state ' + f.state), kinds[f.state]), ' ',
    sentence(f)),
    f.reason && h('p', {class: 'reason'}, lined(f.reason)), next && h('p', null, next),
    f.failures?.length > 0 && h('ul', {class: 'failures'},
      f.failures.map((x) => h('li', null, when(x.time), ' · ', t('attempt n', x.attempt), ' · ', t('cause ' + x.cause),
      x.reason && [': ', h('q', {class: 'reason'}, lined(x.reason))],
      x.client && [' · ', x.client]))));
}

const attempt = (n, most) => (most > 0 && n <= most ? t('attempt of', n, most) : t('attempt n', n));
const behind = (m) => (m ? (m.id ? t('message', m.id) : t('message at place', m.offset, m.queue))
  : t('earlier message'));

function sentence(f) {
  const waiting = f.waiting ? t('receives wait', num(f.waiting)) : t('no receive waits');
  switch (f.state) {
    case 'new': return [f.ahead ? t('fate new ahead', num(f.ahead)) : t('fate new'),
      f.behind && ' ' + t('fate behind', behind(f.behind)), ' ', waiting];
    case 'ready': return f.behind ? t('fate held', behind(f.behind))
      : [t('fate ready', attempt((f.attempt || 0) + 1, f.max_attempts)), ' ', waiting];
    case 'held': return t('fate held', behind(f.behind));
    case 'inflight': return [t('fate inflight', attempt(f.attempt, f.max_attempts)), ' ', when(f.due),
      f.owner && [' ', t('unless extended', f.owner)]];
    case 'waiting_retry': return [f.blocked ? t('fate blocked')
      : t('fate waiting', attempt((f.attempt || 0) + 1, f.max_attempts)), ' ', when(f.due)];
    case 'parked': return f.behind ? t('fate parked behind', behind(f.behind))
      : [t('fate parked', count(f.attempt, 'n attempts')), ' ', when(f.due)];
    case 'leaving': return t('fate leaving');
    case 'dead_letter': return f.dead_letter ? [t('fate dead', count(f.attempt, 'n attempts')), ' ',
      when(f.dead_letter.stored_at)] : f.redriven_as ? t('fate redriven', f.redriven_as) : t('fate gone');
    default: return t('fate done');
  }
}
