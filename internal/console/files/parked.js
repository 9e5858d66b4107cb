// The pages of parked message groups: which groups have some, and those of one group.
import {call, get, may, path} from './api.js';
import {button, cap, checkbox, dialog, duration, field, firstLine, h, notice, num, when} from './base.js';
import {badge, command, filters, link, pager, region, table, topicLink} from './page.js';
import {t} from './text.js';

export function allParked(page) {
  const {match = '', after = ''} = page.query;
  page.head({title: cap(t('parked groups')), sub: t('parked sub'), same: command(['group', 'list'], {match, state: 'parked'})});
  page.body.append(filters(page, field(t('group'), {name: 'match', type: 'search', value: match, placeholder: 'billing*'})));
  const draw = region(page);
  return page.watch((signal) => get('groups', {view: 'summary', state: 'parked', sort: '-parked', match, after, limit: 100},
    signal), (data) => {
    draw(table({rows: data.groups, empty: match || after ? t('no group matches', match) : t('nothing parked at all'), columns: [
      {label: t('group'), wide: true, cell: (row) => h('a', {href: link('parked', row.group, {topic: row.topic})}, row.group)},
      {label: t('topic'), cell: (row) => topicLink(row.topic)},
      {label: t('message groups'), num: true, cell: (row) => num(row.parked_groups)},
      {label: t('messages'), num: true, cell: (row) => num(row.parked)},
      {label: t('oldest'), num: true, cell: (row) => duration(row.oldest_ms)},
    ]}), pager(page, data.next, data.total > 0 && t('n of', num(data.groups.length), num(data.total))));
  });
}

export function parked(page) {
  const name = page.names[1];
  const {topic = '', after = ''} = page.query;
  const at = path`groups/${name}/parked`;
  const admin = may.group('admin', name);
  page.head({title: t('parked of', name), sub: t('parked sub'), same: command(['parked', 'list', name], {topic}),
    actions: [h('a', {class: 'button', href: link('groups', name)}, t('group')),
      admin && button(t('release all'), 'redrive-parked', name, () => release({topic}))]});
  page.body.append(filters(page, field(cap(t('topic')), {name: 'topic', type: 'search', value: topic})));
  const draw = region(page);

  async function release(selection) {
    const done = await dialog({
      title: selection.message_group ? t('release', selection.message_group) : t('release all'),
        confirm: t('release'), cancel: t('cancel'),
      body: [h('p', null, t('release hint')),
        h('p', null, h('b', null, selection.message_group ? t('release one', selection.message_group, selection.topic)
          : selection.topic ? t('release topic', name, selection.topic) : t('release every', name))),
        checkbox(t('first to dead letters'), 'dead', false, t('first hint'))],
      run: (form) => call('POST', at + '/redrive',
        {body: {topic: selection.topic || undefined, message_group: selection.message_group, dead_letter: form.dead}}),
    });
    if (done) { notice(t('released', num(done.message_groups), num(done.messages))); page.reload(); }
  }

  return page.watch((signal) => get(at, {topic, after, limit: 100}, signal), (data) => {
    draw(table({rows: data.groups, empty: t('nothing parked', name), columns: [
      {label: t('message group'), wide: true, cell: (p) => p.message_group},
      {label: t('topic'), cell: (p) => topicLink(p.topic)},
      {label: t('state'), cell: (p) => badge(t('state ' + p.state), p.state === 'parked' ? 'bad' : 'warn')},
      {label: t('since'), cell: (p) => (p.since ? when(p.since) : p.due ? [t('next attempt'), ' ', when(p.due)] : '')},
      {label: t('reason'), wide: true, cell: (p) => firstLine(p.reason) || h('small', null, t('no reason now'))},
      {label: t('failed message'), cell: (p) => h('a', {class: 'mono', href: link('trace', {id: p.message_id, topic: p.topic})},
        p.message_id)},
      {label: t('attempt'), num: true, cell: (p) => num(p.attempts)},
      {label: t('messages'), num: true, cell: (p) => num(p.messages)},
      admin && {label: '', cell: (p) => p.state === 'parked' && button(t('release'), 'redrive-parked', p.message_group,
        () => release(p), 'quiet')},
    ]}), pager(page, data.next));
  });
}
