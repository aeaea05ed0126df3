/** HTML that was put together here: text becomes such only by being escaped. */
export interface Html {
  readonly html: string;
}

type Piece = Html | string | number | readonly Piece[];

/** Text in HTML, and in quoted attributes. */
export const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[c]!);

/** A template whose values are escaped, apart from HTML made the same way; lists are joined. */
export function html(parts: TemplateStringsArray, ...values: readonly Piece[]): Html {
  return { html: parts.map((part, i) => part + (i < values.length ? textOf(values[i]!) : '')).join('') };
}

/** Takes the caller's word that `markup` is well-formed and escaped, as the plots are. */
export const trusted = (markup: string): Html => ({ html: markup });

function textOf(piece: Piece): string {
  if (typeof piece === 'string') return escaped(piece);
  if (typeof piece === 'number') return String(piece);
  return 'html' in piece ? piece.html : piece.map(textOf).join('');
}

export const list = (texts: readonly Piece[]): Html => html`<ul>${texts.map((text) => html`<li>${text}</li>`)}</ul>`;

/** A table of rows whose first cell is a heading. */
export const table = (head: readonly string[], rows: readonly (readonly [string, ...Piece[]])[]): Html => html`<table>
${head.length === 0 ? '' : html`<thead><tr>${head.map((text) => html`<th scope="col">${text}</th>`)}</tr></thead>`}
<tbody>${rows.map(([first, ...rest]) => html`<tr><th scope="row">${first}</th>${rest.map((cell) => html`<td>${cell}</td>`)}</tr>
`)}</tbody></table>`;
