// The page of the limits: those that throttle sends first, then the nearest.
import {call, get, may} from './api.js';
import {button, cap, dialog, field, h, notice, when} from './base.js';
import {amount, badge, bar, command, facts, region, subject, table} from './page.js';
import {t} from './text.js';

export function limits(page) {
  let state;
  page.head({title: cap(t('limits')), sub: t('limits sub'), same: command(['limits', 'show']),
    actions: may.server('admin') && button(t('change'), 'set-limits', '', () => change(state, page))});
  const draw = region(page);
  const set = region(page);
  return page.watch((signal) => get('throttle', {}, signal), (data) => {
    state = data;
    const near = (l) => (l.mark ? l.value / l.mark : 0);
    const rows = [...data.throttles, ...data.not_reached.sort((a, b) => near(b) - near(a))];
    draw(table({caption: rows.length > 200 && t('first 200', rows.length), rows, empty: t('no limits'), columns: [
      {label: t('state'), cell: (l) => (l.on ? badge(t('throttles'), 'bad') : near(l) >= 0.8 ? badge(t('near'), 'warn') : badge(t('not reached')))},
      {label: t('limit'), cell: (l) => t('limit ' + l.limit)},
      {label: t('subject'), cell: (l) => [subject(l), l.topic && l.topic !== l.subject && [' → ', l.topic]], wide: true},
      {label: t('value'), num: true, cell: (l) => [amount(l.value, l.unit), ' ', bar(l.value, l.mark)]},
      {label: t('mark'), num: true, cell: (l) => amount(l.mark, l.unit)},
      {label: t('resumes at'), num: true, cell: (l) => amount(l.resume, l.unit)},
      {label: t('since'), cell: (l) => when(l.since)},
      {label: t('returns in'), num: true, cell: (l) => (l.on ? l.retry_after || t('unknown time') : '')},
    ]}));
    set(h('h2', null, t('limits of broker')), facts(flat(data.limits).map(([k, v]) => [h('code', null, k), String(v)])));
  });
}

const keys = ['max_backlog.messages', 'max_backlog.bytes', 'max_backlog.age', 'client_quota.messages_per_second', 'client_quota.burst',
  'pressure.min_free_disk_bytes', 'pressure.max_compaction_debt_bytes', 'pressure.max_write_stall',
  'pressure.max_cold_reads_bytes_per_second', 'pressure.cold_distance_bytes'];

// flat lists the fields of an object with their paths.
function flat(o, prefix = '') {
  return Object.entries(o || {}).flatMap(([k, v]) => (v && typeof v === 'object' ? flat(v, prefix + k + '.') : [[prefix + k, v]]));
}

async function change(state, page) {
  const now = Object.fromEntries(flat(state?.limits));
  const done = await dialog({
    title: t('change limits'), confirm: t('change'), cancel: t('cancel'),
    body: [h('p', null, t('change limits hint')), h('div', {class: 'grid'}, keys.map((k) => field(h('code', null, k), {name: k, value: String(now[k] ?? '')})))],
    run: (form) => {
      const patch = {};
      for (const k of keys) {
        if (form[k] === String(now[k] ?? '')) continue;
        const [part, name] = k.split('.');
        patch[part] ||= {};
        patch[part][name] = form[k] === '' ? null : /^-?\d+(\.\d+)?$/.test(form[k]) ? Number(form[k]) : form[k];
      }
      return call('PATCH', 'throttle', {body: patch});
    },
  });
  if (done) { notice(t('changed')); page.reload(); }
}
