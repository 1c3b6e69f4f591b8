// Figures of the pages about attention: one head, masks, all heads.
(() => {
  const {html, svg, cell, colour, number, choice, slider, checkbox, head, attention, define} = window.stepFigures;
  const FULL_STOP = 8; // the token that predicts "She"
  const LAST_LAYER = 1;
  const causal = (length, query) => Array.from({length}, (_, key) => key <= query);

  define('head', (figure, {words, nHeads}) => {
    const state = {layer: LAST_LAYER, head: 0, query: FULL_STOP, scale: 1};
    const body = html('tbody');
    const strip = (values) => svg('svg', {viewBox: `0 0 ${values.length * 14} 14`, class: 'step-strip', role: 'img',
      'aria-label': values.map((v) => number(v)).join(', ')}, ...values.map((v, i) => cell(i * 14, 0, 14, 14, v, 2.5, number(v))));
    const show = () => {
      const parts = head(state.layer, state.head);
      const keep = causal(words.length, state.query);
      const {scores, weights} = attention(parts, state.query, keep, state.scale);
      const output = parts.v[0].map((_, i) => weights.reduce((sum, weight, key) => sum + weight * parts.v[key][i], 0));
      body.replaceChildren(
        ...words.map((word, key) => html('tr', {class: keep[key] ? '' : 'step-masked'},
          html('th', {scope: 'row'}, word),
          html('td', {class: 'step-number'}, keep[key] ? number(scores[key]) : 'masked'),
          html('td', {class: 'step-number'}, keep[key] ? number(weights[key]) : '0'),
          html('td', {}, html('div', {class: 'step-bar', style: `width: ${(weights[key] * 100).toFixed(1)}%`})),
          html('td', {}, strip(parts.v[key])))),
        html('tr', {class: 'step-total'}, html('th', {scope: 'row', colspan: 4}, 'output: the weighted sum'), html('td', {}, strip(output))),
      );
    };
    const set = (name) => (value) => { state[name] = value; show(); };
    figure.append(
      html('div', {class: 'step-controls'},
        choice('layer', ['1', '2'], state.layer, set('layer')),
        choice('head', Array.from({length: nHeads}, (_, i) => i + 1), state.head, set('head')),
        slider('scale', {min: 0, max: 4, step: 0.1, value: 1}, (v) => `× ${v.toFixed(1)} / √8`, set('scale'))),
      choice('query', words, state.query, set('query'), {hover: true}),
      html('div', {class: 'step-scroll'}, html('table', {class: 'step-table'},
        html('thead', {}, html('tr', {}, ...['key', 'score', 'weight', '', 'value'].map((name) => html('th', {scope: 'col'}, name)))), body)),
      html('figcaption', {}, 'Choose the query with the mouse or the arrow keys. The scale multiplies the scores: 0 makes all weights equal, a large one leaves one winner.'),
    );
    show();
  });

  define('masks', (figure, {words}) => {
    const parts = head(LAST_LAYER, 0);
    const state = {causal: true, padding: false, window: false, width: 5};
    const [left, top, size, length] = [52, 52, 22, words.length];
    const padded = 4; // how many tokens at the end count as padding
    const text = (index) => (state.padding && index >= length - padded ? '·' : words[index]);
    const group = svg('g');
    const detail = html('p', {class: 'step-detail', 'aria-live': 'polite'});
    const mayRead = (query, key) => (!state.causal || key <= query) && (!state.padding || key < length - padded)
      && (!state.window || Math.abs(query - key) < state.width);
    const show = () => {
      let count = 0;
      const cells = words.flatMap((_, query) => {
        const keep = words.map((__, key) => mayRead(query, key));
        const {weights} = attention(parts, query, keep);
        count += keep.filter(Boolean).length;
        return words.map((__, key) => svg('rect', {
          x: left + key * size, y: top + query * size, width: size - 2, height: size - 2,
          class: keep[key] ? 'step-open' : 'step-closed', style: keep[key] ? `fill: ${colour(0.08 + weights[key], 1.08)}` : '',
        }, svg('title', {}, `${words[query]} ${keep[key] ? `reads ${words[key]} with weight ${number(weights[key])}` : `may not read ${words[key]}`}`)));
      });
      const labels = words.flatMap((_, i) => [
        svg('text', {x: left - 6, y: top + i * size + 14, 'text-anchor': 'end'}, text(i)),
        svg('text', {transform: `translate(${left + i * size + 14} ${top - 6}) rotate(-60)`}, text(i)),
      ]);
      group.replaceChildren(...cells, ...labels);
      detail.textContent = `${count} of ${length * length} pairs may be read`;
    };
    const set = (name) => (value) => { state[name] = value; show(); };
    figure.append(
      html('div', {class: 'step-controls'}, checkbox('causal', true, set('causal')), checkbox('padding', false, set('padding')),
        checkbox('window', false, set('window')),
        slider('width', {min: 1, max: length, step: 1, value: state.width}, String, set('width'))),
      detail,
      svg('svg', {viewBox: `0 0 ${left + length * size + 16} ${top + length * size}`, role: 'img',
        'aria-label': 'Which token may read which'}, group),
      html('figcaption', {}, 'Rows are queries, columns keys. Grey cells are masked; the colour of the others is the weight in head 1 of layer 2. With padding, the last four tokens (·) are not read. Without the causal mask, tokens read words that come after them.'),
    );
    show();
  });

  define('heads', (figure, {words, nHeads}) => {
    const size = 10;
    const length = words.length;
    const maps = [0, 1].flatMap((layer) => Array.from({length: nHeads}, (_, index) => {
      const parts = head(layer, index);
      const rows = words.map((_, query) => attention(parts, query, causal(length, query)).weights);
      const frame = svg('rect', {x: -1, width: length * size + 1, height: size + 1, class: 'step-frame'});
      const label = html('span', {class: 'step-reads'});
      const picture = svg('svg', {viewBox: `-2 -2 ${length * size + 4} ${length * size + 4}`, role: 'img',
        'aria-label': `Weights of head ${index + 1} of layer ${layer + 1}`},
      ...rows.flatMap((row, query) => row.map((weight, key) => (key > query
        ? svg('rect', {x: key * size, y: query * size, width: size - 1, height: size - 1, class: 'step-closed'})
        : cell(key * size, query * size, size, size, weight, 1, `${words[query]} reads ${words[key]}: ${number(weight)}`)))), frame);
      const show = (query) => {
        frame.setAttribute('y', query * size - 1);
        const best = rows[query].indexOf(Math.max(...rows[query]));
        label.textContent = `${words[best]} ${number(rows[query][best])}`;
      };
      return {show, element: html('div', {class: 'step-map'}, html('span', {class: 'step-label'}, `layer ${layer + 1}, head ${index + 1}`), picture, label)};
    }));
    const show = (query) => maps.forEach((map) => map.show(query));
    figure.append(choice('query', words, FULL_STOP, show, {hover: true}),
      html('div', {class: 'step-maps'}, ...maps.map((map) => map.element)),
      html('figcaption', {}, 'Each square is a head: rows are queries, columns keys, in the order of the sentence. The frame is the chosen query, and below is the token that it reads most.'));
    show(FULL_STOP);
  });
})();
