// Shows the values of a chart next to the pointer. All text is set with textContent, so names cannot become markup.
document.documentElement.classList.add('js');
const formatNumber = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en-US') : String(+v.toPrecision(4));
const addElement = (tag, parent, className, text = '') => {
  const node = parent.appendChild(document.createElement(tag));
  node.className = className; node.textContent = text; return node;
};
const nearestIndex = (points, step) => points.reduce(
  (best, p, i) => Math.abs(p[0] - step) < Math.abs(points[best][0] - step) ? i : best, 0);
for (const plot of document.querySelectorAll('[data-chart]')) {
  const {last, low, high, log, curves, times, unit} = JSON.parse(plot.dataset.chart);
  const formatValue = v => unit ? (times * v).toFixed(2) + unit : formatNumber(v);
  const scale = v => log ? Math.log(Math.max(v, low)) : v;
  const height = v => Math.min(1, Math.max(0, (scale(v) - scale(low)) / (scale(high) - scale(low))));
  const rule = addElement('i', plot, 'rule'), tip = addElement('div', plot, 'tip');
  const rings = curves.map(([, tone]) => addElement('i', plot, 'ring tone-' + tone));
  tip.setAttribute('role', 'status');
  const densest = curves.map(curve => curve[3]).reduce((a, b) => b.length > a.length ? b : a);
  let current = densest.length - 1;
  const hide = () => plot.classList.remove('live');
  const show = index => {
    current = Math.min(densest.length - 1, Math.max(0, index));
    const step = densest[current][0], x = 100 * step / last;
    plot.classList.add('live');
    rule.style.left = tip.style.left = x + '%';
    tip.classList.toggle('flip', x > 55);
    tip.textContent = '';
    addElement('div', tip, 'tip-step', 'step ' + formatNumber(step));
    curves.forEach(([name, tone, faint, points], i) => {
      const [s, v] = points[nearestIndex(points, step)], row = addElement('div', tip, 'tip-row tone-' + tone);
      addElement('span', row, faint ? 'faint' : '', name + (s === step ? '' : ' at ' + formatNumber(s)));
      addElement('b', row, '', formatValue(v));
      rings[i].hidden = faint;
      rings[i].style.left = 100 * s / last + '%';
      rings[i].style.top = 100 - 100 * height(v) + '%';
    });
  };
  const follow = e => {
    const box = plot.querySelector('svg').getBoundingClientRect();
    show(nearestIndex(densest, last * (e.clientX - box.left) / box.width));
  };
  for (const name of ['pointermove', 'pointerdown']) plot.addEventListener(name, follow);
  for (const name of ['pointerleave', 'blur']) plot.addEventListener(name, hide);
  plot.addEventListener('keydown', e => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (move) { e.preventDefault(); show(plot.classList.contains('live') ? current + move : current); }
    if (e.key === 'Escape') hide();
  });
}
