// The language of the console. The texts of a language are a module, which is loaded when the language
// is chosen: en.js and zh.js.
import {store} from './base.js';

const load = {en: () => import('./en.js'), zh: () => import('./zh.js')};

export const languages = [['en', 'English'], ['zh', '中文']];
export let lang = '';
let table = {};

// speak chooses the language. Before the first call a text is its key.
export async function speak(code) {
  const name = load[code] ? code : 'en';
  table = (await load[name]()).table;
  lang = name;
  document.documentElement.lang = name === 'zh' ? 'zh-CN' : 'en';
}

// preferred is the language that was chosen, or that of the browser.
export const preferred = () => store.get('language') || (navigator.language.startsWith('zh') ? 'zh' : 'en');

// t is a text.
export const t = (key, ...args) => (table[key] ?? key).replace(/\{(\d)\}/g, (_, i) => args[i]);
