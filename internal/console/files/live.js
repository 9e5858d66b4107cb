// Samples of the broker's counters and gauges, for the charts.
import {clock} from './base.js';

const most = 450; // samples of a chart: 15 minutes of 2 s
const rings = new Map();

// ring are the samples of a subject, the oldest first: "" is the whole broker.
export const ring = (subject) => rings.get(subject) || [];

// keep adds a sample. The rings of the subjects that were shown first are dropped.
export function keep(subject, sample) {
  const samples = rings.get(subject) || [];
  samples.push(sample);
  if (samples.length > most) samples.shift();
  rings.delete(subject);
  rings.set(subject, samples);
  if (rings.size > 20) rings.delete(rings.keys().next().value);
}

// take keeps a moment of the broker.
export function take(data) {
  clock(data.now, true);
  const at = Date.parse(data.now);
  if (ring('').at(-1)?.at !== at) keep('', {at, ...data.totals, ...data.counters, accepted: data.counters.accepted?.messages});
}

// span is the time that samples cover, in milliseconds.
export const span = (samples) => (samples.length > 1 ? samples.at(-1).at - samples[0].at : 0);

// rates are the changes of a counter per second between samples; a restart of the broker leaves a gap.
export const rates = (samples, key) => samples.map((s, i) => {
  const before = samples[i - 1];
  const d = before && s[key] - before[key];
  return d >= 0 && s.at > before.at ? d / ((s.at - before.at) / 1000) : undefined;
});
