import { type Tensor, sizeOf } from '../../src/tensor/tensor.ts';
import type { Compiled } from '../support/operator-sample.ts';
import { type Checked, floatsOf, numbersOf, precision } from './numbers.ts';
import type { Feeds } from './program.ts';

/**
 * Steps of the finite differences, each extrapolated with its half. A long step has little rounding error, a short
 * one stays on one side of a kink: a gradient must agree at one of them.
 */
const steps = [2 ** -4, 2 ** -6, 2 ** -8, 2 ** -10] as const;
/** Rounding may leave a step that much of the derivative in doubt; the longest step is tried whatever it leaves. */
const doubt = 8e-3;
/** Coordinates that are moved one by one, and how many together along a random direction. */
const single = 8;
const together = 12;
const directions = 4;

/** Error allowed of the rule and of the extrapolation, relative to the size of the derivative. */
const relative = 2e-3;


/** Rounding errors of one output, in units of half a last place: a few, and those of sums over the inputs. */
function roundings(dtype: Checked, feeds: Feeds, outputs: number): number {
  const inputs = Math.max(...Object.values(feeds).map(({ data }) => data.length));
  return dtype === 'float16' ? 4 : 16 + 4 * Math.sqrt(inputs / outputs);
}

/** Coordinates of one input, and how far each moves. */
type Direction = ReadonlyMap<number, number>;

/**
 * Compares the gradient of Σ seed·output with respect to one input with central differences of the outputs.
 *
 * @param gradient undefined stands for zero
 * @returns what is wrong; undefined where the gradient agrees everywhere it was tried
 */
export async function disagreement(
  forward: Compiled, feeds: Feeds, name: string, gradient: Tensor | undefined, seeds: Feeds, random: () => number,
): Promise<string | undefined> {
  const count = sizeOf(feeds[name]!.shape);
  const slopes = gradient && numbersOf(gradient);
  if (slopes !== undefined && !Array.prototype.every.call(slopes, Number.isFinite)) return `${name}: not finite`;
  for (const direction of chosenDirections(count, random)) {
    const along = [...direction.keys()];
    const tried: string[] = [];
    let agrees = false;
    for (const step of steps) {
      const whole = await difference(forward, feeds, name, slopes, seeds, direction, step);
      const half = await difference(forward, feeds, name, slopes, seeds, direction, step / 2);
      const error = (4 * half.error - whole.error) / 3;
      const rounding = (5 / 3) * half.rounding;
      if (step < steps[0] && rounding > doubt * half.size) continue;
      const allowed = relative * half.size + rounding + 1e-6;
      tried.push(`${error} (allowed ${allowed}) with step ${step}`);
      agrees = Math.abs(error) <= allowed;
      if (agrees) break;
    }
    if (!agrees) return `${name}[${along.slice(0, 4).join()}${along.length > 4 ? ',…' : ''}]: ${tried.join('; ')}`;
  }
  return undefined;
}

function chosenDirections(count: number, random: () => number): readonly Direction[] {
  if (count === 0) return [];
  const drawn = (n: number): number[] => [...new Set(
    n >= count ? Array.from({ length: count }, (_, i) => i)
      : Array.from({ length: n }, () => Math.floor(random() * count)),
  )];
  const alone = [...new Set([0, count - 1, ...drawn(single)])].slice(0, single);
  const joint = Array.from({ length: count > 1 ? directions : 0 }, () => drawn(together));
  return [...alone.map((i) => new Map([[i, 1]])), ...joint.map((at) => new Map(at.map((i) => [i, random() * 2 - 1])))];
}

/** Difference quotient less what the gradient says; both of the move that is left after rounding. */
async function difference(
  forward: Compiled, feeds: Feeds, name: string, slopes: ArrayLike<number> | undefined, seeds: Feeds,
  direction: Direction, step: number,
): Promise<{ readonly error: number; readonly size: number; readonly rounding: number }> {
  const x = feeds[name]!;
  const [after, before] = [moved(x, direction, step), moved(x, direction, -step)];
  const [high, low] = [await forward({ ...feeds, [name]: after }), await forward({ ...feeds, [name]: before })];
  let [slope, noise] = [0, 0];
  for (const [output, seed] of Object.entries(seeds)) {
    const [y, z, u] = [numbersOf(high[output]!), numbersOf(low[output]!), numbersOf(seed)];
    const dtype = seed.dtype as Checked;
    const unit = precision[dtype] * roundings(dtype, feeds, y.length);
    for (let i = 0; i < y.length; i++) {
      const [a, c] = [y[i]!, z[i]!];
      if (a === c) continue;
      slope += u[i]! * (a - c);
      noise += (u[i]! * unit * Math.max(Math.abs(a), Math.abs(c))) ** 2;
    }
  }
  const [far, near] = [numbersOf(after), numbersOf(before)];
  let [expected, size] = [0, 0];
  for (const i of direction.keys()) {
    const part = (slopes?.[i] ?? 0) * (far[i]! - near[i]!);
    expected += part;
    size += part ** 2;
  }
  const scale = 1 / (2 * step);
  return { error: (slope - expected) * scale, size: Math.sqrt(size) * scale, rounding: Math.sqrt(noise) * scale };
}

function moved(x: Tensor, direction: Direction, step: number): Tensor {
  const values = Float64Array.from(numbersOf(x));
  direction.forEach((v, i) => { values[i]! += step * v; });
  return floatsOf(x.dtype, x.shape, values);
}
