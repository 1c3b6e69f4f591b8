// Figures of the pages about tokens and positions.
(() => {
  const {html, svg, cell, number, choice, slider, dot, define} = window.stepFigures;

  define('embedding', (figure, {words, ids, embedding}) => {
    const [left, size, height] = [58, 12, 17];
    const rows = words.map((word, row) => svg('g', {},
      svg('text', {x: left - 6, y: row * height + 13, 'text-anchor': 'end'}, word),
      ...embedding[row].map((value, column) => cell(
        left + column * size, row * height, size, height, value, 0.7, `${word}, number ${column + 1}: ${number(value)}`))));
    const frame = svg('rect', {x: left - 1, width: 32 * size + 1, height: height + 1, class: 'step-frame'});
    const detail = html('p', {class: 'step-detail', 'aria-live': 'polite'});
    const show = (row) => {
      frame.setAttribute('y', row * height - 1);
      detail.textContent = `${words[row]} → id ${ids[row]} → [${embedding[row].slice(0, 8).map((v) => number(v)).join(', ')}, …]`;
    };
    figure.append(
      choice('token', words, 0, show, {hover: true}), detail,
      svg('svg', {viewBox: `0 0 ${left + 32 * size + 2} ${words.length * height + 2}`, role: 'img',
        'aria-label': 'The 32 numbers of each token as coloured cells'}, ...rows, frame),
      html('figcaption', {}, 'Each row is the vector of a token: blue numbers are positive, orange ones negative. The two full stops have the same vector.'),
    );
    show(0);
  });

  const D = 32;
  const LENGTH = 32;
  const angle = (position, pair) => position / 10000 ** (2 * pair / D);
  const vector = (position) => Array.from({length: D}, (_, i) => (
    i % 2 ? Math.cos(angle(position, (i - 1) / 2)) : Math.sin(angle(position, i / 2))));

  define('positions', (figure) => {
    const vectors = Array.from({length: LENGTH}, (_, position) => vector(position));
    const [left, size, height, top] = [30, 10, 10, 60];
    const state = {position: 8, shift: 3};
    const cells = vectors.map((row, position) => row.map((value, column) => cell(
      left + column * size, top + 12 + position * height, size, height, value, 1.2,
      `position ${position}, number ${column + 1}: ${number(value)}`)));
    const frames = ['step-frame', 'step-frame step-second'].map((name) => svg('rect', {
      x: left - 1, width: D * size + 1, height: height + 1, class: name}));
    const curve = svg('path', {class: 'step-line'});
    const marks = ['step-mark', 'step-mark step-second'].map((name) => svg('circle', {r: 4, class: name}));
    const detail = html('p', {class: 'step-detail', 'aria-live': 'polite'});
    const place = (position) => left + (position + 0.5) * size;
    const show = () => {
      const {position} = state;
      const other = Math.min(LENGTH - 1, position + state.shift);
      const products = vectors.map((row) => dot(row, vectors[position]));
      const level = (product) => top - 4 - Math.max(0, product) / 16 * (top - 12);
      curve.setAttribute('d', products.map((product, p) => `${p ? 'L' : 'M'}${place(p)} ${level(product)}`).join(''));
      [position, other].forEach((p, index) => {
        frames[index].setAttribute('y', top + 11 + p * height);
        marks[index].setAttribute('cx', place(p));
        marks[index].setAttribute('cy', level(products[p]));
      });
      detail.textContent = `product of the vectors of positions ${position} and ${other}: ${number(products[other])}`;
    };
    figure.append(
      slider('position', {min: 0, max: LENGTH - 1, step: 1, value: 8}, String, (value) => { state.position = value; show(); }),
      slider('shift', {min: 0, max: 16, step: 1, value: 3}, (v) => `+${v}`, (value) => { state.shift = value; show(); }),
      detail,
      svg('svg', {viewBox: `0 0 ${left + D * size + 4} ${top + 14 + LENGTH * height}`, role: 'img',
        'aria-label': 'Position vectors, and above them the product of one with all'},
      curve, ...marks, ...cells.flat(), ...frames,
      ...[0, 8, 16, 24, 31].map((p) => svg('text', {x: left - 6, y: top + 21 + p * height, 'text-anchor': 'end'}, p))),
      html('figcaption', {}, 'Rows are the vectors of positions 0 to 31: the first numbers change fast, the last ones hardly. The curve is the product of the chosen position with every other. Keep the shift and move the position: the product stays the same.'),
    );
    show();
  });
})();
