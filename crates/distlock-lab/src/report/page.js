// What the page does: draw a picture when its run is opened, look closer, open and close.

// An error is shown where the reader, and the test, can see it.
addEventListener('error', event => {
  const place = document.getElementById('errors');
  place.hidden = false;
  place.append(`This page's script stumbled: ${event.message} `);
});

const runs = JSON.parse(document.getElementById('runs').textContent);
const LEFT = ['holds', 'waits', 'writes', 'faults', 'stretches with two holders'];

function node(tag, cls, text) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  if (text) made.textContent = text;
  return made;
}

/** Draws a run into its place, once; later calls fit it to a new width. */
function show(place) {
  const run = runs[place.dataset.run];
  if (!run) {
    if (!place.firstChild) place.append(node('p', 'soft', 'This picture was left out to keep the page small; the JSON record has the run.'));
    return;
  }
  if (!place.firstChild) furnish(place, run);
  const width = Math.max(300, place.clientWidth - 2 * parseFloat(getComputedStyle(place).paddingLeft));
  const picture = timeline(run, width, place.view);
  listen(picture, place, width);
  place.querySelector('svg').replaceWith(picture);
  place.width = place.clientWidth;
  place.querySelector('.whole').hidden = place.view[0] === 0 && place.view[1] === place.whole;
}

function furnish(place, run) {
  place.whole = Math.max(1, run.time, ...run.holds.map(h => h[4]), ...run.writes.map(w => w[3]),
    ...run.faults.map(f => f[0]));
  // A little air, so that what happens last can be seen.
  place.whole *= 1.02;
  place.view = [0, place.whole];
  const tools = node('div', 'bar-tools'), read = node('span', 'read');
  const zoom = (factor, shift) => () => {
    const [from, until] = place.view, wide = Math.min(place.whole, Math.max(20, (until - from) * factor));
    const middle = (from + until) / 2 + (until - from) * shift;
    const start = Math.min(Math.max(0, middle - wide / 2), place.whole - wide);
    place.view = [start, start + wide];
    show(place);
  };
  for (const [sign, says, factor, shift] of [['‹', 'earlier', 1, -0.4], ['−', 'wider', 2, 0], ['+', 'closer', 0.5, 0], ['›', 'later', 1, 0.4]]) {
    const button = node('button', '', sign);
    button.type = 'button';
    button.title = says;
    button.setAttribute('aria-label', says);
    button.onclick = zoom(factor, shift);
    tools.append(button);
  }
  const whole = node('button', 'whole', 'whole run');
  whole.type = 'button';
  whole.onclick = zoom(Infinity, 0);
  tools.append(whole, read);
  place.append(svg('svg', {}), tools);
  if (run.faults.length) {
    const list = node('ol', 'events');
    run.faults.slice(0, 40).forEach(([at, until, what, whom], i) => {
      const item = node('li');
      item.append(node('b', '', `${i + 1}`), `${span(at)} ${what}: ${whom}${heals(at, until)}`);
      list.append(item);
    });
    if (run.faults.length > 40) list.append(node('li', '', `and ${run.faults.length - 40} more`));
    place.append(list);
  }
  const left = run.left.map((n, i) => n && `${n} ${LEFT[i]}`).filter(Boolean);
  if (left.length) place.append(node('p', 'meta', `To keep the page small the picture leaves out ${left.join(', ')}, evenly.`));
}

/** Reads out what is pointed at, and looks closer at what is dragged across. */
function listen(picture, place, width) {
  const read = place.querySelector('.read');
  const px = event => (event.clientX - picture.getBoundingClientRect().left) * width / picture.getBoundingClientRect().width;
  let start = null, choice = null;
  picture.addEventListener('pointerover', event => {
    const title = event.target.querySelector && event.target.querySelector(':scope > title');
    read.textContent = title ? title.textContent : '';
  });
  picture.addEventListener('pointerdown', event => {
    if (event.pointerType === 'mouse' && event.button === 0) start = px(event);
  });
  picture.addEventListener('pointermove', event => {
    if (start === null) return;
    if (!choice) {
      if (Math.abs(px(event) - start) < 6) return;
      picture.setPointerCapture(event.pointerId);
      picture.append(choice = svg('rect', { y: 0, height: '100%', class: 'choice' }));
    }
    choice.setAttribute('x', Math.min(start, px(event)));
    choice.setAttribute('width', Math.abs(px(event) - start));
  });
  picture.addEventListener('pointerup', event => {
    const range = [picture.moment(start ?? 0), picture.moment(px(event))].sort((a, b) => a - b);
    const chosen = choice && range[1] - range[0] >= 20;
    start = null;
    if (choice) choice.remove();
    choice = null;
    if (!chosen) return;
    place.view = range;
    show(place);
  });
  picture.addEventListener('dblclick', () => {
    place.view = [0, place.whole];
    show(place);
  });
}

const details = [...document.querySelectorAll('details.run')];
const open = run => run.open && show(run.querySelector('.picture'));
for (const run of details) run.addEventListener('toggle', () => open(run));
const setAll = wanted => details.forEach(run => {
  run.open = wanted;
  open(run);
});
document.getElementById('open-all').onclick = () => setAll(true);
document.getElementById('close-all').onclick = () => setAll(false);

/** `#run-3` opens that run, `#all` every one. */
function follow() {
  if (location.hash === '#all') return setAll(true);
  const run = document.getElementById(location.hash.slice(1));
  if (!run || run.tagName !== 'DETAILS') return;
  run.open = true;
  open(run);
  run.scrollIntoView({ block: 'nearest' });
}
addEventListener('hashchange', follow);
details.forEach(open);
follow();

let soon = 0;
addEventListener('resize', () => {
  cancelAnimationFrame(soon);
  soon = requestAnimationFrame(() => details.filter(run => run.open).map(run => run.querySelector('.picture'))
    .filter(place => place.clientWidth !== place.width).forEach(show));
});
