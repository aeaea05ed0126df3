import type { Point } from './statistics.ts';

/** A plot as one SVG text: no script, no font of its own, legible on white and on black. */
export interface PlotText {
  readonly title: string;
  /** What the plot shows, for those who cannot see it. */
  readonly description: string;
  /** Makes its names its own, for a page that holds several plots; by default it is a file of its own. */
  readonly id?: string | undefined;
}

export interface Axis {
  readonly label: string;
  /** Default `linear`, which starts at 0. */
  readonly scale?: 'linear' | 'log' | undefined;
}

export interface Series {
  readonly name: string;
  readonly points: readonly Point[];
  /** Drawn broken and without marks, as for a prediction. */
  readonly dashed?: boolean | undefined;
  /** Whether its points are marked; default: where the line is not broken. */
  readonly marked?: boolean | undefined;
  /** Which colour it has; by default its place among the series. */
  readonly colour?: number | undefined;
}

export interface LineChart extends PlotText {
  readonly x: Axis;
  readonly y: Axis;
  readonly series: readonly Series[];
}

export interface BarChart extends PlotText {
  readonly y: string;
  /** What stands side by side below the axis. */
  readonly groups: readonly string[];
  /** One bar in each group for each series, in the groups' order. */
  readonly series: readonly { readonly name: string; readonly values: readonly number[] }[];
  /** A line across at this height, such as the 1 of a ratio. */
  readonly reference?: number | undefined;
}

/** Colours that the colour-blind can tell apart (Okabe & Ito 2008), those that stand out on white and on black. */
const palette = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'] as const;
const colourOf = (i: number): string => palette[i % palette.length]!;
/** As far from white as from black. */
const ink = '#757575';

const [width, height] = [720, 440];
const area = { left: 72, right: width - 190, top: 44, bottom: height - 56 };

interface Scale {
  readonly at: (value: number) => number;
  readonly ticks: readonly number[];
}

/** A scale over the values from `start` to `end` in pixels; a linear one begins at 0. */
export function scaleOf(values: readonly number[], kind: 'linear' | 'log', start: number, end: number): Scale {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (kind === 'linear') {
    const step = niceStep(Math.max(most, Number.MIN_VALUE) / 5);
    const top = Math.max(step, Math.ceil(most / step - 1e-9) * step);
    const ticks = Array.from({ length: Math.round(top / step) + 1 }, (_, i) => i * step);
    return { at: (value) => start + (value / top) * (end - start), ticks };
  }
  // Room at both ends, so that no mark lies on the frame.
  const [low, high] = [Math.log(least) - 0.1, Math.log(most) + 0.1];
  const at = (value: number): number => start + ((Math.log(value) - low) / (high - low)) * (end - start);
  return { at, ticks: logTicks(least, most) };
}

/** 1, 2 or 5 times a power of ten, at least `size`. */
function niceStep(size: number): number {
  const power = 10 ** Math.floor(Math.log10(size));
  return power * ([1, 2, 5].find((factor) => factor * power >= size * (1 - 1e-9)) ?? 10);
}

/** Powers of ten within the range, or powers of two where few of ten are. */
function logTicks(least: number, most: number): readonly number[] {
  const powers = (base: number): readonly number[] => {
    const [first, last] = [Math.ceil(Math.log(least) / Math.log(base) - 1e-9), Math.floor(Math.log(most) / Math.log(base) + 1e-9)];
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => base ** (first + i));
  };
  const tens = powers(10);
  const twos = tens.length >= 3 ? tens : powers(2);
  return twos.length >= 2 ? twos : [least, most];
}

/** Lines through points, each point marked; points that a logarithmic axis cannot show are left out. */
export function lineChart({ x, y, series, ...text }: LineChart): string {
  const shown = series.map((one) => ({
    ...one, points: one.points.filter(([px, py]) => (x.scale !== 'log' || px > 0) && (y.scale !== 'log' || py > 0)),
  })).filter(({ points }) => points.length > 0);
  const all = shown.flatMap(({ points }) => points);
  const across = scaleOf(all.map(([px]) => px), x.scale ?? 'linear', area.left, area.right);
  const up = scaleOf(all.map(([, py]) => py), y.scale ?? 'linear', area.bottom, area.top);
  const lines = shown.map(({ name, points, dashed, marked = dashed !== true, colour }, i) => {
    const stroke = colourOf(colour ?? i);
    const places = [...points].sort(([a], [b]) => a - b).map(([px, py]) => [across.at(px), up.at(py)] as const);
    const path = places.map((place) => place.map(number).join()).join(' ');
    const line = `<polyline points="${path}" fill="none" stroke="${stroke}" stroke-width="2"${dashed === true ? ' stroke-dasharray="6 4"' : ''}/>`;
    const marks = !marked ? [] : places.map(([px, py]) => mark(colour ?? i, px, py));
    return [`<g><title>${escape(name)}</title>`, line, ...marks, '</g>'].join('\n');
  });
  const ticks = across.ticks.map((value) => label(across.at(value), area.bottom + 18, show(value), 'middle'));
  return svg(text, [
    grid(up), ...ticks, label((area.left + area.right) / 2, height - 16, x.label, 'middle'), upright(y.label),
    ...lines, ...legend(shown.map(({ name, dashed, colour }, i) => ({ name, dashed: dashed === true, at: colour ?? i }))),
  ]);
}

/** Groups of bars from 0. */
export function barChart({ y, groups, series, reference, ...text }: BarChart): string {
  const up = scaleOf([...series.flatMap(({ values }) => values), reference ?? 0], 'linear', area.bottom, area.top);
  const each = (area.right - area.left) / groups.length;
  const bar = (0.8 * each) / series.length;
  const bars = groups.flatMap((group, i) => [
    ...series.map(({ name, values }, j) => {
      const value = values[i] ?? 0;
      const left = area.left + i * each + 0.1 * each + j * bar;
      const top = up.at(value);
      const said = `<title>${escape(`${group}, ${name}: ${show(value)}`)}</title>`;
      return `<rect x="${number(left)}" y="${number(top)}" width="${number(bar * 0.94)}" height="${number(area.bottom - top)}" fill="${colourOf(j)}">${said}</rect>\n${
        label(left + bar * 0.47, top - 5, show(value), 'middle', 11)}`;
    }),
    label(area.left + (i + 0.5) * each, area.bottom + 18, group, 'middle', groups.length > 4 ? 10 : 12),
  ]);
  const across = reference === undefined ? [] : [
    `<line x1="${area.left}" x2="${area.right}" y1="${number(up.at(reference))}" y2="${number(up.at(reference))}" stroke="${ink}" stroke-width="1.5" stroke-dasharray="2 3"/>`,
  ];
  return svg(text, [grid(up), ...bars, ...across, upright(y), ...legend(series.map(({ name }, at) => ({ name, dashed: false, at })))]);
}

const svg = ({ title, description, id }: PlotText, parts: readonly string[]): string => {
  const named = (name: string): string => (id === undefined ? name : `${id}-${name}`);
  // A page needs no name space for it.
  return `<svg${id === undefined ? ' xmlns="http://www.w3.org/2000/svg"' : ''} \
viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-labelledby="${named('title')} ${named('description')}" \
font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12">
<title id="${named('title')}">${escape(title)}</title>
<desc id="${named('description')}">${escape(description)}</desc>
${label(area.left, 24, title, 'start', 15)}
${parts.join('\n')}
</svg>
`;
};

const grid = ({ at, ticks }: Scale): string => ticks.map((value) => [
  `<line x1="${area.left}" x2="${area.right}" y1="${number(at(value))}" y2="${number(at(value))}" stroke="${ink}" stroke-opacity="0.35"/>`,
  label(area.left - 8, at(value) + 4, show(value), 'end'),
].join('\n')).join('\n');

const label = (x: number, y: number, text: string, anchor: 'start' | 'middle' | 'end', size = 12): string =>
  `<text x="${number(x)}" y="${number(y)}" text-anchor="${anchor}" font-size="${size}" fill="${ink}">${escape(text)}</text>`;

const upright = (text: string): string => {
  const y = (area.top + area.bottom) / 2;
  return `<text transform="translate(18 ${number(y)}) rotate(-90)" text-anchor="middle" fill="${ink}">${escape(text)}</text>`;
};

const legend = (entries: readonly { readonly name: string; readonly dashed: boolean; readonly at: number }[]): readonly string[] =>
  entries.flatMap(({ name, dashed, at }, i) => {
    const [x, y] = [area.right + 16, area.top + 12 + 20 * i];
    const line = `<line x1="${x}" x2="${x + 22}" y1="${y}" y2="${y}" stroke="${colourOf(at)}" stroke-width="2"${dashed ? ' stroke-dasharray="6 4"' : ''}/>`;
    return [line, ...(dashed ? [] : [mark(at, x + 11, y)]), label(x + 28, y + 4, name, 'start')];
  });

/** A mark whose shape, too, tells the series. */
function mark(series: number, x: number, y: number): string {
  const fill = `fill="${colourOf(series)}"`;
  const polygon = (...corners: readonly (readonly [number, number])[]): string =>
    `<polygon points="${corners.map(([dx, dy]) => `${number(x + dx)},${number(y + dy)}`).join(' ')}" ${fill}/>`;
  switch (series % 4) {
    case 0: return `<circle cx="${number(x)}" cy="${number(y)}" r="4" ${fill}/>`;
    case 1: return `<rect x="${number(x - 4)}" y="${number(y - 4)}" width="8" height="8" ${fill}/>`;
    case 2: return polygon([0, -5], [5, 4], [-5, 4]);
    default: return polygon([0, -5], [5, 0], [0, 5], [-5, 0]);
  }
}

const number = (x: number): string => String(Number(x.toFixed(2)));

/** `4096`, `0.25`, `1.2e+6`: short, and not rounded away. */
const show = (x: number): string => String(Number(x.toPrecision(Math.abs(x) >= 1000 ? 4 : 3)));

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]!);
