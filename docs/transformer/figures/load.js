// Builds the figures of a page: every element with data-figure="NAME" becomes the figure NAME.
// The files are loaded one after another as plain scripts, so that pages work when they are opened as files.
(() => {
  const folder = document.currentScript.src.replace(/[^/]*$/, '');
  const files = ['data.js', 'common.js', 'tokens.js', 'attention.js', 'training.js'];
  const style = document.createElement('link');
  style.rel = 'stylesheet';
  style.href = `${folder}style.css`;
  document.head.append(style);
  const loadNext = () => {
    const file = files.shift();
    if (!file) {
      document.querySelectorAll('[data-figure]').forEach((element) => window.stepFigures.build(element));
      return;
    }
    const script = document.createElement('script');
    script.src = folder + file;
    script.onload = loadNext;
    document.head.append(script);
  };
  loadNext();
})();
