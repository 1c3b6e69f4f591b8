// Figures about the residual stream, the gradients, and the distance that gradients travel.
(() => {
  const {html, svg, number, choice, slider, define} = window.stepFigures;
  const FULL_STOP = 8;

  const bars = (rows) => rows.map(([label, share, text]) => html('div', {class: 'step-row'},
    html('span', {class: 'step-name'}, label),
    html('span', {class: 'step-track'}, html('span', {class: 'step-bar', style: `width: ${(100 * share).toFixed(1)}%`})),
    html('span', {class: 'step-number'}, text)));

  define('stream', (figure, {words, stream}) => {
    const list = html('div', {class: 'step-stages', 'aria-live': 'polite'});
    const show = (token) => list.replaceChildren(...stream.map(({name, best}) => html('div', {class: 'step-stage'},
      html('div', {class: 'step-label'}, name), ...bars(best[token].map(([word, p]) => [word, p, number(p)])))));
    figure.append(choice('token', words, FULL_STOP, show, {hover: true}), list,
      html('figcaption', {}, 'The three most probable next words, read from the residual stream of the chosen token after each step.'));
    show(FULL_STOP);
  });

  define('gradients', (figure, {words, gradients}) => {
    const list = html('div', {class: 'step-stages'});
    const detail = html('p', {class: 'step-detail', 'aria-live': 'polite'});
    const largest = Math.max(...gradients.flatMap(({norms}) => Object.values(norms)));
    const names = [...words.slice(1), 'all'];
    const show = (index) => {
      const {loss, norms} = gradients[index];
      detail.textContent = `${index < words.length - 1 ? `loss of "${names[index]}" after "${words[index]}"` : 'sum of all 13 losses'}: ${number(loss)}`;
      list.replaceChildren(...bars(Object.entries(norms).map(([group, norm]) => [group, norm / largest, number(norm)])));
    };
    figure.append(choice('predicted word', names, names.length - 1, show, {hover: true}), detail, list,
      html('figcaption', {}, 'The length of the gradient of each group of parameters. A word that the model predicts with certainty has almost no gradient: there is nothing to learn from it.'));
    show(names.length - 1);
  });

  define('distance', (figure, {distances}) => {
    const [left, right, top, bottom] = [52, 392, 10, 210];
    const steps = Object.keys(distances[0].gradients).map(Number).sort((a, b) => a - b);
    const x = (distance) => left + Math.log2(distance) / Math.log2(steps.at(-1)) * (right - left);
    const y = (gradient) => top - Math.log10(gradient) / 6 * (bottom - top);
    const names = {rnn: 'RNN', gru: 'GRU', lstm: 'LSTM', transformer: 'Transformer'};
    const short = (value) => (value < 0.001 ? value.toExponential(1) : number(value, value < 0.1 ? 3 : 2));
    const line = svg('line', {y1: top, y2: bottom, class: 'step-cursor'});
    const legend = html('div', {class: 'step-legend', 'aria-live': 'polite'});
    const show = (index) => {
      line.setAttribute('x1', x(steps[index]));
      line.setAttribute('x2', x(steps[index]));
      legend.replaceChildren(...distances.map(({name, gradients}, i) => html('span', {class: `step-series-${i}`},
        `${names[name]} ${short(gradients[steps[index]])}`)));
    };
    figure.append(
      slider('distance', {min: 0, max: steps.length - 1, step: 1, value: steps.length - 1}, (i) => `${steps[i]} tokens`, show), legend,
      svg('svg', {viewBox: '0 0 400 240', role: 'img', 'aria-label': 'Gradient by distance for four kinds of models'},
        ...[0, -2, -4, -6].flatMap((power) => [
          svg('line', {x1: left, x2: right, y1: y(10 ** power), y2: y(10 ** power), class: 'step-grid'}),
          svg('text', {x: left - 6, y: y(10 ** power) + 4, 'text-anchor': 'end'}, power ? `10${['', '', '⁻²', '', '⁻⁴', '', '⁻⁶'][-power]}` : '1')]),
        ...steps.map((d) => svg('text', {x: x(d), y: bottom + 18, 'text-anchor': 'middle'}, d)), line,
        ...distances.map(({gradients}, i) => svg('path', {class: `step-line step-series-${i}`,
          d: steps.map((d, n) => `${n ? 'L' : 'M'}${x(d)} ${y(gradients[d])}`).join('')})),
        ...distances.flatMap(({gradients, name}, i) => steps.map((d) => svg('circle', {cx: x(d), cy: y(gradients[d]), r: 3, class: `step-dot step-series-${i}`},
          svg('title', {}, `${names[name]}, distance ${d}: ${gradients[d]}`))))),
      html('figcaption', {}, 'Gradient of the last prediction with respect to a token at each distance, relative to distance 0. Both axes are logarithmic.'),
    );
    show(steps.length - 1);
  });
})();
