// The dialog that edits a dead letter and sends it back.
import {call, get, path} from './api.js';
import {button, checkbox, dialog, field, h, hex, notice} from './base.js';
import {link} from './page.js';
import {t} from './text.js';

// sentAs is the ID of a letter that is sent back. A letter that was sent back before has such an ID. The
// hash replaces a long ID, as in the broker; only pages with TLS or from the same machine can compute it.
async function sentAs(l) {
  const suffix = `.redrive-${l.origin.redrives}`;
  let first = l.message_id.endsWith(suffix) ? l.message_id.slice(0, -suffix.length) : l.message_id;
  const id = new TextEncoder().encode(first);
  if (id.length > 236 && crypto.subtle) {
    first = hex(new Uint8Array(await crypto.subtle.digest('SHA-256', id)));
  }
  return `${first}.redrive-${l.origin.redrives + 1}`;
}

// notJSON returns the syntax error of a text as JSON, with its position, or an empty text.
const notJSON = (text) => { try { JSON.parse(text); return ''; } catch (err) { return err.message; } };

// lf is a text as a form returns it: a textarea has no carriage returns.
const lf = (text) => text.replace(/\r\n?/g, '\n');

// typed is a text of a form with the line ends of the text before: those are \r\n if all of them were.
const typed = (text, before) => (/\r\n/.test(before) && !/\r(?!\n)|(?:^|[^\r])\n/.test(before)
  ? text.replace(/\n/g, '\r\n') : text);

// lines are the texts of a textarea with one a line.
const lines = (text) => text.split('\n').map((one) => one.trim()).filter(Boolean);

// pairs are the rows of a form for properties: name and value. added makes an empty one.
function pairs(properties) {
  const rows = h('div', {class: 'pairs'});
  let n = 0;
  const row = (name = '', value = '') => rows.append(h('div', {class: 'grid'},
    field(t('property'), {name: `name ${n}`, value: name, spellcheck: 'false'}),
    field(t('value'), {name: `value ${n++}`, rows: 1, value, spellcheck: 'false'})));
  for (const [name, value] of Object.entries(properties)) row(name, value);
  return {rows, added: () => row()};
}

// changed are the properties of a form that differ from those before, null for a removed one.
function changedPairs(form, before) {
  const now = {};
  for (const [key, name] of Object.entries(form)) {
    if (!key.startsWith('name ')) continue;
    const value = form['value ' + key.slice(5)];
    if (!name && !value) continue;
    if (!name || !value) throw new Error(t('property incomplete', name || value));
    if (Object.hasOwn(now, name)) throw new Error(t('property twice', name));
    now[name] = value;
  }
  const out = {};
  for (const name of Object.keys(before)) if (!Object.hasOwn(now, name)) out[name] = null;
  for (const [name, value] of Object.entries(now)) {
    const had = Object.hasOwn(before, name) ? before[name] : '';
    if (!had || value !== lf(had)) out[name] = typed(value, had);
  }
  return out;
}

// changes is what a form changes in a letter, as the edit of the API has it.
function changes(form, l) {
  const out = {};
  if (form.body !== undefined && form.body !== lf(l.body_text)) out.body_text = typed(form.body, l.body_text);
  if (form.tag !== (l.tag || '')) out.tag = form.tag;
  if (String(lines(form.keys)) !== String(lines((l.keys || []).join('\n')))) out.keys = lines(form.keys);
  const properties = changedPairs(form, userProperties(l));
  if (Object.keys(properties).length) out.properties = properties;
  return out;
}

const redrives = 'DLQ_REDRIVES'; // the broker counts in this property
const userProperties = ({properties = {}}) => Object.fromEntries(Object.entries(properties)
  .filter(([name]) => name !== redrives));

// anew edits a letter on an older broker: it sends the changed message and then removes the letter. The ID
// depends only on the first ID and the number of the redrive: the topic drops a repeated send.
async function anew(group, l, inTopic, edit) {
  const as = await sentAs(l);
  const {properties, ...rest} = edit;
  const merged = {...l.properties, ...properties, [redrives]: String(l.origin.redrives + 1)};
  for (const name of Object.keys(merged)) if (merged[name] === null) delete merged[name];
  const content = l.body_text !== undefined ? {body_text: l.body_text} : {body: l.body};
  await call('POST', path`topics/${l.origin.topic}/messages`, {body: {id: as, ...content, tag: l.tag, keys: l.keys,
    ...rest, properties: merged, message_group: l.message_group, lite_topic: l.lite_topic,
    priority: l.priority, trace_context: l.trace_context}});
  const remove = (how) => call('DELETE', path`groups/${group}/dead-letters`, {query: {message_id: l.message_id,
    dead_letter_topic: inTopic, after: `${l.queue}-${l.offset}`, limit: 1, ...how}});
  // A still older broker rejects sent_as. The letter must not stay, because its message is sent.
  await remove({sent_as: as}).catch((err) => (err.status === 400 ? remove() : Promise.reject(err)));
  return as;
}

// edit sends a letter back with changes, to all groups of its topic or to its group alone.
export async function edit(group, l, inTopic) {
  const {topic} = l.origin;
  const known = (where) => get(where).catch(() => undefined); // a key need not have the right to look
  const [{groups} = {}, {fifo} = {}] = await Promise.all([known(path`topics/${topic}`), known(path`groups/${group}`)]);
  const others = !groups || groups.some((name) => name !== group);
  const text = l.body_text !== undefined;
  const {rows, added} = pairs(userProperties(l));
  let confirmed; // a form without changes, or with a text that is no JSON
  let lost = false; // an earlier request may have sent the letter
  const send = async (form, changed) => {
    const done = await call('POST', path`groups/${group}/dead-letters/redrive`,
      {body: {topic, message_ids: [l.message_id], dead_letter_topic: inTopic, to_group_only: form.only || undefined,
        edit: {queue: l.queue, offset: l.offset, ...changed}}})
      .catch((err) => {
        if (err.status === 0 || err.status >= 500) lost = true;
        if (err.status === 400 && !form.only) return anew(group, l, inTopic, changed).then((as) => ({sent_as: as}));
        throw err;
      });
    if (done.sent_as) return done.sent_as;
    if (done.no_target) throw new Error(t('kept no_target', 1));
    if (!lost) throw new Error(t('letter gone'));
    return sentAs(l);
  };
  return dialog({
    title: t('edit and redrive'), confirm: t('redrive'), cancel: t('cancel'),
    body: [h('p', null, t('edit hint', topic)),
      others && h('p', {class: 'state warn', 'data-receivers': ''},
        groups ? t('edit all', topic, groups.join(', ')) : t('edit all unknown', topic)),
      others && !fifo && checkbox(t('group only', group), 'only', false, t('group only hint')),
      text ? field(t('body'), {name: 'body', rows: 14, value: l.body_text, spellcheck: 'false'})
        : h('p', {class: 'hint'}, t('edit text only')),
      h('div', {class: 'grid'}, field(t('tag'), {name: 'tag', value: l.tag}),
        field(t('key'), {name: 'keys', rows: 2, value: (l.keys || []).join('\n'), spellcheck: 'false',
          hint: t('one a line')})),
      h('h3', null, t('properties')), rows, button(t('add property'), 'add-property', l.message_id, added, 'quiet')],
    run: async (form) => {
      if (text && !form.body) throw new Error(t('empty body'));
      const changed = changes(form, l);
      const state = JSON.stringify(form);
      const wrong = changed.body_text !== undefined && !notJSON(l.body_text) && notJSON(form.body);
      if (state !== confirmed && (wrong || !Object.keys(changed).length)) {
        confirmed = state;
        throw new Error(wrong ? t('not JSON', wrong) : t('nothing changed'));
      }
      const as = await send(form, changed);
      const at = {id: as, topic: form.only ? `%RETRY%${group}_${topic}` : topic};
      notice([t('sent back'), ' ', h('a', {href: link('trace', at)}, t('to redriven'))]);
      return true;
    },
  });
}
