/** Rows as columns; numbers to the right, the rest to the left. `style` colours padded cells; the head is row -1. */
export function table(
  head: readonly string[],
  rows: readonly (readonly (string | number)[])[],
  style: (cell: string, row: number, column: number) => string = (cell) => cell,
): string {
  const cells = [head, ...rows.map((row) => row.map(String))];
  const widths = head.map((_, i) => Math.max(...cells.map((row) => row[i]?.length ?? 0)));
  const numeric = head.map((_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === 'number'));
  return cells
    .map((row, j) =>
      row
        .map((cell, i) => (numeric[i] === true ? cell.padStart(widths[i] ?? 0) : cell.padEnd(widths[i] ?? 0)))
        .map((cell, i) => style(i === row.length - 1 ? cell.trimEnd() : cell, j - 1, i))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** Lines of `name  value`, names padded to one width; values that are undefined are left out. */
export function facts(entries: Readonly<Record<string, string | number | undefined>>): string {
  const shown = Object.entries(entries).filter(([, value]) => value !== undefined);
  const width = Math.max(...shown.map(([name]) => name.length));
  return shown.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join('\n');
}

/** `2.9987`, `97.6 %` and the like: numbers as people read them. */
export const show = (x: number): string => String(Number(x.toPrecision(5)));
export const percent = (x: number): string => `${(100 * x).toFixed(2)} %`;
