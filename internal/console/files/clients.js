// The page of the connected clients.
import {get} from './api.js';
import {ago, cap, checkbox, field, h, num, when} from './base.js';
import {badge, command, filters, groupLink, pager, region, table, topicLink} from './page.js';
import {t} from './text.js';

const kinds = ['producer', 'push_consumer', 'simple_consumer', 'lite_push_consumer', 'http', 'consumer'];

export function clients(page) {
  const {match = '', kind = '', group = '', topic = '', language = '', outdated, after = ''} = page.query;
  const old = outdated === 'true' || undefined;
  const query = {match, kind, group, topic, language, outdated: old};
  page.head({title: cap(t('clients')), same: command(['clients', 'list'], query)});
  page.body.append(filters(page, field('ID', {name: 'match', type: 'search', value: match, placeholder: '*@host*'}),
    field(cap(t('type')), {name: 'kind', value: kind}, [['', t('any')], ...kinds.map((k) => [k, k])]),
    field(cap(t('group')), {name: 'group', type: 'search', value: group}),
    field(cap(t('topic')), {name: 'topic', type: 'search', value: topic}),
    field(cap(t('language')), {name: 'language', value: language, placeholder: 'GO'}),
    checkbox(cap(t('outdated')), 'outdated', old)));
  const draw = region(page);
  return page.watch((signal) => get('clients', {...query, after, limit: 100}, signal), (data) => draw(
    h('p', null, data.versions.slice(0, 12).map((v) => [
      badge(`${v.language} ${v.version} · ${num(v.clients)}`, v.outdated && 'warn'), ' '])),
    table({rows: data.clients, empty: t('none now'), columns: [
      {label: 'ID', wide: true, cell: (c) => h('span', {class: 'mono', title: c.host}, c.id)},
      {label: t('type'), cell: (c) => c.kind},
      {label: t('language'), cell: (c) => [c.language, ' ', c.version, ' ', c.outdated && badge(t('outdated'), 'warn')]},
      {label: t('group'), cell: (c) => c.group && groupLink(c.group)},
      {label: t('topics'), wide: true, cell: topics},
      {label: t('filter'), cell: filterOf},
      {label: t('receives waiting'), num: true, cell: (c) => num(c.waiting)},
      {label: t('state inflight'), num: true, cell: (c) => num(c.inflight)},
      {label: t('latest'), cell: (c) => ago(c.last_seen)},
      {label: t('since'), cell: (c) => when(c.since)},
      {label: t('address'), cell: (c) => c.address},
    ]}), pager(page, data.next, data.total > 0 && t('n of', num(data.clients.length), num(data.total)))));
}

// topics are the first topics of a client, and the number of the others.
function topics(c) {
  const all = c.topics || [];
  const more = Math.max(0, all.length - 3) + (c.hidden_topics || 0);
  return [all.slice(0, 3).map((name) => [topicLink(name), ' ']), more > 0 && t('and more', num(more))];
}

// filterOf has the filters of a client, a line for each topic.
export const filterOf = (c) => Object.entries(c.filters || {}).map(([topic, text]) => h('div', null, topic, ': ',
  h('code', null, text)));

// mixed returns a warning for each topic for which the clients of a group have different filters.
export function mixed(all) {
  const topics = [...new Set(all.flatMap((c) => Object.keys(c.filters || {})))].sort();
  return topics.map((topic) => {
    const users = all.filter((c) => c.topics?.includes(topic));
    const texts = [...new Set(users.map((c) => c.filters?.[topic] || '*'))];
    return texts.length > 1 && h('p', {class: 'state warn'}, t('filters differ', topic, texts.slice(0, 3).join(' / ')));
  });
}
