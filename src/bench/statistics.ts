/** The middle of the values, or the mean of the two middle ones; NaN of none. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

export type Point = readonly [x: number, y: number];

export interface Line {
  readonly slope: number;
  readonly intercept: number;
  /** Share of the variance of y that the line explains; 1 where y does not vary. */
  readonly rSquared: number;
}

/** The line y = intercept + slope·x of least squares; undefined where the points do not have two different x. */
export function fitLine(points: readonly Point[]): Line | undefined {
  const mean = (values: readonly number[]): number => values.reduce((sum, v) => sum + v, 0) / values.length;
  const [mx, my] = [mean(points.map(([x]) => x)), mean(points.map(([, y]) => y))];
  const sum = (term: (x: number, y: number) => number): number => points.reduce((total, [x, y]) => total + term(x - mx, y - my), 0);
  const [xx, xy, yy] = [sum((x) => x * x), sum((x, y) => x * y), sum((_, y) => y * y)];
  if (!(xx > 0)) return undefined;
  return { slope: xy / xx, intercept: my - (xy / xx) * mx, rSquared: yy === 0 ? 1 : (xy * xy) / (xx * yy) };
}

/** The exponent k of y = c·xᵏ, by least squares of the logarithms; points that are not positive are left out. */
export function fitExponent(points: readonly Point[]): number | undefined {
  return fitLine(points.filter(([x, y]) => x > 0 && y > 0).map(([x, y]) => [Math.log(x), Math.log(y)]))?.slope;
}
