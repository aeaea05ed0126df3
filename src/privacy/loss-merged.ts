import { type LossPair, integrals } from './loss-pair.ts';
import { type Directions, type Grid, type LossMass, type Nodes, nodesOf } from './loss-grid.ts';

/**
 * Losses from below: a pair that `pair` dominates, by processing of what is released. The line is cut into cells so that
 * within each the ratio of P's mass to Q's is that of a node; telling the cell alone has exactly the losses of the nodes.
 * From either end cells follow one another: where one begins, the ratio says where it ends. An error in a border is
 * multiplied by the ratio of the densities at the cell's ends, hence dies out from the tails to the middle, where the two
 * runs join in one cell; the lattice is laid through that cell's own loss. Where no cell fits (losses are few, or in
 * atoms, or nodes come closer together), losses are rounded down to the next node.
 */
export function mergedLosses(pair: LossPair, grid: Grid, centred: boolean): Directions {
  const nodes = nodesOf(pair, grid, latticeOffset(pair, grid, centred));
  const cells: Cell[] = [];
  const emit: Emit = (u, v, node) => void (v !== u && cells.push({ from: Math.min(u, v), to: Math.max(u, v), node }));
  const low = run(pair, nodes, 0, 1, emit);
  const high = run(pair, nodes, nodes.index.length - 1, -1, emit);
  const offset = centred ? nodes.offset : join(pair, nodes, [low, high], emit);
  return {
    remove: removed(pair, nodes, cells, Math.min(nodes.offset, offset)),
    add: added(pair, nodes, cells, -Math.max(nodes.offset, offset)),
  };
}

/**
 * Tells the cells between two runs. Between them the loss is not quite that of the node: either a strip at one side is
 * told apart, and rounded down, or all losses give way to the one of the whole. Returns that loss.
 */
function join(pair: LossPair, { x, join: node, offset, step }: Nodes, [low, high]: readonly [number, number], emit: Emit): number {
  const whole = ratio(pair, low, high);
  const middle = x[node]!;
  const above = cellEnd(pair, low, middle, high, offset);
  const below = above === undefined ? cellEnd(pair, high, middle, low, offset) : low;
  const [u, v] = [below ?? low, above ?? high];
  const strips = [[low, u], [v, high]] as const;
  const price = strips.reduce((sum, [a, b]) => {
    const { mass, logScale } = integrals(pair, a, b, () => 1);
    return sum + mass * Math.exp(logScale) * step;
  }, 0);
  if (below === undefined || price > Math.abs(whole - offset)) {
    emit(low, high, node);
    return whole;
  }
  emit(u, v, node);
  for (const [a, b] of strips) emit(a, b, undefined);
  return offset;
}

/**
 * Where to lay the lattice for two runs to meet in a cell of the lattice's own loss: a root of the difference over one
 * step, by scanning and bisection; 0 where the lattice is to be `centred`.
 */
function latticeOffset(pair: LossPair, grid: Grid, centred: boolean): number {
  if (centred) return 0;
  const ignore = (): void => undefined;
  const difference = (offset: number): number => {
    const nodes = nodesOf(pair, grid, offset, 48);
    const low = run(pair, nodes, 0, 1, ignore);
    const high = run(pair, nodes, nodes.index.length - 1, -1, ignore);
    return high > low ? ratio(pair, low, high) - offset : Infinity;
  };
  let best = { offset: 0, off: Infinity };
  const consider = (offset: number): number => {
    const value = difference(offset);
    if (Math.abs(value) < best.off) best = { offset, off: Math.abs(value) };
    return value;
  };
  const good = (): boolean => best.off < 1e-5 * grid.step;
  let [from, before] = [NaN, NaN];
  // Most of the losses may lie within one step below 0, and the middle cell with them.
  for (let i = -12; i <= 6 && !good(); i++) {
    const offset = ((i + 0.1) / 13) * grid.step;
    const value = consider(offset);
    let [low, high] = [from, offset];
    for (let pass = 0; pass < 18 && before * value < 0 && !good(); pass++) {
      const middle = (low + high) / 2;
      if (consider(middle) * before > 0) low = middle;
      else high = middle;
    }
    [from, before] = [offset, value];
  }
  return best.offset;
}

/** log(P/Q) of the masses between two places, atoms left out. */
function ratio(pair: LossPair, low: number, high: number): number {
  const { mass, weighted } = integrals(pair, low, high, Math.expm1);
  return Math.log1p(weighted / mass);
}

/** A stretch of x; `node` says whose loss it has, or undefined where losses lie between the nodes beside it. */
interface Cell {
  readonly from: number;
  readonly to: number;
  readonly node: number | undefined;
}

type Emit = (u: number, v: number, node: number | undefined) => void;

/** A border may be so far, in shares of a cell, from where it should be. */
const tolerance = 0.1;

/** Cells from node `start` towards the join (`sign` 1: from below), told to `emit`. Returns where the last one ends. */
function run(pair: LossPair, { x, join, offset, step, index, partial }: Nodes, start: number, sign: 1 | -1, emit: Emit): number {
  const lossOf = (i: number): number => offset + step * index[i]!;
  // A list that was cut short begins in the middle between nodes.
  const before = pair.at(lossOf(start) - (lossOf(start + sign) - lossOf(start)) / 2);
  let border = partial && x[start]! > pair.from && x[start]! < pair.to ? before : sign > 0 ? pair.from : pair.to;
  for (let i = start; i * sign < join * sign; i += sign) {
    const middle = x[i]!;
    // A cell may go past the next nodes, where most of its mass is at its beginning.
    const limit = x[i + sign * Math.min(4, (join - i) * sign)]!;
    // Nodes beyond the ends have no mass about them, and some are within the cell of an earlier one.
    if (!(middle > pair.from && middle < pair.to && (middle - border) * sign > 0)) continue;
    const width = lossOf(i + sign) - lossOf(i);
    const ideal = lossOf(i) - width / 2;
    const closer = i !== start && Math.abs(lossOf(i) - lossOf(i - sign)) > 1.5 * Math.abs(width);
    if (closer && (ideal - pair.loss(border)) * sign > tolerance * Math.abs(width)) {
      const place = pair.at(ideal);
      emit(border, place, undefined);
      border = place;
    }
    const end = cellEnd(pair, border, middle, limit, lossOf(i));
    if (end !== undefined) {
      emit(border, end, i);
      border = end;
    } else {
      const half = pair.at(lossOf(i) + width / 2);
      emit(border, half, undefined);
      border = half;
    }
  }
  return border;
}

/**
 * Where the cell that begins at `border` ends for its loss to be `target`, the loss at `middle`: between `middle` and
 * `limit`, or undefined where it would have to go further.
 */
function cellEnd(pair: LossPair, border: number, middle: number, limit: number, target: number): number | undefined {
  const excess = (loss: number): number => Math.expm1(loss - target);
  const here = integrals(pair, border, middle, excess);
  const needed = -here.weighted;
  const missing = (v: number): number => {
    const there = integrals(pair, middle, v, excess);
    return needed - there.weighted * Math.exp(there.logScale - here.logScale);
  };
  const sign = Math.sign(limit - middle);
  let [near, far] = [middle, limit];
  let farIsEnough = false;
  let v = pair.at(2 * target - pair.loss(border));
  for (let pass = 0; pass < 60; pass++) {
    // Newton's step, or else to the limit while it is not known to be enough, or else to the middle.
    if (!((v - near) * sign > 0 && (far - v) * sign > 0)) v = farIsEnough ? (near + far) / 2 : limit;
    const rest = missing(v);
    if (!Number.isFinite(rest)) return undefined;
    if (Math.abs(rest) <= 1e-13 * Math.abs(needed) || v === near || (farIsEnough && v === far)) return v;
    if (rest > 0) {
      if (v === limit) return undefined;
      near = v;
    } else {
      far = v;
      farIsEnough = true;
    }
    v += (sign * rest) / (Math.exp(pair.logDensity(v) - here.logScale) * Math.abs(excess(pair.loss(v))));
  }
  return near;
}

/** P's masses, each told to the node whose loss it has or that is next below. */
function removed(pair: LossPair, { step, index, x, offset }: Nodes, cells: readonly Cell[], at: number): LossMass {
  const told = entries();
  for (const cell of cells) {
    for (const { from, to, node } of within(cell, x, 0)) {
      const target = offset + step * index[node]!;
      const { logScale, weighted } = integrals(pair, from, to, (loss) => Math.exp(loss - target));
      told.add(index[node]!, target + logScale + Math.log(weighted));
    }
  }
  for (const { loss, mass } of atoms(pair)) told.add(Math.floor((loss - offset) / step), mass + loss);
  return { step, offset: at, ...told.arrays(), infinity: 0 };
}

/** Q's masses, each told to the node whose negative loss it has or that is next below. */
function added(pair: LossPair, { step, index, x, offset }: Nodes, cells: readonly Cell[], at: number): LossMass {
  const told = entries();
  for (const cell of cells) {
    for (const { from, to, node } of within(cell, x, 1)) {
      const { logScale, mass } = integrals(pair, from, to, () => 1);
      told.add(-index[node]!, logScale + Math.log(mass));
    }
  }
  for (const { loss, mass } of atoms(pair)) told.add(-Math.ceil((loss - offset) / step), mass);
  return { step, offset: at, ...told.arrays(), infinity: 0 };
}

/** The cell with its node; or, where it has none, in pieces with the node at their lower (0) or upper (1) side. */
function within({ from, to, node }: Cell, x: Float64Array, side: 0 | 1): { from: number; to: number; node: number }[] {
  if (node !== undefined) return [{ from, to, node }];
  const pieces = [];
  for (let i = lastAtMost(x, from); i + 1 < x.length && x[i]! < to; i++) {
    const [u, v] = [Math.max(from, x[i]!), Math.min(to, x[i + 1]!)];
    if (v > u) pieces.push({ from: u, to: v, node: i + side });
  }
  return pieces;
}

const atoms = (pair: LossPair): readonly { readonly loss: number; readonly mass: number }[] =>
  [
    { loss: pair.loss(pair.from), mass: pair.atoms.below },
    { loss: pair.loss(pair.to), mass: pair.atoms.above },
  ].filter(({ mass }) => mass > -Infinity);

/** A growing list of lattice points and log masses. */
function entries(): { add(k: number, log: number): void; arrays(): Pick<LossMass, 'index' | 'log'> } {
  const index: number[] = [];
  const logs: number[] = [];
  return {
    add: (k, log) => {
      if (!(log > -Infinity)) return;
      index.push(k);
      logs.push(log);
    },
    arrays: () => ({ index: Int32Array.from(index), log: Float64Array.from(logs) }),
  };
}

/** The last i with x[i] ≤ place, 0 where there is none; x ascends. */
function lastAtMost(x: Float64Array, place: number): number {
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >>> 1;
    if (x[middle]! <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}
