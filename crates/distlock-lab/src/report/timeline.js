'use strict';
// One run's picture: a pure function from its data, a width and a stretch of time to an SVG.

const SVG = 'http://www.w3.org/2000/svg';
// Viridis without its darkest end: lightness alone tells the order, so every eye can read it.
const RAMP = ['#414487', '#35608d', '#277f8e', '#1fa187', '#4ac16d', '#a0da39', '#fde725'];
const ENDS = {
  released: 'released', lost: 'lost, and the client was told', killed: 'the client was killed',
  expired: 'ran out', open: 'still held when the run ended',
};

function svg(tag, attributes, tip) {
  const node = document.createElementNS(SVG, tag);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (tip) node.appendChild(document.createElementNS(SVG, 'title')).textContent = tip;
  return node;
}

function label(x, y, text, cls, anchor) {
  const node = svg('text', { x, y, class: cls || '', 'text-anchor': anchor || 'start' });
  node.textContent = text;
  return node;
}

/** The colour of the token at `place` of `count`, and the colour of text on it. */
function colour(place, count) {
  const at = (count < 2 ? 0.4 : place / (count - 1)) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map(i => Math.round(
    channel(RAMP[low], i) * (1 - at + low) + channel(RAMP[low + 1], i) * (at - low)));
  const light = mixed[0] * 0.299 + mixed[1] * 0.587 + mixed[2] * 0.114;
  return { fill: `rgb(${mixed})`, text: light > 125 ? '#10151b' : '#ffffff' };
}

/** Microseconds as people read them. */
function span(micros) {
  const ms = micros / 1000;
  if (micros === 0) return '0';
  if (ms >= 100) return `${+(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s`;
  return ms >= 1 ? `${+ms.toFixed(1)} ms` : `${Math.round(micros)} µs`;
}

/** When a fault was over, if it lasted. */
const heals = (at, until) => until === null || until - at < 1000 ? '' : `, until ${span(until)}`;

/** About `wanted` round moments between two. */
function ticks(from, until, wanted) {
  const rough = (until - from) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map(n => n * power).find(s => s >= rough));
  const all = [];
  for (let t = Math.ceil(from / step) * step; t <= until; t += step) all.push(t);
  return all;
}

/** A group of lanes for each lock that was used; holds that overlap in one lane (re-entry) are stacked. */
function groups(run) {
  const lane = (client, lock) => {
    const holds = run.holds.filter(h => h[0] === client && h[1] === lock).sort((a, b) => a[3] - b[3]);
    const ends = [];
    for (const hold of holds) {
      let row = ends.findIndex(end => end <= hold[3]);
      if (row < 0) row = ends.length < 3 ? ends.length : 0;
      ends[row] = hold[4];
      hold.row = row;
    }
    const waits = run.waits.filter(w => w[0] === client && w[1] === lock);
    return { client, holds, waits, rows: Math.max(1, ends.length), used: holds.length + waits.length > 0 };
  };
  return run.locks.map((name, lock) => ({
    name, lock,
    lanes: run.clients.map((_, client) => lane(client, lock)).filter(l => l.used || run.locks.length === 1),
    writes: run.writes.filter(w => w[1] === lock).sort((a, b) => a[3] - b[3]),
    overlaps: run.overlaps.filter(o => o[0] === lock),
  })).filter(g => g.lanes.length + g.writes.length > 0);
}

/** How tall things are: many lanes get thin ones. */
function sizes(lanes, narrow) {
  if (lanes <= 14) return { bar: 16, gap: 8, name: true };
  if (lanes <= 40) return { bar: narrow ? 8 : 11, gap: 4, name: true };
  return lanes <= 100 ? { bar: 5, gap: 1, name: false } : { bar: 2.5, gap: 0.5, name: false };
}

/** The picture of a run between two moments. */
function timeline(run, width, view) {
  const narrow = width < 620, all = groups(run);
  const lanes = all.reduce((n, g) => n + g.lanes.length, 0), size = sizes(lanes, narrow);
  const longest = Math.max(7, ...run.clients.map(c => c.length));
  const left = narrow || !size.name ? 8 : Math.min(170, 18 + longest * 7), right = width - 10;
  const inner = right - left, scale = inner / Math.max(1, view[1] - view[0]);
  const x = t => left + (Math.min(Math.max(t, view[0]), view[1]) - view[0]) * scale;
  const seen = (from, until) => until >= view[0] && from <= view[1];
  const back = svg('g', {}), front = svg('g', {}), top = svg('g', {}), words = svg('g', {});
  const who = client => run.clients[client] ?? `client ${client}`;
  const token = place => place === null ? 'without a token' : `token ${run.tokens[place]}`;
  const lockOf = lock => run.locks.length > 1 ? ` of ${run.locks[lock]}` : '';

  // Faults: words on as few lines as they fit on, each above its moment.
  const faults = run.faults.map((f, i) => ({ at: f[0], until: f[1], what: f[2], whom: f[3], n: i + 1 }))
    .filter(f => seen(f.at, f.until ?? f.at)).sort((a, b) => a.at - b.at);
  const taken = [[], [], [], []];
  for (const fault of faults) {
    const at = x(fault.at);
    for (const text of [`${fault.n} ${fault.what}: ${fault.whom}`, `${fault.n} ${fault.what}`, `${fault.n}`]) {
      const wide = text.length * 6.4 + 10, start = at + wide > right ? at - wide : at;
      fault.row = start < 0 ? -1 : taken.findIndex(row => row.every(([a, b]) => start >= b || start + wide <= a));
      if (fault.row < 0) continue;
      taken[fault.row].push([start, start + wide]);
      Object.assign(fault, { text, end: start < at });
      break;
    }
  }
  const rows = taken.filter(row => row.length).length;
  let y = faults.length ? rows * 14 + 12 : 4;
  const strip = y - 9;

  // The lanes, lock by lock.
  const laneOf = new Map();
  for (const group of all) {
    if (run.locks.length > 1 || group.overlaps.length) {
      y += 16;
      if (run.locks.length > 1) top.append(label(4, y - 4, `lock ${group.name}`, 'lock'));
    }
    if (!size.name) top.append(label(left, y += 12, `${group.lanes.length} clients, a lane each`, 'dim')), y += 6;
    const begin = y;
    for (const lane of group.lanes) {
      if (narrow && size.name) y += 13;
      const height = lane.rows * (size.bar + 2) - 2, middle = y + height / 2;
      if (size.name) {
        const most = narrow ? 60 : Math.floor((left - 14) / 6.6), name = who(lane.client);
        const text = name.length > most ? name.slice(0, most - 1) + '…' : name;
        top.append(narrow ? label(left, y - 3, text, 'dim') : label(left - 10, middle + 4, text, 'who', 'end'));
      }
      if (size.name) back.append(svg('path', { d: `M${left} ${middle}H${right}`, class: 'lane' }));
      const spot = { y: y - 2, height: height + 4 };
      laneOf.set(lane.client, [...laneOf.get(lane.client) ?? [], spot]);
      for (const [, lock, from, until] of lane.waits) {
        if (!seen(from, until)) continue;
        const tip = `${who(lane.client)} waits for the lock${lockOf(lock)}: ${span(from)} to ${span(until)} (${span(until - from)})`;
        const a = x(from), b = Math.max(x(until), a + 1);
        front.append(svg('path', { d: `M${a} ${middle}H${b}`, class: size.name ? 'wait' : 'wait thin' }));
        front.append(svg('rect', { x: a, y: middle - size.bar / 2, width: b - a, height: size.bar, class: 'hit' }, tip));
      }
      for (const hold of lane.holds) drawHold(hold, y + hold.row * (size.bar + 2));
      y += height + size.gap;
    }
    const end = y - size.gap + 3;
    for (const [, from, until] of group.overlaps) {
      if (!seen(from, until)) continue;
      const a = x(from), wide = Math.max(3, x(until) - a);
      const tip = `two holders at once${lockOf(group.lock)}: ${span(from)} to ${span(until)} (${span(until - from)})`;
      top.append(svg('rect', { x: a, y: begin - 3, width: wide, height: end - begin + 3, class: 'overlap' }, tip));
    }
    nameOverlaps(group, begin);
    if (group.writes.length) y = drawWrites(group, y);
    y += 4;
  }
  const bottom = y;

  for (const fault of faults) drawFault(fault);
  for (const moment of run.moments) {
    if (!seen(moment, moment)) continue;
    const at = x(moment), tip = `a checker found something at ${span(moment)}`;
    top.append(svg('path', { d: `M${at - 5} ${bottom + 2}H${at + 5}L${at} ${bottom - 7}Z`, class: 'moment' }, tip));
  }
  for (const t of ticks(view[0], view[1], Math.max(4, inner / 110))) {
    back.prepend(svg('path', { d: `M${x(t)} ${strip + 9}V${bottom + 3}`, class: 'grid' }));
    top.append(label(x(t), bottom + 16, span(t), 'tick', x(t) > right - 18 ? 'end' : x(t) < left + 14 ? 'start' : 'middle'));
  }
  const height = bottom + 22;
  const said = `${run.clients.length} clients, ${run.holds.length} holds, ${run.faults.length} faults, `
    + `${run.overlaps.length} stretches with two holders, ${run.writes.length} writes`;
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': said });
  picture.append(back, front, top, words);
  return Object.assign(picture, { moment: px => view[0] + (Math.min(Math.max(px, left), right) - left) / scale });

  function drawHold([client, lock, place, from, until, end], at) {
    if (!seen(from, until)) return;
    const a = x(from), wide = Math.max(1.5, x(until) - a), look = colour(place, run.tokens.length);
    const tip = `${who(client)} holds the lock${lockOf(lock)} with ${token(place)}: `
      + `${span(from)} to ${span(until)} (${span(until - from)}); ${ENDS[end] ?? end}`;
    front.append(svg('rect', {
      x: a, y: at, width: wide, height: size.bar, rx: Math.min(2.5, wide / 3), fill: look.fill,
      class: wide > 4 && size.bar > 6 ? 'hold edge' : 'hold',
    }, tip));
    const tail = a + wide, middle = at + size.bar / 2;
    if (until <= view[1] && size.bar > 6) {
      if (end === 'killed') {
        const r = 4;
        front.append(svg('path', { d: `M${tail - r} ${middle - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`, class: 'end-killed' }));
      } else if (end === 'lost' || end === 'expired') {
        front.append(svg('path', { d: `M${tail} ${at - 2}v${size.bar + 4}`, class: 'end-lost' }));
      }
    }
    if (size.bar < 11) return;
    const digits = run.tokens[place] ?? '';
    const text = [`token ${digits}`, digits, `…${digits.slice(-4)}`].find(t => t.length * 6.6 + 10 <= wide);
    if (!text || digits === '') return;
    const node = label(a + wide / 2, middle + 3.8, text, 'on', 'middle');
    // Above the red stripes, with a rim of the bar's own colour, so that it can be read on them.
    node.setAttribute('style', `fill:${look.text};stroke:${look.fill}`);
    words.append(node);
  }

  function nameOverlaps(group, begin) {
    let free = left;
    for (const [, from, until] of group.overlaps) {
      const said = 'two holders', wide = said.length * 6.9;
      if (!seen(from, until)) continue;
      const centre = (x(from) + x(until)) / 2, start = Math.min(Math.max(centre - wide / 2, left), right - wide);
      if (start < free) continue;
      top.append(label(start, begin - 7, said, 'over'));
      free = start + wide + 8;
    }
  }

  // Accepted above, refused below, so that a crowd of one does not hide the other.
  function drawWrites(group, at) {
    if (narrow) at += 12;
    const middle = at + 12;
    top.append(narrow ? label(left, at - 1, 'writes at the resource', 'dim') : label(left - 10, middle + 4, 'writes', 'dim', 'end'));
    back.append(svg('path', { d: `M${left} ${middle}H${right}`, class: 'lane', 'stroke-dasharray': '1 3' }));
    for (const [client, , place, moment, accepted, fenced, late] of group.writes) {
      if (!seen(moment, moment)) continue;
      const look = place === null ? { fill: 'var(--soft)' } : colour(place, run.tokens.length), cx = x(moment);
      const tip = `${span(moment)}: write of ${who(client)} with ${token(place)} `.replace('with without', 'without')
        + (accepted ? (late ? 'accepted although it came too late' : 'accepted') : 'refused')
        + (fenced ? '' : ' (no fence)');
      if (!accepted) {
        top.append(svg('path', { d: `M${cx - 4} ${middle + 3}l8 8m0 -8l-8 8`, class: 'refused' }));
        top.append(svg('rect', { x: cx - 6, y: middle + 1, width: 12, height: 12, class: 'hit' }, tip));
        continue;
      }
      const dot = fenced ? { class: 'write edge', r: 4.5, fill: look.fill } : { class: 'write ring', r: 4, stroke: look.fill };
      if (late) top.append(svg('circle', { cx, cy: middle - 4, r: 8, class: 'went-back' }));
      top.append(svg('circle', { cx, cy: middle - 4, ...dot }, tip));
    }
    return middle + 16;
  }

  function drawFault({ at, until, what, whom, n, row, text, end }) {
    const from = x(at), tip = `${n}. ${what}: ${whom}, at ${span(at)}` + heals(at, until);
    const client = run.clients.indexOf(whom);
    if (until !== null) {
      const wide = Math.max(2, x(until) - from);
      back.prepend(svg('rect', { x: from, y: strip + 9, width: wide, height: bottom - strip - 9, class: 'fault-band' }));
      top.append(svg('rect', { x: from, y: strip + 1, width: wide, height: 4, class: 'fault-span' }, tip));
      for (const spot of laneOf.get(client) ?? []) {
        back.append(svg('rect', { x: from, y: spot.y, width: wide, height: spot.height, class: 'under-fault' }));
      }
    }
    if (at < view[0]) return;
    back.append(svg('path', { d: `M${from} ${row < 0 ? strip : row * 14 + 4}V${bottom}`, class: 'fault-line' }));
    top.append(svg('path', { d: `M${from - 5} ${strip - 1}H${from + 5}L${from} ${strip + 8}Z`, class: 'fault-mark fault' }, tip));
    if (text) top.append(label(end ? from - 4 : from + 4, row * 14 + 11, text, '', end ? 'end' : 'start'));
  }
}
