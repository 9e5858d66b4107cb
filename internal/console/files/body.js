// The view of a body: text, JSON or bytes. It shows the first 64 KiB; copy and download have all.
import {button, bytes as size, draw, h, safe, save} from './base.js';
import {copy} from './page.js';
import {t} from './text.js';

const first = 65536;
const mostPretty = 1 << 24; // indented text; deep nesting makes it quadratic

// pretty indents JSON. It moves the tokens of the text and does not print parsed values, so that
// numbers keep all their digits. The result is null for other text, and for JSON whose indented text
// would be too long.
export function pretty(text) {
  try { JSON.parse(text); } catch { return null; }
  const line = (depth) => '\n' + '  '.repeat(depth);
  let out = '';
  let depth = 0;
  let last = '';
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g)) {
    const opened = last === '{' || last === '[';
    if (token === '}' || token === ']') out += (opened ? (depth--, '') : line(--depth)) + token;
    else if (token === ',') out += token;
    else if (token === ':') out += ': ';
    else out += (opened || last === ',' ? line(depth) : '') + token;
    if (token === '{' || token === '[') depth++;
    if (out.length + 2 * depth > mostPretty) return null;
    last = token;
  }
  return out;
}

// hex is a dump with offsets and the printable characters.
export function hex(data) {
  const lines = [];
  for (let i = 0; i < data.length; i += 16) {
    const row = [...data.subarray(i, i + 16)];
    const digits = row.map((b) => b.toString(16).padStart(2, '0')).join(' ').padEnd(48);
    lines.push(`${i.toString(16).padStart(6, '0')}  ${digits} ${row.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : '.')).join('')}`);
  }
  return lines.join('\n');
}

// bytesOf is the body of a message of the API.
export const bytesOf = (m) => (m.body_text !== undefined ? new TextEncoder().encode(m.body_text)
  : Uint8Array.from(atob(m.body || ''), (c) => c.charCodeAt(0)));

// body is the view of the body of a message; name is that of the download.
export function body(m, name) {
  const data = bytesOf(m);
  const text = m.body_text;
  const json = text !== undefined && text.length <= 1 << 20 ? pretty(text) : null;
  const forms = [json !== null && ['JSON', () => safe(json.slice(0, limit), true)],
    text !== undefined && [t('text'), () => safe(text.slice(0, limit), true)],
    [t('hex'), () => hex(data.subarray(0, Math.min(data.length,
      limit === Infinity ? data.length : limit / 4)))]].filter(Boolean);
  let limit = first;
  let chosen = forms[0];
  const pre = h('pre', {class: 'body', tabindex: 0});
  const tools = h('div', {class: 'tools'});
  const show = () => {
    pre.textContent = chosen[1]();
    draw(tools, h('span', {class: 'hint'}, size(data.length)),
      h('span', {class: 'tabs', role: 'group', 'aria-label': t('form')},
        forms.map((f) => h('button', {type: 'button', class: 'quiet', 'data-key': f[0],
        'aria-pressed': String(f === chosen), click: () => { chosen = f; show(); }}, f[0]))),
      button(t('copy'), 'copy-body', name, () => copy(text ?? hex(data), pre), 'quiet'),
      button(t('download'), 'download-body', name, () => save(name, [data]), 'quiet'),
      limit < Infinity && pre.textContent.length >= limit
        && button(t('show all'), 'show-all', name, () => { limit = Infinity; show(); }, 'quiet'));
  };
  show();
  return h('div', {class: 'payload'}, tools, pre);
}

// line is the first line of a body, for a table.
export function line(m) {
  if (m.body_text === undefined) return m.body ? t('not text') : '';
  const text = m.body_text.slice(0, 200).split('\n')[0];
  return text.length < m.body_text.length ? text + '…' : text;
}
