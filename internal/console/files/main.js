// The shell: session, navigation, badges, and the choice of the page.
import {leave, may, Problem, request, start, transient, who} from './api.js';
import {attach, button, detach, dismiss, draw, field, h, notice, store, update, values} from './base.js';
import {backoff, here, link, live, openPage} from './page.js';
import {lang, languages, preferred, speak, t} from './text.js';

// Pages by the first word of the address: the function of their module that shows them alone, with a
// name, and with more names. A module is loaded with its first page. A page without a label is not in
// the navigation.
const wide = () => may.server('observe');
const pages = {
  overview: {label: 'overview', from: () => import('./overview.js'), list: 'overview', need: wide},
  topics: {label: 'topics', from: () => import('./topics.js'), list: 'topics', one: 'topic'},
  groups: {label: 'groups', from: () => import('./groups.js'), list: 'groups', one: 'group', part: 'progress'},
  'dead-letters': {label: 'dead letters', from: () => import('./letters.js'), list: 'deadLetters', one: 'letters',
    part: 'letter'},
  parked: {label: 'parked', from: () => import('./parked.js'), list: 'allParked', one: 'parked'},
  messages: {label: 'messages', from: () => import('./messages.js'), list: 'messages', part: 'message'},
  trace: {label: 'trace', from: () => import('./messages.js'), list: 'trace'},
  limits: {label: 'limits', from: () => import('./overview.js'), list: 'limits', need: wide},
  clients: {label: 'clients', from: () => import('./clients.js'), list: 'clients', need: () => may.some('observe')},
  address: {label: 'addresses', from: () => import('./settings.js'), list: 'address', need: wide},
  audit: {label: 'audit', from: () => import('./overview.js'), list: 'audit', need: () => may.server('admin')},
  help: {label: 'help', from: () => import('./schedule.js'), list: 'help'},
};
const home = () => (wide() ? 'overview' : 'topics');

const main = document.getElementById('main');
const bar = document.getElementById('bar');
let end = () => {};
let known = false; // whether the session is known

document.getElementById('skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });

function show() {
  end();
  dismiss();
  if (!known) return;
  const {names} = here();
  const name = pages[names[0]] ? names[0] : home();
  const entry = pages[name];
  const [run, suffix] = names.length > 2 && entry.part ? [entry.part, '-part'] : names.length > 1 && entry.one
    ? [entry.one, '-one'] : [entry.list, ''];
  if (!run) { location.hash = link(home()); return; }
  drawBar(name);
  end = openPage(main, name + suffix, async (page) => {
    const module = await entry.from().then(loaded, missing);
    if (!page.signal.aborted) await module[run](page);
  });
  scrollTo(0, 0);
}

// A browser can remember that a module could not be loaded, and an upgrade gives the modules other
// addresses. So the page is loaded again when the broker responds, but once only: the history keeps
// that it was.
const loaded = (module) => {
  if (history.state?.again) history.replaceState(null, '');
  return module;
};

function reload() {
  if (history.state?.again) throw new Error(t('not loaded'));
  history.replaceState({again: true}, '');
  location.reload();
  return new Promise(() => {}); // until the page has gone
}

// missing handles a module that could not be loaded. It throws while the broker does not respond.
async function missing() {
  try { await request('GET', 'session'); } catch (err) { if (transient(err)) throw err; }
  return reload();
}

async function choose(code) {
  store.set('language', code);
  for (let failures = 0; ; failures++) {
    try {
      await speak(code).then(loaded, missing);
      return show();
    } catch (err) {
      notice(err.message, 'error');
      if (!transient(err)) return;
    }
    await new Promise((resolve) => { setTimeout(resolve, backoff(failures)); });
  }
}

function drawBar(current) {
  const links = Object.entries(pages).filter(([, p]) => p.label && (!p.need || p.need()));
  draw(bar,
    h('a', {class: 'brand', href: link(home())}, 'tidegate'),
    h('nav', {'aria-label': t('main navigation')}, links.map(([name, p]) =>
      h('a', {href: link(name), 'aria-current': name === current && 'page'}, t(p.label)))),
    h('div', {class: 'status'}, badgeLive, sessionBadge(),
      h('select', {'aria-label': t('language'), change: (event) => choose(event.target.value)},
        languages.map(([code, name]) => h('option', {value: code, selected: code === lang}, name)))));
  drawLive();
}

const badgeLive = h('span', {class: 'live'});
const asOf = h('span', {class: 'asof'});
let controls = ''; // the state that the controls beside it show

// drawLive shows the age of the data. It keeps the controls, because a new element closes an open list.
function drawLive() {
  if (document.hidden) return;
  const state = live.state();
  badgeLive.dataset.live = state;
  asOf.title = t('broker time');
  update(asOf, live.text(), state === 'late' && ' · ' + t('late'), state === 'paused' && ' · ' + t('paused'));
  const wanted = [lang, live.paused(), live.interval()].join();
  if (wanted === controls) return;
  controls = wanted;
  draw(badgeLive, asOf,
    h('button', {type: 'button', class: 'quiet', 'data-action': 'pause', 'aria-pressed': String(live.paused()),
      click: () => live.pause(!live.paused())},
      live.paused() ? t('resume') : t('pause')),
    h('select', {'aria-label': t('interval'), name: 'interval',
      change: (event) => live.every(Number(event.target.value))},
      [1, 2, 5, 15, 60].map((s) => h('option', {value: String(s * 1000), selected: live.interval() === s * 1000},
        `${s}\u202f${t('s')}`))));
}
addEventListener('fresh', drawLive);
addEventListener('live', drawLive);
document.addEventListener('visibilitychange', drawLive);
setInterval(drawLive, 1000);

function sessionBadge() {
  const s = who();
  if (!s.restricted && !s.key) return h('span', {class: 'badge warn', 'data-session': 'open', title: t('open hint')},
    t('open'));
  return h('span', {class: 'session', 'data-session': s.key || 'anonymous'}, h('b', null, s.key || t('anonymous')),
    s.read_only && h('span', {class: 'badge'}, t('read only')),
    s.key && button(t('sign out'), 'sign-out', s.key, async () => { try { await leave(); } finally { signIn(); } },
      'quiet'));
}

let held = {}; // whose dialogs wait for the next session, and on which page

// signIn asks for an access key. The secret goes to the broker once and is kept nowhere. With keep,
// the dialogs of the page return if the same key signs in.
function signIn(fault, keep) {
  end();
  held = {key: keep && who().key, at: location.hash};
  if (keep) detach();
  dismiss();
  end = () => {};
  known = false;
  document.title = `${t('sign in')} · tidegate`;
  draw(bar, h('span', {class: 'brand'}, 'tidegate'));
  main.dataset.page = 'sign-in';
  const message = h('p', {class: 'fault', role: 'alert', hidden: !fault}, fault || '');
  const submit = h('button', {class: 'main', 'data-action': 'sign-in'}, t('sign in'));
  const form = h('form', {class: 'sign-in', submit: async (event) => {
    event.preventDefault();
    const {key, secret} = values(form);
    submit.disabled = true;
    try {
      await begin('Basic ' + btoa(String.fromCharCode(...new TextEncoder().encode(`${key}:${form.elements.secret.value || secret}`))));
    } catch (err) {
      message.textContent = err.message;
      message.hidden = false;
      submit.disabled = false;
    }
  }}, h('h1', null, t('sign in')), h('p', null, t('sign in hint')),
  field(t('access key'), {name: 'key', autocomplete: 'username', required: true}),
  field(t('secret'), {name: 'secret', type: 'password', autocomplete: 'current-password', required: true}),
  message, submit);
  draw(main, form);
  main.dataset.ready = 'true';
  form.elements.key.focus();
}

async function begin(authorization) {
  await start(authorization);
  known = true;
  show();
  attach(held.key !== undefined && held.key === who().key && held.at === location.hash);
}

// open requests the session. A link of the command "tidegate console" has a token, which is
// exchanged once. If the broker does not respond, open repeats the request.
async function open(wait = 1000, token = /^#token=(.+)$/.exec(location.hash)?.[1]) {
  try {
    if (!lang) await missing(); // without its texts the console is of no use
    if (location.hash.startsWith('#token=')) history.replaceState(null, '', location.pathname);
    await begin(token && 'Bearer ' + token);
  } catch (err) {
    if (err.status === 401 || err.status === 403) return signIn((token || err.status === 403) && err.message);
    if (!(err instanceof Problem)) console.error(err);
    draw(main, h('p', {class: 'fault', role: 'alert'}, err.message));
    setTimeout(() => open(Math.min(30000, 2 * wait), token), wait);
  }
}

addEventListener('hashchange', show);
addEventListener('signedout', () => known && signIn(t('signed out'), true));
speak(preferred()).catch(() => speak('en')).catch(() => {}).then(() => open());
