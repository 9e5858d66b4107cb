// The settings of topics, groups and addresses: one list of fields draws them and changes them.
// A field is [path, kind, default]. Kinds: text, number, bytes, duration, bool, a list of choices.
// default is the value that the broker uses if the field is missing; a name of the text table in
// braces describes one that depends on the broker.
import {call, get, may, onRevision, path} from './api.js';
import {button, bytes, cap, checkbox, dialog, field, h, notice} from './base.js';
import {badge, command, facts, filters, region, table} from './page.js';
import {t} from './text.js';

export const topicFields = [
  ['type', ['NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'PRIORITY', 'LITE'], 'NORMAL'],
  ['queues', 'number', 8],
  ['max_backlog.messages', 'number', '{limit of broker}'],
  ['max_backlog.bytes', 'bytes', '{limit of broker}'],
  ['max_backlog.age', 'duration', '{limit of broker}'],
  ['max_rate.messages_per_second', 'number', '{none}'],
  ['max_rate.bytes_per_second', 'bytes', '{none}'],
  ['max_rate.burst', 'number', '{one second}'],
  ['retention.time', 'duration', '{retention default}'],
  ['retention.bytes', 'bytes', '{none}'],
  ['retention.consumed', 'bool', false],
  ['duplicate_window', 'duration', '2m0s'],
  ['lite.expiry', 'duration', '72h0m0s'],
  ['lite.max_topics', 'number', 20000],
  ['transaction.timeout', 'duration', '{of broker}'],
  ['transaction.check_interval', 'duration', '{of broker}'],
  ['transaction.check_max', 'number', '{of broker}'],
];

export const groupFields = [
  ['fifo', 'bool', false],
  ['max_attempts', 'number', 17],
  ['retry', 'text', '10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h'],
  ['fifo_retry_interval', 'duration', '3s'],
  ['on_exhausted', ['dead-letter', 'block', 'park'], 'dead-letter'],
  ['start', ['earliest', 'latest'], 'earliest'],
  ['max_backlog.messages', 'number', '{none}'],
  ['max_backlog.bytes', 'bytes', '{none}'],
  ['max_backlog.age', 'duration', '{none}'],
  ['negative_ack.delay', 'duration', '1m0s'],
  ['negative_ack.max_redeliveries', 'number', '{none}'],
  ['lite.topic', 'text', '{none}'],
  ['lite.max_topics', 'number', 2000],
  ['lite.exclusive', 'bool', false],
  ['retry_topic.enabled', 'bool', false],
  ['retry_topic.naming', ['2.9.2', '2.7.2', '2.6.1'], '2.9.2'],
  ['retry_topic.topic', 'text', '{by naming}'],
  ['retry_topic.dead_letter_topic', 'text', '{by naming}'],
  ['retry_topic.max_retries', 'number', 16],
  ['retry_topic.levels', 'text', '1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h'],
  ['retry_topic.subscription_type', ['shared', 'key_shared', 'exclusive', 'failover'], 'shared'],
];

export const addressFields = [
  ['redelivery-delay', 'number', 0],
  ['redelivery-delay-multiplier', 'number', 1],
  ['redelivery-collision-avoidance-factor', 'number', 0],
  ['max-redelivery-delay', 'number', '{ten delays}'],
  ['max-delivery-attempts', 'number', 10],
  ['dead-letter-address', 'text', '{removed}'],
  ['auto-create-dead-letter-resources', 'bool', false],
  ['dead-letter-queue-prefix', 'text', 'DLQ.'],
  ['dead-letter-queue-suffix', 'text', '{none}'],
  ['persist-delivery-count-before-delivery', 'bool', false],
  ['auto-delete-queues', 'bool', true],
  ['expiry-delay', 'number', 0],
  ['expiry-address', 'text', '{removed}'],
];

const code = (text) => h('code', null, text);

const read = (o, path) => path.split('.').reduce((x, k) => x?.[k], o);

function write(o, path, value) {
  const keys = path.split('.');
  const last = keys.pop();
  for (const k of keys) o = (o[k] ||= {});
  o[last] = value;
}

const described = (d) => String(d).replace(/^\{(.*)\}$/, (_, key) => t(key));
const text = (value, kind) => (kind === 'bytes' && typeof value === 'number' ? `${value} (${bytes(value)})`
  : typeof value === 'object' ? JSON.stringify(value) : String(value));

// show lists the settings; those with their default are grey.
export const show = (fields, o) => facts(fields.map(([path, kind, fallback]) => {
  const value = read(o, path);
  const grey = value === undefined || String(value) === String(fallback);
  const parts = path.split(/(?<=[._])/).map((part) => [part, h('wbr')]);
  return [h('code', null, parts), value === undefined ? described(fallback) : text(value, kind), grey];
}));

function parse(kind, value) {
  if (kind === 'bool') return value;
  if (value === '') return undefined;
  if (Array.isArray(kind) && kind.includes('true')) return value === 'true';
  if ((kind === 'number' || kind === 'bytes') && Number.isFinite(Number(value))) return Number(value);
  return value; // the broker explains the fault of another text
}

// inputs are the fields of a form with the values of o.
export const inputs = (fields, o) => h('div', {class: 'grid'}, fields.map(([path, kind, fallback]) => {
  const value = read(o, path);
  if (kind === 'bool') return checkbox(code(path), path, value ?? fallback);
  if (Array.isArray(kind)) return field(code(path), {name: path, value: String(value ?? fallback)},
    kind.map((v) => [v, v]));
  return field(code(path), {name: path, value: value === undefined ? '' : String(value),
    placeholder: described(fallback), autocomplete: 'off'});
}));

// patch are the differences between the settings o and the values of a form; null means the default.
export function patch(fields, o, form) {
  const out = {};
  for (const [path, kind, fallback] of fields) {
    const old = read(o, path);
    const value = parse(kind, form[path]);
    const before = old ?? (kind === 'bool' || Array.isArray(kind) ? fallback : undefined);
    if (value === undefined ? old !== undefined : String(value) !== String(before)) write(out, path,
      value === undefined ? null : value);
  }
  return out;
}

// merged are the settings of o with the changes of a form, without those that have their default.
export function merged(fields, o, form) {
  const out = {};
  const changes = patch(fields, o, form);
  for (const [path] of fields) {
    const change = read(changes, path);
    const value = change === undefined ? read(o, path) : change;
    if (value !== undefined && value !== null) write(out, path, value);
  }
  return out;
}

// change asks for settings and writes them, unless another client has changed them since they were
// read. A PATCH has the differences, a PUT all settings. The result is false after a cancellation.
export async function change({title, hint, fields, at, state, method = 'PUT'}) {
  const done = await dialog({
    title, confirm: t('change'), cancel: t('cancel'), body: [h('p', null, hint), inputs(fields, state)],
    run: async (form) => {
      const body = method === 'PATCH' ? patch(fields, state, form) : merged(fields, state, form);
      await onRevision(method, at, state, body);
      return true;
    },
  });
  if (done) notice(t('changed'));
  return !!done;
}

// put creates a subject, and changes none that exists.
export async function put(at, name, body) {
  try {
    await get(at);
  } catch (err) {
    if (err.status === 404 || err.status === 400) return call('PUT', at,
      {body}); // 400: the name is one that RocketMQ forbids
    throw err;
  }
  throw new Error(t('exists', name));
}

// The page of the address settings: the patterns by precedence, and a tester of names.

export function address(page) {
  const {topic = ''} = page.query;
  const admin = may.server('admin');
  page.head({title: cap(t('address settings')), sub: t('address sub'),
    same: topic ? command(['address', 'test', topic]) : command(['address', 'list']),
    actions: admin && button(t('add pattern'), 'add-address', '', () => add(page))});
  page.body.append(filters(page, field(t('test name'),
    {name: 'topic', value: topic, placeholder: 'orders.eu', autocomplete: 'off'})));
  const test = region(page);
  const list = region(page);
  return page.watch((signal) => Promise.all([get('address-settings', {}, signal),
    topic && get(path`topics/${topic}/address-settings`, {}, signal)]), ([all, tested]) => {
    test(tested && [h('h2', null, t('settings of name', topic)), tested.matches.length
      ? table({rows: addressFields, empty: '', columns: [
        {label: t('setting'), cell: ([name]) => h('code', null, name)},
        {label: t('value'),
          cell: ([name, , fallback]) => (tested[name] === undefined
          ? h('span', {class: 'hint'}, String(fallback).replace(/^\{(.*)\}$/, (_, k) => t(k))) : String(tested[name]))},
        {label: t('pattern'), cell: ([name]) => origin(name, tested, all.address_settings)},
      ]}) : h('p', {class: 'empty'}, t('no pattern matches', topic))]);
    list(h('h2', null, t('patterns by precedence')),
      table({rows: all.address_settings, empty: t('no patterns'), columns: [
      {label: t('pattern'), wide: true, cell: (a) => h('code', null, a.match)},
      {label: t('settings'), wide: true,
        cell: (a) => Object.entries(a).filter(([k]) => k !== 'match').map(([k, v]) => [badge(`${k} = ${v}`), ' '])},
      admin && {label: '', cell: (a) => h('span', {class: 'tools'},
        button(t('change'), 'change-address', a.match, async () => {
        const at = path`address-settings/${a.match}`;
        if (await change({title: t('change pattern', a.match), hint: t('address change hint'), fields: inherited, at,
          state: await get(at)})) page.reload();
      }, 'quiet'), button(t('delete'), 'delete-address', a.match, () => remove(a.match, page), 'quiet danger'))},
    ]}));
  });
}

// inherited are the fields where a missing value comes from the next pattern, also of yes and no.
const inherited = addressFields.map(([name, kind]) => [name, kind === 'bool' ? ['', 'true', 'false'] : kind,
  kind === 'bool' ? '' : '{inherited}']);

// origin is the pattern that sets a field: the first one that matches and has it.
function origin(name, tested, all) {
  const from = tested[name] === undefined ? undefined
    : tested.matches.find((m) => all.find((a) => a.match === m)?.[name] !== undefined);
  return from ? h('code', null, from) : h('span', {class: 'hint'}, t('default'));
}

async function add(page) {
  const done = await dialog({
    title: t('add pattern'), confirm: t('create'), cancel: t('cancel'),
    body: [h('p', null, t('address change hint')), field(t('pattern'),
      {name: 'match', required: true, placeholder: 'orders.#', hint: t('pattern hint'), autocomplete: 'off'}),
      inputs(inherited, {})],
    run: async (form) => {
      await call('PUT', path`address-settings/${form.match}`, {body: merged(inherited, {}, form)});
      return true;
    },
  });
  if (done) { notice(t('changed')); page.reload(); }
}

async function remove(match, page) {
  const done = await dialog({
    title: t('delete pattern', match), danger: true, confirm: t('delete'), cancel: t('cancel'),
      body: h('p', null, t('delete pattern hint')),
    run: async () => { await call('DELETE', path`address-settings/${match}`); return true; },
  });
  if (done) { notice(t('deleted', match)); page.reload(); }
}
