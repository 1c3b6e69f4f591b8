// Line charts with the look of the report, drawn by uPlot: a legend with the last values, a tooltip, arrow keys.

/* global uPlot */
import {create, formatMetric, formatNumber} from './dom.js';

export const TONES = 'abcdefgh';  // colours of the style sheet; further curves repeat them, dashed
const LOG_RATIO = 20;  // a curve whose largest value is this many times its smallest is drawn on a log scale
const INCREMENTS = Array.from({length: 12}, (_, power) => [1, 2, 5].map(factor => factor * 10 ** power)).flat();  // steps are whole
const cssColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The colour of a curve by its position in a list: {tone, dashed}.
export const toneOf = index => ({tone: TONES[index % TONES.length], dashed: index >= TONES.length});

// The centred running mean. Its window is short at the start, where a loss falls fast.
export function smooth(points) {
  const half = Math.max(4, Math.floor(points.length / 25)), sums = [0];
  for (const [, value] of points) sums.push(sums.at(-1) + value);
  return points.map(([step], i) => {
    const radius = Math.min(half, i), first = i - radius, last = Math.min(i + radius, points.length - 1);
    return [step, (sums[last + 1] - sums[first]) / (last + 1 - first)];
  });
}

// Create a chart: {node, update, destroy}. `update(curves)` draws other curves, which are objects
// {name, points: [[step, value], …], tone, faint, dashed, dots, band: [[step, low, high], …]}.
// `metric` is a metric as the API describes it; without it, values are plain numbers.
export function createChart({title, metric = null, allowLog = false, small = false, xTitle = 'step'}) {
  const format = value => formatMetric(metric, value);
  const formatTick = value => formatNumber((metric?.scale ?? 1) * value) + (metric?.unit ?? '');
  const limit = metric?.unit ? 1 / metric.scale * 100 : Infinity;  // a share ends at 100 %
  const legend = create('ul', {class: 'legend'});
  const tip = create('div', {class: 'tip', role: 'status'});
  const plot = create('div', {class: 'canvas', tabindex: '0', role: 'group'}, tip);
  const node = create('figure', {class: `card chart live-chart${small ? ' small' : ''}`},
    create('figcaption', {}, create('h3', {}, title), legend), plot);
  const state = {curves: [], chart: null, shape: '', index: -1};
  const height = small ? 150 : 300;

  const hide = () => {
    plot.classList.remove('live');
    state.chart?.setCursor({left: -10, top: -10}, false);
  };
  const showAt = index => {
    const steps = state.chart.data[0], step = steps[index];
    state.index = index;
    plot.classList.add('live');
    tip.replaceChildren(create('div', {class: 'tip-step'}, `${xTitle} ${formatNumber(step)}`));
    for (const curve of state.curves) {
      const [at, value] = nearest(curve.points, step);
      const label = curve.name + (at === step ? '' : ` at ${formatNumber(at)}`);
      tip.append(create('div', {class: `tip-row tone-${curve.tone}`},
        create('span', {class: curve.faint ? 'faint' : ''}, label), create('b', {}, format(value))));
    }
    const left = state.chart.valToPos(step, 'x') + state.chart.over.offsetLeft;
    tip.style.left = `${left}px`;
    tip.classList.toggle('flip', left > plot.clientWidth * 0.55);
  };

  const isLog = () => {
    let low = Infinity, high = -Infinity;
    for (const curve of state.curves) {
      if (!curve.faint) for (const [, value] of curve.points) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    return allowLog && low > 0 && high > LOG_RATIO * low;
  };
  const hasDots = curve => Boolean(curve.dots) && curve.points.length <= 60 || curve.points.length === 1;
  const options = log => {
    const axis = {stroke: () => cssColour('--soft'), font: '12px system-ui, sans-serif', ticks: {show: false},
      grid: {stroke: () => cssColour('--grid'), width: 1}};
    const bands = [], series = [{}];
    for (const curve of state.curves) {
      const stroke = () => cssColour(`--${curve.tone}`);
      series.push({
        label: curve.name, stroke, width: curve.faint ? 1 : 2, alpha: curve.faint ? 0.35 : 1, spanGaps: true,
        dash: curve.dashed ? [6, 4] : undefined,
        points: {show: hasDots(curve), size: 6,
          fill: () => cssColour('--card')},
      });
      if (curve.band?.length) {
        const edge = {stroke: 'transparent', width: 0, spanGaps: true, points: {show: false}};
        series.push(edge, edge);
        bands.push({series: [series.length - 1, series.length - 2], fill: () => `${cssColour(`--${curve.tone}`)}26`});
      }
    }
    return {
      width: Math.max(plot.clientWidth, 120), height, series, bands, legend: {show: false}, padding: [8, 26, 0, 0],
      scales: {x: {time: false, range: (_, min, max) => min === max ? [min - 1, max + 1] : [min, max]},
        y: log ? {distr: 3, range: (_, min, max) => [min / 1.1, max * 1.1]} : {range: (_, min, max) => pad(min, max, limit)}},
      axes: [
        {...axis, size: 30, space: 74, grid: {show: false}, incrs: INCREMENTS, values: (_, ticks) => ticks.map(formatNumber)},
        {...axis, size: 58, values: (_, ticks) => ticks.map(formatTick), ...(log ? {splits: logTicks, filter: (_, ticks) => ticks} : {})},
      ],
      cursor: {y: false, drag: {x: false, y: false}, points: {size: 8}},
      hooks: {setCursor: [chart => {
        if (chart.cursor.idx === null || chart.cursor.left < 0) plot.classList.remove('live');
        else showAt(chart.cursor.idx);
      }]},
    };
  };

  const data = () => {
    const steps = [...new Set(state.curves.flatMap(curve =>
      [...curve.points, ...(curve.band ?? [])].map(point => point[0])))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, i) => [step, i]));
    const column = (points, at) => {
      const values = new Array(steps.length).fill(null);
      for (const point of points) values[place.get(point[0])] = point[at];
      return values;
    };
    return [steps, ...state.curves.flatMap(curve => curve.band?.length
      ? [column(curve.points, 1), column(curve.band, 1), column(curve.band, 2)] : [column(curve.points, 1)])];
  };

  const draw = () => {
    if (!plot.clientWidth || !state.curves.length) return;
    const log = isLog();
    const shape = JSON.stringify([log, state.curves.map(curve =>
      [curve.name, curve.tone, curve.faint, curve.dashed, hasDots(curve), Boolean(curve.band?.length)])]);
    if (state.chart && state.shape === shape) {  // the cursor of the reader stays
      state.chart.setData(data());
      return;
    }
    state.chart?.destroy();
    state.chart = new uPlot(options(log), data(), plot);
    state.shape = shape;
  };
  const update = curves => {
    state.curves = curves.filter(curve => curve.points.length).map(curve => ({tone: 'a', ...curve}));
    node.hidden = !state.curves.length;
    node.classList.toggle('several', state.curves.length > 1);
    legend.replaceChildren(...state.curves.filter(curve => !curve.faint).map(curve =>
      create('li', {class: `tone-${curve.tone}${curve.dashed ? ' dashed' : ''}`},
        create('span', {}, curve.name), ' ', create('b', {}, format(curve.points.at(-1)[1])))));
    plot.setAttribute('aria-label', `${title}. ${state.curves.filter(curve => !curve.faint).map(curve =>
      `${curve.name}: ${format(curve.points.at(-1)[1])} at ${xTitle} ${formatNumber(curve.points.at(-1)[0])}`)
      .join('; ')}. Use the arrow keys to read values.`);
    draw();
  };

  plot.addEventListener('keydown', event => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key], chart = state.chart;
    if (event.key === 'Escape') hide();
    if (!move || !chart) return;
    event.preventDefault();
    const last = chart.data[0].length - 1;
    const index = plot.classList.contains('live') ? Math.min(last, Math.max(0, state.index + move)) : last;
    chart.setCursor({left: chart.valToPos(chart.data[0][index], 'x'), top: 10}, false);
    showAt(index);
  });
  plot.addEventListener('blur', hide);
  const observer = new ResizeObserver(() => {
    if (state.chart) state.chart.setSize({width: Math.max(plot.clientWidth, 120), height});
    else draw();
  });
  observer.observe(plot);
  const scheme = matchMedia('(prefers-color-scheme: dark)');
  const redraw = () => state.chart?.redraw(false);
  scheme.addEventListener('change', redraw);
  return {node, update, destroy() {
    observer.disconnect();
    scheme.removeEventListener('change', redraw);
    state.chart?.destroy();
  }};
}

function pad(min, max, limit) {
  const margin = max > min ? 0.06 * (max - min) : Math.abs(max) / 2 || 1;
  return [min >= 0 && min - margin < 0 ? 0 : min - margin, max <= limit ? Math.min(limit, max + margin) : max + margin];
}

// Ticks of a log scale: powers of ten, with their halves and doubles if they are few.
function logTicks(chart, axis, min, max) {
  const factors = Math.log10(max / min) > 3 ? [1] : [1, 2, 5], ticks = [];
  for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); power++) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  return ticks.filter(tick => tick >= min && tick <= max);
}

// The point nearest to a step; the points are sorted by step.
function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
}
