// The retry schedule: the time of each attempt, and the faults of the settings.
import {cap, draw, duration, field, h, parse, values} from './base.js';
import {command, link, table} from './page.js';
import {shape} from './parts.js';
import {t} from './text.js';

// steps reads a schedule such as "10s 30s 1m" in milliseconds; null if a word is no duration.
export function steps(text) {
  const all = text.trim().split(/\s+/).filter(Boolean).map(parse);
  return all.some((ms) => ms === undefined || ms < 0) ? null : all;
}

// attempts lists each attempt with the wait before it and its time after the first. The last
// interval repeats; the list ends after most attempts or 100. Each attempt takes work ms.
export function attempts(waits, most, work = 0) {
  const list = [{number: 1, wait: 0, at: 0}];
  while (list.length < Math.min(most < 0 ? 100 : most, 100)) {
    const last = list.at(-1);
    const wait = waits.length ? waits[Math.min(last.number, waits.length) - 1] : 0;
    list.push({number: last.number + 1, wait, at: last.at + work + wait});
  }
  return list;
}

// findings are the faults of a schedule that settings alone do not show.
export function findings(list, most, retention, lease, work) {
  const late = retention > 0 && list.find((a) => a.at > retention);
  return [
    late && t('retry after retention', late.number, duration(late.at), duration(retention)),
    lease > 0 && work > lease && t('work longer than lease', duration(work), duration(lease)),
    most < 0 && t('never ends'),
    most === 1 && t('no retries'),
    most > 1 && list.at(-1).at < 60000 && t('short schedule', duration(list.at(-1).at)),
  ].filter(Boolean);
}

// picture is the schedule as a table whose bars are the time since the first attempt, on a
// logarithmic scale. then is the action after the last attempt: a value of on_exhausted.
export function picture(list, most, then = 'dead-letter') {
  const scale = (ms) => Math.log10(1 + ms / 100);
  const full = scale(list.at(-1).at) || 1;
  const end = most < 0 ? t('goes on') : t('then ' + then, duration(list.at(-1).at));
  return [table({rows: list, empty: '', columns: [
    {label: t('attempt'), num: true, cell: (a) => String(a.number)},
    {label: t('wait before'), num: true, cell: (a) => (a.number === 1 ? '' : duration(a.wait))},
    {label: t('after first'), num: true, cell: (a) => duration(a.at)},
    {label: t('time, logarithmic'), cell: (a) => shape([[scale(a.at) / full, 'retry']])},
  ]}), h('p', {class: 'hint'}, end)];
}

// The page of help: the calculator of retry schedules, words and keys.

const ladder = '10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h';

export function help(page) {
  const {retry = ladder, attempts: most = '17', work = '0s', lease = '30s', retention = '72h'} = page.query;
  page.head({title: cap(t('help')), same: command(['help'])});
  const out = h('div');
  const form = h('form', {class: 'filters', submit: (event) => { event.preventDefault(); page.go(values(form)); },
    input: () => calculate()},
    field(t('retry schedule'), {name: 'retry', value: retry}),
    field(`${t('max attempts')} (${t('minus one')})`, {name: 'attempts', value: most, inputmode: 'numeric'}),
    field(t('time of handler'), {name: 'work', value: work}), field(t('lease'), {name: 'lease', value: lease}),
    field(t('retention'), {name: 'retention', value: retention}), h('button', {class: 'quiet'}, t('keep in address')));
  function calculate() {
    const v = values(form);
    const waits = steps(v.retry);
    const n = Number(v.attempts);
    const times = ['work', 'lease', 'retention'].map((k) => parse(v[k]));
    if (!waits || !Number.isInteger(n) || n === 0 || n < -1 || times.includes(undefined)) {
      draw(out, h('p', {class: 'fault', role: 'alert'}, t('bad schedule')));
      return;
    }
    const list = attempts(waits, n, times[0]);
    draw(out, findings(list, n, times[2], times[1], times[0]).map((f) => h('p', {class: 'state warn'}, f)),
      picture(list, n));
  }
  calculate();
  page.body.append(h('section', null, h('h2', null, t('calculator')), h('p', {class: 'hint'}, t('calculator hint')),
    form, out),
    h('section', null, h('h2', null, t('states of a message')), h('dl', {class: 'words'},
      ['ready', 'inflight', 'waiting_retry', 'parked', 'dead_letter',
        'done'].map((s) => [h('dt', null, t('state ' + s)), h('dd', null, t('meaning ' + s))]))),
    h('section', null, h('h2', null, t('questions')), h('ul', null,
      [['why not consumed', link('trace')], ['what fails', link('dead-letters')],
        ['why rejected', link('limits')]].map(([key, to]) => h('li', null, h('a', {href: to}, t(key)))))));
  page.ready();
}
