// What all figures use: elements, colours, rows of buttons, sliders, and the arithmetic of attention.
window.stepFigures = (() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const builders = {};

  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
      else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.flat().map((child) => (child instanceof Node ? child : String(child))));
    return element;
  };
  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // Positive numbers are blue, negative ones orange; a larger number has a stronger colour.
  const colour = (value, largest) => {
    const strength = Math.min(1, Math.abs(value) / largest) * 0.85;
    return `rgb(var(--step-${value < 0 ? 'negative' : 'positive'}) / ${strength.toFixed(3)})`;
  };
  const cell = (x, y, width, height, value, largest, title) => svg(
    'rect', {x, y, width: width - 1, height: height - 1, style: `fill: ${colour(value, largest)}`},
    ...(title ? [svg('title', {}, title)] : []),
  );
  const number = (value, digits = 2) => value.toFixed(digits).replace(/^-/, '−');

  // A row of buttons of which one is pressed. Arrow keys move, and pointing at a button chooses it too.
  const choice = (label, options, chosen, onchoose, {hover = false, disabled = []} = {}) => {
    const buttons = options.map((option, index) => html('button', {
      type: 'button', 'aria-pressed': String(index === chosen), disabled: disabled.includes(index),
      onclick: () => choose(index), ...(hover ? {onpointerenter: () => choose(index)} : {}),
    }, option));
    const choose = (index) => {
      buttons.forEach((button, other) => button.setAttribute('aria-pressed', String(other === index)));
      onchoose(index);
    };
    const onkeydown = (event) => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      const from = buttons.indexOf(document.activeElement);
      if (!step || from < 0) return;
      event.preventDefault();
      let index = from;
      do index = (index + step + buttons.length) % buttons.length; while (buttons[index].disabled);
      buttons[index].focus();
      choose(index);
    };
    return html('div', {class: 'step-choice', role: 'group', 'aria-label': label, onkeydown},
      html('span', {class: 'step-label'}, label), ...buttons);
  };

  const slider = (label, {min, max, step, value}, show, onchange) => {
    const output = html('output', {}, show(value));
    const input = html('input', {type: 'range', min, max, step, value, oninput: () => {
      output.textContent = show(Number(input.value));
      onchange(Number(input.value));
    }});
    return html('label', {class: 'step-slider'}, html('span', {class: 'step-label'}, label), input, output);
  };

  const checkbox = (label, checked, onchange) => {
    const input = html('input', {type: 'checkbox', checked, onchange: () => onchange(input.checked)});
    return html('label', {class: 'step-check'}, input, ` ${label}`);
  };

  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);

  // Attention weights of one query; keys that may not be read have the weight 0.
  const softmax = (scores, keep) => {
    const largest = Math.max(...scores.filter((_, index) => keep[index]));
    const powers = scores.map((score, index) => (keep[index] ? Math.exp(score - largest) : 0));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => (sum ? power / sum : 0));
  };

  const head = (layer, index) => {
    const {layers, nHeads} = window.transformerSteps;
    const width = layers[layer].q[0].length / nHeads;
    const part = (rows) => rows.map((row) => row.slice(index * width, (index + 1) * width));
    return {width, q: part(layers[layer].q), k: part(layers[layer].k), v: part(layers[layer].v)};
  };

  const attention = ({q, k, width}, query, keep, scale = 1) => {
    const scores = k.map((key) => scale * dot(q[query], key) / Math.sqrt(width));
    return {scores, weights: softmax(scores, keep)};
  };

  return {
    html, svg, cell, colour, number, choice, slider, checkbox, dot, softmax, head, attention,
    define: (name, builder) => { builders[name] = builder; },
    build: (element) => {
      const figure = html('figure', {class: 'step-figure', 'data-built': element.dataset.figure});
      builders[element.dataset.figure](figure, window.transformerSteps);
      element.replaceChildren(figure);
    },
  };
})();
